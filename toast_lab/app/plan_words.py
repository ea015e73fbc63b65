"""A plan for a side column: what it is, and its actions."""

from __future__ import annotations

import functools

from toast_lab.search.action_path import INTEGER_PROGRAMS, method_of
from toast_lab.sharding.plan import ShardingPlan, is_action
from toast_lab.views.markup import Safe, h, join, numbered, quiet
from toast_lab.written import traits as told

MAX_ACTIONS = 40
MORE = "Its rules and constraints: page 4, Use."


def plan_words(plan: ShardingPlan) -> Safe:
    """What a plan is, its actions, and what changed it after them."""
    if not plan.history:
        return quiet("no action")
    if not plan.actions:
        return traits(plan)
    parts = [traits(plan), numbered(plan.actions[:MAX_ACTIONS])]
    if plan.refinements:
        parts.append(quiet(f"then {', '.join(plan.refinements)}"))
    return join(parts)


@functools.lru_cache(maxsize=16)
def traits(plan: ShardingPlan) -> Safe:
    """What a plan does, in the terms of engineers."""
    if plan.analysis is None:
        return join([])
    plan_traits = told.plan_words(plan.analysis, plan)
    return join(
        [
            h("ul", *[h("li", trait.text) for trait in plan_traits], cls="log"),
            quiet(MORE),
        ]
    )


def step_words(line: str) -> str:
    """A line of a searched plan in words, for people who do not know the method."""
    if is_action(line):
        return line
    if not line.startswith("refined"):
        return "the whole program at once, by an integer program"
    programs = ", by integer programs" if method_of([line]) == INTEGER_PROGRAMS else ""
    return f"single ops and values, not whole colours{programs}"
