"""The integers in tensors that are computed from constants and iota, as far as they are known.

A tensor of indices is often known in part: its first column is the position along the batch, its
second one comes from an argument. So every element is either known or not. The ops that JAX puts
around indices (``select(i < 0, i + n, i)``, clamps, casts, broadcasts, concatenations) are
evaluated with NumPy.

Start reading at ``KnownNumbers``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab._jaxlib import ir
from toast_lab.ir.own_rules import ints

_MOST_ELEMENTS = 1 << 22  # a tensor that needs more of them counts as unknown


class Numbers(NamedTuple):
    """The elements of a tensor; both arrays have its rank, and size 1 where elements are alike."""

    numbers: np.ndarray
    known: np.ndarray  #: bool; the number of an unknown element means nothing


class KnownNumbers:
    """Evaluates tensors of a module when they are asked for, each once."""

    def __init__(self) -> None:
        self._numbers: dict[Any, Numbers] = {}

    def of(self, value: Any) -> Numbers:
        """What is known of ``value``, a ranked tensor."""
        pending = [value]
        while pending:  # no recursion, since chains of ops may be long
            current = pending[-1]
            operands = _operands(current)
            unevaluated = [operand for operand in operands if operand not in self._numbers]
            if current in self._numbers or not unevaluated:
                pending.pop()
            if current not in self._numbers and not unevaluated:
                self._numbers[current] = _evaluate(current, [self._numbers[o] for o in operands])
            elif current not in self._numbers:
                pending.extend(unevaluated)
        return self._numbers[value]


def _operands(value: Any) -> list[Any]:
    """The values that ``value`` is evaluated from, none if it is not evaluated."""
    if isinstance(value, ir.BlockArgument):
        return []
    operation = value.owner
    if operation.name in _PASSED_ON:
        return [operation.operands[ir.OpResult(value).result_number]]
    return list(operation.operands) if operation.name in _EVALUATED else []


def _evaluate(value: Any, operands: Sequence[Numbers]) -> Numbers:
    unknown = Numbers(*(np.zeros((1,) * len(value.type.shape), dtype) for dtype in (int, bool)))
    dtype = _DTYPES.get(str(value.type.element_type))
    if isinstance(value, ir.BlockArgument) or dtype is None or 0 in value.type.shape:
        return unknown
    operation = value.owner
    if operation.name in _PASSED_ON:
        return operands[0]
    evaluate = _EVALUATED.get(operation.name)
    if evaluate is None or not all(map(_is_small, operands)):
        return unknown
    with np.errstate(all="ignore"):
        numbers = evaluate(operation, operands)
    if numbers is None or not _is_small(numbers):
        return unknown
    return Numbers(numbers.numbers.astype(dtype, copy=False), numbers.known)


def _is_small(numbers: Numbers) -> bool:
    return bool(numbers.numbers.size <= _MOST_ELEMENTS)


# -- ops -------------------------------------------------------------------------------------------


def _constant(operation: Any, operands: Sequence[Numbers]) -> Numbers | None:
    attribute, shape = operation.attributes["value"], operation.results[0].type.shape
    if not isinstance(attribute, ir.DenseIntElementsAttr):
        return None
    array = np.asarray(attribute)
    if attribute.is_splat:
        array = array[(slice(1),) * len(shape)]
    return _all_known(array.copy()) if array.size <= _MOST_ELEMENTS else None


def _iota(operation: Any, operands: Sequence[Numbers]) -> Numbers | None:
    shape = operation.results[0].type.shape
    dim = ir.IntegerAttr(operation.attributes["iota_dimension"]).value
    if shape[dim] > _MOST_ELEMENTS:
        return None
    return _all_known(
        np.arange(shape[dim]).reshape([-1 if i == dim else 1 for i in range(len(shape))])
    )


def _all_known(numbers: np.ndarray) -> Numbers:
    return Numbers(numbers, np.ones((1,) * numbers.ndim, bool))


def _select(operation: Any, operands: Sequence[Numbers]) -> Numbers:
    """An element is known if it is known which operand it comes from, and that operand's is."""
    predicate, on_true, on_false = operands
    known = np.where(predicate.numbers, on_true.known, on_false.known)
    return Numbers(
        np.where(predicate.numbers, on_true.numbers, on_false.numbers), predicate.known & known
    )


