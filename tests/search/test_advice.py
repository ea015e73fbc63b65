"""The advice on what would fit holds when it is tried.

A larger mesh is tried with the plan's own actions, a smaller size with a new program.
"""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from tests.helpers import plan, propagated_arguments, traced
from toast_lab.cost.problem import Problem, price
from toast_lab.search import advice
from toast_lab.search.advice import how_to_fit, larger_mesh, smaller_size
from toast_lab.sharding.plan import ShardingPlan

MACHINE = "cpu"  # its memory has no tiles, so that every size counts


def layer(x, w):
    return jnp.tanh(x @ w)


def made(batch=1024, width=64, hidden=128):
    """A layer whose batch takes most of the memory: 768 bytes a row; the weight takes 32 KiB."""
    x = jax.ShapeDtypeStruct((batch, width), "float32")
    w = jax.ShapeDtypeStruct((width, hidden), "float32")
    return traced(layer, x, w, dim_names={"x": ("B", "D"), "w": ("D", "H")})


def over(mesh, share, *actions, analysis=None, **options):
    """Return (problem, plan, cost) with a memory limit of ``share`` of what the plan needs."""
    analysis = analysis or made()
    free = Problem(analysis, mesh, MACHINE)
    limit = share * price(free, plan(free, *actions)).peak_bytes
    problem = Problem(analysis, mesh, MACHINE, memory_limit_bytes=limit, **options)
    taken = plan(problem, *actions)
    return problem, taken, price(problem, taken)


@pytest.mark.parametrize(("share", "factor"), [(0.9, 2), (0.6, 2), (0.4, 4), (0.35, 4), (0.2, 8)])
def test_the_axis_grows_by_the_power_of_two_that_the_limit_asks_for(share, factor):
    problem, taken, cost = over({"d": 2}, share, ("B", "d"))
    mesh, peak_bytes = larger_mesh(problem, taken, cost)
    assert mesh == f"d={2 * factor} (d={2 * factor})"
    limit = problem.memory_limit_bytes
    grown = Problem(problem.analysis, {"d": 2 * factor}, MACHINE, memory_limit_bytes=limit)
    grown_cost = price(grown, plan(grown, ("B", "d")))
    assert grown_cost.fits
    assert peak_bytes == pytest.approx(grown_cost.peak_bytes, rel=1e-12)
    assert f"Its actions fit on the mesh {mesh} ({peak_bytes / 2**30:.2f} GiB)." in how_to_fit(
        problem, taken, cost
    )


def test_twice_that_power_is_tried_where_something_stays_whole():
    """The weight is not cut, so twice the devices still need a little over half the memory each."""
    problem, taken, cost = over({"d": 2}, 0.5, ("B", "d"))
    assert larger_mesh(problem, taken, cost)[0] == "d=8 (d=8)"


def test_only_an_axis_that_the_actions_use_helps():
    problem, taken, cost = over({"m": 2, "d": 2}, 0.6, ("B", "d"))
    assert larger_mesh(problem, taken, cost)[0] == "d=4 (m=2,d=4)"


def test_a_few_meshes_are_tried_at_most(monkeypatch):
    sizes = {"a": 1, "b": 1, "c": 1, "d": 2}
    assert larger_mesh(*over(sizes, 0.6, ("B", "d"))) is not None
    monkeypatch.setattr(advice, "MOST_MESHES", 3)
    assert larger_mesh(*over(sizes, 0.6, ("B", "d"))) is None


def test_no_mesh_is_named_where_none_divides_or_the_plan_has_no_actions():
    assert larger_mesh(*over({"d": 2}, 0.6, ("B", "d"), analysis=made(batch=6, width=8))) is None
    problem, _, cost = over({"d": 2}, 0.6, ("B", "d"))
    state = propagated_arguments(problem, ("x", 0, "d"))
    by_words = ShardingPlan(problem.analysis.program, problem.mesh, state, ("x, dim 0->d",))
    assert larger_mesh(problem, by_words, cost) is None


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.35])
def test_a_size_that_is_named_fits_and_is_cut_as_before(share):
    problem, taken, cost = over({"d": 8}, share, ("B", "d"))
    name, held_bytes, size, smaller, peak_bytes = smaller_size(problem, taken, cost)
    assert (name, size) == ("B", 1024)
    assert held_bytes == cost.peak_bytes - 64 * 128 * 4  # everything but the weight
    assert smaller % 8 == 0
    limit = problem.memory_limit_bytes
    shrunk = Problem(made(batch=smaller), {"d": 8}, MACHINE, memory_limit_bytes=limit)
    shrunk_cost = price(shrunk, plan(shrunk, ("B", "d")))
    assert shrunk_cost.fits
    assert peak_bytes == pytest.approx(shrunk_cost.peak_bytes, rel=1e-12)
    # Eight more rows, one a device, would not fit.
    larger = Problem(made(batch=smaller + 8), {"d": 8}, MACHINE, memory_limit_bytes=limit)
    assert not price(larger, plan(larger, ("B", "d"))).fits
    assert f"with {smaller} instead it would be about" in how_to_fit(problem, taken, cost)


def test_no_size_below_the_number_of_devices_is_named():
    """A dim cannot be smaller than one number for each device."""
    analysis = traced(
        lambda x: x * x - x, jax.ShapeDtypeStruct((64,), "int32"), dim_names={"x": ("B",)}
    )
    assert smaller_size(*over({"d": 32}, 0.75, ("B", "d"), analysis=analysis)) == (
        "B",
        16.0,
        64,
        32,
        8.0,
    )
    given = over({"d": 64}, 0.75, ("B", "d"), analysis=analysis)
    assert smaller_size(*given) is None
    assert larger_mesh(*given) is None
    assert how_to_fit(*given).endswith(
        "Use a larger mesh, a smaller batch or a machine with more memory. tl.why_not (toast-lab "
        "why-not) says what fills it, and what makes room."
    )


def test_sizes_of_parameters_are_not_up_for_choice():
    """The dims of weights that a step returns are the model's, however much memory they take."""

    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)

    w, x = jax.ShapeDtypeStruct((64, 2048), "float32"), jax.ShapeDtypeStruct((128, 64), "float32")
    analysis = traced(step, w, x, dim_names={"w": ("D", "H"), "x": ("B", "D")})
    problem, taken, cost = over({"d": 2}, 0.9, analysis=analysis)
    groups = {analysis.group_name[g] for g in advice._input_groups(problem)}
    assert "B" in groups
    assert "H" not in groups
    assert smaller_size(problem, taken, cost)[0] in groups


def test_the_excess_is_said_with_the_numbers():
    problem, taken, cost = over({"d": 2}, 0.5, ("B", "d"), analysis=made(batch=2**22))
    text = how_to_fit(problem, taken, cost)
    need, limit = cost.peak_bytes / 2**30, problem.memory_limit_bytes / 2**30
    assert (
        f"needs {need:.2f} GiB a device, {need - limit:.2f} GiB over the limit of {limit:.2f} GiB."
    ) in text


def test_a_refined_plan_is_tried_by_its_actions_and_one_of_no_actions_not_at_all():
    problem, taken, cost = over({"d": 2}, 0.4, ("B", "d"))
    refined = dataclasses.replace(taken, refinements=("refined in 3 places",))
    assert larger_mesh(problem, refined, cost) == larger_mesh(problem, taken, cost)
    without = dataclasses.replace(taken, actions=(), refinements=("all axes free, gap 0",))
    assert larger_mesh(problem, without, cost) is None
