"""The look that all Bokeh pictures share: quiet axes, and legends that cover nothing."""

from __future__ import annotations

from typing import Any

from bokeh.models import BasicTickFormatter
from bokeh.models.annotations import Label, Span
from bokeh.plotting import figure

from toast_lab.views.compare_table import bytes_text
from toast_lab.views.palette import CONFLICT, NEUTRAL

FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
# Hover cards follow the page's theme; their own colours are weaker than what the figure around them
# says.
TOOLTIP = """.bk-Tooltip {
  --background-color: var(--tl-card, #fff) !important; --color: var(--tl-ink, #18191d) !important;
  --divider-color: var(--tl-edge, #d7d7d8) !important; }"""


def new_figure(name: str, **options: Any) -> Any:
    """An empty figure on canvas, whose axes can be read on white and on near-black."""
    plot: Any = figure(
        name=name, sizing_mode="stretch_both", tools=[], output_backend="canvas", **options
    )
    page_look(plot)
    return plot


def page_look(plot: Any) -> None:
    """Give a figure hover cards in the colours of the page, no ground, and quiet axes."""
    plot.stylesheets = [TOOLTIP]
    plot.background_fill_color = None
    plot.border_fill_color = None
    plot.outline_line_color = None
    plot.xgrid.grid_line_color = None
    plot.ygrid.grid_line_color = NEUTRAL
    plot.ygrid.grid_line_alpha = 0.13
    for axis in plot.axis:
        axis.axis_line_color = None
        axis.major_tick_line_color = None
        axis.minor_tick_line_color = None
        axis.major_label_text_color = NEUTRAL
        axis.major_label_text_font = FONT


def quiet_labels(plot: Any) -> None:
    """Give a figure's axes labels that stay behind the data, and its tools a place on demand."""
    hide_toolbar(plot)
    for axis in plot.axis:
        axis.axis_label_text_color = NEUTRAL
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_font = FONT
        axis.axis_label_text_font_size = "11px"


def plain_ticks(plot: Any) -> None:
    """Numbers beside the y axis, also on a logarithmic one, where Bokeh writes powers of ten."""
    plot.yaxis.formatter = BasicTickFormatter(use_scientific=False)


def hide_toolbar(plot: Any) -> None:
    """Show the tools only below the pointer."""
    plot.toolbar.logo = None
    plot.toolbar.autohide = True


def legend_above(plot: Any, columns: int | None = None) -> None:
    """Put the legend of a figure in rows above it, where it covers nothing."""
    plot.add_layout(plot.legend[0], "above")
    plot.legend.orientation = "horizontal"
    plain_legend(plot, "11px")
    plot.legend.padding = plot.legend.margin = 0
    if columns is not None:
        plot.legend.ncols = columns


def plain_legend(plot: Any, font_size: str) -> None:
    """A legend without a box of its own."""
    plot.legend.border_line_color = None
    plot.legend.background_fill_color = None
    plot.legend.label_text_font_size = font_size
    plot.legend.label_text_color = NEUTRAL


def add_memory_limit(
    plot: Any, position: float, limit_bytes: float, *, on_x_axis: bool = False
) -> None:
    """Draw the memory limit as a dashed line at ``position`` on the axis that memory is on."""
    line: dict[str, Any] = {"line_color": CONFLICT, "line_dash": "dashed", "name": "memory limit"}
    label: dict[str, Any] = {"text": f"limit {bytes_text(limit_bytes)}", "text_color": CONFLICT}
    if on_x_axis:
        plot.add_layout(Span(location=position, dimension="height", **line))
        plot.add_layout(
            Label(x=position, y=4, y_units="screen", x_offset=4, text_font_size="11px", **label)
        )
    else:
        plot.add_layout(Span(location=position, dimension="width", **line))
        plot.add_layout(
            Label(x=4, x_units="screen", y=position, y_offset=2, text_font_size="11px", **label)
        )
