"""The one contract of every search: ``search(problem, method, seed, budget, on_progress, cancel)``.

A search takes legal actions from the unsharded state, prices the states with the shared evaluator
and keeps the best one. A method may also make plans that no sequence of actions gives; they are
priced and kept in the same way. Every search honours its budget, reports its progress, can be
cancelled at any time and returns its results so far: a plan, a trace, and a bound if it proved one.
The same seed gives the same result when the budget counts evaluations (a time budget depends on the
machine).

Start reading at ``search``; ``methods`` lists the methods, ``recorder`` is what each searches with.
Reference: TOAST section 4.1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Generic, Self

from toast_lab import checks
from toast_lab.cost.problem import Cost, Problem
from toast_lab.errors import InvalidProblem
from toast_lab.files import PathLike
from toast_lab.prepare import prepare
from toast_lab.search import action_path
from toast_lab.search.action_path import ACTIONS_WITHIN, PathStep, Refinements
from toast_lab.search.advice import how_to_fit
from toast_lab.search.gap.certify import LowerBound, lower_bound
from toast_lab.search.limits import Budget, Status, Stop
from toast_lab.search.methods import method_named
from toast_lab.search.recorder import Progress, Recorder
from toast_lab.search.resumable import about_problem, reopened
from toast_lab.search.saved_search import SavedSearch, facts_of
from toast_lab.search.trace import Trace
from toast_lab.sharding.plan import PlanT, ShardingPlan
from toast_lab.sharding.space import Action
from toast_lab.text import bytes_text, counted, gap_text

#: The types that callers and methods share, each documented where it is defined.
__all__ = ["Budget", "Progress", "Recorder", "SearchResult", "Status", "Stop", "search"]


@dataclasses.dataclass(frozen=True, eq=False)
class SearchResult(Generic[PlanT]):
    """Outcome of a search.

    ``plan`` is the best plan that was found, or a plan of actions alone that is nearly as good
    (``search(actions_within=...)``); ``refined`` gives the best one in either case.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> result = tl.search(problem, budget=tl.Budget(None, 200))
        >>> result.method, result.status.name
        ('mcts', 'COMPLETE')
        >>> result.cost.relative_time < 1  # faster than one device
        True
        >>> result.plan.argument_specs()["x"]
        (('data',), ())
    """

    plan: PlanT
    cost: Cost
    status: Status
    trace: Trace
    method: str
    seed: int
    evaluations: int  #: distinct states priced
    elapsed_s: float
    #: beyond the pinned actions of the problem: those of ``plan``, before ``refinements`` changed
    #: it. Empty if no action helped, or the method takes none
    actions: tuple[Action, ...]
    message: str  #: the status in a sentence, with the numbers
    #: A proven lower bound: no plan of the method's space (after ``certified``, of the space of
    #: ``tl.bound``) has a C(s) below it. None: nothing was proved. If ``cost.fits``, the bound
    #: covers only plans that fit: one over the limit may have a lower C(s), its penalty included,
    #: and still ranks behind.
    bound: float | None = None
    #: the bound that ``certified`` proved; None: ``certified`` was not called
    certificate: LowerBound | None = dataclasses.field(default=None, repr=False)
    #: the problem that was searched; None: unknown
    problem: Problem | None = dataclasses.field(default=None, repr=False)
    #: the best plan found and its cost, if ``plan`` is one of actions alone that was preferred to
    #: it, or one of a limited size; see ``refined``
    unlimited: tuple[PlanT, Cost] | None = dataclasses.field(default=None, repr=False)
    #: most rules and constraints that the plan may take to write; None: no limit was given
    size: int | None = None

    @functools.cached_property
    def refinements(self) -> Refinements | None:
        """What changed the best plan found after its actions, with its gain; None: nothing did.

        ``refinements.is_kept`` is False if ``plan`` is the one before them.
        """
        if self.problem is None:
            return None
        is_kept = self.unlimited is None
        return action_path.refinements_of(self.problem, self.refined.plan, is_kept=is_kept)

    @property
    def refined(self) -> Self:
        """The result with the best plan found, whether or not actions alone give it."""
        if self.unlimited is None:
            return self
        plan, cost = self.unlimited
        return dataclasses.replace(self, plan=plan, cost=cost, unlimited=None)

    @functools.cached_property
    def path(self) -> tuple[PathStep, ...]:
        """The way to the plan, with its price after each step.

        It begins with the program without actions; the refinements of the plan come last.
        """
        return () if self.problem is None else action_path.path_of(self.problem, self.plan)

    @property
    def gap(self) -> float | None:
        """How far C(s) may be above the optimum: C(s) / ``bound`` - 1; None: no bound is known."""
        if self.bound is None or not self.bound > 0:
            return None
        return max(0.0, self.cost.score / self.bound - 1.0)

    @property
    def proof(self) -> str:
        """A sentence on what is proven about the plan; empty if nothing is."""
        return gap_text(self.gap, of_all=self.certificate is not None)

    def __repr__(self) -> str:
        return f"<SearchResult {self.in_brief()}>"

    def __str__(self) -> str:
        return self.in_brief()

    def in_brief(self) -> str:
        """The method, the price and how the search ended, on one line."""
        return (
            f"{self.method}: {self.cost.time_s * 1e3:.3f} ms, "
            f"{self.cost.relative_time:.3g} of unsharded, {bytes_text(self.cost.peak_bytes)}. "
            f"{self.message}"
        )

    @property
    def saved(self) -> SavedSearch:
        """What it takes to resume this search; a search that goes on leaves it as it is."""
        return SavedSearch.of(self.trace, self.refined.plan)

    def save(self, path: PathLike) -> None:
        """Save the search, to resume it: its settings and its best plan, which is kept as a plan.

        Raises NotSaved if the file cannot be written.
        """
        self.saved.save(path)

    def certified(self, seconds: float = 60.0, cancel: Callable[[], bool] | None = None) -> Self:
        """This result with a bound that holds for the plans of every method of the space.

        ``bound`` becomes the bound of ``tl.bound``, in place of any that the method has proven for
        its own space.

        Args:
            seconds: time limit of the proof.
            cancel: polled; True ends the proof and keeps the bound proven so far.

        Raises:
            InvalidProblem: the problem that was searched is not known.
        """
        if self.problem is None:
            raise InvalidProblem("this result lacks the problem that was searched; search again")
        # A bound above the best plan found would be no bound for it.
        cost = self.refined.cost
        proven = lower_bound(self.problem, seconds, cost=cost, cancel=cancel)
        return dataclasses.replace(
            self, bound=proven.score if proven.score > 0 else None, certificate=proven
        )


def search(
    problem: Problem,
    method: str | None = None,
    seed: int | None = None,
    budget: Budget | None = None,
    on_progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    *,
    resume: SearchResult[Any] | SavedSearch | PathLike | None = None,
    actions_within: float = ACTIONS_WITHIN,
    **options: Any,
) -> SearchResult[ShardingPlan]:
    """Run one search; arguments and errors are those of ``pipeline.search``.

    ``pipeline.search`` gives the same result with a plan for users.
    """
    if isinstance(resume, SearchResult):
        resume = resume.saved
    saved = (
        None
        if resume is None
        else reopened(problem, resume, method=method, seed=seed, options=options)
    )
    about = {} if saved is None else saved.facts
    seed = checks.seed(about.get("seed", 0) if seed is None else seed)
    options = {**about.get("options", {}), **options}
    chosen = method_named(method or about.get("method", "mcts")).of(options)
    budget = Budget.checked(budget)
    actions_within = checks.number("actions_within", actions_within, 0.0)
    prepare("price", cancel=cancel)
    recorder = Recorder(problem, budget, on_progress=on_progress, cancel=cancel, saved=saved)
    try:
        recorder.start()
        # A listener can already see the unsharded price while the kernels are compiled.
        recorder.limits.prepare(chosen.name)
        status = chosen.run(recorder, seed)
        if recorder.replays():
            assert recorder.replay is not None
            raise recorder.replay.astray(f"its end ({status.name})")
    except Stop as stop:
        status = stop.status
    request = {"method": chosen.name, "seed": seed, "options": chosen.as_json(options)}
    return _result(recorder, status, request, 0.0 if chosen.by_hand else actions_within)


def _result(
    recorder: Recorder, status: Status, request: dict[str, Any], actions_within: float
) -> SearchResult[ShardingPlan]:
    """The result of a search run that has ended; its facts are written into the trace as well.

    Args:
        recorder: the recorder of the run.
        status: why the run ended.
        request: method, seed and options, as the trace keeps them.
        actions_within: as for ``search``.
    """
    elapsed_s = recorder.elapsed_s
    recorder.report(last=True)
    problem, trace = recorder.problem, recorder.trace
    if recorder.replay is None:
        plan = recorder.incumbent.plan()
        facts = facts_of(trace) | {
            "elapsed_s": elapsed_s,
            "evaluations": recorder.evaluations,
            "status": status.name,
        }
    else:
        # It was cancelled before it came as far as the saved search, which stays as it is.
        saved = recorder.replay.saved
        plan, facts, trace.told = saved.best_plan(problem), {**saved.facts}, list(saved.told)
    if problem.pins is not None:
        broken = problem.pins.broken(*plan.sharding)
        if broken:
            raise AssertionError(f"{request['method']} does not keep to the pins: {broken[:5]}")
    trace.best_sharding, trace.best_actions = plan.sharding, plan.history
    trace.about = {**about_problem(problem), **request, **facts}
    plan, unlimited = _answer(recorder, plan, actions_within)
    cost = recorder.ledger.pricer.full(plan)
    result = SearchResult(
        plan=plan,
        cost=cost,
        status=status,
        trace=trace,
        method=request["method"],
        seed=request["seed"],
        evaluations=recorder.evaluations,
        elapsed_s=elapsed_s,
        actions=action_path.taken_actions(problem, plan),
        message=_message(
            recorder=recorder, elapsed_s=elapsed_s, status=status, plan=plan, cost=cost
        ),
        bound=recorder.bound,
        problem=problem,
        unlimited=unlimited,
    )
    sentence = _on_refinements(result, actions_within)
    return dataclasses.replace(result, message=f"{result.message} {sentence}".rstrip())


def _answer(
    recorder: Recorder, best: ShardingPlan, actions_within: float
) -> tuple[ShardingPlan, tuple[ShardingPlan, Cost] | None]:
    """The plan of a result, told in actions, and the best plan with its cost if that is another."""
    problem, trace = recorder.problem, recorder.trace
    plan = action_path.preferred(problem, best, trace, actions_within)
    if plan is None:
        return action_path.with_actions(problem, best, trace), None
    actions = action_path.own_actions(problem, plan)
    best = action_path.after_actions(problem, best, actions)
    if not best.refinements:  # found without actions, but they give it as well
        return best, None
    return plan, (best, recorder.ledger.pricer.full(best))


def _on_refinements(result: SearchResult[ShardingPlan], actions_within: float) -> str:
    """A sentence on what changed the plan after its actions; empty if nothing did."""
    changed, n_actions = result.refinements, counted(len(result.actions), "action")
    if changed is None or not result.actions:
        return ""
    if changed.is_kept:
        return f"The plan is of {n_actions}; after them, {changed}."
    return (
        f"The plan is of {n_actions} alone, which is preferred within {actions_within:.3g} of the "
        f"lowest C(s). Left out (result.refined): {changed}."
    )


def _message(
    recorder: Recorder, elapsed_s: float, status: Status, plan: ShardingPlan, cost: Cost
) -> str:
    """The status as a sentence with the numbers, and advice if no plan fits."""
    sentence, problem = status.value, recorder.problem
    if problem.pins is not None and status is Status.NO_ACTIONS:
        sentence = "No action changes anything beyond the pins, so they alone shard the program."
    evaluations = recorder.evaluations
    if recorder.replay is not None:
        sentence = (
            "The search was stopped while its earlier part was replayed; the plan is the best of "
            "that part, which can be resumed as before."
        )
    message = f"{sentence} {evaluations} distinct shardings priced in {elapsed_s:.2f} s."
    return message if cost.fits else f"{message} {how_to_fit(problem, plan, cost)}"
