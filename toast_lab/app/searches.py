"""The searches and races of a page: their settings, curves and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import param

from toast_lab.app.items import Level, PlanItem
from toast_lab.app.loaded import LoadedState
from toast_lab.app.notices import Notices
from toast_lab.app.plan_store import PlanStore
from toast_lab.app.rescued_plan import rescue
from toast_lab.app.state_part import StatePart
from toast_lab.app.work import Handler, Work
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.errors import ToastError
from toast_lab.jobs.job import Event, Job
from toast_lab.jobs.mirror import Mirror
from toast_lab.jobs.orders import RUN, Order
from toast_lab.jobs.plan_parts import whole_result
from toast_lab.jobs.race_job import RaceState, best_row, race_methods
from toast_lab.jobs.search_job import RUN_SEARCH, Batch, SearchRequest
from toast_lab.search import resumable
from toast_lab.search.contract import Budget, SearchResult
from toast_lab.search.race import check
from toast_lab.search.saved_search import SavedSearch
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.space import renaming
from toast_lab.text import gap_text
from toast_lab.views.compare_table import bytes_text, seconds_text
from toast_lab.views.search_curves import CurvePoint, point, thinned

#: of a search's curve; beyond that, every second point that is no improvement is dropped
MAX_POINTS = 20_000
SETTINGS = ("method", "seed", "seconds", "evaluations", "options")
TIME_LIMIT_S = 24 * 3600.0


class Searches(StatePart):
    """Settings of the next search, and the state of the last one."""

    method: Any = param.String(default="mcts")
    seed: Any = param.Integer(default=0)
    options: Any = param.Dict(default={}, doc="options of the method")
    seconds: Any = param.Number(default=20.0, allow_None=True)
    evaluations: Any = param.Integer(
        default=None, allow_None=True, doc="budget of distinct shardings; None: no limit"
    )
    simulations: Any = param.Integer(default=0, doc="simulations of the last search")
    job: Any = param.Parameter(default=None, doc="the running or last search of what is loaded")
    problem: Any = param.Parameter(default=None, doc="Problem of the last search")
    points: Any = param.List(default=[], doc="CurvePoints of that search")
    best_actions: Any = param.Parameter(default=(), doc="of the best plan so far")
    best_plan: Any = param.Parameter(default=None, doc="ShardingPlan, once a search has ended")
    is_paused: Any = param.Boolean(default=False, doc="the pause that was asked for has begun")
    note: Any = param.String(default="", doc="how the search ended")
    gap: Any = param.Number(default=None, allow_None=True, doc="how far it can be from the best")
    race: Any = param.ClassSelector(class_=RaceState, default=RaceState(), doc="the last race")

    def __init__(self, loaded: LoadedState, plans: PlanStore, work: Work, notices: Notices) -> None:
        super().__init__()
        self._loaded, self._plans, self._work, self._notices = loaded, plans, work, notices
        self._mirror: tuple[Job | None, Problem | None, Mirror | None] = None, None, None
        self._fresh: list[CurvePoint] = []  #: those of ``points`` that this page has not drawn yet
        work.handle("search", Handler(self._ended, self._reported, self._lost))
        work.handle("race", Handler(self._raced, lambda event: self.race.take(event.data)))

    # -- reading -----------------------------------------------------------------------------------
    @property
    def mirror(self) -> Mirror | None:
        """The trace of the last search, as far as it has arrived, with today's names of colours."""
        job, problem = self.job, self.problem
        if job is None or problem is None:
            return None
        if self._mirror[:2] != (job, problem):
            searched = job.about["problem"].analysis
            is_renamed = searched is not problem.analysis
            up_to_date = renaming(searched, problem.analysis)
            mirror = job.mirror.reworded(up_to_date) if is_renamed else job.mirror
            self._mirror = job, problem, mirror
        return self._mirror[2]

    @property
    def ended(self) -> SearchResult[Any] | None:
        """The result of the last search, without plans of a program.

        None if there is none, or it runs or failed.
        """
        result = None if self.job is None or self.job.running else self.job.result
        return result if isinstance(result, SearchResult) else None

    @property
    def saved(self) -> SavedSearch | None:
        """What it takes to resume the last search; None if there is none, or it runs or failed."""
        ended = self.ended
        return None if ended is None else whole_result(ended, self.job.about["problem"]).saved

    @property
    def searched_with(self) -> Mapping[str, Any]:
        """Method and options of the last search; empty if there is none."""
        return {} if self.job is None else self.job.about or {}

    def new_points(self) -> list[CurvePoint]:
        """Points of the curves that have come since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def forget(self) -> None:
        """Clear the state, as something else is loaded or another search begins."""
        self.points, self._fresh, self.best_actions = [], [], ()
        self.best_plan = None
        self.note, self.gap = "", None
        self.simulations, self.is_paused = 0, False
        self.job = None

    # -- starting ----------------------------------------------------------------------------------
    def start(self, order: Order = RUN) -> None:
        """Search for a plan of the current problem, with the current settings."""
        with self._notices.guarded():
            self._launch(self._free(), {}, order=order)

    def start_with(self, **settings: Any) -> None:
        """Search with other settings than the current ones."""
        with self._notices.guarded():
            self._launch(self._free(), settings)

    def resume(self) -> None:
        """Continue where the last search ended, with another budget.

        It may have been stopped, or have ended by itself.
        """
        job = self.job
        with self._notices.guarded():
            self._work.check_idle()
            saved = self.saved
            if job is None or saved is None:
                raise ToastError(
                    "There is no search to resume: run one first, or choose the file of a saved "
                    "one."
                )
            # Its texts have the names that colours had then.
            self._launch_saved(job.about["problem"], saved)

    def resume_saved(self, file: bytes) -> None:
        """Continue the search in a file; it is refused if it does not fit the problem."""
        with self._notices.guarded():
            problem = self._free()
            self._launch_saved(problem, SavedSearch.from_bytes(file, "This file"))

    def start_race(self, methods: Sequence[str], seconds: float, seed: int) -> None:
        """Race methods on the current problem, one after the other."""
        with self._notices.guarded():
            problem = self._free()
            check(methods)
            self.race = RaceState(problem, tuple(methods), seed)
            self._work.start(
                "race",
                f"racing {', '.join(methods)} on {problem.describe()}",
                race_methods,
                problem,
                tuple(methods),
                seed,
                Budget(seconds),
                about={**self.about(problem), "race": self.race},
            )

    def _free(self) -> Problem:
        """The problem to work on. Raises ToastError if nothing is loaded, or a job runs."""
        problem: Problem | None = self._loaded.problem
        if problem is None:
            raise ToastError("Load a model first.")
        self._work.check_idle()
        return problem

    def _launch_saved(self, problem: Problem, saved: SavedSearch) -> None:
        """Continue a search of a problem, with its method, seed and options."""
        settings = {key: saved.facts[key] for key in ("method", "seed", "options")}
        resumable.reopened(problem, saved)
        self._launch(problem, settings, saved)

    def _launch(
        self,
        problem: Problem,
        settings: Mapping[str, Any],
        saved: SavedSearch | None = None,
        order: Order = RUN,
    ) -> None:
        about = {**self.about(problem), **settings}
        request = SearchRequest(
            problem,
            about["method"],
            about["seed"],
            budget=Budget(about["seconds"], about["evaluations"]),
            options=about["options"],
            resume=saved,
        )
        job = self._work.start(
            "search",
            f"{about['method']} on {problem.describe()}{', resumed' if saved else ''}",
            RUN_SEARCH,
            request,
            time_limit_s=TIME_LIMIT_S,
            about=about,
            order=order,
        )
        self.forget()  # only now: a search that could not be started must not clear anything
        self.problem, self.job = problem.named_as_in(self._loaded.analysis), job
        self._work.changed()

    def change_names(self, named: Callable[[Problem], Problem]) -> None:
        """Give colours the names of ``named``, once the plans have them.

        A search that runs goes on with the names that it has; what it reports is renamed.
        """
        problem, plan = self.problem, self.best_plan
        if problem is None or problem.analysis.program is not self._loaded.analysis.program:
            return
        change = renaming(problem.analysis, named(problem).analysis)
        plans = (item.plan for item in self._plans.items if item.origin == "search")
        self.param.update(
            problem=named(problem),
            best_actions=tuple(map(change, self.best_actions)),
            best_plan=None if plan is None else next((p for p in plans if p.key == plan.key), plan),
        )

    def _named(self, actions: Sequence[str]) -> tuple[str, ...]:
        """Actions that the last search reported, with today's names of colours."""
        assert self.problem is not None
        assert self.job is not None
        searched = self.job.about["problem"].analysis
        return tuple(map(renaming(searched, self.problem.analysis), actions))

    def about(self, problem: Problem) -> dict[str, Any]:
        """The facts that another page needs in order to watch a search."""
        settings = {name: getattr(self, name) for name in SETTINGS}
        loaded = self._loaded.param.values()
        del loaded["name"]
        return {**loaded, **settings, "problem": problem}

    # -- control -----------------------------------------------------------------------------------
    @property
    def held_state(self) -> str:
        """Word for a job that was told to pause; a search is "pausing" until it stands still."""
        return "paused" if self.is_paused or not self._work.runs("search") else "pausing"

    def pause(self) -> None:
        """Pause or continue; a race pauses before the next method."""
        if self._work.runs("search", "race"):
            job = self._work.job
            if self._work.paused:
                job.resume()
            else:
                self.is_paused = False
                job.pause()
            self._work.changed()

    def step(self) -> None:
        """Do one simulation and pause; starts a paused search if none runs."""
        self._step(Job.step, Order("pause", 1))

    def step_round(self) -> None:
        """Do the rest of a round of the search and pause; starts a search if none runs."""
        self._step(Job.step_round, Order("round"))

    def _step(self, step: Callable[[Job, int], None], first_order: Order) -> None:
        if not self._work.busy:
            self.start(first_order)
        elif self._work.runs("search"):
            self._work.tick()
            self.is_paused = False
            step(self._work.job, self.simulations)
            self._work.changed()

    def cancel(self) -> None:
        """End the running job; a first call lets searches and races keep their results."""
        if self._work.runs("search", "race", "confirm") and not self._work.job.stopping:
            self.stop()
            self._notices.say(
                "Stopping: the best plan is kept"
                + (
                    ". Verdicts are kept, too, and no plan is judged again."
                    if self._work.job.kind == "confirm"
                    else ", and a search can be resumed."
                )
                + " Cancel again to end it at once."
            )
        else:
            self._work.cancel()

    def stop(self) -> None:
        """End the search or the race, and keep its results."""
        if self._work.runs("search", "race", "confirm"):
            self._work.job.stop()
            self._work.changed()

    # -- reports of jobs ---------------------------------------------------------------------------
    def _reported(self, event: Event) -> None:
        if not isinstance(event.data, Batch):
            return
        self.simulations, self.is_paused = event.data.done, event.data.is_paused
        for simulation in event.data.simulations:
            self._fresh.append(point(simulation))
            self.points.append(self._fresh[-1])
            if simulation.improved:
                self.best_actions = self._named(simulation.actions)
        if len(self.points) > MAX_POINTS:
            self.points = thinned(self.points, 2)

    def _ended(self, job: Job) -> None:
        end: SearchResult[Any] = job.result
        problem = self.problem
        assert problem is not None
        self.best_actions, self.gap = self._named(end.plan.actions), end.gap
        self.note = f"{end.message} {gap_text(end.gap)}".rstrip()
        plan = end.plan.plan(job.about["problem"]).named_as_in(problem.analysis)
        self._keep(plan, end.cost, f"{end.method} (seed {end.seed})")

    def _lost(self, job: Job) -> None:
        """Keep the best plan that had been reported."""
        problem = self.problem
        if self.points and problem is not None:
            method, seed = job.about["method"], job.about["seed"]
            plan, self.note = rescue(problem, method, self.best_actions, str(job.message))
            self._keep(plan, price(problem, plan), f"{method} (seed {seed})")

    def _keep(self, plan: ShardingPlan, cost: Cost, name: str) -> None:
        assert self.problem is not None
        name = self._plans.free_name(name, " #")
        item = PlanItem(name=name, origin="search", plan=plan, problem=self.problem, cost=cost)
        self._plans.bring(item)
        self.best_plan = self._plans.items[-1].plan
        # The level "error" is shown in full, and not in green
        level: Level = "good" if cost.fits else "error"
        self._notices.say(
            f"{name}: {_price_words(cost, self.problem)}. {self.note} It is in the comparison now.",
            level,
        )

    def _raced(self, job: Job) -> None:
        self.race.result = job.result
        best = best_row(self.race.rows)
        level: Level = "good" if best is not None and best.fits else "error"
        price = "" if best is None else f" {_price_words(best, job.about['problem'])}."
        self._notices.say(f"The race is over: {self.race.verdict()}{price}", level)

    # -- other pages -------------------------------------------------------------------------------
    def adopt(self, job: Job) -> None:
        """Watch a search or a race that another page started, from its beginning."""
        about = job.about
        self.param.update(**{name: about[name] for name in SETTINGS})
        if job.kind == "confirm":
            return  # ``Confirmations`` watches it
        if job.kind == "search":
            self.job = job
            self.problem = about["problem"].named_as_in(self._loaded.analysis)
        else:
            self.race = about["race"].fresh()
        self._work.watch(job)


def _price_words(priced: Any, problem: Problem) -> str:
    """Step time and memory of a plan or a row of a race, and whether it fits."""
    fits = "fits" if priced.fits else "does NOT fit"
    peak, limit = bytes_text(priced.peak_bytes), bytes_text(problem.memory_limit_bytes)
    return f"{seconds_text(priced.time_s)} a step, {fits}: {peak} of {limit}"
