"""What all charts of data share: HoloViews with its Bokeh renderer, and the look of the pages.

A chart is a HoloViews element made from a tidy table. Users put charts side by side with ``+``, on
top of each other with ``*``, change them with ``.opts`` and link them with
``holoviews.link_selections``; the explorer and reports show the same elements, rendered once as
Bokeh figures (``bokeh_figure``), which ``saved_chart`` draws into files. Hooks on the Bokeh figure
do what HoloViews has no option for.

Importing HoloViews takes about half a second, so nothing that the explorer's first page needs may
import this module; pages import charts when one is first shown.

Names of plans, ops and tensors are arbitrary text. They enter charts only as data, labels of
legends and ticks, which Bokeh draws on a canvas or writes as plain text, and never as a template
of a tooltip.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import holoviews as hv
import holoviews.plotting.bokeh  # registers the renderer
from bokeh.core.properties import value
from bokeh.document import Document
from bokeh.models import (
    ColumnDataSource,
    DataRange1d,
    HoverTool,
    Line,
    PanTool,
    ResetTool,
    Step,
    TapTool,
    WheelZoomTool,
)
from bokeh.models.annotations import Label

from toast_lab.views import plot_style
from toast_lab.views.chart_scale import follow
from toast_lab.views.palette import NEUTRAL

BOKEH = "bokeh"
#: height of a chart in a notebook, in pixels; in the explorer a chart fills its container
MIN_HEIGHT = 280
Hook = Callable[[Any, Any], None]

if not getattr(hv.extension, "_loaded", False):
    # Otherwise the user has chosen a renderer
    hv.Store.set_current_backend(BOKEH)


def drawn(element: Any, *hooks: Hook, **options: Any) -> Any:
    """An element with options of the Bokeh renderer; hooks can change its glyphs."""
    if hooks:
        options["hooks"] = list(hooks)
    return element.opts(**options, backend=BOKEH)


def on_glyph(**properties: Any) -> Hook:
    """Set properties of a glyph for which HoloViews has no option, such as ``hatch_pattern``."""

    def hook(plot: Any, _: Any) -> None:
        renderer = plot.handles["glyph_renderer"]
        for glyph in (renderer.glyph, renderer.nonselection_glyph, renderer.selection_glyph):
            if hasattr(glyph, "update"):  # "auto" stands for a copy of the glyph
                glyph.update(**properties)

    return hook


def renderer_named(name: str) -> Hook:
    """Give the renderer of an element a name by which it is found in the figure."""

    def hook(plot: Any, _: Any) -> None:
        plot.handles["glyph_renderer"].name = name

    return hook


def level_line(
    level: float,
    label: str,
    hue: str,
    *,
    vertical: bool = False,
    leftwards: bool = False,
) -> Any:
    """A dashed line across the chart, with its label at the left, or at the bottom if vertical.

    The label stays in view when the chart is moved. ``leftwards`` puts the label of a vertical line
    to its left, for one near the right edge.
    """
    place: dict[str, Any] = {"x": 8, "x_units": "screen", "y": level, "y_offset": 2}
    if vertical:
        place = {"x": level, "y": 4, "y_units": "screen", "x_offset": -4 if leftwards else 4}
        place["text_align"] = "right" if leftwards else "left"

    def hook(plot: Any, _: Any) -> None:
        font: Any = {"text_font": plot_style.FONT, "text_font_size": "11px"}
        plot.state.add_layout(Label(text=label, text_color=hue, **font, **place))
        plot.handles["glyph"].name = label

    line = hv.VLine(level, label=label) if vertical else hv.HLine(level, label=label)
    return drawn(line, hook, color=hue, line_dash="dashed", line_width=1.5)


def names_beside(x: str, y: str, text: str) -> Hook:
    """Texts of a column beside the markers, at distances that zooming does not change.

    Columns ``dx`` and ``dy`` are the distances in pixels, rightwards and downwards; ``align`` is
    "left" or "right".
    """

    def hook(plot: Any, _: Any) -> None:
        name = f"names, {plot.handles['glyph_renderer'].name}"
        if any(renderer.name == name for renderer in plot.state.renderers):
            return
        plot.state.text(
            x,
            y,
            text=text,
            source=plot.handles["source"],
            name=name,
            x_offset="dx",
            y_offset="dy",
            text_align="align",
            text_font_size="11px",
            text_color=NEUTRAL,
            text_font=value(plot_style.FONT),
            nonselection_alpha=1.0,
        )

    return hook


def grid_across(plot: Any, _: Any) -> None:
    """Hook: grid lines at the ticks of the x axis, and none at those of the y axis."""
    figure = plot.state
    figure.xgrid.grid_line_color, figure.xgrid.grid_line_alpha = NEUTRAL, 0.13
    figure.ygrid.grid_line_color = None


def chart(elements: Sequence[Any], *, name: str, **options: Any) -> Any:
    """Elements on one pair of axes, in the look of the pages.

    Args:
        elements: elements in the order in which they are drawn.
        name: name of the figure, by which its buttons find it.
        options: ``legend`` ("top", "right" or None), ``legend_columns``, ``zoom`` ("both", "width",
            "time" or None), ``tappable`` (names of renderers that can be clicked), ``hooks``, and
            any option of a HoloViews overlay, such as ``xlabel`` with the unit, and ``xlim``.
    """
    marks = [element for element in elements if not isinstance(element, hv.HLine | hv.VLine)]
    if len(marks) == 1:
        # HoloViews gives a chart of one element no legend
        x, *others = (dim.name for dim in marks[0].dimensions())
        elements = [*elements, drawn(hv.Scatter([], x, others), show_legend=False)]
    legend = options.pop("legend", "top")
    columns = options.pop("legend_columns", None)
    zoom = options.pop("zoom", "both")
    tappable = options.pop("tappable", ())
    hooks = [
        functools.partial(_page_look, name=name),
        functools.partial(_quiet_legend, columns=columns),
        functools.partial(_page_tools, zoom=zoom, tappable=tappable),
        *options.pop("hooks", ()),
    ]
    defaults: dict[str, Any] = {
        "show_legend": legend is not None,
        "default_tools": [],
        "toolbar": "right" if zoom else None,
        "responsive": True,
        "min_height": MIN_HEIGHT,
        "show_title": bool(options.get("title")),
    }
    if legend is not None:
        defaults["legend_position"] = legend
    return drawn(hv.Overlay(list(elements)), *hooks, **{**defaults, **options})


def _page_look(plot: Any, _: Any, name: str) -> None:
    figure = plot.state
    figure.name = name
    figure.output_backend = "canvas"
    plot_style.page_look(figure)
    plot_style.quiet_labels(figure)
    figure.title.text_color = NEUTRAL
    figure.title.text_font_size = "12px"


def _quiet_legend(plot: Any, _: Any, columns: int | None) -> None:
    for legend in plot.state.legend:
        legend.border_line_color = None
        legend.background_fill_color = None
        legend.label_text_font_size = "11px"
        legend.label_text_font = plot_style.FONT
        legend.label_text_color = NEUTRAL
        legend.padding = legend.margin = 0
        legend.click_policy = "none"
        if columns is not None:
            legend.ncols = columns


def _page_tools(plot: Any, _: Any, zoom: str | None, tappable: Sequence[str]) -> None:
    figure = plot.state
    figure.tools = [tool for tool in figure.tools if isinstance(tool, HoverTool)]
    if zoom is not None:
        pan = PanTool(dimensions="both" if zoom != "time" else "width")
        wheel = WheelZoomTool(dimensions="both" if zoom == "both" else "width")
        figure.add_tools(pan, wheel, ResetTool())
        if zoom == "time":
            figure.toolbar.active_scroll = wheel
    if tappable:
        renderers = [renderer for renderer in figure.renderers if renderer.name in tappable]
        figure.add_tools(TapTool(renderers=renderers))


def plain_ticks(plot: Any, _: Any) -> None:
    """Hook: plain numbers beside both axes, even logarithmic ones."""
    plot_style.plain_ticks(plot.state)


def hover(tooltips: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Options for a hover card with these rows; values of an ``@column`` are written as text."""
    return {"tools": ["hover"], "hover_tooltips": list(tooltips)}


