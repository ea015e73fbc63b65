from __future__ import annotations

import json
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toast_lab import frontends, isolate
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan, InvalidProblem, RunFailed
from toast_lab.ir.model import Model
from toast_lab.plan_verbs import Plan
from toast_lab.runtime import child, devices
from toast_lab.runtime.run import Run, run, run_many
from toast_lab.sharding.plan import ShardingPlan

S = jax.ShapeDtypeStruct
MESH = {"d": 2, "m": 4}


def plan_of(model: Model, mesh: dict[str, int], *actions: object) -> ShardingPlan:
    return Plan.from_actions(Problem(analyse(model), mesh), actions)


def small_step() -> Model:
    """A step with a donated argument, and a second moment that must not be negative."""

    def step(w, moment, x):
        gradient = x.T @ (x @ w)
        return w - 0.1 * gradient / jnp.sqrt(moment), jnp.sum(gradient**2)

    shapes = S((32, 64), "float32"), S((32, 64), "float32"), S((16, 32), "float32")
    names = {"w": ("inner", "outer"), "moment": ("inner", "outer"), "x": ("batch", "inner")}
    return frontends.from_jax(step, *shapes, donate_argnums=(0,), dim_names=names)


@pytest.fixture(scope="module")
def step_run() -> Run:
    model = small_step()
    return run(model, plan_of(model, MESH, ("batch", "d"), ("inner", "d")), repeats=4, warmup=1)


def test_the_paper_attention_gathers_k_and_not_x() -> None:
    """Constraints make XLA gather k, as the paper's plan does.

    XLA ignores shardings on ordinary ops: without constraints after them, it gathers x and computes
    k whole.
    """
    model = frontends.load("attention")
    made = run(model, plan_of(model, MESH, "S@1->d"), repeats=2, warmup=1)
    gathered = [c for c in made.collectives if c.kind == "all_gather"]
    assert [(c.bytes, c.axes, c.group_size) for c in gathered] == [(64 * 16 * 4, ("d",), 2)]
    assert gathered[0].op_name.endswith("dot_general")
    assert "attention.py:" in gathered[0].source


def test_an_fsdp_plan_gathers_each_parameter_once_for_forward_and_backward() -> None:
    """XLA's CPU compiler merges equal gathers, so a parameter is not gathered for each use.

    With 2 layers on d=8 and jaxlib 0.10.2 and 0.12.0.1 we found 20 parameters, 20 gathers in the
    plan's price and 21 in the compiled program (the extra one belongs to the embedding's gradient),
    whether the annotated text holds one constraint for each gathered copy (15 on arguments) or one
    for each use (31). Temporaries were the same.
    """
    model = frontends.load(
        "transformer",
        layers=1,
        d_model=64,
        hidden=128,
        heads=4,
        key_size=16,
        vocab=128,
        batch=8,
        sequence=32,
    )
    plan = plan_of(model, {"d": 8}, ("batch", "d"), ("d_model", "d"))
    parameters = sum(path.startswith("params") for path in plan.argument_specs())
    made = run(model, plan, repeats=1, warmup=0)
    assert parameters <= made.collective_counts["all_gather"] <= parameters + 1
    assert made.inputs == "normal"
    assert made.max_relative_error is not None
    assert made.max_relative_error < 1e-5


def test_times_memory_and_errors(step_run: Run) -> None:
    assert step_run.devices == "cpu:8"
    assert step_run.device_kind == "cpu"
    assert step_run.n_devices == 8
    assert len(step_run.step_times_s) == 4
    assert all(0 < t < 10 for t in step_run.step_times_s)
    assert min(step_run.step_times_s) <= step_run.median_s <= max(step_run.step_times_s)
    assert step_run.spread_s >= 0
    assert step_run.compile_s > 0
    # w, moment and x are halved over d; their whole sizes are 8192, 8192 and 2048 bytes.
    assert step_run.argument_bytes == (8192 + 8192 + 2048) // 2
    assert step_run.output_bytes >= 4096 + 4
    assert step_run.alias_bytes == 4096
    assert step_run.peak_bytes == (
        step_run.argument_bytes + step_run.output_bytes - step_run.alias_bytes + step_run.temp_bytes
    )
    assert step_run.allocator_peak_bytes is None
    assert set(step_run.errors or {}) == {"result[0]", "result[1]"}
    assert step_run.max_relative_error is not None
    assert step_run.max_relative_error < 1e-5
    assert step_run.reference_median_s
    assert step_run.reference_peak_bytes


