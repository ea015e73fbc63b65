"""Draw a Bokeh figure with matplotlib, from its glyphs, its annotations and its axes.

``FigureAxes`` draws a figure, and ``write_legend`` its legend; ``saved_chart`` puts both into a
file. Importing this module takes as long as importing matplotlib does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from bokeh import models
from bokeh.core.property.dataspec import DataSpec
from bokeh.core.property.vectorization import Field
from bokeh.models.annotations import Label, Span
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from toast_lab.errors import InvalidProblem
from toast_lab.text import shortened
from toast_lab.views.palette import NEUTRAL

LETTER_PX = 6.3  #: approximate width of a letter of a legend
KEY_PX = 46.0  #: width of a legend entry without its text
LINE_PX = 15.0  #: height of a line of a legend
LONGEST = 60  #: most letters of a name
MOST_TICKS = 6
GRID_ALPHA = 0.25
#: Bokeh's markers in matplotlib; those that end in "_dot" have a dot in the middle
_MARKERS: Mapping[str, Any] = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "inverted_triangle": "v",
    "hex": "h",
    "square_pin": (4, 1, 0),
    "plus": "P",
    "x": "x",
    "cross": "+",
    "star": "*",
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
_BASELINES = {"middle": "center", "alphabetic": "baseline"}
_PLACES = {
    "top_left": "upper left",
    "top_right": "upper right",
    "bottom_left": "lower left",
    "bottom_right": "lower right",
}
#: characters that the text of an XML file cannot have
_FORBIDDEN = re.compile("[^\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE = ("line_color", "line_alpha", "line_width", "line_dash")
_FILL = ("fill_color", "fill_alpha", "line_color", "line_alpha", "line_width")
_AREA = (*_FILL, "line_dash", "hatch_pattern", "hatch_color", "hatch_alpha")

Keys = dict[str, dict[str, Any]]
Look = dict[str, Any]


class _Glyphs:
    """The glyphs of one renderer, their properties as columns."""

    def __init__(self, renderer: Any, categories: Mapping[str, Sequence[str]]) -> None:
        self.glyph, self.data = renderer.glyph, renderer.data_source.data
        self.count = max((len(column) for column in self.data.values()), default=0)
        self._categories = categories

    def column(self, name: str) -> list[Any]:
        """A property of each glyph; empty without glyphs."""
        given, descriptor = getattr(self.glyph, name), type(self.glyph).lookup(name).property
        if not isinstance(descriptor, DataSpec):
            return [given] * self.count
        spec: Any = descriptor.to_serializable(self.glyph, name, given)
        if not isinstance(spec, Field):
            return [spec.value] * self.count
        values = self.data[spec.field]
        mapper = spec.transform
        return [*values] if not hasattr(mapper, "palette") else _shades(values, mapper)

    def numbers(self, name: str, side: str = "") -> np.ndarray:
        """A property as numbers along an axis, "x" or "y"; categories are one apart."""
        values, categories = self.column(name), self._categories.get(side or name[0], ())
        if categories:
            values = [categories.index(category) + 0.5 for category in values]
        return np.asarray(values, float)

    def looks(self, names: Sequence[str]) -> list[tuple[Look, list[int]]]:
        """(look, rows) for rows that look alike."""
        columns = [self.column(name) for name in names]
        rows_of: dict[tuple[Any, ...], list[int]] = {}
        for row, look in enumerate(zip(*columns, strict=True)):
            hashable = tuple(tuple(part) if isinstance(part, list) else part for part in look)
            rows_of.setdefault(hashable, []).append(row)
        return [(dict(zip(names, look, strict=True)), rows) for look, rows in rows_of.items()]

    def look(self, names: Sequence[str]) -> Look:
        """The look of a legend's key, also without glyphs."""
        if looks := self.looks(names):
            return looks[0][0]
        given = {name: getattr(self.glyph, name) for name in names}
        constant = {name: getattr(value, "value", value) for name, value in given.items()}
        return {n: None if isinstance(value, Field) else value for n, value in constant.items()}


