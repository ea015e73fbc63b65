"""The figures of section 5 as SVG: step time, search time, scaling, anytime curves.

Every chart is drawn from tidy rows of ``tables``.  Files are the same, byte for byte, for the same
rows: no date, a fixed salt for names, text left as text.  Hues are those of Okabe and Ito, which
people with any kind of colour blindness can tell apart; a plan that does not fit is hatched and
says OOM.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toast_lab.errors import InvalidProblem
from toast_lab.files import write_whole

#: Hue and marker of each method.
APPEARANCE = {
    "mcts": ("#0072B2", "o"),
    "manual": ("#8c8c8c", "s"),
    "automap": ("#E69F00", "^"),
    "alpa": ("#009E73", "D"),
    "beam": ("#CC79A7", "v"),
    "random": ("#56B4E9", "P"),
    "exhaustive": ("#D55E00", "X"),
}
OTHER_APPEARANCE = ("#000000", "*")
FARTHEST = 2.0  # times the best score that curves are shown up to
STYLE = {
    "svg.hashsalt": "toast-lab",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.7,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "path.simplify": True,
}

Row = Mapping[str, Any]
Rows = Sequence[Row]


def step_time_bars(rows: Rows, path: Path) -> None:
    """Step time by method: a panel for each machine (down) and model (across), bars from 0.

    ``rows``: step_times.
    """
    with _figure() as plt:
        machines, names = _kinds(rows, "machine"), _kinds(rows, "case")
        methods = _kinds(rows, "method")
        figure, axes = plt.subplots(
            len(machines),
            len(names),
            figsize=(2.3 * len(names) + 1.2, 1.9 * len(machines) + 0.9),
            squeeze=False,
        )
        panels = itertools.product(machines, names)
        for panel_axes, (machine, name) in zip(axes.flat, panels, strict=True):
            by_method = {
                row["method"]: row
                for row in rows
                if row["machine"] == machine and row["case"] == name
            }
            _bars(panel_axes, methods, by_method)
            panel_axes.set_title(f"{name}, {machine}")
        for panel_axes in axes[:, 0]:
            panel_axes.set_ylabel("step time, ms")
        _legend(figure, methods, oom=any(row["outcome"] == "OOM" for row in rows))
        _save(figure, path)


def _bars(axes: Any, methods: Sequence[str], by_method: Mapping[str, Row]) -> None:
    timed = [row for row in by_method.values() if row.get("time_s") is not None]
    fitting = [row for row in timed if row["outcome"] == "ok"]
    # A plan that does not fit may be slower by far; its bar is cut off rather than the others made
    # too small to read.
    top = 1.3 * max((row["time_s"] * 1e3 for row in fitting or timed), default=1.0)
    write_upright = functools.partial(axes.text, rotation=90, ha="center", fontsize=7)
    for position, method in enumerate(methods):
        row = by_method.get(method)
        if row is None:
            continue
        if row.get("time_s") is None:
            write_upright(position, 0.02 * top, str(row["outcome"]).lower(), va="bottom")
            continue
        value, exceeds = row["time_s"] * 1e3, row["outcome"] == "OOM"
        colour = _hue(method)
        axes.bar(
            position,
            min(value, top),
            0.8,
            color="white" if exceeds else colour,
            edgecolor=colour,
            hatch="////" if exceeds else None,
            linewidth=0.9,
        )
        label = f"OOM {_short(value)}" if exceeds else _short(value)
        inside = value > 0.72 * top or exceeds
        write_upright(
            position,
            min(value, top) * 0.97 if inside else value + 0.02 * top,
            label,
            va="top" if inside else "bottom",
            color="black" if exceeds or not inside else "white",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6} if exceeds else None,
        )
    axes.set_ylim(0, top)
    axes.set_xlim(-0.6, len(methods) - 0.4)
    axes.set_xticks([])


def search_time_bars(rows: Rows, path: Path) -> None:
    """Seconds of each search to its own best plan (log).

    A panel for each model, machines side by side.

    A ring marks when it was within 1% of the best plan of any method; without a ring it never was.
    ``rows``: search_times.
    """
    with _figure() as plt:
        rows = [row for row in rows if row.get("own_best_s") is not None]
        machines, names = _kinds(rows, "machine"), _kinds(rows, "case")
        methods = _kinds(rows, "method")
        panel_count = max(len(names), 1)
        figure, axes = plt.subplots(
            1, panel_count, figsize=(2.4 * panel_count + 1.2, 3.0), squeeze=False, sharey=True
        )
        floor = 1e-3
        step = 0.8 / max(len(methods), 1)
        ring = {"ms": 4.2, "mfc": "white", "mec": "black", "mew": 0.8, "zorder": 3}
        for ax, name in zip(axes[0], names, strict=False):
            for row in (row for row in rows if row["case"] == name):
                slot = step * (methods.index(row["method"]) + 0.5)
                position = machines.index(row["machine"]) - 0.4 + slot
                seconds = max(row["own_best_s"], floor)
                ax.bar(position, seconds, step * 0.9, color=_hue(row["method"]))
                if row.get("close_s") is not None:
                    ax.plot(position, max(row["close_s"], floor), "o", **ring)
            ax.set_yscale("log")
            ax.set_ylim(bottom=floor)
            ax.set_xticks(range(len(machines)), machines)
            ax.set_title(name)
        axes[0][0].set_ylabel("search time to own best, s")
        _legend(figure, methods, ring="within 1% of the best of any")
        _save(figure, path)


def scaling_lines(steps: Rows, searches: Rows, path: Path) -> None:
    """Step and search time against devices, both logarithmic; crosses do not fit.

    Rows of one part.
    """
    with _figure() as plt:
        methods = _kinds(steps, "method")
        names = list(dict.fromkeys((row["devices"], row["case"]) for row in steps))
        figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.4))
        close = {(row["case"], row["method"]): row["own_best_s"] for row in searches}
        for order, method in enumerate(methods):
            mine = sorted(
                (row for row in steps if row["method"] == method), key=lambda row: row["devices"]
            )
            timed = [row for row in mine if row.get("time_s") is not None]
            colour, marker = APPEARANCE.get(method, OTHER_APPEARANCE)
            style = {"color": colour, "lw": 1.4, "zorder": 3 - 0.01 * order}
            fitting = [
                row["time_s"] * 1e3 if row["outcome"] == "ok" else float("nan") for row in timed
            ]
            left.plot([row["devices"] for row in timed], fitting, marker=marker, ms=5, **style)
            for row in timed:
                if row["outcome"] == "OOM":
                    point = row["devices"], row["time_s"] * 1e3
                    left.plot(*point, "x", color=colour, ms=6, mew=1.6)
                    left.annotate(
                        "OOM",
                        point,
                        textcoords="offset points",
                        xytext=(4, 4),
                        fontsize=7,
                        color=colour,
                    )
            searched = [row for row in mine if close.get((row["case"], method))]
            seconds = [max(close[row["case"], method], 1e-3) for row in searched]
            right.plot([row["devices"] for row in searched], seconds, marker=marker, ms=5, **style)
        for ax, title in ((left, "step time, ms"), (right, "search time to own best, s")):
            ax.set_ylabel(title)
            labels = [f"{count}\n{case}".replace(", ", "\n") for count, case in names]
            _log_log(ax, [count for count, _ in names], labels, fontsize=7.5)
            ax.set_xlabel("devices, mesh Batch x Seq x Model, positions")
        _legend(
            figure, methods, markers=True, oom_cross=any(row["outcome"] == "OOM" for row in steps)
        )
        _save(figure, path)


def growth_lines(groups: Mapping[str, Rows], path: Path) -> None:
    """Search time of ours against layers and against devices, a panel each.

    Both have the line of a square root.
    """
    with _figure() as plt:
        groups = {name: group for name, group in groups.items() if group}
        panel_count = max(len(groups), 1)
        figure, axes = plt.subplots(1, panel_count, figsize=(4.6 * panel_count, 3.2), squeeze=False)
        for ax, (name, rows) in zip(axes[0], groups.items(), strict=False):
            rows = sorted(rows, key=lambda row: row["x"])
            numbers = [row["x"] for row in rows]
            total = [row["elapsed_s"] for row in rows]
            ax.plot(numbers, total, "o-", color=_hue("mcts"), ms=4, label="whole search")
            own_best_s = [max(row["own_best_s"] or 1e-3, 1e-3) for row in rows]
            ax.plot(numbers, own_best_s, "s--", color=_hue("automap"), ms=4, label="to own best")
            root = [total[0] * (number / numbers[0]) ** 0.5 for number in numbers]
            ax.plot(numbers, root, ":", color="#555555", label="square root")
            _log_log(ax, numbers, [f"{number:g}" for number in numbers])
            ax.set_xlabel(name)
            ax.set_ylabel("seconds")
        handles, labels = axes[0][-1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        _save(figure, path)


def anytime_lines(rows: Rows, ends: Rows, path: Path) -> None:
    """Best score so far over that of the best method, against seconds, a panel per problem.

    The seconds are on a log scale.

    Curves begin where a plan first fits, or at once where none ever does; along the upper edge they
    are farther away.  ``ends`` are search_times: how long each search went on.
    """
    with _figure() as plt:
        names = list(dict.fromkeys((row["case"], row["machine"]) for row in rows))
        methods = _kinds(rows, "method")
        wide = 3 if len(names) % 3 == 0 else min(5, max(len(names), 1))
        tall = -(-max(len(names), 1) // wide)
        figure, axes = plt.subplots(
            tall, wide, figsize=(3.2 * wide, 1.9 * tall + 0.8), squeeze=False, sharex=True
        )
        lasted = {(row["case"], row["machine"], row["method"]): row["elapsed_s"] for row in ends}
        for ax, (case, machine) in zip(axes.flat, names, strict=False):
            panel = [row for row in rows if (row["case"], row["machine"]) == (case, machine)]
            panel = [row for row in panel if row["fits"]] or panel
            best = min((row["score"] for row in panel), default=1.0)
            for method in methods:
                curve = [row for row in panel if row["method"] == method]
                if not curve:
                    continue
                hue, marker = APPEARANCE.get(method, OTHER_APPEARANCE)
                seconds = [max(row["elapsed_s"], 1e-3) for row in curve]
                seconds.append(max(lasted.get((case, machine, method), seconds[-1]), seconds[-1]))
                # Along the upper edge: farther away
                ratios = [min(row["score"] / best, FARTHEST) for row in curve]
                ax.step(seconds, [*ratios, ratios[-1]], where="post", color=hue, lw=1.4)
                ax.plot(seconds[-1], ratios[-1], marker, color=hue, ms=4)
            ax.set_xscale("log")
            ax.set_ylim(0.97, FARTHEST * 1.01)
            ax.set_title(f"{case}, {machine}")
        for ax in list(axes.flat)[len(names) :]:
            ax.set_visible(False)
        for ax in axes[:, 0]:
            ax.set_ylabel("score / best")
        for ax in axes[-1]:
            ax.set_xlabel("search time, s")
        _legend(figure, methods, markers=True)
        _save(figure, path)


# -- shared ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _figure() -> Iterator[Any]:
    """Matplotlib without a window, with our style; closes what was drawn."""
    plt = pyplot()
    with plt.rc_context(STYLE):
        try:
            yield plt
        finally:
            plt.close("all")


def pyplot() -> Any:
    """Matplotlib's pyplot, or InvalidProblem that says how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise InvalidProblem('charts need matplotlib: pip install "toast-lab[bench]"') from None
    matplotlib.use("svg")
    return importlib.import_module("matplotlib.pyplot")


