"""``start_search`` and ``start_race``: ``search`` and ``race`` in the background.

The caller gets a handle at once and continues. The work is done in a child process, as the
explorer's searches are, so a notebook's drawing and its next cells slow it down no more than any
other process would. The child ends with its parent, however the parent ends.

Start reading at ``start_search``.
"""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidInput, RunFailed
from toast_lab.files import PathLike
from toast_lab.jobs.job import JOBS, Job, JobState
from toast_lab.jobs.plan_parts import whole_result
from toast_lab.jobs.race_job import (
    FinishedRace,
    RaceEnd,
    RacePoint,
    RaceStart,
    RaceState,
    best_row,
    race_methods,
)
from toast_lab.jobs.search_job import RUN_SEARCH, Batch, SearchRequest
from toast_lab.pipeline import race_with_verbs, search_with_verbs
from toast_lab.plan_verbs import Plan
from toast_lab.search.action_path import taken_actions, with_actions
from toast_lab.search.contract import Budget, SearchResult, Status
from toast_lab.search.methods import method_named
from toast_lab.search.race import Race, RaceRow, check
from toast_lab.search.saved_search import SavedSearch
from toast_lab.search.search_child import ImprovementPoint, improvement, last_plan
from toast_lab.search.trace import Trace

TIME_LIMIT_S = 24 * 3600.0


class Running:
    """Base class of the handles of background searches and races.

    Attributes:
        problem: the problem that is searched.
        job: the job that pages watch.
    """

    def __init__(self, problem: Problem, job: Job) -> None:
        self.problem, self.job = problem, job
        self._lock = threading.Lock()
        self._seen = 0

    @property
    def running(self) -> bool:
        """Is the child still alive, whether working or paused?"""
        return self.job.running

    @property
    def state(self) -> str:
        """``preparing``, ``searching``, ``paused``, ``done``, ``failed`` or ``cancelled``."""
        state = self.job.state
        if state is JobState.RUNNING:
            return "searching" if self._began() else "preparing"
        return state.value

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start, including preparation and pauses."""
        return self.job.elapsed_s

    def pause(self) -> None:
        """Pause; the budget's seconds do not run meanwhile."""
        self.job.pause()

    def go_on(self) -> None:
        """Continue after ``pause``."""
        self.job.resume()

    def stop(self) -> None:
        """End now and keep the best plan so far; ``result`` then gives it."""
        self.job.stop()

    def cancel(self) -> None:
        """Kill the child; its plans are lost and only the curve remains."""
        self.job.cancel()

    def _began(self) -> bool:
        raise NotImplementedError

    def _take(self, data: Any) -> None:
        raise NotImplementedError

    def _drain(self) -> None:
        """Process the events that the child reported since the last call."""
        with self._lock:
            for event in self.job.since(self._seen):
                self._seen += 1
                self._take(event.data)

    def _wait(self, timeout_s: float | None) -> Any:
        """Wait for the job's result; a KeyboardInterrupt stops the job and is re-raised."""
        try:
            ended = self.job.finished.wait(timeout_s)
        except KeyboardInterrupt:
            self.stop()
            raise
        if not ended:
            raise TimeoutError(f"{self.job.title}: still {self.state} after {timeout_s:g} s")
        if self.job.state is not JobState.DONE:
            raise RunFailed(self.job.message)
        return self.job.result


