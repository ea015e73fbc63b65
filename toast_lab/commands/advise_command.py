"""``toast-lab advise``: which slice, mesh shape, parts of a batch and recomputation to take."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from toast_lab.commands import command_options, common, keeping, output
from toast_lab.text import bytes_text, csv_text

if TYPE_CHECKING:
    from toast_lab.advice.advice_result import Advice

COLUMNS = (
    *("devices", "mesh", "batch", "parts", "keeps", "time_s", "peak_bytes", "fits"),
    *("device_s", "price_per_example", "plan", "stage", "links"),
)


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab advise``."""
    add_option = parser.add_argument
    command_options.model(parser)
    command_options.priced_on(parser)
    add_option(
        "--devices",
        dest="counts",
        type=command_options.positive_int,
        nargs="+",
        metavar="N",
        help="the most devices, or several numbers to look at (the machine's largest slice)",
    )
    add_option(
        "--batch",
        type=command_options.positive_int,
        nargs="+",
        metavar="EXAMPLES",
        help="examples of a part of the batch; parts run one after the other, so that a step has "
        "the same examples (a half, a quarter and an eighth, where memory binds)",
    )
    command_options.flag(parser, "--whole-batch", "never run the batch in parts")
    add_option(
        "--recompute",
        nargs="?",
        const=True,
        default=True,
        metavar="KEEPS",
        help="what layers keep for the backward pass, in all rows, which computes the rest again: "
        '"everything", "inputs" or "products" (all are tried where memory binds)',
    )
    command_options.flag(parser, "--as-written", "do not choose what layers keep; take MODEL as is")
    add_option(
        "--price",
        type=command_options.positive,
        metavar="PRICE",
        help="price of a device for an hour, in any currency",
    )
    command_options.budget(parser, seconds=60.0)
    add_option(
        "--out",
        metavar="DIR",
        help="folder for rows.jsonl; rows that it already holds are not computed again",
    )
    command_options.scheduler(parser)
    add_option(
        "--workers",
        type=command_options.not_negative_int,
        help="number of processes on this machine (its cores, at most 8); 0: all in this process, "
        "which is quicker for small models",
    )
    add_option("--csv", metavar="FILE", help="write a row for each set-up")
    command_options.save(parser)


def run(args: Namespace) -> int:
    """Print the best row of each slice and the answers; Ctrl-C ends the work and keeps the rows."""
    from toast_lab.advice.set_ups import device_counts
    from toast_lab.machines.catalogue import machine
    from toast_lab.pipeline import advise

    common.check_early(args)
    devices = args.counts[0] if args.counts and len(args.counts) == 1 else args.counts
    device_counts(machine(args.machine), devices)  # refused before minutes of tracing
    model = common.load_model(args)
    options: dict[str, Any] = {
        "batch": False if args.whole_batch else args.batch or True,
        "recompute": False if args.as_written else args.recompute,
        "evaluations": args.evaluations,
        "price_per_device_hour": args.price,
        "memory_limit_bytes": args.memory_limit and args.memory_limit * 2.0**30,
        "seed": args.seed or 0,
        "store": args.out,
        "workers": args.workers,
        "scheduler": args.scheduler,
    }
    if args.seconds is not None:
        options["seconds"] = args.seconds
    with output.stoppable(f"advising on {model.name}") as (update, stopped):
        analysis = common.analyse(args, model)
        advice = advise(analysis, args.machine, devices, wait=False, cancel=stopped, **options)
        while advice.running:
            _show_progress(advice, update)
            time.sleep(0.2)
        advice.wait()
    best = advice.rows[0] if advice.rows else None
    if args.csv:
        keeping.keep_table(args, args.csv, csv_text(COLUMNS, [row.flat() for row in advice.rows]))
    if best is not None:
        keeping.keep_plan(args, best.plan, best.problem)
    output.emit(args, advice.to_json(), lambda console: print(advice))
    return 130 if advice.stopped else 0


def _show_progress(advice: Advice, update: Any) -> None:
    best = next(iter(advice.rows), None)
    known = ""
    if best is not None:
        known = f"; best {output.time_text(best.time_s)}, {bytes_text(best.peak_bytes)}"
        known += f" on {best.devices} as {best.shape}"
    update(None, f"{advice.stage}{known}")
