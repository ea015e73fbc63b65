"""Hand-written kernels in annotated programs: every device runs them on its own part.

No compiler can cut a kernel. So a wrapped one (``frontends.wrapped_kernels``) is replaced by its
code: for whole shapes if the plan does not cut it, else for those of a part, inside an
``sdy.manual_computation``. The call of a kernel whose code does not hold its shapes (an FFI call)
goes into one as it is. Any other kernel that a plan cuts is refused, with the ``jax.shard_map``
that would cut it.

Start reading at ``write_kernel``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir, stablehlo
from toast_lab.errors import InvalidPlan
from toast_lab.ir import canonical, kernel_rules, own_rules
from toast_lab.ir.platforms import Parts
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import Spec

#: (name of a wrapped kernel, (shape, element type) of its operands, how it is cut) -> StableHLO
Bodies = Callable[[str, Sequence[tuple[tuple[int, ...], str]], Parts | None], str]
_HOLDS_SHAPES = re.compile(r"^tpu_custom_call$|^__gpu\$|^__cudnn\$|triton|mosaic", re.I)


def is_kernel(operation: Any) -> bool:
    """Is this a call of a hand-written kernel that has a rule?"""
    if operation.name != "stablehlo.custom_call":
        return False
    return own_rules.is_wrapped(operation) or kernel_rules.rule_of(operation) is not None


def write_kernel(
    operation: Any,
    operands: Sequence[Spec],
    results: Sequence[Spec],
    *,
    mesh: Mesh,
    attribute: Callable[[Spec], Any],
    bodies: Bodies | None,
    where: str,
    partial: Sequence[Sequence[str]] = (),
) -> None:
    """Replace a kernel by what a device runs, in place; needs a current context.

    Args:
        operation: the call.
        operands: specs in which the kernel reads its operands.
        results: specs in which it leaves its results.
        mesh: of the plan.
        attribute: the sharding attribute of a spec.
        bodies: code of wrapped kernels; None leaves their calls.
        where: the user's line.
        partial: of each result, the mesh axes over which those of parts add up.

    Raises:
        InvalidPlan: the plan cuts a kernel whose code is for whole shapes.
    """
    is_cut = any(any(spec) for spec in (*operands, *results))
    is_wrapped, target = own_rules.is_wrapped(operation), own_rules.call_target(operation)
    if bodies is None if is_wrapped else not is_cut:
        return
    if not is_wrapped and _HOLDS_SHAPES.search(target):
        raise InvalidPlan(_refusal(operation, operands, results, where, partial=partial))
    if bodies is not None and is_wrapped and (target == kernel_rules.PARTITIONED or not is_cut):
        axes = tuple(zip(mesh.axes, mesh.sizes, strict=True))
        parts = Parts(axes, tuple(operands), tuple(results)) if is_cut else None
        with ir.InsertionPoint(operation):
            values = _inlined(operation, list(operation.operands), bodies, parts)
        _replace(operation, values)
        return
    local_operands = [
        local_type(value.type, spec, mesh)
        for value, spec in zip(operation.operands, operands, strict=True)
    ]
    local_results = [
        local_type(value.type, spec, mesh)
        for value, spec in zip(operation.results, results, strict=True)
    ]
    summed = [tuple(axes) for axes in partial] or [()] * len(results)
    with ir.InsertionPoint(operation), operation.location as location:
        manual = _jaxlib.sdy.ManualComputationOp(
            [
                _stacked(value.type, mesh.ways(axes)) if axes else value.type
                for value, axes in zip(operation.results, summed, strict=True)
            ],
            list(operation.operands),
            _jaxlib.sharding_per_value([attribute(spec) for spec in operands]),
            _jaxlib.sharding_per_value(
                [
                    attribute((axes, *spec) if axes else spec)
                    for spec, axes in zip(results, summed, strict=True)
                ]
            ),
            _jaxlib.manual_axes(mesh.axes),
        ).operation
        locations = [location] * len(local_operands)
        block = manual.regions[0].blocks.append(*local_operands, arg_locs=locations)
        with ir.InsertionPoint(block):
            arguments = list(block.arguments)
            values = (
                _inlined(operation, arguments, bodies)
                if is_wrapped and bodies is not None
                else _called(operation, arguments, local_results)
            )
            values = [
                stablehlo.reshape(_stacked(value.type, 1), value) if axes else value
                for value, axes in zip(values, summed, strict=True)
            ]
            _jaxlib.sdy.ReturnOp(values)
        sums = [
            _sum_of_parts(value) if axes else value
            for value, axes in zip(manual.results, summed, strict=True)
        ]
    _replace(operation, sums)


def _stacked(tensor: Any, count: int) -> Any:
    """The type of ``count`` such tensors, along a new first dim."""
    return ir.RankedTensorType.get([count, *tensor.shape], tensor.element_type)


def _sum_of_parts(stacked: Any) -> Any:
    """The sum over the first dim, at the current insertion point."""
    element = stacked.type.element_type
    scalar = ir.RankedTensorType.get([], element)
    number = "0" if isinstance(element, ir.IntegerType) else "0.0"
    if isinstance(element, ir.ComplexType):
        number = "(0.0, 0.0)"
    zero = stablehlo.constant(ir.Attribute.parse(f"dense<{number}> : {scalar}"))
    total = ir.RankedTensorType.get(stacked.type.shape[1:], element)
    dims = ir.DenseI64ArrayAttr.get([0])
    reduce = stablehlo.ReduceOp([total], [stacked], [zero], dims)
    block = reduce.regions[0].blocks.append(
        scalar, scalar, arg_locs=[ir.Location.current, ir.Location.current]
    )
    with ir.InsertionPoint(block):
        stablehlo.return_([stablehlo.add(*block.arguments)])
    return reduce.results[0]


def local_type(tensor: Any, spec: Spec, mesh: Mesh) -> Any:
    """The type of a device's part of a tensor."""
    sizes = [size // mesh.ways(axes) for size, axes in zip(tensor.shape, spec, strict=True)]
    return ir.RankedTensorType.get(sizes, tensor.element_type)


def _replace(operation: Any, values: Sequence[Any]) -> None:
    for result, value in zip(operation.results, values, strict=True):
        result.replace_all_uses_with(value)
    operation.erase()


def _called(operation: Any, arguments: Sequence[Any], result_types: Sequence[Any]) -> list[Any]:
    """The same call with other operands."""
    keys = (getattr(entry, "name", entry) for entry in operation.attributes)
    attributes = {key: operation.attributes[key] for key in keys}
    copy = ir.Operation.create(
        operation.name,
        results=list(result_types),
        operands=list(arguments),
        attributes=attributes,
        loc=operation.location,
    )
    return list(copy.results)


def _inlined(
    operation: Any, arguments: Sequence[Any], bodies: Bodies, parts: Parts | None = None
) -> list[Any]:
    """The code of a wrapped kernel for these arguments, at the current insertion point."""
    shapes = [(tuple(value.type.shape), str(value.type.element_type)) for value in arguments]
    text = bodies(kernel_rules.kernel_name(operation), shapes, parts)
    module = ir.Module.parse(text, operation.context)
    canonical.canonicalise(module)
    main = canonical.main_function(module)
    return _jaxlib.inline_call(main.operation, list(arguments), operation.location)


def _shard_map_text(operands: Sequence[Spec], results: Sequence[Spec]) -> str:
    def text(specs: Sequence[Spec]) -> str:
        entries = ["P(" + ", ".join(_entry(axes) for axes in spec) + ")" for spec in specs]
        return "(" + ", ".join(entries) + ("," if len(entries) == 1 else "") + ")"

    out = text(results) if len(results) > 1 else text(results)[1:-2]
    return f"jax.shard_map(call, mesh=mesh, in_specs={text(operands)}, out_specs={out})"


def _refusal(
    operation: Any,
    operands: Sequence[Spec],
    results: Sequence[Spec],
    where: str,
    *,
    partial: Sequence[Sequence[str]],
) -> str:
    name = kernel_rules.kernel_name(operation)
    axes = sorted({axis for summed in partial for axis in summed})
    total = f", where call ends with jax.lax.psum over {', '.join(axes)}" if axes else ""
    return (
        f"this plan cuts the kernel {name} ({where}), whose code is for whole shapes, so that no "
        f"compiler can cut it. Call it on parts: {_shard_map_text(operands, results)}{total}, or "
        "wrap the function that calls it with "
        f'@tl.kernel_rule("{_rule_text(operation)}"), which does so for every plan'
    )


def _rule_text(operation: Any) -> str:
    rule = kernel_rules.rule_of(operation)
    return "" if rule is None else rule.text


def _entry(axes: Sequence[str]) -> str:
    if not axes:
        return "None"
    return repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))
