"""``python -m evaluation which_mesh measure|figures``: advice on slices and meshes.

``measure`` advises on each program and machine, and has the compiler of the machine's devices judge
the first rows. A row of ``which_mesh.jsonl`` has the seconds of the advice, its answers, the best
expert plan of all mesh shapes, and the verdicts; rows that exist are kept. ``figures`` writes the
tables of ``docs/which_mesh.md``.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import toast_lab as tl
from evaluation import pages
from evaluation.corpus import package_models
from evaluation.row_files import Row, append_rows, read_rows
from toast_lab.errors import ToastError
from toast_lab.files import write_whole
from toast_lab.ir.model import Model

ROWS = Path(__file__).parent / "which_mesh.jsonl"
PAGE = pages.DOCS / "which_mesh.md"
COMPILE_S = 1200.0  #: limit of one compile
JUDGED = 3  #: first rows that are compiled

#: training steps by name: four of this project at the paper's sizes, two of a package
CASES: dict[str, Callable[[], Model]] = {
    "t2b": lambda: tl.load("t2b"),
    "t7b": lambda: tl.load("t7b"),
    "gns": lambda: tl.load("gns"),
    "unet": lambda: tl.load("unet"),
    "gpt2": lambda: package_models.gpt2(layers=4),
    "llama": lambda: package_models.llama(layers=4),
}
#: machine and the most devices
MACHINES = {"tpu-v5e": 256, "h100": 64}


def rows() -> list[Row]:
    """The rows of ``which_mesh.jsonl``."""
    return read_rows(ROWS)


def measure(programs: Iterable[str], machines: Iterable[str], judged: int) -> None:
    """Append the rows that are missing."""
    for program in programs:
        known = {row["machine"] for row in rows() if row["program"] == program}
        for machine in machines:
            if machine not in known:
                append_rows(ROWS, [_advised(program, machine, judged)])


def _advised(program: str, machine: str, judged: int) -> Row:
    model = CASES[program]()  # loaded anew, so that each advice pays for its own analysis
    started_s = time.monotonic()
    advice = tl.advise(model, machine, MACHINES[machine])
    took_s = time.monotonic() - started_s
    experts = [plan for choice, plan in advice.experts if choice.parts == 1 and plan.fits]
    expert = min(experts, key=lambda plan: plan.time_s, default=None)
    answers = {name: getattr(advice, name) for name in ("fastest", "cheapest", "smallest")}
    row = {
        "program": program,
        "ops": model.program.n_ops,
        "machine": machine,
        "devices": MACHINES[machine],
        "advise_s": took_s,
        "mesh_shapes": advice.n_shapes,
        "set_ups": advice.n_set_ups,
        "searched": advice.n_searched,
        "expert": None if expert is None else [expert.mesh, expert.name, expert.time_s],
        **{name: None if one is None else one.flat() for name, one in answers.items()},
        "verdicts": [_verdict(one) for one in advice.fitting[:judged]],
        "left_out": [*advice.dropped, *advice.left_out],
    }
    print({key: value for key, value in row.items() if key != "left_out"}, flush=True)
    return row


def _verdict(advised: Any) -> Row:
    verdict = {"set_up": str(advised), "price_s": advised.time_s, "peak_bytes": advised.peak_bytes}
    try:
        confirmed = advised.confirm(time_limit_s=COMPILE_S)
    except ToastError as error:
        return verdict | {"failure": str(error).splitlines()[0]}
    judgement = confirmed.judgement
    return verdict | {
        "topology": confirmed.topology,
        "clock_s": confirmed.time_s,
        "compiled_peak_bytes": judgement.peak_bytes,
        "fits": judgement.fits,
        "failure": judgement.failure,
    }


# -- the page --------------------------------------------------------------------------------------


def figures() -> None:
    """Write the tables into the page, between their marks."""
    order = list(CASES), list(MACHINES)
    found = sorted(
        rows(), key=lambda row: [order[0].index(row["program"]), order[1].index(row["machine"])]
    )
    text = pages.with_part(PAGE.read_text(), "advice", _advice_table(found))
    write_whole(PAGE, pages.with_part(text, "verdicts", _verdict_table(found)))


def _advice_table(found: Sequence[Row]) -> list[str]:
    columns = (
        "program|>ops|machine|>devices|>seconds|>meshes|>searches|fastest|>step, ms|"
        ">best expert plan, ms|cheapest|smallest that fits"
    )
    return pages.table(
        columns.split("|"),
        [
            (
                row["program"],
                f"{row['ops']:,}",
                row["machine"],
                row["devices"],
                f"{row['advise_s']:.0f}",
                row["mesh_shapes"],
                row["searched"],
                _set_up(row["fastest"]),
                "" if row["fastest"] is None else f"{row['fastest']['time_s'] * 1e3:.4g}",
                "none fits" if row["expert"] is None else f"{row['expert'][2] * 1e3:.4g}",
                _set_up(row["cheapest"]),
                _set_up(row["smallest"]),
            )
            for row in found
        ],
    )


def _set_up(flat: Row | None) -> str:
    if flat is None:
        return "none"
    parts = f", {flat['parts']} parts" if flat["parts"] > 1 else ""
    keeps = "" if flat["keeps"] == "all" else f", keeps {flat['keeps']}"
    return f"{flat['mesh']}{parts}{keeps}"


def _verdict_table(found: Sequence[Row]) -> list[str]:
    lines = []
    for row in found:
        clocks = [verdict["clock_s"] for verdict in row["verdicts"] if verdict.get("clock_s")]
        least_s = min(clocks, default=math.nan)
        for number, verdict in enumerate(row["verdicts"], 1):
            clock_s = verdict.get("clock_s")
            compiled_bytes = verdict.get("compiled_peak_bytes")
            lines.append(
                (
                    row["program"],
                    row["machine"],
                    number,
                    verdict["set_up"].partition(":")[0],
                    f"{verdict['price_s'] * 1e3:.4g}",
                    f"{clock_s * 1e3:.4g}" if clock_s else verdict.get("failure") or "no clock",
                    f"{clock_s / least_s:.2f}" if clock_s else "",
                    f"{verdict['peak_bytes'] / 2**30:.2f}",
                    f"{compiled_bytes / 2**30:.2f}" if compiled_bytes else "",
                )
            )
    columns = (
        "program|machine|>row|set-up|>price, ms|>clock, ms|>of the best clock|>peak, GiB|"
        ">compiled, GiB"
    )
    return pages.table(columns.split("|"), lines)


def main(arguments: list[str]) -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m evaluation which_mesh", description=__doc__)
    parser.add_argument("command", choices=("measure", "figures"))
    parser.add_argument("--programs", nargs="*", choices=CASES, help="by name; all by default")
    parser.add_argument("--machines", nargs="*", choices=MACHINES, help="by name; both by default")
    parser.add_argument(
        "--judged", type=int, default=JUDGED, help="first rows to compile (%(default)s)"
    )
    args = parser.parse_args(arguments)
    if args.command == "figures":
        figures()
        return 0
    measure(args.programs or CASES, args.machines or MACHINES, args.judged)
    return 0
