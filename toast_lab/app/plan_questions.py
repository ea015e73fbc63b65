"""What a page has asked about its plans, of children that answer in seconds or minutes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import param

from toast_lab.app.items import PlanItem
from toast_lab.app.loaded import LoadedState
from toast_lab.app.notices import Notices
from toast_lab.app.state_part import StatePart
from toast_lab.app.work import Handler, Work
from toast_lab.explain.acting_rules import OpRules
from toast_lab.jobs.job import Job
from toast_lab.jobs.plan_questions_job import RUN_PRICE_RULES, RUN_WHY_NOT, Room
from toast_lab.text import counted

TIME_LIMIT_S = 600.0


class PlanQuestions(StatePart):
    """What was found for each plan that was asked about."""

    rooms: Any = param.Dict(default={}, doc="Room by the key of a plan under its limit")
    rules: Any = param.Dict(default={}, doc="OpRules by number of an op, by the key of a plan")

    def __init__(self, loaded: LoadedState, work: Work, notices: Notices) -> None:
        super().__init__()
        self._loaded, self._work, self._notices = loaded, work, notices
        work.handle("why not", self._handler("rooms", _room_words))
        work.handle("price rules", self._handler("rules", _rules_words))

    # -- what would make room ----------------------------------------------------------------------
    def room_of(self, item: PlanItem) -> Room | None:
        """What would make room for a plan under its limit; None: nobody has asked yet."""
        room: Room | None = self.rooms.get(_key(item))
        return room

    def ask_for_room(self, item: PlanItem) -> None:
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
                context=_key(item),
            )

    # -- rules of the price ------------------------------------------------------------------------
    def rules_of(self, item: PlanItem, op: int) -> OpRules | None:
        """The rules that act on the price of an op; None: nobody has asked about the plan yet."""
        rules: OpRules | None = self.rules.get(_key(item), {}).get(op)
        return rules

    def ask_for_rules(self, item: PlanItem) -> None:
        """Price a plan without each rule of the price, and compare what its ops take."""
        with self._notices.guarded():
            self._work.start(
                "price rules",
                f"pricing {item.name} without each rule",
                RUN_PRICE_RULES,
                item.problem,
                item.plan,
                time_limit_s=TIME_LIMIT_S,
                context=_key(item),
            )

    def _handler(self, answers: str, words: Callable[[Any], str]) -> Handler:
        """Keeps the result of a job among the answers, under the key that it was started with."""

        def done(job: Job) -> None:
            kept = {**getattr(self, answers), self._work.context: job.result}
            self.param.update(**{answers: kept})
            self._notices.say(f"{job.message}: {words(job.result)}.", "good")

        return Handler(done)


def _room_words(room: Room) -> str:
    fitting = sum(fits for *_, fits in room.changes)
    return f"{counted(len(room.changes), 'change')} save memory, {fitting} of them fit"


def _rules_words(rules: dict[int, OpRules]) -> str:
    names = {effect.name for op_rules in rules.values() for effect in op_rules.effects}
    n_ops = sum(bool(op_rules.effects) for op_rules in rules.values())
    return f"{counted(len(names), 'rule')} of the price act on {counted(n_ops, 'op')}"


def _key(item: PlanItem) -> tuple[int, str, str, float]:
    problem = item.problem
    return item.plan.key, str(problem.mesh), problem.machine.name, problem.memory_limit_bytes
