"""The search tree as an icicle.

Each place is a block, as wide as its visits and tinted by the best or mean score at or below it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from bokeh.core.properties import value
from bokeh.events import Tap
from bokeh.models import (
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    LinearColorMapper,
    Range1d,
    TapTool,
)
from bokeh.models.annotations import ColorBar
from bokeh.palettes import Cividis256
from bokeh.plotting import figure

from toast_lab.views.icicle_layout import Icicle
from toast_lab.views.palette import CONFLICT, NEUTRAL
from toast_lab.views.plot_style import FONT, new_figure
from toast_lab.views.text_width import fitted

LEVELS = 6
LEAST_ROWS = 4
_COLUMNS = "left right top bottom middle tint text action visits ink line width shown".split()
FOLD_COLOUR = "#e4e8ee"
TINTS = {"best_score": "best C(s) below", "mean_score": "mean C(s) below"}
LEGEND = {
    key: f"{kind} C(s) at or below, dark is better: time over unsharded, plus excess memory"
    for key, kind in (("best_score", "best"), ("mean_score", "mean"))
}
LABEL_SIZE, LABEL_OFFSET = 11, 5  #: font size and left margin of block texts, in pixels


class IcicleScene(NamedTuple):
    """What is drawn: blocks, their texts, and their tints (NaN for folds)."""

    blocks: Icicle
    labels: list[str]
    tint: np.ndarray
    #: the selected place
    selected: int
    #: key of TINTS
    kind: str


def fold_label(child_count: int) -> str:
    """Text of a block that stands for ``child_count`` children."""
    return f"{child_count:,} more"


def tint_range(tint: np.ndarray) -> tuple[float, float]:
    """Ends of the colour scale.

    It goes from the best score to the 90th percentile, so that a few bad blocks do not hide the
    differences between the others.

    >>> tint_range(np.array([np.nan]))
    (0.0, 1.0)
    """
    known_tints = tint[np.isfinite(tint)]
    if not len(known_tints):
        return 0.0, 1.0
    lowest, highest = float(known_tints.min()), float(np.quantile(known_tints, 0.9))
    return lowest, highest if highest > lowest else lowest + max(abs(lowest) * 1e-3, 1e-9)


class IciclePlot:
    """The picture of a search tree; ``show`` gives it another scene.

    Attributes:
        figure: the Bokeh figure.
        source: one row per block.
        on_tap: called with the index of the block that was tapped.
    """

    def __init__(self, on_tap: Callable[[int], None] | None = None) -> None:
        self.on_tap = on_tap
        self.scene: IcicleScene | None = None
        # inner width of the picture in pixels, until the browser reports it
        self._inner_width = 800.0
        self._rows = LEAST_ROWS
        self.source = ColumnDataSource({column: [] for column in _COLUMNS})
        self.mapper = LinearColorMapper(
            palette=tuple(Cividis256), low=0.0, high=1.0, nan_color=FOLD_COLOUR
        )
        self.figure = self._draw()
        self.figure.on_change("inner_width", self._resized)

    def _resized(self, _attr: str, _old: Any, new: Any) -> None:
        self._inner_width = float(new or self._inner_width)
        if self.scene is not None:
            self.show(self.scene)

    def show(self, scene: IcicleScene) -> None:
        """Draw another scene."""
        self.scene = scene
        blocks = scene.blocks
        lowest, highest = tint_range(scene.tint)
        if (self.mapper.low, self.mapper.high) != (lowest, highest):
            self.mapper.update(low=lowest, high=highest)
        self.bar.title = LEGEND[scene.kind]
        # Never fewer rows, or blocks would move away from under the pointer
        self._rows = max(self._rows, int(blocks.level.max()) + 1)
        y_range: Any = self.figure.y_range
        if y_range.start != self._rows:
            y_range.start = self._rows
        widths = (blocks.right - blocks.left) * self._inner_width
        shades = np.nan_to_num((scene.tint - lowest) / (highest - lowest), nan=1.0)
        is_selected = (blocks.place == scene.selected) & (blocks.folded == 0)
        self.source.data = {
            "left": blocks.left,
            "right": blocks.right,
            "top": blocks.level.astype(float),
            "bottom": blocks.level + 0.94,
            "middle": blocks.level + 0.47,
            "tint": scene.tint,
            "text": [
                fitted(label, width - 2 * LABEL_OFFSET, LABEL_SIZE)
                for label, width in zip(scene.labels, widths, strict=True)
            ],
            "action": scene.labels,
            "visits": blocks.visits,
            "ink": np.where(shades < 0.55, "#ffffff", "#10151c").tolist(),
            "line": np.where(is_selected, CONFLICT, NEUTRAL).tolist(),
            "width": np.where(is_selected, 3.0, 1.0),
            "shown": [
                f"{tint:.4f}" if np.isfinite(tint) else "click to unfold"
                for tint in scene.tint.tolist()
            ],
        }

    def clear(self) -> None:
        """Draw nothing."""
        self.scene = None
        self.source.data = {column: [] for column in _COLUMNS}

    def _tapped(self, event: Any) -> None:
        block = self.scene.blocks.at(event.x, event.y) if self.scene is not None else None
        if block is not None and self.on_tap is not None:
            self.on_tap(block)

    def _draw(self) -> figure:
        picture = new_figure(
            "search tree",
            x_range=Range1d(start=0, end=1, bounds=(0, 1)),
            y_range=Range1d(start=LEVELS + 1, end=0, bounds=(0, LEVELS + 1)),
            min_height=180,
            toolbar_location=None,
        )
        picture.grid.visible = False
        picture.xaxis.visible = False
        depth_labels = {depth + 0.5: str(depth) for depth in range(LEVELS + 1)}
        picture.yaxis.ticker = FixedTicker(ticks=list(depth_labels))
        picture.yaxis.major_label_overrides = depth_labels
        picture.yaxis.axis_label = "actions further"
        picture.yaxis.axis_label_text_color = NEUTRAL
        picture.yaxis.axis_label_text_font_style = "normal"
        blocks = picture.quad(
            left="left",
            right="right",
            top="top",
            bottom="bottom",
            source=self.source,
            line_color="line",
            line_width="width",
            fill_color={"field": "tint", "transform": self.mapper},
            name="blocks",
        )
        blocks.nonselection_glyph = None
        picture.text(
            "left",
            "middle",
            text="text",
            source=self.source,
            text_color="ink",
            text_font=value(FONT),
            text_font_size=f"{LABEL_SIZE}px",
            x_offset=LABEL_OFFSET,
            text_baseline="middle",
        )
        self.bar = ColorBar(
            color_mapper=self.mapper,
            title=LEGEND["best_score"],
            height=8,
            padding=2,
            title_standoff=4,
            title_text_font_size="11px",
            title_text_font_style="normal",
            title_text_color=NEUTRAL,
            major_label_text_color=NEUTRAL,
            major_label_text_font_size="10.5px",
            background_fill_alpha=0.0,
        )
        picture.add_layout(self.bar, "below")
        picture.add_tools(
            HoverTool(
                renderers=[blocks],
                tooltips=[("action", "@action"), ("visits", "@visits{0,0}"), ("C(s)", "@shown")],
            ),
            TapTool(renderers=[]),
        )
        picture.on_event(Tap, self._tapped)
        return picture
