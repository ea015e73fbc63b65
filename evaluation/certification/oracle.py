"""Compare our collectives with those of Shardy's own lowering, for random plans of every program.

The collectives of every value of a plan are compared by kind, mesh axes and bytes
(``shardy.routes``). A difference with a known reason is counted, one without is a failure.
"""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from evaluation import pages
from evaluation.certification import draw
from evaluation.certification.case import Case
from evaluation.certification.programs import programs
from evaluation.certification.shardy import routes
from evaluation.row_files import append_rows, read_rows

FULL, SHORT = 25, 1  # plans on each mesh


class Row(NamedTuple):
    """The comparison of one plan."""

    program: str
    mesh: str
    number: int
    ops: int
    actions: str
    ours: int  #: number of our collectives
    theirs: int
    reasons: str  #: "number reason" of the differences, joined by " | "
    our_bytes: float  #: bytes that those of our collectives handle which differ
    their_bytes: float
    failure: str
    seconds: float


def compare(case: Case, count: int, seed: int = 0) -> list[Row]:
    """Compare ``count`` random plans of one program on each mesh."""
    started = time.perf_counter()
    model = case.model()
    plans = [
        (mesh, number, plan)
        for mesh, problem in draw.problems(model).items()
        for number, plan in enumerate(draw.random_plans(problem, mesh, count, seed))
    ]
    comparisons = routes.compare_many(model, [plan for _, _, plan in plans], time_limit_s=580)
    seconds = (time.perf_counter() - started) / max(1, len(plans))
    rows = []
    for (mesh, number, plan), comparison in zip(plans, comparisons, strict=True):
        counts = collections.Counter(d.reason or "unexplained" for d in comparison.differences)
        sides = [d.bytes for d in comparison.differences]
        rows.append(
            Row(
                case.name,
                mesh,
                number,
                model.program.n_ops - model.program.n_arguments,
                " ".join(plan.actions),
                comparison.n_ours,
                comparison.n_theirs,
                " | ".join(f"{n} {r}" for r, n in sorted(counts.items())),
                sum(a for a, _ in sides),
                sum(b for _, b in sides),
                "; ".join(map(str, comparison.unexplained))[:2000],
                seconds,
            )
        )
    return rows


def reasons(rows: Sequence[Row]) -> collections.Counter[str]:
    """Number of values that differ, by reason."""
    found: collections.Counter[str] = collections.Counter()
    for row in rows:
        for part in row.reasons.split(" | "):
            number, _, reason = part.partition(" ")
            if reason:
                found[reason] += int(number)
    return found


def table(rows: Sequence[Row]) -> str:
    """A table with a line for each program, then the reasons."""
    cells = []
    for name in dict.fromkeys(r.program for r in rows):
        group = [r for r in rows if r.program == name]
        equal = sum(not r.reasons for r in group)
        collectives = (sum(r.ours for r in group), sum(r.theirs for r in group))
        failed = sum(bool(r.failure) for r in group)
        cells.append((name, group[0].ops, len(group), equal, *collectives, failed))
    columns = "program,>ops,>plans,>equal,>our collectives,>Shardy's,>unexplained"
    equal = sum(not r.reasons for r in rows)
    lines = [
        *pages.table(columns.split(","), cells),
        f"\n{equal} of {len(rows)} plans ({equal / max(1, len(rows)):.0%}) have exactly Shardy's "
        "collectives; "
        f"{sum(r.ours for r in rows)} collectives of ours, {sum(r.theirs for r in rows)} of "
        "Shardy's.\n",
        *pages.table(
            (">values that differ", "reason"),
            ((count, reason) for reason, count in reasons(rows).most_common()),
        ),
    ]
    return "\n".join(lines)


def run(full: bool, file: Path | None = None, only: Sequence[str] = (), seed: int = 0) -> list[str]:
    """Run the comparison from the command line; gives a line for each unexplained difference.

    The arguments are those of ``plans.run``.
    """
    rows = [Row(**row) for row in read_rows(file)] if file else []
    finished = {r.program for r in rows}
    for case in programs():
        if (only and case.name not in only) or case.name in finished:
            continue
        new = compare(case, FULL if full else SHORT, seed)
        equal = sum(not r.reasons for r in new)
        print(
            f"{case.name}: {len(new)} plans, {equal} equal, {sum(r.seconds for r in new):.0f} s",
            file=sys.stderr,
            flush=True,
        )
        rows += new
        if file:
            append_rows(file, [row._asdict() for row in new])
    print(table(rows))
    return [
        f"{r.program} on {r.mesh}, plan {r.number} ({r.actions}): {r.failure}"
        for r in rows
        if r.failure
    ]
