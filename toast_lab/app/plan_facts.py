"""Facts of a plan that a user looks at, computed in a thread.

They are the prices on the way to it, and the actions that could follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from toast_lab.cost.problem import Cost, Problem, Quick, price
from toast_lab.errors import ToastError
from toast_lab.search.pruning import pruning_threshold
from toast_lab.sharding.plan import is_action, plan_of_actions
from toast_lab.sharding.space import parse_action
from toast_lab.sharding.state import State, legal_actions
from toast_lab.text import LEAST_SHARE
from toast_lab.views.compare_table import seconds_text

_THREAD = ThreadPoolExecutor(1, "facts of a plan")


class PlanFacts(NamedTuple):
    """Facts of a sequence of actions."""

    cost: Cost | str  #: price of the plan, or why it has none
    steps: tuple[Quick, ...]  #: price after each action
    legal: tuple[str, ...]  #: actions that a search might take next


def plan_facts(problem: Problem, actions: Sequence[str]) -> PlanFacts:
    """Price a plan and each step to it.

    ``legal`` has the actions that the tree search would try after them.
    """
    try:
        parsed_actions = [
            parse_action(problem.analysis, problem.mesh, action_text) for action_text in actions
        ]
        cost = price(problem, plan_of_actions(problem.space, parsed_actions))
    except ToastError as error:
        refined = next((line for line in actions if not is_action(line)), None)
        reason = f"it has {refined!r}" if refined is not None else str(error)
        return PlanFacts(
            f"Not made of actions alone, so its steps cannot be priced one by one: {reason}.",
            (),
            (),
        )
    pricer, state, steps = problem.pricer(), State(problem.space), []
    for action in parsed_actions:
        state.apply(action)
        steps.append(pricer.quick(state))
    legal = tuple(
        problem.space.text(action) for action in legal_actions(state, pruning_threshold(problem))
    )
    return PlanFacts(cost, tuple(steps), legal)


def steps_worth(
    actions: Sequence[str], steps: Sequence[Quick], unsharded: Quick, best: Quick
) -> list[str]:
    """The effect of each line of a searched plan, as texts to show behind the lines.

    Args:
        actions: lines of the plan: actions, and how else it came about (``refined in 12 places``).
        steps: prices after those lines that are actions, see ``plan_facts``.
        unsharded: price of the program with which the plan began.
        best: price of the plan.
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
    """The facts of the plan that was requested last."""

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
