"""The look that all Bokeh pictures share: quiet axes, and hover cards in the page's colours."""

from __future__ import annotations

from typing import Any

from bokeh.models import BasicTickFormatter, LogAxis
from bokeh.plotting import figure

from toast_lab.views.palette import NEUTRAL

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
    """Numbers beside both axes, also on logarithmic ones, where Bokeh writes powers of ten."""
    plot.yaxis.formatter = BasicTickFormatter(use_scientific=False)
    if any(isinstance(axis, LogAxis) for axis in plot.xaxis):
        plot.xaxis.formatter = BasicTickFormatter(use_scientific=False)


def hide_toolbar(plot: Any) -> None:
    """Show the tools only below the pointer."""
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
