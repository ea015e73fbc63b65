"""Facts of a plan that a user looks at, computed in a thread.

They are the prices on the way to it, the actions that could follow, and what each choice saves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

from toast_lab.cost.problem import Cost, Problem, Quick, price
from toast_lab.errors import ToastError
from toast_lab.search.pruning import pruning_threshold
from toast_lab.sharding.plan import ShardingPlan, is_action, plan_of_actions
from toast_lab.sharding.space import parse_action
from toast_lab.sharding.state import State, legal_actions
from toast_lab.written.choices import Choices, choices
from toast_lab.written.written_plan import WrittenPlan

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


def ranked(plan: ShardingPlan | WrittenPlan, problem: Problem) -> Choices | str:
    """What each choice of a plan saves, or why that is not known."""
    try:
        return choices(plan, problem)
    except ToastError as error:
        return str(error)


Answer = TypeVar("Answer")


class Lookup(Generic[Answer]):
    """The answer to the question that was asked last, which a thread works out."""

    def __init__(self, answer: Callable[..., Answer]) -> None:
        self._answer = answer
        self._asked: tuple[tuple[Any, ...], Future[Answer]] | None = None

    def get(self, *question: Any) -> Answer | None:
        """The answer; None while it is worked out."""
        if self._asked is None or self._asked[0] != question:
            if self._asked is not None:
                self._asked[1].cancel()
            self._asked = question, _THREAD.submit(self._answer, *question)
        return self._asked[1].result() if self._asked[1].done() else None
