"""A program in numbers: what the first page shows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from toast_lab.conflicts.analysis import Analysis
from toast_lab.views.compare_table import bytes_text

Facts = list[tuple[str, str]]


def count_text(value: float, unit: str = "") -> str:
    """Large counts with a prefix.

    >>> count_text(1234567), count_text(12), count_text(3.2e12, "FLOP")
    ('1.23 M', '12', '3.2 TFLOP')
    """
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= scale:
            real = 1e3 if prefix == "k" else scale
            return f"{value / real:.3g} {prefix}{unit}"
    return f"{value:,.0f} {unit}".strip()


def program_facts(analysis: Analysis, source: str = "") -> Facts:
    """Sizes of a program and of its analysis."""
    program = analysis.program
    elements = sum(
        int(np.prod(program.dims(a), dtype=np.int64)) for a in range(program.n_arguments)
    )
    nbytes = sum(program.nbytes(a) for a in range(program.n_arguments))
    bits = analysis.n_resolutions // 2
    facts = [
        ("ops", f"{program.n_ops - program.n_arguments:,}"),
        ("values", f"{program.n_values:,}"),
        ("dimension names", f"{int((analysis.names.size > 1).sum()):,}"),
        (
            "colours",
            f"{sum(1 for g in analysis.groups if g.n_names > 1):,} with more than one name",
        ),
        ("conflicts", f"{len(analysis.conflicts):,}"),
        (
            "compatibility sets",
            f"{len(analysis.compatibility_sets):,}, settled by {bits} independent "
            f"bit{'' if bits == 1 else 's'}",
        ),
        (
            "arguments",
            f"{program.n_arguments:,} tensors, {count_text(elements)} elements, "
            f"{bytes_text(nbytes)}",
        ),
        ("work", count_text(float((program.flops * program.trips).sum()), "FLOP")),
    ]
    return [*facts, ("from", source)] if source else facts


def arguments_frame(analysis: Analysis) -> pd.DataFrame:
    """One row an argument."""
    program = analysis.program
    return pd.DataFrame(
        [
            {
                "argument": program.value_name[a],
                "type": f"{program.value_dtype[a]}[{', '.join(map(str, program.dims(a)))}]",
                "colours": ", ".join(analysis.dim_text(n) for n in program.def_names(a)),
                "size": bytes_text(program.nbytes(a)),
                "donated": "yes" if program.donated[a] else "",
            }
            for a in range(program.n_arguments)
        ],
        columns=["argument", "type", "colours", "size", "donated"],
    )
