"""The figures of section 5: step time, search time, scaling, anytime curves.

Every chart is a HoloViews layout made from tidy rows of ``tables``, with one panel per problem,
and ``views.saved_chart`` writes it to a file. Hues are those of Okabe and Ito, which people with
any kind of colour blindness can tell apart; a plan that does not fit is hatched and labelled OOM.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import holoviews as hv
import pandas as pd

from toast_lab.views.chart_style import chart, drawn, on_glyph

#: Hue and marker of each method.
APPEARANCE = {
    "mcts": ("#0072B2", "circle"),
    "manual": ("#8c8c8c", "square"),
    "automap": ("#E69F00", "triangle"),
    "alpa": ("#009E73", "diamond"),
    "beam": ("#CC79A7", "inverted_triangle"),
    "random": ("#56B4E9", "plus"),
    "exhaustive": ("#D55E00", "x"),
}
OTHER_APPEARANCE = ("#000000", "star")
FARTHEST = 2.0  # times the best score, where curves are cut off
LEAST_S = 1e-3  #: lower end of logarithmic time axes
GREY = "#555555"
INK = "#1c2430"
DOES_NOT_FIT = "best plan does not fit (OOM)"
CORNERS = ["left", "bottom", "right", "top"]

Row = Mapping[str, Any]
Rows = Sequence[Row]


# -- step time -------------------------------------------------------------------------------------
def step_time_bars(rows: Rows) -> Any:
    """Step time by method: a panel for each machine (down) and model (across), bars from 0.

    ``rows`` are those of ``tables.step_times``.
    """
    machines, names, methods = (_kinds(rows, key) for key in ("machine", "case", "method"))
    panels = []
    for machine, name in itertools.product(machines, names):
        by_method = {
            row["method"]: row for row in rows if row["machine"] == machine and row["case"] == name
        }
        panels.append(
            _panel(
                _bars(methods, by_method),
                f"{name}, {machine}",
                ylabel="step time, ms" if name == names[0] else "",
                xlim=(-0.6, len(methods) - 0.4),
                ylim=(0, _top_ms(list(by_method.values()))),
                xticks=[(0, "")],
            )
        )
    return hv.Layout(panels).cols(max(len(names), 1))


def _top_ms(rows: Rows) -> float:
    """The upper end of a panel's axis.

    A plan that does not fit may be far slower; its bar is cut off so that the other bars stay
    readable.
    """
    timed = [row for row in rows if row.get("time_s") is not None]
    fitting = [row for row in timed if row["outcome"] == "ok"]
    return 1.3 * max((row["time_s"] * 1e3 for row in fitting or timed), default=1.0)


def _bars(methods: Sequence[str], by_method: Mapping[str, Row]) -> list[Any]:
    top = _top_ms(list(by_method.values()))
    elements: list[Any] = []
    labels_by_style: dict[tuple[str, str, str | None], list[tuple[float, float, str]]] = {}
    for position, method in enumerate(methods):
        row = by_method.get(method)
        elements.append(_filled([], method))  # the legend has every method, in order
        if row is None:
            continue
        if row.get("time_s") is None:
            label_point = (position, 0.02 * top, str(row["outcome"]).lower())
            labels_by_style.setdefault(("bottom", INK, None), []).append(label_point)
            continue
        value, exceeds = row["time_s"] * 1e3, row["outcome"] == "OOM"
        height = min(value, top)
        bar = (position - 0.4, 0.0, position + 0.4, height)
        elements.append(_hatched([bar], _hue(method)) if exceeds else _filled([bar], method))
        label_is_inside = value > 0.72 * top or exceeds
        label = f"OOM {_short(value)}" if exceeds else _short(value)
        label_height = height * 0.97 if label_is_inside else value + 0.02 * top
        ink = "white" if label_is_inside and not exceeds else INK
        style = ("top" if label_is_inside else "bottom", ink, "white" if exceeds else None)
        labels_by_style.setdefault(style, []).append((position, label_height, label))
    if any(row["outcome"] == "OOM" for row in by_method.values()):
        elements.append(_hatched([], GREY, label=DOES_NOT_FIT))
    for (baseline, ink, ground), label_points in labels_by_style.items():
        options = {"background_fill_color": ground} if ground else {}
        elements.append(
            drawn(
                hv.Labels(label_points, ["position", "height"], "text"),
                angle=90,
                text_baseline=baseline,
                text_color=ink,
                text_font_size="8px",
                **options,
            )
        )
    return elements


def _filled(bars: Sequence[tuple[float, ...]], method: str) -> Any:
    hue = _hue(method)
    return drawn(hv.Rectangles(bars, CORNERS, label=method), fill_color=hue, line_color=hue)


def _hatched(bars: Sequence[tuple[float, ...]], hue: str, label: str = "") -> Any:
    return drawn(
        hv.Rectangles(bars, CORNERS, label=label),
        on_glyph(hatch_pattern="right_diagonal_line", hatch_color=hue),
        fill_color="white",
        line_color=hue,
    )


# -- search time -----------------------------------------------------------------------------------
def search_time_bars(rows: Rows) -> Any:
    """Seconds of each search to its own best plan (log).

    There is a panel for each model, with machines side by side.

    A ring marks when a search came within 1% of the best plan of any method; one without a ring
    never did. ``rows`` are those of ``tables.search_times``.
    """
    rows = [row for row in rows if row.get("own_best_s") is not None]
    machines, names, methods = (_kinds(rows, key) for key in ("machine", "case", "method"))
    bar_pitch = 0.8 / max(len(methods), 1)
    highest = max((max(row["own_best_s"], row.get("close_s") or 0.0) for row in rows), default=1.0)
    panels = []
    for name in names:
        elements, rings = [], []
        for method in methods:
            bars = []
            for row in rows:
                if (row["case"], row["method"]) != (name, method):
                    continue
                middle = machines.index(row["machine"]) - 0.4
                middle += bar_pitch * (methods.index(method) + 0.5)
                left, right = middle - 0.45 * bar_pitch, middle + 0.45 * bar_pitch
                bars.append((left, LEAST_S, right, max(row["own_best_s"], LEAST_S)))
                if row.get("close_s") is not None:
                    rings.append((middle, max(row["close_s"], LEAST_S)))
            elements.append(_filled(bars, method))
        elements.append(
            drawn(
                hv.Scatter(rings, "left", "top", label="within 1% of the best of any"),
                size=4.5,
                fill_color="white",
                line_color="black",
            )
        )
        panels.append(
            _panel(
                elements,
                name,
                ylabel="search time to own best, s" if name == names[0] else "",
                xlim=(-0.5, max(len(machines), 1) - 0.5),
                ylim=(LEAST_S, 1.6 * max(highest, LEAST_S)),
                xticks=list(enumerate(machines)),
                logy=True,
            )
        )
    return hv.Layout(panels).cols(max(len(panels), 1))


# -- scaling ---------------------------------------------------------------------------------------
def scaling_lines(steps: Rows, searches: Rows) -> Any:
    """Step and search time against devices, on log scales; crosses mark plans that do not fit.

    ``steps`` and ``searches`` are rows of one part.
    """
    own_best = {(row["case"], row["method"]): row["own_best_s"] for row in searches}
    names = dict.fromkeys((row["devices"], row["case"]) for row in steps)
    ticks = [(count, f"{count}\n{case}".replace(", ", "\n")) for count, case in names]
    step_lines: list[Any] = []
    search_lines: list[Any] = []
    oom_labels: list[tuple[float, float, str]] = []
    for method in _kinds(steps, "method"):
        rows = [row for row in steps if row["method"] == method]
        rows.sort(key=lambda row: row["devices"])
        timed = [row for row in rows if row.get("time_s") is not None]
        fitting = [
            (row["devices"], row["time_s"] * 1e3 if row["outcome"] == "ok" else float("nan"))
            for row in timed
        ]
        step_lines += _line(fitting, "devices", "ms", method)
        exceeding = [
            (row["devices"], row["time_s"] * 1e3) for row in timed if row["outcome"] == "OOM"
        ]
        oom_labels += [(*point, "  OOM") for point in exceeding]
        if exceeding:
            crosses = hv.Scatter(exceeding, "devices", "ms")
            step_lines.append(
                drawn(crosses, marker="x", size=7, color=_hue(method), line_width=1.6)
            )
        searched = [row for row in rows if own_best.get((row["case"], method))]
        seconds = [
            (row["devices"], max(own_best[row["case"], method], LEAST_S)) for row in searched
        ]
        search_lines += _line(seconds, "devices", "s", method)
    if oom_labels:
        cross = hv.Scatter([], "devices", "ms", label=DOES_NOT_FIT)
        step_lines.append(drawn(cross, marker="x", color=GREY))
        labels = hv.Labels(oom_labels, ["devices", "ms"], "text")
        label_options = {"text_align": "left", "text_baseline": "bottom", "text_font_size": "8px"}
        step_lines.append(drawn(labels, text_color=GREY, **label_options))
    axis_options: dict[str, Any] = {"logx": True, "logy": True, "xticks": ticks}
    axis_options["xlabel"] = "devices, mesh Batch x Seq x Model, positions"
    panels = [
        _panel(step_lines, "", ylabel="step time, ms", **axis_options),
        _panel(search_lines, "", ylabel="search time to own best, s", **axis_options),
    ]
    return hv.Layout(panels).cols(2)


def _line(points: Sequence[tuple[float, float]], x: str, y: str, method: str) -> list[Any]:
    """A line with markers, in the look of a method."""
    hue, marker = APPEARANCE.get(method, OTHER_APPEARANCE)
    return [
        drawn(hv.Curve(points, x, y, label=method), color=hue, line_width=1.4),
        drawn(hv.Scatter(points, x, y, label=method), marker=marker, color=hue, size=5),
    ]


# -- growth ----------------------------------------------------------------------------------------
def growth_lines(groups: Mapping[str, Rows]) -> Any:
    """Search time of our method against layers and against devices, one panel each.

    Both panels show a square root for comparison.
    """
    panels = []
    for name, group in groups.items():
        if not group:
            continue
        rows = sorted(group, key=lambda row: row["x"])
        xs = [row["x"] for row in rows]
        total = [row["elapsed_s"] for row in rows]
        own_best_s = [max(row["own_best_s"] or LEAST_S, LEAST_S) for row in rows]
        square_root = [total[0] * (x / xs[0]) ** 0.5 for x in xs]
        elements = []
        for label, seconds, hue, dash, marker in (
            ("whole search", total, _hue("mcts"), "solid", "circle"),
            ("to own best", own_best_s, _hue("automap"), "dashed", "square"),
            ("square root", square_root, GREY, "dotted", ""),
        ):
            points = pd.DataFrame({name: xs, "seconds": seconds})
            line = hv.Curve(points, name, "seconds", label=label)
            elements.append(drawn(line, color=hue, line_dash=dash))
            if marker:
                dots = hv.Scatter(points, name, "seconds", label=label)
                elements.append(drawn(dots, color=hue, marker=marker, size=4))
        ticks = [(x, f"{x:g}") for x in xs]
        panels.append(
            _panel(elements, "", xlabel=name, ylabel="seconds", logx=True, logy=True, xticks=ticks)
        )
    return hv.Layout(panels).cols(max(len(panels), 1))


# -- anytime ---------------------------------------------------------------------------------------
def anytime_lines(rows: Rows, ends: Rows) -> Any:
    """Best score so far over that of the best method, against seconds, a panel per problem.

    The seconds are on a log scale.

    Curves begin when a plan first fits, or at once if no method's plan ever fits; scores beyond
    FARTHEST are drawn along the upper edge. ``ends`` are rows of ``tables.search_times``, which say
    how long each search took.
    """
    names = list(dict.fromkeys((row["case"], row["machine"]) for row in rows))
    methods = _kinds(rows, "method")
    columns = 3 if len(names) % 3 == 0 else min(5, max(len(names), 1))
    elapsed_s_by_search = {
        (row["case"], row["machine"], row["method"]): row["elapsed_s"] for row in ends
    }
    last_s = max([row["elapsed_s"] for row in (*rows, *ends)], default=1.0)
    panels = []
    for panel_index, (case, machine) in enumerate(names):
        panel_rows = [row for row in rows if (row["case"], row["machine"]) == (case, machine)]
        panel_rows = [row for row in panel_rows if row["fits"]] or panel_rows
        best = min((row["score"] for row in panel_rows), default=1.0)
        elements = []
        for method in methods:
            curve = [row for row in panel_rows if row["method"] == method]
            seconds = [max(row["elapsed_s"], LEAST_S) for row in curve]
            # Scores beyond FARTHEST are drawn along the upper edge
            ratios = [min(row["score"] / best, FARTHEST) for row in curve]
            if curve:
                end_s = elapsed_s_by_search.get((case, machine, method), seconds[-1])
                seconds.append(max(end_s, seconds[-1]))
                ratios.append(ratios[-1])
            elements += _steps(seconds, ratios, method)
        panels.append(
            _panel(
                elements,
                f"{case}, {machine}",
                xlabel="search time, s" if panel_index >= len(names) - columns else "",
                ylabel="score / best" if panel_index % columns == 0 else "",
                xlim=(LEAST_S, 1.3 * max(last_s, LEAST_S)),
                ylim=(0.97, FARTHEST * 1.01),
                logx=True,
            )
        )
    return hv.Layout(panels).cols(columns)


def _steps(seconds: Sequence[float], ratios: Sequence[float], method: str) -> list[Any]:
    """A line that holds each value until the next one, with a marker at its end."""
    hue, marker = APPEARANCE.get(method, OTHER_APPEARANCE)
    points = pd.DataFrame({"seconds": seconds, "ratio": ratios}, dtype=float)
    line = hv.Curve(points, "seconds", "ratio", label=method)
    end = hv.Scatter(points.tail(1), "seconds", "ratio", label=method)
    return [
        drawn(line, interpolation="steps-post", color=hue, line_width=1.4),
        drawn(end, color=hue, marker=marker, size=4),
    ]


# -- shared ----------------------------------------------------------------------------------------
def _panel(elements: Sequence[Any], title: str, **options: Any) -> Any:
    """One chart of a layout, without a legend of its own: the whole layout has one."""
    labels = {"xlabel": "", "ylabel": "", **options}
    return chart(elements, name=title or "panel", title=title, zoom=None, **labels)


def _hue(method: str) -> str:
    return APPEARANCE.get(method, OTHER_APPEARANCE)[0]


def _kinds(rows: Rows, key: str) -> list[str]:
    """The distinct values of a column, in order of first appearance."""
    return list(dict.fromkeys(str(row[key]) for row in rows))


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.3g}" if milliseconds < 1000 else f"{milliseconds:,.0f}"
