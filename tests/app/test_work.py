"""A page's job between its end and the moment when its result is taken in."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from toast_lab.app.notices import Notices
from toast_lab.app.work import Handler, Work
from toast_lab.jobs.job import Job, JobState, Registry


def test_a_result_is_awaited_until_it_is_brought_in() -> None:
    """The address that names the job must not change before the page does."""
    work, brought = Work(Notices(), Registry()), list[Job]()
    work.handle("load", Handler(done=brought.append))
    job = SimpleNamespace(
        kind="load",
        running=True,
        state=JobState.RUNNING,
        finished=threading.Event(),
        since=lambda _: [],
    )
    work.watch(cast(Any, job))
    assert work.awaits("load")
    assert not work.awaits("search")
    job.running, job.state = False, JobState.DONE
    job.finished.set()
    assert not work.runs("load")
    assert work.awaits("load")
    work.tick()
    assert brought == [job]
    assert not work.awaits("load")
