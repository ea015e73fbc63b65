"""``measured.jsonl``: measurements on a GPU, a row for each share.

Seconds of kernels are those of one step. ``instructions`` has for each instruction that ran [kind,
our op or -1, expected runs, measured_s, XLA's own seconds of one run or None].
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from evaluation.row_files import Row, read_rows, write_rows

ROWS = Path(__file__).parent / "measured.jsonl"
TOPOLOGY = "gpu:h100:8"  # the corpus's plans for this topology are measured
PLAN_NAMES = ("op", "fresh op")  # of single ops: those that rules were read off, and those not
TUNED = ("all", "cuBLAS alone")
_KEPT = (
    "program", "digest", "plan", "sharding_id", "device", "jax", "graphs", "tuned", "compile_s",
    "step_s", "kernels_s", "n_kernels", "host_s", "stand_in_s",
)  # fmt: skip


def key(row: Row) -> tuple[str, str, str, str]:
    """The fields that identify a share; a plan's sharding is among them, since names may change."""
    return row["program"], row["digest"], row["plan"], row.get("sharding_id", "")


def rows() -> list[Row]:
    """Read the kept rows."""
    return read_rows(ROWS)


def keep(files: Iterable[Path], *, tuned: str) -> None:
    """Keep rows that came back, in place of earlier ones of the same shares.

    Args:
        files: files that ``measure`` wrote; failed shares are printed and left out.
        tuned: which kernels of products XLA tried out as it compiled, one of ``TUNED``.
    """
    kept = {key(row): row for row in rows()}
    for file in files:
        for row in read_rows(file):
            if row.get("error") or not row["kernels_s"]:
                print(f"{row['program']}, {row['plan']}: {row.get('error', 'nothing ran')}")
                continue
            kept[key(row)] = _kept({**row, "tuned": tuned})
    write_rows(ROWS, kept.values())


def _kept(row: Row) -> Row:
    """Reduce a row that came back to the fields that are kept."""
    return {
        **{name: rounded(row[name]) for name in _KEPT},
        "peak_bytes": row["memory"]["peak"],
        "instructions": [[rounded(cell) for cell in one] for one in row["instructions"]],
    }


def rounded(value: Any) -> Any:
    """Round a float to four digits, the precision of the measurements."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
