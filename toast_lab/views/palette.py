"""Colours and markers of the pictures: readable on light and on dark, and never the only cue.

Every colour comes with a marker shape, and lanes carry their name as text, so nothing depends on hue alone.
Red is kept for conflicts and for limits.
"""

from __future__ import annotations

from typing import NamedTuple

CONFLICT = "#d62839"  #: conflicts, the memory limit, and nothing else
NEUTRAL = "#727e8c"  #: text and lines that must be seen on white and on near-black
ACCENT = "#1f6feb"

# (hue, marker): mid-luminance hues, at least 3:1 against white and against #14181d.
_CYCLE = (
    ("#1f77d0", "circle"),
    ("#c77700", "square"),
    ("#1a9460", "triangle"),
    ("#a65bc4", "diamond"),
    ("#00929c", "inverted_triangle"),
    ("#8c7a2b", "hex"),
    ("#c2569b", "square_pin"),
    ("#7a7fe0", "plus"),
    ("#5f8f23", "circle_dot"),
    ("#9a6a52", "square_dot"),
)

MARKER_TEXT = {
    "circle": "●",
    "square": "■",
    "triangle": "▲",
    "diamond": "◆",
    "inverted_triangle": "▼",
    "hex": "⬢",
    "square_pin": "✦",
    "plus": "✚",
    "circle_dot": "◉",
    "square_dot": "▣",
}


class Style(NamedTuple):
    """How one colour of a program is drawn."""

    hue: str
    marker: str

    @property
    def symbol(self) -> str:
        """The marker as a character, for tables and listings."""
        return MARKER_TEXT[self.marker]


def style(index: int) -> Style:
    """The style of the ``index``-th lane; styles repeat after ten, the lane's name does not.

    >>> style(0)
    Style(hue='#1f77d0', marker='circle')
    """
    return Style(*_CYCLE[index % len(_CYCLE)])
