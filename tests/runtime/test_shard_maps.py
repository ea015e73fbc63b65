"""Plans around shard_maps compute what the user's own jitted function does, on the same devices."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

from tests import eight_devices
from tests.shard_map_programs import FURTHER, PROGRAMS, SIZES, abstract_mesh, struct
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem
from toast_lab.frontends import from_jax
from toast_lab.ir.read import parse
from toast_lab.lowering.annotate import annotate
from toast_lab.lowering.specs import constraints
from toast_lab.pipeline import search
from toast_lab.runtime.compile import compile_plan
from toast_lab.runtime.diff import diff_compiled
from toast_lab.runtime.run import run
from toast_lab.search.contract import Budget
from toast_lab.sharding.plan import ShardingPlan, unsharded_plan

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)


@functools.cache
def planned(name: str) -> tuple[Problem, ShardingPlan]:
    fn, shapes = (PROGRAMS | FURTHER)[name](abstract_mesh())
    problem = Problem(analyse(from_jax(fn, *shapes)), SIZES, machine="tpu-v5e")
    return problem, search(problem, method="beam", budget=Budget(evaluations=300)).plan


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS | FURTHER)
def test_a_plan_computes_what_the_users_function_does(name: str) -> None:
    problem, plan = planned(name)
    plans = {"best": plan, "unsharded": unsharded_plan(problem.analysis, problem.mesh)}
    differences = eight_devices.call("tests.shard_map_programs:largest_differences", name, plans)
    assert set(differences) == set(plans)
    assert max(differences.values()) < 1e-5


def test_a_run_is_compared_with_the_program_on_the_same_mesh() -> None:
    problem, plan = planned("ring_attention")
    result = run(problem.analysis.model, plan, repeats=2, warmup=1)
    assert result.errors is not None
    assert max(result.errors.values()) < 1e-5
    assert result.reference_median_s is not None
    assert {c.kind for c in result.collectives} >= {"collective_permute"}


def in_diff(name: str, topology: str) -> Any:
    problem, plan = planned(name)
    compiled = compile_plan(problem.analysis.model, plan, topology)
    return diff_compiled(problem, plan, compiled)


@pytest.mark.parametrize("name", ["data_parallel", "recomputed_layers", "exchanged_experts"])
def test_compiled_collectives_of_the_user_are_their_own(name: str) -> None:
    diff = in_diff(name, "cpu:8")
    ops = {shard_map.op for shard_map in planned(name)[0].analysis.program.shard_maps}
    own = [row for row in diff.rows if row.op in ops]
    assert own
    assert [row for row in own if row.predicted is None or row.compiled is None] == []


@needs_libtpu
def test_they_compile_for_tpus() -> None:
    diff = in_diff("vocabulary_loss", "tpu:v5e:2x4")
    assert diff.rows
    assert [row for row in diff.rows if row.status == "extra"] == []


@needs_libtpu
def test_kernels_inside_compile_for_tpus() -> None:
    """A Pallas kernel that each device runs on its part."""

    def double(x: Any, out: Any) -> None:
        out[...] = 2.0 * x[...]

    def part(x: Any) -> Any:
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.lax.psum(pl.pallas_call(double, out_shape=out)(x), "model")

    def layer(x: Any, w: Any) -> Any:
        by_hand = jax.shard_map(
            part,
            mesh=abstract_mesh(),
            in_specs=P("data", "model"),
            out_specs=P("data"),
            check_vma=False,
        )
        return by_hand(jnp.tanh(x @ w))

    model = from_jax(layer, struct(1024, 256), struct(256, 512), platform="tpu")
    problem = Problem(analyse(model), SIZES, machine="tpu-v5e")
    plan = search(problem, method="beam", budget=Budget(evaluations=100)).plan
    (shard_map,) = plan.program.shard_maps
    assert "custom_call" in shard_map.body.kind
    compiled = compile_plan(model, plan, "tpu:v5e:2x4")
    assert {row.kind for row in compiled.collectives} <= {"all_reduce", "reduce_scatter"}


def test_the_annotated_text_keeps_what_the_user_wrote() -> None:
    problem, plan = planned("vocabulary_loss")
    text = annotate(problem.analysis.model, plan)
    assert text.count("sdy.manual_computation") == 2
    assert text.count("sdy.mesh") == 1
    assert 'in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{}, {"model"}]>' in text
    # Without the constraints around them, it is the same program again.
    assert parse(problem.analysis.model.stablehlo).program.digest() == plan.program.digest()
    assert len(parse(text).program.shard_maps) == 2


def test_constraints_are_around_them() -> None:
    """Nothing has to be written for what a ``shard_map`` takes: its own specs say that."""
    problem, plan = planned("vocabulary_loss")
    program = problem.analysis.program
    taken = {
        program.value_name[value]
        for shard_map in program.shard_maps
        for value in program.operands(shard_map.op)
    }
    assert taken.isdisjoint(row.value for row in constraints(plan))
