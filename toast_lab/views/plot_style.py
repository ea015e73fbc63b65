"""The look that all Bokeh pictures share: quiet axes, and hover cards in the page's colours."""

from __future__ import annotations

from typing import Any

from bokeh.models import BasicTickFormatter, ContinuousTicker, CustomJSTicker, LogAxis, NoOverlap
from bokeh.plotting import figure

from toast_lab.views.palette import NEUTRAL

FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
# Hover cards follow the page's theme. The styles of the figure around them would take precedence,
# hence !important.
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
    """Give a figure hover cards in the colours of the page, no background, and quiet axes."""
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
    """Mute the labels of a figure's axes, and show its tools on demand."""
    hide_toolbar(plot)
    for axis in plot.axis:
        axis.axis_label_text_color = NEUTRAL
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_font = FONT
        axis.axis_label_text_font_size = "11px"


#: Positions of the ticks on a logarithmic axis. Over less than two decades Bokeh puts its own ticks
#: at equal steps, which crowd at the upper end; over less than a third of a decade that is right.
LOG_TICKS = """
const low = Math.min(cb_data.start, cb_data.end), high = Math.max(cb_data.start, cb_data.end)
const decades = Math.log10(high / low)
const ticks = []
if (!(low > 0) || !isFinite(decades)) return ticks
if (decades < 1 / 3) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough))
  const step = power * [1, 2, 5, 10].find((multiple) => multiple * power >= rough)
  for (let i = Math.ceil(low / step); i * step <= high; i++) {
    ticks.push(Number((i * step).toPrecision(12)))
  }
  return ticks
}
const multiples = decades > 3 ? [1] : decades > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7]
for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
  for (const multiple of multiples) {
    const tick = Number((multiple * 10 ** power).toPrecision(12))
    if (tick >= low && tick <= high) ticks.push(tick)
  }
}
return ticks
"""


def plain_ticks(plot: Any) -> None:
    """Write plain numbers beside both axes; on logarithmic ones Bokeh would write powers of ten."""
    plot.yaxis.formatter = BasicTickFormatter(use_scientific=False)
    if any(isinstance(axis, LogAxis) for axis in plot.xaxis):
        plot.xaxis.formatter = BasicTickFormatter(use_scientific=False)
    # In a low or narrow chart, numbers that touch would read as one
    for axis in (*plot.xaxis, *plot.yaxis):
        axis.major_label_policy = NoOverlap()
        if isinstance(axis, LogAxis):
            axis.update(ticker=CustomJSTicker(major_code=LOG_TICKS))


def few_ticks(axis: Any, count: int) -> None:
    """Ask for about ``count`` ticks; a logarithmic axis of ``plain_ticks`` has few anyway."""
    if isinstance(axis.ticker, ContinuousTicker):
        axis.ticker.desired_num_ticks = count


def hide_toolbar(plot: Any) -> None:
    """Show the tools only while the pointer is over the figure."""
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
