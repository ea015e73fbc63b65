"""Compile the cases and keep the results.

Results are kept row by row, so that an interrupted run continues where it stopped.

``compiled.csv`` has a row for each plan on each slice, ``cycles.csv`` the compiler's estimated
cycles of each plan by op of the program. Lists and tables inside a cell are JSON. Rows are found
again by case, topology, plan name and digest of the program, so a changed model is compiled anew.
"""

from __future__ import annotations

import collections
import csv
import importlib.metadata
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.accuracy import cases
from toast_lab.errors import ToastError
from toast_lab.files import write_whole
from toast_lab.runtime.compile import compile_plan, reading_of
from toast_lab.runtime.compiled import Compiled
from toast_lab.text import csv_text

FOLDER = Path(__file__).parent
COMPILED, CYCLES = FOLDER / "compiled.csv", FOLDER / "cycles.csv"
COLUMNS = (
    "case",
    "program",
    "topology",
    "mesh",
    "plan",
    "kind",
    "actions",
    "fits",
    "peak_bytes",
    "argument_bytes",
    "output_bytes",
    "alias_bytes",
    "temp_bytes",
    "code_bytes",
    "needed_bytes",
    "limit_bytes",
    "needed_temporaries_only",
    "cycles",
    "clock_hz",
    "compute_s",
    "bytes_by_kind",
    "collectives",
    "loops",
    "rematerialised",
    "compile_s",
    "versions",
    "error",
    "reading",
)
CYCLE_COLUMNS = ("case", "topology", "plan", "op", "kind", "cycles")
COLLECTIVE_FIELDS = ("kind", "axes", "group_size", "bytes", "dtype", "times", "op")


def generate(*, full: bool, time_limit_s: float = 600.0) -> None:
    """Compile the plans that have no row yet.

    Models and slices take turns, so that an incomplete run is still a fair sample.

    Args:
        full: compile all plans of every case, rather than the first 6 of each.
        time_limit_s: time limit of one compile.
    """
    known = {_name(row) for row in rows()}
    for name, topology, draft, program in _order(full):
        key = (name, topology, draft.name, program)
        if key in known:
            continue
        started = time.perf_counter()
        try:
            compiled = compile_plan(
                cases.model_of(name), draft.plan, topology, time_limit_s=time_limit_s, store=True
            )
        except ToastError as error:
            print(f"{name} {topology} {draft.name}: {error}", file=sys.stderr)
            row = {"error": str(error)[:300]}
        else:
            row = {**_row(compiled), "reading": reading_of(topology)}
            _append(CYCLES, CYCLE_COLUMNS, _cycles(name, topology, draft.name, compiled))
        plan = draft.plan
        head = {
            "case": name,
            "program": program,
            "topology": topology,
            "mesh": str(plan.mesh),
            "plan": draft.name,
            "kind": draft.kind,
            "actions": json.dumps(list(plan.actions)),
        }
        _append(COMPILED, COLUMNS, [{**head, **row}])
        print(f"{time.perf_counter() - started:6.1f} s  {name} {topology} {draft.name}", flush=True)


def again(*, time_limit_s: float = 600.0) -> None:
    """Compile plans anew if an older version of our reader read their peak, the quickest first.

    All other fields of a row stay as they are, since plan and compiler are the same.
    """
    all_rows = rows()
    stale = [
        row
        for row in all_rows
        if not row["error"]
        and int(row["fits"])
        and row["reading"] != str(reading_of(row["topology"]))
    ]
    for row in sorted(stale, key=lambda row: float(row["compile_s"])):
        if not is_current(row):
            print(f"{row['case']}: the program is another one today", file=sys.stderr)
            continue
        name, topology = row["case"], row["topology"]
        (draft,) = [
            candidate for candidate in cases.drafts(name, topology) if candidate.name == row["plan"]
        ]
        compiled = compile_plan(
            cases.model_of(name), draft.plan, topology, time_limit_s=time_limit_s, store=True
        )
        row |= {"peak_bytes": str(compiled.peak_bytes), "reading": str(reading_of(topology))}
        write_whole(COMPILED, csv_text(COLUMNS, all_rows))
        print(f"{name} {topology} {draft.name}", flush=True)


def rows() -> list[dict[str, str]]:
    """Read the rows of ``compiled.csv``."""
    return list(_read(COMPILED))


def is_current(row: dict[str, str]) -> bool:
    """Was the row compiled from the program of today?

    Rows of another version of jax are taken to be current, since that version traces another text.
    """
    if json.loads(row["versions"] or "{}").get("jax") != importlib.metadata.version("jax"):
        return True
    return row["program"] == cases.digest(row["case"])


def cycle_rows() -> list[dict[str, str]]:
    """Read the rows of ``cycles.csv``."""
    return list(_read(CYCLES))


def _read(path: Path) -> Iterator[dict[str, str]]:
    if path.exists():
        with path.open(newline="") as file:
            yield from csv.DictReader(file)


def _append(path: Path, columns: tuple[str, ...], new: list[dict[str, Any]]) -> None:
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(new)


def _name(row: dict[str, str]) -> tuple[str, str, str, str]:
    return row["case"], row["topology"], row["plan"], row["program"]


def _order(full: bool) -> Iterator[tuple[str, str, cases.Draft, str]]:
    lists = [
        [(c.name, s.topology, draft, cases.digest(c.name)) for draft in drafts]
        for c in cases.CASES
        for s in cases.SLICES
        for drafts in [cases.drafts(c.name, s.topology)]
    ]
    if not full:
        lists = [found[:6] for found in lists]
    for turn in itertools.zip_longest(*lists):
        yield from (item for item in turn if item is not None)


def _row(made: Compiled) -> dict[str, Any]:
    plain = (
        "peak_bytes",
        "argument_bytes",
        "output_bytes",
        "alias_bytes",
        "temp_bytes",
        "code_bytes",
        "needed_bytes",
        "limit_bytes",
        "clock_hz",
        "compute_s",
        "cycles",
    )
    return {
        **{key: "" if getattr(made, key) is None else getattr(made, key) for key in plain},
        "fits": int(made.fits),
        "needed_temporaries_only": int(made.needed_temporaries_only),
        "bytes_by_kind": json.dumps(made.bytes_by_kind(), sort_keys=True),
        "collectives": json.dumps(_collectives(made), separators=(",", ":")),
        "loops": json.dumps(made.loops, separators=(",", ":")),
        "rematerialised": len(made.rematerialised),
        "compile_s": round(made.compile_s, 2),
        "versions": json.dumps(dict(made.versions), sort_keys=True),
    }


def _collectives(made: Compiled) -> list[list[Any]]:
    """Rows of COLLECTIVE_FIELDS, with the parts of merged collectives as separate rows.

    Equal collectives of one op are added up.
    """
    found: collections.Counter[tuple[Any, ...]] = collections.Counter()
    for c in made.collectives:
        axes = None if c.axes is None else ",".join(c.axes)
        for part in c.parts:
            found[c.kind, axes, c.group_size, part.bytes, part.dtype, part.op] += c.times  # type: ignore[assignment]
    return [[*key[:5], times, key[5]] for key, times in found.items()]


def _cycles(name: str, topology: str, plan: str, made: Compiled) -> list[dict[str, Any]]:
    program = cases.model_of(name).program
    return [
        {
            "case": name,
            "topology": topology,
            "plan": plan,
            "op": op,
            "kind": program.kind[op] if op >= 0 else "",
            "cycles": round(cycles),
        }
        for op, cycles in sorted(made.cycles_by_op.items())
    ]