class FigureAxes:
    """One Bokeh figure, drawn on a pair of matplotlib axes.

    Attributes:
        title: title of the figure, or else the labels of its axes, or else its name.
        keys: by label, the entries of its legend: properties of a line or a patch.
    """

    def __init__(self, axes: Axes, figure: Any, width_px: float, *, with_legend: bool) -> None:
        self.axes, self.figure, self.keys = axes, figure, Keys()
        ranges = {"x": figure.x_range, "y": figure.y_range}
        self._categories = {
            side: list(map(str, bounds.factors))
            for side, bounds in ranges.items()
            if isinstance(bounds, models.FactorRange)
        }
        for side, scale in (("x", figure.x_scale), ("y", figure.y_scale)):
            if isinstance(scale, models.LogScale):
                getattr(axes, f"set_{side}scale")("log")
        self._looks: dict[Any, Look] = {}
        for order, renderer in enumerate(figure.renderers, 1):
            self._draw(renderer, order)
        for side, bounds in ranges.items():
            limit = getattr(axes, f"set_{side}lim")
            if isinstance(bounds, models.FactorRange):
                limit(0, max(len(bounds.factors), 1))
            elif isinstance(bounds, models.Range1d):
                limit(bounds.start, bounds.end)
        axes.autoscale(False)
        for label in figure.select({"type": Label}):
            self._label(label)
        self._dress()
        for legend in figure.legend:
            for item in legend.items:
                key = self.keys.setdefault(item.label.value, {})
                for renderer in item.renderers:
                    key.update(self._looks[renderer])
        legend_px = self._write_legend(width_px) if with_legend and self.keys else 0.0
        title = _line(figure.title.text or "") if figure.title.visible else ""
        if title:
            axes.set_title(title, loc="left", fontsize=11, color=NEUTRAL, pad=4 + legend_px)
        labels = filter(None, (axes.get_ylabel(), axes.get_xlabel()))
        self.title = title or " against ".join(labels) or figure.name

    # -- glyphs ------------------------------------------------------------------------------------
    def _draw(self, renderer: Any, order: int) -> None:
        if isinstance(renderer, Span):
            draw_line = self.axes.axhline if renderer.dimension == "width" else self.axes.axvline
            look = {name: getattr(renderer, name) for name in _LINE}
            location: Any = renderer.location
            draw_line(location, zorder=order, **_stroke(look))
            return
        glyph = getattr(renderer, "glyph", renderer)
        draw = _DRAWN.get(type(glyph))
        if draw is None:
            kinds = ", ".join(sorted(kind.__name__ for kind in _DRAWN))
            raise InvalidProblem(
                f"a picture in a file has the glyphs {kinds}, not {type(glyph).__name__}; save "
                "the chart with HoloViews: hv.save(chart, 'chart.html')"
            )
        self._looks[renderer] = draw(self, _Glyphs(renderer, self._categories), order)

    def _lines(self, glyphs: _Glyphs, order: int) -> Look:
        outlines = _outlines(glyphs)
        looks = glyphs.looks(_LINE)
        if isinstance(glyphs.glyph, models.Line):  # one line through all rows
            looks = [(look, [0]) for look, _ in looks]
        gap = np.full((2, 1), np.nan)
        for look, rows in looks:
            parts = [part for row in rows for part in (outlines[row], gap)]
            xs, ys = np.concatenate(parts[:-1], axis=1)
            self.axes.plot(xs, ys, zorder=order, **_stroke(look))
        return _stroke(glyphs.look(_LINE))

    def _areas(self, glyphs: _Glyphs, order: int) -> Look:
        outlines = _outlines(glyphs)
        for look, rows in glyphs.looks(_AREA):
            path = _closed([outlines[row] for row in rows])
            self.axes.add_patch(PathPatch(path, zorder=order, **_filled(look)))
            if hatch := _hatch(look):
                self.axes.add_patch(PathPatch(path, zorder=order, facecolor="none", **hatch))
        look = glyphs.look(_AREA)
        return {"is_patch": True, **_filled(look), **_hatch(look)}

    def _markers(self, glyphs: _Glyphs, order: int) -> Look:
        xs, ys = glyphs.numbers("x"), glyphs.numbers("y")
        names = ("marker", "size", *_FILL)
        looks = glyphs.looks(names)
        for look, rows in looks:
            drawn = _marker(look)
            self.axes.plot(xs[rows], ys[rows], linestyle="none", zorder=order, **drawn)
            if str(look["marker"]).endswith("_dot"):
                dot = {"marker": ".", "markersize": 4, "color": drawn["markeredgecolor"]}
                self.axes.plot(xs[rows], ys[rows], linestyle="none", zorder=order, **dot)
        key = _marker(glyphs.look(names))
        if len(looks) > 1:  # rows differ, and the legend has one key for all of them
            is_filled = key["markerfacecolor"][3] > 0
            key |= {"marker": "o", "markeredgecolor": NEUTRAL}
            key["markerfacecolor"] = NEUTRAL if is_filled else "none"
        return key

    def _texts(self, glyphs: _Glyphs, order: int) -> Look:
        names = ("text", "text_color", "text_font_size", "text_align", "text_baseline", "angle")
        ground = ("background_fill_color", "background_fill_alpha")
        columns = [glyphs.column(name) for name in (*names, *ground, "x_offset", "y_offset")]
        points = zip(glyphs.numbers("x"), glyphs.numbers("y"), strict=True)
        for point, row in zip(points, zip(*columns, strict=True), strict=True):
            text, ink, size, align, baseline, angle, fill, fill_alpha, right, down = row
            self.axes.annotate(
                _line(text),
                point,
                xytext=(right, -down),
                textcoords="offset points",
                color=ink,
                fontsize=float(str(size).rstrip("ptx")),
                ha=align,
                va=_BASELINES.get(baseline, baseline),
                rotation=math.degrees(angle),
                bbox={"facecolor": _ink(fill, fill_alpha), "edgecolor": "none", "pad": 0.6}
                if fill
                else None,
                annotation_clip=True,
                zorder=order,
            )
        return {}

    def _label(self, label: Any) -> None:
        """Write a text at a place in data or, from the lower left corner, in pixels."""
        place, offset = [label.x, label.y], [label.x_offset, label.y_offset]
        coordinates = ["data", "data"]
        for axis, unit in enumerate((label.x_units, label.y_units)):
            if unit == "screen":
                offset[axis] += place[axis]
                place[axis], coordinates[axis] = 0, "axes fraction"
        self.axes.annotate(
            _line(label.text),
            (place[0], place[1]),
            xycoords=(coordinates[0], coordinates[1]),
            xytext=(offset[0], offset[1]),
            textcoords="offset points",
            color=label.text_color,
            ha=label.text_align,
            annotation_clip=True,
        )

    # -- axes --------------------------------------------------------------------------------------
    def _dress(self) -> None:
        """Set labels, ticks and grid."""
        self.axes.patch.set_visible(False)
        for spine in self.axes.spines.values():
            spine.set_visible(False)
        self.axes.set_axisbelow(True)
        self.axes.tick_params(which="both", length=0, labelsize=10)
        figure = self.figure
        sides = (
            ("x", figure.xaxis[0], figure.xgrid[0], self.axes.xaxis),
            ("y", figure.yaxis[0], figure.ygrid[0], self.axes.yaxis),
        )
        for side, axis, grid, drawn in sides:
            if axis in figure.above:
                self.axes.xaxis.tick_top()
            drawn.set_visible(axis.visible)
            drawn.set_label_text(_line(axis.axis_label or ""))
            self._tick(side, axis, drawn)
            if grid.visible and grid.grid_line_color and side not in self._categories:
                drawn.grid(True, color=NEUTRAL, alpha=GRID_ALPHA, linewidth=0.7)

    def _tick(self, side: str, axis: Any, drawn: Any) -> None:
        drawn.set_minor_locator(NullLocator())
        if axis.major_label_orientation == "vertical":
            drawn.set_tick_params(rotation=90)
        texts: dict[float, str] | None = None
        if side in self._categories:
            texts = {index + 0.5: text for index, text in enumerate(self._categories[side])}
        elif isinstance(axis.formatter, models.CustomJSTickFormatter):
            texts = dict(enumerate(axis.formatter.args["labels"]))
        elif isinstance(axis.ticker, models.FixedTicker):
            texts = {
                tick: axis.major_label_overrides.get(tick, f"{tick:g}")
                for tick in axis.ticker.ticks
            }
        if texts is not None:
            labels = ["\n".join(map(_line, str(text).split("\n"))) for text in texts.values()]
            start, end = drawn.get_view_interval()
            drawn.set_ticks(list(texts), labels=labels)
            # Ticks beyond the ends would extend the axis
            drawn.set_view_interval(start, end, ignore=True)
            return
        drawn.set_major_formatter(FuncFormatter(number_text))
        if drawn.get_scale() == "log":
            drawn.set_major_locator(_log_locator(*sorted(drawn.get_view_interval())))
        else:
            drawn.set_major_locator(MaxNLocator(MOST_TICKS, steps=[1, 2, 2.5, 5, 10]))

    def _write_legend(self, width_px: float) -> float:
        """Write the legend, and give the height in pixels that it takes above the chart."""
        (legend,) = self.figure.legend
        if legend in self.figure.above:
            place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}
            return write_legend(self.axes, self.keys, 0.9 * width_px, **place)
        place = {"loc": _PLACES.get(str(legend.location), "best")}
        if legend in self.figure.right:
            place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        write_legend(self.axes, self.keys, 0.0, **place)
        return 0.0


