"""The tab with the timeline of a step, without a browser."""

from __future__ import annotations

import pytest

from toast_lab.app.pages.compare_timeline import StepTimeline
from toast_lab.app.saver import saver
from toast_lab.app.session import Session
from toast_lab.jobs.job import Registry


# Panel warns about parameters of widgets that version 2 renames
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_bar_of_no_known_op_selects_nothing_and_says_why(jobs: Registry) -> None:
    session = Session(jobs=jobs)
    session.load("attention")
    timeline = StepTimeline(session, saver(session.notices.say), lambda _: None)
    timeline.refresh(session.plans.named("unsharded"))
    timeline._select(-1)
    assert session.selection.ops == []
    assert session.notices.messages[-1].level == "info"
    assert "does not say which op" in session.notices.messages[-1].text
    timeline._select(3)
    assert session.selection.ops
