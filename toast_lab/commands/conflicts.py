"""``toast-lab conflicts`` lists every ambiguous choice of a model.

Each comes with what its sides cost on each mesh axis.
"""

from __future__ import annotations

import argparse

from toast_lab.commands import command_options, common, output


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``toast-lab conflicts``."""
    command_options.model(parser)
    command_options.problem(parser)


def run(args: argparse.Namespace) -> int:
    """Print the conflict board."""
    from toast_lab.explain.board import conflicts

    common.check_early(args)
    model = common.load_model(args)
    problem = common.make_problem(args, common.analyse(args, model))
    board = conflicts(problem)
    data = {
        "model": output.model_data(model),
        "problem": output.problem_data(problem),
        **board.to_json(),
    }
    return output.emit(args, data, lambda out: print(board.text(None)))
