"""Plans that come without a search.

The batch dimension on every axis, and what is left of a search that died.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan, ToastError
from toast_lab.sharding.plan import ShardingPlan, plan_of_actions
from toast_lab.sharding.space import Action, parse_action


def data_parallel(problem: Problem) -> list[Action]:
    """The batch dimension along every mesh axis that divides it.

    Raises InvalidPlan if there is none.
    """
    analysis = problem.analysis
    group = batch_group(analysis)
    taken: list[Action] = []
    for axis in problem.mesh.axes:
        action = parse_action(analysis, problem.mesh, (analysis.group_name[group], axis))
        with contextlib.suppress(InvalidPlan):
            plan_of_actions(problem.space, [*taken, action])
            taken.append(action)
    if not taken:
        size = analysis.groups[group].size
        raise InvalidPlan(
            f"data parallel: {analysis.group_name[group]} has size {size}, which no axis of "
            f"{problem.mesh} divides"
        )
    return taken


def rescue(problem: Problem, method: str, reported: Sequence[str]) -> tuple[ShardingPlan, str]:
    """The best plan that a search which died had reported, and a note on it.

    What was refined has been lost with the process; the actions that it began with have not.
    Raises ToastError if no actions are left.
    """
    actions = [action for action in reported if "->" in action]
    try:
        if reported and not actions:
            raise InvalidPlan("a plan of no actions")
        plan = plan_of_actions(problem.space, actions)
    except InvalidPlan:
        raise ToastError(
            f"{method} makes plans that no actions give, so what it had reported cannot be made "
            "again; stop such a search instead of cancelling it"
        ) from None
    lost = ", before it was refined" if len(actions) < len(reported) else ""
    return plan, f"Ended early; this is the best plan that it had reported{lost}."


def batch_group(analysis: Analysis) -> int:
    """The colour group of the batch dimension: one that is called so, else dim 0 of the inputs.

    Raises InvalidPlan if nothing looks like one.
    """
    for word in ("batch", "b", "n"):
        for group in analysis.groups:
            if group.name.casefold() == word and group.shardable:
                return group.index
    program = analysis.program
    for argument in range(program.n_arguments):
        names = program.def_names(argument)
        if len(names) > 1:
            candidate = analysis.groups[int(analysis.group[analysis.colour[names[0]]])]
            if candidate.shardable and candidate.n_names > 1:
                return candidate.index
    raise InvalidPlan(
        "no dimension looks like a batch; type an action list instead, for instance batch->data"
    )
