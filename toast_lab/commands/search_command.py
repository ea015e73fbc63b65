"""``toast-lab search``: find a plan and tell how good it is."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any

from toast_lab.commands import command_options, common, keeping, output, reports, stopping
from toast_lab.search.methods import options_text
from toast_lab.text import JsonObject, bytes_text

if TYPE_CHECKING:
    from toast_lab.cost.problem import Problem
    from toast_lab.ir.model import Model
    from toast_lab.plan_verbs import Written
    from toast_lab.search.contract import SearchResult


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab search``."""
    command_options.model(parser)
    command_options.problem(parser)
    command_options.pins(parser)
    command_options.search(parser, seconds=30.0)
    command_options.judge(parser)
    command_options.bound(parser)
    command_options.written(parser)
    command_options.flag(
        parser, "--front", "also print what each further rule and constraint gains"
    )
    parser.add_argument(
        "--actions-within",
        type=command_options.not_negative,
        default=None,
        metavar="PERCENT",
        help="prefer a plan of actions alone to one that was refined after them if its score is at "
        "most this percentage higher (2); with --judge, the clock decides",
    )
    parser.add_argument(
        "--recompute",
        nargs="?",
        const=True,
        default=False,
        metavar="KEEPS",
        help="also choose what layers keep for the backward pass, which computes the rest again; "
        'KEEPS fixes it: "everything", "inputs" or "products"',
    )
    command_options.flag(
        parser,
        "--padding",
        "also choose which sizes that the mesh does not divide are padded; --pad fixes it",
    )
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = options_text()
    command_options.save(parser)


def run(args: Namespace) -> int:
    """Search, and print the best plan.

    An interrupted or terminated search ends like any other, with the best plan so far.
    """
    model, problem = common.load_problem(args)
    result = common.search_plan(args, problem, model)
    if (args.recompute or args.padding) and result.problem is not None:
        problem, model = result.problem, result.problem.analysis.model
    if args.bound is not None:
        with output.stoppable("proving how good the plan is") as (_, stopped):
            result = result.certified(args.bound, cancel=stopped)
    keeping.keep_plan(args, result.plan, problem)
    written = _written(args, problem, result, model)
    return show_result(args, model, problem, result, written=written)


def _written(
    args: Namespace, problem: Problem, result: SearchResult[Any], model: Model
) -> Written | None:
    """The plan as people write it; None if there was no time, or it failed, which is said."""
    from toast_lab.errors import ToastError
    from toast_lab.search.limits import Status

    if result.status is Status.CANCELLED or stopping.terminated():
        return None
    try:
        # A judge's results may have corrected the problem's prices.
        return common.write_plan(
            args, result.problem or problem, result.plan, model, path=result.path
        )
    except (ToastError, OSError) as error:
        if args.size is not None:
            raise
        print(f"toast-lab: the plan could not be written down: {error}", file=sys.stderr)
        return None


def show_result(
    args: Namespace,
    model: Model,
    problem: Problem,
    result: SearchResult,
    *,
    written: Written | None = None,
) -> int:
    """Print the plan of a search, as it is written, its price and a summary of the search."""
    from toast_lab.confirm.confirmed_result import ConfirmedResult

    front = getattr(args, "front", False)
    report = {
        **output.problem_data(model, problem, result.plan, result.cost),
        "search": search_data(result),
        "recompute": [row._asdict() for row in model.recompute],
        "padding": None if model.padding is None else model.padding._asdict(),
        **({"judged": result.to_json()} if isinstance(result, ConfirmedResult) else {}),
        "written": None if written is None else output.written_data(written),
        **({"front": front_data(result)} if front else {}),
        "divisibility": reports.divisibility_data(problem.divisibility(result.plan)),
    }

    def show(console: output.Out) -> None:
        output.show_pins(console, problem)
        output.show_plan(console, result.plan, written)
        if written is None:
            show_path(console, result)
        output.show_cost(console, problem, result.cost)
        output.show_collectives(console, result.cost)
        reports.show_divisibility(console, problem.divisibility(result.plan))
        if front and written is not None:
            console.print("Gain from each further rule and constraint", style="bold")
            console.print(str(result.written_front), soft_wrap=True)  # type: ignore[attr-defined]
            console.print()
        if isinstance(result, ConfirmedResult):
            console.print(result.in_brief(), soft_wrap=True)
            console.print(result.verdict_table(), soft_wrap=True)
            console.print()
        console.print(
            f"{result.method}, seed {result.seed}: {result.message} {result.proof}".rstrip()
        )

    return output.emit(args, report, show)


def front_data(result: SearchResult[Any]) -> list[JsonObject]:
    """Written plans (size against time and memory) as plain data, the smallest first."""
    from toast_lab.confirm.judged_front import JudgedFront

    front: Any = result.written_front  # type: ignore[attr-defined]  # a user's result has it
    rows: list[JsonObject] = []
    for index, row in enumerate(front):
        cost = row.cost
        rows.append(
            {
                **row.size._asdict(),
                "time_s": cost.time_s,
                "peak_bytes": cost.peak_bytes,
                "fits": cost.fits,
                "score": cost.score,
                **({"judged_s": front.clock_s(index)} if isinstance(front, JudgedFront) else {}),
            }
        )
    return rows


def search_data(result: SearchResult) -> JsonObject:
    """A summary of a search as plain data."""
    return {
        "method": result.method,
        "seed": result.seed,
        "status": result.status.name,
        "message": result.message,
        "evaluations": result.evaluations,
        "simulations": len(result.trace.simulations),
        "elapsed_s": result.elapsed_s,
        "path": [step._asdict() for step in result.path],
        "refinements": refinements_data(result),
        "bound": result.bound,
        "gap": result.gap,
    }


def refinements_data(result: SearchResult) -> JsonObject | None:
    """What changed the best plan after its actions, as plain data; None: nothing did."""
    changed = result.refinements
    if changed is None:
        return None
    return {
        "method": changed.method,
        "ops": changed.n_ops,
        "values": changed.n_values,
        "before": changed.before._asdict(),
        "after": changed.after._asdict(),
        "colours": [colour._asdict() for colour in changed.colours],
        "is_kept": changed.is_kept,
    }


def show_path(console: output.Out, result: SearchResult[Any]) -> None:
    """Print the actions of the plan, and what refined it after them, with the price after each."""
    if len(result.path) < 2:
        return
    cells = [
        (
            number,
            step.action or "no action",
            output.time_text(step.time_s),
            bytes_text(step.peak_bytes) + ("" if step.fits else ", does not fit"),
            f"{step.score:.4f}",
        )
        for number, step in enumerate(result.path)
    ]
    console.table("Path", (">#", "action", ">step after", ">memory after", ">C(s)"), cells)
