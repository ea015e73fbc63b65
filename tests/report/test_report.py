"""A report has its sections and numbers, shows names as text, and refuses wrong input."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toast_lab as tl
from tests.cost.test_price_list import entries_of
from tests.helpers import analysed, small_transformer
from tests.report.evil_report import ENDING, EVIL, evil_report
from toast_lab.compare.result import Comparison
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.price_list import PriceList
from toast_lab.cost.problem import Problem, price
from toast_lab.lowering.listing import listing_lines
from toast_lab.report import prose
from toast_lab.report.linked_parts import alike_conflicts, make_links
from toast_lab.report.plan_sections import argument_rows, report_listing
from toast_lab.report.report import Report, report
from toast_lab.report.subject import ReportSubject, make_subject
from toast_lab.runtime.compiled import Compiled
from toast_lab.runtime.compiled_store import CompiledStore
from toast_lab.sharding.space import parse_action
from toast_lab.sharding.state import State

SECTIONS = ["summary", "written", "plan", "conflicts", "collectives", "price", "timeline", "memory"]
COMPILED = Path(__file__).parents[1] / "browser" / "attention_h100.json"


class ReportReader(HTMLParser):
    """Collects the elements, attributes and texts of a page as a browser would parse them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.data: dict[str, Any] = {}
        self._inside: list[tuple[str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.tags.append(tag)
        self.attributes += given.items()
        if "id" in given:
            self.ids.append(given["id"])
        self._inside.append((tag, given.get("id", "")))

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tag, name = self._inside[-1] if self._inside else ("", "")
        if tag == "script" and name:
            self.data[name] = json.loads(data)
        elif tag not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())


@pytest.fixture(scope="module")
def attention() -> Problem:
    sizes = {"sequence": 4096, "d_model": 512, "key": 64, "value": 64}
    return Problem(analysed("attention", **sizes), {"s": 8})


@pytest.fixture(scope="module")
def transformer() -> Problem:
    return Problem(small_transformer(layers=3), {"data": 2, "model": 2})


def plan_of(problem: Problem, *actions: object) -> tl.Plan:
    return tl.Plan.from_actions(problem, actions)


def subject_of(problem: Problem, *plans: Any, **options: Any) -> ReportSubject:
    return make_subject(
        problem, {f"plan {place}": plan for place, plan in enumerate(plans)}, kept=False, **options
    )


def read(finished: Report) -> ReportReader:
    return ReportReader(finished.html)


# -- sections --------------------------------------------------------------------------------------
def test_summary_and_plan_come_first_and_every_part_has_its_anchor(attention: Problem) -> None:
    plan = plan_of(attention, "S@1->s")
    page = read(report(attention, plan, kept=False))
    sections = [name for name in page.ids if name in {*SECTIONS, "program", "origin", "plans"}]
    assert sections == [*SECTIONS, "program", "origin"]
    anchors = [value for key, value in page.attributes if key == "href"]
    assert {f"#{name}" for name in sections} <= set(anchors)
    cost = price(attention, plan)
    assert f"{cost.time_s * 1e6:.3g} µs" in page.text
    assert "neither compiled nor measured" in page.text
    assert page.tags.count("h1") == 1
    assert "Skip to the report" in page.text


def test_a_second_plan_is_compared(attention: Problem) -> None:
    first, second = plan_of(attention, "S@1->s"), plan_of(attention, "S@0->s")
    page = read(report(attention, {"side 1": first, "side 0": second}, kept=False))
    assert "plans" in page.ids
    assert "Against side 0" in page.text
    assert "From side 0 to side 1" in page.text


def test_a_search_says_how_it_found_the_plan(attention: Problem) -> None:
    result = tl.search(attention, budget=tl.Budget(seconds=None, evaluations=200))
    by_result = read(report(result, kept=False))
    by_problem = read(report(attention, result, kept=False))
    for page in (by_result, by_problem):
        assert result.message in page.text
        assert "mcts, seed 0" in page.text
        assert page.data["plan-file"] == by_result.data["plan-file"]


def test_the_plan_inside_can_be_loaded_again(attention: Problem, tmp_path: Path) -> None:
    plan = plan_of(attention, "S@1->s")
    page = read(report(attention, plan, kept=False))
    path = tmp_path / "plan.json"
    path.write_text(page.data["plan-file"])
    assert tl.Plan.load(path, attention).sharding.same_as(plan.sharding)


def test_nothing_can_be_loaded_by_the_page(attention: Problem) -> None:
    html = report(attention, plan_of(attention, "S@1->s"), kept=False).html
    page = ReportReader(html)
    policy = next(value for key, value in page.attributes if value.startswith("default-src"))
    assert "default-src 'none'" in policy
    assert "http" not in policy
    sources = [value for key, value in page.attributes if key in ("src", "href")]
    assert sources
    assert all(value.startswith("#") for value in sources)


def test_a_program_without_conflicts_says_so() -> None:
    problem = Problem(analysed("mlp"), {"data": 2})
    page = read(report(problem, tl.replicated(problem), kept=False))
    assert "None: no tensor of this program has two dims of one colour." in page.text
    assert "There is no communication" in page.text


# -- sentences -------------------------------------------------------------------------------------
def test_the_side_that_is_taken_and_its_effect(attention: Problem) -> None:
    board = tl.conflicts(attention)
    sides = {side: plan_of(attention, f"S@{side}->s") for side in (0, 1)}
    texts = {
        side: re.sub(r"<[^>]*>", "", prose.choices_text(attention, plan, board))
        for side, plan in sides.items()
    }
    tensor = board.disputes[0].tensors[0]
    for side, text in texts.items():
        assert f"takes dim {tensor.dims[side]} over s" in text
    none = prose.choices_text(attention, tl.replicated(attention), board)
    assert "the plan cuts neither" in none


def test_a_side_without_effect_is_not_claimed() -> None:
    """Heads have the axis on every tensor in which the sequence conflicts with itself."""
    problem = Problem(small_transformer(), {"model": 2})
    plan = plan_of(problem, "heads->model", "sequence@1->model")
    assert {alike.settled for alike in alike_conflicts(problem.analysis, plan)} == {"neither dim"}
    text = prose.choices_text(problem, plan, tl.conflicts(problem))
    assert "no effect" in text


def test_a_refined_plan_is_told_by_what_it_cuts(attention: Problem) -> None:
    plan = plan_of(attention, "S@1->s")
    assert prose.plan_actions(attention, plan).exact
    sharding = plan.sharding.copy()
    sharding.value_dim[int(np.flatnonzero(plan.value_dim[:, 0] >= 0)[-1]), 0] = -1
    refined = dataclasses.replace(plan, sharding=sharding.frozen(), key=0)
    assert not prose.plan_actions(attention, refined).exact
    text = re.sub(r"<[^>]*>", "", prose.cuts_text(attention, refined))
    assert re.search(r"then refined op by op.* over s: S \d+%", text)


def test_a_plan_that_was_refined_after_its_actions_keeps_the_side_and_tells_the_gain(
    attention: Problem,
) -> None:
    plan = plan_of(attention, "S@1->s")
    sharding = plan.sharding.copy()
    sharding.value_dim[int(np.flatnonzero(plan.value_dim[:, 0] >= 0)[-1]), 0] = -1
    refined = dataclasses.replace(
        plan,
        sharding=sharding.frozen(),
        key=0,
        refinements=("refined in 1 place, by integer programs",),
    )
    text = re.sub(r"<[^>]*>", "", prose.cuts_text(attention, refined))
    assert "S over s; then 1 value changed by integer programs, for " in text
    gained = price(attention, refined).score / price(attention, plan).score - 1
    assert f"{abs(gained):.2%} {'more' if gained > 0 else 'less'} C(s)" in text
    board = tl.conflicts(attention)
    choices = prose.choices_text(attention, refined, board)
    assert f"takes dim {board.disputes[0].tensors[0].dims[1]} over s" in choices
    assert "no action takes a side" not in choices
    page = read(report(attention, refined, kept=False))
    assert "1 value changed by integer programs" in page.text


def test_names_of_layers_are_left_out() -> None:
    assert prose.family("params['layers'][3]['w_up']") == "params['layers'][*]['w_up']"
    assert prose.family("params['layer_12'].bias") == "params['layer_*'].bias"
    assert prose.family("w2") == "w2"
    assert prose.spec_words([["data", "model"], []]) == "dim 0 over data and model"
    assert prose.spec_words([[], []]) == "whole"


def test_arguments_of_layers_share_a_row_and_nothing_is_lost(transformer: Problem) -> None:
    plan = plan_of(transformer, "heads->model", "batch->data")
    rows = argument_rows(subject_of(transformer, plan))
    program = transformer.analysis.program
    assert sum(row.places for row in rows) == program.n_arguments
    wq = next(row for row in rows if row.name.endswith("['wq']") and row.name.startswith("params"))
    assert (wq.places, wq.name) == (3, "params['layers'][*]['wq']")
    assert prose.spec_words(wq.spec) == "dim 1 over model"
    assert wq.local_dims == (wq.dims[0], wq.dims[1] // 2, *wq.dims[2:])
    whole = sum(program.nbytes(argument) for argument in range(program.n_arguments))
    unsharded = argument_rows(subject_of(transformer, tl.replicated(transformer)))
    assert sum(row.local_bytes for row in unsharded) == pytest.approx(whole)


# -- consistency -----------------------------------------------------------------------------------
def linked(problem: Problem, plan: tl.Plan) -> tuple[Analysis, Any]:
    subject = subject_of(problem, plan)
    listing = report_listing(problem.analysis, listing_lines(problem, plan))
    sets = [dispute.sets for dispute in tl.conflicts(problem).disputes]
    return problem.analysis, make_links(subject, listing, sets)


def test_every_conflict_has_its_row_its_line_and_its_source(transformer: Problem) -> None:
    plan = plan_of(transformer, "sequence@1->model")
    analysis, links = linked(transformer, plan)
    members = [conflict for alike in links.rows for conflict in alike.conflicts]
    assert sorted(members) == list(range(len(analysis.conflicts)))
    assert len(links.rows) < len(members), "those of layers share rows"
    for alike, data in zip(links.rows, links.data["conflicts"], strict=True):
        facts = dict(data["facts"])
        assert facts["source"].strip()
        assert facts["line"] == alike.where
        assert data["nodes"]
        assert data["edges"]
        assert data["lines"]
    edges = {row for rows in links.data["edges"] for row in rows}
    assert edges == set(range(len(links.rows)))


def test_each_op_with_a_line_leads_to_one_of_its_kind(transformer: Problem) -> None:
    plan = plan_of(transformer, "heads->model", "batch->data")
    analysis, links = linked(transformer, plan)
    listing = links.listing
    assert len(listing.shown) < 0.6 * len(listing.lines), "three layers are folded"
    covered = [place for block in listing.blocks for place in range(block.start, block.stop)]
    assert covered == list(range(len(listing.lines)))
    for line in listing.lines:
        shown = listing.lines[listing.shown[listing.line_of_op[line.op]]]
        assert analysis.program.kind[shown.op] == analysis.program.kind[line.op]
    assert links.pick_of_op(-1) == ""


# -- compiled and measured -------------------------------------------------------------------------
@pytest.fixture
def compiled(attention: Problem) -> tuple[Problem, tl.Plan, Compiled]:
    """The kept result of the GPU compiler for the built-in attention, with problem and plan."""
    problem = Problem(analysed("attention"), {"data": 2, "model": 4}, "h100")
    kept = Compiled.load(COMPILED)
    plan = plan_of(problem, "S@0->data")
    build = dataclasses.replace(kept, plan_key=plan.key, program=problem.analysis.program.digest())
    return problem, plan, build


def test_what_was_compiled_stands_beside_the_price(
    compiled: tuple[Problem, tl.Plan, Compiled],
) -> None:
    problem, plan, build = compiled
    page = read(report(problem, plan, compiled=build, kept=False))
    assert "evidence" in page.ids
    assert f"compiled for {build.topology}" in page.text
    assert "neither compiled nor measured" not in page.text


def test_kept_results_are_shown_unless_they_are_of_another_plan(
    compiled: tuple[Problem, tl.Plan, Compiled],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, plan, build = compiled
    monkeypatch.setenv("TOAST_LAB_COMPILED", str(tmp_path / "compiled.sqlite"))
    monkeypatch.setenv("TOAST_LAB_RUNS", str(tmp_path / "runs.sqlite"))
    with CompiledStore() as store:
        store.keep("key", build, problem.analysis.model.name)
    assert "evidence" in read(report(problem, plan)).ids
    assert "evidence" not in read(report(problem, plan, kept=False)).ids
    assert "evidence" not in read(report(problem, plan_of(problem, "S@1->data"))).ids


def test_a_result_of_no_plan_of_the_report_is_refused(
    compiled: tuple[Problem, tl.Plan, Compiled],
) -> None:
    problem, _, build = compiled
    with pytest.raises(tl.ToastError, match="not in this report") as caught:
        report(problem, plan_of(problem, "S@1->data"), compiled=build)
    assert f"{build.plan_key:016x}" in str(caught.value)


def test_a_measurement_names_its_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is shown when it is passed, and when it is found in the store."""
    monkeypatch.setenv("TOAST_LAB_RUNS", str(tmp_path / "runs.sqlite"))
    monkeypatch.setenv("TOAST_LAB_COMPILED", str(tmp_path / "compiled.sqlite"))
    problem = Problem(analysed("mlp"), {"data": 2})
    plan = plan_of(problem, "B->data")
    options: dict[str, Any] = {"repeats": 2, "rounds": 1, "gradients": False, "store": True}
    comparison = tl.compare(problem.analysis.model, {"data": plan}, "cpu:2", **options)
    assert isinstance(comparison, Comparison)
    assert comparison.stored_as
    passed = read(report(problem, {"data": plan}, measured=comparison, kept=False))
    kept = read(report(problem, {"data": plan}))
    for page in (passed, kept):
        assert "measured on cpu:2" in page.text
        assert "say nothing about accelerators" in page.text
    with pytest.raises(tl.ToastError, match="executed data, none of which is a plan of this"):
        report(problem, {"whole": tl.replicated(problem)}, measured=comparison, kept=False)


# -- escaping --------------------------------------------------------------------------------------
def test_no_name_path_or_source_line_becomes_an_element(tmp_path: Path) -> None:
    page = read(evil_report(tmp_path))
    assert "img" not in page.tags
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    assert EVIL in "".join(page.texts), "the argument is shown by its name"
    assert ENDING in "".join(page.texts)
    sources = [
        text
        for conflict in page.data["links"]["conflicts"]
        for label, text in conflict["facts"]
        if label == "source"
    ]
    assert any(EVIL in text and ENDING in text for text in sources)
    # Four scripts of data, Bokeh's and ours
    assert page.tags.count("script") == 6


# -- refusals --------------------------------------------------------------------------------------
def test_what_is_wrong_is_said(attention: Problem, tmp_path: Path) -> None:
    plan = plan_of(attention, "S@1->s")
    other = Problem(analysed("mlp"), {"s": 8})
    with pytest.raises(tl.ToastError, match="needs a plan"):
        report(attention)
    with pytest.raises(tl.ToastError, match="not str"):
        report(attention, ["plan.json"])  # type: ignore[list-item]
    with pytest.raises(tl.ToastError, match="this plan is for the program"):
        report(other, plan)
    elsewhere = Problem(attention.analysis, {"s": 4})
    with pytest.raises(tl.ToastError, match="for the mesh s=8, not for s=4"):
        report(elsewhere, plan)
    with pytest.raises(tl.ToastError, match="measured has runs for b, which are not plans"):
        report(attention, {"a": plan}, measured={"b": None}, kept=False)  # type: ignore[dict-item]
    path = tmp_path / "none" / "report.html"
    with pytest.raises(tl.ToastError, match="the report could not be written: No such file"):
        report(attention, plan, path, kept=False)


def test_a_file_that_is_there_stays_if_the_report_fails(attention: Problem, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    plan = plan_of(attention, "S@1->s")
    with pytest.raises(tl.ToastError):
        report(Problem(attention.analysis, {"s": 4}), plan, path)
    assert path.read_text() == "before"
    finished = report(attention, plan, path, kept=False)
    assert path.read_text() == finished.html
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_packages_that_lack_are_named(attention: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(tl.ToastError, match=r'needs bokeh.*pip install "toast-lab\[app\]"'):
        report(attention, plan_of(attention, "S@1->s"))


def test_prices_from_a_list_are_told(attention: Problem) -> None:
    state = State(attention.space)
    state.apply(parse_action(attention.analysis, attention.mesh, "S@1->s"))
    listed = attention.with_prices(PriceList(tuple(entries_of(attention, state, 3.0))))
    page = read(report(listed, plan_of(listed, "S@1->s"), kept=False))
    assert re.search(r"Of the estimated time: \d+% compiled, \d+% rule", page.text)
    slower = attention.with_prices(PriceList((), 2.0, 2.0))
    result = tl.search(slower, budget=tl.Budget(seconds=None, evaluations=50))
    with pytest.raises(tl.ToastError, match="did not price its plan by the rules of"):
        report(result)


def test_a_machine_of_ones_own_needs_the_problem(attention: Problem) -> None:
    machine = dataclasses.replace(attention.machine, name="ours")
    problem = Problem(attention.analysis, attention.mesh, machine)
    result = tl.search(problem, budget=tl.Budget(seconds=None, evaluations=50))
    with pytest.raises(tl.ToastError, match="Give the problem first"):
        report(result)
    assert "ours" in report(problem, result, kept=False).html
