"""Confirmed searches of a page: the judge, the verdicts so far, and the resulting plans."""

from __future__ import annotations

from typing import Any

import param

from toast_lab.app.items import PlanItem
from toast_lab.app.loaded import LoadedState
from toast_lab.app.notices import Notices
from toast_lab.app.plan_store import PlanStore
from toast_lab.app.searches import TIME_LIMIT_S, Searches
from toast_lab.app.state_part import StatePart
from toast_lab.app.work import Handler, Work
from toast_lab.cost.problem import price
from toast_lab.errors import ToastError
from toast_lab.jobs.confirm_job import (
    RUN_CONFIRMED,
    ConfirmRequest,
    ConfirmState,
)
from toast_lab.jobs.job import Job
from toast_lab.jobs.plan_parts import PlanParts
from toast_lab.runtime.compiled import Compiled
from toast_lab.search.contract import Budget
from toast_lab.views.compare_table import seconds_text

CONFIRM_SETTINGS = ("judge", "compiles", "confirm_seconds")


class Confirmations(StatePart):
    """Settings of the next confirmed search, and the state of the last one."""

    judge: Any = param.String(default="", doc="topology that plans are judged for; empty: none")
    compiles: Any = param.Integer(default=12, doc="plans judged at most, beside the floor")
    confirm_seconds: Any = param.Number(
        default=None, allow_None=True, doc="time limit of the whole confirmed search; None: none"
    )
    state: Any = param.ClassSelector(
        class_=ConfirmState, default=ConfirmState(), doc="of the last confirmed search"
    )

    def __init__(
        self,
        loaded: LoadedState,
        plans: PlanStore,
        work: Work,
        *,
        notices: Notices,
        searches: Searches,
    ) -> None:
        super().__init__()
        self._loaded, self._plans, self._work = loaded, plans, work
        self._notices, self._searches = notices, searches
        work.handle(
            "confirm", Handler(self._ended, lambda event: self.state.take(event.data), self._lost)
        )

    # -- starting ----------------------------------------------------------------------------------
    def start(self) -> None:
        """Search, with the settings of ``Searches``, until the judge confirms a plan."""
        problem, searches = self._loaded.problem, self._searches
        with self._notices.guarded():
            if problem is None:
                raise ToastError("Load a model first.")
            if not self.judge:
                raise ToastError("Choose a judge of the plans first.")
            self._work.check_idle()
            state = ConfirmState(problem, self.judge, self.compiles)
            request = ConfirmRequest(
                problem,
                self._loaded.model,
                self.judge,
                compiles=self.compiles,
                seconds=self.confirm_seconds,
                method=searches.method,
                seed=searches.seed,
                budget=Budget(searches.seconds, searches.evaluations),
                options=searches.options,
            )
            self._work.start(
                "confirm",
                f"{searches.method} on {problem.describe()}, confirmed by {self.judge}",
                RUN_CONFIRMED,
                request,
                time_limit_s=TIME_LIMIT_S,
                about={**searches.about(problem), **self._settings(), "confirm": state},
            )
            self.state = state
            self._work.changed()

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in CONFIRM_SETTINGS}

    # -- reports of the job ------------------------------------------------------------------------
    def _ended(self, job: Job) -> None:
        state = self.state
        state.finish(job.result)
        end = state.end
        assert end is not None
        names = []
        if end.best is not None:
            label = "confirmed by" if end.confirmed else "best judged by"
            names.append(self._keep(end.plan, f"{self._method(job)}, {label} {end.judge}"))
        first = None if end.first is None else end.front[end.first]
        if first is not None and first.parts.sharding.key() != end.plan.sharding.key():
            names.append(self._keep(first.parts, f"{self._method(job)}, written in {first.size}"))
        elif end.best is None:
            names.append(self._keep(end.plan, f"{self._method(job)}, only priced"))
        kept_names = " and ".join(names)
        sentence = " ".join(filter(None, (end.sentence, end.quicker_written)))
        self._notices.say(
            f"{sentence} In the comparison now: {kept_names}.",
            "good" if end.confirmed else "info",
        )

    def _lost(self, job: Job) -> None:
        """Keep the best plan that was judged before the job died, or was cancelled."""
        state = self.state
        if state.best is not None:
            verdict = state.verdicts[state.best]
            name = self._keep(verdict.parts, f"{self._method(job)}, best judged by {state.judge}")
            judged_s = verdict.time_s or verdict.priced_s
            self._notices.say(
                f"{name}: the best of {len(state.verdicts)} judged plans, "
                f"{seconds_text(judged_s)} by the clock, is in the comparison.",
                "info",
            )

    @staticmethod
    def _method(job: Job) -> str:
        return str(job.about["method"])

    def take(self, parts: PlanParts) -> str:
        """Bring a plan of the front into the comparison, unless it is there, and give its name."""
        existing = next((item for item in self._plans.items if item.plan.key == parts.key), None)
        if existing is not None:
            return existing.name
        return self._keep(parts, f"{self._searches.method}, of the front")

    def _keep(self, parts: PlanParts, name: str) -> str:
        problem = self.state.learned
        assert problem is not None
        plan = parts.plan(problem)
        name, cost = self._plans.free_name(name, " #"), price(problem, plan)
        compiled = self._compiled(parts)
        self._plans.bring(
            PlanItem(name, "confirmed search", plan, problem, cost=cost, compiled=compiled)
        )
        return name

    def _compiled(self, parts: PlanParts) -> Any:
        """The compiled plan, if the judge was a compiler."""
        verdict_index, end = self.state.verdict_of(parts.sharding.key()), self.state.end
        if verdict_index is None or end is None:
            return None
        evidence = end.evidence[verdict_index]
        return evidence if isinstance(evidence, Compiled) else None

    # -- other pages -------------------------------------------------------------------------------
    def adopt(self, job: Job) -> None:
        """Watch a confirmed search that another page started, from its beginning."""
        self.param.update(**{name: job.about[name] for name in CONFIRM_SETTINGS})
        self.state = job.about["confirm"].fresh()
        self._work.watch(job)
