"""Puts Fourier transforms into a form that XLA's compiler for CPUs can run.

The compiler lets transposes, and the collectives beside them, choose the memory layout of a
transform's operand, and then refuses at run time every layout that is not row-major (``RET_CHECK``
in ``fft_thunk.cc``; seen with jaxlib 0.10.2 and 0.12.0.1). For CPUs the layout is therefore pinned,
inside the manual computation that ``local_ops`` makes of a transform: a pin on the whole operand
would end up before the gather that the partitioner inserts, where it has no effect.

``pin_layouts`` must run immediately before a compiler for CPUs.
"""

from __future__ import annotations

from typing import Any

from toast_lab._jaxlib import ir
from toast_lab.ir.dead import operations

KIND = "stablehlo.fft"
# XLA's own custom call; jax.experimental.layout.with_layout_constraint makes the same one
_LAYOUT = "LayoutConstraint"


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
