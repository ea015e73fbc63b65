"""What would make room in memory for plans of a page."""

from __future__ import annotations

from typing import Any

import param

from toast_lab.app.items import PlanItem
from toast_lab.app.loaded import LoadedState
from toast_lab.app.notices import Notices
from toast_lab.app.state_part import StatePart
from toast_lab.app.work import Handler, Work
from toast_lab.jobs.job import Job
from toast_lab.jobs.why_not_job import RUN_WHY_NOT, Room
from toast_lab.text import counted

TIME_LIMIT_S = 600.0


class MemoryAdvice(StatePart):
    """What was found for each plan that was asked about."""

    rooms: Any = param.Dict(default={}, doc="Room by the key of a plan and the limit in bytes")

    def __init__(self, loaded: LoadedState, work: Work, notices: Notices) -> None:
        super().__init__()
        self._loaded, self._work, self._notices = loaded, work, notices
        work.handle("why not", Handler(self._ended))

    def room_of(self, item: PlanItem) -> Room | None:
        """What was found for a plan under its limit; None: nobody has asked yet."""
        room: Room | None = self.rooms.get(_key(item))
        return room

    def start(self, item: PlanItem) -> None:
        """Look for changes that would make room for a plan."""
        with self._notices.guarded():
            self._work.start(
                "why not",
                f"looking for what makes room for {item.name}",
                RUN_WHY_NOT,
                item.problem,
                self._loaded.model,
                item.plan,
                time_limit_s=TIME_LIMIT_S,
                context=item,
            )

    def _ended(self, job: Job) -> None:
        item: PlanItem = self._work.context
        self.rooms = {**self.rooms, _key(item): job.result}
        fitting = sum(fits for *_, fits in job.result.changes)
        tried = counted(len(job.result.changes), "change")
        self._notices.say(f"{job.message}: {tried} save memory, {fitting} of them fit.", "good")


def _key(item: PlanItem) -> tuple[int, str, str, float]:
    problem = item.problem
    return item.plan.key, str(problem.mesh), problem.machine.name, problem.memory_limit_bytes
