"""``measured.jsonl``: what came back from a GPU, a row for each share.

Seconds of kernels are those of one step.  ``instructions``: for each that ran, [kind, op of ours or
-1, runs expected, measured_s, XLA's own seconds of one run or None].
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from toast_lab.compare.local_program import STAND_IN
from toast_lab.files import write_whole

ROWS = Path(__file__).parent / "measured.jsonl"
PLAN_NAMES = ("op", "fresh op")  # of single ops: what rules were read off, and what was not
TUNED = ("all", "cuBLAS alone")
_KEPT = (
    "program", "digest", "plan", "device", "jax", "graphs", "tuned", "compile_s", "step_s",
    "kernels_s", "n_kernels",
)  # fmt: skip
Row = dict[str, Any]


def key(row: Row) -> tuple[str, str, str]:
    """What names a share."""
    return row["program"], row["digest"], row["plan"]


def rows() -> list[Row]:
    """The rows that are kept."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def keep(files: Iterable[Path], *, tuned: str) -> None:
    """Put rows that came back in place of earlier ones of the same shares.

    Args:
        files: as ``measure`` wrote them; what failed is left out, and said.
        tuned: which products XLA tried out while it compiled, one of ``TUNED``.
    """
    kept = {key(row): row for row in rows()}
    for file in files:
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if row.get("error") or not row["kernels_s"]:
                print(f"{row['program']}, {row['plan']}: {row.get('error', 'nothing ran')}")
                continue
            kept[key(row)] = _kept({**row, "tuned": tuned})
    lines = [json.dumps(row, separators=(",", ":")) for row in kept.values()]
    write_whole(ROWS, "\n".join(lines) + "\n")


def _kept(row: Row) -> Row:
    """What is worth keeping of a row as it came back."""
    ran = [one for one in row["instructions"] if one[6] > 0]
    return {
        **{name: _rounded(row[name]) for name in _KEPT},
        "host_s": _rounded(row["untraced_s"]),
        "stand_in_s": _rounded(sum(one[6] for one in ran if STAND_IN in one[8])),
        "peak_bytes": row["memory"]["peak"],
        "instructions": [
            [kind, op, times, _rounded(measured_s), told_s]
            for _, kind, op, times, told_s, _, measured_s, _, name in ran
            if STAND_IN not in name
        ],
    }


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
