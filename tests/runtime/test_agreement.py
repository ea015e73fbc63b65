"""Runs and comparisons judge in the same way whether results agree.

Tolerances depend on types and on the length of sums.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import ml_dtypes
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
    assert agreement.verdict(done.max_relative_error, done.worst.limit) in str(done)
    assert done.to_json()["tolerance"] == limit
    assert done.to_json()["agrees"] is True
    certificate = Certificate(done.errors, None, limit, (), (), done.changes)
    assert certificate.passed is done.agrees
    assert str(certificate).split("\n")[0] in str(done)
    strict = tl.run(
        model, plan, devices="cpu:2", repeats=1, warmup=0, tolerance=0.0, reference=False
    )
    assert strict.agrees is None
    assert "not compared" in str(strict)


def test_inputs_are_nudged_by_one_unit_in_the_last_place():
    arrays = [
        np.linspace(-3.0, 3.0, 64, dtype="f4"),
        np.ones((8, 8), ml_dtypes.bfloat16),
        np.arange(5),
        np.array([True, False]),
    ]
    copies = agreement.nudged(arrays, seed=3)
    for array, copy in zip(arrays[:2], copies[:2], strict=True):
        assert copy.dtype == array.dtype
        change = np.abs(copy.astype("f8") / array.astype("f8") - 1.0)
        unit = float(ml_dtypes.finfo(array.dtype).eps)
        assert change.min() > 0
        assert change.max() <= 2 * unit
        assert {True, False} == set((copy > array).ravel().tolist())
    assert all(copy is array for array, copy in zip(arrays[2:], copies[2:], strict=True))


def test_the_limit_of_an_output_follows_how_it_answers_to_nudged_inputs():
    errors = {"loss": 2e-4, "gradient": 1e-3}
    assert agreement.worst(errors, 3e-4, {}) == (1e-3, 3e-4)
    assert agreement.worst(errors, 3e-4, {"gradient": 5e-4}) == (2e-4, 3e-4)
    assert agreement.worst({"gradient": 1e-3}, 3e-4, {"gradient": 5e-4}) == (1e-3, 5e-3)
    # However much rounding explains, half of a sum is never missing
    assert agreement.worst({"gradient": 0.5}, 3e-4, {"gradient": 0.4}) == (0.5, 0.25)
    assert agreement.worst({"a": math.nan, "b": 1.0}, 3e-4, {})[1] == 3e-4
    assert not agreement.agrees(*agreement.worst({"a": math.nan, "b": 0.0}, 3e-4, {}))
    assert agreement.worst({}, 3e-4, {}) == (None, 3e-4)


def test_gradients_that_nearly_cancel_are_compared_with_what_rounding_explains():
    """Keys that are all alike leave the queries nearly without a gradient."""

    def attention(x, query, key):
        return jax.nn.softmax((x @ query) @ (x @ key).T) @ x

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((256, 64), (64, 16), (64, 16))]
    model = tl.from_jax(attention, *shapes)
    random = np.random.default_rng(0)
    inputs = [
        (1.0 + 1e-2 * random.normal(size=(256, 64))).astype("f4"),
        *(0.1 * random.normal(size=(64, 16)).astype("f4") for _ in range(2)),
    ]
    problem = tl.Problem(tl.analyse(model), {"d": 4})
    plan = tl.Plan.from_specs(problem, {"x": ("d", None)})
    result = tl.compare(model, {"rows": plan}, devices="cpu:4", repeats=1, inputs=inputs)
    (certificate,) = (row.certificate for row in result.rows if row.name == "rows")
    assert certificate.passed
    changed = {path: certificate.changes[path] for path in certificate.gradients}
    assert max(changed, key=changed.get) == "gradient of query"
    assert changed["gradient of query"] > 100 * changed["loss"]
    done = tl.run(model, plan, devices="cpu:4", repeats=1, inputs=inputs)
    assert done.agrees
    assert set(done.changes) == set(done.errors)
