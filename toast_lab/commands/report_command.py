"""``toast-lab report``: write one HTML file that explains a plan to other people."""

from __future__ import annotations

import os
import shlex
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from toast_lab.commands import command_options, common, keeping, output
from toast_lab.errors import InvalidPlan
from toast_lab.text import bytes_text

if TYPE_CHECKING:
    from toast_lab.cost.problem import Problem
    from toast_lab.ir.model import Model
    from toast_lab.runtime.compiled import Compiled


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab report``."""
    add_option = parser.add_argument
    command_options.model(parser)
    add_option(
        "plans",
        metavar="PLAN",
        nargs="*",
        help="plans that --save wrote: the first is explained, the others are compared with it "
        "(without any, the plan of --actions, or the best that a search finds)",
    )
    add_option(
        "-o",
        "--output",
        metavar="FILE",
        default="report.html",
        help="where to write the report (%(default)s)",
    )
    command_options.problem(parser, "tpu-v5e, or that of --compile-for")
    command_options.pins(parser)
    command_options.actions(parser)
    command_options.search(parser, seconds=10.0)
    add_option(
        "--compile-for",
        dest="topology",
        metavar="TOPOLOGY",
        help='also compile the plans for this topology, as "toast-lab compile" does; without it '
        "the report shows results that were compiled before, if there are any",
    )
    command_options.flag(
        parser,
        "--no-kept",
        "leave out the results that compile and compare have kept for these plans",
    )
    command_options.save(parser)


def run(args: Namespace) -> int:
    """Write the report; the exit status becomes 1 if it cannot be written to its path."""
    from toast_lab.machines.catalogue import MACHINES
    from toast_lab.report.report import check_packages, report
    from toast_lab.runtime.topologies import machine_of

    check_packages()
    if args.plans and args.actions is not None:
        raise InvalidPlan("give plans as files or --actions, not both")
    default = machine_of(args.topology, MACHINES) if args.topology else "tpu-v5e"
    args.machine = args.machine or default
    # The mesh of this plan is used if --mesh is not given.
    args.plan = args.plans[0] if args.plans else None
    names = common.plan_names(args.plans)
    model, problem = common.load_problem(args)
    plans = _plans(args, names, model=model, problem=problem)
    compiled = _compiled(args, model, plans)
    with output.progress("writing the report"):
        finished = report(
            problem,
            plans,
            compiled=compiled,
            kept=not args.no_kept,
            command=shlex.join(args.words),
        )
    size = len(finished.html.encode())
    written = keeping.keep(args, "report", args.output, finished.save)
    data = {
        **output.problem_data(model, problem),
        "report": os.path.abspath(args.output),
        "bytes": size,
        "plans": list(plans),
        "title": finished.title,
    }

    def show(console: output.Out) -> None:
        if written:
            console.print(f"{args.output}: {finished.title}, {bytes_text(size)}")

    return output.emit(args, data, show)


def _plans(args: Namespace, names: list[str], *, model: Model, problem: Problem) -> dict[str, Any]:
    """The plans by name; the first one is explained."""
    if args.plans:
        plans = {
            name: common.load_plan(path, problem.analysis, problem.mesh)
            for name, path in zip(names, args.plans, strict=True)
        }
        keeping.keep_plan(args, plans[names[0]], problem)
        return plans
    plan, result = common.plan_or_search(args, problem, model)
    keeping.keep_plan(args, plan, problem)
    return {"by hand": plan} if result is None else {result.method: result}


def _compiled(args: Namespace, model: Model, plans: dict[str, Any]) -> list[Compiled]:
    """Compile the plans for the topology of ``--compile-for``, if it was given."""
    if not args.topology:
        return []
    from toast_lab.runtime.compile import compile_plan

    builds = []
    for name, planned in plans.items():
        with output.progress(f"compiling {name} for {args.topology}") as update:
            builds.append(
                compile_plan(
                    model,
                    getattr(planned, "plan", planned),
                    args.topology,
                    time_limit_s=args.time_limit,
                    on_progress=output.stages_to(update),
                )
            )
    return builds
