"""On a TPU, sines and error functions take the time of the vector unit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import traced
from toast_lab.cost.problem import Problem, price
from toast_lab.machines.catalogue import machine
from toast_lab.pipeline import replicated
from toast_lab.plan_verbs import Plan


def product(function, depth):
    """Trace a product of 8,192 x ``depth`` x 4,096 followed by ``function``."""

    def step(left, right):
        return function(left @ right)

    shapes = ((8192, depth), (depth, 4096))
    return traced(step, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes))


def compute_s(analysis, on="tpu-v5e"):
    problem = Problem(analysis, {"d": 4}, on)
    return price(problem, replicated(problem)).compute_s


def exact_gelu(x):
    return jax.nn.gelu(x, approximate=False)


# In microseconds, as libtpu 0.0.42.1 estimates for v5e
@pytest.mark.parametrize(
    ("function", "depth", "compiled_us"),
    [
        (jnp.negative, 1024, 376.1),
        (jax.nn.gelu, 1024, 376.1),
        (exact_gelu, 1024, 466.2),
        (jnp.sin, 1024, 941.3),
        (exact_gelu, 4096, 1432.5),
        (jnp.sin, 4096, 1432.5),
        (exact_gelu, 512, 424.2),
        (jnp.sin, 512, 895.3),
    ],
)
def test_a_product_takes_as_long_as_what_follows_it(function, depth, compiled_us) -> None:
    priced_us = 1e6 * compute_s(product(function, depth))
    assert priced_us == pytest.approx(compiled_us, rel=0.06)


def test_chains_add_up_and_one_alone_is_lost_beside_its_traffic() -> None:
    """For 1,024 of 4,096 squared numbers, traffic takes 18.8 steps, an error function 5.2."""

    def chain(length):
        def fn(x):
            for _ in range(length):
                x = jax.lax.erf(x) + 0.25
            return x

        return compute_s(traced(fn, jax.ShapeDtypeStruct((4096, 4096), jnp.float32)))

    assert chain(3) == chain(1)
    steps = 4096 * 4096 / 1024 / 1.5e9
    assert chain(8) == pytest.approx(45.6 * steps, rel=0.1)
    assert chain(16) - chain(8) == pytest.approx(8 * 5.2 * steps, rel=0.01)


def test_devices_share_the_work() -> None:
    analysis = product(jnp.sin, 512)
    problem = Problem(analysis, {"d": 4}, "tpu-v5e")
    name = problem.analysis.group_name[problem.analysis.group_index("left.0")]
    shared = price(problem, Plan.from_actions(problem, [f"{name}->d"])).compute_s
    assert shared == pytest.approx(0.25 * compute_s(analysis), rel=0.02)


def test_it_is_computed_once_however_many_kernels_ask_for_it() -> None:
    """Both products read the sine: the compiler keeps values that took long to compute."""

    def both(x, left, right):
        wave = jnp.sin(x)
        return wave @ left, wave @ right

    shapes = ((8192, 512), (512, 64), (512, 64))
    analysis = traced(both, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes))
    steps = Problem(analysis, {"d": 4}, "tpu-v5e").prices.by_rule.facts.op.vector_steps
    numbers = 8192 * 512 / 1024
    assert np.count_nonzero(steps) == 1
    assert 38.5 * numbers < steps.sum() < 44 * numbers


def test_machines_without_a_rate_and_the_papers_own_model_do_not_know_of_it() -> None:
    analysis = product(jnp.sin, 512)
    without = dataclasses.replace(machine("tpu-v5e"), vector_steps_per_s=0.0)
    plain = product(jnp.negative, 512)
    assert compute_s(analysis, without) == compute_s(plain, without) == compute_s(plain)
    assert compute_s(analysis, "h100") == pytest.approx(compute_s(plain, "h100"))
    paper = [
        price(problem, replicated(problem)).compute_s
        for each in (analysis, plain)
        for problem in [Problem(each, {"d": 4}, "tpu-v5e", paper_mode=True)]
    ]
    assert paper[0] == paper[1]
