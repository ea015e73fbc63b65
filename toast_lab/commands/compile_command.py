"""``toast-lab compile``: compile a plan, and compare the compiled program with its price."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from toast_lab.commands import command_options, common, keeping, output
from toast_lab.commands.output import or_dash, time_text
from toast_lab.text import bytes_text, line_text

if TYPE_CHECKING:
    from toast_lab.cost.problem import Cost
    from toast_lab.runtime.compiled import Compiled


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab compile``."""
    command_options.model(parser)
    command_options.problem(parser, "the machine of --topology")
    command_options.plan(parser)
    parser.add_argument(
        "--topology",
        default="tpu:v5e:4x4",
        help='"tpu:v5e:4x4" (the default; needs libtpu, but no TPU), "gpu:h100:8" or '
        '"gpu:a100:2x8" (hosts x GPUs per host; also p100, h200, b200 or gpu:FILE.toml:8; needs '
        'the compiler that "toast-lab install-gpu-compiler" installs, but no GPU), "cpu:8" '
        '(virtual devices) or "gpu" (attached GPUs)',
    )
    parser.add_argument(
        "--store",
        metavar="FILE",
        help='file to keep the result in, or "none" to compile again and keep nothing (see '
        '"toast-lab compiled")',
    )
    command_options.everything(parser)
    command_options.save(parser)


def run(args: Namespace) -> int:
    """Compile the plan that the arguments give, or the unsharded program.

    Gives 1 if the compiler refuses the plan for lack of memory, if it does not fit into the part of
    a described GPU's memory that JAX takes by default, or if the result could not be kept.
    """
    from toast_lab.cost.problem import price
    from toast_lab.machines.catalogue import MACHINES
    from toast_lab.pipeline import replicated
    from toast_lab.runtime.compile import compile_plan
    from toast_lab.runtime.diff import diff_compiled
    from toast_lab.runtime.topologies import machine_of

    args.machine = args.machine or machine_of(args.topology, MACHINES)
    model, problem = common.load_problem(args)
    plan = common.given_plan(args, problem) or replicated(problem)
    keeping.keep_plan(args, plan, problem)
    with output.progress(f"compiling for {args.topology}") as update:
        compiled = compile_plan(
            model,
            plan,
            args.topology,
            time_limit_s=args.time_limit,
            on_progress=output.stages_to(update),
            store=args.store != "none" and (args.store or True),
        )
    cost = price(problem, plan)
    diff = None if compiled.refused else diff_compiled(problem, plan, compiled)
    elsewhere = compiled.priced_elsewhere(problem.machine.name)

    def show(console: output.Out) -> None:
        output.show_plan(console, plan)
        compile_text = f"compiled in {compiled.compile_s:.1f} s"
        console.print(
            f"{compiled}, {'taken from the kept results' if compiled.cached else compile_text}"
        )
        if elsewhere:
            console.print(
                f"Note: {elsewhere}. Bytes can be compared; times and memory limits cannot."
            )
        console.print()
        memory = (compiled.total_needed_bytes, compiled.argument_bytes, compiled.temp_bytes)
        sizes = [or_dash(bytes_text, nbytes) for nbytes in memory]
        console.table(
            f"Mesh {problem.mesh} on {compiled.topology} ({compiled.device_kind}), priced on "
            f"{problem.machine.name}",
            ("", ">priced", ">compiled"),
            [
                ("peak memory of a device", bytes_text(cost.peak_bytes), sizes[0]),
                ("  arguments", "", sizes[1]),
                ("  temporaries", "", sizes[2]),
                *_memory_rows(cost, compiled),
                *_time_rows(cost, compiled),
                *_step_rows(cost, compiled),
                ("involuntary rematerialisations", "0", str(len(compiled.rematerialised))),
            ],
        )
        if compiled.times is not None and compiled.times.left_out:
            console.table(
                "Left out of XLA's own times",
                (">instructions", "~why"),
                [(str(count), why) for why, count in compiled.times.left_out_by_reason().items()],
            )
        _show_schedule(console, compiled)
        if compiled.allocations:
            console.table(
                "Largest allocations of the refused program",
                (">bytes", "~shape", "~op"),
                [
                    (bytes_text(allocation.bytes), allocation.shape, allocation.op_name)
                    for allocation in compiled.allocations
                ],
                None if args.all else 10,
            )
        if diff is None:
            return
        console.table(
            "Collectives of a step",
            ("kind", ">priced", ">compiled"),
            [(kind, *map(bytes_text, sizes)) for kind, sizes in diff.bytes_by_kind().items()],
        )
        if diff.different:
            console.table(
                f"Different ({len(diff.different)} of {len(diff.rows)})",
                ("op", "~at", "~priced", "~compiled", "~why"),
                [
                    (
                        row.op_kind,
                        line_text(row.where),
                        row.predicted or "-",
                        row.compiled or "-",
                        row.reason or "unexplained",
                    )
                    for row in diff.different
                ],
                None if args.all else 20,
            )

    report = output.problem_data(
        model,
        problem,
        plan,
        cost,
        compiled=compiled.to_json(),
        not_kept=compiled.not_kept,
        diff=diff.tidy() if diff else None,
        priced_elsewhere=elsewhere,
    )
    if compiled.not_kept:
        keeping.say_later(args, f"the result is not kept: {compiled.not_kept}")
    output.emit(args, report, show)
    return 0 if compiled.fits else 1