#: how each kind of glyph is drawn
_DRAWN: Mapping[type, Callable[[FigureAxes, _Glyphs, int], Look]] = {
    models.Line: FigureAxes._lines,
    models.MultiLine: FigureAxes._lines,
    models.Segment: FigureAxes._lines,
    models.Quadratic: FigureAxes._lines,
    models.Patches: FigureAxes._areas,
    models.Quad: FigureAxes._areas,
    models.Rect: FigureAxes._areas,
    models.Scatter: FigureAxes._markers,
    models.Text: FigureAxes._texts,
}


def _outlines(glyphs: _Glyphs) -> list[np.ndarray]:
    """The corners of each line or area, as (xs, ys); one line through all rows for a ``Line``."""
    glyph = glyphs.glyph
    if isinstance(glyph, models.Line):
        return [np.array([glyphs.numbers("x"), glyphs.numbers("y")])]
    if isinstance(glyph, models.MultiLine | models.Patches):
        pairs = zip(glyphs.column("xs"), glyphs.column("ys"), strict=True)
        return [np.array(pair, float) for pair in pairs]
    if isinstance(glyph, models.Rect):
        x, y = glyphs.numbers("x"), glyphs.numbers("y")
        across, up = glyphs.numbers("width", "-") / 2, glyphs.numbers("height", "-") / 2
        left, right, low, high = x - across, x + across, y - up, y + up
    elif isinstance(glyph, models.Quad):
        left, right = glyphs.numbers("left", "x"), glyphs.numbers("right", "x")
        low, high = glyphs.numbers("bottom", "y"), glyphs.numbers("top", "y")
    else:
        ends = [np.stack([glyphs.numbers(f"x{end}"), glyphs.numbers(f"y{end}")]) for end in (0, 1)]
        if isinstance(glyph, models.Segment):
            return [*np.stack(ends, axis=2).transpose(1, 0, 2)]
        middle = np.stack([glyphs.numbers("cx", "x"), glyphs.numbers("cy", "y")])
        shares = np.linspace(0.0, 1.0, 9)
        bow = [
            (1 - share) ** 2 * ends[0] + 2 * share * (1 - share) * middle + share**2 * ends[1]
            for share in shares
        ]
        return [*np.stack(bow, axis=2).transpose(1, 0, 2)]
    xs, ys = np.stack([left, right, right, left]), np.stack([low, low, high, high])
    return [*np.stack([xs, ys], axis=1).transpose(2, 1, 0)]