class RunningSearch(Running):
    """Handle of a background search; ``toast_lab.views.search`` shows it live.

    Attributes:
        method, seed, options: of the search.
    """

    def __init__(
        self,
        problem: Problem,
        job: Job,
        method: str,
        seed: int,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(problem, job)
        self.method, self.seed, self.options = method, seed, dict(options or {})
        self._points: list[ImprovementPoint] = []
        self._done = 0

    @property
    def simulations(self) -> int:
        """Simulations so far."""
        self._drain()
        return self._done

    @property
    def points(self) -> list[ImprovementPoint]:
        """The anytime curve so far: one point at each improvement."""
        self._drain()
        return list(self._points)

    @property
    def best(self) -> ImprovementPoint | None:
        """The best plan so far, with its actions as text; None before the first."""
        self._drain()
        return self._points[-1] if self._points else None

    @property
    def trace(self) -> Trace:
        """The trace so far; it grows a few times a second."""
        return self.job.mirror.trace

    def step(self) -> None:
        """Show one more simulation, then pause."""
        self.job.step(self.simulations)

    def result(self, timeout_s: float | None = None) -> SearchResult[Plan]:
        """Wait for the end and give the result that ``search`` would have given.

        A KeyboardInterrupt stops the search and is re-raised.

        A search whose process died has status CRASHED and the best plan of its last report; its
        it cannot be resumed.

        Raises:
            RunFailed: the search failed or was cancelled, or its process died before it reported a
                plan; ``points`` still has the curve.
            TimeoutError: the search is still running after ``timeout_s``.
        """
        try:
            self._wait(timeout_s)
        except RunFailed:
            if not isinstance(self.job.error, RunFailed) or self._crashed is None:
                raise
            return self._crashed
        return self._finished

    @functools.cached_property
    def _crashed(self) -> SearchResult[Plan] | None:
        """The result of a search whose process died, from its reports; None without a plan."""
        plan = last_plan(self.problem, self.points, self.job.mirror.best_plan)
        if plan is None:
            return None
        trace, problem = self.job.mirror.trace.copy(), self.problem
        elapsed_s = float(trace.row["elapsed_s"][-1]) if trace.row.n else self.elapsed_s
        trace.best_sharding = plan.sharding
        trace.best_actions = plan.history
        trace.about = {
            "method": self.method,
            "seed": self.seed,
            "status": Status.CRASHED.name,
            "elapsed_s": elapsed_s,
            "evaluations": self.simulations,
        }
        plan = with_actions(problem, plan, trace)
        reported = f"{self.simulations} simulations were reported."
        return SearchResult(
            plan=Plan.of(plan),
            cost=price(problem, plan),
            status=Status.CRASHED,
            trace=trace,
            method=self.method,
            seed=self.seed,
            evaluations=self.simulations,
            elapsed_s=elapsed_s,
            actions=taken_actions(problem, plan),
            message=f"{Status.CRASHED.value} {reported} {self.job.message}",
            problem=problem,
        )

    @functools.cached_property
    def _finished(self) -> SearchResult[Plan]:
        return search_with_verbs(whole_result(self.job.result, self.problem))

    def _began(self) -> bool:
        return self.simulations > 0

    def _take(self, data: Any) -> None:
        if isinstance(data, Batch):
            self._done = data.done
            self._points += [
                improvement(simulation) for simulation in data.simulations if simulation.improved
            ]

    def __repr__(self) -> str:
        summary = (
            f"{self.job.title}: {self.state}, {self.elapsed_s:.1f} s, {self.simulations:,} "
            "simulations"
        )
        best = self.best
        if best is not None:
            summary += f", best {best.time_s * 1e3:.3f} ms, {best.peak_bytes / 2**30:.2f} GiB"
        return summary


class RunningRace(Running):
    """Handle of a background race; ``toast_lab.views.race`` shows it live.

    Attributes:
        methods, seed: of the race.
    """

    def __init__(self, problem: Problem, job: Job, methods: tuple[str, ...], seed: int) -> None:
        super().__init__(problem, job)
        self.methods, self.seed = methods, seed
        self._race = RaceState(problem, methods, seed)

    @property
    def points(self) -> dict[str, list[ImprovementPoint]]:
        """The improvements so far, by method."""
        self._drain()
        return {method: list(points) for method, points in self._race.points.items()}

    @property
    def rows(self) -> list[RaceRow]:
        """The table so far: one row for each method."""
        self._drain()
        return self._race.rows

    @property
    def best(self) -> RaceRow | None:
        """The row of the best plan so far; None before the first."""
        return best_row(self.rows)

    def result(self, timeout_s: float | None = None) -> Race[Plan]:
        """Wait for the end and give the result that ``race`` would have given.

        A KeyboardInterrupt stops the race and is re-raised.

        Raises:
            RunFailed: the race failed or was cancelled.
            TimeoutError: the race is still running after ``timeout_s``.
        """
        raced: FinishedRace = self._wait(timeout_s)
        return race_with_verbs(raced.race)

    def _began(self) -> bool:
        return any(self.points.values()) or bool(self._race.outcomes)

    def _take(self, data: Any) -> None:
        if isinstance(data, RaceStart | RacePoint | RaceEnd):
            self._race.take(data)

    def __repr__(self) -> str:
        self._drain()
        return (
            f"{self.job.title}: {self.state}, {self.elapsed_s:.1f} s, {len(self._race.outcomes)} "
            f"of {len(self.methods)} methods done"
        )


def start_search(
    problem: Problem,
    method: str = "mcts",
    seed: int = 0,
    budget: Budget | None = None,
    *,
    resume: SearchResult[Any] | SavedSearch | PathLike | None = None,
    **options: Any,
) -> RunningSearch:
    """Run ``search`` in a process of its own; gives a handle at once.

    Args:
        problem: program, mesh and machine; pins are kept. Pickled.
        method: one of ``search.methods.METHODS``.
        seed: of the search.
        budget: seconds and/or evaluations (30 s by default), not counting preparation and pauses.
        resume: result of an earlier search of the same problem, or its file; give its method and
            seed.
        options: of the method; pickled.

    Raises:
        InvalidProblem: unknown method, or options that are unknown or wrong; all are listed.
        ToastError: four jobs are running already.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> running = tl.start_search(problem, budget=tl.Budget(None, 200))
        >>> running.result().method  # waits until it has ended
        'mcts'
    """
    _check_problem(problem, "start_search")
    method_named(method).of(options)
    request = SearchRequest(
        problem,
        method,
        seed,
        budget=Budget.checked(budget),
        options=options,
        resume=resume.saved if isinstance(resume, SearchResult) else resume,
        with_trace=True,
    )
    title = f"{method} on {problem.describe()}"
    job = JOBS.start("search", title, RUN_SEARCH, request, time_limit_s=TIME_LIMIT_S)
    _cancel_jobs_at_exit()
    return RunningSearch(problem=problem, job=job, method=method, seed=seed, options=options)


def start_race(
    problem: Problem,
    methods: Sequence[str],
    budget: Budget | None = None,
    seed: int = 0,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> RunningRace:
    """Run ``race`` in the background, one method after the other, each in a process of its own.

    Gives a handle at once.

    Args:
        problem: program, mesh and machine. Pickled.
        methods: names in ``search.methods.METHODS``, each once.
        budget: of each method (30 s by default).
        seed: of each method.
        options: by method.

    Raises:
        InvalidProblem: unknown or repeated methods, options of methods that do not take part; all
            are listed.
        ToastError: four jobs are running already.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> running = tl.start_race(problem, ["mcts", "beam"], budget=tl.Budget(None, 200))
        >>> race = running.result()
        >>> [outcome.method for outcome in race.outcomes]
        ['mcts', 'beam']
    """
    _check_problem(problem, "start_race")
    check(methods, options)
    job = JOBS.start(
        "race",
        f"racing {', '.join(methods)} on {problem.describe()}",
        race_methods,
        problem=problem,
        methods=tuple(methods),
        seed=seed,
        budget=Budget.checked(budget),
        options=options,
    )
    _cancel_jobs_at_exit()
    return RunningRace(problem, job, tuple(methods), seed)


def _check_problem(problem: object, who: str) -> None:
    if not isinstance(problem, Problem):
        raise InvalidInput(
            f"{who} takes a Problem, not a {type(problem).__name__}: tl.{who}(tl.Problem(analysis, "
            "mesh=...))"
        )


@functools.cache
def _cancel_jobs_at_exit() -> None:
    """Cancel all jobs at the interpreter's exit; children of a killed one notice and end."""

    def end() -> None:
        JOBS.cancel_all()
        for job in JOBS.running():
            job.finished.wait(2.0)

    atexit.register(end)
