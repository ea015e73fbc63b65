"""Ops of which compilers gather the operands even where only independent parts are split.

XLA rewrites some ops before it partitions them, or has no partitioner for them (seen with jaxlib
0.10.2, libtpu 0.0.42.1 and jax-cuda12-pjrt 0.10.2): Fourier transforms, top-k, triangular solves
and convolutions with groups, which is what ``jax.vmap`` makes of a kernel an example and of
gradients an example. It then sends a whole batch of which every device needs only its part. So a
manual computation gives every device its own op on its own parts, as the plan says and the price
counts; nothing is left to partition.

``run_locally`` serves annotated programs, ``merge_local`` undoes it when a program is read. Which
kinds of ops are meant says ``OpKind.gathered``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.ir.fourier import is_pin
from toast_lab.ir.own_rules import convolution_labels

_MANUAL = "sdy.manual_computation"
_MARK = "toast_local_op"  # tells our manual computations from shard_maps


class Part(NamedTuple):
    """One device's part of an operand or result."""

    sharding: Any  #: as an attribute
    ways: Sequence[int]  #: number of parts that each dim is cut into


def run_locally(
    operation: Any, operands: Sequence[Part], results: Sequence[Part], axes: Sequence[str]
) -> None:
    """Put an op into a manual computation over all ``axes`` of the mesh. In place.

    ``operands`` and ``results`` are such that the op on parts gives parts.
    """
    with ir.InsertionPoint(operation), operation.location as location:
        manual = _jaxlib.sdy.ManualComputationOp(
            [result.type for result in operation.results],
            list(operation.operands),
            _jaxlib.sharding_per_value([part.sharding for part in operands]),
            _jaxlib.sharding_per_value([part.sharding for part in results]),
            _jaxlib.manual_axes(axes),
        ).operation
        manual.attributes[_MARK] = ir.UnitAttr.get()
        argument_types = _local_types(operation.operands, operands)
        block = manual.regions[0].blocks.append(
            *argument_types, arg_locs=[location] * len(argument_types)
        )
        with ir.InsertionPoint(block):
            result_types = _local_types(operation.results, results)
            local_op = _copy(operation, list(block.arguments), result_types)
            _jaxlib.sdy.ReturnOp(list(local_op.results))
    _replace(operation, manual.results)


def merge_local(operation: Any) -> bool:
    """Replace a manual computation of ``run_locally`` by its op. In place.

    Gives False, and changes nothing, for any other operation. The op takes over the sharding.
    """
    if operation.name != _MANUAL or _MARK not in operation.attributes:
        return False
    (block,) = operation.regions[0].blocks
    local_op, _ = (op.operation for op in block.operations if not is_pin(op.operation))
    with ir.InsertionPoint(operation), operation.location:
        whole_op = _copy(
            local_op, list(operation.operands), [result.type for result in operation.results]
        )
    whole_op.attributes["sdy.sharding"] = operation.attributes["out_shardings"]
    _replace(operation, whole_op.results)
    return True


def _replace(operation: Any, values: Iterable[Any]) -> None:
    for result, value in zip(operation.results, values, strict=True):
        result.replace_all_uses_with(value)
    operation.erase()


def _copy(like: Any, operands: Sequence[Any], result_types: Sequence[Any]) -> Any:
    """A copy of op ``like`` for other sizes, at the current insertion point."""
    # Attributes in newer versions of jaxlib, names in older ones
    names = [getattr(attribute, "name", attribute) for attribute in like.attributes]
    attributes = {name: like.attributes[name] for name in names if name != "sdy.sharding"}
    if like.name == "stablehlo.convolution":
        attributes |= _group_counts(like, [operand.type for operand in operands], result_types)
    return ir.Operation.create(
        like.name,
        results=result_types,
        operands=operands,
        attributes=attributes,
        loc=like.location,
    )


def _group_counts(
    convolution: Any, operand_types: Sequence[Any], result_types: Sequence[Any]
) -> dict[str, Any]:
    """The numbers of groups that follow from the sizes, since groups may be split."""
    image, kernel, result = (
        dict(zip(labels, tensor.shape, strict=True))
        for labels, tensor in zip(
            convolution_labels(convolution), (*operand_types, *result_types), strict=True
        )
    )
    counts = {
        "feature_group_count": image["f"] // kernel["i"],
        "batch_group_count": image["b"] // result["b"],
    }
    int64 = ir.IntegerType.get_signless(64)
    return {key: ir.IntegerAttr.get(int64, count) for key, count in counts.items()}


def _local_types(values: Iterable[Any], parts: Sequence[Part]) -> list[Any]:
    return [
        ir.RankedTensorType.get(
            [size // count for size, count in zip(value.type.shape, part.ways, strict=True)],
            value.type.element_type,
        )
        for value, part in zip(values, parts, strict=True)
    ]
