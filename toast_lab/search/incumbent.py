"""The best plan of a search so far (its incumbent), made into a ``ShardingPlan`` on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from toast_lab.cost.problem import Problem, Quick
from toast_lab.search import ledger
from toast_lab.search.trace import Simulation, Trace
from toast_lab.sharding.plan import ShardingPlan, make_plan, pinned_texts, plan_of_state
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.space import Action
from toast_lab.sharding.state import State

Rank = tuple[float, ...]


def price_of(simulation: Simulation) -> Quick:
    """The price of the state in which a simulation ended, as the trace has it."""
    return Quick(simulation.score, simulation.time_s, simulation.peak_bytes, simulation.fits)


def with_pinned(problem: Problem, actions: tuple[str, ...]) -> tuple[str, ...]:
    """The actions of a plan, preceded by the pinned actions of the problem."""
    return (*pinned_texts(problem.space), *actions)


class Incumbent:
    """The best plan so far; a plan that no actions give is written into the trace.

    Attributes:
        quick: the price of the plan; None before anything was priced.
        rank: see ``ledger.rank``; empty before anything was priced.
        row: index of its simulation in the trace, counted from 0; -1: none.
    """

    def __init__(self, problem: Problem, trace: Trace) -> None:
        self.problem, self.trace = problem, trace
        self.quick: Quick | None = None
        self.rank: Rank = ()
        self.row = -1
        self._plan: Callable[[], ShardingPlan] | None = None

    def is_worse_than(self, rank: Rank) -> bool:
        """Would a plan of this rank be better?"""
        return self.quick is None or rank < self.rank

    def plan(self) -> ShardingPlan:
        """The best plan; something must have been priced."""
        assert self._plan is not None
        return self._plan()

    def keep_state(
        self, quick: Quick, row: int, *, state: State, actions: Sequence[Action]
    ) -> None:
        """Make a state the best plan; ``actions`` led to it."""
        kept_state, taken = state.copy(), tuple(actions)
        kept_state.priced = None
        self._keep(quick, row, len(taken))
        self._plan = lambda: plan_of_state(kept_state, taken)
        self.trace.best_sharding = None

    def keep_arrays(
        self,
        quick: Quick,
        row: int,
        *,
        sharding: Sharding,
        labels: Sequence[str],
    ) -> None:
        """Make a plan that no sequence of actions gives the best plan."""
        sharding, labels = sharding.copy(), tuple(labels)
        key = sharding.key()
        self._keep(quick, row, len(labels))
        self._plan = lambda: self._plan_of(sharding, labels, key)
        self.trace.best_sharding = sharding
        self.trace.best_actions, self.trace.about["key"] = labels, key

    def _keep(self, quick: Quick, row: int, length: int) -> None:
        self.quick, self.rank, self.row = quick, ledger.rank(quick, length), row

    def _plan_of(self, sharding: Sharding, labels: tuple[str, ...], key: int) -> ShardingPlan:
        problem = self.problem
        actions = with_pinned(problem, labels)
        return make_plan(problem.analysis, problem.mesh, sharding, actions, key=key)
