"""What was measured on a GPU is whole, the page is made of it, and it can be measured again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.measured import figures, fresh_ops, measure, ops, rows, shares, told
from tests.measured.measure import Event

ROOT = Path(__file__).parents[2]


def test_every_row_has_its_prices_and_the_page_is_made_from_them() -> None:
    every = rows.rows()
    assert len({rows.key(row) for row in every}) == len(every)
    assert {row["device"] for row in every} == {"NVIDIA H100 80GB HBM3"}
    singles, plans = figures.single_ops(), figures.plan_shares()
    assert len(singles) + len(plans) == len(every)
    page = figures.PAGE.read_text()
    tables = figures.tables(singles, plans)
    assert "\n".join(tables) in page, "python -m tests.measured figures makes it"


def test_every_single_op_was_measured() -> None:
    named = {
        (single.name, single.family, plan_name)
        for plan_name, makers in shares.SINGLE.items()
        for single in makers()
    }
    assert named == set(told.read())
    assert named <= {rows.key(row) for row in rows.rows()}
    assert not {single.name for single in ops.every()} & {
        single.name for single in fresh_ops.every()
    }


def test_times_of_instructions_make_up_the_kernels() -> None:
    for row in rows.rows():
        named_s = sum(one[3] for one in row["instructions"]) + row["stand_in_s"]
        # Sums are of the middle step, instructions of the mean one
        assert named_s <= 1.2 * row["kernels_s"] + 1e-6, rows.key(row)
        if not row["graphs"]:
            # The rest are copies of loops, which the profiler names after no instruction
            assert named_s >= 0.4 * row["kernels_s"], rows.key(row)


def test_steps_are_told_apart_by_their_number() -> None:
    events = [Event("k", "k", float(start), 1.0) for start in (3, 1, 2, 0)]
    first, second = measure._split(events, 2)
    assert [event.start_ns for event in (*first, *second)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="4 kernels in 3 steps"):
        measure._split(events, 3)


def test_a_share_is_divided_and_run(tmp_path: Path) -> None:
    """On the CPU, where the profiler names no kernels."""
    single = next(one for one in ops.every() if one.name == "transpose bf16 1024x1024 to 1,0")
    model, problem = shares.single_problem(single)
    head = {"program": single.name, "digest": single.family, "plan": "op"}
    plan = shares.Plan.from_actions(problem, [])
    row = shares.write_share(tmp_path, head, model, plan)
    assert [one["shape"] for one in row["arguments"]] == [[1024, 1024]]
    (tmp_path / "shares.jsonl").write_text(json.dumps(row) + "\n")
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "tests.measured.measure", str(tmp_path), str(out)]
    subprocess.run(
        [*command, "--seconds", "100", "--graphs"],
        check=True,
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    (came_back,) = map(json.loads, out.read_text().splitlines())
    assert "error" not in came_back
    assert came_back["memory"]["argument"] == came_back["memory"]["output"] == 2 * 1024 * 1024
    assert came_back["untraced_s"] > 0
    before = rows.ROWS.read_text()
    rows.keep([out], tuned="all")
    assert rows.ROWS.read_text() == before, "nothing ran on a GPU"
