"""``toast-lab why-not``: what fills memory at the peak of a plan, and changes that make room."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from toast_lab.commands import command_options, common, keeping, output


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab why-not``."""
    command_options.model(parser)
    command_options.flag(
        parser,
        "--no-recompute",
        "do not trace the function again for what its layers may keep for the backward pass",
    )
    command_options.planned(parser)


def run(args: Namespace) -> int:
    """Say why the plan of the arguments, or the best that a search finds, does not fit."""
    from toast_lab.advice.why_not import why_not

    model, problem, plan, _ = common.load_planned(args)
    with output.stoppable("pricing changes") as (_, stopped):
        reasons = why_not(problem, plan, recompute=not args.no_recompute, cancel=stopped)
    keeping.keep_plan(args, plan, problem)
    report = output.problem_data(model, problem, plan, **reasons.to_json())
    return output.emit(args, report, lambda console: print(reasons))