def test_inputs_without_signs_where_signs_give_nan(step_run: Run) -> None:
    # Only the moment is under a root, so only it is drawn without signs
    assert step_run.inputs == "normal"
    model = frontends.from_jax(
        lambda x, y: jnp.sqrt(x * y), S((8, 4), "float32"), S((8, 4), "float32")
    )
    assert (
        run(model, plan_of(model, {"d": 8}, ("x.0", "d")), repeats=1, warmup=0).inputs
        == "non-negative"
    )


def test_a_run_is_plain_data(step_run: Run) -> None:
    data = json.loads(json.dumps(step_run.to_json()))
    assert data["collective_counts"] == step_run.collective_counts
    assert data["collectives"][0]["kind"] in step_run.collective_counts
    assert "ms a step" in str(step_run)


def test_the_users_inputs_are_used_and_no_reference_is_made_unless_asked_for() -> None:
    model = small_step()
    plan = plan_of(model, MESH, ("outer", "m"))
    arrays = [np.full(model.program.dims(a), 2.0, np.float32) for a in range(3)]
    made = run(model, plan, repeats=1, warmup=0, inputs=arrays, reference=False)
    assert made.inputs == "given"
    assert made.errors is None
    assert made.max_relative_error is None
    assert made.reference_median_s is None
    with pytest.raises(InvalidProblem, match="instead of"):
        run(model, plan, inputs=[a.astype(np.float64) for a in arrays])


def test_progress_comes_in_order_and_ends_at_one() -> None:
    events: list[child.RunProgress] = []
    model = frontends.load("mlp")
    run(model, plan_of(model, {"d": 2}), "cpu:2", repeats=2, warmup=1, on_event=events.append)
    assert [e.stage for e in events][:2] == ["compiling unsharded", "running unsharded 1/3"]
    assert events[-1] == child.RunProgress("running sharded 3/3", 1.0)
    fractions = [e.fraction for e in events]
    assert fractions == sorted(fractions)


def test_several_plans_share_one_child() -> None:
    model = frontends.load("mlp")
    plans = [plan_of(model, {"d": 2, "m": 2}), plan_of(model, {"all": 4})]
    made = run_many(model, plans, "cpu:4", repeats=1, warmup=0)
    assert [r.max_relative_error for r in made] == [0.0, 0.0]
    assert made[0].reference_compile_s == made[1].reference_compile_s
    with pytest.raises(InvalidProblem, match=r"the same number of devices, but need \[2, 4\]"):
        run_many(model, [plans[0], plan_of(model, {"d": 2})])


def test_64_bit_inputs_stay_64_bit() -> None:
    text = """
    func.func public @main(%x: tensor<8x4xf64>, %n: tensor<8xi64>) -> (tensor<8x4xf64>, tensor<8xi64>) {
      %0 = stablehlo.add %x, %x : tensor<8x4xf64>
      %1 = stablehlo.add %n, %n : tensor<8xi64>
      return %0, %1 : tensor<8x4xf64>, tensor<8xi64>
    }
    """  # noqa: E501
    model = frontends.from_stablehlo(text)
    big = [np.full((8, 4), 1 / 3), np.full(8, 2**40)]
    made = run(model, plan_of(model, {"d": 2}), "cpu:2", repeats=1, warmup=0, inputs=big)
    assert made.max_relative_error == 0.0


def test_too_few_devices_and_other_wrong_requests() -> None:
    model = frontends.load("mlp")
    plan = plan_of(model, MESH)
    with pytest.raises(InvalidProblem, match="the mesh needs 8 devices, but 'cpu:4' has only 4"):
        run(model, plan, "cpu:4")
    with pytest.raises(InvalidProblem, match=r"cannot read devices 'gpus' \(did you mean \"gpu\""):
        run(model, plan, "gpus")
    with pytest.raises(InvalidProblem, match="repeats must be at least 1"):
        run(model, plan, repeats=0)
    with pytest.raises(InvalidPlan, match="this plan is for the program"):
        run(frontends.load("attention"), plan)


