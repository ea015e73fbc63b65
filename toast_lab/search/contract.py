"""The one contract of every search: ``search(problem, method, seed, budget, on_progress, cancel, resume)``.

A search takes legal actions from the unsharded state, prices states with the shared evaluator and keeps the best.  A
method may also make plans that no sequence of actions gives; they are priced and kept alike.  Every search honours its
budget, reports what it does, can be cancelled at any time and leaves what it found: a plan, a trace, and a bound where
it proved one.  The same seed gives the same result when the budget counts evaluations (a time budget depends on the
machine).

Start reading at ``search``.  Reference: TOAST section 4.1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from toast_lab import checks
from toast_lab.cost.problem import Cost, Pricer, Problem, Quick
from toast_lab.errors import InvalidProblem, ToastError, did_you_mean, join_offenders
from toast_lab.hashing import digest
from toast_lab.isolate import Cancelled
from toast_lab.prepare import prepare
from toast_lab.search import resumable, trace_check
from toast_lab.search.methods import METHODS
from toast_lab.search.trace import Simulation, Simulations, Trace
from toast_lab.sharding.plan import ShardingPlan, pinned_texts
from toast_lab.sharding.space import Action, parse_action
from toast_lab.sharding.state import State

REPORT_EVERY_S = 0.05

Progress = Callable[[Sequence[Simulation]], None]


class Status(enum.Enum):
    """How a search ended; the value is a sentence for people."""

    CONVERGED = "Further trajectories brought no improvement, so the search stopped early."
    COMPLETE = "Every distinct sharding was priced or ruled out by a bound: the plan is the optimum."
    BUDGET = "The budget was used up; the plan is the best found so far."
    CANCELLED = "The search was cancelled; the plan is the best found so far."
    NO_ACTIONS = "No action changes anything on this mesh (no dimension divides), so the program stays unsharded."
    DONE = "Everything that was given was tried."
    CRASHED = "The process of the search died; the plan is the best that it had reported."


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits of a search; whichever is reached first ends it.  None: no such limit; 0: only a look at the start.

    Seconds are those of searching: the clock starts when kernels are ready (``toast_lab.prepare``), and stands while
    the search is paused or whoever listens to its progress takes time.
    """

    seconds: float | None = 30.0
    evaluations: int | None = None

    def __post_init__(self) -> None:
        given = {
            "seconds": self.seconds is not None and checks.number_offence(self.seconds, 0.0, checks.MOST_SECONDS),
            "evaluations": self.evaluations is not None and checks.whole_offence(self.evaluations, 0, 2**62),
        }
        if wrong := [f"{key} {text}" for key, text in given.items() if text]:
            raise InvalidProblem(f"budget: {'; '.join(wrong)} (None: no such limit)")
        if self.seconds is None and self.evaluations is None:
            raise InvalidProblem("budget: give seconds or evaluations, or the search never ends")


@dataclasses.dataclass(frozen=True, eq=False)
class SearchResult:
    """Outcome of a search."""

    plan: ShardingPlan
    cost: Cost
    status: Status
    trace: Trace
    method: str
    seed: int
    evaluations: int  #: distinct states priced
    elapsed_s: float
    actions: tuple[
        Action, ...
    ]  #: beyond those that the problem has pinned; empty if the plan did not come from actions
    message: str  #: the status in a sentence, with the numbers
    #: Proved: no plan of the method's space has a C(s) below this.  Where ``cost.fits`` this is said of plans that fit
    #: alone: one that is over the limit may have a lower C(s), its penalty included, and is still not preferred.
    #: None: nothing was proved.
    bound: float | None = None

    @property
    def gap(self) -> float | None:
        """By which part the plan may be above the best that ``bound`` speaks of: C(s) / bound - 1; None: unknown."""
        return None if self.bound is None or not self.bound > 0 else max(0.0, self.cost.score / self.bound - 1.0)

    def __repr__(self) -> str:
        return f"<SearchResult {self}>"

    def __str__(self) -> str:
        return f"{self.method}: {self.cost.time_s * 1e3:.3f} ms, {self.cost.peak_bytes / 2**30:.2f} GiB. {self.message}"


