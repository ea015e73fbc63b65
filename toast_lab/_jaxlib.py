"""Every private name of jaxlib that TOAST Lab touches, in one place.

Only MLIR's Python bindings that ship inside jaxlib are used: parsing StableHLO and running Shardy's
registered passes needs no import of jax itself.  Tried with jaxlib 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, func, sdy, stablehlo

__all__ = ["chlo", "func", "ir", "make_context", "parse_module", "rule_of", "run_passes", "sdy", "stablehlo"]


def make_context() -> ir.Context:
    """A context that knows StableHLO, CHLO, Shardy and func, and keeps unknown dialects as text."""
    context = ir.Context()
    context.allow_unregistered_dialects = True
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    sdy.register_dialect(context)
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    return context


def inline_call(callee: Any, arguments: list[Any], location: Any) -> list[Any]:
    """Copy the body of a single-block function to the current insertion point; gives its results."""
    return list(_jax_mlir_ext.inlined_func_call(callee, arguments, location))


def parse_module(context: ir.Context, text: str | bytes, file: str = "") -> ir.Module:
    """Parse StableHLO text, MLIR bytecode or a portable artifact.  Raises ValueError or MLIRError.

    If the text stands in ``file``, ops without a location get that file's lines.
    """
    with context:
        if isinstance(text, bytes):
            if b"StableHLO" in text[:64]:
                return stablehlo.deserialize_portable_artifact(context, text)
            return ir.Module.parse(text)
        return ir.Module.parseFile(file) if file else ir.Module.parse(text)


def run_passes(module: ir.Module, pipeline: str) -> None:
    """Run a textual pass pipeline in place, for instance ``builtin.module(canonicalize)``."""
    with module.context:
        passmanager.PassManager.parse(pipeline).run(module.operation)


def populate_rules(module: ir.Module) -> None:
    """Let Shardy attach ``sdy.sharding_rule`` to every op it knows."""
    run_passes(module, "builtin.module(func.func(sdy-populate-op-sharding-rules))")


def _mapping(attr: Any) -> list[list[int]]:
    tensor = sdy.TensorMappingAttr(attr)
    return [list(sdy.DimMappingAttr(dim).factor_indices) for dim in tensor.dim_mappings]


def rule_of(op: Any) -> dict[str, Any] | None:
    """The decoded sharding rule of ``op`` or None.

    Keys: ``sizes`` (list of int), ``operands`` and ``results`` (per tensor, per dim, factor indices with
    the major one first), ``reduction``, ``need_replication``, ``permutation``, ``blocked`` (factor indices).
    """
    if "sdy.sharding_rule" not in op.attributes:
        return None
    rule = sdy.OpShardingRuleAttr(op.attributes["sdy.sharding_rule"])
    decoded: dict[str, Any] = {
        "sizes": [int(s) for s in rule.factor_sizes],
        "operands": [_mapping(m) for m in rule.operand_mappings],
        "results": [_mapping(m) for m in rule.result_mappings],
        "reduction": _ints(rule.reduction_factors),
        "need_replication": _ints(rule.need_replication_factors),
        "permutation": _ints(rule.permutation_factors),
        "blocked": _ints(rule.blocked_propagation_factors),
    }
    if op.operation.name == "stablehlo.convolution":
        slid = _slid_over(op, decoded)
        decoded["reduction"] = [f for f in decoded["reduction"] if f not in slid]
        decoded["permutation"] += slid
    return decoded


def _slid_over(convolution: Any, rule: dict[str, Any]) -> list[int]:
    """Factors of spatial dims that are summed while one operand slides over the other.

    A kernel's gradient sums over the pixels of input and output, shifted against each other by each of the
    kernel's positions.  Shardy calls that a reduction, yet the sum over one shard's pixels lacks those that the
    shift brings in from the next shard.  Only where there is a single position, without padding, are the two
    operands cut alike and the partial sums those of the whole.
    """
    dims = stablehlo.ConvDimensionNumbers(convolution.attributes["dimension_numbers"])
    shape = ir.RankedTensorType(convolution.results[0].type).shape
    padding = _window(convolution, "padding", 0, 2 * len(dims.output_spatial_dimensions))
    found: list[int] = []
    for i, (left, out) in enumerate(zip(dims.input_spatial_dimensions, dims.output_spatial_dimensions, strict=True)):
        dilated = any(
            _window(convolution, f"{side}_dilation", 1, len(dims.output_spatial_dimensions))[i] != 1
            for side in ("lhs", "rhs")
        )
        if shape[out] != 1 or dilated or any(padding[2 * i : 2 * i + 2]):
            found += [f for f in rule["operands"][0][left] if f in rule["reduction"]]
    return found


def _window(convolution: Any, key: str, default: int, count: int) -> list[int]:
    """One attribute of a convolution's window as plain numbers, two for each dim in the case of padding."""
    if key not in convolution.attributes:
        return [default] * count
    attribute = convolution.attributes[key]
    if isinstance(attribute, ir.DenseIntElementsAttr):
        return [int(n) for n in np.asarray(attribute).ravel()]
    return _ints(attribute)


def _ints(values: Iterable[Any]) -> list[int]:
    return [int(v) for v in values]


def constant_text(op: Any) -> str:
    """The value of a ``stablehlo.constant`` as MLIR prints it, ``dense<0.0> : tensor<4xf32>``."""
    try:
        return str(op.attributes["value"])
    except TypeError:  # the bindings have no Python class for complex elements
        match = re.search(r"dense(?:_resource)?<.*> : tensor<.*>", op.get_asm(enable_debug_info=False))
        return match.group(0) if match else ""


def mesh_attribute(axes: Sequence[str], sizes: Sequence[int]) -> Any:
    """``#sdy.mesh<["d"=2, "m"=4]>``; needs a current context."""
    return sdy.MeshAttr.get([sdy.MeshAxisAttr.get(a, s) for a, s in zip(axes, sizes, strict=True)])


def sharding_attribute(mesh_name: str, spec: Sequence[Sequence[str]]) -> Any:
    """``#sdy.sharding<@mesh, [{"d"}, {}]>`` with every dim closed; ``spec`` has mesh axes per dim."""
    dims = [sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(a) for a in axes], True) for axes in spec]
    return sdy.TensorShardingAttr.get(mesh_name, dims)


def sharding_per_value(shardings: Sequence[Any]) -> Any:
    """``#sdy.sharding_per_value<[...]>``, one sharding for each result of an op."""
    return sdy.TensorShardingPerValueAttr.get(list(shardings))
