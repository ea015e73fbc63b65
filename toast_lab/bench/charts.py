"""The figures of section 5 as SVG: step time, search time, scaling, anytime curves.

Every chart is drawn from tidy rows of ``tables``.  Files are the same, byte for byte, for the same
rows: no date, a fixed salt for names, text left as text.  Hues are those of Okabe and Ito, which
people with any kind of colour blindness can tell apart; a plan that does not fit is hatched and
says OOM.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toast_lab.errors import InvalidProblem
from toast_lab.files import write_whole

HUES = {
    "mcts": "#0072B2",
    "manual": "#8c8c8c",
    "automap": "#E69F00",
    "alpa": "#009E73",
    "beam": "#CC79A7",
    "random": "#56B4E9",
    "exhaustive": "#D55E00",
}
MARKERS = {
    "mcts": "o",
    "manual": "s",
    "automap": "^",
    "alpa": "D",
    "beam": "v",
    "random": "P",
    "exhaustive": "X",
}
OTHER_HUE, OTHER_MARKER = "#000000", "*"
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
    "path.simplify": True,
}

Rows = Sequence[Mapping[str, Any]]


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
        for i, machine in enumerate(machines):
            for j, name in enumerate(names):
                ax = axes[i][j]
                panel = {
                    row["method"]: row
                    for row in rows
                    if row["machine"] == machine and row["case"] == name
                }
                _bars(ax, methods, panel)
                ax.set_title(f"{name}, {machine}")
                if j == 0:
                    ax.set_ylabel("step time, ms")
        _legend(figure, methods, oom=any(row["outcome"] == "OOM" for row in rows))
        _save(figure, path)


def _bars(axes: Any, methods: Sequence[str], panel: Mapping[str, Mapping[str, Any]]) -> None:
    fitting = [
        row["time_s"] * 1e3
        for row in panel.values()
        if row.get("time_s") is not None and row["outcome"] == "ok"
    ]
    times = [row["time_s"] * 1e3 for row in panel.values() if row.get("time_s") is not None]
    # A plan that does not fit may be slower by far; its bar is cut off rather than the others made
    # too small to read.
    top = 1.3 * (max(fitting) if fitting else max(times, default=1.0))
    for position, method in enumerate(methods):
        row = panel.get(method)
        if row is None:
            continue
        if row.get("time_s") is None:
            axes.text(
                position,
                0.02 * top,
                str(row["outcome"]).lower(),
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=7,
            )
            continue
        value, exceeds = row["time_s"] * 1e3, row["outcome"] == "OOM"
        colour = HUES.get(method, OTHER_HUE)
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
        axes.text(
            position,
            min(value, top) * 0.97 if inside else value + 0.02 * top,
            label,
            rotation=90,
            ha="center",
            va="top" if inside else "bottom",
            fontsize=7,
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
        machines = _kinds(rows, "machine")
        names = _kinds(rows, "case")
        methods = _kinds(rows, "method")
        figure, axes = plt.subplots(
            1,
            max(len(names), 1),
            figsize=(2.4 * max(len(names), 1) + 1.2, 3.0),
            squeeze=False,
            sharey=True,
        )
        floor = 1e-3
        step = 0.8 / max(len(methods), 1)
        for ax, name in zip(axes[0], names, strict=False):
            for row in (row for row in rows if row["case"] == name):
                position = (
                    machines.index(row["machine"])
                    - 0.4
                    + step * (methods.index(row["method"]) + 0.5)
                )
                colour = HUES.get(row["method"], OTHER_HUE)
                ax.bar(position, max(row["own_best_s"], floor), step * 0.9, color=colour)
                if row.get("close_s") is not None:
                    ax.plot(
                        position,
                        max(row["close_s"], floor),
                        "o",
                        ms=4.2,
                        mfc="white",
                        mec="black",
                        mew=0.8,
                        zorder=3,
                    )
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
            colour, marker = HUES.get(method, OTHER_HUE), MARKERS.get(method, OTHER_MARKER)
            style = {"color": colour, "lw": 1.4, "zorder": 3 - 0.01 * order}
            fitting = [
                row["time_s"] * 1e3 if row["outcome"] == "ok" else float("nan") for row in timed
            ]
            left.plot([row["devices"] for row in timed], fitting, marker=marker, ms=5, **style)
            for row in timed:
                if row["outcome"] == "OOM":
                    left.plot(row["devices"], row["time_s"] * 1e3, "x", color=colour, ms=6, mew=1.6)
                    left.annotate(
                        "OOM",
                        (row["devices"], row["time_s"] * 1e3),
                        textcoords="offset points",
                        xytext=(4, 4),
                        fontsize=7,
                        color=colour,
                    )
            known_points = [
                (row["devices"], close[row["case"], method])
                for row in mine
                if close.get((row["case"], method))
            ]
            right.plot(
                [position for position, _ in known_points],
                [max(seconds, 1e-3) for _, seconds in known_points],
                marker=marker,
                ms=5,
                **style,
            )
        for ax, title in ((left, "step time, ms"), (right, "search time to own best, s")):
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.set_ylabel(title)
            ax.set_xticks(
                [count for count, _ in names],
                [f"{count}\n{_mesh_and_length(case)}" for count, case in names],
                fontsize=7.5,
            )
            ax.minorticks_off()
            ax.set_xlabel("devices, mesh Batch x Seq x Model, positions")
        _plain_log(left)
        _plain_log(right)
        _legend(
            figure, methods, markers=True, oom_cross=any(row["outcome"] == "OOM" for row in steps)
        )
        _save(figure, path)


def growth_lines(groups: Mapping[str, Rows], path: Path) -> None:
    """Search time of ours against layers and against devices, a panel each.

    Both have the line of a square root.
    """
    with _figure() as plt:
        groups = {name_: group for name_, group in groups.items() if group}
        figure, axes = plt.subplots(
            1, max(len(groups), 1), figsize=(4.6 * max(len(groups), 1), 3.2), squeeze=False
        )
        for ax, (name, rows) in zip(axes[0], groups.items(), strict=False):
            rows = sorted(rows, key=lambda row: row["x"])
            numbers = [row["x"] for row in rows]
            total = [row["elapsed_s"] for row in rows]
            ax.plot(numbers, total, "o-", color=HUES["mcts"], ms=4, label="whole search")
            own_best_s = [max(row["own_best_s"] or 1e-3, 1e-3) for row in rows]
            ax.plot(numbers, own_best_s, "s--", color=HUES["automap"], ms=4, label="to own best")
            root = [total[0] * (number / numbers[0]) ** 0.5 for number in numbers]
            ax.plot(numbers, root, ":", color="#555555", label="square root")
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.set_xticks(numbers, [f"{number:g}" for number in numbers])
            ax.minorticks_off()
            ax.set_xlabel(name)
            ax.set_ylabel("seconds")
            _plain_log(ax)
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
            some_fit = any(row["fits"] for row in panel)
            best = min((row["score"] for row in panel if row["fits"] or not some_fit), default=1.0)
            for method in methods:
                curve = [
                    row
                    for row in panel
                    if row["method"] == method and (row["fits"] or not some_fit)
                ]
                if not curve:
                    continue
                seconds = [max(row["elapsed_s"], 1e-3) for row in curve]
                seconds.append(max(lasted.get((case, machine, method), seconds[-1]), seconds[-1]))
                # Along the upper edge: farther away
                ratios = [min(row["score"] / best, FARTHEST) for row in curve]
                ax.step(
                    seconds,
                    [*ratios, ratios[-1]],
                    where="post",
                    color=HUES.get(method, OTHER_HUE),
                    lw=1.4,
                )
                ax.plot(
                    seconds[-1],
                    ratios[-1],
                    MARKERS.get(method, OTHER_MARKER),
                    color=HUES.get(method, OTHER_HUE),
                    ms=4,
                )
            ax.set_xscale("log")
            ax.set_ylim(0.97, FARTHEST * 1.01)
            ax.set_title(f"{case}, {machine}")
        for ax in list(axes.flat)[len(names) :]:
            ax.set_visible(False)
        for axes_row in axes:
            axes_row[0].set_ylabel("score / best")
        for ax in axes[-1]:
            ax.set_xlabel("search time, s")
        _legend(figure, methods, markers=True)
        _save(figure, path)


# -- shared ----------------------------------------------------------------------------------------


class _figure:
    """Matplotlib without a window, with our style; closes what was drawn."""

    def __enter__(self) -> Any:
        plt = pyplot()
        self.context = plt.rc_context(STYLE)
        self.context.__enter__()
        plt.rcParams["figure.constrained_layout.use"] = True
        return plt

    def __exit__(self, *error: Any) -> None:
        pyplot().close("all")
        self.context.__exit__(*error)


def pyplot() -> Any:
    """Matplotlib's pyplot, or InvalidProblem that says how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise InvalidProblem('charts need matplotlib: pip install "toast-lab[bench]"') from None
    matplotlib.use("svg")
    from matplotlib import pyplot as found

    return found


def _kinds(rows: Iterable[Mapping[str, Any]], key: str) -> list[str]:
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

    handles: list[Any] = []
    for method in methods:
        colour = HUES.get(method, OTHER_HUE)
        if markers:
            handles.append(
                Line2D(
                    [],
                    [],
                    color=colour,
                    marker=MARKERS.get(method, OTHER_MARKER),
                    ms=5,
                    label=method,
                )
            )
        else:
            handles.append(Patch(color=colour, label=method))
    if oom:
        handles.append(
            Patch(
                facecolor="white",
                edgecolor="#555555",
                hatch="////",
                label="best plan does not fit (OOM)",
            )
        )
    if oom_cross:
        handles.append(
            Line2D([], [], color="#555555", marker="x", ls="", label="best plan does not fit (OOM)")
        )
    if ring:
        handles.append(Line2D([], [], marker="o", ls="", mfc="white", mec="black", label=ring))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 8) or 1, frameon=False
    )


def _plain_log(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _mesh_and_length(case: str) -> str:
    return case.replace(", ", "\n")


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.3g}" if milliseconds < 1000 else f"{milliseconds:,.0f}"


def _save(figure: Any, path: Path) -> None:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    write_whole(path, "\n".join(lines) + "\n", "the chart")
