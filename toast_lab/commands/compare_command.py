"""``toast-lab compare``: measure saved plans side by side."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from toast_lab.commands import command_options, common, keeping, output

if TYPE_CHECKING:
    from toast_lab.compare.result import Comparison


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab compare``."""
    add_option = parser.add_argument
    command_options.model(parser)
    add_option(
        "plans", metavar="PLAN", nargs="+", help="plans that --save wrote, each on its own mesh"
    )
    add_option(
        "--devices",
        default="cpu",
        help='"cpu:8" (virtual devices), "gpu", "tpu", "auto", or "distributed" under srun or '
        "mpirun (%(default)s)",
    )
    command_options.timed(parser)
    add_option(
        "--rounds",
        type=command_options.positive_int,
        help="rounds that the steps are divided into (5, or 3 on accelerators)",
    )
    add_option(
        "--processes",
        type=command_options.positive_int,
        default=1,
        metavar="P",
        help="divide the virtual devices among this many processes",
    )
    add_option(
        "--machine",
        help='also predict times on a machine: a name from "toast-lab machines", or FILE.toml',
    )
    command_options.flag(parser, "--apart", "hold one plan in memory at a time")
    command_options.flag(
        parser,
        "--no-gradients",
        "compare only the outputs with the unsharded program, not the gradients",
    )
    add_option(
        "--plan-time-limit",
        type=command_options.positive,
        metavar="SECONDS",
        help="time limit for one plan (an equal share of --time-limit)",
    )
    add_option("--csv", metavar="FILE", help="write a row for each plan")
    add_option(
        "--store",
        metavar="FILE",
        help='file to keep the results in, or "none" (see "toast-lab runs")',
    )


def run(args: Namespace) -> int:
    """Compare; an interrupted comparison ends like any other, with the measurements so far."""
    from toast_lab.compare import distributed
    from toast_lab.compare.compare import DISTRIBUTED, compare, is_first
    from toast_lab.sharding.mesh import make_mesh

    common.check_early(args)
    names = common.plan_names(args.plans)
    is_distributed = args.devices == DISTRIBUTED
    if is_distributed:
        distributed.connect()
    model = common.load_model(args)
    analysis = common.analyse(args, model)
    plans = {
        name: common.load_plan(path, analysis, make_mesh(common.mesh_of(path)))
        for name, path in zip(names, args.plans, strict=True)
    }
    with output.stoppable(f"comparing {len(plans)} plans") as (update, stopped):
        comparison = compare(
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
            store=args.store != "none" and (args.store or True),
            time_limit_s=args.time_limit,
            plan_time_limit_s=args.plan_time_limit,
            on_event=output.stages_to(update),
            cancel=stopped,
        )
    if is_distributed and not is_first():
        return 0
    if args.csv:
        keeping.keep_table(args, args.csv, comparison.to_csv())
    common.print_notes(comparison.notes)
    status = output.emit(
        args, data_of(model, comparison), lambda console: _show(console, comparison)
    )
    # A note in the comparison gives the reason.
    not_stored = args.store != "none" and not comparison.stored_as
    return status or int(not_stored or all(row.status != "ok" for row in comparison.rows))


def data_of(model: Any, comparison: Comparison) -> dict[str, Any]:
    """A comparison as JSON data."""
    return {"model": output.model_data(model), "comparison": comparison.to_json()}


def _show(console: output.Out, comparison: Comparison) -> None:
    from toast_lab.compare.result import COLUMNS, cells

    columns = ["~" + column if column in ("collectives", "plan") else column for column in COLUMNS]
    console.table(
        f"{len(comparison.rows)} plans of {comparison.model} on {_devices(comparison)}",
        columns,
        map(cells, comparison.all_rows),
    )
    console.print(f"{comparison.order}; inputs: {comparison.inputs}.")
    for failure in comparison.failures:
        console.print(failure)
    for row in comparison.rows:
        if row.certificate is not None:
            console.print(f"\n{row.name}: {row.certificate}")
    if any(row.device_kind == "cpu" for row in comparison.rows):
        console.print("\nTimes of virtual devices say nothing about accelerators.")
    if comparison.stored_as:
        console.print(f"Kept as {', '.join(map(str, comparison.stored_as))}; see toast-lab runs.")


def _devices(comparison: Comparison) -> str:
    return ", ".join(
        sorted({f"{row.devices} ({row.device_kind or 'never reached'})" for row in comparison.rows})
    )
