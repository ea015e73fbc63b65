"""Which mesh to take, asked on the page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import toast_lab as tl
from toast_lab.app.from_search import set_up_to_compare
from toast_lab.app.pages.advise_page import AdvisePage
from toast_lab.app.session import Session
from toast_lab.jobs.advise_job import PageAdvice
from toast_lab.jobs.job import JobState, Registry

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")

SIZES = {"layers": 2, "batch": 16, "sequence": 128, "d_model": 64, "hidden": 128, "heads": 4}
MODEL = ("transformer", {**SIZES, "vocab": 128})
LIMIT_GIB = 0.004
#: the same rows on every machine
OPTIONS: dict[str, Any] = {"evaluations": 8, "workers": 0}


def settled(session: Session, seconds: float = 150) -> None:
    deadline_s = time.monotonic() + seconds
    while session.work.busy and time.monotonic() < deadline_s:
        session.tick()
        time.sleep(0.05)
    assert not session.work.busy


@pytest.fixture(scope="module")
def loaded() -> Iterator[Session]:
    registry = Registry()
    session = Session(registry)
    session.load(*MODEL)
    settled(session)
    session.set_problem(mesh="data=4", machine="tpu-v5e")
    yield session
    registry.cancel_all()


@pytest.fixture(scope="module")
def advised_once(loaded: Session) -> Session:
    session = loaded.fork()
    session.mesh_advice.start("tpu-v5e", 4, LIMIT_GIB, **OPTIONS)
    settled(session)
    return session


@pytest.fixture
def session(loaded: Session) -> Session:
    return loaded.fork()


@pytest.fixture
def advised(advised_once: Session) -> Session:
    """A page of its own, with the advice that was asked for once."""
    return advised_once.fork()


def test_its_rows_are_those_of_the_library_and_every_kind_opens_as_a_plan(
    advised: Session,
) -> None:
    state = advised.mesh_advice.state
    expected = tl.advise(
        tl.load(MODEL[0], **MODEL[1]),
        "tpu-v5e",
        4,
        memory_limit_bytes=LIMIT_GIB * 2**30,
        **OPTIONS,
    )
    assert [str(row) for row in state.rows] == [str(row) for row in expected.rows]
    assert state.end.answers == expected.answers
    assert expected.answers[0] in advised.notices.messages[-1].text
    kinds = {
        (bool(row.choice.policies), row.parts > 1): row
        for row in reversed(state.rows)
        if row.devices > 1
    }
    assert {(False, False), (True, False), (False, True)} <= set(kinds)
    for row in kinds.values():
        set_up_to_compare(advised, row)
        item = advised.plans.items[-1]
        assert advised.step == "compare"
        assert advised.plans.wanted == item.name
        assert item.name.startswith(f"advised {row.shape}")
        assert str(item.problem.mesh) == str(row.mesh) == advised.loaded.mesh
        assert item.problem.memory_limit_bytes == LIMIT_GIB * 2**30
        assert item.cost.time_s == pytest.approx(row.priced.time_s, rel=1e-9)
        policies = row.choice.policies
        assert bool(item.problem.analysis.model.recompute) == bool(policies)


def test_the_plan_of_a_program_that_recomputes_can_be_compiled(advised: Session) -> None:
    row = next(row for row in advised.mesh_advice.state.rows if row.choice.policies)
    set_up_to_compare(advised, row)
    advised.plans.start_compile(advised.plans.items[-1].name)
    settled(advised)
    assert advised.plans.items[-1].compiled is not None


def test_a_plan_opens_under_the_names_that_colours_have_by_now(advised: Session) -> None:
    advised.rename_colour("batch", "examples")
    row = next(
        row
        for row in advised.mesh_advice.state.rows
        if not row.choice.policies and row.parts == 1 and "batch->data" in row.priced.actions
    )
    set_up_to_compare(advised, row)
    (action, *_) = [text for text in advised.plans.items[-1].plan.actions if "->data" in text]
    assert action.startswith("examples")


def test_the_page_draws_the_rows_and_a_click_on_a_cell_chooses_its_set_up(
    advised: Session,
) -> None:
    page = AdvisePage(advised)
    rows = advised.mesh_advice.state.rows
    assert list(page.table.value["mesh"]) == [row.shape for row in rows]
    assert page.chosen is rows[0]
    assert "<p>Fastest" in str(page._answers.object)
    assert str(page._facts.object).startswith("<h2>set-up")
    figure = page._map.object
    (cells,) = [one for one in figure.renderers if one.name == "set-ups"]
    names = list(cells.data_source.data["name"])
    other = next(row for row in rows if str(row) in names and row is not rows[0])
    cells.data_source.selected.indices = [names.index(str(other))]
    assert page.chosen is other
    assert page.table.selection == [list(rows).index(other)]
    page.open.clicks += 1
    assert advised.step == "compare"
    assert advised.loaded.mesh == str(other.mesh)


def test_bad_fields_say_what_is_wrong_and_the_same_choice_twice_is_mended(
    session: Session,
) -> None:
    page = AdvisePage(session)
    assert not page.run.disabled
    page.devices.input.value_input = "0"
    assert page.run.disabled
    assert "out of range; give a whole number from 1 to" in str(page._why_not.object)
    page.devices.input.value_input = "4"
    assert not page.run.disabled
    page.machine.value = "h100"
    page.seconds.input.value_input = "2"
    page.run.clicks += 1
    assert session.work.runs("advise")
    assert page.run.disabled
    assert not page.stop.disabled
    settled(session)
    assert session.mesh_advice.state.advice.terms.machine.name == "h100"
    page.x.value = page.y.value
    assert page.x.value != page.y.value


def test_rows_are_kept_when_the_work_is_stopped_or_killed(session: Session) -> None:
    advice = session.mesh_advice
    for end in (advice.stop, session.cancel):
        advice.start("tpu-v5e", 64, None, seconds=300, workers=0)
        deadline_s = time.monotonic() + 100
        while not advice.state.rows and time.monotonic() < deadline_s:
            session.tick()
            time.sleep(0.05)
        end()
        settled(session, 60)
        assert advice.state.rows
        assert not advice.running
    assert session.work.job.state is JobState.CANCELLED


def test_a_page_that_is_reloaded_shows_the_rows_and_goes_on(session: Session) -> None:
    session.mesh_advice.start("tpu-v5e", 4, LIMIT_GIB, **OPTIONS)
    forked = session.fork()
    settled(forked)
    assert forked.mesh_advice.state.end is not None
    assert forked.mesh_advice.state.rows


def test_without_a_model_it_says_so(jobs: Registry) -> None:
    session = Session(jobs)
    page = AdvisePage(session)
    assert page.run.disabled
    assert "load a model first" in str(page._why_not.object)
    session.mesh_advice.start("tpu-v5e", 4, None)
    assert session.notices.messages[-1].text == "Load a model first."
    assert session.mesh_advice.state is None


def test_an_event_that_comes_twice_changes_nothing(advised: Session) -> None:
    job = advised.work.job
    again = PageAdvice(advised.mesh_advice.state.model)
    for event in [*job.since(0), *job.since(0)]:
        again.take(event.data)
    assert [str(row) for row in again.rows] == [str(row) for row in advised.mesh_advice.state.rows]