def _compare(operation: Any, operands: Sequence[Numbers]) -> Numbers:
    direction = str(operation.attributes["comparison_direction"]).rstrip(">").split()[-1]
    return _elementwise(_COMPARISONS[direction])(operation, operands)


def _elementwise(compute: Callable[..., np.ndarray]) -> Callable[..., Numbers]:
    def evaluate(operation: Any, operands: Sequence[Numbers]) -> Numbers:
        known = operands[0].known
        for operand in operands[1:]:
            known = known & operand.known
        return Numbers(compute(*(operand.numbers for operand in operands)), known)

    return evaluate


def _rearranged(rearrange: Callable[[Any, np.ndarray], np.ndarray]) -> Callable[..., Numbers]:
    """The evaluation of an op that puts the elements of its operand elsewhere."""

    def evaluate(operation: Any, operands: Sequence[Numbers]) -> Numbers:
        (operand,) = operands
        return Numbers(rearrange(operation, operand.numbers), rearrange(operation, operand.known))

    return evaluate


def _broadcast(operation: Any, array: np.ndarray) -> np.ndarray:
    shape = [1] * len(operation.results[0].type.shape)
    dims = ints(operation, "broadcast_dimensions") or []
    for dim, size in zip(dims, array.shape, strict=True):
        shape[dim] = size
    # The operand's dims may come in another order than the result's.
    return array.transpose(np.argsort(dims)).reshape(shape) if dims else array.reshape(shape)


def _reshape(operation: Any, array: np.ndarray) -> np.ndarray:
    shape = tuple(operation.results[0].type.shape)
    if array.size == 1:
        return array.reshape((1,) * len(shape))
    return np.broadcast_to(array, tuple(operation.operands[0].type.shape)).reshape(shape)


def _slice(operation: Any, array: np.ndarray) -> np.ndarray:
    bounds = (ints(operation, key) or [] for key in ("start_indices", "limit_indices", "strides"))
    return array[
        tuple(
            slice(None) if size == 1 else slice(*dim_bounds)
            for size, dim_bounds in zip(array.shape, zip(*bounds, strict=True), strict=True)
        )
    ]


def _transpose(operation: Any, array: np.ndarray) -> np.ndarray:
    return array.transpose(ints(operation, "permutation") or ())


def _concatenate(operation: Any, operands: Sequence[Numbers]) -> Numbers | None:
    dim = ir.IntegerAttr(operation.attributes["dimension"]).value
    arrays = [array for operand in operands for array in operand]
    shape = list(np.broadcast_shapes(*([*a.shape[:dim], 1, *a.shape[dim + 1 :]] for a in arrays)))
    if np.prod(shape) * operation.results[0].type.shape[dim] > _MOST_ELEMENTS:
        return None

    def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
        sizes = [operand.type.shape[dim] for operand in operation.operands]
        return np.concatenate(
            [
                np.broadcast_to(part, [*shape[:dim], size, *shape[dim + 1 :]])
                for part, size in zip(parts, sizes, strict=True)
            ],
            axis=dim,
        )

    return Numbers(joined(arrays[::2]), joined(arrays[1::2]))


_COMPARISONS = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}
_DTYPES = {"i1": bool} | {
    f"{sign}i{bits}": np.dtype(f"{'u' if sign else ''}int{bits}")
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
_PASSED_ON = ("stablehlo.optimization_barrier", "sdy.sharding_constraint")
_EVALUATED: dict[str, Callable[..., Numbers | None]] = {
    f"stablehlo.{kind}": evaluate
    for kind, evaluate in {
        "constant": _constant,
        "iota": _iota,
        "broadcast_in_dim": _rearranged(_broadcast),
        "reshape": _rearranged(_reshape),
        "slice": _rearranged(_slice),
        "transpose": _rearranged(_transpose),
        "concatenate": _concatenate,
        "convert": _elementwise(lambda x: x),
        "select": _select,
        "compare": _compare,
        "clamp": _elementwise(lambda low, x, high: np.minimum(np.maximum(x, low), high)),
        "add": _elementwise(np.add),
        "subtract": _elementwise(np.subtract),
        "multiply": _elementwise(np.multiply),
        "maximum": _elementwise(np.maximum),
        "minimum": _elementwise(np.minimum),
        "and": _elementwise(np.bitwise_and),
        "or": _elementwise(np.bitwise_or),
        "not": _elementwise(np.invert),
        "negate": _elementwise(np.negative),
    }.items()
}