class Stop(Exception):
    """Raised inside a search when its budget is used up or it was cancelled."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.value)
        self.status = status


class Recorder:
    """Prices states for one search run: counts, times, remembers the best, reports, and stops it in time.

    Attributes:
        trace: what the search did so far; ``trace.memory`` is the method's, for going on later.
        resumed: was the trace there before?
        round: number written to the simulations.
        counted: distinct states that the method priced on its own.
        bound: what ``prove`` was told.
    """

    def __init__(
        self,
        problem: Problem,
        budget: Budget,
        on_progress: Progress | None,
        cancel: Callable[[], bool] | None,
        trace: Trace | None = None,
    ) -> None:
        self.problem, self.budget, self.on_progress, self.cancel = problem, budget, on_progress, cancel
        self.resumed = trace is not None
        self.trace = Trace() if trace is None else trace
        self.pricer: Pricer = problem.pricer()
        self.prices: dict[int | bytes, Quick] = {}  # by state key: a sharding is priced once however it was reached
        self.counted = 0
        self.undivided = False  # a step is under way that must not be ended half way by the number of evaluations
        self.round = 0
        self.bound: float | None = None
        self.best: Quick | None = None
        self.best_rank: tuple[float, ...] = ()
        self._best_row = -1
        self._best_plan: Callable[[], ShardingPlan] | None = None
        self.best_actions: tuple[Action, ...] = ()
        self._before_s = float(self.trace.about.get("elapsed_s", 0.0))
        self._before_evaluations = int(self.trace.about.get("evaluations", 0))
        self._reported, self._reported_at = self.trace.row.n, -math.inf
        self.started = time.monotonic()
        self._stood_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds that the search has taken, those before it was resumed included, pauses and preparations not."""
        return self._before_s + time.monotonic() - self.started - self._stood_s

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        """Stop the clock: what is done meanwhile is no searching."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._stood_s += time.monotonic() - began

    def prepare(self, *needs: str) -> None:
        """Make sure of further kernels (see ``toast_lab.prepare``) while the clock stands."""
        with self.standing():
            try:
                prepare(*needs, cancel=self.cancel)
            except Cancelled:
                raise Stop(Status.CANCELLED) from None  # what was found so far is kept

    @property
    def evaluations(self) -> int:
        """Distinct states priced so far."""
        return self._before_evaluations + len(self.prices) + self.counted

    def left(self) -> tuple[float, float]:
        """(seconds, evaluations) that the budget still has, infinite where it has no such limit."""
        b = self.budget
        return (
            math.inf if b.seconds is None else b.seconds - (self.elapsed_s - self._before_s),
            math.inf
            if b.evaluations is None or self.undivided
            else b.evaluations - (self.evaluations - self._before_evaluations),
        )

    def check(self) -> None:
        """Raise Stop if the search must end now."""
        if self.cancel is not None and self.cancel():
            raise Stop(Status.CANCELLED)
        if min(self.left()) <= 0:
            raise Stop(Status.BUDGET)

    def price(self, state: State) -> Quick:
        """Price a state, at once if it was priced before."""
        found = self.prices.get(state.key)
        if found is None:
            found = self.prices[state.key] = self.pricer.quick(state)
        return found

    def rank(self, quick: Quick, length: int) -> tuple[float, float, float]:
        """What is lower is better: a plan that fits before any that does not, among equals the one of fewer actions."""
        return (0.0 if quick.fits else 1.0, quick.score, length)

    def prove(self, bound: float) -> None:
        """State that no plan of the space that this method searches has a C(s) below ``bound``.

        Where the best plan known at the end fits, that need only hold of plans that fit (``SearchResult.bound``).
        """
        self.bound = bound

    def choose(self, state: State, actions: Sequence[Action]) -> None:
        """Make ``state`` the outcome, whatever its price."""
        self._keep(self.price(state), self.rank(self.price(state), len(actions)), self._best_row, state, actions)

    def add_node(self, parent: int, action: str, depth: int, key: int) -> int:
        """Write a node of the search tree into the trace; gives its number."""
        return self.trace.add_node(parent, action, depth, key)

    def record(self, state: State, actions: Sequence[Action], nodes: Sequence[int] = ()) -> Quick:
        """Price the end of a trajectory, keep it if it is the best, and report it."""
        quick = self.price(state)
        if self._write(quick, [self.problem.space.text(a) for a in actions], nodes):
            self._keep(quick, self.rank(quick, len(actions)), self.trace.row.n - 1, state, actions)
        self.report()
        return quick

    def record_plan(
        self,
        op_axis: np.ndarray,
        value_axis: np.ndarray,
        labels: Sequence[str],
        nodes: Sequence[int] = (),
        quick: Quick | None = None,
    ) -> Quick:
        """``record`` for a plan that no sequence of actions gives.

        Args:
            op_axis: [O, A] int32, the name along which each op is split on each axis, -1: none.
            value_axis: [V, A] int8, the dim of each value on each axis, -1: none.
            labels: how it came about, for people.
            nodes: trace nodes passed, root first.
            quick: its price, where the method has worked it out (and counted it in ``counted``).
        """
        op_axis, value_axis = np.ascontiguousarray(op_axis, np.int32), np.ascontiguousarray(value_axis, np.int8)
        key = b""
        if quick is None:
            key = digest(op_axis, value_axis)
            quick = self.prices.get(key)
        if quick is None:
            totals = self.pricer.totals(op_axis, value_axis)
            score, _, _ = self.pricer.score(totals.time_s, totals.peak_bytes)
            fits = totals.peak_bytes <= self.problem.memory_limit_bytes
            quick = self.prices[key] = Quick(score, totals.time_s, totals.peak_bytes, fits)
        if self._write(quick, labels, nodes):
            arrays = op_axis.copy(), value_axis.copy()
            self.best, self.best_rank, self._best_row = quick, self.rank(quick, len(labels)), self.trace.row.n - 1
            self.best_actions, words = (), tuple(labels)
            number = int.from_bytes(key or digest(*arrays), "little")
            self._best_plan = lambda: self._plan_of(*arrays, words, number)
            self.trace.best_op_axis, self.trace.best_value_axis = arrays
            self.trace.best_actions, self.trace.about["key"] = words, number
        self.report()
        return quick

    def take_best(self, quick: Quick, row: int, state: State, actions: Sequence[Action]) -> None:
        """Simulation ``row`` of the trace, which the method wrote there itself, is the best so far."""
        self._keep(quick, self.rank(quick, len(actions)), row, state, actions)

    def report(self, *, last: bool = False) -> None:
        """Tell who listens of the simulations since the last report, a few times a second."""
        if self.on_progress is None or self.trace.row.n == self._reported:
            return
        now = time.monotonic()
        if last or now - self._reported_at >= REPORT_EVERY_S:
            news = Simulations(self.trace, self._reported, self.trace.row.n)
            self._reported, self._reported_at = self.trace.row.n, now
            with self.standing():  # who listens may pause the search, or draw
                self.on_progress(news)

    def plan(self) -> ShardingPlan:
        """The best plan."""
        assert self._best_plan is not None
        return self._best_plan()

    def take_over(self) -> None:
        """Make the best plan of a resumed trace the best so far."""
        trace, problem = self.trace, self.problem
        assert trace.best_op_axis is not None
        assert trace.best_value_axis is not None
        row = int(trace.row["best"][-1])
        taken = trace.simulation(row)
        quick = Quick(taken.score, taken.time_s, taken.peak_bytes, taken.fits)
        try:
            actions = [parse_action(problem.analysis, problem.mesh, text) for text in trace.best_actions]
        except Exception:  # the plan was not made of actions
            actions = []
        arrays, words, key = (trace.best_op_axis, trace.best_value_axis), trace.best_actions, trace.about["key"]
        pinned = pinned_texts(problem.space)
        trace.best_actions = words = words[len(pinned) :]
        actions = actions[len(pinned) :]
        self.best, self.best_rank, self._best_row = quick, self.rank(quick, len(words)), row
        self.best_actions = tuple(actions)
        self._best_plan = lambda: self._plan_of(*arrays, words, key)

    # -- inside -----------------------------------------------------------------------------------
    def _write(self, quick: Quick, texts: Sequence[str], nodes: Sequence[int]) -> bool:
        """Add a simulation to the trace; is it the best so far?"""
        improved = self.best is None or self.rank(quick, len(texts)) < self.best_rank
        self.trace.add_simulation(
            [self.trace.word(t) for t in texts], nodes, round=self.round, elapsed_s=self.elapsed_s, score=quick.score,
            time_s=quick.time_s, peak_bytes=quick.peak_bytes, fits=quick.fits,
            best=self.trace.row.n if improved else self._best_row,
        )  # fmt: skip
        return improved

    def _keep(self, quick: Quick, rank: tuple[float, ...], row: int, state: State, actions: Sequence[Action]) -> None:
        kept, taken = state.copy(), tuple(actions)
        kept.priced = None
        self.best, self.best_rank, self._best_row, self.best_actions = quick, rank, row, taken
        self._best_plan = lambda: ShardingPlan.from_state(kept, taken)
        self.trace.best_op_axis = self.trace.best_value_axis = None

    def _plan_of(self, op_axis: np.ndarray, value_axis: np.ndarray, actions: tuple[str, ...], key: int) -> ShardingPlan:
        for array in (op_axis, value_axis):
            array.flags.writeable = False
        analysis, actions = self.problem.analysis, (*pinned_texts(self.problem.space), *actions)
        return ShardingPlan(analysis.program, self.problem.mesh, op_axis, value_axis, actions, key, analysis.trees)


def search(
    problem: Problem,
    method: str | None = None,
    seed: int | None = None,
    budget: Budget | None = None,
    on_progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    *,
    resume: Trace | str | os.PathLike[str] | None = None,
    **options: Any,
) -> SearchResult:
    """Search for the best plan of ``problem``.

    Args:
        problem: program, mesh and machine.
        method: one of ``METHODS``; "mcts" by default.
        seed: of the search's own random numbers; 0 by default.
        budget: seconds and/or evaluations (30 s by default).
        on_progress: called a few times a second with the simulations since the last call.
        cancel: polled every few milliseconds; True ends the search, keeping what it found.
        resume: trace (or its file) of an earlier search of the same problem, to go on from: its method, seed and
            options hold, the budget is a new one, and the trace is extended (the given one is not changed).
        options: of the method, see its module.

    Raises:
        InvalidProblem: unknown method or option, or a trace of another problem or method.
    """
    trace = None if resume is None else reopened(problem, resume, method, seed, options)
    about = {} if trace is None else trace.about
    method = method or about.get("method", "mcts")
    seed = checks.seed(about.get("seed", 0) if seed is None else seed)
    options = {**about.get("options", {}), **options}
    run = check_options(method, options)
    if wrong := option_offenders(method, options):
        raise InvalidProblem("; ".join(wrong))
    prepare("price", cancel=cancel)
    recorder = Recorder(problem, budget or Budget(), on_progress, cancel, trace)
    try:
        if recorder.resumed:
            recorder.take_over()
        else:
            recorder.add_node(-1, "", 0, 0)
            # The unsharded program is always a candidate, or what of it the pins leave.
            recorder.record(State(problem.space), (), (0,))
        recorder.prepare(method)  # while these are compiled, the price of the start is there to be seen
        status = run(recorder, seed, **options)
    except Stop as stop:
        status = stop.status
    elapsed_s = recorder.elapsed_s
    recorder.report(last=True)
    plan = recorder.plan()
    if problem.pins is not None and (broken := problem.pins.broken(plan.op_axis, plan.value_axis)):
        raise AssertionError(f"{method} does not keep to the pins: {broken[:5]}")
    cost = recorder.pricer.full(plan)
    kept = recorder.trace
    kept.best_op_axis, kept.best_value_axis, kept.best_actions = plan.op_axis, plan.value_axis, plan.actions
    kept.about = {
        **_about(problem), "method": method, "seed": seed, "options": _plain(options), "status": status.name,
        "elapsed_s": elapsed_s, "evaluations": recorder.evaluations, "key": plan.key, "bound": recorder.bound,
    }  # fmt: skip
    return SearchResult(
        plan, cost, status, kept, method, seed, recorder.evaluations, elapsed_s, recorder.best_actions,
        _message(recorder, elapsed_s, status, plan, cost), recorder.bound,
    )  # fmt: skip


def check_options(method: str, options: Iterable[str]) -> Any:
    """The function of a method that has these options.  Raises InvalidProblem for an unknown method or option."""
    run = method_of(method)
    if unknown := _unknown(run, method, options):
        raise InvalidProblem(unknown)
    return run


def _unknown(run: Any, method: str, options: Iterable[str]) -> str:
    known = run.__kwdefaults__ or {}
    unknown = [k for k in options if k not in known]
    return f"{method} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}" if unknown else ""


def option_offenders(method: str, options: Mapping[str, Any]) -> list[str]:
    """What is wrong with the options of a method: unknown ones, and numbers that are none or not finite."""
    run = method_of(method)
    found = [text] if (text := _unknown(run, method, options)) else []
    for key, value in options.items():
        kinds = {kind.strip() for kind in str(run.__annotations__.get(key, "")).split("|")}
        if value is None and "None" in kinds:
            continue
        text = ""
        if "bool" in kinds:
            text = "" if isinstance(value, bool) else f"must be true or false, got {value!r:.60}"
        elif "int" in kinds:
            text = checks.whole_offence(value, -checks.MOST_COUNT, checks.MOST_COUNT)
        elif "float" in kinds:
            text = checks.number_offence(value)
        elif "str" in kinds:
            text = "" if isinstance(value, str) else f"must be a text, got {value!r:.60}"
        if text:
            found.append(f"{method}: option {key} {text}")
    return found or _refused(run, options)


class _Begun(Exception):
    """A method has let its options through."""


class _Nobody:
    """Stands for the recorder of a search that is not made."""

    def __getattr__(self, name: str) -> Any:
        raise _Begun


def _refused(run: Any, options: Mapping[str, Any]) -> list[str]:
    """What a method says of numbers out of its range.  Ours look at their options before they look at the recorder."""
    if not run.__module__.startswith("toast_lab."):
        return []
    try:
        run(_Nobody(), 0, **options)
    except _Begun:
        return []
    except ToastError as error:
        return [str(error)]
    return []


def method_of(name: str) -> Any:
    """The function of a method; its options are its keyword arguments.  Raises InvalidProblem for an unknown name."""
    if name not in METHODS:
        raise InvalidProblem(
            f"no search is called {name!r}{did_you_mean(name, METHODS)}; methods: {', '.join(METHODS)}"
        )
    module, _, function = METHODS[name].partition(":")
    return getattr(importlib.import_module(module), function)


def _about(problem: Problem) -> dict[str, Any]:
    """What tells one problem from another in a trace."""
    return {
        "program": problem.analysis.program.digest(),
        "mesh": str(problem.mesh),
        "machine": problem.machine.name,
        "memory_limit_bytes": problem.memory_limit_bytes,
        "memory_weight": problem.memory_weight,
        "paper_mode": problem.paper_mode,
        "pins": [] if problem.pins is None else problem.pins.texts,
    }


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON keeps them; what it cannot keep is given again when the search is resumed."""
    return {k: v for k, v in options.items() if isinstance(v, (int, float, str, bool, type(None)))}


