"""``toast-lab diff``: two saved plans of a model side by side."""

from __future__ import annotations

import argparse

from toast_lab.commands import common, output


def run(args: argparse.Namespace) -> int:
    """Compare two plans that ``--save`` wrote."""
    from toast_lab.explain.difference import difference

    common.check_early(args)
    model = common.load_model(args)
    args.plan = args.before  # gives the mesh if none is asked for
    problem = common.make_problem(args, common.analyse(args, model))
    plans = [common.load_plan(path, problem) for path in (args.before, args.after)]
    found = difference(problem, *plans)
    data = {
        "model": output.model_data(model),
        "problem": output.problem_data(problem),
        **found.to_json(),
    }
    return output.emit(args, data, lambda out: print(found))
