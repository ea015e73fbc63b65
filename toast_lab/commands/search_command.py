"""``toast-lab search``: find a plan and tell how good it is."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any

from toast_lab.commands import command_options, common, keeping, output, reports, stopping
from toast_lab.search.methods import options_text
from toast_lab.text import JsonObject, bytes_text

if TYPE_CHECKING:
    from toast_lab.cost.problem import Problem
    from toast_lab.ir.model import Model
    from toast_lab.search.contract import SearchResult


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab search``."""
    command_options.model(parser)
    command_options.problem(parser)
    command_options.pins(parser)
    command_options.search(parser, seconds=30.0)
    command_options.judge(parser)
    command_options.bound(parser)
    parser.add_argument(
        "--simple",
        type=command_options.not_negative,
        nargs="?",
        const=2.0,
        default=None,
        metavar="PERCENT",
        help="show and save the smallest plan whose score is within this percentage of the best "
        "(2), and what each further rule and place (source line) gains",
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
    from toast_lab.cost.problem import price
    from toast_lab.search.action_path import taken_actions

    common.check_early(args)
    model, problem = common.load_problem(args)
    result = common.search_plan(args, problem, model)
    if args.bound is not None:
        with (
            output.working("proving how good the plan is"),
            stopping.stop_gently() as stopped,
        ):
            result = result.certified(args.bound, cancel=stopped)
    if args.simple is not None:
        with output.working("looking for simpler plans"):
            plan = result.simple(args.simple / 100.0)
            # A judge's results may have corrected the problem's prices.
            cost = price(result.problem or problem, plan)
            actions = taken_actions(problem, plan)
            result = dataclasses.replace(
                result, plan=plan, cost=cost, actions=actions, unlimited=None
            )
    keeping.keep_plan(args, result.plan, problem)
    return show_result(args, model, problem, result)


def show_result(args: Namespace, model: Model, problem: Problem, result: SearchResult) -> int:
    """Print the plan of a search, its price and a summary of the search."""
    from toast_lab.confirm.confirmed_result import ConfirmedResult

    simple = getattr(args, "simple", None) is not None
    report = {
        **output.problem_data(model, problem),
        "search": search_data(result),
        **({"judged": result.to_json()} if isinstance(result, ConfirmedResult) else {}),
        **({"front": front_data(result)} if simple else {}),
        "plan": output.plan_data(result.plan),
        "cost": output.cost_data(result.cost),
        "divisibility": reports.divisibility_data(problem.divisibility(result.plan)),
    }
    return output.emit(args, report, lambda console: _show(console, problem, result, simple=simple))


def front_data(result: SearchResult[Any]) -> list[JsonObject]:
    """The front of a search (size against time and memory) as plain data, smallest plan first."""
    return [
        {**row.size._asdict(), **row.quick._asdict(), "actions": row.plan.actions}
        for row in result.front.kept
    ]


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
    console: output.Out, problem: Problem, result: SearchResult[Any], *, simple: bool
) -> None:
    from toast_lab.confirm.confirmed_result import ConfirmedResult

    output.show_pins(console, problem)
    output.show_plan(console, result.plan)
    show_path(console, result)
    output.show_cost(console, problem, result.cost)
    output.show_collectives(console, result.cost)
    reports.show_divisibility(console, problem.divisibility(result.plan))
    if simple:
        console.print("Gain from each further rule and place", style="bold")
        console.print(str(result.front), soft_wrap=True)
        console.print()
    if isinstance(result, ConfirmedResult):
        console.print(result.in_brief(), soft_wrap=True)
        console.print(result.verdict_table(), soft_wrap=True)
        console.print()
    console.print(f"{result.method}, seed {result.seed}: {result.message} {result.proof}".rstrip())
