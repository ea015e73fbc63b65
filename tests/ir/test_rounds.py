"""Loops whose rounds the program does not state are said, and take a number from the user."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from toast_lab import cli
from toast_lab.conflicts.coverage import UnsplitReason, coverage
from toast_lab.errors import InvalidInput
from toast_lab.ir.rounds import unknown_loops
from toast_lab.runtime.compile import rounds_of

WIDTH = 16


def settle(x: jax.Array, w: jax.Array) -> jax.Array:
    """A loop that ends by what it computes, with a known loop inside, and another one after it."""

    def improve(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ w), x)

    x = jax.lax.while_loop(lambda x: jnp.sum(x) > 1.0, improve, x)
    return jax.lax.while_loop(lambda x: jnp.sum(x) < 9.0, lambda x: x @ w, x)


@pytest.fixture(scope="module")
def model() -> tl.Model:
    leaf = jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")
    return tl.from_jax(settle, leaf, leaf)


def products(model: tl.Model) -> list[float]:
    """How often each product runs."""
    program = model.program
    return [program.trips[op] for op in program.ops() if program.kind[op] == "dot_general"]


def lines(model: tl.Model) -> list[str]:
    return [Path(loop.where).name for loop in unknown_loops(model.program)]


def test_unknown_rounds_are_said_with_their_line_and_count(model: tl.Model) -> None:
    first, second = lines(model)
    assert first != second
    assert [note for note in model.notes if "are not known" in note] == [
        f"the rounds of the loop at {line} are not known and counted as 1: give them with "
        "model.with_rounds(...) or --loop-rounds"
        for line in (first, second)
    ]
    again = tl.from_stablehlo(model.stablehlo)
    assert again.notes == model.notes


def test_a_number_for_all_counts_in_prices_listings_and_reports(model: tl.Model) -> None:
    assert products(model) == [3, 1]
    counted = model.with_rounds(40)
    assert products(counted) == [120, 40]
    assert all("counted as 40, the number that was given" in note for note in counted.notes)
    assert len(counted.notes) == len(model.notes)

    once = tl.Problem(tl.analyse(model), {"d": 2})
    problem = tl.Problem(tl.analyse(counted), {"d": 2})
    plan, cost = tl.replicated(problem), problem_cost(problem)
    assert cost.time_s > 10 * problem_cost(once).time_s
    assert "counted as 40" in str(cost)
    listing = tl.listing(problem, plan)
    assert listing.count("number of rounds unknown, counted as 40:") == 2
    assert listing.count("loop, 3 rounds:") == 1
    rows = [
        row for row in coverage(problem.analysis).rows if row.reason is UnsplitReason.UNKNOWN_TRIPS
    ]
    assert all("its body is counted 40 times" in row.why for row in rows)
    # Compiled loops of unknown rounds count what their program's do
    assert set(rounds_of(counted.program).values()) == {40.0, 3.0}


def test_facts_of_a_program_say_which_rounds_are_assumed(model: tl.Model) -> None:
    summary = pytest.importorskip("toast_lab.views.summary", exc_type=ImportError)
    facts = summary.program_facts(tl.analyse(model.with_rounds(40)))
    assert ("loops", "3; rounds of 2 not known, counted as 40") in facts


def problem_cost(problem: tl.Problem) -> Any:
    return tl.price(problem, tl.replicated(problem))


def test_numbers_by_line_count_for_the_loops_at_these_lines(model: tl.Model) -> None:
    first, second = lines(model)
    assert products(model.with_rounds({second: 7})) == [3, 7]
    both = model.with_rounds({first: 2, second: 0.5})
    assert products(both) == [6, 0.5]
    assert products(both.with_rounds({first: 1})) == [3, 0.5]


def test_a_condition_runs_once_more_than_its_body(model: tl.Model) -> None:
    program = model.with_rounds(40).program
    conditions = {
        program.trips[op]
        for op in program.ops()
        if program.kind[op] == "compare" and program.where(op).endswith(tuple(lines(model)))
    }
    assert conditions == {41.0}


def test_wrong_rounds_are_refused_with_the_lines_that_there_are(model: tl.Model) -> None:
    with pytest.raises(InvalidInput, match=r"at other.py:1; there are some at:\n") as caught:
        model.with_rounds({"other.py:1": 3, lines(model)[0]: -1})
    assert all(line in str(caught.value) for line in lines(model))
    assert "must not be below 0, got -1" in str(caught.value)
    for wrong in (-1, float("nan"), float("inf"), True, "x"):
        with pytest.raises(InvalidInput, match=r"rounds at test_rounds\.py:\d+: must"):
            model.with_rounds(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="mlp has no loop of unknown rounds"):
        tl.load("mlp").with_rounds(3)


def test_a_plan_made_with_rounds_runs_the_function() -> None:
    def halve(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: jnp.sum(x) > 1.0, lambda x: x / 2, x)

    x = jnp.full((WIDTH, WIDTH), 1.0)
    model = tl.from_jax(halve, x).with_rounds(40)
    plan = tl.replicated(tl.Problem(tl.analyse(model), {"d": 1}))
    np.testing.assert_array_equal(plan.jit(halve)(x), halve(x))


def test_the_command_line_takes_rounds(
    model: tl.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "settle.mlir"
    path.write_text(model.stablehlo)
    first, _ = lines(model)

    def said(*rounds: str) -> tuple[int, str, str]:
        status = cli.main(["price", str(path), "--actions", "--json", "--loop-rounds", *rounds])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    status, out, errors = said("40")
    assert status == 0
    notes = json.loads(out)["model"]["notes"]
    assert sum("counted as 40" in note for note in notes) == 2
    assert len(re.findall("counted as 40", errors)) == 2
    _, out, _ = said(f"{first}=40")
    assert sorted(re.findall(r"counted as (\d+)", out)) == ["1", "40"]
    assert "is not a number" in said("many")[2]
