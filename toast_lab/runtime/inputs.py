"""Made-up inputs for a program: the same for the same seed, good enough to compare two executions.

* Floats are normal; matrices are scaled so that a matmul neither blows values up nor lets them die.
* Integers that index (embedding tokens, gather and scatter indices) stay below the dim that they
  index, so that no row is out of bounds; other integers are 0 or 1.
* Start indices of dynamic slices stay where the slice lies inside the operand.
* Unsigned integers that index nothing take all values: they are mostly random keys.
* Floats of which a root or logarithm is taken are above zero: an Adam step divides by the root of
  its second moment.  So are floats that divide, or that are summed and multiplied to what does: a
  sum of both signs comes near zero somewhere, and its quotient is mostly rounding.

What still gives infinities or NaN may do better with ``draw(..., non_negative=True)``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from toast_lab.errors import InvalidProblem, UnsupportedOp, join_offenders
from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.program import CONTROL, PASS, Program

Shape = tuple[int, ...]
_NUMPY = {"i1": "bool_", "complex<f32>": "complex64", "complex<f64>": "complex128"}
_PREFIXES = {"bf": "bfloat", "f": "float", "ui": "uint", "i": "int"}


def dtype_of(element: str) -> np.dtype[Any]:
    """The numpy dtype of a StableHLO element type; bfloat16, float8 and int4 come from ml_dtypes.

    Raises:
        UnsupportedOp: no array can have this type, a token for instance.
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
) -> list[np.ndarray]:
    """One array for each argument of ``program``, whole and unsharded.

    Args:
        program: its argument shapes and types are used, and what its gathers and scatters index.
        seed: the same seed gives the same arrays.
        non_negative: absolute values of the same floats.
        shapes: make arrays of these shapes instead, such as those of one shard; the numbers are
            others then.

    Raises:
        UnsupportedOp: an argument is no array.
    """
    bounds, positive = index_bounds(program), under_roots(program) | under_fractions(program)
    arrays = []
    for argument in range(program.n_arguments):
        random = np.random.default_rng([seed, argument])
        dtype = dtype_of(program.value_dtype[argument])
        shape = program.dims(argument) if shapes is None else shapes[argument]
        array = _draw_one(random, shape, dtype, bounds.get(argument))
        if _is_float(dtype) and argument in positive:
            array = _off_zero(array)
        arrays.append(np.abs(array) if non_negative and _is_float(dtype) else array)
    return arrays


