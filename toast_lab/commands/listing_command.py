"""``toast-lab list``: print the device-local program of a plan."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from toast_lab.commands import command_options, common, keeping, output, reports
from toast_lab.commands.search_command import search_data


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab list``."""
    command_options.model(parser)
    command_options.planned(parser)


def run(args: Namespace) -> int:
    """Print only the listing, so that it can be kept or compared; ``--json`` has the rest."""
    from toast_lab.cost.problem import price
    from toast_lab.lowering.listing import listing

    model, problem, plan, result = common.load_planned(args)
    text = listing(problem, plan)
    keeping.keep_plan(args, plan, problem)
    report = output.problem_data(
        model,
        problem,
        plan,
        price(problem, plan),
        search=search_data(result) if result else None,
        divisibility=reports.divisibility_data(problem.divisibility(plan)),
        listing=text,
    )
    return output.emit(args, report, lambda console: print(text))