# -- legends ---------------------------------------------------------------------------------------
def write_legend(where: Any, keys: Keys, width_px: float, **place: Any) -> float:
    """Write a legend in as many columns as ``width_px`` takes, and give its height in pixels.

    Args:
        where: the axes or the figure that gets the legend.
        keys: ``keys`` of ``FigureAxes``.
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
        if "is_patch" in look:
            handles.append(Patch(**properties))
        else:
            handles.append(Line2D([], [], **{"linestyle": "none", **properties}))
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


# -- looks -----------------------------------------------------------------------------------------
def _ink(colour: Any, alpha: float) -> tuple[float, float, float, float]:
    return to_rgba("none") if colour is None else to_rgba(colour, alpha)


def _stroke(look: Look) -> Look:
    return {
        "color": _ink(look["line_color"], look["line_alpha"]),
        "linewidth": look["line_width"],
        "linestyle": _dash(look["line_dash"]),
    }


def _dash(lengths: Sequence[float]) -> Any:
    # Bokeh repeats a pattern of an odd length
    return (0, [*lengths] * (1 + len(lengths) % 2)) if lengths else "-"


def _filled(look: Look) -> Look:
    edge = _ink(look["line_color"], look["line_alpha"])
    return {
        "facecolor": _ink(look["fill_color"], look["fill_alpha"]),
        "edgecolor": edge,
        "linewidth": look["line_width"] if edge[3] else 0.0,
        "linestyle": _dash(look["line_dash"]),
    }


def _hatch(look: Look) -> Look:
    """The hatch of a patch, which has the colour of its edge; nothing if it has none."""
    pattern = _HATCHES.get(look["hatch_pattern"] or "")
    if pattern is None:
        return {}
    ink = _ink(look["hatch_color"], look["hatch_alpha"])
    return {"edgecolor": ink, "hatch": pattern, "linewidth": 0.0}


def _marker(look: Look) -> Look:
    face = _ink(look["fill_color"], look["fill_alpha"])
    edge = _ink(look["line_color"], look["line_alpha"])
    marker = _MARKERS.get(str(look["marker"]).removesuffix("_dot"), "o")
    is_solid = face == edge and marker not in ("x", "+")
    return {
        "marker": marker,
        "markersize": look["size"],
        "markerfacecolor": face,
        "markeredgecolor": edge,
        "markeredgewidth": 0.0 if is_solid else look["line_width"],
    }


def _shades(values: Iterable[float], mapper: Any) -> list[str]:
    """The colours of numbers on a linear scale."""
    last, span = len(mapper.palette) - 1, (mapper.high - mapper.low) or 1.0
    places = [(value - mapper.low) / span for value in values]
    return [
        mapper.palette[round(last * min(max(place, 0.0), 1.0))]
        if math.isfinite(place)
        else mapper.nan_color
        for place in places
    ]


def _closed(outlines: Sequence[np.ndarray]) -> Outline:
    """Areas (xs, ys) as one path."""
    corners = [np.concatenate([outline, outline[:, :1]], axis=1).T for outline in outlines]
    codes = [
        [Outline.MOVETO, *[Outline.LINETO] * (len(one) - 2), Outline.CLOSEPOLY] for one in corners
    ]
    return Outline(np.concatenate(corners), np.concatenate(codes))


def _line(text: Any) -> str:
    """A name as one short line of letters that XML allows."""
    return shortened(_FORBIDDEN.sub("\ufffd", " ".join(str(text).split())), LONGEST)


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
