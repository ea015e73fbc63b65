"""``toast-lab race``: run several methods on one problem and compare their results."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from toast_lab.commands import command_options, common, keeping, output
from toast_lab.text import JsonObject, bytes_text, csv_text

if TYPE_CHECKING:
    from toast_lab.search.race import Race
    from toast_lab.search.search_child import ImprovementPoint


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab race``."""
    command_options.model(parser)
    command_options.problem(parser)
    parser.add_argument(
        "--methods",
        metavar="METHOD,...",
        default="mcts,manual",
        help='names separated by commas (%(default)s), see "toast-lab search --help"',
    )
    command_options.pins(parser)
    command_options.budget(parser, seconds=10.0)
    parser.add_argument(
        "--parallel",
        type=command_options.positive_int,
        default=1,
        metavar="N",
        help="number of methods that run at once; they share the cores (%(default)s)",
    )
    command_options.bound(parser)
    parser.add_argument(
        "--csv",
        metavar="FILE",
        help="write a row for each improvement of each method",
    )
    command_options.save(parser)


def run(args: Namespace) -> int:
    """Race the methods and print the result of each.

    An interrupted race ends like any other, with the plans that the methods have found so far.
    """
    from toast_lab.search import race as racing
    from toast_lab.search.contract import Budget
    from toast_lab.sweep import sweep_worker

    methods = [method.strip() for method in args.methods.split(",") if method.strip()]
    racing.check(methods)
    model, problem = common.load_problem(args)
    seconds = (
        args.default_seconds if args.seconds is None and args.evaluations is None else args.seconds
    )
    options = {
        method: settings
        for method in methods
        if (settings := sweep_worker.expert_options(method, model))
    }
    with output.stoppable(f"racing {', '.join(methods)}") as (update, stopped):

        def on_progress(method: str, point: ImprovementPoint) -> None:
            share = None
            if seconds and args.parallel == 1:
                share = (methods.index(method) + min(point.elapsed_s / seconds, 1.0)) / len(methods)
            update(
                share, f"{method}: {output.time_text(point.time_s)}, {bytes_text(point.peak_bytes)}"
            )

        outcome = racing.race(
            problem,
            methods,
            budget=Budget(seconds, args.evaluations),
            seed=args.seed or 0,
            options=options,
            on_progress=on_progress,
            cancel=stopped,
            parallel=args.parallel,
        )
    if args.bound is not None:
        with output.stoppable("proving how good the plans are") as (_, stopped):
            outcome = outcome.certified(args.bound, cancel=stopped)
    if args.csv:
        keeping.keep_table(args, args.csv, csv_text(racing.CURVE_COLUMNS, outcome.curves))
    if outcome.plan is not None:
        keeping.keep_plan(args, outcome.plan, problem)
    report = {
        **output.problem_data(model, problem),
        "race": race_data(outcome),
        "plan": None if outcome.plan is None else output.plan_data(outcome.plan),
    }
    return output.emit(args, report, lambda console: _show(console, outcome))


def race_data(outcome: Race) -> JsonObject:
    """A race as plain data."""
    best = outcome.best
    return {
        "seed": outcome.seed,
        "best": None if best is None else best.method,
        "bound": None if outcome.certificate is None else outcome.certificate.score,
        "rows": [row._asdict() for row in outcome.rows],
        "curves": outcome.curves,
    }


def _show(console: output.Out, outcome: Race) -> None:
    console.print(str(outcome))
    best = outcome.best
    if best is not None:
        console.print(
            f"\nBest: {best.method}. "
            f"{'  '.join(best.actions) or 'No actions: the unsharded program.'}"
        )
