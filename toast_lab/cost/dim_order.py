"""The order of dims after a transpose."""

from __future__ import annotations

from collections.abc import Sequence

from toast_lab.ir import program as p

Order = tuple[int, ...]  # position of each dim of a value before a transpose, or in memory


def order_of(program: p.Program, op: int) -> tuple[int, ...]:
    """For each dim of a transpose's result, its position in the operand."""
    (use,) = program.uses(op)
    before = list(program.use_names(use))
    return tuple(before.index(name) for name in program.def_names(program.results(op)[0]))


def is_turned(order: Order, sizes: Sequence[int]) -> bool:
    """Does the order move any dim of these sizes? Those of size 1 do not count.

    >>> is_turned((1, 0), (2, 3)), is_turned((1, 0), (1, 3))
    (True, False)
    """
    positions = [position for position, size in zip(order, sizes, strict=True) if size > 1]
    return positions != sorted(positions)
