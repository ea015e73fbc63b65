"""A plan for a side column: its actions, or its cuts if it is not made of actions alone."""

from __future__ import annotations

from toast_lab.search.action_path import INTEGER_PROGRAMS, method_of
from toast_lab.sharding.plan import ShardingPlan, is_action
from toast_lab.sharding.plan_rules import plan_size
from toast_lab.sharding.plan_text import argument_words
from toast_lab.views.markup import Safe, h, join, numbered, quiet

MAX_ACTIONS = 40


def plan_words(plan: ShardingPlan) -> Safe:
    """The actions of a plan and what changed it after them, or how it shards the arguments."""
    if not plan.history:
        return quiet("no action")
    if not plan.actions:
        return cut_arguments(plan)
    actions = numbered(plan.actions[:MAX_ACTIONS])
    if not plan.refinements:
        return actions
    return join([actions, quiet(f"then {', '.join(plan.refinements)}"), cut_arguments(plan)])


def cut_arguments(plan: ShardingPlan) -> Safe:
    """How a plan shards the arguments, in words, and the size of the whole plan."""
    rows = [
        h("li", h("b", description), f": {roles}") for description, roles in argument_words(plan)
    ]
    size = plan_size(plan.program, plan.sharding)
    return join([h("ul", *rows, cls="log"), quiet(f"{size}; all of them in Words on page 5.")])


def step_words(line: str) -> str:
    """A line of a searched plan in words, for people who do not know the method."""
    if is_action(line):
        return line
    if not line.startswith("refined"):
        return "the whole program at once, by an integer program"
    programs = ", by integer programs" if method_of([line]) == INTEGER_PROGRAMS else ""
    return f"single ops and values, not whole colours{programs}"
