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
                here = {
                    r["method"]: r for r in rows if r["machine"] == machine and r["case"] == name
                }
                _bars(ax, methods, here)
                ax.set_title(f"{name}, {machine}")
                if j == 0:
                    ax.set_ylabel("step time, ms")
        _legend(figure, methods, oom=any(r["outcome"] == "OOM" for r in rows))
        _save(figure, path)


def _bars(ax: Any, methods: Sequence[str], here: Mapping[str, Mapping[str, Any]]) -> None:
    shown = [
        r["time_s"] * 1e3
        for r in here.values()
        if r.get("time_s") is not None and r["outcome"] == "ok"
    ]
    every = [r["time_s"] * 1e3 for r in here.values() if r.get("time_s") is not None]
    # A plan that does not fit may be slower by far; its bar is cut off rather than the others made
    # too small to read.
    top = 1.3 * (max(shown) if shown else max(every, default=1.0))
    for k, method in enumerate(methods):
        row = here.get(method)
        if row is None:
            continue
        if row.get("time_s") is None:
            ax.text(
                k,
                0.02 * top,
                str(row["outcome"]).lower(),
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=7,
            )
            continue
        value, oom = row["time_s"] * 1e3, row["outcome"] == "OOM"
        hue = HUES.get(method, OTHER_HUE)
        ax.bar(
            k,
            min(value, top),
            0.8,
            color="white" if oom else hue,
            edgecolor=hue,
            hatch="////" if oom else None,
            linewidth=0.9,
        )
        label = f"OOM {_short(value)}" if oom else _short(value)
        inside = value > 0.72 * top or oom
        ax.text(
            k,
            min(value, top) * 0.97 if inside else value + 0.02 * top,
            label,
            rotation=90,
            ha="center",
            va="top" if inside else "bottom",
            fontsize=7,
            color="black" if oom or not inside else "white",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6} if oom else None,
        )
    ax.set_ylim(0, top)
    ax.set_xlim(-0.6, len(methods) - 0.4)
    ax.set_xticks([])


def search_time_bars(rows: Rows, path: Path) -> None:
    """Seconds of each search to its own best plan (log).

    A panel for each model, machines side by side.

    A ring marks when it was within 1% of the best plan of any method; without a ring it never was.
    ``rows``: search_times.
    """
    with _figure() as plt:
        rows = [r for r in rows if r.get("own_best_s") is not None]
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
            for r in (r for r in rows if r["case"] == name):
                x = machines.index(r["machine"]) - 0.4 + step * (methods.index(r["method"]) + 0.5)
                hue = HUES.get(r["method"], OTHER_HUE)
                ax.bar(x, max(r["own_best_s"], floor), step * 0.9, color=hue)
                if r.get("close_s") is not None:
                    ax.plot(
                        x,
                        max(r["close_s"], floor),
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
        names = list(dict.fromkeys((r["devices"], r["case"]) for r in steps))
        figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.4))
        close = {(r["case"], r["method"]): r["own_best_s"] for r in searches}
        for k, method in enumerate(methods):
            mine = sorted((r for r in steps if r["method"] == method), key=lambda r: r["devices"])
            timed = [r for r in mine if r.get("time_s") is not None]
            hue, marker = HUES.get(method, OTHER_HUE), MARKERS.get(method, OTHER_MARKER)
            style = {"color": hue, "lw": 1.4, "zorder": 3 - 0.01 * k}
            fit = [r["time_s"] * 1e3 if r["outcome"] == "ok" else float("nan") for r in timed]
            left.plot([r["devices"] for r in timed], fit, marker=marker, ms=5, **style)
            for r in timed:
                if r["outcome"] == "OOM":
                    left.plot(r["devices"], r["time_s"] * 1e3, "x", color=hue, ms=6, mew=1.6)
                    left.annotate(
                        "OOM",
                        (r["devices"], r["time_s"] * 1e3),
                        textcoords="offset points",
                        xytext=(4, 4),
                        fontsize=7,
                        color=hue,
                    )
            known = [
                (r["devices"], close[r["case"], method])
                for r in mine
                if close.get((r["case"], method))
            ]
            right.plot(
                [x for x, _ in known],
                [max(y, 1e-3) for _, y in known],
                marker=marker,
                ms=5,
                **style,
            )
        for ax, title in ((left, "step time, ms"), (right, "search time to own best, s")):
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.set_ylabel(title)
            ax.set_xticks(
                [n for n, _ in names],
                [f"{n}\n{_mesh_and_length(c)}" for n, c in names],
                fontsize=7.5,
            )
            ax.minorticks_off()
            ax.set_xlabel("devices, mesh Batch x Seq x Model, positions")
        _plain_log(left)
        _plain_log(right)
        _legend(figure, methods, markers=True, oom_cross=any(r["outcome"] == "OOM" for r in steps))
        _save(figure, path)


