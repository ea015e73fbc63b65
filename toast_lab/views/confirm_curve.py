"""A confirmed search: the judge's clock beside the price over seconds, and what each place buys.

The price belongs to one search and its price list, so its line begins anew with every round.  A
judged plan is a filled marker at its clock's time, with a line from a hollow one at its price: the
length of the line is by how much the price was wrong.  Where clock and price are of different
machines, they stand in two charts and no line joins them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from bokeh.models import ColumnDataSource, GridBox, HoverTool, PanTool, ResetTool, WheelZoomTool
from bokeh.plotting import figure

from toast_lab.views.compare_table import bytes_text, seconds_text, time_unit
from toast_lab.views.palette import ACCENT, NEUTRAL, style
from toast_lab.views.plot_style import new_figure, plain_ticks, quiet_labels

CLOCK = style(2).hue
PRICED, JUDGED = "best by the price", "best by the judge's clock"
COLUMNS = ("at_s", "round", "kind", "time_s", "priced_s", "state")
VERDICT_COLUMNS = (
    "plan",
    "round",
    "priced",
    "judged",
    "ratio",
    "memory priced",
    "memory judged",
    "verdict",
)
FRONT_COLUMNS = ("rules + places", "step, priced", "memory", "buys", "by the judge")


def confirm_frame(points: Iterable[Any], verdicts: Sequence[Any], until_s: float) -> pd.DataFrame:
    """Tidy rows of both curves and of the judged plans, in SI units.

    Args:
        points: ``PricePoint`` s of the searches, in order.
        verdicts: ``JudgedPlan`` s, in order.
        until_s: to which second curves go on.

    ``kind`` is "priced", "clock" (the best that stands so far) or "judged" (one plan).
    """
    rows: list[tuple[Any, ...]] = []
    last_round, last_s = None, math.nan
    for point in points:
        if last_round is not None and point.round != last_round:
            # The line of a round ends where the next one begins, and is not joined with it
            rows.append((point.at_s, last_round, "priced", last_s, last_s, ""))
            rows.append((point.at_s, last_round, "priced", math.nan, math.nan, ""))
        rows.append((point.at_s, point.round, "priced", point.best_s, point.best_s, ""))
        last_round, last_s = point.round, point.best_s
    if last_round is not None:
        rows.append((until_s, last_round, "priced", last_s, last_s, ""))
    best = None
    for verdict in verdicts:
        if verdict.time_s is None:
            continue
        ratio = f"{verdict.ratio:.2f}× priced" if verdict.ratio else "judged"
        state = verdict.remark or ratio
        row = (verdict.at_s, verdict.round, "judged", verdict.time_s, verdict.priced_s, state)
        rows.append(row)
        if verdict.stands and (best is None or verdict.time_s < best):
            best = verdict.time_s
            rows.append((verdict.at_s, verdict.round, "clock", best, math.nan, ""))
    if best is not None:
        rows.append((until_s, last_round or 0, "clock", best, math.nan, ""))
    return pd.DataFrame(rows, columns=COLUMNS)


def verdict_frame(verdicts: Sequence[Any], best: int | None, standing: str) -> pd.DataFrame:
    """The judged plans as people read them, in the order in which they were judged.

    Args:
        verdicts: ``JudgedPlan`` s.
        best: number of the best of them; None: none stands.
        standing: of the best one, in a word: "confirmed", "best so far".
    """
    rows = []
    for number, verdict in enumerate(verdicts):
        word = standing if number == best else "judged"
        rows.append(
            (
                f"{number + 1}",
                f"{verdict.round}",
                seconds_text(verdict.priced_s),
                "–" if verdict.time_s is None else seconds_text(verdict.time_s),
                "–" if verdict.ratio is None else f"{verdict.ratio:.2f}",
                bytes_text(verdict.priced_bytes),
                "–" if verdict.peak_bytes is None else bytes_text(verdict.peak_bytes),
                verdict.remark or word,
            )
        )
    return pd.DataFrame(rows, columns=VERDICT_COLUMNS)


def front_frame(rows: Sequence[Any], words: Sequence[str]) -> pd.DataFrame:
    """What each further rule and place buys, the smallest plan first.

    Args:
        rows: ``FrontPlan`` s, the smallest first.
        words: what the judge says of each.
    """
    cells, before = [], None
    for row, word in zip(rows, words, strict=True):
        buys = "the least to write"
        if before is not None:
            buys = _gain(before, row)
        cells.append(
            (
                f"{row.size.rules} + {row.size.places}",
                seconds_text(row.quick.time_s),
                bytes_text(row.quick.peak_bytes) + ("" if row.quick.fits else ", does not fit"),
                buys,
                word,
            )
        )
        before = row
    return pd.DataFrame(cells, columns=FRONT_COLUMNS)


def _gain(before: Any, row: Any) -> str:
    """What a larger plan has before a smaller one: it is quicker, or takes less memory."""
    gained = 1.0 - row.quick.time_s / before.quick.time_s
    saved = before.quick.peak_bytes - row.quick.peak_bytes
    further = row.size.total - before.size.total
    share = f"{gained:.1%} quicker" if gained > 0 else f"{bytes_text(saved)} less memory"
    return f"{share} for {further} more" if further else share


class ConfirmCurve:
    """The chart of ``confirm_frame``; ``show`` brings it up to date.

    Attributes:
        root: the Bokeh model.
        sources: by the ``kind`` of rows, in the units of the axis.
    """

    def __init__(
        self, unsharded_s: float = 1.0, scale_type: str = "log", *, apart: bool = False
    ) -> None:
        """``apart``: clock and price are of different machines."""
        self.unit, self.scale = time_unit(unsharded_s)
        self.unsharded_s = unsharded_s
        self.apart = apart
        self.sources = {
            kind: ColumnDataSource({name: [] for name in COLUMNS})
            for kind in ("priced", "clock", "judged")
        }
        title = f"step time ({self.unit})"
        if not apart:
            both = self._figure(f"{title}: estimated, and by the judge's clock", scale_type)
            self.figures: tuple[figure, ...] = (both,)
            self._draw_price(both)
            self._draw_clock(both)
            _legend_above(both)
            self.root: Any = both
            return
        price = self._figure(f"{title}, estimated for the problem's machine", scale_type)
        clock = self._figure(f"{title} by the clock of another machine", scale_type)
        self._draw_price(price)
        self._draw_clock(clock)
        clock.x_range = price.x_range
        for plot in (price, clock):
            _legend_above(plot)
        self.figures = (price, clock)
        half: Any = ["minmax(0, 1fr)"] * 2
        places: Any = [(price, 0, 0), (clock, 0, 1)]
        whole: Any = ["minmax(0, 1fr)"]
        self.root = GridBox(
            children=places,
            rows=whole,
            cols=half,
            sizing_mode="stretch_both",
            name="confirmed curve",
        )

    def show(self, frame: pd.DataFrame) -> None:
        """Draw the rows of ``confirm_frame``."""
        for kind, source in self.sources.items():
            rows = frame[frame["kind"] == kind]
            columns: dict[str, Any] = {name: rows[name].tolist() for name in COLUMNS}
            for name in ("time_s", "priced_s"):
                columns[name] = [value / self.scale for value in columns[name]]
            if not _equal(source.data, columns):
                source.data = columns

    def _figure(self, title: str, scale_type: str) -> figure:
        plot: Any = new_figure(
            "step by price and clock" if self.apart else "confirmed curve",
            y_axis_type=scale_type,
            min_height=150,
            toolbar_location="right",
        )
        quiet_labels(plot)
        plot.xaxis.axis_label = "seconds since the first search began"
        plot.title.text = title
        plot.title.text_color = NEUTRAL
        plot.title.text_font_size = "12px"
        plot.x_range.start = 0
        plot.y_range.range_padding = 0.15
        plain_ticks(plot)
        plot.yaxis.ticker.desired_num_ticks = 4
        if scale_type == "linear":
            plot.y_range.start = 0
        # gives an empty chart its axes
        whole = self.unsharded_s / self.scale
        plot.scatter([0, 1], [whole, whole], size=1, alpha=0)
        plot.add_tools(PanTool(), WheelZoomTool(dimensions="width"), ResetTool())
        return plot

    def _draw_price(self, plot: figure) -> None:
        plot.step(
            "at_s",
            "time_s",
            source=self.sources["priced"],
            mode="after",
            color=ACCENT,
            line_width=2,
            line_dash="dashed",
            legend_label=f"{PRICED}, of each round",
            name="priced",
        )

    def _draw_clock(self, plot: figure) -> None:
        judged = self.sources["judged"]
        if not self.apart:
            plot.segment(
                "at_s", "priced_s", "at_s", "time_s", source=judged, color=CLOCK, alpha=0.6
            )
            plot.scatter(
                "at_s",
                "priced_s",
                source=judged,
                size=7,
                line_color=ACCENT,
                fill_color=None,
                name="priced plans",
            )
        plot.step(
            "at_s",
            "time_s",
            source=self.sources["clock"],
            mode="after",
            color=CLOCK,
            line_width=2.5,
            legend_label=JUDGED,
            name="clock",
        )
        dots = plot.scatter(
            "at_s",
            "time_s",
            source=judged,
            size=8,
            marker="triangle",
            color=CLOCK,
            legend_label="a judged plan" if self.apart else "a judged plan, ○ its price",
            name="judged",
        )
        tips = [
            ("round", "@round"),
            ("by the clock", f"@time_s{{0.000}} {self.unit}"),
            ("verdict", "@state"),
        ]
        if not self.apart:
            tips.insert(1, ("priced", f"@priced_s{{0.000}} {self.unit}"))
        plot.add_tools(HoverTool(renderers=[dots], tooltips=tips))


def _legend_above(plot: Any) -> None:
    """Put the legend of a figure in a row above it, where it covers nothing."""
    plot.add_layout(plot.legend[0], "above")
    plot.legend.orientation = "horizontal"
    plot.legend.border_line_color = None
    plot.legend.background_fill_color = None
    plot.legend.label_text_font_size = "11px"
    plot.legend.label_text_color = NEUTRAL
    plot.legend.padding = plot.legend.margin = 0


def _equal(data: Any, columns: dict[str, list[Any]]) -> bool:
    """Are they the same columns?  NaN, which a line breaks at, counts as equal to itself."""
    return repr([list(data[name]) for name in COLUMNS]) == repr([columns[name] for name in COLUMNS])
