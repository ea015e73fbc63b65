"""Draw the elements of one chart with matplotlib, from their rows and their options for Bokeh.

``ChartAxes`` draws a chart, and ``write_legend`` its legend; ``saved_chart`` puts both into a file.
Importing this module takes as long as importing matplotlib does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import holoviews as hv
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from toast_lab.errors import InvalidProblem
from toast_lab.views.chart_style import BOKEH, GlyphLook, GridAcross, LevelLabel, NamesBeside
from toast_lab.views.palette import NEUTRAL

LETTER_PX = 6.3  #: approximate width of a letter of a legend
KEY_PX = 46.0  #: width of a legend entry without its text
LINE_PX = 15.0  #: height of a line of a legend
LONGEST = 60  #: most letters of a name
MOST_TICKS = 6
GRID_ALPHA = 0.25
#: Bokeh's markers in matplotlib, and whether they have a dot in the middle
_MARKERS: Mapping[str, tuple[Any, bool]] = {
    "circle": ("o", False),
    "square": ("s", False),
    "triangle": ("^", False),
    "diamond": ("D", False),
    "inverted_triangle": ("v", False),
    "hex": ("h", False),
    "square_pin": ((4, 1, 0), False),
    "plus": ("P", False),
    "circle_dot": ("o", True),
    "square_dot": ("s", True),
    "x": ("x", False),
    "cross": ("+", False),
    "star": ("*", False),
}
_DASHES: Mapping[Any, Any] = {
    "solid": "-",
    "dashed": (0, (6, 3)),
    "dotted": (0, (2, 4)),
    "dotdash": (0, (2, 4, 6, 4)),
    "dashdot": (0, (6, 4, 2, 4)),
}
_HATCHES = {
    "dot": ".",
    "right_diagonal_line": "///",
    "left_diagonal_line": "\\\\\\",
    "horizontal_line": "---",
    "vertical_line": "|||",
    "cross": "++",
    "ring": "o",
    "diagonal_cross": "xx",
}
_BASELINES = {"middle": "center", "top": "top", "bottom": "bottom", "alphabetic": "baseline"}
_PLACES = {
    "top_left": "upper left",
    "top_right": "upper right",
    "bottom_left": "lower left",
    "bottom_right": "lower right",
    "bottom": "lower center",
}
#: characters that the text of an XML file cannot have
_FORBIDDEN = re.compile("[^\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Keys = dict[str, dict[str, Any]]


class ChartAxes:
    """One chart, drawn on a pair of matplotlib axes.

    Attributes:
        title: title of the chart, or else the labels of its axes.
        keys: by the label of an element, its look in the legend: properties of a line or a patch.
    """

    def __init__(self, axes: Axes, chart: Any, width_px: float, *, with_legend: bool) -> None:
        self.axes, self.keys = axes, Keys()
        self._options = _plot_options(chart)
        self._categories: dict[str, list[str]] = {"x": [], "y": []}
        elements = chart.traverse(lambda element: element, [hv.Element])
        for side in "xy":
            if self._options.get(f"log{side}"):
                getattr(axes, f"set_{side}scale")("log")
        # Level lines come last, since they do not extend the axes
        levels = [isinstance(element, hv.HLine | hv.VLine) for element in elements]
        for is_level in (False, True):
            for order, element in enumerate(elements, 1):
                if levels[order - 1] == is_level:
                    self._draw(element, order)
            if not is_level:
                self._limit()
        self._dress(elements)
        legend_px = 0.0
        if with_legend and self.keys and self._options.get("show_legend", True):
            legend_px = self._write_legend(width_px)
        title = _line(self._options.get("title") or "")
        if title:
            axes.set_title(title, loc="left", fontsize=11, color=NEUTRAL, pad=4 + legend_px)
        y_label, x_label = axes.get_ylabel(), axes.get_xlabel()
        self.title = title or " against ".join(filter(None, (y_label, x_label)))

    # -- elements ----------------------------------------------------------------------------------
    def _draw(self, element: Any, order: int) -> None:
        draw_kind = next((draw for kind, draw in _DRAWN.items() if isinstance(element, kind)), None)
        if draw_kind is None:
            kinds = ", ".join(f"hv.{kind.__name__}" for kind in _DRAWN)
            raise InvalidProblem(
                f"a chart in a file has {kinds}, not hv.{type(element).__name__}; save that one "
                "with HoloViews: hv.save(chart, 'chart.html')"
            )
        draw_kind(self, element, _style(element), order)

    def _curve(self, element: Any, style: Mapping[str, Any], order: int) -> None:
        options = _plot_options(element)
        steps = str(options.get("interpolation") or "linear")
        look: dict[str, Any] = {
            "color": _colour(style.get("color", style.get("line_color")), _alpha(style, "line")),
            "linewidth": style.get("line_width", 1.5),
            "linestyle": _dash(style.get("line_dash")),
        }
        xs, ys = self._numbers(element, 0, "x"), self._numbers(element, 1, "y")
        draw_style = steps if steps.startswith("steps") else "default"
        self.axes.plot(xs, ys, drawstyle=draw_style, zorder=order, **look)
        self._key(element, look)

    def _markers(self, element: Any, style: Mapping[str, Any], order: int) -> None:
        xs, ys = self._numbers(element, 0, "x"), self._numbers(element, 1, "y")
        looks = _by_look(element, style, ("marker", "size", *_INKS), len(xs))
        for look, rows in looks:
            marker, has_dot = _MARKERS.get(look.get("marker") or "circle", ("o", False))
            face, edge = _fill(look), _edge(look)
            is_solid = face == edge and marker not in ("x", "+")
            drawn: dict[str, Any] = {
                "marker": marker,
                "markersize": look.get("size") or 6,
                "markerfacecolor": face,
                "markeredgecolor": edge,
                "markeredgewidth": 0.0 if is_solid else look.get("line_width") or 1.0,
            }
            self.axes.plot(xs[rows], ys[rows], linestyle="none", zorder=order, **drawn)
            if has_dot:
                dot: dict[str, Any] = {"marker": ".", "markersize": 4, "color": edge}
                self.axes.plot(xs[rows], ys[rows], linestyle="none", zorder=order, **dot)
            if len(looks) > 1:  # rows differ, and the legend has one key for all of them
                drawn |= {"marker": "o", "markeredgecolor": NEUTRAL}
                drawn["markerfacecolor"] = NEUTRAL if face[3] else "none"
            self._key(element, {"linestyle": "none", **drawn})
        if not looks:
            self._key(element, {"linestyle": "none", "marker": "o", "color": _edge(style)})
        self._names(element, xs, ys)

    def _names(self, element: Any, xs: np.ndarray, ys: np.ndarray) -> None:
        for hook in _hooks(element, NamesBeside):
            columns = (hook.text, "dx", "dy", "align")
            rows = zip(*(element.dimension_values(name) for name in columns), strict=True)
            for x, y, (name, right, down, align) in zip(xs, ys, rows, strict=True):
                self.axes.annotate(
                    _line(name),
                    (x, y),
                    xytext=(right, -down),
                    textcoords="offset points",
                    ha=align,
                    va="bottom",
                )

    def _rectangles(self, element: Any, style: Mapping[str, Any], order: int) -> None:
        left, right = self._numbers(element, 0, "x"), self._numbers(element, 2, "x")
        low, high = self._numbers(element, 1, "y"), self._numbers(element, 3, "y")
        corners = np.stack([left, low, right, high], axis=1)
        hatch = _hatch(element)
        looks = _by_look(element, style, _INKS, len(corners)) or [(dict(style), [])]
        for look, rows in looks:
            drawn: dict[str, Any] = {"facecolor": _fill(look), "edgecolor": _edge(look)}
            drawn["linewidth"] = 0.0 if drawn["edgecolor"][3] == 0 else look.get("line_width", 1.0)
            if len(rows):
                boxes = _boxes(corners[rows])
                self.axes.add_patch(PathPatch(boxes, zorder=order, **drawn))
                if hatch:
                    self.axes.add_patch(PathPatch(boxes, zorder=order, **hatch))
            # The hatch of a patch has the colour of its edge
            self._key(element, {**drawn, **hatch, "facecolor": drawn["facecolor"]}, is_patch=True)

    def _segments(self, element: Any, style: Mapping[str, Any], order: int) -> None:
        ends = [self._numbers(element, column, "xyxy"[column]) for column in range(4)]
        gap = np.full(len(ends[0]), np.nan)
        xs, ys = (np.stack([ends[i], ends[i + 2], gap], axis=1).ravel() for i in (0, 1))
        look: dict[str, Any] = {
            "color": _edge(style),
            "linewidth": style.get("line_width", 1.0),
            "linestyle": _dash(style.get("line_dash")),
        }
        self.axes.plot(xs, ys, zorder=order, **look)
        self._key(element, look)

    def _cells(self, element: Any, style: Mapping[str, Any], order: int) -> None:
        xs, ys = self._numbers(element, 0, "x"), self._numbers(element, 1, "y")
        numbers = np.asarray(element.dimension_values(2), float)
        low, high = _plot_options(element).get("clim") or (numbers.min(), numbers.max())
        shade = matplotlib.colormaps[str(style.get("cmap", "cividis"))]
        scale = Normalize(low, high)
        for x, y, number in zip(xs, ys, numbers, strict=True):
            box = _boxes(np.array([[x - 0.5, y - 0.5, x + 0.5, y + 0.5]]))
            edge = style.get("line_color", "white")
            face = shade(scale(number))
            self.axes.add_patch(
                PathPatch(box, facecolor=face, edgecolor=edge, linewidth=2, zorder=order)
            )

    def _labels(self, element: Any, style: Mapping[str, Any], order: int) -> None:
        xs, ys = self._numbers(element, 0, "x"), self._numbers(element, 1, "y")
        ground = style.get("background_fill_color")
        box = {"facecolor": ground, "edgecolor": "none", "pad": 0.6} if ground else None
        for x, y, text in zip(xs, ys, element.dimension_values(2), strict=True):
            self.axes.text(
                x,
                y,
                _line(text),
                color=style.get("text_color", NEUTRAL),
                fontsize=_pixels(style.get("text_font_size", "11px")),
                ha=style.get("text_align", "center"),
                va=_BASELINES[style.get("text_baseline", "middle")],
                rotation=style.get("angle", 0),
                rotation_mode="default",
                bbox=box,
                clip_on=True,
                zorder=order,
            )

    def _text(self, element: Any, style: Mapping[str, Any], order: int) -> None:
        x, y, text = element.data[:3]
        self.axes.text(x, y, _line(text), color=style.get("color", NEUTRAL), zorder=order)

    def _level(self, element: Any, style: Mapping[str, Any], order: int) -> None:
        look: dict[str, Any] = {
            "color": _edge(style),
            "linewidth": style.get("line_width", 1.0),
            "linestyle": _dash(style.get("line_dash")),
            "zorder": order,
        }
        draw_line = self.axes.axvline if isinstance(element, hv.VLine) else self.axes.axhline
        draw_line(float(element.data), **look)
        for hook in _hooks(element, LevelLabel):
            position: dict[str, Any] = {
                "xy": (0, hook.level),
                "xycoords": ("axes fraction", "data"),
            }
            offset = (5, hook.offset_px)
            if hook.vertical:
                position = {"xy": (hook.level, 0), "xycoords": ("data", "axes fraction")}
                offset = (4, 4)
            self.axes.annotate(
                _line(hook.text),
                xytext=offset,
                textcoords="offset points",
                color=hook.hue,
                annotation_clip=True,
                zorder=order,
                **position,
            )

    def _numbers(self, element: Any, column: int, side: str) -> np.ndarray:
        """A column as numbers along an axis; texts get positions 0, 1, 2 and so on."""
        values = np.asarray(element.dimension_values(column))
        if values.dtype.kind in "biuf":
            return values.astype(float)
        categories = self._categories[side]
        for text in map(str, values):
            if text not in categories:
                categories.append(text)
        return np.array([categories.index(text) for text in map(str, values)], float)

    def _key(self, element: Any, look: Mapping[str, Any], *, is_patch: bool = False) -> None:
        """Add a labelled element to the legend; a line and its markers share one key."""
        if element.label and _plot_options(element).get("show_legend", True):
            key = self.keys.setdefault(element.label, {"is_patch": is_patch})
            linestyle = key.get("linestyle", "none")
            key |= look
            if linestyle != "none":
                key["linestyle"] = linestyle

    # -- axes --------------------------------------------------------------------------------------
    def _limit(self) -> None:
        """Set the ends of both axes."""
        for side in "xy":
            limit = getattr(self.axes, f"set_{side}lim")
            names = ("left", "right") if side == "x" else ("bottom", "top")
            if self._categories[side]:
                limit(-0.5, len(self._categories[side]) - 0.5)
            ends = self._options.get(f"{side}lim") or (None, None)
            for name, end in zip(names, ends, strict=True):
                if end is not None and math.isfinite(end):
                    limit(**{name: end})
        self.axes.autoscale_view()
        self.axes.autoscale(False)

    def _dress(self, elements: Sequence[Any]) -> None:
        """Set labels, ticks and grid in the look of the pages."""
        axes, options = self.axes, self._options
        axes.patch.set_visible(False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        grid_axis: Literal["x", "y"] = "x" if _hooks_of(options, GridAcross) else "y"
        axes.set_axisbelow(True)
        if not self._categories[grid_axis]:
            axes.grid(True, axis=grid_axis, color=NEUTRAL, alpha=GRID_ALPHA, linewidth=0.7)
        axes.tick_params(which="both", length=0, labelsize=10)
        for index, axis in enumerate((axes.xaxis, axes.yaxis)):
            label = options.get(f"{'xy'[index]}label")
            if label is None and elements:
                dims = elements[0].dimensions()
                label = dims[index].pprint_label if len(dims) > index else ""
            axis.set_label_text(_line(label or ""))
            self._tick("xy"[index], axis)

    def _tick(self, side: str, axis: Any) -> None:
        ticks = self._options.get(f"{side}ticks")
        if self._categories[side] and not ticks:
            ticks = list(enumerate(self._categories[side]))
        axis.set_minor_locator(NullLocator())
        if isinstance(ticks, list | tuple):
            pairs = [tick if isinstance(tick, tuple) else (tick, f"{tick:g}") for tick in ticks]
            labels = ["\n".join(map(_line, str(label).split("\n"))) for _, label in pairs]
            axis.set_ticks([position for position, _ in pairs], labels=labels)
            return
        axis.set_major_formatter(FuncFormatter(number_text))
        if self._options.get(f"log{side}"):
            axis.set_major_locator(_log_locator(*sorted(axis.get_view_interval())))
        else:
            axis.set_major_locator(MaxNLocator(MOST_TICKS, steps=[1, 2, 2.5, 5, 10]))

    def _write_legend(self, width_px: float) -> float:
        """Write the legend, and give the height in pixels that it takes above the chart."""
        position = self._options.get("legend_position", "top_right")
        if position == "right":
            location: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
            write_legend(self.axes, self.keys, 0.0, **location)
            return 0.0
        if position != "top":
            loc = _PLACES.get(position, "best")
            write_legend(self.axes, self.keys, 0.0, loc=loc)
            return 0.0
        location = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}
        return write_legend(self.axes, self.keys, 0.9 * width_px, **location)


#: how each kind of element is drawn; the first kind that fits counts
_DRAWN: Mapping[type, Callable[..., None]] = {
    hv.Curve: ChartAxes._curve,
    hv.Scatter: ChartAxes._markers,
    hv.Points: ChartAxes._markers,
    hv.Rectangles: ChartAxes._rectangles,
    hv.Segments: ChartAxes._segments,
    hv.HeatMap: ChartAxes._cells,
    hv.Labels: ChartAxes._labels,
    hv.Text: ChartAxes._text,
    hv.HLine: ChartAxes._level,
    hv.VLine: ChartAxes._level,
}


# -- legends ---------------------------------------------------------------------------------------
def merged(keys: Iterable[Keys]) -> Keys:
    """The keys of several charts, each label once."""
    merged_keys = Keys()
    for chart_keys in keys:
        for label, look in chart_keys.items():
            merged_keys.setdefault(label, look)
    return merged_keys


def write_legend(where: Any, keys: Keys, width_px: float, **place: Any) -> float:
    """Write a legend in as many columns as ``width_px`` takes, and give its height in pixels.

    Args:
        where: the axes or the figure that gets the legend.
        keys: ``keys`` of ``ChartAxes``.
        width_px: width that the columns may take; 0 for one column.
        place: position of the legend, as options of matplotlib.
    """
    if not keys:
        return 0.0
    labels = [_line(label) for label in keys]
    columns = _columns([len(label) for label in labels], width_px)
    handles: list[Any] = []
    for look in keys.values():
        properties = {name: value for name, value in look.items() if name != "is_patch"}
        handles.append(Patch(**properties) if look["is_patch"] else Line2D([], [], **properties))
    legend = where.legend(
        handles,
        ["" for _ in labels],
        ncols=columns,
        frameon=False,
        fontsize=10,
        labelcolor=NEUTRAL,
        borderpad=0.1,
        borderaxespad=0.2,
        handlelength=2.6,
        columnspacing=1.4,
        **place,
    )
    # Set afterwards, since older versions leave out labels that begin with an underscore
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)
    return LINE_PX * -(-len(labels) // columns) + 3


def _columns(lengths: Sequence[int], width_px: float) -> int:
    """The most columns that fit side by side, for texts of these lengths, filled downwards."""
    for columns in range(len(lengths), 1, -1):
        parts = np.array_split(np.array(lengths), columns)
        if sum(KEY_PX + LETTER_PX * float(part.max()) for part in parts) <= width_px:
            return columns
    return 1


# -- options ---------------------------------------------------------------------------------------
_INKS = (
    "color",
    "alpha",
    "fill_color",
    "fill_alpha",
    "line_color",
    "line_alpha",
    "line_width",
)


def _plot_options(element: Any) -> dict[str, Any]:
    return dict(hv.Store.lookup_options(BOKEH, element, "plot").kwargs)


def _style(element: Any) -> dict[str, Any]:
    return dict(hv.Store.lookup_options(BOKEH, element, "style")[0])


def _hooks_of(options: Mapping[str, Any], kind: type) -> list[Any]:
    return [hook for hook in options.get("hooks") or () if isinstance(hook, kind)]


def _hooks(element: Any, kind: type) -> list[Any]:
    return _hooks_of(_plot_options(element), kind)


def _by_look(
    element: Any, style: Mapping[str, Any], names: Sequence[str], count: int
) -> list[tuple[dict[str, Any], list[int]]]:
    """(look, rows) for rows that look alike; an option may take its values from a column."""
    columns = {}
    for name in names:
        option = style.get(name)
        if isinstance(option, hv.dim):
            columns[name] = option.apply(element, flat=True).tolist()
        elif isinstance(option, str) and option in [dim.name for dim in element.dimensions()]:
            columns[name] = element.dimension_values(option).tolist()
        elif name in style:
            columns[name] = [option] * count
    rows_of: dict[tuple[Any, ...], list[int]] = {}
    for row in range(count):
        rows_of.setdefault(tuple(values[row] for values in columns.values()), []).append(row)
    return [(dict(zip(columns, look, strict=True)), rows) for look, rows in rows_of.items()]


def _alpha(look: Mapping[str, Any], part: str) -> float:
    part_alpha = look.get(f"{part}_alpha")
    return float(look.get("alpha", 1.0) if part_alpha is None else part_alpha)


def _colour(name: Any, alpha: float) -> tuple[float, float, float, float]:
    return to_rgba("none") if name is None else to_rgba(name, alpha)


def _fill(look: Mapping[str, Any]) -> tuple[float, float, float, float]:
    return _colour(look.get("fill_color", look.get("color", NEUTRAL)), _alpha(look, "fill"))


def _edge(look: Mapping[str, Any]) -> tuple[float, float, float, float]:
    return _colour(look.get("line_color", look.get("color", NEUTRAL)), _alpha(look, "line"))


def _dash(dash: Any) -> Any:
    if isinstance(dash, str | None):
        return _DASHES.get(dash or "solid", "-")
    return (0, tuple(dash))


def _hatch(element: Any) -> dict[str, Any]:
    """Properties of a patch that is only a hatch; none if the element has no hatch."""
    look: dict[str, Any] = {}
    for hook in _hooks(element, GlyphLook):
        look |= hook.properties
    pattern = _HATCHES.get(look.get("hatch_pattern") or "")
    if pattern is None:
        return {}
    ink = _colour(look.get("hatch_color", "white"), float(look.get("hatch_alpha", 1.0)))
    return {"facecolor": "none", "edgecolor": ink, "hatch": pattern, "linewidth": 0.0}


def _boxes(corners: np.ndarray) -> Outline:
    """Rectangles (left, low, right, high) as one path."""
    left, low, right, high = corners.T
    xs = np.stack([left, right, right, left, left], axis=1)
    ys = np.stack([low, low, high, high, low], axis=1)
    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
    return Outline(np.stack([xs, ys], axis=2).reshape(-1, 2), codes * len(corners))


def _pixels(size: Any) -> float:
    return float(str(size).removesuffix("px").removesuffix("pt"))


def _line(text: Any) -> str:
    """A name as one short line of letters that XML allows."""
    line = _FORBIDDEN.sub("\ufffd", " ".join(str(text).split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _log_locator(low: float, high: float) -> Any:
    """Ticks of a logarithmic axis: few, and at round numbers."""
    decades = math.log10(high / low) if 0 < low < high else 1.0
    if decades < 1.0:
        return MaxNLocator(MOST_TICKS + 2, steps=[1, 2, 5, 10])
    subs = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    return LogLocator(base=10.0, subs=subs, numticks=MOST_TICKS + 2)


def number_text(number: float, _: object = None) -> str:
    """A number beside an axis.

    >>> number_text(0.30000000000000004), number_text(25000.0), number_text(2e-06)
    ('0.3', '25,000', '2e-06')
    """
    return f"{number:,.6g}"
