"""``toast-lab search``: find a plan and tell how good it is."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any

from toast_lab.commands import command_options, common, keeping, output, reports, stopping
from toast_lab.search.limits import Status
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
    parser.add_argument(
        "--front",
        action="store_true",
        help="also print what each further rule and constraint gains",
    )
    parser.add_argument(
        "--actions-within",
        type=command_options.not_negative,
        default=None,
        metavar="PERCENT",
        help="prefer a plan of actions alone to one that was refined after them if its score is at "
        "most this percentage higher (2); with --judge, the clock decides",
    )
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = options_text()
    command_options.save(parser)


def run(args: Namespace) -> int:
    """Search, and print the best plan.

    An interrupted or terminated search ends like any other, with the best plan so far.
    """
    common.check_early(args)
    model, problem = common.load_problem(args)
    result = common.search_plan(args, problem, model)
    if args.bound is not None:
        with (
            output.working("proving how good the plan is"),
            stopping.stop_gently() as stopped,
        ):
            result = result.certified(args.bound, cancel=stopped)
    keeping.keep_plan(args, result.plan, problem)
    written = None
    if result.status is not Status.CANCELLED and not stopping.terminated():
        # A judge's results may have corrected the problem's prices.
        written = common.write_plan(
            args, result.problem or problem, result.plan, model, path=result.path
        )
    return show_result(args, model, problem, result, written=written)


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

    report = {
        **output.problem_data(model, problem),
        "search": search_data(result),
        **({"judged": result.to_json()} if isinstance(result, ConfirmedResult) else {}),
        "written": None if written is None else output.written_data(written),
        "plan": output.plan_data(result.plan),
        "cost": output.cost_data(result.cost),
        "divisibility": reports.divisibility_data(problem.divisibility(result.plan)),
    }

    def show(console: output.Out) -> None:
        _show(console, problem, result, written, front=getattr(args, "front", False))

    return output.emit(args, report, show)


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


def _show(
    console: output.Out,
    problem: Problem,
    result: SearchResult[Any],
    written: Written | None,
    *,
    front: bool,
) -> None:
    from toast_lab.confirm.confirmed_result import ConfirmedResult
    from toast_lab.plan_verbs import Plan

    output.show_pins(console, problem)
    output.show_plan(console, result.plan, written)
    if written is None:
        show_path(console, result)
    output.show_cost(console, problem, result.cost)
    output.show_collectives(console, result.cost)
    reports.show_divisibility(console, problem.divisibility(result.plan))
    if front and written is not None:
        console.print("Gain from each further rule and constraint", style="bold")
        console.print(str(Plan.of(result.plan).written_front(written.problem)), soft_wrap=True)
        console.print()
    if isinstance(result, ConfirmedResult):
        console.print(result.in_brief(), soft_wrap=True)
        console.print(result.verdict_table(), soft_wrap=True)
        console.print()
    console.print(f"{result.method}, seed {result.seed}: {result.message} {result.proof}".rstrip())
