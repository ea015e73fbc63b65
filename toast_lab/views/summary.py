"""Numbers of a program, as the explorer's first page shows them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from toast_lab.conflicts.analysis import Analysis
from toast_lab.ir.rounds import unknown_loops
from toast_lab.views.compare_table import bytes_text

Facts = list[tuple[str, str]]


def count_text(value: float, unit_name: str = "") -> str:
    """A count as text, a large one with an SI prefix.

    >>> count_text(1234567), count_text(12), count_text(3.2e12, "FLOP")
    ('1.23 M', '12', '3.2 TFLOP')
    """
    for prefix, unit_size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= unit_size:
            divisor = 1e3 if prefix == "k" else unit_size
            return f"{value / divisor:.3g} {prefix}{unit_name}"
    return f"{value:,.0f} {unit_name}".strip()


def program_facts(analysis: Analysis, source: str = "") -> Facts:
    """Sizes of a program and of its analysis."""
    program = analysis.program
    element_count = sum(
        int(np.prod(program.dims(argument), dtype=np.int64))
        for argument in range(program.n_arguments)
    )
    argument_bytes = sum(program.nbytes(argument) for argument in range(program.n_arguments))
    bit_count = analysis.n_resolutions // 2
    facts = [
        ("ops", f"{program.n_ops - program.n_arguments:,}"),
        ("values", f"{program.n_values:,}"),
        ("dimension names", f"{int((analysis.names.size > 1).sum()):,}"),
        (
            "colours",
            f"{sum(1 for group in analysis.groups if group.n_names > 1):,} with more than one name",
        ),
        ("conflicts", f"{len(analysis.conflicts):,}"),
        (
            "compatibility sets",
            f"{len(analysis.compatibility_sets):,}, settled by {bit_count} independent "
            f"bit{'' if bit_count == 1 else 's'}",
        ),
        (
            "arguments",
            f"{program.n_arguments:,} tensors, {count_text(element_count)} elements, "
            f"{bytes_text(argument_bytes)}",
        ),
        ("work", count_text(float((program.flops * program.trips).sum()), "FLOP")),
    ]
    bodies = [region for region in program.regions if region.kind == "body"]
    if bodies:
        counts = sorted({f"{loop.rounds:g}" for loop in unknown_loops(program)})
        unknown_count = sum(not body.known for body in bodies)
        assumed = f"; rounds of {unknown_count:,} not known, counted as {' or '.join(counts)}"
        facts.append(("loops", f"{len(bodies):,}{assumed if unknown_count else ''}"))
    return [*facts, ("from", source)] if source else facts


def arguments_frame(analysis: Analysis) -> pd.DataFrame:
    """One row per argument."""
    program = analysis.program
    table_rows = []
    for argument in range(program.n_arguments):
        dims = ", ".join(map(str, program.dims(argument)))
        names = program.def_names(argument)
        table_rows.append(
            {
                "argument": program.value_name[argument],
                "type": f"{program.value_dtype[argument]}[{dims}]",
                "colours": ", ".join(analysis.dim_text(name) for name in names),
                "size": bytes_text(program.nbytes(argument)),
                "donated": "yes" if program.donated[argument] else "",
            }
        )
    return pd.DataFrame(table_rows, columns=["argument", "type", "colours", "size", "donated"])
