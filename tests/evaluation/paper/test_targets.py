"""Targets are computed from rows: changing a row changes the verdict on its target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evaluation.paper import paper_cases, targets
from evaluation.paper.tables import CaseResult

Make = Callable[..., CaseResult]


def everywhere(found: Make, **ours: Any) -> list[CaseResult]:
    """Return rows of all five models on all three machines.

    Our plans score 0.5, a rival's 0.6; ``ours`` changes our row of T7B on tpu-v3.
    """
    rows = []
    for case in paper_cases.CASES:
        for machine in paper_cases.MACHINES:
            more = ours if (case.name, machine) == ("T7B 2k", "tpu-v3") else {}
            rows += [
                found(case.name, machine, "mcts", **more),
                found(case.name, machine, "manual", 0.6),
            ]
    return rows


@pytest.mark.parametrize(
    ("ours", "met"),
    [
        ({}, True),
        ({"score": 0.6}, True),
        ({"score": 0.6 * (1 + 1e-12)}, True),
        ({"score": 0.601}, False),
        ({"score": 0.4, "fits": False}, False),
    ],
)
def test_at_least_as_good(found: Make, ours: dict[str, Any], met: bool) -> None:
    target = targets.at_least_as_good(everywhere(found, **ours))
    assert target.met is met
    assert target.numbers[0] == f"{15 if met else 14} of 15 problems"
    assert "rivals: manual" in target.numbers
    assert any("T7B 2k on tpu-v3: mcts" in n for n in target.numbers) is not met
    assert bool(target.reason) is not met


def test_a_problem_without_rows_leaves_the_target_open(found: Make) -> None:
    rows = everywhere(found)[:-2]
    target = targets.at_least_as_good(rows)
    assert target.met is None
    assert target.numbers[0] == "14 of 14 problems"
    assert target.numbers[-1] == "no rows yet: T7B 2k on tpu-v3"
    assert targets.at_least_as_good([]).met is None
    crashed = [*rows, found("T7B 2k", "tpu-v3", "mcts", None), found("T7B 2k", "tpu-v3", "manual")]
    assert targets.at_least_as_good(crashed).met is None


@pytest.mark.parametrize(("theirs", "met"), [(25.0, True), (24.9, False)])
def test_times_slower(found: Make, theirs: float, met: bool) -> None:
    rows = [found("UNet", "a100", "mcts"), found("UNet", "a100", "automap", 0.7, own=theirs)]
    rows += [found("GNS", "p100", "mcts"), found("GNS", "p100", "automap", own=100.0)]
    rows += [found("ITX", "p100", "mcts"), found("ITX", "p100", "automap", own=0.1)]
    target = targets.time_to_own_best(rows)
    assert target.met is met
    assert bool(target.reason) is not met
    first, second = target.numbers
    assert first == f"UNet on a100: {theirs:.2f} s / 1.00 s = {theirs:.1f}"
    assert second == "GNS on p100: 100.00 s / 1.00 s = 100.0"
    assert targets.time_to_equal_plan(rows).met is met
    better = targets.time_to_equal_plan(
        [rows[0], found("UNet", "a100", "automap", 0.4, own=theirs)]
    )
    assert better.met is False
    assert better.numbers[0] == f"UNet on a100: {theirs:.2f} s, and never"
    assert targets.time_to_own_best(rows[:1]).met is None


@pytest.mark.parametrize(
    ("own", "score", "met"),
    [(9.7, 0.5, True), (9.8, 0.5, False), (1.0, 0.51, False), (9, 0.5, True)],
)
def test_within_one_percent_in_ten_seconds(
    found: Make, own: float, score: float, met: bool
) -> None:
    name = paper_cases.FOUR_BY_FOUR.name
    rows = [
        found(name, "tpu-v5e", "mcts", score, own=own, part="goals"),
        found(name, "tpu-v5e", "alpa", 0.5, part="goals"),
    ]
    target = targets.close_in_time(rows)
    assert target.met is met
    assert targets.close_in_time(rows[1:]).met is None


def small(found: Make, hits: int, seeds: int = 20, proof: str = "COMPLETE") -> list[CaseResult]:
    rows = []
    for name, *_ in paper_cases.SMALL_PROGRAMS:
        rows.append(found(name, "tpu-v5e", "exhaustive", 0.5, part="goals", status=proof))
        n = hits if name == "attention" else seeds
        rows += [
            found(name, "tpu-v5e", "mcts", 0.5 if i < n else 0.50001, part="goals", seed=i)
            for i in range(seeds)
        ]
    return rows


def test_the_optimum_in_all_seeds(found: Make) -> None:
    assert targets.optimum(small(found, 20)).met is True
    missed = targets.optimum(small(found, 19))
    assert missed.met is False
    assert "attention: 19 of 20 seeds" in missed.numbers
    assert targets.optimum(small(found, 19, 19)).met is None, "20 seeds are asked for"
    assert targets.optimum(small(found, 20, proof="BUDGET")).met is None, "nothing was proven"


@pytest.mark.parametrize(
    ("power", "status", "met"),
    [(0.45, "CONVERGED", True), (0.55, "CONVERGED", False), (0.4, "BUDGET", None)],
)
def test_growth(found: Make, power: float, status: str, met: bool | None) -> None:
    rows = [
        found(
            f"{n} layers", "tpu-v4", "mcts", part="depth", x=float(n), own=n**power, status=status
        )
        for n in (18, 36, 288)
    ]
    target = targets.growth(rows)
    assert target.met is met
    assert target.numbers[0] == f"exponent {power:.2f}"
    assert bool(target.reason) is (met is False)
    assert targets.growth(rows[:1]).met is None


def test_sizes_to_try_out_neither_meet_nor_miss(found: Make) -> None:
    assert {t.met for t in targets.targets(everywhere(found), quick=True)} == {None}
    assert targets.targets(everywhere(found))[0].met is True
