"""Every private name of jaxlib that TOAST Lab touches, in one place.

Only MLIR's Python bindings that ship inside jaxlib are used: parsing StableHLO and running Shardy's
registered passes needs no import of jax itself.  Tried with jaxlib 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

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


def parse_module(context: ir.Context, text: str | bytes) -> ir.Module:
    """Parse StableHLO text, MLIR bytecode or a portable artifact.  Raises ValueError or MLIRError."""
    with context:
        if isinstance(text, bytes):
            if b"StableHLO" in text[:64]:
                return stablehlo.deserialize_portable_artifact(context, text)
            return ir.Module.parse(text)
        return ir.Module.parse(text)


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
    return {
        "sizes": [int(s) for s in rule.factor_sizes],
        "operands": [_mapping(m) for m in rule.operand_mappings],
        "results": [_mapping(m) for m in rule.result_mappings],
        "reduction": _ints(rule.reduction_factors),
        "need_replication": _ints(rule.need_replication_factors),
        "permutation": _ints(rule.permutation_factors),
        "blocked": _ints(rule.blocked_propagation_factors),
    }


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