def bokeh_figure(element: Any) -> Any:
    """An element as a Bokeh figure that fills its container."""
    # In the page's own document HoloViews would set its theme, which changes figures that the
    # browser may have dropped by then, and would leave a callback that keeps this figure alive
    renderer = hv.renderer(BOKEH).instance(mode="server")  # the only mode that takes a document
    figure = renderer.get_plot_state(element, doc=Document())
    figure.sizing_mode = "stretch_both"
    figure.min_height = None
    return figure


def growing_figure(
    chart: Any,
    sources: Mapping[str, ColumnDataSource],
    held: Sequence[tuple[float, float]],
    *,
    part: float,
    scale_type: str,
    above: Sequence[str] = (),
) -> Any:
    """The Bokeh figure of an empty chart whose data grow; lines go on in steps.

    Args:
        chart: the chart, drawn once.
        sources: by the name of an element's renderer, what it draws from now on.
        held: points (x, y) that stay in view, and give an empty chart its axes.
        part: share of the height that is left free above and below.
        scale_type: scale of the y axis, one of ``chart_scale.SCALES``.
        above: renderers that the y axis does not follow.
    """
    figure = bokeh_figure(chart)
    grown = [renderer for renderer in figure.renderers if renderer.name in sources]
    for renderer in grown:
        if isinstance(renderer.glyph, Line):
            look = renderer.glyph.properties_with_values(include_defaults=False)
            renderer.glyph = Step(mode="after", **look)
        renderer.data_source = sources[renderer.name]
    xs, ys = [x for x, _ in held], [y for _, y in held]
    grown.append(figure.scatter(xs, ys, size=1, alpha=0))
    figure.x_range = DataRange1d(renderers=grown, start=0)
    follow(figure, [one for one in grown if one.name not in above], part, scale_type)
    return figure
