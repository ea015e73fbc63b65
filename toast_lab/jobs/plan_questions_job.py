"""Questions about a plan that a child process answers.

Why does it not fit into memory, and what would make room? Which rules act on the prices of its ops?
"""

from __future__ import annotations

from typing import NamedTuple

from toast_lab.advice.why_not import why_not
from toast_lab.cost.problem import Problem
from toast_lab.explain.acting_rules import OpRules, price_rules
from toast_lab.ir.model import Model
from toast_lab.prepare import load_present
from toast_lab.sharding.plan import ShardingPlan

#: Run once in the fork server, for all children forked from it (``fork_server``).
before_fork = load_present

RUN_WHY_NOT = "toast_lab.jobs.plan_questions_job:run_why_not"
RUN_PRICE_RULES = "toast_lab.jobs.plan_questions_job:run_price_rules"


class Room(NamedTuple):
    """What a page shows of ``why_not``: no program, so that it crosses processes quickly."""

    parts: tuple[tuple[str, float], ...]  #: (kind, bytes) of what is in memory at the peak
    #: (what is changed, seconds of a step, peak bytes, does it fit), those that fit first
    changes: tuple[tuple[str, float, float, bool], ...]
    left_out: tuple[str, ...]  #: kinds of changes that could not be tried, with the reason


def run_why_not(problem: Problem, model: Model, plan: ShardingPlan) -> Room:
    """What fills memory at the peak of a plan, and single changes. Raises InvalidPlan.

    Args:
        problem: that of the plan; its model has lost its function on the way.
        model: the model of the problem.
        plan: a plan of it.
    """
    reasons = why_not(problem.named_as_in(problem.analysis.of_model(model)), plan)
    return Room(
        parts=tuple((part.kind, part.bytes) for part in reasons.parts),
        changes=tuple(
            (change.text, change.time_s, change.peak_bytes, change.fits)
            for change in reasons.changes
        ),
        left_out=reasons.left_out,
    )


def run_price_rules(problem: Problem, plan: ShardingPlan) -> dict[int, OpRules]:
    """The rules that act on the price of each op of a plan, by its number; see ``price_rules``."""
    return {rules.op: rules for rules in price_rules(problem, plan, problem.analysis.program.ops())}
