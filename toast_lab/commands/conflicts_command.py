"""``toast-lab conflicts``: list every conflict, with the cost of its sides on each mesh axis."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from toast_lab.commands import command_options, common, output


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab conflicts``."""
    command_options.model(parser)
    command_options.problem(parser)


def run(args: Namespace) -> int:
    """Print the conflict board."""
    from toast_lab.explain.board import conflicts

    model, problem = common.load_problem(args)
    board = conflicts(problem)
    report = output.problem_data(model, problem, **board.to_json())
    return output.emit(args, report, lambda console: print(board.text(None)))
