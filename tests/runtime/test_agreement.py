"""Runs and comparisons judge in the same way whether results agree.

Tolerances depend on types and on the length of sums.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from toast_lab.compare.result import Certificate
from toast_lab.runtime import agreement


def model_of(dtype, n: int = 8, summed: bool = False):
    def f(x):
        return (
            jax.lax.reduce(x, np.zeros((), x.dtype), jax.lax.add, (0,))
            if summed
            else jnp.sin(x @ x.T)
        )

    return tl.from_jax(f, jax.ShapeDtypeStruct((n, 8), dtype))


@pytest.mark.parametrize(
    ("dtype", "eps"), [("float32", 2.0**-23), ("bfloat16", 2.0**-7), ("float16", 2.0**-10)]
)
def test_the_tolerance_is_the_root_of_the_rounding_unit_or_what_a_long_sum_loses(dtype, eps):
    assert agreement.tolerance(model_of(dtype).program) == pytest.approx(math.sqrt(eps))
    assert agreement.tolerance(model_of(dtype, 64, summed=True).program) == pytest.approx(
        math.sqrt(eps)
    )
    long = 8 * round(1 / eps) if eps > 2.0**-12 else 64
    wanted = max(math.sqrt(eps), min(agreement.MAX_TOLERANCE, eps * math.sqrt(long)))
    assert agreement.tolerance(model_of(dtype, long, summed=True).program) == pytest.approx(wanted)


def test_products_and_whole_numbers_have_no_long_sums():
    assert agreement.tolerance(model_of("bfloat16", 4096).program) == pytest.approx(
        math.sqrt(2.0**-7)
    )
    assert (
        agreement.tolerance(
            tl.from_jax(lambda x: x + x, jax.ShapeDtypeStruct((8,), "int32")).program
        )
        == 0.0
    )


def test_verdicts():
    assert agreement.agrees(0.25, 0.088) is False
    assert agreement.agrees(float("nan"), 1.0) is False
    assert agreement.agrees(None, 1.0) is None
    assert agreement.verdict(0.25, 0.088) == "DIFFERS (largest error 2.5e-01, tolerance 8.8e-02)"
    assert agreement.verdict(0.0, 0.088) == "agrees (largest error 0.0e+00, tolerance 8.8e-02)"
    assert agreement.verdict(None, None) == "not compared"


def test_a_run_and_a_comparison_say_the_same():
    model = model_of("bfloat16")
    problem = tl.Problem(tl.analyse(model), "2")
    plan = tl.search(problem, budget=tl.Budget(seconds=None, evaluations=50)).plan
    done = tl.run(model, plan, devices="cpu:2", repeats=1, warmup=0)
    limit = agreement.tolerance(model.program)
    assert done.tolerance == limit
    assert done.agrees is True
    assert f"agrees (largest error {done.max_relative_error:.1e}, tolerance {limit:.1e})" in str(
        done
    )
    assert done.to_json()["tolerance"] == limit
    assert done.to_json()["agrees"] is True
    certificate = Certificate(done.errors, None, limit, (), ())
    assert certificate.passed is done.agrees
    assert str(certificate).split("\n")[0] in str(done)
    strict = tl.run(
        model, plan, devices="cpu:2", repeats=1, warmup=0, tolerance=0.0, reference=False
    )
    assert strict.agrees is None
    assert "not compared" in str(strict)
