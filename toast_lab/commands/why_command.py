"""``toast-lab why``: from a collective of a plan to what caused it, and to what would remove it."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace

from toast_lab.commands import command_options, common, keeping, output


def number_or_text(question: str) -> int | str:
    """A question as the number of a collective, if it is one."""
    return int(question) if re.fullmatch("[0-9]{1,9}", question) else question


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab why``."""
    command_options.model(parser)
    parser.add_argument(
        "question",
        metavar="WHICH",
        help="a kind (all_gather), a kind of op, a value, part of a source line (model.py:31), "
        "or a number",
    )
    command_options.problem(parser)
    command_options.plan(parser)
    command_options.search(parser, seconds=10.0)
    command_options.save(parser)


def run(args: Namespace) -> int:
    """Explain the collectives that the question names.

    They are those of a plan given, or of the one that a search finds.
    """
    common.check_early(args)
    from toast_lab.explain.why import to_json, why

    model, problem = common.load_problem(args)
    plan, _ = common.plan_or_search(args, problem, model)
    reasons = why(problem, plan, number_or_text(args.question))
    keeping.keep_plan(args, plan, problem)
    report = {
        **output.problem_data(model, problem),
        "plan": output.plan_data(plan),
        "reasons": to_json(reasons),
    }
    return output.emit(args, report, lambda console: print("\n".join(map(str, reasons))))
