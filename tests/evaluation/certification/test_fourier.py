"""Plans of Fourier transforms compute the same on CPU devices, and communicate as priced.

Every plan of small programs is tested, and how transforms are written into annotated programs.

The full form (``-m slow``) takes 25 plans on each mesh of eight programs, as the certification
does.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from evaluation.certification import draw, fourier_programs, plans
from evaluation.certification.case import F32, S
from toast_lab import _jaxlib, isolate
from toast_lab.errors import RunFailed
from toast_lab.ir import fourier, read
from toast_lab.lowering import annotate as lowering
from toast_lab.lowering.annotate import annotate
from toast_lab.plan_verbs import Plan
from toast_lab.runtime import _jax_private, hlo
from toast_lab.runtime.devices import Devices, environment
from toast_lab.runtime.executable import Executable, ShardedProgram
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.state import State, legal_actions

SMALL = ("fft_there_and_back", "fft_cube", "fft_one_dim")


def failures(cases: Any, counts: tuple[int, int, int]) -> list[str]:
    return [
        f"{r.program} {r.mesh} {r.actions}: {r.failure}"
        for r in plans.certify(cases, draw.colours(*counts))
        if r.failure
    ]


def test_every_plan_that_a_few_actions_make_computes_the_same() -> None:
    # The counts exceed the plans that exist: on 8 devices these programs have 5, 3 and 1 plans.
    cases = [case for case in fourier_programs.CASES if case.name in SMALL]
    assert failures(cases, (10, 10, 4)) == []


def test_a_training_step_of_a_fourier_operator_computes_the_same() -> None:
    assert (
        failures(
            [case for case in fourier_programs.CASES if case.name in ("fft_step", "fft_loop")],
            (6, 4, 4),
        )
        == []
    )


@pytest.mark.slow
def test_every_program_computes_the_same() -> None:
    assert failures(fourier_programs.CASES, plans.FULL[0]) == []


def every_plan(problem: tl.Problem) -> list[ShardingPlan]:
    """All plans in the space of a small problem."""
    found: dict[int, ShardingPlan] = {}
    waiting: list[tuple[Any, ...]] = [()]
    while waiting:
        taken = waiting.pop()
        state = State(problem.space)
        for action in taken:
            state.apply(action)
        plan = Plan.from_state(state, list(taken))
        if plan.key not in found:
            found[plan.key] = plan
            waiting += [(*taken, action) for action in legal_actions(state)]
    return list(found.values())


def by_jit() -> dict[str, Any]:
    """Run ``plan.jit`` of every plan on 2x4; gives the largest error and differing gathers.

    This function runs in a child with 8 devices.
    """
    x = np.random.default_rng(0).standard_normal((8, 16, 16)).astype(np.float32)
    model = tl.from_jax(fourier_programs.there_and_back, x)
    problem = tl.Problem(tl.analyse(model), {"d": 2, "m": 4})
    found: dict[str, Any] = {"plans": 0, "error": 0.0, "differ": []}
    for plan in every_plan(problem):
        compiled = plan.jit(fourier_programs.there_and_back).lower(x).compile()
        found["plans"] += 1
        found["error"] = max(found["error"], float(np.max(np.abs(np.asarray(compiled(x)[0]) - x))))
        made = hlo.collectives(compiled.as_text(), {"d": 2, "m": 4})
        gathers = collections.Counter(c.axes for c in made if c.kind == "all_gather")
        cost = tl.price(problem, plan).collectives
        priced = collections.Counter(tuple(c.axes) for c in cost if c.kind == "all_gather")
        # XLA takes another route if a split moves from one dim to another; if a plan only gathers,
        # XLA gathers as priced.
        if {c.kind for c in cost} <= {"all_gather"} and gathers != priced:
            found["differ"].append((plan.actions, dict(gathers), dict(priced)))
    return found


def test_jit_of_every_plan_computes_the_same_and_gathers_what_is_priced() -> None:
    found = isolate.run_in_child(
        "tests.evaluation.certification.test_fourier:by_jit", env=environment(Devices("cpu", 8))
    )
    assert found["plans"] > 15
    assert found["error"] < 1e-5
    assert found["differ"] == []


def spectral() -> tuple[tl.Model, ShardingPlan]:
    model = tl.from_jax(lambda x: jnp.fft.fft(x, axis=1).real, S((8, 16, 16), F32))
    problem = tl.Problem(tl.analyse(model), {"d": 2, "m": 4})
    return model, Plan.from_actions(problem, ["x.0->d", "x.2->m"])


def test_each_device_transforms_its_own_part() -> None:
    model, plan = spectral()
    text = annotate(model, plan)
    (inside,) = re.findall(r"stablehlo\.fft .*-> tensor<(\S+)xcomplex", text)
    assert inside == "4x4x16", "8 over d, 16 over m, and the transformed dim whole"
    (shardings,) = re.findall(
        r"in_shardings=\[<@mesh, (\[.*?\])>\] out_shardings=\[<@mesh, (\[.*?\])>\]", text
    )
    assert shardings == ('[{"d"}, {"m"}, {}]',) * 2
    assert "manual_computation" not in annotate(model, plan, numbered=True), (
        "Shardy's passes see an ordinary op"
    )


def test_the_annotated_program_is_read_as_the_program_that_it_was() -> None:
    model, plan = spectral()
    again = read.parse(annotate(model, plan)).program
    # Annotating adds constraints, each of which is an op.
    kinds = [k for k in again.kind if k != "sdy.sharding_constraint"]
    assert kinds == list(model.program.kind)
    (transform,) = (op for op in again.ops() if again.kind[op] == "fft")
    assert again.dims(again.results(transform)[0]) == (8, 16, 16)
    said = [
        a for a in again.annotations if a.kind == "op" and a.value == again.results(transform)[0]
    ]
    assert [a.spec for a in said] == [(("d",), ("m",), ())]


def test_a_shard_map_that_holds_only_a_transform_is_none_of_ours() -> None:
    """Each device may transform a piece of a dim, which is not a piece of the whole transform."""
    text = """
    sdy.mesh @mesh = <["d"=2]>
    func.func @main(%x: tensor<8x16xcomplex<f32>>) -> tensor<8x16xcomplex<f32>> {
      %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{}, {"d"}]>] out_shardings=[<@mesh, [{}, {"d"}]>]
          manual_axes={"d"} (%p: tensor<8x8xcomplex<f32>>) {
        %1 = stablehlo.fft %p, type = FFT, length = [8] : (tensor<8x8xcomplex<f32>>) -> tensor<8x8xcomplex<f32>>
        sdy.return %1 : tensor<8x8xcomplex<f32>>
      } : (tensor<8x16xcomplex<f32>>) -> tensor<8x16xcomplex<f32>>
      return %0 : tensor<8x16xcomplex<f32>>
    }"""  # noqa: E501
    assert "shard_map" in read.parse(text).program.kind


def test_layouts_are_pinned_before_and_behind_a_transform() -> None:
    model, plan = spectral()
    context = _jaxlib.make_context()
    module = _jaxlib.parse_module(context, annotate(model, plan))
    with context, _jaxlib.ir.Location.unknown(context):
        fourier.pin_layouts(module)
    text = str(module)
    before, behind = text.split("stablehlo.fft")
    assert before.count("@LayoutConstraint") == 1
    assert behind.count("@LayoutConstraint") == 1
    assert text.count("dense<[2, 1, 0]> : tensor<3xindex>") == 4


def unmended() -> str:
    """The error message for XLA's bug if our workarounds are switched off.

    This function runs in a child with 8 devices.
    """
    model = tl.from_jax(fourier_programs.there_and_back, S((8, 16, 16), F32))
    plan = Plan.from_actions(tl.Problem(tl.analyse(model), {"a": 8}), ["x.0->a"])
    _jax_private.fourier.pin_layouts = lambda module: None  # type: ignore[assignment]
    lowering.local_ops.run_locally = lambda *_: None  # type: ignore[assignment]
    kept = plan.value_specs()
    job = ShardedProgram(
        annotate(model, plan), plan.mesh, (kept[0],), (kept[int(model.program.outputs[0])],)
    )
    executable = Executable.of_program(job, model.program, jax.devices())
    executable.put([np.ones((8, 16, 16), np.float32)])
    try:
        executable.step()
    except RunFailed as error:
        return str(error)
    return "it ran"


def test_the_compilers_fault_is_told_with_the_users_lines_and_a_way_round() -> None:
    """If the program runs, XLA may have fixed its bug, and layouts need no longer be pinned."""
    said = isolate.run_in_child(
        "tests.evaluation.certification.test_fourier:unmended", env=environment(Devices("cpu", 8))
    )
    assert "fault of XLA" in said
    line = fourier_programs.there_and_back.__code__.co_firstlineno + 2
    assert said.count(f"fourier_programs.py:{line}") == 2, said
    assert "with_layout_constraint" in said


def product_scattered_over_batch() -> float:
    """The largest error, in a child, of a product for which XLA once computed wrong numbers."""

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.einsum("bik,bkj->bij", x, w)

    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((8, 8, 8)).astype(np.float32) for _ in range(2))
    problem = tl.Problem(tl.analyse(tl.from_jax(fn, x, w)), {"a": 2, "b": 2, "c": 2})
    worst = 0.0
    for mesh in ("a", "b", "c"):
        others = [a for a in "abc" if a != mesh]
        plan = scattered(problem, mesh, others)
        worst = max(worst, float(np.max(np.abs(np.asarray(plan.jit(fn)(x, w)) - fn(x, w)))))
    return worst


def scattered(problem: tl.Problem, batch: str, summed: list[str]) -> ShardingPlan:
    """A plan that sums the product over two axes and then splits a batch dim along one of them.

    The batch dim was already split before.
    """
    plan = Plan.from_actions(problem, [f"x.0->{batch}", *(f"x.2->{a}" for a in summed)])
    program = plan.program
    values = plan.value_dim.copy()
    values[program.outputs[0], plan.mesh.axes.index(summed[0])] = 0
    return dataclasses.replace(plan, sharding=plan.sharding._replace(value_dim=values))


def test_a_sum_that_goes_to_a_split_batch_dim_is_summed_right() -> None:
    error = isolate.run_in_child(
        "tests.evaluation.certification.test_fourier:product_scattered_over_batch",
        env=environment(Devices("cpu", 8)),
    )
    assert error < 1e-4
