"""``toast-lab why``: explain why a plan has a collective, and tell what would remove it."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from toast_lab.commands import command_options, common, keeping, output

if TYPE_CHECKING:
    from toast_lab.cost.problem import Problem
    from toast_lab.ir.model import Model
    from toast_lab.sharding.plan import ShardingPlan


def number_or_text(question: str) -> int | str:
    """The question as an integer, if it is the number of a collective, else unchanged."""
    return int(question) if re.fullmatch("[0-9]{1,9}", question) else question


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab why``."""
    command_options.model(parser)
    parser.add_argument(
        "question",
        metavar="WHICH",
        nargs="?",
        help="a kind of collective (all_gather), a kind of op, a value, part of a source line "
        "(model.py:31), or the number of a collective; without it, the collectives are listed",
    )
    command_options.planned(parser)


def run(args: Namespace) -> int:
    """Explain the collectives that the question names.

    The plan is the one that the arguments give, or the best plan that a search finds.
    """
    from toast_lab.explain.why import to_json, why

    model, problem, plan, _ = common.load_planned(args)
    if args.question is None:
        keeping.keep_plan(args, plan, problem)
        return _list_collectives(args, model, problem, plan)
    reasons = why(problem, plan, number_or_text(args.question))
    keeping.keep_plan(args, plan, problem)
    report = output.problem_data(model, problem, plan, reasons=to_json(reasons))
    return output.emit(args, report, lambda console: print("\n".join(map(str, reasons))))


def _list_collectives(args: Namespace, model: Model, problem: Problem, plan: ShardingPlan) -> int:
    """Print what may be asked about, where the command was not told which collective it is."""
    from toast_lab.cost.problem import price

    cost = price(problem, plan)
    report = output.problem_data(model, problem, plan, cost)

    def show(console: output.Out) -> None:
        if not cost.collectives:
            console.print("This plan has no collectives, so there is nothing to explain.")
            return
        output.show_collectives(console, cost)
        kind = max(cost.collectives, key=lambda row: row.time_s).kind
        console.print(
            "Ask about one by its kind, its value or its line, with the same options: "
            f"toast-lab why {args.model} {kind}",
            soft_wrap=True,
        )

    return output.emit(args, report, show)
