"""Made-up inputs for a program: reproducible from a seed, good enough to compare two executions.

* Floats are normal; matrices are scaled so that values neither explode nor vanish in a matmul.
* Integers that index (embedding tokens, gather and scatter indices) stay below the dim that they
  index, so that no row is out of bounds; other integers are 0 or 1.
* Start indices of dynamic slices keep the slice inside the operand.
* Unsigned integers that index nothing take all values: they are mostly random keys.
* Floats whose root or logarithm is taken are positive: an Adam step divides by the root of its
  second moment. So are divisors, and floats that are summed or multiplied to make one: a sum of
  both signs comes near zero somewhere, and the quotient is then mostly rounding.

If a program still gives infinities or NaN, ``draw(..., non_negative=True)`` may help.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from toast_lab.errors import InvalidProblem, UnsupportedOp, join_offenders
from toast_lab.ir.model import Padding
from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.program import CONTROL, PASS, Program

Shape = tuple[int, ...]
_NUMPY = {"i1": "bool_", "complex<f32>": "complex64", "complex<f64>": "complex128"}
_PREFIXES = {"bf": "bfloat", "f": "float", "ui": "uint", "i": "int"}


def dtype_of(element: str) -> np.dtype[Any]:
    """The numpy dtype of a StableHLO element type; bfloat16, float8 and int4 come from ml_dtypes.

    Raises:
        UnsupportedOp: no array can have this type, for instance a token.
    """
    import ml_dtypes

    name = _NUMPY.get(element, "")
    if not name and (spelled := re.fullmatch(r"(bf|f|ui|i)(\d\w*)", element)):
        name = _PREFIXES[spelled[1]] + spelled[2].lower().replace("e", "_e", 1)
    for source in (np, ml_dtypes):
        if hasattr(source, name):
            return np.dtype(getattr(source, name))
    raise UnsupportedOp(f"no array has element type {element}")


def draw(
    program: Program,
    seed: int = 0,
    *,
    non_negative: bool = False,
    shapes: Sequence[Shape] | None = None,
    padding: Padding | None = None,
) -> list[np.ndarray]:
    """One global, unsharded array for each argument of ``program``.

    Args:
        program: gives the shapes and types of the arguments, and the bounds of those that index.
        seed: the same seed gives the same arrays.
        non_negative: take absolute values of the floats.
        shapes: use these shapes instead of the arguments', such as those of one shard; the numbers
            then differ.
        padding: of the program; it holds zeros, and nothing indexes it.

    Raises:
        UnsupportedOp: an argument is not an array.
    """
    bounds = index_bounds(program)
    if padding is not None:
        size_of = {padded: size for _, _, size, padded in padding.starts}
        bounds = {argument: size_of.get(bound, bound) for argument, bound in bounds.items()}
    positive = under_roots(program) | under_fractions(program)
    arrays = []
    for argument in range(program.n_arguments):
        random = np.random.default_rng([seed, argument])
        dtype = dtype_of(program.value_dtype[argument])
        shape = program.dims(argument) if shapes is None else shapes[argument]
        array = _draw_one(random, shape, dtype, bounds.get(argument))
        if _is_float(dtype) and argument in positive:
            array = _off_zero(array)
        for dim, runs, size, padded in () if padding is None else padding.arguments[argument]:
            is_real = np.arange(runs * padded) % padded < size
            array = array * np.moveaxis(is_real[(...,) + (None,) * (array.ndim - 1)], 0, dim)
        arrays.append(np.abs(array) if non_negative and _is_float(dtype) else array)
    return arrays


def check(program: Program, arrays: Sequence[Any]) -> list[np.ndarray]:
    """The user's arrays as numpy arrays of the program's types.

    Raises:
        InvalidProblem: wrong number, shapes or types of arrays (all wrong ones are listed).
    """
    if len(arrays) != program.n_arguments:
        raise InvalidProblem(
            f"{program.name} takes {program.n_arguments} arrays, but {len(arrays)} are given. "
            "Flatten the arguments as jax.tree.leaves does."
        )
    checked, offenders = [], []
    for argument, array in enumerate(arrays):
        dtype, shape = dtype_of(program.value_dtype[argument]), program.dims(argument)
        array = np.asarray(array)
        if array.shape != shape or array.dtype != dtype:
            offenders.append(
                f"{program.value_name[argument]}: {array.dtype}{list(array.shape)} instead of "
                f"{dtype}{list(shape)}"
            )
        checked.append(array)
    if offenders:
        raise InvalidProblem(f"inputs do not fit {program.name}:\n{join_offenders(offenders)}")
    return checked


def index_bounds(program: Program) -> dict[int, int]:
    """For each integer argument that reaches an index operand: the smallest dim that it indexes.

    Integers are followed from the arguments through every op with an integer result, up to the
    index operands of a gather, scatter, dynamic_slice or dynamic_update_slice. For slices, the
    number of valid start positions counts instead of the dim.
    """
    reaches: list[frozenset[int]] = [frozenset()] * program.n_values
    for argument in range(program.n_arguments):
        if _is_integer_type(program.value_dtype[argument]):
            reaches[argument] = frozenset([argument])
    bounds: dict[int, int] = {}
    total = -1
    # A loop's results flow back into its body, so repeat until nothing changes
    while total != (total := sum(map(len, reaches))):
        _follow_indices(program, reaches, bounds)
        if not program.regions:
            break
    return bounds


def _follow_indices(
    program: Program, reaches: list[frozenset[int]], bounds: dict[int, int]
) -> None:
    for op in program.ops():
        operands = program.operands(op)
        limits: list[tuple[int, int]] = []
        if op_kind(program.kind[op]).looks_up and operands:
            index = 1 if program.kind[op] == "gather" else (len(operands) - 1) // 2
            limits = [(operands[index], _indexed_size(program, op, index))]
        for value, size in (*limits, *_start_bounds(program, op, operands)):
            for argument in reaches[value]:
                bounds[argument] = min(bounds.get(argument, size), size)
        carried = frozenset[int]().union(*(reaches[value] for value in operands))
        for value in _result_values(program, op):
            if carried and _is_integer_type(program.value_dtype[value]):
                reaches[value] |= carried


def _result_values(program: Program, op: int) -> list[int]:
    """Results of an op; for a pseudo-op of a loop or conditional, all values that alias them."""
    owner = int(program.owner[op])
    if program.op_class[op] != CONTROL:
        return list(program.results(op))
    return _carried_values(program).get(owner, [])


@functools.lru_cache(maxsize=4)
def _carried_values(program: Program) -> dict[int, list[int]]:
    """Results of pseudo-ops, by the op whose factors they share.

    The values of one op are the same value of a loop or conditional, at its entry, in its body and
    at its exit.
    """
    values_of: dict[int, list[int]] = {}
    for op in program.ops():
        if program.op_class[op] == CONTROL:
            values_of.setdefault(int(program.owner[op]), []).extend(program.results(op))
    return values_of


def _start_bounds(program: Program, op: int, operands: list[int]) -> list[tuple[int, int]]:
    """(start index value, number of start positions) of the dims that a dynamic slice cuts.

    The positions are those at which the slice lies inside its operand.
    """
    facts = op_kind(program.kind[op])
    if facts.first_start < 0:
        return []
    window_value = (
        program.results(op)[0] if facts.update_operand < 0 else operands[facts.update_operand]
    )
    window = program.dims(window_value)
    operand_dims = program.dims(operands[0])
    # A dim that is taken whole has a single start position, which must not bound an index that it
    # shares with other dims.
    return [
        (start, extent - length + 1)
        for start, extent, length in zip(
            operands[facts.first_start :], operand_dims, window, strict=True
        )
        if extent > length
    ]


def under_roots(program: Program) -> frozenset[int]:
    """Arguments whose root or logarithm is taken.

    They may be scaled by scalars and added to other values first.

    They are traced backwards through ops that keep the sign, and through products and quotients
    with a scalar. A product of two tensors ends the trace, for it is most often a square.
    """
    return _leading_to(program, _into_roots)


def under_fractions(program: Program) -> frozenset[int]:
    """Arguments that are divisors, directly or after sums and products.

    They are traced backwards through ops that keep the sign, and through products of two different
    values. A product of a value with itself is a square, and ``under_roots`` deals with its root.
    """
    return _leading_to(program, _into_fractions)


def _leading_to(
    program: Program, add_operands: Callable[[Program, set[int]], None]
) -> frozenset[int]:
    """Arguments among the values that ``follow`` adds; it is called until it adds no more."""
    positive_values: set[int] = set()
    count = -1
    while count != (count := len(positive_values)):
        add_operands(program, positive_values)
        # Only loops feed values back to ops that were visited already
        if not program.regions:
            break
    return frozenset(value for value in positive_values if value < program.n_arguments)


def _into_roots(program: Program, positive_values: set[int]) -> None:
    for op in reversed(range(program.n_arguments, program.n_ops)):
        operands = program.operands(op)
        facts = op_kind(program.kind[op])
        if not facts.needs_positive and positive_values.isdisjoint(_result_values(program, op)):
            continue
        if facts.needs_positive or facts.keeps_sign:
            positive_values.update(operands)
        for position in facts.linear_in:
            if _is_scalar(program, operands[1 - position]):
                positive_values.add(operands[position])


def _into_fractions(program: Program, positive_values: set[int]) -> None:
    for op in reversed(range(program.n_arguments, program.n_ops)):
        operands = program.operands(op)
        facts = op_kind(program.kind[op])
        if facts.divides_by >= 0:
            positive_values.add(operands[facts.divides_by])
        if positive_values.isdisjoint(_result_values(program, op)):
            continue
        if facts.keeps_sign or (facts.multiplies and len(set(operands)) > 1):
            positive_values.update(operands)


def _is_scalar(program: Program, value: int) -> bool:
    """Is this value a single number, possibly broadcast, or computed from constants?"""
    while not program.value_is_constant[value] and program.dims(value):
        op = int(program.value_op[value])
        if not op_kind(program.kind[op]).keeps_number:
            return False
        value = program.operands(op)[0]
    return True


def _indexed_size(program: Program, op: int, index: int) -> int:
    """Smallest dim of operand 0 that a gather or scatter indexes.

    Indexed dims are those that do not pass through to the slices.
    """
    first_use = int(program.use_ptr[op])
    # A gather's result and a scatter's updates have the shape of the slices.
    slices = (
        program.def_names(program.results(op)[0])
        if program.kind[op] == "gather"
        else program.use_names(first_use + index + 1)
    )
    sizes = [
        size
        for size, name in zip(
            program.dims(program.operands(op)[0]), program.use_names(first_use), strict=True
        )
        if size > 1 and (name not in slices or program.factor_class[name] != PASS)
    ]
    return min(sizes, default=1)


def _draw_one(
    random: np.random.Generator, shape: Shape, dtype: np.dtype[Any], bound: int | None
) -> np.ndarray:
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(bool)
    if dtype.kind == "c":
        return (_normal(random, shape) + 1j * _normal(random, shape)).astype(dtype)
    if _is_float(dtype):
        return np.asarray(_normal(random, shape)).astype(dtype)
    if bound is None and dtype.kind == "u":
        return random.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)
    return np.asarray(random.integers(0, bound or 2, shape)).astype(dtype)


def _off_zero(array: np.ndarray) -> np.ndarray:
    """Absolute values plus their mean.

    A quotient by the root of a number near zero would be mostly rounding.
    """
    absolute = np.abs(array.astype(np.float64))
    return np.asarray(absolute + (absolute.mean() if absolute.size else 0.0)).astype(array.dtype)


def _normal(random: np.random.Generator, shape: Shape) -> np.ndarray:
    """Normal floats; from rank 2 on, of deviation 1/sqrt(n) for an n x n matrix of equal size."""
    size = int(np.prod(shape, dtype=np.int64))
    scale = max(size, 1) ** -0.25 if len(shape) > 1 else 0.5
    return random.standard_normal(shape) * scale


def _is_float(dtype: np.dtype[Any]) -> bool:
    # Floats and integers of ml_dtypes are both of NumPy kind "V" or "f": tell them by name.
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def _is_integer_type(element: str) -> bool:
    return element[:1] in ("i", "u") and element != "i1"
