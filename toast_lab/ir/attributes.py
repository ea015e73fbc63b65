"""What an op's attributes and types say: element types, FLOPs, the combiner of a reduction, a text for people."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import numpy as np

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.errors import FrontendError
from toast_lab.ir import narrowing, own_rules, rules
from toast_lab.ir import program as p

_ITEMSIZE = {"i1": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "complex<f32>": 8, "complex<f64>": 16}


@functools.lru_cache(maxsize=4096)
def itemsize(element: str) -> int:
    """Bytes of one element of a StableHLO element type; types below a byte count as one."""
    if element in _ITEMSIZE:
        return _ITEMSIZE[element]
    digits = re.match(r"[a-z]+(\d+)", element)
    return max(1, int(digits.group(1)) // 8) if digits else 1


class Tensor(NamedTuple):
    """Shape and element type of one MLIR value."""

    shape: tuple[int, ...]
    element: str


def tensor(mlir_type: Any) -> Tensor:
    """Read an MLIR type; what is no tensor has rank 0.  Raises FrontendError on dynamic shapes."""
    if not isinstance(mlir_type, ir.RankedTensorType):
        return Tensor((), str(mlir_type))  # tokens and tuples: nothing to shard
    if not mlir_type.has_static_shape:
        raise FrontendError(f"dynamic shape {mlir_type}: export the model with fixed sizes")
    return Tensor(tuple(mlir_type.shape), str(mlir_type.element_type))


def monoid(kind: str, operation: Any) -> int:
    """How partial results of the op are combined, an index into MONOIDS; 0 if they cannot be."""
    if kind in ("dot_general", "dot", "chlo.ragged_dot", "convolution", "gather"):
        return p.MONOIDS.index("add")  # a gather's shards each deliver the rows they hold, zero elsewhere
    if kind not in ("reduce", "scatter", "reduce_window", "select_and_scatter"):
        return 0
    region = operation.regions[1 if kind == "select_and_scatter" else 0]
    return p.MONOIDS.index(narrowing.body_monoid(region) or "none")


def _elements(shape: tuple[int, ...]) -> float:
    return float(np.prod(shape, dtype=np.float64))


def flops(kind: str, operation: Any, rule: rules.Rule, results: list[Tensor]) -> float:
    """Floating point operations of a matmul or convolution, 0 for every other op."""
    if kind in ("dot_general", "dot"):
        return 2.0 * _elements(tuple(rule.sizes))
    if kind == "chlo.ragged_dot":  # each row of the left side meets one group of the right side
        left, right = (tensor(o.type).shape for o in list(operation.operands)[:2])
        used = set(own_rules.ragged_dims(operation, "rhs_group_dimensions"))
        for name in ("batching", "contracting"):
            used.update(own_rules.ragged_dims(operation, f"rhs_{name}_dimensions"))
        return 2.0 * _elements(left) * _elements(tuple(size for d, size in enumerate(right) if d not in used))
    if kind in ("convolution", "dynamic_conv"):
        kernel = tensor(operation.operands[1].type).shape
        match = re.search(r"x\[([^\]]*)\]->", str(operation.attributes["dimension_numbers"]))
        output_features = kernel[[t.strip() for t in match.group(1).split(",")].index("o")] if match else 1
        return 2.0 * _elements(results[0].shape) * _elements(kernel) / max(1, output_features)
    return 0.0


_DETAIL_KEYS = {
    "transpose": ("permutation",),
    "broadcast_in_dim": ("broadcast_dimensions",),
    "reduce": ("dimensions",),
    "concatenate": ("dimension",),
    "iota": ("iota_dimension",),
    "custom_call": ("call_target_name",),
    "compare": ("comparison_direction",),
}


_SPLAT = re.compile(r"^dense<([^<>\[\]\"]+)> : ")


# MLIR prints what has no decimal form as bits: infinities and the usual NaN of f64, f32, bf16 and f16.
_BITS = {
    **dict.fromkeys(("0xFFF0000000000000", "0xFF800000", "0xFF80", "0xFC00"), "-inf"),
    **dict.fromkeys(("0x7FF0000000000000", "0x7F800000", "0x7F80", "0x7C00"), "inf"),
    **dict.fromkeys(("0x7FF8000000000000", "0x7FC00000", "0x7FC0", "0x7E00"), "nan"),
}


def _literal(attribute: str) -> str:
    """The value of a constant whose elements are all alike, as people write it; empty otherwise."""
    match = _SPLAT.match(attribute)
    if not match:
        return ""
    text = _BITS.get(match.group(1), match.group(1))
    if text in ("true", "false") or text.startswith("0x"):
        return text
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def _slice_detail(operation: Any) -> str:
    """The dims that a slice cuts, as ``dim:start:limit``, with the stride where it is not 1."""
    starts, limits, strides = (
        [int(t) for t in re.findall(r"-?\d+", str(operation.attributes[key]).split(":", 1)[-1])]
        for key in ("start_indices", "limit_indices", "strides")
    )
    shape = tensor(operation.operands[0].type).shape
    return ",".join(
        f"{d}:{start}:{limit}" + (f":{stride}" if stride != 1 else "")
        for d, (start, limit, stride, size) in enumerate(zip(starts, limits, strides, shape, strict=True))
        if (start, limit, stride) != (0, size, 1)
    )


def _precision(operation: Any) -> str:
    """``high`` or ``highest`` if a matrix product asks for more than its default precision."""
    key = "precision_config"
    asked = re.findall(r"\b(HIGHEST|HIGH)\b", str(operation.attributes[key])) if key in operation.attributes else []
    return max(asked, key=len).lower() if asked else ""


def detail(kind: str, operation: Any) -> str:
    """The attributes that matter to people, as listings print them behind the op."""
    parts = []
    if kind == "constant":
        return _literal(_jaxlib.constant_text(operation))
    if kind == "convert":
        return tensor(operation.results[0].type).element
    if kind == "slice":
        return _slice_detail(operation)
    if kind in ("dot_general", "convolution"):
        return _precision(operation)
    for key in _DETAIL_KEYS.get(kind, ()):
        if key in operation.attributes:
            raw = str(operation.attributes[key])
            clean = re.sub(r"^array<i64:? ?(.*)>$", r"\1", raw)
            clean = re.sub(r"^(.*) : i64$", r"\1", clean)
            clean = re.sub(r"^#stablehlo<\w+ (\w+)>$", r"\1", clean)
            parts.append(clean.strip('"'))
    if kind == "reduce":
        parts.append(p.MONOIDS[monoid(kind, operation)])
    return ",".join(parts)
