"""Read an op's attributes and types: element types, FLOPs, the details that listings print.

``op_kinds`` assigns the functions to kinds of ops. jaxlib is imported only where an op is read, see
``own_rules``.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from toast_lab.errors import FrontendError
from toast_lab.ir import own_rules
from toast_lab.ir.own_rules import Rule

_ITEMSIZE = {
    "i1": 1,
    "bf16": 2,
    "f16": 2,
    "f32": 4,
    "f64": 8,
    "complex<f32>": 8,
    "complex<f64>": 16,
}


@functools.lru_cache(maxsize=4096)
def itemsize(element: str) -> int:
    """Bytes of one element of a StableHLO element type; types below a byte count as one."""
    if element in _ITEMSIZE:
        return _ITEMSIZE[element]
    digits = re.match(r"[a-z]+(\d+)", element)
    return max(1, int(digits.group(1)) // 8) if digits else 1


class TensorType(NamedTuple):
    """Shape and element type of one MLIR value."""

    shape: tuple[int, ...]
    element: str


def tensor(mlir_type: Any) -> TensorType:
    """Read an MLIR type; non-tensors have rank 0. Raises FrontendError on dynamic shapes."""
    from toast_lab._jaxlib import ir

    if not isinstance(mlir_type, ir.RankedTensorType):
        return TensorType((), str(mlir_type))  # tokens and tuples: nothing to shard
    if not mlir_type.has_static_shape:
        raise FrontendError(f"dynamic shape {mlir_type}: export the model with fixed sizes")
    return TensorType(tuple(mlir_type.shape), str(mlir_type.element_type))


def _elements(shape: tuple[int, ...]) -> float:
    return float(np.prod(shape, dtype=np.float64))


def dot_flops(op: Any, rule: Rule, results: list[TensorType]) -> float:
    """One multiplication and one addition for each combination of the factors."""
    return 2.0 * _elements(tuple(rule.sizes))


def ragged_dot_flops(op: Any, rule: Rule, results: list[TensorType]) -> float:
    """FLOPs if each row of the left operand is multiplied by one group of the right operand."""
    left, right = (tensor(operand.type).shape for operand in list(op.operands)[:2])
    dims_not_free = set(own_rules.ragged_dims(op, "rhs_group_dimensions"))
    for name in ("batching", "contracting"):
        dims_not_free.update(own_rules.ragged_dims(op, f"rhs_{name}_dimensions"))
    free_sizes = tuple(size for dim, size in enumerate(right) if dim not in dims_not_free)
    return 2.0 * _elements(left) * _elements(free_sizes)


#: ``Program.detail`` of ragged products whose ragged dim is contracted, or in the batch
RAGGED_CONTRACTION, RAGGED_BATCH = "ragged contraction", "ragged batch"


def ragged_dot_detail(op: Any, monoid: str) -> str:
    """Where the ragged dim of a product is not one of the rows: contracted, or in the batch."""
    ragged = set(own_rules.ragged_dims(op, "lhs_ragged_dimensions"))
    if ragged & set(own_rules.ragged_dims(op, "lhs_contracting_dimensions")):
        return RAGGED_CONTRACTION
    batch = set(own_rules.ragged_dims(op, "lhs_batching_dimensions"))
    return RAGGED_BATCH if ragged & batch else ""


def fourier_flops(op: Any, rule: Rule, results: list[TensorType]) -> float:
    """FLOPs of a fast transform: 5 per element and doubling of the length, the usual count."""
    lengths = [int(length) for length in op.attributes["fft_length"]]
    elements = max(_elements(tensor(op.operands[0].type).shape), _elements(results[0].shape))
    return 5.0 * elements * sum(math.log2(length) for length in lengths if length > 1)


def convolution_flops(op: Any, rule: Rule, results: list[TensorType]) -> float:
    """One multiplication and one addition per result element and kernel element that it reads."""
    kernel = tensor(op.operands[1].type).shape
    _, labels, _ = own_rules.convolution_labels(op)
    output_features = kernel[labels.index("o")]
    return 2.0 * _elements(results[0].shape) * _elements(kernel) / max(1, output_features)


# MLIR prints numbers that have no decimal form as bits: infinities and the usual NaN of f64, f32,
# bf16 and f16.
_BITS = {
    **dict.fromkeys(("0xFFF0000000000000", "0xFF800000", "0xFF80", "0xFC00"), "-inf"),
    **dict.fromkeys(("0x7FF0000000000000", "0x7F800000", "0x7F80", "0x7C00"), "inf"),
    **dict.fromkeys(("0x7FF8000000000000", "0x7FC00000", "0x7FC0", "0x7E00"), "nan"),
}


def _literal(attribute: str) -> str:
    """The one value of a constant whose elements are all equal, in decimal; empty otherwise."""
    match = own_rules.SPLAT.match(attribute)
    if not match:
        return ""
    decimal = _BITS.get(match.group(1), match.group(1))
    try:
        return f"{float(decimal):g}"
    except ValueError:
        return decimal


def slice_detail(operation: Any, monoid: str) -> str:
    """The dims that a slice cuts, as ``dim:start:limit``, with the stride if it is not 1."""
    cuts = zip(
        *(own_rules.ints(operation, key) or () for key in _SLICE_KEYS),
        tensor(operation.operands[0].type).shape,
        strict=True,
    )
    return ",".join(
        f"{dim}:{start}:{limit}" + (f":{stride}" if stride != 1 else "")
        for dim, (start, limit, stride, size) in enumerate(cuts)
        if (start, limit, stride) != (0, size, 1)
    )


_SLICE_KEYS = ("start_indices", "limit_indices", "strides")


def precision(operation: Any, monoid: str) -> str:
    """``high`` or ``highest`` if a matrix product asks for more than its default precision."""
    precisions = "".join(_attribute_texts(operation, "precision_config"))
    return max(re.findall(r"\b(?:HIGHEST|HIGH)\b", precisions), key=len, default="").lower()


def constant_detail(operation: Any, monoid: str) -> str:
    """The number that all elements of a constant are equal to, empty if they differ."""
    from toast_lab._jaxlib import constant_text

    return _literal(constant_text(operation))


def convert_detail(operation: Any, monoid: str) -> str:
    """The element type that a ``convert`` converts to."""
    return tensor(operation.results[0].type).element


def reduce_detail(operation: Any, monoid: str) -> str:
    """The dims that a reduction reduces, and its monoid: ``1,add``."""
    return ",".join([*_attribute_texts(operation, "dimensions"), monoid])


def detail_of(key: str) -> Callable[[Any, str], str]:
    """A function that gives the text of an op's attribute ``key``, empty if there is none."""

    def detail(operation: Any, monoid: str) -> str:
        return "".join(_attribute_texts(operation, key))

    return detail


def _attribute_texts(operation: Any, key: str) -> list[str]:
    """A list with the text of an attribute, without MLIR's decoration; empty if there is none."""
    if key not in operation.attributes:
        return []
    printed = str(operation.attributes[key])
    match = re.match(r"^array<i64:? ?(.*)>$|^(.*) : i64$|^#stablehlo<\w+ (\w+)>$", printed)
    undecorated = printed if match is None else match.group(match.lastindex or 0)
    return [undecorated.strip('"')]
