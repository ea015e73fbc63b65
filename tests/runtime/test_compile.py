"""Plans are compiled ahead of time, for virtual CPU devices and, if libtpu is installed, TPUs."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests.runtime.test_run import plan_of, small_step
from toast_lab import frontends, isolate
from toast_lab.errors import InvalidPlan, InvalidProblem, RunFailed, StoreError
from toast_lab.ir.model import Model
from toast_lab.lowering.annotate import annotate, split_name
from toast_lab.runtime import compile as compiling
from toast_lab.runtime import topologies
from toast_lab.runtime.compile import compile_plan
from toast_lab.runtime.compiled import Compiled
from toast_lab.runtime.compiled_store import CompiledStore
from toast_lab.runtime.run import run
from toast_lab.sharding.mesh import make_mesh

S = jax.ShapeDtypeStruct
MESH = {"d": 2, "m": 4}
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)
ACTIONS = [("batch", "d"), ("inner", "d")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Compiled, Path]:
    path = tmp_path_factory.mktemp("kept") / "compiled.sqlite"
    model = small_step()
    return compile_plan(model, plan_of(model, MESH, *ACTIONS), "cpu:8", store=path), path


def scanned() -> Model:
    """Four equal layers in a loop, each with a sum over the split dim."""

    def fn(w, x):
        return jax.lax.scan(lambda h, layer: (jnp.tanh(h @ layer), None), x, w)[0]

    return frontends.from_jax(
        fn,
        S((4, 64, 64), "float32"),
        S((32, 64), "float32"),
        dim_names={"w": ("layer", "in", "out"), "x": ("batch", "in")},
    )


def test_memory_and_collectives_are_those_of_a_run(made: tuple[Compiled, Path]) -> None:
    model = small_step()
    plan = plan_of(model, MESH, *ACTIONS)
    ran = run(model, plan, "cpu:8", repeats=1, warmup=0, reference=False)
    compiled = made[0]
    assert compiled.fits
    for field in ("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes", "peak_bytes"):
        assert getattr(compiled, field) == getattr(ran, field), field
    assert [c[:4] for c in compiled.collectives] == [c[:4] for c in ran.collectives]
    assert compiled.collectives
    assert (compiled.cycles, compiled.compute_s, compiled.clock_hz) == (None, None, None)


def test_every_collective_leads_to_the_op_that_wants_it(made: tuple[Compiled, Path]) -> None:
    """The weights are gathered before the first product, the gradient summed after the last."""
    program = small_step().program
    products = [op for op in program.ops() if program.kind[op] == "dot_general"]
    ops = {(c.kind, c.op) for c in made[0].collectives if c.bytes > 4}
    assert ("all_gather", products[0]) in ops
    assert ("all_reduce", products[-1]) in ops


def test_a_loop_gives_its_rounds_and_its_collectives_their_times() -> None:
    model = scanned()
    compiled = compile_plan(model, plan_of(model, {"d": 4}, ("in", "d")), "cpu:4", store=False)
    assert [rounds for _, rounds in compiled.loops] == [4.0]
    assert {c.times for c in compiled.collectives} == {4.0}
    ops = {c.op for c in compiled.collectives}
    assert ops
    assert all(model.program.trips[op] == 4 for op in ops)


def test_the_second_time_comes_from_the_store(made: tuple[Compiled, Path]) -> None:
    compiled, path = made
    model = small_step()
    plan = plan_of(model, MESH, *ACTIONS)
    events: list[object] = []
    again = compile_plan(model, plan, "cpu:8", store=path, on_progress=events.append)
    assert (again, again.cached, events) == (compiled, True, [])
    # The same shardings by other actions
    other = dataclasses.replace(plan, key=plan.key + 1)
    assert compile_plan(model, other, "cpu:8", store=path).plan_key == other.key
    with CompiledStore(path, read_only=True) as store:
        (row,) = store.rows()
        assert store.rows("another model") == []
        assert store.get(row["id"])[1] == compiled
    assert (row["model"], row["topology"], row["fits"]) == (model.name, "cpu:8", True)
    assert (row["program"], row["plan"]) == (compiled.program, f"{plan.key:016x}")
    assert row["versions"] == compiled.versions


@pytest.mark.parametrize("text", ["", "{", '{"format": 0}', '{"format": 1, "mesh": {}}', "[]"])
def test_a_damaged_result_is_compiled_anew(
    made: tuple[Compiled, Path], tmp_path: Path, text: str
) -> None:
    compiled, kept = made
    path = tmp_path / "compiled.sqlite"
    shutil.copy(kept, path)
    with CompiledStore(path) as store:
        store.connection.execute(
            "UPDATE compiled SET result = ?", [zlib.compress(text.encode()) if text else b""]
        )
        with pytest.raises(StoreError, match="row 1 is damaged"):
            store.get(1)
    model = small_step()
    events: list[object] = []
    again = compile_plan(
        model, plan_of(model, MESH, *ACTIONS), "cpu:8", store=path, on_progress=events.append
    )
    assert events, "it was compiled"
    assert again.peak_bytes == compiled.peak_bytes
    with CompiledStore(path) as store:
        (row,) = store.rows()
        assert store.get(row["id"])[1] == again


def test_a_store_that_cannot_be_read_costs_the_keeping_and_not_the_result(tmp_path: Path) -> None:
    path = tmp_path / "compiled.sqlite"
    path.write_text("this is no database, and longer than the head of one" * 40)
    before = path.read_bytes()
    model = small_step()
    assert compile_plan(model, plan_of(model, MESH, *ACTIONS), "cpu:8", store=path).fits
    assert path.read_bytes() == before
    with pytest.raises(StoreError, match=r"cannot be read.*TOAST_LAB_COMPILED name another file"):
        CompiledStore(path, read_only=True)


def test_flags_and_versions_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = topologies.parse("cpu:8", make_mesh(MESH))
    keys = {
        compiling._key("a", wanted, {"jax": "1"}, {}),
        compiling._key("b", wanted, {"jax": "1"}, {}),
        compiling._key("a", wanted, {"jax": "2"}, {}),
        compiling._key("a", wanted, {"jax": "1"}, {"XLA_FLAGS": "x"}),
        compiling._key("a", wanted, {"jax": "1"}, {}, assumed_rounds=[40.0]),
        compiling._key("a", topologies.parse("tpu:v5e:2x4", make_mesh(MESH)), {"jax": "1"}, {}),
    }
    assert len(keys) == 6
    assert compiling._key("a", wanted, {}, {}, assumed_rounds=[1.0]) == compiling._key(
        "a", wanted, {}, {}
    )
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert compiling._flags() == {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}


def test_saved_and_loaded(made: tuple[Compiled, Path], tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    made[0].save(file)
    assert Compiled.load(file) == made[0]
    data = json.loads(file.read_text())
    assert data["bytes_by_kind"] == made[0].bytes_by_kind()
    with pytest.raises(InvalidPlan, match="cannot read"):
        Compiled.load(tmp_path / "none.json")
    file.write_text("x")
    with pytest.raises(InvalidPlan, match="not JSON"):
        Compiled.load(file)
    file.write_text('{"format": 99}')
    with pytest.raises(InvalidPlan, match="format 99"):
        Compiled.load(file)


def test_locations_name_every_op_of_the_annotated_module() -> None:
    model = scanned()
    plain, located = (
        annotate(model, plan_of(model, {"d": 4}, ("in", "d")), located=x) for x in (False, True)
    )
    assert "toast." not in plain
    for op in model.program.ops():
        if model.program.kind[op] in ("dot_general", "tanh"):
            assert f'"toast.{op}/' in located
    assert split_name("jit(f)/toast.1/x") == (-1, "jit(f)/toast.1/x")


@pytest.mark.parametrize(
    ("topology", "mesh", "words"),
    [
        ("cpu:4", {"d": 8}, ["8 devices, more than the 4 of cpu:4", '"cpu:8"']),
        ("cpu:16", {"d": 8}, ["8 devices, fewer than the 16"]),
        ("tpu:v5e:4x4", {"d": 32}, ["32 devices, more than the 16", "tpu:v5e:4x8"]),
        (
            "tpu:v3:4x4",
            {"d": 4, "m": 4},
            ["16 devices, fewer than the 32 of tpu:v3:4x4 (2 a chip)", "mesh of 32"],
        ),
        ("tpu:v5e:3x3", {"d": 9}, ["no slice 3x3", "2x2, 2x4, 4x4"]),
        ("tpu:v5:4x4", {"d": 16}, ["'tpu:v5:4x4'", "did you mean", "tpu:v6e: 1x1"]),
        ("tpu", {"d": 16}, ["no topology is called 'tpu'", "tpu:v5e"]),
        ("cpux8", {"d": 8}, ["no topology is called 'cpux8'", '"cpu:8"']),
        (None, {"d": 8}, ["no topology is called None"]),
    ],
)
def test_bad_topologies(topology: str, mesh: dict[str, int], words: list[str]) -> None:
    with pytest.raises(InvalidProblem) as error:
        topologies.parse(topology, make_mesh(mesh))
    for word in words:
        assert word in str(error.value)


def test_a_plan_of_another_program_is_refused() -> None:
    model = small_step()
    other = frontends.load("mlp")
    with pytest.raises(InvalidPlan, match=other.program.digest()):
        compile_plan(model, plan_of(other, MESH), "cpu:8", store=False)


def test_cancelled_and_timed_out(tmp_path: Path) -> None:
    model = small_step()
    plan = plan_of(model, MESH, *ACTIONS)
    path = tmp_path / "compiled.sqlite"
    with pytest.raises(isolate.Cancelled, match="cancelled"):
        compile_plan(model, plan, "cpu:8", cancel=lambda: True, store=path)
    with pytest.raises(RunFailed, match=r"no result within 0\.01 s"):
        compile_plan(model, plan, "cpu:8", time_limit_s=0.01, store=path)
    with CompiledStore(path, read_only=True) as store:
        assert not store.rows(), "nothing is kept of a compile that did not end"


def test_a_crashed_compiler_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the child, here by an unknown XLA flag, is reported with the compiler's words."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    model = small_step()
    with pytest.raises(RunFailed, match="xla_no_such_flag"):
        compile_plan(model, plan_of(model, MESH, *ACTIONS), "cpu:8", store=False)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_libtpu_the_error_says_what_to_install() -> None:
    model = small_step()
    with pytest.raises(InvalidProblem, match=r"toast-lab\[tpu\]"):
        compile_plan(model, plan_of(model, MESH, *ACTIONS), "tpu:v5e:2x4", store=False)


@needs_libtpu
def test_a_loop_for_tpu_names_ops_rounds_and_cycles() -> None:
    model = scanned()
    compiled = compile_plan(
        model, plan_of(model, {"d": 2, "m": 2}, ("in", "d")), "tpu:v5e:2x2", store=False
    )
    assert compiled.device_kind == "TPU v5 lite"
    assert {c.times for c in compiled.collectives} == {4.0}
    assert {model.program.kind[c.op] for c in compiled.collectives} <= {"dot_general", "tanh"}
    product = next(op for op in model.program.ops() if model.program.kind[op] == "dot_general")
    inside = {
        op: n for op, n in compiled.cycles_by_op.items() if op >= 0 and model.program.trips[op] == 4
    }
    assert inside
    assert product in {*inside, *(c.op for c in compiled.collectives)}
    assert compiled.cycles is not None
    assert compiled.compute_s == compiled.cycles / 1.5e9


@needs_libtpu
def test_out_of_memory_is_a_result() -> None:
    model = frontends.load("mlp", batch=65536, inputs=16384, hidden=65536, outputs=16384)
    compiled = compile_plan(model, plan_of(model, {"d": 2, "m": 2}), "tpu:v5e:2x2", store=False)
    assert not compiled.fits
    assert compiled.limit_bytes == 15.75 * 2**30
    assert compiled.needed_bytes is not None
    assert compiled.needed_bytes > compiled.limit_bytes
    assert compiled.peak_bytes is None
    assert "refused" in str(compiled)
