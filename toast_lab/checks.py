"""Checks of the numbers that callers give: of the right kind, finite and within their range.

A caller may give anything.  What passes is a plain ``int`` or ``float``, so that no NumPy number,
no text and no NaN travels on to where it would fail with a message that helps nobody.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from toast_lab.errors import InvalidProblem, ToastError

#: generators of random numbers take larger ones, kernels and files of rows do not
MOST_SEED = 2**63 - 1
#: of repeats, evaluations, trajectories: no machine gets that far
MOST_COUNT = 2**31 - 1
#: thirty years; clocks and timers of the system end not far above
MOST_SECONDS = 1e9


def whole_offence(value: Any, least: int | None = None, most: int | None = None) -> str:
    """What is wrong with a whole number, empty if nothing is.

    An example is "must be a whole number, got 'x'".
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return f"must be a whole number, got {_shown(value)}"
    return _range_offence(int(value), least, most)


def number_offence(
    value: Any, least: float | None = None, most: float | None = None, *, above: float | None = None
) -> str:
    """What is wrong with a finite number, empty if nothing is.

    It has to lie from ``least`` (or above ``above``) to ``most``.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return f"must be a number, got {_shown(value)}"
    try:
        finite = math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        finite = False
    if not finite:
        return f"must be a finite number, got {_shown(value)}"
    if above is not None and not float(value) > above:
        return f"must be above {above:g}, got {_shown(value)}"
    return _range_offence(value, least, most)


def whole(
    name: str,
    value: Any,
    least: int | None = None,
    most: int | None = None,
    error: type[ToastError] = InvalidProblem,
) -> int:
    """``value`` as an ``int`` from ``least`` to ``most``.

    Raises ``error``, which names it, if it is not one.
    """
    if offence := whole_offence(value, least, most):
        raise error(f"{name} {offence}")
    return int(value)


def number(
    name: str, value: Any, least: float | None = None, *, above: float | None = None
) -> float:
    """``value`` as a finite ``float``.

    Raises InvalidProblem, which names it, if it is not one.
    """
    if offence := number_offence(value, least, above=above):
        raise InvalidProblem(f"{name} {offence}")
    return float(value)


def seed(value: Any) -> int:
    """A seed: a whole number from 0 to ``MOST_SEED``."""
    return whole("seed", value, least=0, most=MOST_SEED)


def row_offence(
    row: Mapping[str, Any],
    *,
    texts: Iterable[str],
    numbers: Iterable[str],
    objects: Iterable[str] = (),
    least: float | None = 0.0,
) -> str:
    """What is wrong with the fields of a row that a file holds, empty if nothing is.

    Every one of ``texts`` and ``objects`` must be there; ``numbers``, from ``least`` on, may be
    missing or None.
    """
    for kind, names, wording in ((str, texts, "a text"), (dict, objects, "an object")):
        for name in names:
            if not isinstance(row.get(name), kind):
                return f"{name} must be {wording}, it is {row.get(name)!r:.60}"
    for name in numbers:
        if row.get(name) is not None and (offence := number_offence(row[name], least)):
            return f"{name} {offence}"
    return ""


def _range_offence(value: Any, least: Any, most: Any) -> str:
    too_low, too_high = least is not None and value < least, most is not None and value > most
    if not too_low and not too_high:
        return ""
    if too_low and least == 0:
        return f"must not be below 0, got {_shown(value)}"
    bound = f"at least {_shown(least)}" if too_low else f"at most {_shown(most)}"
    return f"must be {bound}, got {_shown(value)}"


def _shown(value: Any) -> str:
    """A short text for any value."""
    if isinstance(value, numbers.Integral) and abs(int(value)) >= 10**4000:
        # Python writes none of that length
        return "a whole number of thousands of digits"
    text = f"{value:g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
