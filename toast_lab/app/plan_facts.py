"""What is worked out, in a thread, of a plan that somebody looks at.

That is the prices on the way to it, and what could follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from toast_lab.cost.problem import Cost, Problem, Quick, price
from toast_lab.errors import ToastError
from toast_lab.search.pruning import pruning_threshold
from toast_lab.sharding.plan import plan_of_actions
from toast_lab.sharding.space import parse_action
from toast_lab.sharding.state import State, legal_actions
from toast_lab.text import LEAST_SHARE
from toast_lab.views.compare_table import seconds_text

_THREAD = ThreadPoolExecutor(1, "facts of a plan")


class PlanFacts(NamedTuple):
    """What is known of a row of actions."""

    cost: Cost | str  #: price of the plan, or why it has none
    steps: tuple[Quick, ...]  #: price after each action
    legal: tuple[str, ...]  #: actions that a search might take next


def plan_facts(problem: Problem, actions: Sequence[str]) -> PlanFacts:
    """Price a plan and each step to it.

    ``legal`` are the actions that the tree search takes up there.
    """
    try:
        taken = [
            parse_action(problem.analysis, problem.mesh, action_text) for action_text in actions
        ]
        cost = price(problem, plan_of_actions(problem.space, taken))
    except ToastError as error:
        refined = next((line for line in actions if not is_action(line)), None)
        why = f"it has {refined!r}" if refined is not None else str(error)
        return PlanFacts(
            f"Not made of actions alone, so its steps cannot be priced one by one: {why}.", (), ()
        )
    pricer, state, steps = problem.pricer(), State(problem.space), []
    for action in taken:
        state.apply(action)
        steps.append(pricer.quick(state))
    legal = tuple(
        problem.space.text(action) for action in legal_actions(state, pruning_threshold(problem))
    )
    return PlanFacts(cost, tuple(steps), legal)


def is_action(line: str) -> bool:
    """Whether a line of a plan is an action; others say how it came about."""
    return "->" in line


def steps_worth(
    actions: Sequence[str], steps: Sequence[Quick], unsharded: Quick, best: Quick
) -> list[str]:
    """What each line of a searched plan leads to, as texts to stand behind it.

    Args:
        actions: of the plan, and what else it says of how it came about (``refined in 12 places``).
        steps: prices after those of them that are actions, see ``plan_facts``.
        unsharded: what the plan began with.
        best: the price of the plan.
    """
    texts, before, prices = [], unsharded, iter(steps)
    for action_text in actions:
        after = next(prices, best) if is_action(action_text) else best
        share = 1.0 - after.time_s / before.time_s if before.time_s else 0.0
        if after.fits and not before.fits:
            change = "fits now"
        elif abs(share) < LEAST_SHARE:
            change = "as fast"
        else:
            change = f"{share:.1%} less" if share > 0 else f"{-share:.1%} more"
        misfit = "" if after.fits else ", does not fit"
        texts.append(f"{seconds_text(after.time_s)}, {change}{misfit}")
        before = after
    return texts


class Lookup:
    """The facts of the plan that was asked for last."""

    def __init__(self) -> None:
        self._asked: tuple[Problem, tuple[str, ...], Future[PlanFacts]] | None = None

    def get(self, problem: Problem | None, actions: tuple[str, ...]) -> PlanFacts | None:
        """The facts; None while a thread works them out, or if there is no problem."""
        if problem is None:
            return None
        lookup = self._asked
        if lookup is None or lookup[0] is not problem or lookup[1] != actions:
            if lookup is not None:
                lookup[2].cancel()
            lookup = self._asked = problem, actions, _THREAD.submit(plan_facts, problem, actions)
        return lookup[2].result() if lookup[2].done() else None
