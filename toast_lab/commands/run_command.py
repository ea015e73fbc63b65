"""``toast-lab run``: compile a plan, execute it and compare it with the unsharded program."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from typing import TYPE_CHECKING

from toast_lab.commands import command_options, common, keeping, output, stopping
from toast_lab.commands.search_command import search_data, show_result
from toast_lab.text import bytes_text

if TYPE_CHECKING:
    pass


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab run``."""
    command_options.model(parser)
    command_options.planned(parser)
    parser.add_argument(
        "--devices",
        default=None,
        help='"cpu:8" (virtual devices), "gpu" or "tpu" (default: cpu:N for a mesh of N devices)',
    )
    parser.add_argument(
        "--repeats", type=command_options.positive_int, default=10, help="timed steps (%(default)s)"
    )


def run(args: Namespace) -> int:
    """Execute the plan that the arguments give, or the best plan that a search finds."""
    from toast_lab.cost.problem import price
    from toast_lab.runtime.agreement import verdict
    from toast_lab.runtime.run import run as execute

    model, problem, plan, result = common.load_planned(args)
    keeping.keep_plan(args, plan, problem)
    # After SIGTERM the plan is printed, but not run.
    if result is not None and stopping.terminated():
        return show_result(args, model, problem, result)
    devices = args.devices or f"cpu:{problem.mesh.n_devices}"
    with output.progress(f"running on {devices}") as update, stopping.at_once():
        executed = execute(
            model,
            plan,
            devices=devices,
            repeats=args.repeats,
            time_limit_s=args.time_limit,
            on_event=output.stages_to(update),
        )
    cost = price(problem, plan)
    searched = search_data(result) if result else None
    report = output.problem_data(
        model, problem, plan, cost, search=searched, run=executed.to_json()
    )

    def show(console: output.Out) -> None:
        output.show_plan(console, plan)
        error = executed.max_relative_error
        estimate = f"{output.time_text(cost.time_s)} on {problem.machine.name}"
        console.table(
            f"{len(executed.step_times_s)} steps on {executed.n_devices} devices "
            f"({executed.devices}, {executed.device_kind})",
            ("", ">measured", "~estimated"),
            [
                ("time of a step (median)", output.time_text(executed.median_s), estimate),
                (
                    "peak memory of a device",
                    bytes_text(executed.peak_bytes),
                    bytes_text(cost.peak_bytes),
                ),
                ("time to compile", output.time_text(executed.compile_s), ""),
                (
                    "largest relative error",
                    output.or_dash("{:.1e}".format, error),
                    executed.note or "against the unsharded program",
                ),
            ],
        )
        console.print(f"Against the unsharded program: {verdict(*executed.worst)}")
        priced = Counter(collective.kind for collective in cost.collectives)
        compiled = executed.collective_counts
        kinds = sorted({*priced, *compiled})
        if kinds:
            counts = [(kind, priced.get(kind, 0), compiled.get(kind, 0)) for kind in kinds]
            console.table("Collectives", ("kind", ">priced", ">compiled"), counts)
        if (
            executed.devices.startswith("cpu")
            and compiled.get("reduce_scatter", 0) < priced["reduce_scatter"]
        ):
            console.print(
                "XLA's compiler for CPUs turns a reduce_scatter into an all_reduce and a local "
                "slice."
            )

    return output.emit(args, report, show)
