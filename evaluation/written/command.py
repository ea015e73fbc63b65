"""``python -m evaluation written measure|figures``: written plans against whole ones.

``measure`` searches each program on each target, writes the best plan as people would
(``result.written(0.0)``), and compiles both for the target. A row of ``written_plans.jsonl`` has
sizes, prices, clocks and seconds; rows that exist are kept: an interrupted run goes on where it
stopped. ``figures`` writes their table into ``docs/written_plans.md``.

The networks of the paper are priced at their whole size, and compiled at the largest that compilers
finish in minutes, where they are searched and written again.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import toast_lab as tl
from evaluation import pages
from evaluation.corpus import programs
from evaluation.corpus.targets import CLOCKED, Target, target
from evaluation.row_files import Row, append_rows, read_rows
from toast_lab.errors import ToastError
from toast_lab.files import write_whole
from toast_lab.runtime.compiled import Compiled

ROWS = Path(__file__).parent / "written_plans.jsonl"
PAGE = pages.DOCS / "written_plans.md"
#: Processor seconds of the search, and drafts of the search for written plans. Other work may share
#: the machine, so that times by the wall would decide what is found.
SEARCH_S = 30.0
DRAFTS = 4000
WITHIN = 0.0  #: loss of C(s) that a written plan may have: the best that is found
COMPILE_S = 1200.0  #: limit of one compile


class Case(NamedTuple):
    """A program that is written."""

    name: str
    make: Callable[[], Any]
    sizes: str  #: as the table shows them
    is_compiled: bool = True
    packages: tuple[str, ...] = ()  #: whose source may be constrained, the model being theirs


def _built_in(name: str, *, is_compiled: bool, **sizes: Any) -> Case:
    shown = " ".join(f"{key}={value}" for key, value in sizes.items()) or "defaults"
    label = name if is_compiled else f"{name} (whole)"
    return Case(label, lambda: tl.load(name, **sizes), shown, is_compiled)


def _packaged(name: str, *packages: str) -> Case:
    program = programs.PROGRAMS[name]
    return Case(name, program.make, program.package or "", packages=packages)


#: The sizes of docs/evaluation.md, and those at which it compiles.
CASES = (
    _built_in("t2b", is_compiled=True, batch=8, layers=1, remat=True, sequence=16384),
    _built_in("t7b", is_compiled=True, batch=32, layers=1, remat=True, sequence=2048),
    _built_in("itx", is_compiled=True, batch=128, layers=2),
    _built_in("unet", is_compiled=True, batch=64, blocks=1, channels=256, heads=8, multipliers=[1]),
    _built_in("gns", is_compiled=True, edges=65536, hidden_layers=1, steps=1),
    _packaged("llama", "transformers"),
    _packaged("mistral", "transformers"),
    _packaged("llama_decode", "transformers"),
    _packaged("resnet", "transformers"),
    _packaged("jraph_network", "jraph"),
    _built_in("t2b", is_compiled=False, batch=8, remat=True, sequence=16384),
    _built_in("t7b", is_compiled=False, batch=32, remat=True, sequence=2048),
    _built_in("itx", is_compiled=False, batch=128),
    _built_in("unet", is_compiled=False),
    _built_in("gns", is_compiled=False, edges=65536),
)


def measure(cases: Iterable[Case], targets: Sequence[Target]) -> None:
    """Append the rows that are missing."""
    known = {(row["program"], row["topology"]) for row in rows()}
    for case in cases:
        wanted = [where for where in targets if (case.name, where.topology) not in known]
        if not wanted:
            continue
        analysis = tl.analyse(case.make())
        for where in wanted:
            problem = tl.Problem(analysis, where.mesh, where.machine)
            row = {"program": case.name, "sizes": case.sizes, "topology": where.topology}
            row |= _measured(case, problem, where.topology)
            append_rows(ROWS, [row])
            print(row, flush=True)


def rows() -> list[Row]:
    """The rows of ``written_plans.jsonl``."""
    return read_rows(ROWS)


def _measured(case: Case, problem: Any, topology: str) -> Row:
    result = tl.search(problem, budget=tl.Budget(seconds=20 * SEARCH_S), cancel=_after(SEARCH_S))
    started, used_s = time.monotonic(), _processor_s()
    budget = tl.Budget(seconds=None, evaluations=DRAFTS)
    written = result.written(WITHIN, budget=budget, in_packages=case.packages)
    assert written.unlimited is not None
    row = {
        "ops": problem.analysis.program.n_ops,
        "rules": written.size.rules,
        "constraints": written.size.constraints,
        "whole_price_s": written.unlimited.time_s,
        "price_s": written.cost.time_s,
        "loss": written.loss,
        "fits": written.cost.fits,
        "writing_s": round(time.monotonic() - started, 2),
        "writing_processor_s": round(_processor_s() - used_s, 2),
    }
    model = problem.analysis.model
    if not case.is_compiled:
        return row
    for prefix, compiling in (
        (
            "whole_",
            lambda: tl.compile(model, result.refined.plan, topology, time_limit_s=COMPILE_S),
        ),
        ("", lambda: written.compile(topology, time_limit_s=COMPILE_S)),
    ):
        try:
            row |= _clocked(compiling(), prefix)
        except ToastError as error:
            row[f"{prefix}failure"] = str(error).splitlines()[0]
    return row


def _clocked(compiled: Compiled, prefix: str) -> Row:
    return {
        f"{prefix}clock_s": compiled.time_s,
        f"{prefix}refused": compiled.refused,
        f"{prefix}peak_bytes": compiled.peak_bytes,
        f"{prefix}collectives": compiled.counts_by_kind(),
        "versions": {name: text for name, text in compiled.versions.items() if text},
    }


def _after(seconds: float) -> Callable[[], bool]:
    """Has this process used so many processor seconds more?"""
    started = time.process_time()
    return lambda: time.process_time() - started > seconds


def _processor_s() -> float:
    """Processor seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


