"""``measured.jsonl``: what came back from a GPU, a row for each share.

Seconds of kernels are those of one step.  ``instructions``: for each that ran, [kind, op of ours or
-1, runs expected, measured_s, XLA's own seconds of one run or None].
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.corpus import compiled
from tests.corpus.compiled import Row

ROWS = Path(__file__).parent / "measured.jsonl"
TOPOLOGY = "gpu:h100:8"  # whose plans of the corpus are measured
PLAN_NAMES = ("op", "fresh op")  # of single ops: what rules were read off, and what was not
TUNED = ("all", "cuBLAS alone")
_KEPT = (
    "program", "digest", "plan", "sharding_id", "device", "jax", "graphs", "tuned", "compile_s",
    "step_s", "kernels_s", "n_kernels", "host_s", "stand_in_s",
)  # fmt: skip


def key(row: Row) -> tuple[str, str, str, str]:
    """What names a share; a plan by its sharding too, since its name may go to another."""
    return row["program"], row["digest"], row["plan"], row.get("sharding_id", "")


def rows() -> list[Row]:
    """The rows that are kept."""
    return compiled.read_rows(ROWS)


def keep(files: Iterable[Path], *, tuned: str) -> None:
    """Put rows that came back in place of earlier ones of the same shares.

    Args:
        files: as ``measure`` wrote them; what failed is left out, and said.
        tuned: which products XLA tried out while it compiled, one of ``TUNED``.
    """
    kept = {key(row): row for row in rows()}
    for file in files:
        for row in compiled.read_rows(file):
            if row.get("error") or not row["kernels_s"]:
                print(f"{row['program']}, {row['plan']}: {row.get('error', 'nothing ran')}")
                continue
            kept[key(row)] = _kept({**row, "tuned": tuned})
    compiled.write_rows(ROWS, kept.values())


def _kept(row: Row) -> Row:
    """What is worth keeping of a row as it came back."""
    return {
        **{name: rounded(row[name]) for name in _KEPT},
        "peak_bytes": row["memory"]["peak"],
        "instructions": [[rounded(cell) for cell in one] for one in row["instructions"]],
    }


def rounded(value: Any) -> Any:
    """A number as it is kept: nothing was measured to more than four digits."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
