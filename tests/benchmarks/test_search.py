"""The benchmark of searches: rows are kept and gone on with, and a missed target is said."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.benchmarks import search, search_report
from tests.benchmarks.search_report import Row


def row(table: str, **values: object) -> Row:
    base = {
        "table": table, "model": "t2b", "sizes": "layers=18,mode=train", "mesh": "4x4", "machine": "tpu-v5e",
        "method": "mcts", "seed": 0, "seconds": 30.0, "threads": "", "ops": 12000, "devices": 16, "axes": 2,
        "status": "CONVERGED", "whole_s": 1.0, "elapsed_s": 1.0, "simulations": 900, "evaluations": 600, "score": 0.5,
        "fits": 1, "bound": "", "curve": "0.1:1.0:1 0.4:0.5:1", "on": "2 x86_64 cores",
    }  # fmt: skip
    return {name: str(value) for name, value in {**base, **values}.items()}


def grown(exponent: float) -> list[Row]:
    return [
        row("layers", sizes=f"layers={n},mode=train", seed=seed, whole_s=0.3 * (n / 18) ** exponent)
        for n in (18, 36, 72)
        for seed in (0, 1, 2)
    ]


def test_near_counts_from_the_first_plan_that_is_good_enough_and_fits() -> None:
    one = row("target", curve="0.1:0.2:0 0.2:0.505:1 0.9:0.5:1")
    assert search_report.near_s(one, (False, 0.5)) == 0.2
    assert search_report.near_s(one, (False, 0.4)) == math.inf
    assert search_report.near_s(one, (True, 0.2)) == 0.1, "nothing fits: the lowest is the best"


@pytest.mark.parametrize(("exponent", "met"), [(0.4, True), (0.6, False)])
def test_growth_with_layers_is_judged_by_its_exponent(exponent: float, met: bool) -> None:
    (found,) = search_report.targets(grown(exponent))
    assert found.found == f"{exponent:.2f}"
    assert found.met is met


def test_searches_that_their_budget_ended_meet_nothing() -> None:
    rows = [{**r, "status": "BUDGET"} if "=72" in r["sizes"] else r for r in grown(0.4)]
    (found,) = search_report.targets(rows)
    assert not found.met
    assert "did not end" in found.found


def test_the_best_plan_of_any_method_is_what_ours_has_to_reach() -> None:
    mine = row("target", curve="0.1:0.504:1 12.0:0.5:1")
    (found,) = search_report.targets([mine])
    assert (found.met, found.found) == (True, "0.10 s")
    rival = row("target", method="beam", score=0.498)
    (found,) = search_report.targets([mine, rival])
    assert (found.met, found.found) == (False, "12.00 s")
    (found,) = search_report.targets([mine, rival, row("devices", score=0.4)])
    assert (found.met, found.found) == (False, "never")
    (found,) = search_report.targets([mine, row("devices", score=0.4, machine="a100")])
    assert found.met, "another machine is another problem"


@pytest.mark.parametrize(
    ("status", "scores", "text"),
    [
        ("COMPLETE", (0.5, 0.5), "2 of 2 seeds"),
        ("COMPLETE", (0.5, 0.5001), "1 of 2 seeds"),
        ("BUDGET", (0.5, 0.5), "no proof within its budget"),
    ],
)
def test_a_proven_optimum_has_to_be_reached_by_every_seed(status: str, scores: tuple[float, ...], text: str) -> None:
    rows = [row("proven", model="mlp", sizes="", method="exhaustive", status=status)]
    rows += [row("proven", model="mlp", sizes="", seed=i, score=s) for i, s in enumerate(scores)]
    (found,) = search_report.targets(rows)
    assert found.found == text
    assert found.met is (text == "2 of 2 seeds")


def test_the_section_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Benchmarks\n\nBefore.\n")
    search_report.write(search_report.section(grown(0.6)), page)
    page.write_text(page.read_text() + "\n## After\n")
    search_report.write(search_report.section([*grown(0.4), row("threads", threads=1)]), page)
    text = page.read_text()
    assert text.count("## Search time") == 1
    assert text.startswith("# Benchmarks\n\nBefore.\n")
    assert text.endswith("\n## After\n")
    assert "| exponent of search time against layers | at most 0.5 | 0.40 | met |" in text
    assert "| 1 | 600 | 1.00 |" in text


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [
        search.Task("proven", "mlp", "", "2", "tpu-v5e", "exhaustive", 0, 20.0),
        search.Task("proven", "mlp", "", "2", "tpu-v5e", "mcts", 0, 20.0),
    ]
    monkeypatch.setattr(search, "tasks", lambda settings: few)
    measured: list[search.Task] = []
    measure = search.measure
    monkeypatch.setattr(search, "measure", lambda task, analysis: measured.append(task) or measure(task, analysis))
    path = tmp_path / "rows.csv"
    assert search.run(search.SMALL, path, tmp_path / "page.md") == []
    assert "mlp on 2: proven optimum | every seed | 1 of 1 seeds | met" in (tmp_path / "page.md").read_text()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:30])  # stopped while it wrote the last row
    search.run(search.SMALL, path, None)
    assert [t.method for t in measured] == ["exhaustive", "mcts", "mcts"]
    assert len(search.read_rows(path)) == 2
    search.run(search.SMALL, path, None)
    assert len(measured) == 5, "a complete run is measured anew"
