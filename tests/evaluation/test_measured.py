"""Measurements on a GPU are complete, the page follows from them, and they can be repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evaluation.measured import figures, fresh_ops, measure, ops, rows, shares, told
from evaluation.measured.measure import Event
from toast_lab.compare.local_program import STAND_IN
from toast_lab.plan_verbs import Plan
from toast_lab.runtime import _jax_private

ROOT = Path(__file__).parents[2]


def test_every_row_has_its_prices_and_the_page_is_made_from_them() -> None:
    every = rows.rows()
    assert len({rows.key(row) for row in every}) == len(every)
    assert {row["device"] for row in every} == {"NVIDIA H100 80GB HBM3"}
    singles, plans = figures.single_ops(), figures.plan_shares()
    assert len(singles) + len(plans) == len(every)
    page = figures.PAGE.read_text()
    tables = figures.tables(singles, plans)
    assert "\n".join(tables) in page, "python -m evaluation measured figures makes it"


def test_every_single_op_was_measured() -> None:
    named = {
        rows.key(shares.head_of(single, plan_name))
        for plan_name, make in shares.SINGLE.items()
        for single in make()
    }
    assert named == set(told.read())
    assert named <= {rows.key(row) for row in rows.rows()}
    assert not {single.name for single in ops.every()} & {
        single.name for single in fresh_ops.every()
    }


def test_times_of_instructions_make_up_the_kernels() -> None:
    for row in rows.rows():
        named_s = sum(one[3] for one in row["instructions"]) + row["stand_in_s"]
        # Sums are medians over steps, times of instructions are means
        assert named_s <= 1.2 * row["kernels_s"] + 1e-6, rows.key(row)
        if not row["graphs"]:
            # The rest are copies of loops, for which the profiler names no instruction
            assert named_s >= 0.4 * row["kernels_s"], rows.key(row)


def test_steps_are_told_apart_by_their_number() -> None:
    events = [Event("k", float(start), 1.0) for start in (3, 1, 2, 0)]
    first, second = measure._split(events, 2)
    assert [event.start_ns for event in (*first, *second)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="4 kernels in 3 steps"):
        measure._split(events, 3)


def test_kernels_find_their_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""
ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8] parameter(0)
  %f = f32[8] fusion(%x), kind=kLoop, calls=%c, metadata={{op_name="toast.3/jit(f)/sin"}}, \
"reification_cost":[{{"exec_time_us":7.5,"name":"sol"}}]
  %never = f32[8] negate(%x), metadata={{op_name="toast.4/jit(f)/neg"}}
  ROOT %copied = f32[8] copy(%f), metadata={{op_name="{STAND_IN}"}}
}}
"""
    monkeypatch.setattr(_jax_private, "optimised_hlo", lambda _: text.replace("\\\n", ""))
    step = [Event("f", 1000.0, 3000.0), Event("copied", 5000.0, 1000.0), Event("", 7000.0, 500.0)]
    times = measure._times({"rounds": {}}, None, [step, step])
    assert times["instructions"] == [["fusion", 3, 1.0, pytest.approx(3e-6), pytest.approx(7.5e-6)]]
    assert times["stand_in_s"] == pytest.approx(1e-6)
    assert times["kernels_s"] == pytest.approx(4.5e-6)
    assert times["step_s"] == pytest.approx(6.5e-6)
    assert times["n_kernels"] == 3


def test_a_share_is_divided_and_run(tmp_path: Path) -> None:
    """The way from a single op to a kept row works, here on the CPU, where no kernels are named."""
    single = next(one for one in ops.every() if one.name == "transpose bf16 1024x1024 to 1,0")
    model, problem = shares.single_problem(single)
    plan = Plan.from_actions(problem, [])
    row = shares.write_share(tmp_path, shares.head_of(single, "op"), model, plan)
    assert [one["shape"] for one in row["arguments"]] == [[1024, 1024]]
    (tmp_path / "shares.jsonl").write_text(json.dumps(row) + "\n")
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "evaluation", "measured", "measure", str(tmp_path), str(out)]
    subprocess.run(
        [*command, "--seconds", "100", "--graphs"],
        check=True,
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    (came_back,) = map(json.loads, out.read_text().splitlines())
    assert "error" not in came_back
    assert came_back["memory"]["argument"] == came_back["memory"]["output"] == 2 * 1024 * 1024
    assert came_back["host_s"] > 0
    before = rows.ROWS.read_text()
    rows.keep([out], tuned="all")
    assert rows.ROWS.read_text() == before, "nothing ran on a GPU"
