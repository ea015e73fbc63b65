"""``toast-lab calibrate``: measure attached devices and write a machine file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from toast_lab.commands import keeping, output, stopping
from toast_lab.errors import InvalidProblem
from toast_lab.text import bytes_text

if TYPE_CHECKING:
    from toast_lab.runtime.calibrate import Calibration
    from toast_lab.runtime.child import Progress


def run(args: argparse.Namespace) -> int:
    """Measure, write the file and print the fit.

    The first Ctrl-C ends the measurement and keeps what it has.
    """
    path = Path(args.output)
    if path.suffix != ".toml":
        raise InvalidProblem(f"--output {args.output}: a machine file's name ends in .toml")
    if not os.access(path.absolute().parent, os.W_OK) or path.is_dir():
        raise InvalidProblem(
            f"--output {args.output}: its folder does not exist or cannot be written to"
        )
    from toast_lab.runtime.calibrate import calibrate

    with (
        output.progress(f"calibrating {args.devices}") as update,
        stopping.stop_gently() as stopped,
    ):

        def on_event(event: Progress) -> None:
            update(event.fraction, event.stage)

        done = calibrate(
            args.devices,
            name=path.stem,
            time_limit_s=args.time_limit,
            on_event=on_event,
            cancel=stopped,
            quick=args.quick,
        )
    written = keeping.keep(args, "machine file", str(path), done.save)
    machine = done.fit.machine
    data = {
        "output": str(path) if written else None,
        "machine": machine.as_dict(),
        "residuals": [r._asdict() for r in done.fit.residuals],
        "not_measured": list(done.fit.not_measured),
        "skipped": [s._asdict() for s in done.skipped],
        "points": [p._asdict() for p in done.points],
        "note": done.note,
    }
    return output.emit(args, data, lambda out: _show(out, done, str(path) if written else ""))


def _show(out: output.Out, done: Calibration, path: str) -> None:
    m = done.fit.machine
    rows = [(f"FLOP/s {dtype}", f"{value:.3g}") for dtype, value in m.flops.items()]
    rows += [
        ("memory", bytes_text(m.memory_bytes)),
        ("memory traffic", f"{m.memory_bytes_per_s / 1e9:.3g} GB/s"),
        ("start of an op", output.time_text(m.op_overhead_s)),
        ("links, sent by a device", f"{m.links[0].bytes_per_s / 1e9:.3g} GB/s"),
        ("links, latency", output.time_text(m.links[0].latency_s)),
        ("overlap of collectives with compute", f"{m.overlap:.2f}"),
    ]
    out.table(f"{m.name}: one of {m.provenance['devices']}", ("", ">measured"), rows)
    out.table(
        "Fit: measured time over fitted time",
        ("what", ">points", ">median", ">worst"),
        [
            (r.what, r.points, f"{r.median_ratio:.2f}", f"{r.worst_ratio:.2f}")
            for r in done.fit.residuals
        ],
    )
    for skipped in done.skipped:
        out.print(f"Not measured: {skipped.what}: {skipped.why}")
    if done.fit.not_measured:
        out.print(
            f"Taken from the table, for they were not measured: {', '.join(done.fit.not_measured)}"
        )
    if done.note:
        out.print(done.note)
    if path:
        out.print(f"Written to {path}; use it as --machine {path}")
