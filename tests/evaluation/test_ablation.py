"""What a rule of the price is good for: rows, figures, noise, and the page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import toast_lab as tl
from evaluation import pages
from evaluation.ablation import page, rows, ties
from evaluation.ablation.judged import Plan, Subject, choices, figures, judged, worse_without
from evaluation.corpus import compiled, plans
from evaluation.corpus.judged_plans import Pair, pairs
from evaluation.corpus.targets import JUDGED_ON, target
from evaluation.row_files import read_rows
from toast_lab.cost.price_rules import RULES
from toast_lab.cost.problem import Problem


def plan(time_s: float, told_s: float, *, peak: float = 1.0, fits: bool = True) -> Plan:
    return Plan(
        time_s=time_s,
        clocked_s=time_s,
        peak_bytes=peak,
        told_s=told_s,
        told_clocked_s=told_s,
        told_bytes=1.0,
        fits=fits,
    )


#: The price chooses the second plan, which is 10% slower than the best.
SLOWER = (plan(3.0, 1.0), plan(2.0, 1.1), plan(4.0, 2.0), plan(5.0, 3.0), plan(6.0, 4.0))
BEST = (plan(1.0, 1.0), *SLOWER[1:])


def test_figures_of_one_program() -> None:
    assert judged(SLOWER).regret == pytest.approx(0.1)
    assert judged(BEST).regret == 0.0
    assert judged(SLOWER).rank == pytest.approx(0.9)
    assert judged(BEST).rank == pytest.approx(1.0)
    assert math.isnan(judged(BEST[:4]).rank), "too few to rank"
    assert math.isnan(judged(BEST[:1]).regret)
    assert judged((plan(1.5, 1.0, peak=0.5),)).time_errors.tolist() == [0.5]
    assert judged((plan(1.5, 1.0, peak=0.5),)).peak_errors.tolist() == [0.5]


def test_a_plan_that_does_not_fit_is_not_chosen() -> None:
    too_large = plan(0.5, 9.0, fits=False)
    assert judged((*BEST, too_large)).regret == 0.0


def test_a_rule_that_helps_every_program_is_beyond_noise() -> None:
    helped = [Subject("mlp", BEST, SLOWER)] * 4
    without = worse_without(helped)
    assert without.regret == without.rank == 1.0
    assert without.peak_error == 0.5, "the same in every draw"
    assert choices(helped) == (4, 0)
    mixed = [*helped[:2], *[Subject("mlp", SLOWER, BEST)] * 2]
    assert 0.1 < worse_without(mixed).regret < 0.9
    assert choices(mixed) == (2, 2)
    assert figures([judged(SLOWER), judged(BEST)]).regret == pytest.approx(0.05)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Rows of one small program with two plans."""
    analysis = tl.analyse(tl.load("mlp", batch=4096))
    where = target(JUDGED_ON)
    problem = Problem(analysis, where.mesh, where.machine)
    drafts = list(plans.drafts(analysis.model, problem, JUDGED_ON, ("data", "data both"), {}))
    made = [
        {
            "program": "mlp",
            "digest": rows.program_digest(problem.analysis.model),
            "topology": JUDGED_ON,
            "plan": draft.name,
            "sharding": plans.encoded(draft.plan),
            "time_s": 1e-3,
            "peak_bytes": 1e6,
            "fits": True,
            "compute_s_by_op": {},
        }
        for draft in drafts
    ]
    monkeypatch.setattr(rows, "ROWS", tmp_path / "rows.jsonl")
    monkeypatch.setattr(compiled, "rows", lambda: made)
    monkeypatch.setattr(rows.programs, "traced", lambda _: (analysis.model, analysis, ""))
    return made


def test_rows_are_made_once_for_each_rule(few: list[dict[str, Any]]) -> None:
    rows.generate(topologies=[JUDGED_ON], rules=["memory_sustained"])
    first = read_rows(rows.ROWS)
    assert [row["rule"] for row in first] == [rows.ALL_RULES, "memory_sustained"]
    assert first[0]["plans"] == [row["plan"] for row in few]
    rows.generate(topologies=[JUDGED_ON], rules=["memory_sustained", "few_images"])
    every = read_rows(rows.ROWS)
    assert every[:2] == first
    assert [row["rule"] for row in every[2:]] == ["few_images"]
    # A rule that changes no price has a row without prices
    assert "time_s" not in every[2]
    assert every[1]["time_s"] < every[0]["time_s"]


def test_each_rule_of_a_compiler_is_left_out() -> None:
    for compiler in ("tpu", "gpu"):
        names = {rule.name for rule in RULES if compiler in rule.compilers}
        assert names <= set(rows.subjects(compiler))


def test_the_page_is_made_from_the_rows() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    lines = page.lines()
    assert "\n".join(lines) in text, "python -m evaluation ablation page"


def compiled_pair(program: str, priced_s: float, told_s: float, peak: float) -> Pair:
    return Pair(
        program=program,
        topology=JUDGED_ON,
        plan=f"{priced_s} {told_s}",
        compiled={"time_s": told_s},
        priced={"time_s": priced_s, "peak_bytes": peak, "fits": True},
    )


def test_near_ties_are_counted_by_pair_and_by_program() -> None:
    def lower_peak(pair: Pair) -> float:
        peak: float = pair.priced["peak_bytes"]
        return peak

    mlp = [
        compiled_pair("mlp", 1.0, 1.0, 4.0),
        compiled_pair("mlp", 1.001, 2.0, 3.0),
        compiled_pair("mlp", 0.999, 3.0, 2.0),
    ]
    near = ties.near_ties(mlp, 0.003)
    assert [(fast.plan, slow.plan) for fast, slow in near] == [
        ("1.0 1.0", "1.001 2.0"),
        ("1.0 1.0", "0.999 3.0"),
        ("1.001 2.0", "0.999 3.0"),
    ]
    gns = [compiled_pair("gns", 1.0, 1.0, 1.0), compiled_pair("gns", 1.0, 1.1, 2.0)]
    near += ties.near_ties(gns, 0.003)
    assert ties.choices(near, lower_peak) == ((1, 1), (1, 3))
    assert ties.near_ties([mlp[0], compiled_pair("mlp", 1.1, 2.0, 1.0)], 0.003) == []
    assert ties.near_ties([mlp[0], compiled_pair("mlp", 1.0, 1.005, 1.0)], 0.003) == []
    equal = [compiled_pair("mlp", 1.0, told_s, 1.0) for told_s in (1.0, 2.0)]
    assert ties.choices(ties.near_ties(equal, 0.003), lower_peak) == ((0, 0), (0, 0))


def test_the_table_of_near_ties_is_that_of_the_rows() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert pages.with_part(text, "ties", ties.lines(pairs())) == text