def reopened(
    problem: Problem,
    resume: Trace | str | os.PathLike[str],
    method: str | None = None,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
) -> Trace:
    """A copy of a trace (or the one in a file) that a search of ``problem`` can go on from.

    Raises:
        InvalidProblem: the file is no trace, or it is of another problem, method, seed or options.
    """
    options = options or {}
    trace = resume.copy() if isinstance(resume, Trace) else Trace.load(resume)
    if trace.about.get("status") == Status.CRASHED.name:
        raise InvalidProblem(
            "this search cannot be resumed: its process died, so that its trace tells what it did and lacks what it "
            "takes to go on. Search anew"
        )
    named = _named(resume)
    if isinstance(resume, Trace):  # one from a file was looked at when it was read
        _refuse(named, [*trace_check.about_offenders(trace.about), *trace_check.offenders(trace)])
    _refuse(named, resumable.about_offenders(trace))
    trace.about.setdefault("pins", [])  # traces of versions that knew none
    asked: dict[str, Any] = {**_about(problem), **({"method": method} if method else {})}
    asked |= {"seed": seed} if seed is not None else {}
    given = trace.about.get("options", {})
    wrong = [f"{k} {trace.about.get(k)!r}, not {v!r}" for k, v in asked.items() if trace.about.get(k) != v]
    wrong += [f"option {k}={given[k]!r}, not {v!r}" for k, v in options.items() if k in given and given[k] != v]
    if wrong:
        raise InvalidProblem(f"this search cannot be resumed here: its trace has {'; '.join(wrong)}. Search anew")
    held = {**given, **options}
    _refuse(named, option_offenders(trace.about["method"], held))
    defaults = method_of(trace.about["method"]).__kwdefaults__ or {}
    _refuse(named, resumable.offenders(problem, trace, {**defaults, **held}))
    return trace


def _named(resume: Trace | str | os.PathLike[str] | None) -> str:
    return os.fspath(resume) if isinstance(resume, str | os.PathLike) else "this trace"


def _refuse(named: str, offenders: Iterable[str]) -> None:
    """Raise InvalidProblem if there are any."""
    if wrong := list(offenders):
        raise InvalidProblem(
            f"{named}: no search can go on from this trace; give another copy of it, or search anew:\n"
            f"{join_offenders(wrong)}"
        )


def _message(recorder: Recorder, elapsed_s: float, status: Status, plan: ShardingPlan, cost: Cost) -> str:
    said, pins = status.value, recorder.problem.pins
    if pins is not None and status is Status.NO_ACTIONS:
        said = "No action changes anything beside the pins, so the program is sharded by them alone."
    text = f"{said} {recorder.evaluations} distinct shardings priced in {elapsed_s:.2f} s."
    if not cost.fits:
        from toast_lab.search.advice import what_would_fit

        text += " " + what_would_fit(recorder.problem, plan, cost)
    return text
