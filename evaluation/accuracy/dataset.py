"""Compile the cases and keep the results.

``compiled.jsonl`` has a row for each plan on each slice, written as soon as it is known, so that an
interrupted run continues where it stopped. Rows are found again by case, digest of the program,
topology and plan: a changed model is compiled anew. ``cycles_by_op`` has the compiler's estimated
cycles by op of the program.
"""

from __future__ import annotations

import collections
import importlib.metadata
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation.accuracy import cases
from evaluation.compiled_rows import compiled_row, key
from evaluation.row_files import Row, append_rows, read_rows, write_rows
from toast_lab.runtime.compile import compile_plan, reading_of
from toast_lab.runtime.compiled import Compiled

ROWS = Path(__file__).parent / "compiled.jsonl"
_KEPT = (
    "argument_bytes",
    "output_bytes",
    "alias_bytes",
    "temp_bytes",
    "code_bytes",
    "cycles",
    "clock_hz",
    "compute_s",
    "needed_temporaries_only",
    "loops",
)


def generate(*, full: bool, time_limit_s: float = 600.0) -> None:
    """Compile the plans that have no row yet.

    Models and slices take turns, so that an incomplete run is still a fair sample.

    Args:
        full: compile all plans of every case, rather than the first 6 of each.
        time_limit_s: time limit of one compile.
    """
    known = {key(row) for row in rows()}
    for name, topology, draft, digest in _order(full):
        head = {"program": name, "digest": digest, "topology": topology, "plan": draft.name}
        if key(head) not in known:
            row = compiled_row(
                cases.model_of(name),
                draft.plan,
                topology,
                name=draft.name,
                fields=_fields,
                time_limit_s=time_limit_s,
            )
            append_rows(ROWS, [{**head, "kind": draft.kind, **row}])


def again(*, time_limit_s: float = 600.0) -> None:
    """Compile plans anew if an older version of our reader read their peak, the quickest first.

    All other fields of a row stay as they are, since plan and compiler are the same.
    """
    all_rows = rows()
    stale = [
        row
        for row in all_rows
        if row.get("fits") and row.get("reading") != reading_of(row["topology"])
    ]
    for row in sorted(stale, key=lambda row: row["compile_s"]):
        if not is_current(row):
            print(f"{row['program']}: the program is another one today", file=sys.stderr)
            continue
        name, topology = row["program"], row["topology"]
        (draft,) = [
            candidate for candidate in cases.drafts(name, topology) if candidate.name == row["plan"]
        ]
        compiled = compile_plan(
            cases.model_of(name), draft.plan, topology, time_limit_s=time_limit_s, store=True
        )
        row |= {"peak_bytes": compiled.peak_bytes, "reading": reading_of(topology)}
        write_rows(ROWS, all_rows)
        print(f"{name} {topology} {draft.name}", flush=True)


def rows() -> list[Row]:
    """The rows of ``compiled.jsonl``."""
    return read_rows(ROWS)


def is_current(row: Row) -> bool:
    """Was the row compiled from the program of today?

    Rows of another version of jax are taken to be current, since that version traces another text.
    """
    if row.get("versions", {}).get("jax") != importlib.metadata.version("jax"):
        return True
    return bool(row["digest"] == cases.digest(row["program"]))


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


def _fields(made: Compiled) -> Row:
    """Fields of a compiled plan's row that this comparison needs."""
    return {
        **{name: getattr(made, name) for name in _KEPT},
        "bytes_by_kind": made.bytes_by_kind(),
        "collectives": _collectives(made),
        "rematerialised": len(made.rematerialised),
        "cycles_by_op": {str(op): round(cycles) for op, cycles in made.cycles_by_op.items()},
        "compile_s": round(made.compile_s, 2),
    }


def _collectives(made: Compiled) -> list[list[Any]]:
    """Rows of [kind, axes, size of a group, bytes, dtype, times, op].

    Parts of merged collectives have rows of their own, equal collectives of one op are added up.
    """
    counts: collections.Counter[tuple[Any, ...]] = collections.Counter()
    for collective in made.collectives:
        where = (collective.kind, collective.axes, collective.group_size)
        for part in collective.parts:
            counts[*where, part.bytes, part.dtype, part.op] += collective.times  # type: ignore[assignment]
    return [[*fields[:5], times, fields[5]] for fields, times in counts.items()]
