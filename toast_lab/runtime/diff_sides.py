"""Comparisons of two collectives that need no program."""

from __future__ import annotations

import re
from collections.abc import Callable

from toast_lab.runtime.diff_rows import Side

SUMS = ("all_reduce", "reduce_scatter")
#: Kinds that move data; a reshard may use one instead of another.
MOVES = ("all_to_all", "collective_permute", "all_gather")
Check = Callable[[Side, Side], bool]


def on_one_op(check: Check) -> Check:
    """``check``, restricted to pairs that serve the same op."""
    return lambda a, b: a.op == b.op and check(a, b)


def alike(priced: Side, compiled: Side) -> bool:
    """Are both of the same kind and over the same axes?"""
    return priced.kind == compiled.kind and axes(priced) == axes(compiled)


def swapped(priced: Side, compiled: Side, first: str, second: str) -> bool:
    """Are the priced and the compiled one of these two kinds, over the same axes?"""
    is_swap = (priced.kind, compiled.kind) == (first, second)
    return is_swap and axes(priced) == axes(compiled)


def same_value(first: Side, second: Side) -> bool:
    """Do both move the same value for the same op?"""
    return (first.op, first.value) == (second.op, second.value)


def axes(side: Side) -> frozenset[str]:
    """The axes of a collective; a question mark if it is not over whole mesh axes."""
    return frozenset(side.axes if side.axes is not None else ("?",))


def same_size(priced: Side, compiled: Side) -> bool:
    """Are both of the same size, and do they run equally often?"""
    return close(priced.bytes, compiled.bytes) and priced.times == compiled.times


def close(first: float, second: float) -> bool:
    """Do two sizes differ by at most 1%?"""
    return abs(first - second) <= 0.01 * max(first, second)


def is_padded(priced: Side, compiled: Side) -> bool:
    """Is the compiled one larger, by at most 13%?"""
    is_larger = priced.bytes < compiled.bytes <= 1.13 * priced.bytes
    return is_larger and priced.times == compiled.times


def element_bytes(dtype: str) -> float:
    """Bytes of one element, 0 if unknown."""
    if dtype == "pred":
        return 1.0
    digits = re.search(r"\d+", dtype)
    return int(digits.group()) / 8 if digits else 0.0
