"""``toast-lab race``: several methods on one problem, and who found what when."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toast_lab.commands import common, keeping, output, stopping
from toast_lab.text import bytes_text

if TYPE_CHECKING:
    from toast_lab.search.race import Race
    from toast_lab.search.search_child import Point


def run(args: argparse.Namespace) -> int:
    """Race the methods and print how far each came.

    An interrupted race ends like any other, with what the methods have found so far.
    """
    from toast_lab.search import race as racing
    from toast_lab.search.contract import Budget
    from toast_lab.sweep import worker

    methods = [m.strip() for m in args.methods.split(",") if m.strip()]
    racing.check(methods)
    common.check_early(args)
    model = common.load_model(args)
    problem = common.make_problem(args, common.analyse(args, model))
    seconds = (
        args.default_seconds if args.seconds is None and args.evaluations is None else args.seconds
    )
    options = {m: found for m in methods if (found := worker.expert_options(m, model))}
    with (
        output.progress(f"racing {', '.join(methods)}") as update,
        stopping.stop_gently() as stopped,
    ):

        def on_progress(method: str, point: Point) -> None:
            share = None
            if seconds and args.parallel == 1:
                share = (methods.index(method) + min(point.elapsed_s / seconds, 1.0)) / len(methods)
            update(
                share, f"{method}: {output.time_text(point.time_s)}, {bytes_text(point.peak_bytes)}"
            )

        done = racing.race(
            problem,
            methods,
            Budget(seconds, args.evaluations),
            args.seed or 0,
            options,
            on_progress,
            stopped,
            parallel=args.parallel,
        )
    if args.csv:
        from toast_lab.text import csv_text, write_csv

        keeping.keep(
            args,
            "table of curves",
            args.csv,
            lambda to: write_csv(Path(to), racing.CURVE_COLUMNS, done.curves),
            lambda: "It is:\n" + csv_text(racing.CURVE_COLUMNS, done.curves),
        )
    if done.plan is not None:
        keeping.keep_plan(args, done.plan, problem)
    data = {
        "model": output.model_data(model),
        "problem": output.problem_data(problem),
        "race": race_data(done),
        "plan": None if done.plan is None else output.plan_data(done.plan),
    }
    return output.emit(args, data, lambda out: _show(out, done))


def race_data(done: Race) -> dict[str, Any]:
    """A race as plain data."""
    best = done.best
    return {
        "seed": done.seed,
        "best": None if best is None else best.method,
        "rows": [row._asdict() for row in done.rows],
        "curves": done.curves,
    }


def _show(out: output.Out, done: Race) -> None:
    out.print(str(done))
    best = done.best
    if best is not None:
        out.print(
            f"\nBest: {best.method}. "
            f"{'  '.join(best.actions) or 'No actions: the unsharded program.'}"
        )
