"""Rows of compiled plans: what identifies them, what they hold, and which facts are reliable."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from evaluation.row_files import Row
from toast_lab.errors import ToastError
from toast_lab.ir.model import Model
from toast_lab.runtime.compile import compile_plan, reading_of, without_locations
from toast_lab.runtime.compiled import Compiled
from toast_lab.sharding.plan import ShardingPlan

#: The first ``READING`` of ``runtime/compile.py`` that takes a TPU's peak from the compiler's
#: buffer assignment. Earlier readings are up to a third too large.
ASSIGNED_PEAKS = 9

#: For each platform, the first ``READING`` with constraints only where needed, not after every op.
NEEDED_CONSTRAINTS = {"tpu": 12, "gpu": 14, "cpu": 12}


def key(row: Row) -> tuple[str, str, str, str]:
    """The fields that identify the row of a plan, compiled or priced."""
    return row["program"], row["digest"], row["topology"], row["plan"]


def program_digest(model: Model) -> str:
    """A digest of a program's StableHLO without locations, which depend on unrelated lines."""
    return hashlib.sha256(without_locations(model.stablehlo).encode()).hexdigest()[:16]


def compiled_row(
    model: Model,
    plan: ShardingPlan,
    topology: str,
    *,
    name: str,
    fields: Callable[[Compiled], Row],
    time_limit_s: float,
) -> Row:
    """Compile a plan ahead of time and give what its row holds beside its key.

    The compiler's full result stays in the store of compiled results.

    Args:
        model: the program.
        plan: the plan to compile.
        topology: what it is compiled for.
        name: how the plan is called in the line that is printed.
        fields: gives what else of the compiler's result is kept; times in s, sizes in bytes.
        time_limit_s: time limit of the compile; a plan that exceeds it gets a row with ``error``.
    """
    started = time.perf_counter()
    row: Row = {"actions": list(plan.actions), "reading": reading_of(topology)}
    try:
        result = compile_plan(model, plan, topology, time_limit_s=time_limit_s, store=True)
    except ToastError as error:
        row["error"] = str(error)[:300]
    else:
        row |= {
            "fits": result.fits,
            "peak_bytes": result.peak_bytes,
            "needed_bytes": result.needed_bytes,
            "limit_bytes": result.limit_bytes,
            "versions": dict(result.versions),
            **fields(result),
        }
    row["wall_s"] = round(time.perf_counter() - started, 1)
    error_text = row.get("error", "")[:80]
    print(f"{row['wall_s']:6.1f} s  {model.name} {topology} {name} {error_text}", flush=True)
    return row


def has_needed_constraints(topology: str, reading: int | None) -> bool:
    """Was the plan of a row compiled with the constraints that it needs, and no others?"""
    return (reading or 0) >= NEEDED_CONSTRAINTS[topology.partition(":")[0]]


def has_peak(topology: str, reading: int | None) -> bool:
    """Is the peak of a row the compiler's own number?"""
    return not topology.startswith("tpu") or (reading or 0) >= ASSIGNED_PEAKS
