"""``toast-lab search``: find a plan and say how good it is."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING

from toast_lab.commands import command_options, common, keeping, output, reports
from toast_lab.search.methods import options_text
from toast_lab.text import JsonObject, gap_text

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
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = options_text()
    command_options.save(parser)


def run(args: Namespace) -> int:
    """Search, and print the best plan.

    A search that was interrupted or terminated ends like any other, with the best plan so far.
    """
    common.check_early(args)
    model, problem = common.load_problem(args)
    result = common.search_plan(args, problem, model)
    keeping.keep_plan(args, result.plan, problem)
    return show_result(args, model, problem, result)


def show_result(args: Namespace, model: Model, problem: Problem, result: SearchResult) -> int:
    """Print the plan of a search, its price and how the search went."""
    report = {
        **output.problem_data(model, problem),
        "search": search_data(result),
        "plan": output.plan_data(result.plan),
        "cost": output.cost_data(result.cost),
        "divisibility": reports.divisibility_data(problem.divisibility(result.plan)),
    }
    return output.emit(args, report, lambda console: _show(console, problem, result))


def search_data(result: SearchResult) -> JsonObject:
    """How a search went, as plain data."""
    return {
        "method": result.method,
        "seed": result.seed,
        "status": result.status.name,
        "message": result.message,
        "evaluations": result.evaluations,
        "simulations": len(result.trace.simulations),
        "elapsed_s": result.elapsed_s,
        "bound": result.bound,
        "gap": result.gap,
    }


def _show(console: output.Out, problem: Problem, result: SearchResult) -> None:
    output.show_pins(console, problem)
    output.show_plan(console, result.plan)
    output.show_cost(console, problem, result.cost)
    output.show_collectives(console, result.cost)
    reports.show_divisibility(console, problem.divisibility(result.plan))
    console.print(
        f"{result.method}, seed {result.seed}: {result.message} {gap_text(result.gap)}".rstrip()
    )
