"""``toast-lab compile``: what a compiler makes of a plan, beside its price."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from toast_lab.commands import common, keeping, output
from toast_lab.text import bytes_text, line_text

if TYPE_CHECKING:
    from toast_lab.cost.problem import Cost, Problem
    from toast_lab.runtime.child import Progress
    from toast_lab.runtime.compiled import Compiled
    from toast_lab.runtime.diff import CompiledDiff
    from toast_lab.sharding.plan import ShardingPlan


def run(args: argparse.Namespace) -> int:
    """Compile the plan given, or the unsharded program.

    Gives 1 if the compiler refuses it for lack of memory, or if it does not fit into what JAX takes
    of a described GPU's.
    """
    from toast_lab.cost.problem import price
    from toast_lab.machines.catalogue import MACHINES
    from toast_lab.runtime.compile import compile_plan
    from toast_lab.runtime.diff import diff_compiled
    from toast_lab.runtime.topologies import machine_of
    from toast_lab.sharding.plan import replicated

    args.machine = args.machine or machine_of(args.topology, MACHINES)
    common.check_early(args)
    model = common.load_model(args)
    problem = common.make_problem(args, common.analyse(args, model))
    plan = common.given_plan(args, problem) or replicated(problem)
    keeping.keep_plan(args, plan, problem)
    with output.progress(f"compiling for {args.topology}") as update:

        def on_progress(event: Progress) -> None:
            update(event.fraction, event.stage)

        compiled = compile_plan(
            model,
            plan,
            args.topology,
            time_limit_s=args.time_limit,
            on_progress=on_progress,
            cache=not args.no_cache,
        )
    cost = price(problem, plan)
    diff = None if compiled.refused else diff_compiled(problem, plan, compiled)
    data = {
        "model": output.model_data(model),
        "problem": output.problem_data(problem),
        "plan": output.plan_data(plan),
        "cost": output.cost_data(cost),
        "compiled": compiled.to_json(),
        "diff": diff.tidy() if diff else None,
        "priced_elsewhere": compiled.priced_elsewhere(problem.machine.name),
    }
    output.emit(args, data, lambda out: _show(out, args, problem, plan, cost, compiled, diff))
    return 0 if compiled.fits else 1


def _show(
    out: output.Out,
    args: argparse.Namespace,
    problem: Problem,
    plan: ShardingPlan,
    cost: Cost,
    compiled: Compiled,
    diff: CompiledDiff | None,
) -> None:
    output.show_plan(out, plan)
    out.print(
        f"{compiled}"
        f"{' (from the cache)' if compiled.cached else f', compiled in {compiled.compile_s:.1f} s'}"
    )
    if elsewhere := compiled.priced_elsewhere(problem.machine.name):
        out.print(f"Note: {elsewhere}. Bytes can be compared; times and memory limits cannot.")
    out.print()
    out.table(
        f"Mesh {problem.mesh} on {compiled.topology} ({compiled.device_kind}), priced on "
        f"{problem.machine.name}",
        ("", ">priced", ">compiled"),
        [
            (
                "peak memory of a device",
                bytes_text(cost.peak_bytes),
                _bytes(compiled.total_needed_bytes),
            ),
            ("  arguments", "", _bytes(compiled.argument_bytes)),
            ("  temporaries", "", _bytes(compiled.temp_bytes)),
            *_memory_rows(cost, compiled),
            *_time_rows(cost, compiled),
            ("involuntary rematerialisations", "0", str(len(compiled.rematerialised))),
        ],
    )
    if compiled.times is not None and compiled.times.left_out:
        out.table(
            "Left out of XLA's own times",
            (">instructions", "~why"),
            [(str(n), why) for why, n in compiled.times.left_out_by_reason().items()],
        )
    if compiled.allocations:
        out.table(
            "Largest allocations of the refused program",
            (">bytes", "~shape", "~op"),
            [(bytes_text(a.bytes), a.shape, a.op_name) for a in compiled.allocations],
            None if args.all else 10,
        )
    if diff is None:
        return
    out.table(
        "Collectives of a step",
        ("kind", ">priced", ">compiled"),
        [(kind, bytes_text(a), bytes_text(b)) for kind, (a, b) in diff.bytes_by_kind().items()],
    )
    if diff.different:
        out.table(
            f"Different ({len(diff.different)} of {len(diff.rows)})",
            ("op", "~at", "~priced", "~compiled", "~why"),
            [
                (
                    r.what,
                    line_text(r.where),
                    r.predicted or "-",
                    r.compiled or "-",
                    r.reason or "unexplained",
                )
                for r in diff.different
            ],
            None if args.all else 20,
        )


def _memory_rows(cost: Cost, compiled: Compiled) -> list[tuple[str, str, str]]:
    """Whether a program fits into a GPU that need not be there."""
    if compiled.default_memory_bytes is None:
        return []
    return [
        (
            "fits into what JAX takes by default",
            "",
            f"{_yes(compiled.fits)}, of {_bytes(compiled.default_memory_bytes)}",
        ),
        (
            "fits into all memory",
            f"{_yes(cost.fits)}, of {bytes_text(cost.memory_limit_bytes)}",
            f"{_yes(compiled.fits_all_memory)}, of {_bytes(compiled.device_memory_bytes)}",
        ),
    ]


def _time_rows(cost: Cost, compiled: Compiled) -> list[tuple[str, str, str]]:
    """Times of what compilers tell; those for GPUs as if nothing overlapped."""
    times, compute = compiled.times, compiled.compute_s
    priced = output.time_text(cost.compute_s)
    if times is None:
        text = "-" if compute is None else output.time_text(compute)
        return [("time of computing", priced, text)]
    doubtful = f" ({len(times.doubtful)} doubtful)" if times.doubtful else ""
    text = output.time_text(times.collective_s)
    return [
        ("time of computing, by XLA's tables", priced, output.time_text(times.compute_s)),
        (f"time of collectives{doubtful}", output.time_text(cost.comm_s), text),
    ]


def _yes(value: bool | None) -> str:
    return "yes" if value else "no"


def _bytes(size: float | None) -> str:
    return "-" if size is None else bytes_text(size)
