"""Does a sharded program compute what the unsharded one does? All tolerances are defined here.

Sharding changes the order of sums and nothing else, so errors are those of rounding. A sum of n
terms in a type whose rounding unit is eps has a relative error of about eps times the square root
of n, and values computed from it inherit that error. Up to 1/eps terms it stays below the square
root of eps: that is the tolerance, for the coarsest floating-point type of the program. Where an op
sums more terms than that in its own type, the tolerance is that op's error, up to
``MAX_TOLERANCE``. Matrix products are left out, since backends sum them in a wider type.
"""

from __future__ import annotations

import math

import numpy as np

from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.program import REDUCTION, Program
from toast_lab.runtime import inputs

MAX_TOLERANCE = 0.25  #: a larger tolerance would pass results that lack half of a sum


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
