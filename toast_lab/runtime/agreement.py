"""Does a sharded program compute what the unsharded one does? All tolerances are defined here.

Sharding changes the order of sums and nothing else, so errors are those of rounding. A sum of n
terms in a type whose rounding unit is eps has a relative error of about eps times the square root
of n, and values computed from it inherit that error. Up to 1/eps terms it stays below the square
root of eps: that is the tolerance, for the coarsest floating-point type of the program. Where an op
sums more terms than that in its own type, the tolerance is that op's error, up to
``MAX_TOLERANCE``. Matrix products are left out, since backends sum them in a wider type.

Where large terms nearly cancel, as in the gradient of a softmax, a result inherits the errors of
its terms, which are many times its own. How many is measured: the unsharded program runs once more
on inputs that are ``nudged``, each by one unit in its last place. What changes by more than a
rounding error then may also change when sums are reordered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.program import REDUCTION, Program
from toast_lab.runtime import inputs

MAX_TOLERANCE = 0.25  #: a larger tolerance would pass results that lack half of a sum
NUDGES = 10.0  #: the error that rounding explains, in changes by nudged inputs


def tolerance(program: Program) -> float:
    """Largest relative error of an output that rounding explains.

    It is 0 for a program without floating-point numbers.
    """
    import ml_dtypes

    dtypes = {dtype for dtype in program.value_dtype if dtype.startswith(("f", "bf"))}
    rounding_units = {dtype: float(ml_dtypes.finfo(inputs.dtype_of(dtype)).eps) for dtype in dtypes}
    usual_tolerance = math.sqrt(max(rounding_units.values(), default=0.0))
    summed_sizes = np.where(program.factor_class == REDUCTION, program.factor_size, 1)
    largest = usual_tolerance
    for op in range(program.n_ops):
        factors = program.factors(op)
        term_count = math.prod(summed_sizes[factors.start : factors.stop].tolist())
        results = program.results(op)
        if term_count <= 1 or not results or op_kind(program.kind[op]).sums_wider:
            continue
        rounding_unit = rounding_units.get(program.value_dtype[results[0]], 0.0)
        largest = max(largest, min(MAX_TOLERANCE, rounding_unit * math.sqrt(term_count)))
    return largest


def nudged(arrays: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """Copies whose floating-point elements are one unit in the last place larger or smaller."""
    import ml_dtypes

    random = np.random.default_rng([seed, len(arrays)])
    copies = []
    for array in arrays:
        if array.dtype.kind in "biuOSU" or array.dtype.kind == "c":
            copies.append(array)
            continue
        unit = np.asarray(ml_dtypes.finfo(array.dtype).eps, array.dtype)
        up = random.integers(0, 2, array.shape, dtype=bool)
        copies.append(np.where(up, array + array * unit, array - array * unit).astype(array.dtype))
    return copies


class Worst(NamedTuple):
    """The output whose error is the largest, measured by its limit; None: nothing was compared."""

    error: float | None
    limit: float | None


def worst(
    errors: Mapping[str, float] | None, tolerance: float | None, changes: Mapping[str, float]
) -> Worst:
    """The output that is nearest to, or farthest beyond, the error that rounding explains.

    Args:
        errors: relative error by output.
        tolerance: see ``tolerance``.
        changes: relative change of each output by nudged inputs, where known.
    """
    if not errors or tolerance is None:
        return Worst(None, tolerance)
    limits = {
        path: max(tolerance, min(NUDGES * changes.get(path, 0.0), MAX_TOLERANCE)) for path in errors
    }

    def beyond(path: str) -> float:
        ratio = errors[path] / limits[path] if limits[path] else errors[path]
        return math.inf if math.isnan(ratio) else ratio

    path = max(errors, key=beyond)
    return Worst(errors[path], limits[path])


def agrees(error: float | None, limit: float | None) -> bool | None:
    """Is an error within a tolerance? NaN is not.

    None if nothing was compared.
    """
    return None if error is None or limit is None else error <= limit


def verdict(error: float | None, limit: float | None) -> str:
    """The answer of ``agrees`` in words.

    For example ``agrees (largest error 3.6e-03, tolerance 8.8e-02)``, ``DIFFERS (...)`` or
    ``not compared``.
    """
    answer = {True: "agrees", False: "DIFFERS", None: "not compared"}[agrees(error, limit)]
    if error is None:
        return answer
    tolerated = "" if limit is None else f", tolerance {limit:.1e}"
    return f"{answer} (largest error {error:.1e}{tolerated})"
