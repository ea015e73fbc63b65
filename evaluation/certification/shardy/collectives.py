"""Run Shardy's own lowering, and read the collectives that it writes into a module."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from toast_lab._jaxlib import PROPAGATION, Axes, axis_list, dim_axes, ir, run_passes, sharding_of

SHARDY_LOWERING = (
    PROPAGATION,
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
    "canonicalize",
    "sdy-resolve-permutation-factors",
    "func.func(sdy-reshard-to-collectives)",
    # this pass makes reduce_scatters
    "canonicalize",
)


class RawCollective(NamedTuple):
    """One sdy collective of a lowered module, in program order."""

    #: "all_gather", "all_reduce", "all_slice", ...
    kind: str
    axes: Axes
    #: the collective whose result it takes, -1: it takes a value of the program
    parent: int
    #: number (see ``read_collectives``) of the op that made that value, -1: an op that the passes
    #: added
    op: int
    #: index of that op's result; -1 - i: argument i of a region of the op, such as the value that a
    #: loop starts its rounds with
    result: int
    #: axes per dim before and after the collective
    before: tuple[Axes, ...]
    after: tuple[Axes, ...]
    shape: tuple[int, ...]
    element: str
    #: does any op other than a further collective take its result?
    read: bool


def run_lowering(module: ir.Module) -> None:
    """Turn an annotated module into one with explicit sdy collectives, in place.

    The passes may abort the process.
    """
    for step in SHARDY_LOWERING:
        run_passes(module, f"builtin.module({step})")


def read_collectives(main: Any, key: str) -> tuple[list[RawCollective], list[tuple[int, int]]]:
    """Read the sdy collectives in a function that ``run_lowering`` lowered, including regions.

    Ops carry their number as integer attribute ``key``; the function's arguments have numbers 0, 1,
    2, ...

    Returns:
        The collectives, and (op, which of its results) of every value that Shardy's canonicalizer
        reshapes by an op of its own, as it is or after collectives.
    """
    collectives: list[RawCollective] = []
    reshaped: list[tuple[int, int]] = []
    index_of: dict[Any, int] = {}

    def visit(block: Any) -> None:
        for op in block.operations:
            name = op.operation.name
            if name.startswith("sdy.") and (
                "all_" in name or name in ("sdy.reduce_scatter", "sdy.collective_permute")
            ):
                _read_collective(
                    op.operation, main, key, collectives=collectives, index_of=index_of
                )
            elif name == "stablehlo.reshape" and key not in op.operation.attributes:
                index = index_of.get(op.operation.operands[0], -1)
                while index >= 0 and collectives[index].parent >= 0:
                    index = collectives[index].parent
                origin = (
                    (collectives[index].op, collectives[index].result)
                    if index >= 0
                    else _origin(op.operands[0], main, key)
                )
                reshaped.append(origin)
            for region in op.operation.regions:
                for inner in region.blocks:
                    visit(inner)

    visit(main.operation.regions[0].blocks[0])
    return collectives, [origin for origin in reshaped if origin[0] >= 0]


def argument_axes(main: Any) -> list[tuple[Axes, ...]]:
    """Axes per dim of each argument of a function, from its annotations."""
    arguments = main.operation.regions[0].blocks[0].arguments
    return [dim_axes(sharding_of(value, main), len(value.type.shape)) for value in arguments]


def _read_collective(
    op: Any, main: Any, key: str, *, collectives: list[RawCollective], index_of: dict[Any, int]
) -> None:
    operand, result = op.operands[0], op.results[0]
    kind = op.name.removeprefix("sdy.")
    axes_match = re.search(r"sdy\.\w+ (.*?)%", op.get_asm(enable_debug_info=False))
    axes = axis_list(axes_match.group(1)) if axes_match else ()
    parent = index_of.get(operand, -1)
    maker_op, maker_result = (-1, 0) if parent >= 0 else _origin(operand, main, key)
    kind_of_users = [use.owner.operation.name for use in result.uses]
    index_of[result] = len(collectives)
    collectives.append(
        RawCollective(
            kind=kind,
            axes=axes,
            parent=parent,
            op=maker_op,
            result=maker_result,
            before=dim_axes(sharding_of(operand, main), len(operand.type.shape)),
            after=dim_axes(str(op.attributes["out_sharding"]), len(result.type.shape)),
            shape=tuple(result.type.shape),
            element=str(result.type.element_type),
            read=any(
                not (user.startswith("sdy.") and user != "sdy.return") for user in kind_of_users
            ),
        )
    )


def _origin(value: Any, main: Any, key: str) -> tuple[int, int]:
    """(number of the op that made a value, index of the result)."""
    if isinstance(value.owner, ir.Block):
        position = ir.BlockArgument(value).arg_number
        if value.owner == main.operation.regions[0].blocks[0]:
            return position, 0
        around = value.owner.owner.attributes
        return (ir.IntegerAttr(around[key]).value, -1 - position) if key in around else (-1, 0)
    attributes = value.owner.operation.attributes
    number = ir.IntegerAttr(attributes[key]).value if key in attributes else -1
    return number, ir.OpResult(value).result_number
