"""Price the compiled rows with the code of today.

``priced.jsonl`` has times in seconds and sizes in bytes. It is always rewritten as a whole, since
any change of the code may change a price. This needs the packages, but no compiler.
"""

from __future__ import annotations

import collections
from collections.abc import Collection
from pathlib import Path

import numpy as np

from evaluation.compiled_rows import key, program_digest
from evaluation.corpus import compiled, plans, programs
from evaluation.corpus.op_classes import class_of
from evaluation.corpus.targets import target
from evaluation.row_files import Row, read_rows, write_rows
from toast_lab.cost.problem import Problem, price
from toast_lab.runtime import diff, diff_rows
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.step_kinds import COMPUTE

#: Op kinds that are left out of comparisons on TPUs.
UNCLOCKED = ("gather", "scatter", "sort")
ROWS = Path(__file__).parent / "priced.jsonl"


def generate(names: Collection[str] = ()) -> None:
    """Write ``priced.jsonl``; rows of programs that cannot be traced stay as they were.

    So do those of programs that are not among ``names``, if any are given, and those that were
    compiled from another program than JAX now lowers for the target's platform.
    """
    by_program = collections.defaultdict(list)
    for row in compiled.rows():
        by_program[row["program"]].append(row)
    before = {key(row): row for row in rows()}
    fresh: dict[tuple[str, str, str, str], Row] = {}
    for name, members in by_program.items():
        if names and name not in names:
            continue
        traced = programs.traced(name)
        if traced is None:
            continue
        _, analysis, _ = traced
        for topology in dict.fromkeys(row["topology"] for row in members):
            where = target(topology)
            problem = Problem(analysis, where.mesh, where.machine)
            digest = program_digest(problem.analysis.model)
            for row in members:
                if row["topology"] == topology and row["digest"] == digest:
                    fresh[key(row)] = _priced(problem, row)
        count = sum(key(row) in fresh for row in members)
        print(f"{name}: {count} of {len(members)} rows", flush=True)
    kept = [fresh.get(key(row), before.get(key(row))) for row in compiled.rows()]
    write_rows(ROWS, (row for row in kept if row is not None))


def rows() -> list[Row]:
    """The rows of ``priced.jsonl``."""
    return read_rows(ROWS)


def _priced(problem: Problem, row: Row) -> Row:
    plan = plans.decoded(problem, row["sharding"])
    cost = price(problem, plan)
    return {
        **{name: row[name] for name in ("program", "digest", "topology", "plan")},
        "time_s": cost.time_s,
        "overlapped_s": cost.overlapped_s,
        "compute_s": cost.compute_s,
        "compute_s_by_class": _by_class(problem, plan, row["topology"]),
        "compiled_s_by_class": _compiled_by_class(problem, row),
        "unclocked_s": _unclocked(problem, row, {op.op: op.time_s for op in cost.ops}),
        "comm_s": cost.comm_s,
        "peak_bytes": cost.peak_bytes,
        "fits": cost.fits,
        **(_collectives(problem, plan, row) if row.get("peak_bytes") else {}),
    }


def _unclocked(problem: Problem, row: Row, priced_s: dict[int, float]) -> list[float]:
    """Priced and compiled seconds of the ops that are left out of a comparison."""
    kind = problem.analysis.program.kind
    told_s = {int(op): time_s for op, time_s in row.get("compute_s_by_op", {}).items()}
    sums = [
        sum(
            time_s
            for op, time_s in times.items()
            if op >= 0 and not is_clocked(kind[op], row["topology"])
        )
        for times in (priced_s, told_s)
    ]
    return [float(f"{value:.6g}") for value in sums]


def is_clocked(kind: str, topology: str) -> bool:
    """Does the compiler give times for ops of a kind? libtpu gives none for most look-ups."""
    return kind not in UNCLOCKED or not topology.startswith("tpu")


def _by_class(problem: Problem, plan: ShardingPlan, topology: str) -> dict[str, float]:
    names = problem.analysis.program.kind
    totals = problem.prices.totals(plan.op_factor, plan.value_dim)
    kind, op = totals.steps.kind[: totals.n_steps], totals.steps.op[: totals.n_steps]
    seconds: dict[str, float] = collections.defaultdict(float)
    for row in np.flatnonzero(kind == COMPUTE).tolist():
        if is_clocked(names[op[row]], topology):
            seconds[class_of(names[op[row]])] += float(totals.each.time_s[row])
    return {name: float(f"{value:.6g}") for name, value in seconds.items() if value}


def _compiled_by_class(problem: Problem, row: Row) -> dict[str, float]:
    """The compiler's seconds of the ops that it names, by class."""
    kind = problem.analysis.program.kind
    seconds: dict[str, float] = collections.defaultdict(float)
    for op, time_s in row.get("compute_s_by_op", {}).items():
        if int(op) >= 0 and is_clocked(kind[int(op)], row["topology"]):
            seconds[class_of(kind[int(op)])] += time_s
    return {name: float(f"{value:.6g}") for name, value in seconds.items()}


def _collectives(problem: Problem, plan: ShardingPlan, row: Row) -> Row:
    """Fields of a row that compare priced and compiled collectives, by number and bytes."""
    theirs = [
        diff_rows.Side(
            op=op,
            kind=kind,
            axes=None if axes is None else tuple(axes),
            bytes=float(size),
            times=times,
            dtype=dtype,
        )
        for kind, axes, size, dtype, times, op in row["collectives"]
        if axes != []
    ]
    result = diff.compare(plan.program, plan.mesh, diff.predicted(problem, plan), theirs)
    pairs = result.bytes_by_kind().values()
    counts = collections.Counter(compared.status for compared in result.rows)
    return {
        "collectives": dict(counts),
        "unexplained": len(result.unexplained),
        "reasons": dict(collections.Counter(compared.reason for compared in result.different)),
        "priced_bytes": sum(pair[0] for pair in pairs),
        "compiled_bytes": sum(pair[1] for pair in pairs),
    }