def _hue(method: str) -> str:
    return APPEARANCE.get(method, OTHER_APPEARANCE)[0]


def _kinds(rows: Rows, key: str) -> list[str]:
    """The different values of a column, in order of first appearance."""
    return list(dict.fromkeys(str(row[key]) for row in rows))


def _legend(
    figure: Any,
    methods: Sequence[str],
    *,
    oom: bool = False,
    ring: str = "",
    markers: bool = False,
    oom_cross: bool = False,
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    line = functools.partial(Line2D, [], [])
    handles: list[Any] = []
    for method in methods:
        hue, marker = APPEARANCE.get(method, OTHER_APPEARANCE)
        if markers:
            handles.append(line(color=hue, marker=marker, ms=5, label=method))
        else:
            handles.append(Patch(color=hue, label=method))
    exceeds, grey = "best plan does not fit (OOM)", "#555555"
    if oom:
        handles.append(Patch(facecolor="white", edgecolor=grey, hatch="////", label=exceeds))
    if oom_cross:
        handles.append(line(color=grey, marker="x", ls="", label=exceeds))
    if ring:
        handles.append(line(marker="o", ls="", mfc="white", mec="black", label=ring))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 8) or 1, frameon=False
    )


def _log_log(axes: Any, ticks: Sequence[float], labels: Sequence[str], **style: Any) -> None:
    """Both scales logarithmic, with these ticks below and plain numbers at the side."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, labels, **style)
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.3g}" if milliseconds < 1000 else f"{milliseconds:,.0f}"


def _save(figure: Any, path: Path) -> None:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    write_whole(path, "\n".join(lines) + "\n", "the chart")