def _memory_rows(cost: Cost, compiled: Compiled) -> list[tuple[str, str, str]]:
    """Rows that tell whether a program fits into a described GPU; none for other targets."""
    if compiled.default_memory_bytes is None:
        return []

    def of(fits: bool | None, limit: float | None) -> str:
        return f"{'yes' if fits else 'no'}, of {or_dash(bytes_text, limit)}"

    by_default = of(compiled.fits, compiled.default_memory_bytes)
    in_all = of(compiled.fits_all_memory, compiled.device_memory_bytes)
    return [
        ("fits into the memory that JAX takes by default", "", by_default),
        ("fits into all memory", of(cost.fits, cost.memory_limit_bytes), in_all),
    ]


def _time_rows(cost: Cost, compiled: Compiled) -> list[tuple[str, str, str]]:
    """Rows of the compiler's own times; those for GPUs assume that nothing overlaps."""
    times, priced = compiled.times, time_text(cost.compute_s)
    if times is None:
        return [("time of computing", priced, or_dash(time_text, compiled.compute_s))]
    doubtful = f" ({len(times.doubtful)} doubtful)" if times.doubtful else ""
    return [
        ("time of computing, by XLA's tables", priced, time_text(times.compute_s)),
        (
            f"time of collectives{doubtful}",
            time_text(cost.comm_s),
            time_text(times.collective_s),
        ),
    ]


def _step_rows(cost: Cost, compiled: Compiled) -> list[tuple[str, str, str]]:
    """Rows of the time of one step and its parts, from the compiler's schedule."""
    time_parts = compiled.time_parts
    if time_parts is None:
        return []
    return [
        ("time of one step", time_text(cost.overlapped_s), or_dash(time_text, compiled.time_s)),
        ("  computing", time_text(cost.compute_s), time_text(time_parts["compute_s"])),
        (
            "  exposed communication",
            time_text(max(0.0, cost.overlapped_s - cost.compute_s)),
            time_text(time_parts["exposed_s"]),
        ),
    ]


def _show_schedule(console: output.Out, compiled: Compiled) -> None:
    """Print the collectives that the schedule waits for longest."""
    schedule = compiled.schedule
    if schedule is None:
        return
    for note in schedule.notes:
        console.print(f"Schedule: {note}.")
    exposed = schedule.most_exposed()
    if exposed:
        console.table(
            f"Most exposed communication (5 of {len(exposed)} source lines)"
            if len(exposed) > 5
            else "Exposed communication",
            ("~at", "collectives", ">exposed"),
            [
                (line_text(source) or "unknown", kinds, time_text(exposed_s))
                for source, kinds, exposed_s in exposed[:5]
            ],
        )
