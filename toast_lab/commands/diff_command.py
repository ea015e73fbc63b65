"""``toast-lab diff``: compare two saved plans of a model."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from toast_lab.commands import command_options, common, output


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab diff``."""
    command_options.model(parser)
    parser.add_argument("before", metavar="PLAN", help="a plan that --save wrote")
    parser.add_argument("after", metavar="OTHER", help="the plan to compare it with")
    command_options.problem(parser)


def run(args: Namespace) -> int:
    """Compare two plans that ``--save`` wrote."""
    from toast_lab.explain.difference import difference

    # The mesh of this plan is used if --mesh is not given.
    args.plan = args.before
    model, problem = common.load_problem(args)
    before, after = (
        common.load_plan(path, problem.analysis, problem.mesh) for path in (args.before, args.after)
    )
    comparison = difference(problem, before, after)
    report = output.problem_data(model, problem, **comparison.to_json())
    return output.emit(args, report, lambda console: print(comparison))
