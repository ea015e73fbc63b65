"""``toast-lab compare``: saved plans measured side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toast_lab.commands import common, keeping, output, stopping
from toast_lab.errors import InvalidPlan

if TYPE_CHECKING:
    from toast_lab.compare.result import Comparison
    from toast_lab.runtime.child import Progress
    from toast_lab.sharding.plan import ShardingPlan


def run(args: argparse.Namespace) -> int:
    """Compare; one that was interrupted ends like any other, with what was measured so far."""
    from toast_lab.compare import distributed
    from toast_lab.compare.compare import DISTRIBUTED, compare, is_first

    common.check_early(args)
    names = _names(args.plans)
    together = args.devices == DISTRIBUTED
    if together:
        distributed.connect()
    model = common.load_model(args)
    analysis = common.analyse(args, model)
    plans: dict[str, ShardingPlan] = {}
    for name, path in zip(names, args.plans, strict=True):
        plans[name] = _load(path, analysis)
    with (
        output.progress(f"comparing {len(plans)} plans") as update,
        stopping.stop_gently() as stopped,
    ):

        def on_event(event: Progress) -> None:
            update(event.fraction, event.stage)

        done = compare(
            model,
            plans,
            args.devices,
            repeats=args.repeats,
            rounds=args.rounds,
            seed=args.seed,
            gradients=not args.no_gradients,
            machine=args.machine,
            processes=args.processes,
            apart=args.apart or None,
            store=_store(args.store),
            time_limit_s=args.time_limit,
            plan_time_limit_s=args.plan_time_limit,
            on_event=on_event,
            cancel=stopped,
        )
    if together and not is_first():
        return 0
    if args.csv:
        keeping.keep(args, "table", args.csv, done.to_csv, lambda: "It is:\n" + done.to_csv())
    for note in done.notes:
        print(f"note: {note}", file=sys.stderr)
    status = output.emit(args, data_of(model, done), lambda out: _show(out, done))
    lost = args.store != "none" and not done.stored_as  # a note says why
    return status or int(lost or all(row.status != "ok" for row in done.rows))


def data_of(model: Any, done: Comparison) -> dict[str, Any]:
    """A comparison for JSON."""
    return {"model": output.model_data(model), "comparison": done.to_json()}


def _names(paths: list[str]) -> list[str]:
    """Plans are called like their files, by whole paths where those are alike."""
    stems = [Path(p).stem for p in paths]
    names = [
        stem if stems.count(stem) == 1 else path for stem, path in zip(stems, paths, strict=True)
    ]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise InvalidPlan(f"given twice: {', '.join(twice)}")
    return names


def _load(path: str, analysis: Any) -> ShardingPlan:
    from toast_lab.cost.problem import Problem

    return common.load_plan(path, Problem(analysis, common.mesh_of(path)))


def _store(text: str | None) -> bool | str:
    return True if text is None else False if text == "none" else text


def _show(out: output.Out, done: Comparison) -> None:
    from toast_lab.compare.result import COLUMNS, cells

    every = [*done.rows, *([done.reference] if done.reference else [])]
    columns = ["~" + c if c in ("collectives", "plan") else c for c in COLUMNS]
    out.table(
        f"{len(done.rows)} plans of {done.model} on {_devices(done)}",
        columns,
        [cells(row) for row in every],
    )
    out.print(f"{done.order}; inputs: {done.inputs}.")
    for row in every:
        if row.status != "ok":
            out.print(f"{row.name}: {row.status}: {row.message}")
    for row in done.rows:
        if row.certificate is not None:
            out.print(f"\n{row.name}: {row.certificate}")
    if any(row.device_kind == "cpu" for row in done.rows):
        out.print("\nTimes of virtual devices say nothing of accelerators.")
    if done.stored_as:
        out.print(f"Kept as {', '.join(map(str, done.stored_as))}; see toast-lab runs.")


def _devices(done: Comparison) -> str:
    return ", ".join(
        sorted({f"{row.devices} ({row.device_kind or 'never reached'})" for row in done.rows})
    )
