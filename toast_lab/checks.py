"""Checks that numbers from callers have the right type, are finite and lie within their range.

A caller may pass anything. A number that passes becomes a plain ``int`` or ``float``, so that no
NumPy number, text or NaN reaches code where it would fail with an unhelpful message.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from toast_lab.errors import InvalidProblem, ToastError

#: random generators accept larger seeds, but kernels and files of rows do not
MOST_SEED = 2**63 - 1
#: limit of repeats, evaluations and trajectories, which no machine reaches
MOST_COUNT = 2**31 - 1
#: thirty years; the system's clocks and timers overflow not far above this
MOST_SECONDS = 1e9


def whole_offence(value: Any, least: int | None = None, most: int | None = None) -> str:
    """The offence of a value that should be a whole number, empty if there is none.

    An example is "must be a whole number, got 'x'".
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return f"must be a whole number, got {_shown(value)}"
    return _range_offence(int(value), least, most)


def number_offence(
    value: Any, least: float | None = None, most: float | None = None, *, above: float | None = None
) -> str:
    """The offence of a value that should be a finite number, empty if there is none.

    The number must be at least ``least``, greater than ``above`` and at most ``most``.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return f"must be a number, got {_shown(value)}"
    try:
        finite = math.isfinite(value)
    except OverflowError:  # a whole number too large for a float
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

    Raises ``error``, with ``name`` in its message, if it is not one.
    """
    if offence := whole_offence(value, least, most):
        raise error(f"{name} {offence}")
    return int(value)


def number(
    name: str, value: Any, least: float | None = None, *, above: float | None = None
) -> float:
    """``value`` as a finite ``float``.

    Raises InvalidProblem, with ``name`` in its message, if it is not one.
    """
    if offence := number_offence(value, least, above=above):
        raise InvalidProblem(f"{name} {offence}")
    return float(value)


def seed(value: Any) -> int:
    """``value`` as a seed: a whole number from 0 to ``MOST_SEED``."""
    return whole("seed", value, least=0, most=MOST_SEED)


def row_offence(
    row: Mapping[str, Any],
    *,
    texts: Iterable[str],
    numbers: Iterable[str],
    objects: Iterable[str] = (),
    least: float | None = 0.0,
) -> str:
    """The offence of a row that was read from a file, empty if there is none.

    The fields in ``texts`` and ``objects`` are required. Those in ``numbers`` may be missing or
    None, and must be at least ``least`` otherwise.
    """
    for kind, names, wording in ((str, texts, "a text"), (dict, objects, "an object")):
        for name in names:
            if not isinstance(row.get(name), kind):
                return f"{name} must be {wording}, got {row.get(name)!r:.60}"
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
    """A short text for any value, for messages."""
    if isinstance(value, numbers.Integral) and abs(int(value)) >= 10**4000:
        # Python refuses to convert numbers of that length to text.
        return "a whole number with thousands of digits"
    text = f"{value:g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
