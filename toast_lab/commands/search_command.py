"""``toast-lab search``: find a plan and tell how good it is."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toast_lab.commands import command_options, common, keeping, output, reports, stopping
from toast_lab.search.methods import options_text
from toast_lab.text import JsonObject, bytes_text

if TYPE_CHECKING:
    from toast_lab.cost.problem import Problem
    from toast_lab.ir.model import Model
    from toast_lab.search.contract import SearchResult
    from toast_lab.written.written_front import WrittenFront
    from toast_lab.written.written_plan import WrittenPlan


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab search``."""
    command_options.model(parser)
    command_options.problem(parser)
    command_options.pins(parser)
    command_options.search(parser, seconds=30.0)
    command_options.judge(parser)
    command_options.bound(parser)
    parser.add_argument(
        "--written",
        type=command_options.not_negative,
        nargs="?",
        const=5.0,
        default=None,
        metavar="PERCENT",
        help="show and save the smallest written plan (rules of arguments, constraints by source "
        "line) whose score is within this percentage of the best (5), and what each further rule "
        "and constraint gains",
    )
    parser.add_argument(
        "--size",
        type=command_options.positive_int,
        default=None,
        metavar="N",
        help="the plan takes at most N rules and constraints to write",
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
    written = front = None
    if args.written is not None or args.size is not None:
        with output.working("writing the plan down"):
            written, front = written_down(result, args.written)
        result = with_written(result, written)
    keeping.keep_plan(args, result.plan, problem)
    return show_result(args, model, problem, result, written=written, front=front)


def written_down(
    result: SearchResult[Any], percent: float | None
) -> tuple[WrittenPlan, WrittenFront[Any]]:
    """The written plan that is asked for, and all that were found."""
    users: Any = result
    written = users.written() if percent is None else users.written(percent / 100.0)
    return written, users.written_front


def with_written(result: SearchResult[Any], written: WrittenPlan) -> SearchResult[Any]:
    """The result with what propagation makes of a written plan as its plan."""
    from toast_lab.confirm.confirmed_result import ConfirmedResult

    if result.plan.sharding.key() == written.plan.sharding.key():
        return result
    plan = dataclasses.replace(
        written.plan, actions=result.plan.actions, refinements=(f"written in {written.size}",)
    )
    if isinstance(result, ConfirmedResult):
        plan = result.with_judgement(plan)
    refined = result.refined
    return dataclasses.replace(
        result, plan=plan, cost=written.cost, unlimited=(refined.plan, refined.cost)
    )


def show_result(
    args: Namespace,
    model: Model,
    problem: Problem,
    result: SearchResult,
    *,
    written: WrittenPlan | None = None,
    front: WrittenFront[Any] | None = None,
) -> int:
    """Print the plan of a search, its price and a summary of the search.

    Args:
        args: of the command.
        model: that was searched.
        problem: that was searched.
        result: of the search.
        written: how its plan is written, if that was asked for.
        front: other written plans.
    """
    from toast_lab.confirm.confirmed_result import ConfirmedResult

    report = {
        **output.problem_data(model, problem),
        "search": search_data(result),
        **({"judged": result.to_json()} if isinstance(result, ConfirmedResult) else {}),
        **({} if written is None else {"written": written_data(written)}),
        **({} if front is None else {"front": front_data(front)}),
        "plan": output.plan_data(result.plan),
        "cost": output.cost_data(result.cost),
        "divisibility": reports.divisibility_data(problem.divisibility(result.plan)),
    }
    texts = [f"{written}", f"{front}"] if written is not None and front is not None else []
    return output.emit(args, report, lambda console: _show(console, problem, result, texts))


def front_data(front: WrittenFront[Any]) -> list[JsonObject]:
    """Written plans (size against time and memory) as plain data, the smallest first."""
    from toast_lab.confirm.judged_front import JudgedFront

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


def written_data(written: WrittenPlan) -> JsonObject:
    """The rules and constraints of a written plan as plain data."""
    return {
        "rules": [{"pattern": rule.pattern, "spec": rule.spec} for rule in written.rules],
        "constraints": [
            {"file": site.file, "line": site.line, "name": site.name, "spec": spec}
            for site, spec in written.constraints
        ],
        "loss": written.loss,
    }


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
    console: output.Out, problem: Problem, result: SearchResult[Any], texts: Sequence[str]
) -> None:
    from toast_lab.confirm.confirmed_result import ConfirmedResult

    output.show_pins(console, problem)
    for text in texts:
        console.print(text, soft_wrap=True)
        console.print()
    output.show_plan(console, result.plan)
    show_path(console, result)
    output.show_cost(console, problem, result.cost)
    output.show_collectives(console, result.cost)
    reports.show_divisibility(console, problem.divisibility(result.plan))
    if isinstance(result, ConfirmedResult):
        console.print(result.in_brief(), soft_wrap=True)
        console.print(result.verdict_table(), soft_wrap=True)
        console.print()
    console.print(f"{result.method}, seed {result.seed}: {result.message} {result.proof}".rstrip())
