"""What would make room for a plan and which rules set the price of an op, asked on the page."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

import toast_lab as tl
from toast_lab.app.pages.compare_pictures import Timelines
from toast_lab.app.pages.compare_tables import Ops
from toast_lab.app.session import Session
from toast_lab.jobs.job import Registry

# Panel warns about parameters of buttons that version 2 renames
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")

SIZES = {
    "layers": 2,
    "batch": 16,
    "sequence": 256,
    "d_model": 64,
    "hidden": 128,
    "heads": 4,
    "vocab": 128,
}


def settled(session: Session) -> None:
    deadline_s = time.monotonic() + 120
    while session.work.busy and time.monotonic() < deadline_s:
        session.tick()
        time.sleep(0.05)
    assert not session.work.busy


def priced(jobs: Registry, which: str, sizes: dict[str, Any], **problem: Any) -> Session:
    """A session with a model and a problem, and so with the price of the unsharded plan."""
    session = Session(jobs=jobs)
    session.load(which, sizes)
    settled(session)
    session.set_problem(mesh="data=4", **problem)
    return session


def test_changes_that_make_room_are_shown_for_the_selected_plan(jobs: Registry) -> None:
    session = priced(jobs, "transformer", SIZES, memory_gib=0.05)
    item = session.plans.items[0]
    assert not item.cost.fits
    picture = Timelines(session, lambda *_: None, lambda _: None)
    picture.refresh(item)
    assert (picture.twin.visible, picture.changes.visible) == (True, False)
    picture._ask.clicks += 1
    assert picture._ask.disabled, "a job runs"
    settled(session)
    assert (picture.twin.visible, picture.changes.visible) == (False, True)
    shown = picture.changes.value
    reasons = tl.why_not(item.problem, item.plan)
    assert list(shown["one change"]) == [change.text for change in reasons.changes]
    assert list(shown[""]) == ["fits" if change.fits else "" for change in reasons.changes]
    assert "layer keeps its inputs" in list(shown["one change"])
    said = session.notices.messages[-1].text
    assert re.search(rf"{len(shown)} changes save memory, \d+ of them fit", said)
    # Under another limit nobody has asked yet
    session.set_problem(memory_gib=0.1)
    picture.refresh(session.plans.items[0])
    assert (picture.twin.visible, picture.changes.visible) == (True, False)


def test_a_forked_session_keeps_what_was_found(jobs: Registry) -> None:
    session = priced(jobs, "transformer", SIZES, memory_gib=0.05)
    item = session.plans.items[0]
    op = max(item.cost.ops, key=lambda op: op.time_s).op
    session.questions.ask_for_room(item)
    settled(session)
    session.questions.ask_for_rules(item)
    settled(session)
    other = session.fork()
    assert other.questions.room_of(item) == session.questions.room_of(item) is not None
    assert other.questions.rules_of(item, op) == session.questions.rules_of(item, op) is not None


def test_rules_of_the_op_that_was_clicked_are_shown(jobs: Registry) -> None:
    session = priced(jobs, "mlp", {"batch": 4096})
    item = session.plans.items[0]
    table = Ops(session, lambda *_: None)
    table.refresh(item)
    assert (table._ask.disabled, table._answer.visible) == (True, False), "nothing was clicked"
    row = list(table._frame["kind"]).index("dot_general")
    table._pick(row)
    assert (table._ask.disabled, table._answer.visible) == (False, False)
    table._ask.clicks += 1
    assert table._ask.disabled, "a job runs"
    settled(session)
    assert (table._ask.disabled, table._answer.visible) == (True, True)
    (rules,) = tl.price_rules(item.problem, item.plan, int(table._frame["op"][row]))
    assert rules.effects
    assert list(table.rules.value["without"]) == [effect.name for effect in rules.effects]
    said = session.notices.messages[-1].text
    assert re.search(r"\d+ rules of the price act on \d+ ops", said)
    # The other ops of the plan are answered with it
    others = [other for other, op in enumerate(table._frame["op"]) if op != rules.op]
    table._pick(others[0])
    assert (table._ask.disabled, table._answer.visible) == (True, True)
    (rules,) = tl.price_rules(item.problem, item.plan, int(table._frame["op"][others[0]]))
    assert list(table.rules.value["without"]) == [effect.name for effect in rules.effects]
