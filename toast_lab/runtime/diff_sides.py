"""What two collectives have in common, whatever their program."""

from __future__ import annotations

import re
from collections.abc import Callable

from toast_lab.runtime.diff_rows import Side

SUMS = ("all_reduce", "reduce_scatter")
#: Kinds between which a reshard may be swapped.
MOVES = ("all_to_all", "collective_permute", "all_gather")
Check = Callable[[Side, Side], bool]


def on_one_op(check: Check) -> Check:
    """The check, for pairs that serve the same op."""
    return lambda a, b: a.op == b.op and check(a, b)


def alike(priced: Side, compiled: Side) -> bool:
    """Are both of one kind, and over the same axes?"""
    return priced.kind == compiled.kind and axes(priced) == axes(compiled)


def swapped(priced: Side, compiled: Side, first: str, second: str) -> bool:
    """Is the priced one of the first kind, the compiled one of the second, over the same axes?"""
    is_swap = (priced.kind, compiled.kind) == (first, second)
    return is_swap and axes(priced) == axes(compiled)


def same_value(first: Side, second: Side) -> bool:
    """Do both move one value for one op?"""
    return (first.op, first.value) == (second.op, second.value)


def axes(side: Side) -> frozenset[str]:
    """The axes of a collective; a question mark where it is over no product of mesh axes."""
    return frozenset(side.axes if side.axes is not None else ("?",))


def same_size(priced: Side, compiled: Side) -> bool:
    """Are both of one size, and run as often?"""
    return close(priced.bytes, compiled.bytes) and priced.times == compiled.times


def close(first: float, second: float) -> bool:
    """Do two sizes differ by 1% at most?"""
    return abs(first - second) <= 0.01 * max(first, second)


def is_padded(priced: Side, compiled: Side) -> bool:
    """Is the compiled one larger, by 13% at most?"""
    is_larger = priced.bytes < compiled.bytes <= 1.13 * priced.bytes
    return is_larger and priced.times == compiled.times


def element_bytes(dtype: str) -> float:
    """Bytes of an element, 0 if unknown."""
    if dtype == "pred":
        return 1.0
    digits = re.search(r"\d+", dtype)
    return int(digits.group()) / 8 if digits else 0.0
