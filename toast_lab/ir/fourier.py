"""Puts Fourier transforms into a form that compilers execute as the plan says.

XLA has two faults here (seen with jaxlib 0.10.2 and 0.12.0.1 unless said otherwise):

* Its partitioner gathers the operand of a transform and makes every device compute all of it, even
  if only batch dims are split (jaxlib 0.10.2). A manual computation therefore gives each device its
  own transform of its own part. The transformed dims are whole on every device, so that nothing is
  left to partition.
* The CPU compiler lets transposes, and the collectives beside them, choose the memory layout of a
  transform's operand, and then refuses at run time every layout that is not row-major
  (``RET_CHECK`` in ``fft_thunk.cc``). For CPUs the layout is therefore pinned, inside the manual
  computation: a pin on the whole operand would end up before the gather that the partitioner
  inserts, where it has no effect.

``run_locally`` serves annotated programs, ``merge_local`` undoes it when a program is read, and
``pin_layouts`` must run immediately before a compiler for CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.ir.dead import operations

KIND = "stablehlo.fft"
_MANUAL = "sdy.manual_computation"
# XLA's own custom call; jax.experimental.layout.with_layout_constraint makes the same one
_LAYOUT = "LayoutConstraint"


def run_locally(operation: Any, sharding: Any, ways: Sequence[int], axes: Sequence[str]) -> Any:
    """Put a transform into a manual computation over all mesh axes. In place.

    Args:
        operation: the transform.
        sharding: sharding of both its operand and its result, as an attribute.
        ways: number of parts that the sharding cuts each dim into; 1 for the transformed dims.
        axes: axes of the mesh.

    Returns:
        The manual computation's result, which replaces the transform's.
    """
    operand, result = operation.operands[0], operation.results[0]
    local_operand_type = _local_type(operand.type, ways)
    with ir.InsertionPoint(operation), operation.location as location:
        per_value = _jaxlib.sharding_per_value([sharding])
        manual = _jaxlib.sdy.ManualComputationOp(
            [result.type], [operand], per_value, per_value, _jaxlib.manual_axes(axes)
        ).operation
        block = manual.regions[0].blocks.append(local_operand_type, arg_locs=[location])
        with ir.InsertionPoint(block):
            local_transform = _transform(
                operation, block.arguments[0], _local_type(result.type, ways)
            )
            _jaxlib.sdy.ReturnOp([local_transform.results[0]])
    result.replace_all_uses_with(manual.results[0])
    operation.erase()
    return manual.results[0]


def merge_local(operation: Any) -> bool:
    """Replace a manual computation that holds only a transform by that transform. In place.

    Gives False, and changes nothing, for any other operation. The transform takes over the
    sharding. A manual computation that splits a transformed dim is kept, since it transforms each
    part separately.
    """
    local_transform = _only_transform(operation) if operation.name == _MANUAL else None
    if local_transform is None:
        return False
    with ir.InsertionPoint(operation), operation.location:
        whole_transform = _transform(
            local_transform, operation.operands[0], operation.results[0].type
        )
    whole_transform.attributes["sdy.sharding"] = operation.attributes["out_shardings"]
    operation.results[0].replace_all_uses_with(whole_transform.results[0])
    operation.erase()
    return True


def pin_layouts(module: Any) -> None:
    """Pin the operand and the result of every transform to the row-major layout.

    In place; needs a current context. Both need a pin: users of the result may choose its layout,
    and a transform's operand gets the layout of its result.
    """
    for op in [op for op in operations(module.operation) if op.name == KIND]:
        operand, result = op.operands[0], op.results[0]
        if len(operand.type.shape) < 2:
            continue
        with op.location:
            op.operands[0] = _pinned(operand, ir.InsertionPoint(op)).results[0]
            pinned_result = _pinned(result, ir.InsertionPoint.after(op))
        result.replace_all_uses_except(pinned_result.results[0], pinned_result)


def _pinned(value: Any, insertion_point: Any) -> Any:
    rank = len(value.type.shape)
    minor_to_major = ", ".join(map(str, reversed(range(rank))))
    layout = ir.ArrayAttr.get(
        [ir.Attribute.parse(f"dense<[{minor_to_major}]> : tensor<{rank}xindex>")]
    )
    attributes = {
        "call_target_name": ir.StringAttr.get(_LAYOUT),
        "backend_config": ir.StringAttr.get(""),
        "operand_layouts": layout,
        "result_layouts": layout,
    }
    return ir.Operation.create(
        "stablehlo.custom_call",
        results=[value.type],
        operands=[value],
        attributes=attributes,
        ip=insertion_point,
    )


def is_pin(operation: Any) -> bool:
    """Does this op only request a memory layout?"""
    if operation.name != "stablehlo.custom_call":
        return False
    return bool(ir.StringAttr(operation.attributes["call_target_name"]).value == _LAYOUT)


def _transform(like: Any, operand: Any, result_type: Any) -> Any:
    """A copy of transform ``like`` for another operand, at the current insertion point."""
    attributes = {key: like.attributes[key] for key in ("fft_type", "fft_length")}
    return ir.Operation.create(
        KIND, results=[result_type], operands=[operand], attributes=attributes, loc=like.location
    )


def _local_type(tensor: Any, ways: Sequence[int]) -> Any:
    return ir.RankedTensorType.get(
        [size // part_count for size, part_count in zip(tensor.shape, ways, strict=True)],
        tensor.element_type,
    )


def _only_transform(manual: Any) -> Any:
    """The only op of this manual computation if it is a transform, else None."""
    (block,) = manual.regions[0].blocks
    operations_inside = [op.operation for op in block.operations if not is_pin(op.operation)]
    if [op.name for op in operations_inside] != [KIND, "sdy.return"] or len(manual.operands) != 1:
        return None
    whole_type, local_type = manual.operands[0].type, operations_inside[0].operands[0].type
    dim_count = len(ir.DenseI64ArrayAttr(operations_inside[0].attributes["fft_length"]))
    dims_are_whole = list(whole_type.shape)[-dim_count:] == list(local_type.shape)[-dim_count:]
    return (
        operations_inside[0]
        if dims_are_whole
        and manual.attributes["in_shardings"] == manual.attributes["out_shardings"]
        else None
    )
