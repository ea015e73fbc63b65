"""Colours and markers of the pictures, readable on light and on dark pages.

Every colour comes with a marker shape, and lanes carry their name as text, so nothing depends on
hue alone. Red is reserved for conflicts and for limits.
"""

from __future__ import annotations

from typing import NamedTuple

#: only for conflicts and the memory limit
CONFLICT = "#d62839"
#: text and lines that must be visible on white and on near-black
NEUTRAL = "#727e8c"
ACCENT = "#1f6feb"

# (hue, marker), with a contrast of at least 3:1 against white and against the dark theme's cards.
# Each hue is as far as possible from those before it and from CONFLICT, as seen by people who lack
# one kind of cone; the first few, which most programs need, are therefore the easiest to tell
# apart. tests/views/test_palette.py measures the distances.
_CYCLE = (
    ("#1f77d0", "circle"),
    ("#c77700", "square"),
    ("#08a667", "triangle"),
    ("#8c5b86", "diamond"),
    ("#d900bc", "inverted_triangle"),
    ("#417328", "hex"),
    ("#bf7cb6", "square_pin"),
    ("#9080ff", "plus"),
    ("#198072", "circle_dot"),
    ("#7733ff", "square_dot"),
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


class ColourStyle(NamedTuple):
    """How one colour of a program is drawn."""

    hue: str
    marker: str

    @property
    def symbol(self) -> str:
        """The marker as a character, for tables and listings."""
        return MARKER_TEXT[self.marker]


def style(index: int) -> ColourStyle:
    """The style of the ``index``-th lane; styles repeat after ten, the lane's name does not.

    >>> style(0)
    Style(hue='#1f77d0', marker='circle')
    """
    return ColourStyle(*_CYCLE[index % len(_CYCLE)])
