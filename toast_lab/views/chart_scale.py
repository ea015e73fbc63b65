"""The scales of a y axis that users choose from, and the limits that they give the axis.

Pages offer them before any chart is drawn, so this module does without HoloViews.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bokeh.models import DataRange1d, Range1d

#: the scale that shows only what is at most 10% above the best plan, where plans that are nearly as
#: good can be told apart
LAST_TEN_PERCENT = "last 10%"
#: scales of a y axis: by decades, from zero, or only the last 10%
SCALES = ("log", "linear", LAST_TEN_PERCENT)
_LAST_PART = (0.98, 1.1)  #: ends of the axis, as multiples of the best plan


def height_limits(
    heights: Sequence[float], ends: Sequence[float], part: float, scale_type: str
) -> tuple[float, float]:
    """Ends (low, high) of a y axis.

    Args:
        heights: heights of everything that is drawn.
        ends: last height of each line, which is its best plan.
        part: share of the distance that is left free on both sides.
        scale_type: one of ``SCALES``.

    >>> height_limits([1.0, 20.0], [10.0], 0.5, "linear")
    (0.0, 29.5)
    >>> height_limits([1.0, 20.0], [10.0], 0.5, LAST_TEN_PERCENT)
    (9.8, 11.0)
    """
    if scale_type == LAST_TEN_PERCENT and ends and min(ends) > 0:
        low, high = (part_of_best * min(ends) for part_of_best in _LAST_PART)
        return low, round(high, 12)
    low, high = padded(min(heights), max(heights), part, logarithmic=scale_type == "log")
    return (low if scale_type == "log" else 0.0), high


def follow(figure: Any, renderers: Sequence[Any], part: float, scale_type: str) -> None:
    """Let the y axis of a figure follow some of its renderers while their sources grow.

    On the scale ``LAST_TEN_PERCENT`` it follows them only until ``show_last`` gets the first plan.
    """
    figure.y_range = DataRange1d(renderers=list(renderers), range_padding=part)
    if scale_type == "linear":
        figure.y_range.start = 0


def show_last(figure: Any, ends: Sequence[float]) -> None:
    """Limit the y axis to what is at most 10% above the best plan, whatever else is drawn.

    Args:
        figure: a Bokeh figure.
        ends: last height of each line, in the units of the axis; NaN for a line without one.
    """
    known = [height for height in ends if height > 0]
    if known:
        low, high = height_limits(known, known, 0.0, LAST_TEN_PERCENT)
        if isinstance(figure.y_range, DataRange1d):
            figure.y_range = Range1d(start=low, end=high)
        else:
            figure.y_range.update(start=low, end=high)


def padded(low: float, high: float, part: float, *, logarithmic: bool) -> tuple[float, float]:
    """(low, high), widened on both sides by ``part`` of their distance, in decades if logarithmic.

    >>> padded(0.0, 10.0, 0.1, logarithmic=False)
    (-1.0, 11.0)
    """
    if logarithmic and low > 0:
        decades = math.log10(high / low) or 1.0
        factor = 10 ** (part * decades)
        return low / factor, high * factor
    width = (high - low) or abs(high) or 1.0
    return low - part * width, high + part * width
