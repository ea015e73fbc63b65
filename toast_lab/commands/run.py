"""``toast-lab run``: compile a plan, execute it and compare it with the unsharded program."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from toast_lab.commands import common
from toast_lab.commands.search import search_data

if TYPE_CHECKING:
    from toast_lab.cost.problem import Cost, Problem
    from toast_lab.runtime.run import Run
    from toast_lab.sharding.plan import ShardingPlan


def run(args: argparse.Namespace) -> int:
    """Execute the plan given, or the one that a search finds."""
    from toast_lab.cost.problem import price
    from toast_lab.runtime.run import run as execute

    common.check_early(args)
    model = common.load_model(args)
    problem = common.make_problem(args, common.analyse(args, model))
    plan, result = common.plan_or_search(args, problem)
    common.save_plan(args, plan)
    devices = args.devices or f"cpu:{problem.mesh.n_devices}"
    with common.progress(f"running on {devices}") as update:
        done = execute(
            model,
            plan,
            devices=devices,
            repeats=args.repeats,
            on_event=lambda event: update(None, str(event)),
        )
    cost = price(problem, plan)
    data = {
        "model": common.model_data(model),
        "problem": common.problem_data(problem),
        "search": search_data(result) if result else None,
        "plan": common.plan_data(plan),
        "cost": common.cost_data(cost),
        "run": done.to_json(),
    }
    return common.emit(args, data, lambda out: _show(out, problem, plan, cost, done))


def _show(out: common.Out, problem: Problem, plan: ShardingPlan, cost: Cost, done: Run) -> None:
    common.show_plan(out, plan)
    peak = common.bytes_text(done.peak_bytes) if done.peak_bytes else "not known"
    rows: list[tuple[Any, ...]] = [
        (
            "time of a step (median)",
            common.time_text(done.median_s),
            f"{common.time_text(cost.time_s)} on {problem.machine.name}",
        ),
        ("peak memory of a device", peak, common.bytes_text(cost.peak_bytes)),
        ("time to compile", common.time_text(done.compile_s), ""),
        ("largest relative error", f"{done.max_relative_error:.1e}", "against the unsharded program"),
    ]
    title = f"{len(done.step_times_s)} steps on {done.n_devices} devices ({done.devices})"
    out.table(title, ("", ">measured", "estimated"), rows)
    priced: dict[str, int] = {}
    for c in cost.collectives:
        priced[c.kind] = priced.get(c.kind, 0) + 1
    kinds = sorted({*priced, *done.collective_counts})
    if kinds:
        counts = [(kind, priced.get(kind, 0), done.collective_counts.get(kind, 0)) for kind in kinds]
        out.table("Collectives", ("kind", ">priced", ">compiled"), counts)
