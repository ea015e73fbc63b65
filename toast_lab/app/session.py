"""The explorer's state, free of any GUI: what is loaded, selected, planned and running.

Pages read the parameters and call the methods; nothing here knows that there are pages.  Work that
can take long runs as a job; ``tick`` brings in what jobs have reported, in the caller's thread.  No
method raises a ``ToastError``: it becomes a message, and everything done before stays.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import param

from toast_lab.app.by_hand import ByHand
from toast_lab.app.items import MANUAL, Message, PlanItem
from toast_lab.app.loading import Loading
from toast_lab.app.ready_plans import data_parallel, rescue
from toast_lab.app.running import Running
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.errors import InvalidPlan, ToastError
from toast_lab.jobs.job import JOBS, Job, JobState, Registry
from toast_lab.jobs.load_job import Loaded
from toast_lab.jobs.mirror import Mirror
from toast_lab.jobs.race_job import RaceState, race_methods
from toast_lab.jobs.search_job import RUN_SEARCH, Batch, SearchEnd, SearchRequest
from toast_lab.search.contract import Budget
from toast_lab.search.race import check
from toast_lab.sharding.plan import ShardingPlan, replicated
from toast_lab.text import gap_text
from toast_lab.views.search_curves import Point, point

STEPS = ("load", "graph", "hand", "search", "compare")
MAX_ACTIONS_TYPED = 64
#: of a search's curve; beyond that every second one goes that was no improvement
MAX_POINTS = 20_000


class Session(Loading, ByHand, Running, param.Parameterized):
    """State of one page."""

    step: Any = param.Selector(default="load", objects=list(STEPS))
    model: Any = param.Parameter(default=None, doc="Model")
    analysis: Any = param.Parameter(default=None, doc="Analysis")
    which: Any = param.String(
        default="", doc="the built-in model that is loaded; empty for any other"
    )
    sizes: Any = param.Dict(default={}, doc="sizes that it was asked for")
    problem: Any = param.Parameter(default=None, doc="Problem")
    names = param.Parameter(default=(), doc="selected dimension names")
    conflicts = param.Parameter(default=(), doc="selected conflicts")
    level = param.String(
        default="", doc="level of detail of the graph; empty: the one that suits the model"
    )
    plans = param.List(default=[])
    messages = param.List(default=[])
    mesh = param.String(default="data=4,model=2")
    machine = param.String(default="tpu-v5e")
    own_machines: Any = param.Dict(default={}, doc="machines typed or dropped in, by name")
    method = param.String(default="mcts")
    seed = param.Integer(default=0)
    options = param.Dict(default={}, doc="options of the method")
    seconds = param.Number(default=20.0, allow_None=True)
    evaluations = param.Integer(
        default=None, allow_None=True, doc="budget of distinct shardings; None: no limit"
    )
    memory_gib = param.Number(
        default=None, allow_None=True, doc="limit a device; the machine's own if None"
    )
    job = param.Parameter(default=None, doc="the job that runs, or the last one")
    job_changes = param.Integer(default=0, doc="counts up whenever something about the job changed")
    simulations = param.Integer(default=0, doc="simulations of the last search")
    tour = param.String(default="", doc="key of the step of the guided tour; empty off the tour")

    def __init__(self, *, jobs: Registry | None = None, **params: Any) -> None:
        super().__init__(**params)
        self.jobs = JOBS if jobs is None else jobs  # an empty registry is false
        self.points: list[Point] = []
        self.best_actions: tuple[str, ...] = ()
        self.search_note = ""
        self.search_gap: float | None = None
        self._seen = 0
        self._settled = True
        self._on_result: Callable[[Job], None] | None = None
        self._shelf: dict[str, list[PlanItem]] = {}
        self._trails = {}
        self._memo = (None, {})
        self._digest = (None, "")
        self.search_problem: Problem | None = None
        self._search_job: Job | None = None
        self.race = RaceState()

    # -- messages ----------------------------------------------------------------------------------
    def say(self, text: str, level: str = "info") -> None:
        """Add a message."""
        self.messages = [*self.messages[-49:], Message(level, text, time.time())]

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn an expected error into a message."""
        try:
            yield
        except (ToastError, ValueError, OverflowError) as error:
            self.say(str(error), "error")

    # -- loading -----------------------------------------------------------------------------------
    def show(self, loaded: Loaded, which: str = "", sizes: dict[str, Any] | None = None) -> None:
        """Take a loaded model in; ``which`` and ``sizes`` if it is a built-in one."""
        if self.analysis is not None:
            self._shelf[self.analysis.program.digest()] = self.plans
        plans = self._shelf.get(loaded.analysis.program.digest(), [])
        with param.parameterized.batch_call_watchers(self):
            self.names, self.conflicts = (), ()
            self.which, self.sizes, self.level = which, dict(sizes or {}), ""
            self.model, self.analysis, self.plans = loaded.model, loaded.analysis, plans
        self._forget_search()
        self.say(f"Loaded {loaded.model}.", "good")
        self.set_problem()

    # -- problem -----------------------------------------------------------------------------------
    def set_problem(self, **settings: Any) -> None:
        """Apply mesh, machine and memory limit; a wrong one is refused and the old ones stay."""
        if self.analysis is None:
            self.param.update(**settings)
            return
        wanted = {
            "mesh": self.mesh,
            "machine": self.machine,
            "memory_gib": self.memory_gib,
            **settings,
        }
        with self.guarded():
            limit = wanted["memory_gib"] * 2**30 if wanted["memory_gib"] else None
            machine = self.own_machines.get(wanted["machine"], wanted["machine"])
            problem = Problem(self.analysis, wanted["mesh"], machine, memory_limit_bytes=limit)
            if problem.mesh.n_devices > 4096:
                raise InvalidPlan(
                    f"mesh {problem.mesh} has {problem.mesh.n_devices} devices, at most 4096 here"
                )
            self.param.update(**wanted, problem=problem)
            self._add("unsharded", "every device does everything", lambda: replicated(problem))
            self._renew_manual()

    def take(self, analysis: Analysis, problem: Problem | None = None) -> None:
        """Take in what was made elsewhere, as it is.

        That is a notebook's analysis, and its problem with pins and machine.
        """
        self.param.update(analysis=analysis)
        if problem is not None:
            self.param.update(mesh=str(problem.mesh), machine=problem.machine.name, problem=problem)
            self._add("unsharded", "every device does everything", lambda: replicated(problem))

    # -- selection ---------------------------------------------------------------------------------
    def select(self, names: Sequence[int] = (), conflicts: Sequence[int] = ()) -> None:
        """Select names and conflicts; conflicts bring their names with them."""
        if self.analysis is None:
            return
        found = tuple(names)
        if conflicts and not found:
            found = tuple(n for k in conflicts for n in self.analysis.conflicts[k].sides)
        with param.parameterized.batch_call_watchers(self):
            self.names, self.conflicts = found, tuple(conflicts)

    @property
    def selected_group(self) -> int | None:
        """Colour group of what is selected."""
        return (
            int(self.analysis.group[self.analysis.colour[self.names[0]]])
            if self.analysis is not None and self.names
            else None
        )

    # -- plans -------------------------------------------------------------------------------------
    def plan_named(self, name: str) -> PlanItem | None:
        """A plan by its name."""
        return next((p for p in self.plans if p.name == name), None)

    def _add(
        self, name: str, origin: str, make: Callable[[], ShardingPlan], *, replace: bool = True
    ) -> PlanItem:
        problem = self.problem
        assert problem is not None
        plan = make()
        if not replace:
            name = self.free_name(name)
        old = self.plan_named(name)
        same = (
            old is not None
            and old.plan.key == plan.key
            and old.problem.mesh == problem.mesh
            and old.problem.machine == problem.machine
        )
        item = PlanItem(name, origin, plan, problem, price(problem, plan))
        if old is not None and same:
            item = item._replace(run=old.run, compiled=old.compiled, note=old.note)
        self.plans = (
            [item if p.name == name else p for p in self.plans]
            if old is not None
            else [*self.plans, item]
        )
        return item

    def free_name(self, name: str, between: str = " ") -> str:
        """``name``, numbered if a plan is called so already."""
        found, i = name, 2
        while self.plan_named(found) is not None:
            found, i = f"{name}{between}{i}", i + 1
        return found

    def add_typed(self, text: str, name: str = "") -> None:
        """A plan from an action list such as ``batch->data, hidden->model``."""
        problem = self.problem
        if problem is None:
            return
        items = [
            part.strip()
            for part in text.replace("\n", ",").replace(";", ",").split(",")
            if part.strip()
        ]
        with self.guarded():
            if not items:
                raise InvalidPlan(
                    'type actions as "colour->axis", separated by commas; for instance batch->data'
                )
            if len(items) > MAX_ACTIONS_TYPED:
                raise InvalidPlan(f"{len(items)} actions, at most {MAX_ACTIONS_TYPED}")
            item = self._add(
                name.strip() or "typed",
                "typed",
                lambda: ShardingPlan.from_actions(problem, items),
                replace=False,
            )
            self.say(f"Added the plan {item.name}: {', '.join(item.plan.actions)}", "good")

    def add_data_parallel(self) -> None:
        """The batch dimension along every mesh axis that divides it."""
        problem = self.problem
        if problem is None:
            return
        with self.guarded():
            taken = data_parallel(problem)
            self._add(
                "data parallel",
                "batch dimension",
                lambda: ShardingPlan.from_actions(problem, taken),
            )

    def remove_plan(self, name: str) -> None:
        """Forget a plan."""
        if name == MANUAL and self.problem is not None:
            self._trails.pop(self._trail_key(), None)
        self.plans = [p for p in self.plans if p.name != name]

    # -- jobs --------------------------------------------------------------------------------------
    @property
    def busy(self) -> bool:
        """Does a job of this page run?"""
        return self.job is not None and (self.job.running or not self._settled)

    def _check_idle(self) -> None:
        if self.busy:
            raise ToastError(f"{self.job.title} is still running; wait for it or cancel it first")

    def _free_for_a_job(self) -> Problem:
        """The problem to work on.  Raises ToastError if nothing is loaded, or a job runs."""
        if self.analysis is None or self.problem is None:
            raise ToastError("Load a model first.")
        self._check_idle()
        problem: Problem = self.problem
        return problem

    def _start(
        self,
        kind: str,
        title: str,
        on_result: Callable[[Job], None],
        target: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self._check_idle()
        self._seen, self._settled, self._on_result = 0, False, on_result
        self.job = self.jobs.start(kind, title, target, *args, **kwargs)
        self.job_changes += 1

    def start_search(self) -> None:
        """Search for a plan of the current problem, with the current settings."""
        with self.guarded():
            self._launch_search(self._free_for_a_job())

    def _search(self, **settings: Any) -> None:
        """Search with other settings than the current ones."""
        with self.guarded():
            self._launch_search(self._free_for_a_job(), settings=settings)

    def resume_search(self) -> None:
        """Go on where the last search ended, for another budget.

        It may have been stopped, or have ended by itself.
        """
        job, problem = self._search_job, self.search_problem
        with self.guarded():
            self._check_idle()
            if job is None or problem is None or not job.left_trace:
                raise ToastError(
                    "There is no search to go on from: run one first, or choose the "
                    "file of a saved one."
                )
            self._launch_search(
                problem, job.trace_path, {k: job.about[k] for k in ("method", "seed", "options")}
            )

    def resume_saved(self, file: bytes) -> None:
        """Go on from the file of a trace.

        It is read in the search's own process, and refused if it does not fit.
        """
        with self.guarded():
            problem = self._free_for_a_job()
            path = self.jobs.keep_file(secrets.token_hex(8))
            path.write_bytes(file)
            self._launch_search(problem, path)

    def _launch_search(
        self, problem: Problem, resume: Path | None = None, settings: dict[str, Any] | None = None
    ) -> None:
        about = {**self._about(problem), **(settings or {})}
        kept = self.jobs.keep_file(secrets.token_hex(8))
        request = SearchRequest(
            problem,
            about["method"],
            about["seed"],
            Budget(about["seconds"], about["evaluations"]),
            about["options"],
            saved=None if resume is None else str(resume),
            keep=str(kept),
        )
        self._start(
            "search",
            f"{about['method']} on {problem.describe()}{', resumed' if resume else ''}",
            self._searched,
            RUN_SEARCH,
            request,
            trace_path=kept,
            time_limit_s=24 * 3600.0,
            about=about,
        )
        self._forget_search()  # only now: a search that could not be started takes nothing away
        self.search_problem, self._search_job = problem, self.job
        self.job_changes += 1

    def _about(self, problem: Problem) -> dict[str, Any]:
        settings = (
            "model",
            "analysis",
            "which",
            "sizes",
            "mesh",
            "machine",
            "own_machines",
            "memory_gib",
            "method",
            "seed",
            "seconds",
            "evaluations",
            "options",
        )
        return {**{k: getattr(self, k) for k in settings}, "problem": problem}

    def start_race(self, methods: Sequence[str], seconds: float, seed: int) -> None:
        """Race methods on the current problem, one after the other."""
        with self.guarded():
            problem = self._free_for_a_job()
            check(methods)
            self.race = RaceState(problem, tuple(methods), seed)
            self._start(
                "race",
                f"racing {', '.join(methods)} on {problem.describe()}",
                self._raced,
                race_methods,
                problem,
                tuple(methods),
                seed,
                Budget(seconds),
                about={**self._about(problem), "race": self.race},
            )

    def _raced(self, job: Job) -> None:
        self.race.raced = job.result
        self.say(f"The race is over: {self.race.verdict()}", "good")

    def _forget_search(self) -> None:
        self.points = []
        self.best_actions = ()
        self.search_note = ""
        self.search_gap = None
        self.simulations = 0
        self._search_job = None

    @property
    def search_job(self) -> Job | None:
        """The last search of what is loaded."""
        return self._search_job

    @property
    def mirror(self) -> Mirror | None:
        """The trace of the last search, as far as it has arrived."""
        return None if self._search_job is None else self._search_job.mirror

    def _searched(self, job: Job) -> None:
        end: SearchEnd = job.result
        problem = self.search_problem
        assert problem is not None
        self.best_actions, self.search_gap = end.actions, end.gap
        self.search_note = f"{end.message} {gap_text(end.gap)}".rstrip()
        self._keep_search(end.plan(problem), end.cost, problem, end.method, end.seed)

    def _keep_search(
        self, plan: ShardingPlan, cost: Cost, problem: Problem, method: str, seed: int
    ) -> None:
        name = self.free_name(f"{method} (seed {seed})", " #")
        self.plans = [*self.plans, PlanItem(name, "search", plan, problem, cost)]
        self.say(f"{name}: {self.search_note} It is in the comparison now.", "good")

    def pause_search(self) -> None:
        """Stand still, or go on; a race stands still before the next method."""
        if self.job is not None and self.job.kind in ("search", "race") and self.job.running:
            if self.job.state is JobState.PAUSED:
                self.job.resume()
            else:
                self.job.pause()
            self.job_changes += 1

    def step_search(self) -> None:
        """Do one simulation and stand still; starts a paused search if none runs."""
        if not self.busy:
            self.start_search()
        if self.job is not None and self.job.kind == "search" and self.job.running:
            self.tick()
            self.job.step(self.simulations)
            self.job_changes += 1

    def step_round(self) -> None:
        """Do the rest of a round of the search and stand still; starts a search if none runs."""
        if not self.busy:
            self.start_search()
        if self.job is not None and self.job.kind == "search" and self.job.running:
            self.tick()
            self.job.step_round(self.simulations)
            self.job_changes += 1

    def stop_search(self) -> None:
        """End the search or the race, keeping what was found."""
        if self.job is not None and self.job.kind in ("search", "race") and self.job.running:
            self.job.stop()
            self.job_changes += 1

    def cancel_job(self) -> None:
        """Kill whatever runs."""
        if self.job is not None and self.job.running:
            self.job.cancel()
            self.job_changes += 1

    def tick(self) -> list[Point]:
        """Bring in what the job reported since the last call.

        Gives the new points of the search curves.
        """
        job = self.job
        if job is None or self._settled:
            return []
        # Read first: whatever was logged before the end is in the log by now
        ended = job.finished.is_set()
        events = job.since(self._seen)
        self._seen += len(events)
        new: list[Point] = []
        for event in events:
            if job.kind == "race":
                self.race.take(event.data)
            elif isinstance(event.data, Batch):
                self.simulations = event.data.done
                for simulation in event.data.simulations:
                    new.append(point(simulation))
                    if simulation.improved:
                        self.best_actions = simulation.actions
        self.points.extend(new)
        if len(self.points) > MAX_POINTS:
            self.points = [
                p
                for i, p in enumerate(self.points)
                if p.improved or i % 2 or i + 1 == len(self.points)
            ]
        if ended:
            self._settle(job)
        if events or ended:
            self.job_changes += 1
        return new

    def _settle(self, job: Job) -> None:
        self._settled = True
        with self.guarded():
            if job.state is JobState.DONE and self._on_result is not None:
                self._on_result(job)
                return
            self.say(job.message, "info" if job.state is JobState.CANCELLED else "error")
            problem = self.search_problem
            if job.kind == "search" and self.points and problem is not None:
                method, seed = job.about["method"], job.about["seed"]
                plan, self.search_note = rescue(problem, method, self.best_actions)
                self._keep_search(plan, price(problem, plan), problem, method, seed)

    # -- reloading a page --------------------------------------------------------------------------
    def adopt(self, job: Job) -> bool:
        """Watch a search or a race that another page started, from its beginning.

        False: the job is neither.
        """
        about = job.about
        if job.kind not in ("search", "race") or about is None:
            return False
        self.show(Loaded(about["model"], about["analysis"]), about["which"], about["sizes"])
        known = ("model", "analysis", "which", "sizes", "problem", "race")
        self.param.update(**{k: v for k, v in about.items() if k not in known})
        self.set_problem()
        self.job, self._seen, self._settled = job, 0, False
        if job.kind == "search":
            self._search_job = job
            self.search_problem = about["problem"]
            self._on_result = self._searched
        else:
            self.race, self._on_result = about["race"].fresh(), self._raced
        self.job_changes += 1
        return True

    def fork(self) -> Session:
        """A session of its own that starts from this one's state and watches the same job."""
        kept = {k: v for k, v in self.param.values().items() if k not in ("name",)}
        new = Session(jobs=self.jobs, **kept)
        new.points = list(self.points)
        new.best_actions = self.best_actions
        new.search_note = self.search_note
        new.search_gap = self.search_gap
        new._shelf, new.search_problem = dict(self._shelf), self.search_problem
        new._trails = dict(self._trails)
        new._search_job, new.race = self._search_job, self.race.copy()
        new._seen, new._settled = self._seen, self._settled
        name = getattr(self._on_result, "__name__", "")
        if isinstance(self._on_result, functools.partial):
            same = getattr(new, self._on_result.func.__name__)
            new._on_result = functools.partial(same, *self._on_result.args)
        elif name:
            new._on_result = getattr(new, name)
        return new
