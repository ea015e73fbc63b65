"""A colour that is renamed on the page has its new name in all that the page gives."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("panel")

from toast_lab.app import link
from toast_lab.app.page_stack import steps
from toast_lab.app.plan_store import export_report
from toast_lab.app.session import Session
from toast_lab.errors import ToastError
from toast_lab.jobs import plan_job
from toast_lab.jobs.job import Registry, Watch
from toast_lab.jobs.orders import RUN
from toast_lab.plan_verbs import Plan

RENAMED = {"B": "rows", "U": "width"}
ACTIONS = ("rows->data", "width->model")


@pytest.fixture
def session(jobs: Registry) -> Session:
    """A plan by hand, after which two colours were renamed."""
    made = Session(jobs=jobs)
    made.load("mlp")
    made.set_problem(mesh="data=2,model=2")
    made.hand.take(["B->data", "U->model"])
    for old, new in RENAMED.items():
        made.rename_colour(old, new)
    return made


def manual(session: Session) -> Plan:
    item = session.plans.named("manual")
    assert item is not None
    return Plan.of(item.plan)


def watch() -> Watch:
    return Watch(on_event=lambda event: None, cancel=lambda: False, order=lambda: RUN)


def test_plans_and_their_trail_follow(session: Session) -> None:
    assert session.loaded.problem.analysis is session.loaded.analysis
    assert manual(session).actions == session.hand.actions == ACTIONS
    assert all(item.problem is session.loaded.problem for item in session.plans.items)
    assert session.plans.is_priced
    session.rename_colour("rows", "batch")
    session.hand.undo()
    session.hand.redo()
    assert session.hand.actions == ("batch->data", "width->model")
    session.hand.take(["batch->data"])
    session.hand.undo()
    assert session.hand.actions == ("batch->data", "width->model")


def test_what_has_been_written_is_kept(session: Session) -> None:
    item = session.plans.named("manual")
    assert item is not None
    plan_job.write(session.plans._as_plan(item), item.problem, watch=watch())
    size = session.plans.written_size(item)
    assert size is not None
    session.rename_colour("rows", "batch")
    item = session.plans.named("manual")
    assert item is not None
    assert session.plans.written_size(item) == size
    written = session.plans.written(item)
    assert "batch->data" in str(written)
    assert "rows->data" not in str(written)


def test_a_link_has_the_new_names(session: Session, jobs: Registry) -> None:
    query = link.query(link.write(session))
    view, refused = link.read(query, steps())
    assert not refused
    opened = Session(jobs=jobs)
    link.open_view(opened, view)
    assert opened.loaded.analysis.renames == RENAMED
    assert opened.hand.actions == ACTIONS
    assert link.query(link.write(opened)) == query
    # The names lead to their colours in a session that has renamed them itself
    opened.rename_colour("rows", "batch")
    link.open_view(opened, view)
    assert opened.loaded.analysis.renames == RENAMED


def test_a_report_has_the_new_names(session: Session) -> None:
    plan = manual(session)
    exported = export_report(plan, session.loaded.problem, "manual", None, watch=watch())
    assert "rows" in exported.text
    assert "rows->data" in exported.text.replace("&gt;", ">")
    assert "B->data" not in exported.text.replace("&gt;", ">")


def test_a_saved_plan_and_python_have_the_new_names(session: Session, jobs: Registry) -> None:
    plan, problem = manual(session), session.loaded.problem
    saved = plan_job.export(plan, problem, "manual", "json", watch=watch())
    fresh = Session(jobs=jobs)
    fresh.load("mlp")
    reloaded = Plan.from_json(json.loads(saved.text), fresh.loaded.analysis)
    assert reloaded.actions == ACTIONS
    assert reloaded.analysis is not None
    assert reloaded.analysis.renames == RENAMED
    # What stands in the exported Python leads to the same plan
    python = plan_job.export(plan, problem, "manual", "specs", watch=watch())
    names: dict[str, Any] = {}
    exec(python.text, names)
    fresh.set_problem(mesh="data=2,model=2")
    renamed = fresh.loaded.problem.renamed(names["COLOURS"])
    assert Plan.from_actions(renamed, names["ACTIONS"]).key == plan.key
    assert tuple(names["ACTIONS"]) == ACTIONS


def test_names_last_when_the_page_or_the_model_is_loaded_again(session: Session) -> None:
    assert session.fork().loaded.analysis.renames == RENAMED
    session.load("xxt")
    assert session.loaded.analysis.renames == {}
    session.load("mlp")
    assert session.loaded.analysis.renames == RENAMED
    assert session.hand.actions == ACTIONS


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "a colour needs a name"),
        ("a->b", "is not a name of letters"),
        ("X", "another colour is called X"),
        ("None", "a word of Python"),
        ("a" * 41, "at most 40 characters"),
    ],
)
def test_a_name_that_cannot_be_changes_nothing(session: Session, name: str, said: str) -> None:
    before = session.loaded.analysis, session.plans.items, session.hand.trails
    with pytest.raises(ToastError, match=said):
        session.rename_colour("rows", name)
    assert (session.loaded.analysis, session.plans.items, session.hand.trails) == before


def test_colours_of_repeated_layers_are_numbered_after_the_new_name(jobs: Registry) -> None:
    session = Session(jobs=jobs)
    session.load("transformer")
    session.rename_colour("key", "qk")
    names = session.loaded.analysis.colour_name
    assert {"qk", "qk_1"} <= {*names}
    assert not {"key", "key_1"} & {*names}
    assert ("colours", "key=qk") in link.write(session)
    session.rename_colour("qk", "key")
    assert session.loaded.analysis.renames == {}
