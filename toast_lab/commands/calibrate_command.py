"""``toast-lab calibrate``: measure attached devices and write a machine file."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from toast_lab.commands import command_options, keeping, output
from toast_lab.errors import InvalidProblem
from toast_lab.text import bytes_text

if TYPE_CHECKING:
    from toast_lab.runtime.calibrate import Calibration


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab calibrate``."""
    parser.add_argument(
        "--devices",
        default="cpu:8",
        help='"cpu:8" (virtual devices), "gpu", "tpu:4" or "auto" (%(default)s)',
    )
    command_options.flag(
        parser, "--quick", "few and small sizes, to try the command out; its numbers mean little"
    )
    parser.add_argument(
        "--output",
        default="machine.toml",
        metavar="FILE",
        help="path of the machine file (%(default)s)",
    )
    parser.add_argument(
        "--time-limit",
        type=command_options.positive,
        default=600.0,
        metavar="SECONDS",
        help="time limit for all measurements (%(default)g)",
    )


def run(args: Namespace) -> int:
    """Measure, write the file and print the fit.

    The first Ctrl-C ends the measurement and keeps the results so far.
    """
    path = Path(args.output)
    if path.suffix != ".toml":
        raise InvalidProblem(
            f"--output {args.output}: the name of a machine file must end in .toml"
        )
    if not os.access(path.absolute().parent, os.W_OK) or path.is_dir():
        raise InvalidProblem(
            f"--output {args.output}: its folder does not exist or cannot be written to"
        )
    from toast_lab.runtime.calibrate import calibrate

    with output.stoppable(f"calibrating {args.devices}") as (update, stopped):
        calibration = calibrate(
            args.devices,
            name=path.stem,
            time_limit_s=args.time_limit,
            on_event=output.stages_to(update),
            cancel=stopped,
            quick=args.quick,
        )
    written = keeping.keep(args, "machine file", str(path), calibration.save)
    machine = calibration.fit.machine
    report = {
        "output": str(path) if written else None,
        "machine": machine.as_dict(),
        "residuals": [residual._asdict() for residual in calibration.fit.residuals],
        "not_measured": list(calibration.fit.not_measured),
        "skipped": [skip._asdict() for skip in calibration.skipped],
        "points": [point._asdict() for point in calibration.points],
        "note": calibration.note,
    }
    return output.emit(
        args, report, lambda console: _show(console, calibration, str(path) if written else "")
    )


def _show(console: output.Out, calibration: Calibration, path: str) -> None:
    machine = calibration.fit.machine
    rows = [
        (f"FLOP/s {dtype}", f"{flops_per_s:.3g}") for dtype, flops_per_s in machine.flops.items()
    ]
    rows += [
        ("memory", bytes_text(machine.memory_bytes)),
        ("memory traffic", f"{machine.memory_bytes_per_s / 1e9:.3g} GB/s"),
        ("start of an op", output.time_text(machine.op_overhead_s)),
        ("links, sent by a device", f"{machine.links[0].bytes_per_s / 1e9:.3g} GB/s"),
        ("links, latency", output.time_text(machine.links[0].latency_s)),
        ("overlap of collectives with compute", f"{machine.overlap:.2f}"),
    ]
    console.table(
        f"{machine.name}: one of {machine.provenance['devices']}", ("", ">measured"), rows
    )
    console.table(
        "Fit: measured time over fitted time",
        ("what", ">points", ">median", ">worst"),
        [
            (
                residual.what,
                residual.points,
                f"{residual.median_ratio:.2f}",
                f"{residual.worst_ratio:.2f}",
            )
            for residual in calibration.fit.residuals
        ],
    )
    for skipped in calibration.skipped:
        console.print(f"Not measured: {skipped.what}: {skipped.why}")
    if calibration.fit.not_measured:
        names = ", ".join(calibration.fit.not_measured)
        console.print(f"Not measured, taken from a built-in machine: {names}")
    if calibration.note:
        console.print(calibration.note)
    if path:
        console.print(f"Written to {path}; use it as --machine {path}")
