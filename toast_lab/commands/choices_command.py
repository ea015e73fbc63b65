"""``toast-lab choices``: what each action, side, rule or constraint of a plan saves, ranked."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from toast_lab.commands import command_options, common, keeping, output

if TYPE_CHECKING:
    from toast_lab.sharding.plan import ShardingPlan
    from toast_lab.written.written_plan import WrittenPlan


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab choices``."""
    command_options.model(parser)
    command_options.flag(
        parser,
        "--written",
        "rank the rules and constraints of the plan as people write it, not its actions",
    )
    command_options.planned(parser)


def run(args: Namespace) -> int:
    """Rank the choices of the plan that the arguments give, or of the best that a search finds."""
    from toast_lab.plan_verbs import Plan
    from toast_lab.written.choices import choices

    model, problem, plan, _ = common.load_planned(args)
    ranked: ShardingPlan | WrittenPlan = plan
    if args.written:
        with output.progress("finding its rules and constraints"):
            ranked = Plan.of(plan).written(problem=problem)
    rows = choices(ranked, problem)
    keeping.keep_plan(args, plan, problem)
    report = output.problem_data(model, problem, plan, choices=rows.to_json())
    return output.emit(args, report, lambda console: print(rows.rows_text(None)))
