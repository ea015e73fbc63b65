"""``toast-lab price``: estimate the cost of a plan, by collective and by op."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toast_lab.commands import command_options, common, keeping, output, reports
from toast_lab.cost.peak import largest
from toast_lab.errors import InvalidPlan
from toast_lab.text import bytes_text, line_text

if TYPE_CHECKING:
    from toast_lab.advice.padding_search import PaddedChoice
    from toast_lab.cost.problem import Cost, Problem
    from toast_lab.sharding.plan import ShardingPlan


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab price``."""
    command_options.model(parser)
    command_options.problem(parser)
    command_options.pins(parser)
    command_options.plan(parser)
    parser.add_argument(
        "--rules",
        metavar="OP",
        help="show which rules of the price act on an op, and its price without each: a number "
        "(as in --json), a kind of op, a value, or part of a source line (model.py:31)",
    )
    parser.add_argument(
        "--padding",
        action="store_true",
        help="show what the plan would cost with one of the sizes padded that no axis divides",
    )
    command_options.save(parser)


def run(args: Namespace) -> int:
    """Price the plan of ``--actions`` or ``--plan``."""
    if args.actions is None and not args.plan:
        raise InvalidPlan(
            "price needs a plan: give --actions ACTION ... (--actions alone for the unsharded "
            "program) or --plan FILE"
        )
    from toast_lab.advice.padding_search import padding_prices
    from toast_lab.cost.problem import price
    from toast_lab.explain.acting_rules import price_rules

    model, problem = common.load_problem(args)
    plan = common.given_plan(args, problem)
    assert plan is not None
    cost = price(problem, plan)
    rules = price_rules(problem, plan, args.rules) if args.rules else []
    paddings = padding_prices(problem, plan) if args.padding else ()
    keeping.keep_plan(args, plan, problem)
    report = {
        **output.problem_data(model, problem, plan),
        "cost": {
            **output.cost_data(cost),
            "ops": [op._asdict() for op in cost.ops],
            "peak_op": cost.peak_op,
            "at_peak": [held._asdict() for held in cost.at_peak],
            "timeline_bytes": cost.timeline_bytes.tolist(),
        },
        "divisibility": reports.divisibility_data(problem.divisibility(plan)),
        "padding": [row._asdict() for row in paddings],
        "rules": [
            {**row._asdict(), "effects": [effect._asdict() for effect in row.effects]}
            for row in rules
        ],
    }

    def show(console: output.Out) -> None:
        _show(console, problem, plan, cost)
        if args.padding:
            _show_paddings(console, paddings)
        for row in rules:
            console.table(*row.table)

    return output.emit(args, report, show)


def _show(console: output.Out, problem: Problem, plan: ShardingPlan, cost: Cost) -> None:
    output.show_pins(console, problem)
    output.show_plan(console, plan)
    output.show_cost(console, problem, cost)
    output.show_collectives(console, cost)
    slowest = sorted(cost.ops, key=lambda op: -op.time_s)[:8]
    console.table(
        f"Slowest of {len(cost.ops)} ops",
        ("op", "~result", ">flops", ">bytes", ">time", "priced by", "~source"),
        [
            (
                op.kind,
                op.result,
                f"{op.flops:.3g}",
                bytes_text(op.moved_bytes),
                output.time_text(op.time_s),
                op.source,
                line_text(op.where),
            )
            for op in slowest
        ],
    )
    program = problem.analysis.program
    peak_line = program.where(cost.peak_op) if cost.peak_op < program.n_ops else "the end"
    console.table(
        f"Largest of {len(cost.at_peak)} entries in memory at its peak, {line_text(peak_line)}",
        ("what", "~name", ">bytes", "~made or needed at"),
        [
            (held.kind, held.value, bytes_text(held.bytes), line_text(held.where))
            for held in largest(cost.at_peak, 8)
        ],
    )
    reports.show_divisibility(console, problem.divisibility(plan))


def _show_paddings(console: output.Out, paddings: Sequence[PaddedChoice]) -> None:
    if not paddings:
        console.print("Padding: nothing that could be padded is worth it.")
        return
    console.table(
        "With one size padded and then split",
        ("~padded", ">step", ">peak", "fits"),
        [
            (
                row.name,
                output.time_text(row.time_s),
                bytes_text(row.peak_bytes),
                "yes" if row.fits else "no",
            )
            for row in paddings
        ],
    )
