"""The plan that a search had last reported before it died."""

from __future__ import annotations

from collections.abc import Sequence

from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan, ToastError
from toast_lab.sharding.plan import ShardingPlan, is_action, plan_of_actions


def rescue(
    problem: Problem, method: str, reported: Sequence[str], why: str
) -> tuple[ShardingPlan, str]:
    """The best plan that a search had reported before it died, and a note on it and on ``why``.

    Its refinements have been lost with the process; the actions that it began with have not.
    Raises ToastError if no actions are left.
    """
    actions = [*filter(is_action, reported)]
    try:
        if reported and not actions:
            raise InvalidPlan("a plan of no actions")
        plan = plan_of_actions(problem.space, actions)
    except InvalidPlan:
        raise ToastError(
            f"the plans of {method} are not sequences of actions, so the plan that it had reported "
            "cannot be rebuilt; stop such a search instead of cancelling it"
        ) from None
    lost = ", before it was refined" if len(actions) < len(reported) else ""
    return plan, f"{why.rstrip('.')}. This is the best plan that it had reported{lost}."
