"""How high a chart is: the scales of a y axis that a person chooses from.

Pages offer them before any chart is drawn, so HoloViews is not needed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bokeh.models import DataRange1d, Range1d

#: of the height of a chart: from zero, by decades, or what is at most 10% above the best plan,
#: where plans that are nearly as good are told apart
LAST = "last 10%"
SCALES = ("log", "linear", LAST)
_LAST_PART = (0.98, 1.1)  #: of the best plan


def height_limits(
    heights: Sequence[float], ends: Sequence[float], part: float, scale_type: str
) -> tuple[float, float]:
    """(low, high) of a y axis.

    Args:
        heights: of all that is drawn.
        ends: where lines end, each with the best plan that it came to.
        part: of the distance that is left free on both sides.
        scale_type: one of ``SCALES``.

    >>> height_limits([1.0, 20.0], [10.0], 0.5, "linear")
    (0.0, 29.5)
    >>> height_limits([1.0, 20.0], [10.0], 0.5, LAST)
    (9.8, 11.0)
    """
    if scale_type == LAST and ends and min(ends) > 0:
        low, high = (part_of_best * min(ends) for part_of_best in _LAST_PART)
        return low, round(high, 12)
    low, high = padded(min(heights), max(heights), part, logarithmic=scale_type == "log")
    return (low if scale_type == "log" else 0.0), high


def follow(figure: Any, renderers: Sequence[Any], part: float, scale_type: str) -> None:
    """Let the y axis of a figure whose sources grow follow some of its renderers.

    In the scale ``LAST`` it follows them only until ``show_last`` is told of the first plan.
    """
    figure.y_range = DataRange1d(renderers=list(renderers), range_padding=part)
    if scale_type == "linear":
        figure.y_range.start = 0


def show_last(figure: Any, ends: Sequence[float]) -> None:
    """Show what is at most 10% above the best plan, whatever else is drawn.

    Args:
        figure: a Bokeh figure.
        ends: where lines end, in the units of the axis; NaN where a line has no end yet.
    """
    known = [height for height in ends if height > 0]
    if known:
        low, high = height_limits(known, known, 0.0, LAST)
        if isinstance(figure.y_range, DataRange1d):
            figure.y_range = Range1d(start=low, end=high)
        else:
            figure.y_range.update(start=low, end=high)


def padded(low: float, high: float, part: float, *, logarithmic: bool) -> tuple[float, float]:
    """(low, high) with ``part`` of their distance on both sides, on a log scale in decades.

    >>> padded(0.0, 10.0, 0.1, logarithmic=False)
    (-1.0, 11.0)
    """
    if logarithmic and low > 0:
        decades = math.log10(high / low) or 1.0
        factor = 10 ** (part * decades)
        return low / factor, high * factor
    width = (high - low) or abs(high) or 1.0
    return low - part * width, high + part * width
