"""``toast-lab replay``: time one device's share of a saved plan on one device."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from toast_lab.commands import command_options, common, output


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab replay``."""
    command_options.model(parser)
    parser.add_argument(
        "plan", metavar="PLAN", help="a plan that --save wrote, for a mesh of any size"
    )
    command_options.problem(parser)
    parser.add_argument(
        "--device", default="cpu", help='"cpu", "gpu", "tpu" or "auto" (%(default)s)'
    )
    command_options.timed(parser)


def run(args: Namespace) -> int:
    """Time the device-local program; its collectives are priced instead."""
    from toast_lab.compare.replay import replay

    model, problem = common.load_problem(args)
    plan = common.load_plan(args.plan, problem.analysis, problem.mesh)
    with output.stoppable("replaying") as (update, stopped):
        replayed = replay(
            model,
            plan,
            args.device,
            problem=problem,
            repeats=args.repeats,
            seed=args.seed,
            time_limit_s=args.time_limit,
            on_event=output.stages_to(update),
            cancel=stopped,
        )
    report = output.problem_data(model, problem, replay=replayed.to_json())
    return output.emit(args, report, lambda console: print(replayed))