# -- the page --------------------------------------------------------------------------------------


def figures() -> None:
    """Write the table and its medians into the page, between its marks."""
    found = [row for case in CASES for row in rows() if row["program"] == case.name]
    lines = [*_medians(found), "", *_table(found), "", _machine(found)]
    write_whole(PAGE, pages.with_part(PAGE.read_text(), "measured", lines))


def _medians(found: Sequence[Row]) -> list[str]:
    summaries = []
    for topology in dict.fromkeys(row["topology"] for row in found):
        members = [row for row in found if row["topology"] == topology]
        for title, ratio in (
            ("price of the written over the whole plan", _price_ratio),
            ("clock of the written over the whole plan", _clock_ratio),
            ("price over clock, written plan", lambda row: _over(row, "price_s", "clock_s")),
            (
                "price over clock, whole plan",
                lambda row: _over(row, "whole_price_s", "whole_clock_s"),
            ),
            ("rules", lambda row: row["rules"]),
            ("constraints", lambda row: row["constraints"]),
            ("processor seconds to write", lambda row: row["writing_processor_s"]),
        ):
            summaries.append(_summary(f"{topology}: {title}", members, ratio))
    return pages.table(("", ">programs", ">median", "worst case"), summaries)


def _summary(
    title: str, members: Sequence[Row], value: Callable[[Row], float | None]
) -> tuple[object, ...]:
    values = [(number, row["program"]) for row in members if (number := value(row)) is not None]
    if not values:
        return title, 0, "", ""
    median = float(np.median([number for number, _ in values]))
    is_ratio = " over " in title
    worst = max(values, key=lambda pair: abs(np.log(pair[0])) if is_ratio else pair[0])
    return title, len(values), _short(median), f"{_short(worst[0])} ({worst[1]})"


def _table(found: Sequence[Row]) -> list[str]:
    columns = (
        "program|sizes or package|target|>rules|>constraints|>price, ms|>of the whole plan|>ratio|"
        ">clock, ms|>of the whole plan|>ratio|>s to write (processor)"
    )
    lines = []
    for row in found:
        cells = [
            row["program"],
            row["sizes"],
            row["topology"],
            str(row["rules"]),
            str(row["constraints"]),
            _milliseconds(row["price_s"]),
            _milliseconds(row["whole_price_s"]),
            _short(_price_ratio(row)),
            _milliseconds(row.get("clock_s")) or row.get("failure", ""),
            _milliseconds(row.get("whole_clock_s")) or row.get("whole_failure", ""),
            _short(_clock_ratio(row)),
            f"{row['writing_s']:.0f} ({row['writing_processor_s']:.0f})",
        ]
        lines.append(cells)
    return pages.table(columns.split("|"), lines)


def _price_ratio(row: Row) -> float | None:
    return _over(row, "price_s", "whole_price_s")


def _clock_ratio(row: Row) -> float | None:
    return _over(row, "clock_s", "whole_clock_s")


def _over(row: Row, above: str, below: str) -> float | None:
    return row[above] / row[below] if row.get(above) and row.get(below) else None


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:.3g}"


def _milliseconds(time_s: float | None) -> str:
    return "" if time_s is None else f"{time_s * 1e3:.4g}"


def _machine(found: Sequence[Row]) -> str:
    versions: dict[str, str] = {}
    for row in found:
        versions |= row.get("versions", {})
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return (
        f"Measured by {today} on {os.cpu_count()} cores of {platform.machine()}, which other work "
        f"shared, with {listed}."
    )


def main(arguments: list[str]) -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m evaluation written", description=__doc__)
    parser.add_argument("command", choices=("measure", "figures"))
    parser.add_argument("--programs", nargs="*", help="by name; all by default")
    parser.add_argument("--targets", nargs="*", help="topologies; v5e and H100 by default")
    args = parser.parse_args(arguments)
    if args.command == "figures":
        figures()
        return 0
    cases = [case for case in CASES if not args.programs or case.name in args.programs]
    measure(cases, [target(topology) for topology in args.targets or CLOCKED])
    return 0