def growth_lines(groups: Mapping[str, Rows], path: Path) -> None:
    """Search time of ours against layers and against devices, a panel each.

    Both have the line of a square root.
    """
    with _figure() as plt:
        groups = {k: v for k, v in groups.items() if v}
        figure, axes = plt.subplots(
            1, max(len(groups), 1), figsize=(4.6 * max(len(groups), 1), 3.2), squeeze=False
        )
        for ax, (name, rows) in zip(axes[0], groups.items(), strict=False):
            rows = sorted(rows, key=lambda r: r["x"])
            xs = [r["x"] for r in rows]
            total = [r["elapsed_s"] for r in rows]
            ax.plot(xs, total, "o-", color=HUES["mcts"], ms=4, label="whole search")
            own = [max(r["own_best_s"] or 1e-3, 1e-3) for r in rows]
            ax.plot(xs, own, "s--", color=HUES["automap"], ms=4, label="to own best")
            root = [total[0] * (x / xs[0]) ** 0.5 for x in xs]
            ax.plot(xs, root, ":", color="#555555", label="square root")
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.set_xticks(xs, [f"{x:g}" for x in xs])
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
        names = list(dict.fromkeys((r["case"], r["machine"]) for r in rows))
        methods = _kinds(rows, "method")
        wide = 3 if len(names) % 3 == 0 else min(5, max(len(names), 1))
        tall = -(-max(len(names), 1) // wide)
        figure, axes = plt.subplots(
            tall, wide, figsize=(3.2 * wide, 1.9 * tall + 0.8), squeeze=False, sharex=True
        )
        lasted = {(r["case"], r["machine"], r["method"]): r["elapsed_s"] for r in ends}
        for ax, (case, machine) in zip(axes.flat, names, strict=False):
            here = [r for r in rows if (r["case"], r["machine"]) == (case, machine)]
            some_fit = any(r["fits"] for r in here)
            best = min((r["score"] for r in here if r["fits"] or not some_fit), default=1.0)
            for method in methods:
                curve = [r for r in here if r["method"] == method and (r["fits"] or not some_fit)]
                if not curve:
                    continue
                xs = [max(r["elapsed_s"], 1e-3) for r in curve]
                xs.append(max(lasted.get((case, machine, method), xs[-1]), xs[-1]))
                # Along the upper edge: farther away
                ys = [min(r["score"] / best, FARTHEST) for r in curve]
                ax.step(xs, [*ys, ys[-1]], where="post", color=HUES.get(method, OTHER_HUE), lw=1.4)
                ax.plot(
                    xs[-1],
                    ys[-1],
                    MARKERS.get(method, OTHER_MARKER),
                    color=HUES.get(method, OTHER_HUE),
                    ms=4,
                )
            ax.set_xscale("log")
            ax.set_ylim(0.97, FARTHEST * 1.01)
            ax.set_title(f"{case}, {machine}")
        for ax in list(axes.flat)[len(names) :]:
            ax.set_visible(False)
        for row in axes:
            row[0].set_ylabel("score / best")
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
    return list(dict.fromkeys(str(r[key]) for r in rows))


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
    for m in methods:
        hue = HUES.get(m, OTHER_HUE)
        if markers:
            handles.append(
                Line2D([], [], color=hue, marker=MARKERS.get(m, OTHER_MARKER), ms=5, label=m)
            )
        else:
            handles.append(Patch(color=hue, label=m))
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


def _plain_log(ax: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _mesh_and_length(case: str) -> str:
    return case.replace(", ", "\n")


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.3g}" if milliseconds < 1000 else f"{milliseconds:,.0f}"


def _save(figure: Any, path: Path) -> None:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    write_whole(path, "\n".join(lines) + "\n", "the chart")
