"""Plans are compiled for GPUs that need not be attached.

Tests that need XLA's compiler for GPUs run only if its wheels are installed
(``toast-lab install-gpu-compiler``).
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.runtime.test_gpu_compiler import wheel
from tests.runtime.test_gpu_target import described
from tests.runtime.test_run import MESH, small_step
from toast_lab import frontends
from toast_lab.app.pages.compare_run import compiled_rows
from toast_lab.app.pages.compare_run import topologies as choices
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan, InvalidProblem, RunFailed
from toast_lab.ir.model import Model
from toast_lab.machines.catalogue import MACHINES
from toast_lab.plan_verbs import Plan
from toast_lab.runtime import compile as compiling
from toast_lab.runtime import compile_child, gpu_compiler, gpu_times, topologies
from toast_lab.runtime.compile import compile_plan
from toast_lab.runtime.compiled import Compiled
from toast_lab.runtime.diff import diff_compiled
from toast_lab.sharding.mesh import make_mesh
from toast_lab.sharding.plan import ShardingPlan

S = jax.ShapeDtypeStruct
ACTIONS = [("batch", "d"), ("inner", "d")]


def installed() -> bool:
    try:
        gpu_compiler.find()
    except InvalidProblem:
        return False
    return True


needs_wheels = pytest.mark.skipif(
    not installed(), reason="XLA's compiler for GPUs is not here: toast-lab install-gpu-compiler"
)


def plan_of(model: Model, mesh: dict[str, int], *actions: object) -> ShardingPlan:
    """A plan of the program that JAX makes for GPUs."""
    return Plan.from_actions(Problem(analyse(model), mesh, "h100"), actions)


def half_step() -> Model:
    """A product of bfloat16 matrices, one with a float32 result, and the gradient of the first."""

    def step(w, v, x):
        h = jnp.tanh(x @ w)
        g = jnp.dot(h, v, preferred_element_type=jnp.float32)
        return w - (x.T @ (h * jnp.sum(g))).astype(w.dtype), jnp.sum(g)

    shapes = S((512, 1024), "bfloat16"), S((1024, 256), "bfloat16"), S((2048, 512), "bfloat16")
    names = {"w": ("inner", "outer"), "v": ("outer", "last"), "x": ("batch", "inner")}
    return frontends.from_jax(step, *shapes, dim_names=names)


NO_TIMES = gpu_times.CompilerTimes({}, {}, (), ())
HALF = [("batch", "d"), ("inner", "d"), ("outer", "m")]


def report(peak: int, **changes: Any) -> compile_child.CompileReport:
    """The report that a child sends for a program with this peak."""
    memory = dict.fromkeys(("argument", "output", "alias", "temp", "code"), 0)
    compiled = compile_child.CompileReport(
        device_kind="NVIDIA",
        compile_s=1.0,
        refusal=None,
        remats=(),
        cycles={},
        memory={**memory, "peak": peak},
        times=NO_TIMES,
    )
    return compiled._replace(**changes)


def result(topology: str, peak: int, model: Model | None = None, **changes: Any) -> Compiled:
    plan = plan_of(model or small_step(), MESH)
    wanted = topologies.parse(topology, plan.mesh)
    return compiling._result(plan, wanted, report(peak, **changes), versions={}, flags={})


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "hosts"),
    [
        ("gpu:h100:8", "gpu:h100:8", 1),
        (" GPU:H100: 8 ", "gpu:h100:8", 1),
        ("gpu:a100:1x8", "gpu:a100:8", 1),
        ("gpu:p100:4x2", "gpu:p100:4x2", 4),
        ("gpu:8", "gpu:8", 1),
        ("gpu", "gpu:8", 1),
    ],
)
def test_names_of_topologies(text: str, name: str, hosts: int) -> None:
    found = topologies.parse(text, make_mesh(MESH))
    assert (str(found), found.hosts, found.count) == (name, hosts, 8)
    assert (found.gpu is None) == (text in ("gpu", "gpu:8"))
    assert topologies.parse(str(found), make_mesh(MESH)) == found


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        ("gpu:h100:4", ["8 devices, more than the 4 of gpu:h100:4", "the topology gpu:h100:8"]),
        ("gpu:h100:2x8", ["8 devices, fewer than the 16 of gpu:h100:2x8", "topology gpu:h100:8"]),
        ("gpu:h100:2x2", ["8 devices, more than the 4", "the topology gpu:h100:4x2"]),
        ("gpu:h101:8", ["no GPU is known as 'h101'", 'did you mean "h100"', "gpu:./my_gpu.toml:8"]),
        ("gpu:h100", ["cannot read the topology 'gpu:h100'", '"gpu:h100:8" or "gpu:h100:2x4"']),
        ("gpu:h101", ["no GPU is known as 'h101'"]),
        ("gpu:h100:", ["cannot read the topology"]),
        ("gpu:h100:0", ["cannot read the topology", "hosts x GPUs of each"]),
        ("gpu:h100:0x8", ["cannot read the topology"]),
        ("gpu:h100:8x", ["cannot read the topology"]),
        ("gpu:h100:2x2x2", ["cannot read the topology"]),
        ("gpu:h100:-8", ["cannot read the topology"]),
        ("gpu:h100:many", ["cannot read the topology"]),
        ("gpu:h100:" + "9" * 5000, ["cannot read the topology"]),
        ("gpu:none.toml:8", ["none.toml: cannot read the description of a GPU"]),
        ("h100:8", ["no topology is called 'h100:8'", "gpu:h100:8"]),
    ],
)
def test_bad_topologies(topology: str, words: list[str]) -> None:
    with pytest.raises(InvalidProblem) as error:
        topologies.parse(topology, make_mesh(MESH))
    for word in words:
        assert word in str(error.value), word


def test_the_machine_of_a_topology(tmp_path: Path) -> None:
    own, nameless = described(tmp_path), None
    assert topologies.machine_of("gpu:p100:4x8", MACHINES) == "p100"
    assert topologies.machine_of(" GPU:B200:8", MACHINES) == "b200"
    assert topologies.machine_of(f"gpu:{own}:8", MACHINES) == "h100"
    assert topologies.machine_of("gpu", MACHINES) == topologies.machine_of("gpu:8", MACHINES)
    mesh = make_mesh(MESH)
    found = {
        text: topologies.machine_name(topologies.parse(text, mesh), kind)
        for text, kind in (
            ("gpu:a100:8", "NVIDIA A100 SXM 80 GB"),
            ("gpu", "NVIDIA H100 80GB HBM3"),
            ("gpu:8", "Tesla V100"),
            ("cpu:8", "cpu"),
            ("tpu:v5e:2x4", "TPU v5 lite"),
        )
    }
    assert list(found.values()) == ["a100", "h100", "", "cpu", "tpu-v5e"]
    nameless = described(tmp_path, machine="")
    assert topologies.machine_name(topologies.parse(f"gpu:{nameless}:8", mesh), "") == ""


def test_what_is_the_machine_of_the_problem_comes_first_in_the_list() -> None:
    first = [next(iter(choices(8, name).values())) for name in ("h100", "tpu-v5e", "cpu", "mine")]
    assert first == ["gpu:h100:8", "tpu:v5e:2x4", "cpu:8", "cpu:8"]
    assert next(iter(choices(16, "a100").items())) == ("16 A100 in 2 hosts", "gpu:a100:2x8")
    every = choices(8, "h100")
    assert set(every.values()) == set(choices(8, "cpu").values())
    assert {"gpu", "cpu:8", "gpu:p100:8", "tpu:v5e:2x4"} < set(every.values())
    mesh = make_mesh(MESH)
    assert all(topologies.parse(text, mesh).count == 8 for text in every.values())


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gigabytes", "fits", "fits_all", "words"),
    [
        (59, True, True, "within the 55.9 GiB that JAX takes of 74.5"),
        (61, False, True, "more than the 55.9 GiB that JAX takes of 74.5 by default"),
        (81, False, False, "more than the 74.5 GiB of the device"),
    ],
)
def test_whether_it_fits_is_decided_here(
    gigabytes: int, fits: bool, fits_all: bool, words: str
) -> None:
    made = result("gpu:h100:8", gigabytes * 10**9)
    assert (made.fits, made.fits_all_memory, made.refused) == (fits, fits_all, False)
    assert (made.default_memory_bytes, made.device_memory_bytes) == (60e9, 80e9)
    assert made.total_needed_bytes == gigabytes * 10**9
    assert words in str(made)
    again = Compiled.from_json(json.loads(json.dumps(made.to_json())))
    assert (again, again.fits_all_memory) == (made, fits_all)


def test_notes_say_what_the_numbers_do_not() -> None:
    widened = "p100 has no bfloat16: XLA keeps such values as float32, at twice the memory"
    half = result("gpu:p100:8", 1, half_step(), times=None)
    assert half.notes == (
        widened,
        "XLA has no measured tables for p100 (sm_60), so there are no times",
    )
    assert widened in str(half)
    assert result("gpu:p100:8", 1, times=None).notes == half.notes[1:]
    assert result("gpu:h100:8", 1, half_step()).notes == ()
    assert result("cpu:8", 1, half_step(), times=None).notes == ()


def test_times_that_were_left_out_are_counted_in_the_text() -> None:
    row = gpu_times.NotTimed(3, "copy", 1.0, gpu_times.NO_TIME)
    times = gpu_times.CompilerTimes({3: 0.002}, {4: 0.001}, (row, row), ())
    made = result("gpu:h100:8", 1, times=times)
    assert "3.000 ms by XLA's own times without 2 instructions" in str(made)
    assert Compiled.from_json(json.loads(json.dumps(made.to_json()))).times == times


def test_results_of_older_versions_are_still_read() -> None:
    data = result("cpu:8", 5, times=None).to_json()
    for new in ("machine", "device_memory_bytes", "default_memory_bytes", "times", "notes"):
        del data[new]
    old = Compiled.from_json(data)
    assert (old.machine, old.times, old.notes, old.fits_all_memory) == ("", None, (), None)
    assert str(old) == str(result("cpu:8", 5, times=None))


def test_a_price_of_another_machine_is_never_compared_without_a_word() -> None:
    model = small_step()
    plan = plan_of(model, MESH)
    analysis = analyse(model)
    made = result("gpu:h100:8", 1)
    same, other = (diff_compiled(Problem(analysis, MESH, m), plan, made) for m in ("h100", "a100"))
    assert (same.machines, made.priced_elsewhere("h100")) == ("", "")
    assert other.machines == "compiled for gpu:h100:8 (NVIDIA), priced on the machine a100"
    assert str(other).startswith(f"{other.machines}: do not compare times\n")
    assert "priced on" not in str(same)


def test_the_explorer_says_of_a_compiled_plan_what_python_does() -> None:
    model = half_step()
    problem = Problem(analyse(model), MESH, "a100")
    cost = price(problem, Plan.from_actions(problem, HALF))
    row = gpu_times.NotTimed(3, "copy", 1.0, gpu_times.NO_TIME)
    times = gpu_times.CompilerTimes({3: 0.002}, {4: 0.001}, (row,), ())

    def said(topology: str, peak: int, **changes: Any) -> dict[str, str]:
        made = result(topology, peak, model, **changes)
        return {name: str(text) for name, text in compiled_rows(made, cost, "a100")}

    small = said("gpu:h100:8", 2**30, times=times)
    assert small["for"] == "gpu:h100:8, but priced on a100"
    assert small["fits"] == "yes, within the 55.88 GiB of 74.51 GiB that JAX reserves"
    assert small["by XLA's tables"] == "2 ms computing, 1 ms in collectives, 1 left out"
    large = said("gpu:a100:8", 61 * 10**9, times=None)
    assert large["for"] == "gpu:a100:8"
    assert "only beyond the 55.88 GiB of" in large["fits"]
    assert "by XLA's tables" not in large
    assert "no measured tables for a100" in large["note"]
    assert "no, the device has 74.51 GiB" in said("gpu:a100:8", 10**11)["fits"]
    assert set(said("cpu:8", 5, times=None)) == {"for", "peak"}
    timed = dataclasses.replace(
        result("gpu:h100:8", 5, model), cycles_by_op={3: 10**6}, clock_hz=1e9
    )
    for machine, words in (("h100", "1 ms, 0.5× estimated"), ("a100", "1 ms")):
        said_of = dict(compiled_rows(timed, dataclasses.replace(cost, compute_s=2e-3), machine))
        assert said_of["compute"] == words


def test_a_described_gpu_is_kept_by_what_it_is_and_not_by_its_name(tmp_path: Path) -> None:
    def key(path: str, versions: dict[str, str] | None = None) -> str:
        wanted = topologies.parse(f"gpu:{path}:8", make_mesh(MESH))
        return compiling._key("text", wanted, versions or {}, {})

    path = described(tmp_path)
    first = key(path)
    assert key(described(tmp_path)) == first
    assert key(described(tmp_path, l2_bytes="1")) != first
    assert key(described(tmp_path), {gpu_compiler.PLUGIN: "1"}) != first


def test_a_plan_of_another_program_is_refused() -> None:
    other = frontends.load("mlp")
    with pytest.raises(InvalidPlan, match=other.program.digest()):
        compile_plan(small_step(), plan_of(other, MESH), "gpu:h100:8", store=False)


def test_without_the_compiler_no_child_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(gpu_compiler.FOLDER_VARIABLE, str(tmp_path))
    events: list[object] = []
    model = small_step()
    with pytest.raises(InvalidProblem, match=r"\n  toast-lab install-gpu-compiler\n"):
        compile_plan(model, plan_of(model, MESH), "gpu:h100:8", on_progress=events.append)
    assert events == []


def test_calls_of_a_processors_library_are_named_with_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path, gpu_compiler.PLUGIN, gpu_compiler.wanted_version())
    wheel(tmp_path, gpu_compiler.ASSEMBLER, "12.9.86")
    monkeypatch.setenv(gpu_compiler.FOLDER_VARIABLE, str(tmp_path))
    traced = frontends.from_jax(lambda x: jnp.linalg.cholesky(x), S((64, 64), "float32"))
    # As a file has it: JAX lowers the function itself for the GPU in another way
    model = frontends.from_stablehlo(traced.stablehlo)
    with pytest.raises(InvalidProblem) as error:
        compile_plan(model, plan_of(model, {"d": 2}), "gpu:h100:2", store=False)
    for word in ("gpu:h100:2", "lapack_spotrf_ffi", "test_gpu_compile.py:", '"cpu:2"'):
        assert word in str(error.value), word


def test_damaged_wheels_are_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path, gpu_compiler.PLUGIN, gpu_compiler.wanted_version())
    wheel(tmp_path, gpu_compiler.ASSEMBLER, "12.9.86")
    monkeypatch.setenv(gpu_compiler.FOLDER_VARIABLE, str(tmp_path))
    model = small_step()
    with pytest.raises(InvalidProblem, match=r"gives no topology gpu:h100:8: .*install-gpu-comp"):
        compile_plan(model, plan_of(model, MESH), "gpu:h100:8", store=False)


# -- with the compiler -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Compiled, Path]:
    path = tmp_path_factory.mktemp("kept") / "compiled.sqlite"
    model = half_step()
    return compile_plan(model, plan_of(model, MESH, *HALF), "gpu:h100:8", store=path), path


@needs_wheels
def test_collectives_memory_and_times_of_a_step(made: tuple[Compiled, Path]) -> None:
    compiled, model = made[0], half_step()
    kinds = {(c.kind, c.axes, model.program.kind[c.op]) for c in compiled.collectives}
    assert ("reduce_scatter", ("d",), "dot_general") in kinds
    assert ("all_gather", ("d",), "dot_general") in kinds
    assert compiled.fits
    assert compiled.fits_all_memory
    assert compiled.peak_bytes is not None
    assert (compiled.machine, compiled.device_kind) == ("h100", "NVIDIA H100 SXM 80 GB")
    assert compiled.times is not None
    assert 0 < compiled.times.compute_s < 1e-3
    assert gpu_times.PRODUCT_TYPES in compiled.times.left_out_by_reason()
    assert compiled.flags["XLA_FLAGS"].startswith("--xla_gpu_enable_triton_gemm=false")
    assert compiled.versions[gpu_compiler.PLUGIN] == jax.__version__
    assert compiled.notes == ()


@needs_wheels
def test_price_and_compiled_program_agree(made: tuple[Compiled, Path]) -> None:
    model = half_step()
    analysis = analyse(model)
    problem = Problem(analysis, MESH, "h100")
    plan = plan_of(model, MESH, *HALF)
    found = diff_compiled(problem, plan, made[0])
    equal = [row for row in found.rows if row.status == "equal"]
    assert len(equal) >= 3, str(found)
    assert not [row for row in found.rows if row.op < 0], "every collective has its op"


@needs_wheels
def test_the_second_time_comes_from_the_store(made: tuple[Compiled, Path]) -> None:
    compiled, path = made
    model = half_step()
    events: list[object] = []
    plan = plan_of(model, MESH, *HALF)
    again = compile_plan(model, plan, "gpu:h100:8", store=path, on_progress=events.append)
    assert (again, again.cached, events) == (compiled, True, [])


@needs_wheels
def test_a_p100_keeps_bfloat16_at_twice_the_memory(made: tuple[Compiled, Path]) -> None:
    model = half_step()
    old = compile_plan(model, plan_of(model, MESH, *HALF), "gpu:p100:8", store=False)
    assert "p100 has no bfloat16" in old.notes[0]
    assert old.times is None
    assert old.temp_bytes is not None
    assert made[0].temp_bytes is not None
    assert old.temp_bytes > made[0].temp_bytes
    assert {c.op for c in old.collectives} == {c.op for c in made[0].collectives}


@needs_wheels
def test_two_hosts_of_an_own_gpu(tmp_path: Path) -> None:
    model = half_step()
    topology = f"gpu:{described(tmp_path, machine='')}:2x4"
    compiled = compile_plan(model, plan_of(model, MESH, *HALF), topology, store=False)
    assert (compiled.topology, compiled.machine) == (topology, "")
    assert compiled.priced_elsewhere("h100").startswith(f"compiled for {topology}")
    assert compiled.times is not None
    crossing = {
        row.kind for row in compiled.times.left_out if row.reason == gpu_times.BETWEEN_HOSTS
    }
    assert "all_gather" in crossing


@needs_wheels
def test_what_does_not_fit_is_a_result_with_everything_in_it() -> None:
    model = frontends.load("mlp", batch=65536, inputs=16384, hidden=65536, outputs=16384)
    plan = plan_of(model, {"d": 2})
    compiled = compile_plan(model, plan, "gpu:p100:2", store=False)
    assert not compiled.fits
    assert not compiled.refused
    assert compiled.fits_all_memory is False
    assert compiled.peak_bytes is not None
    assert compiled.peak_bytes > 16e9
    analysis = analyse(model)
    assert not diff_compiled(Problem(analysis, {"d": 2}, "p100"), plan, compiled).different


@needs_wheels
def test_too_long_and_crashed_compiles_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = half_step()
    plan = plan_of(model, MESH, *HALF)
    with pytest.raises(RunFailed, match=r"for gpu:h100:8: no result within 0\.2 s"):
        compile_plan(model, plan, "gpu:h100:8", time_limit_s=0.2, store=tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    with pytest.raises(RunFailed, match="xla_no_such_flag"):
        compile_plan(model, plan, "gpu:h100:8", store=tmp_path)
    assert not list(tmp_path.iterdir()), "nothing is kept of a compile that did not end"


@needs_wheels
def test_a_gpu_without_tables_is_compiled_without_times() -> None:
    model = half_step()
    compiled = compile_plan(model, plan_of(model, MESH, *HALF), "gpu:a100:8", store=False)
    assert compiled.times is None
    assert compiled.notes == (
        "XLA has no measured tables for a100 (sm_80), so there are no times",
        "no schedule: XLA gives no schedule for a100, for which it has no tables",
    )


def test_where_collecting_times_fails_the_program_is_compiled_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compiler whose tables lack the GPU still compiles; any other failure is reported."""
    asked: list[object] = []

    def compile_module(text: str, devices: object, flags: object = None, **_: object) -> str:
        asked.append(flags)
        if flags:
            raise ValueError(f"NOT_FOUND: {text}")
        return "made"

    monkeypatch.setattr(compile_child._jax_private, "compile_module", compile_module)
    mesh = make_mesh(MESH)
    wanted = topologies.parse("gpu:h100:8", mesh)
    request = compile_child.CompileRequest("Cannot find key: sm_90", mesh, wanted, {})
    assert compile_child._compile(request, []) == "made"
    flags = dict.fromkeys((gpu_compiler.TIMES_FLAG, *gpu_compiler.SCHEDULER_FLAGS), True)
    assert asked == [flags, None]
    with pytest.raises(ValueError, match="something else"):
        compile_child._compile(dataclasses.replace(request, stablehlo="something else"), [])


SAYING = """
import os
from toast_lab.runtime.compile_child import _standard_error
os.write(2, b"before ")
with _standard_error() as log:
    os.write(2, b"said ")
print(log(), flush=True)
with _standard_error() as log:
    os.write(2, b"last words")
    os._exit(3)
"""


def test_what_a_crashing_compiler_says_last_is_not_lost(tmp_path: Path) -> None:
    """If standard error is a file, the last words are in it; a pipe has only what came before."""
    with (tmp_path / "log").open("w+b") as log:
        done = subprocess.run(
            [sys.executable, "-c", SAYING], stdout=subprocess.PIPE, stderr=log, timeout=240
        )
    assert (done.returncode, done.stdout.strip()) == (3, b"said")
    assert (tmp_path / "log").read_bytes() == b"before said last words"
    piped = subprocess.run([sys.executable, "-c", SAYING], capture_output=True, timeout=240)
    assert (piped.returncode, piped.stdout.strip()) == (3, b"said")
    assert piped.stderr == b"before said "
