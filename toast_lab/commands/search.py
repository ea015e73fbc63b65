"""``toast-lab search``: find a plan and say how good it is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from toast_lab.commands import common, keeping, output, reports
from toast_lab.text import gap_text

if TYPE_CHECKING:
    from toast_lab.cost.problem import Problem
    from toast_lab.ir.model import Model
    from toast_lab.search.contract import SearchResult


def run(args: argparse.Namespace) -> int:
    """Search, and print the best plan.

    A search that was interrupted or terminated ends like any other, with the best plan so far.
    """
    common.check_early(args)
    model = common.load_model(args)
    problem = common.make_problem(args, common.analyse(args, model))
    result = common.search_plan(args, problem, model)
    keeping.keep_plan(args, result.plan, problem)
    return show_found(args, model, problem, result)


def show_found(
    args: argparse.Namespace, model: Model, problem: Problem, result: SearchResult
) -> int:
    """Print what a search found."""
    data = {
        "model": output.model_data(model),
        "problem": output.problem_data(problem),
        "search": search_data(result),
        "plan": output.plan_data(result.plan),
        "cost": output.cost_data(result.cost),
        "divisibility": reports.divisibility_data(problem.divisibility(result.plan)),
    }
    return output.emit(args, data, lambda out: _show(out, problem, result))


def search_data(result: SearchResult) -> dict[str, Any]:
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


def _show(out: output.Out, problem: Problem, result: SearchResult) -> None:
    output.show_pins(out, problem)
    output.show_plan(out, result.plan)
    output.show_cost(out, problem, result.cost)
    output.show_collectives(out, result.cost)
    reports.show_divisibility(out, problem.divisibility(result.plan))
    out.print(
        f"{result.method}, seed {result.seed}: {result.message} {gap_text(result.gap)}".rstrip()
    )