def check(program: Program, arrays: Sequence[Any]) -> list[np.ndarray]:
    """The user's arrays as numpy arrays of the program's types.

    Raises:
        InvalidProblem: wrong number, shapes or types (all are listed).
    """
    if len(arrays) != program.n_arguments:
        raise InvalidProblem(
            f"{program.name} takes {program.n_arguments} arrays, {len(arrays)} are given. Flatten "
            "the arguments as jax.tree.leaves does."
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
    """For each integer argument that ends up indexing: the smallest dim that it indexes.

    Integers are followed from the arguments through every op whose result is an integer too, up to
    the index operands of a gather, scatter, dynamic_slice or dynamic_update_slice.
    """
    reaches: list[frozenset[int]] = [frozenset()] * program.n_values
    for argument in range(program.n_arguments):
        if _is_integer_type(program.value_dtype[argument]):
            reaches[argument] = frozenset([argument])
    bounds: dict[int, int] = {}
    total = -1
    # What a round returns is what the next one starts with
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
        for value in _given(program, op):
            if carried and _is_integer_type(program.value_dtype[value]):
                reaches[value] |= carried


def _given(program: Program, op: int) -> list[int]:
    """What an op gives.

    A pseudo-op of a loop or conditional gives all values that hold what it hands on.
    """
    owner = int(program.owner[op])
    if program.op_class[op] != CONTROL:
        return list(program.results(op))
    return _handed_on(program).get(owner, [])


@functools.lru_cache(maxsize=4)
def _handed_on(program: Program) -> dict[int, list[int]]:
    """Values of pseudo-ops by the op whose factors they share.

    Together they are one value of a loop or conditional, seen from all sides.
    """
    values_of: dict[int, list[int]] = {}
    for op in program.ops():
        if program.op_class[op] == CONTROL:
            values_of.setdefault(int(program.owner[op]), []).extend(program.results(op))
    return values_of


def _start_bounds(program: Program, op: int, operands: list[int]) -> list[tuple[int, int]]:
    """(start index value, number of places) of the dims that a dynamic slice cuts.

    The places are those at which the slice lies inside.
    """
    facts = op_kind(program.kind[op])
    if facts.first_start < 0:
        return []
    piece = program.results(op)[0] if facts.brings < 0 else operands[facts.brings]
    window = program.dims(piece)
    whole = program.dims(operands[0])
    # A dim that is taken whole has one place only, and must not force the same on an index shared
    # with others.
    return [
        (start, extent - length + 1)
        for start, extent, length in zip(operands[facts.first_start :], whole, window, strict=True)
        if extent > length
    ]


def under_roots(program: Program) -> frozenset[int]:
    """Arguments that a root or logarithm takes.

    They may have been scaled by scalars and had other things added.

    Followed backwards: through ops that keep a sign, and through products and quotients with a
    scalar.  A product of two tensors ends the way, for it is most often a square.
    """
    return _leading_to(program, _into_roots)


def under_fractions(program: Program) -> frozenset[int]:
    """Arguments that something is divided by, as they are or summed and multiplied.

    Followed backwards: through ops that keep a sign, and through products of two different values.
    What is the same on both sides is a square, and a root was seen to by ``under_roots``.
    """
    return _leading_to(program, _into_fractions)


def _leading_to(program: Program, follow: Callable[[Program, set[int]], None]) -> frozenset[int]:
    """Arguments among what ``follow`` adds, which is called until it adds no more."""
    positive: set[int] = set()
    count = -1
    while count != (count := len(positive)):
        follow(program, positive)
        # Only a loop hands back what was followed already
        if not program.regions:
            break
    return frozenset(value for value in positive if value < program.n_arguments)


def _into_roots(program: Program, positive: set[int]) -> None:
    for op in reversed(range(program.n_arguments, program.n_ops)):
        operands = program.operands(op)
        facts = op_kind(program.kind[op])
        if not facts.needs_positive and positive.isdisjoint(_given(program, op)):
            continue
        if facts.needs_positive or facts.keeps_sign:
            positive.update(operands)
        for position in facts.linear_in:
            if _is_scalar(program, operands[1 - position]):
                positive.add(operands[position])


def _into_fractions(program: Program, positive: set[int]) -> None:
    for op in reversed(range(program.n_arguments, program.n_ops)):
        operands = program.operands(op)
        facts = op_kind(program.kind[op])
        if facts.divides_by >= 0:
            positive.add(operands[facts.divides_by])
        if positive.isdisjoint(_given(program, op)):
            continue
        if facts.keeps_sign or (facts.multiplies and len(set(operands)) > 1):
            positive.update(operands)


def _is_scalar(program: Program, value: int) -> bool:
    """Is this one number, possibly spread out, or made of constants?"""
    while not program.value_is_constant[value] and program.dims(value):
        op = int(program.value_op[value])
        if not op_kind(program.kind[op]).keeps_number:
            return False
        value = program.operands(op)[0]
    return True


def _indexed_size(program: Program, op: int, index: int) -> int:
    """Smallest dim of operand 0 that the op looks up.

    Such a dim does not pass through to the slices.
    """
    first = int(program.use_ptr[op])
    # What a gather takes out of its operand, and what a scatter puts in, is shaped like the slices.
    slices = (
        program.def_names(program.results(op)[0])
        if program.kind[op] == "gather"
        else program.use_names(first + index + 1)
    )
    sizes = [
        size
        for size, name in zip(
            program.dims(program.operands(op)[0]), program.use_names(first), strict=True
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
    """Absolute values, raised by their mean.

    What is divided by the root of nearly nothing is mostly rounding.
    """
    wide = np.abs(array.astype(np.float64))
    return np.asarray(wide + (wide.mean() if wide.size else 0.0)).astype(array.dtype)


def _normal(random: np.random.Generator, shape: Shape) -> np.ndarray:
    """Normal floats; from rank 2 on the deviation is 1/sqrt(side) of the square of equal size."""
    size = int(np.prod(shape, dtype=np.int64))
    scale = max(size, 1) ** -0.25 if len(shape) > 1 else 0.5
    return random.standard_normal(shape) * scale


def _is_float(dtype: np.dtype[Any]) -> bool:
    # ml_dtypes' floats are of numpy kind "V" or "f", its integers too: tell them by name.
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def _is_integer_type(element: str) -> bool:
    return element[:1] in ("i", "u") and element != "i1"
