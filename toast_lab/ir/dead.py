"""Dead code: ops whose results nothing uses, including ops inside loops and branches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toast_lab.ir.op_kinds import op_kind

TERMINATORS = ("func.return", "return", "sdy.return")


_OWN_NAMES = {"sdy.manual_computation": "shard_map"}


def short_kind(op: Any) -> str:
    """Kind of an op: its name, without the dialect's prefix if that is StableHLO.

    A ``shard_map`` is called as its users call it.
    """
    name: str = op.operation.name
    return _OWN_NAMES.get(name) or name.removeprefix("stablehlo.")


def blocks(op: Any) -> list[Any]:
    """All blocks of an op's regions."""
    return [block for region in op.operation.regions for block in region.blocks]


def operations(root: Any) -> Iterator[Any]:
    """``root`` and every operation nested in it, outer ones first."""
    pending = [root]
    while pending:  # no recursion, since regions may be deeply nested
        operation = pending.pop()
        yield operation
        if not len(operation.regions):
            continue
        nested = [op.operation for block in blocks(operation) for op in block.operations]
        pending.extend(reversed(nested))


def terminator(block: Any) -> Any:
    """The last operation of a block."""
    return block.operations[len(block.operations) - 1].operation


def is_used(operation: Any) -> bool:
    """Does anything use a result of ``operation``?"""
    return any(True for result in operation.results for _ in result.uses)


def drop_dead(block: Any) -> None:
    """Drop unused ops, last first, also inside loops and branches; values of loops are kept."""
    for op in reversed(list(block.operations)):
        operation = op.operation
        kind = short_kind(op)
        if kind in TERMINATORS or not len(operation.results):
            continue
        if is_used(operation) or has_side_effect(op):
            if op_kind(kind).control_flow:
                for nested_block in blocks(op):
                    drop_dead(nested_block)
            continue
        operation.erase()


def drop_empty_parts(root: Any) -> None:
    """Leave out joining a tensor with tensors that have no numbers. In place.

    ``jnp.roll`` by nothing along a dim does that. Joined, the dim would have to be whole, and a
    plan would gather it for nothing; compilers drop such ops before they partition a program.

    Args:
        root: an operation, such as a function.
    """
    for operation in list(operations(root.operation)):
        if operation.name == "stablehlo.concatenate":
            parts = [part for part in operation.operands if 0 not in part.type.shape]
            if len(parts) == 1 < len(operation.operands):
                operation.results[0].replace_all_uses_with(parts[0])
                operation.erase()


def has_side_effect(op: Any) -> bool:
    """Can the op, or an op inside it, have side effects?"""
    if op_kind(short_kind(op)).side_effect:
        return True
    return any(has_side_effect(nested_op) for block in blocks(op) for nested_op in block.operations)