@pytest.mark.parametrize("word", ["gpu", "tpu"])
def test_accelerators_that_are_not_there(word: str) -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("an accelerator is attached")
    model = frontends.load("mlp")
    with pytest.raises(
        InvalidProblem, match=r'(no|[0-9]+) (gpu|tpu).*attached.*Use devices="cpu:64"'
    ):
        run(model, plan_of(model, {"d": 64}), word)


def test_fewer_attached_than_the_mesh_needs() -> None:
    here = len(jax.devices("cpu"))
    assert devices.attached(devices.Devices("cpu", here)) == jax.devices("cpu")
    with pytest.raises(
        InvalidProblem, match=rf"{here} cpu devices are attached, but the mesh needs {here + 1}"
    ):
        devices.attached(devices.Devices("cpu", here + 1))


def test_auto_falls_back_to_virtual_devices() -> None:
    model = frontends.load("mlp")
    made = run(model, plan_of(model, {"d": 4, "m": 16}), "auto", repeats=1, warmup=0)
    assert made.devices == "cpu:64"


def test_more_virtual_devices_than_the_mesh_needs() -> None:
    assert devices.parse("cpu:8", 4) == devices.Devices("cpu", 4)
    assert devices.parse("cpu", 4) == devices.Devices("cpu", 4)
    assert devices.parse("auto", 4) is None


def test_the_childs_environment_keeps_other_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/x --xla_force_host_platform_device_count=3")
    wanted = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_dump_to=/tmp/x --xla_force_host_platform_device_count=8",
    }
    assert devices.environment(devices.Devices("cpu", 8)) == wanted
    assert devices.environment(devices.Devices("gpu", 1))["JAX_PLATFORMS"] == ""


def test_a_cancel_stops_the_child_soon() -> None:
    model = frontends.load("mlp")
    events: list[child.RunProgress] = []
    started = time.monotonic()
    with pytest.raises(isolate.Cancelled):
        run(
            model,
            plan_of(model, MESH),
            repeats=10**6,
            on_event=events.append,
            cancel=lambda: len(events) > 3,
        )
    assert time.monotonic() - started < 60


def test_a_run_over_its_time_ends_in_a_sentence() -> None:
    model = frontends.load("mlp")
    with pytest.raises(RunFailed, match="running mlp on cpu:8: no result within 3 s"):
        run(model, plan_of(model, MESH), repeats=10**6, time_limit_s=3)


def test_a_program_that_does_not_fit_ends_in_a_sentence() -> None:
    model = frontends.from_jax(lambda x: jnp.outer(x, x), S((2**20,), "float32"))
    with pytest.raises(
        RunFailed,
        match=r"running .* on cpu:2: (out of memory|.*(RESOURCE_EXHAUSTED|memory|crashed))",
    ):
        run(model, plan_of(model, {"d": 2}), "cpu:2", memory_limit_bytes=8 * 2**30, reference=False)


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, -2.0], 2.25),
        ([1.0, 3.0], [1.0, 4.0], 0.25),
        ([np.inf, 3.0], [np.inf, 4.0], 0.25),
        ([1.0, 3.0], [np.nan, 3.0], math.inf),
        ([np.nan, 3.0], [3.0, 3.0], math.inf),
        ([0.5, 0.0], [0.0, 0.0], 0.5),
        ([], [], 0.0),
        ([1 + 1j], [1 - 1j], math.sqrt(2)),
        ([True, False], [True, True], 1.0),
    ],
)
def test_relative_errors(found: list, expected: list, error: float) -> None:
    assert child.relative_error(np.asarray(found), np.asarray(expected)) == pytest.approx(error)


def test_nothing_finite_to_compare_is_no_agreement() -> None:
    nan = np.full(3, np.nan)
    assert math.isnan(child.relative_error(nan, nan))


def test_programs_that_call_lapack_run() -> None:
    """LAPACK routines are registered before a program that calls them runs.

    XLA's CPU client knows them only after JAX has lowered one in that process, and crashes without.
    """
    model = frontends.from_jax(
        lambda a: jnp.linalg.qr(a + 3 * jnp.eye(8))[1], S((8, 8, 8), "float32")
    )
    assert "@lapack_" in model.stablehlo
    measured = run(model, plan_of(model, {"d": 8}, ("a.0", "d")), "cpu:8", repeats=1, warmup=0)
    assert measured.max_relative_error is not None
    assert measured.max_relative_error < 1e-5
