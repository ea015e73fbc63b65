"""Coverage and divisibility reports of the commands.

They are printed as JSON data, or as tables, which are short if nothing is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toast_lab.commands import output
from toast_lab.text import JsonObject, Table

if TYPE_CHECKING:
    from toast_lab.conflicts.coverage import Coverage
    from toast_lab.sharding.divisibility import DimRow, Divisibility

SHOWN_ROWS = 12


def coverage_data(report: Coverage) -> JsonObject:
    """A coverage report as JSON data."""
    return {
        "complete": report.complete,
        "ops": report.n_ops,
        "whole_ops": report.n_whole_ops,
        "flops": report.flops,
        "whole_flops": report.whole_flops,
        "split_flops_share": report.flops_share,
        "bytes": report.bytes,
        "whole_bytes": report.whole_bytes,
        "kept_whole_bytes": report.kept_bytes,
        "rows": [
            {
                "reason": row.reason.name.lower(),
                "why": row.why,
                "kind": row.kind,
                "whole": row.whole,
                "count": row.op_count,
                "ops": row.ops,
                "lines": [{"where": where, "ops": op_count} for where, op_count in row.lines],
                "colours": row.colours,
                "flops": row.flops,
                "bytes": row.bytes,
                "flops_share": row.flops_share,
                "bytes_share": row.bytes_share,
            }
            for row in report.rows
        ],
    }


def divisibility_data(report: Divisibility) -> JsonObject:
    """A divisibility report as JSON data."""

    def dims(rows: tuple[DimRow, ...]) -> list[dict[str, Any]]:
        return [
            {**row._asdict(), "misses": [miss._asdict() for miss in row.misses]} for row in rows
        ]

    return {
        "mesh": dict(zip(report.mesh.axes, report.mesh.sizes, strict=True)),
        "planned": report.planned,
        "dims": dims(report.dims),
        "partly": dims(report.partly),
        "whole_arguments": [row._asdict() for row in report.arguments],
        "whole_arguments_count": report.whole_arguments,
        "whole_argument_bytes": report.whole_bytes,
        "argument_bytes": report.argument_bytes,
    }


def show_coverage(console: output.Out, report: Coverage, *, everything: bool = False) -> None:
    """Print one line, and tables of the ops that are held whole.

    Dims at which an action stops are listed only with ``everything``.
    """
    console.print(f"Coverage: {report.headline()}.")
    _show(console, report.tables(with_dims=everything), everything)
    left_out = 0 if everything else sum(bool(row.colours) for row in report.other_rows)
    if left_out:
        kinds = "1 kind" if left_out == 1 else f"{left_out} kinds"
        console.print(
            f"{kinds} of ops can be split along some of their dims only (--all shows them)\n"
        )


def show_divisibility(
    console: output.Out, report: Divisibility, *, everything: bool = False
) -> None:
    """Print one line, and a table for each kind of problem that occurs."""
    console.print(f"Divisibility: {report.headline()}.")
    _show(console, report.tables(), everything)


def _show(console: output.Out, tables: list[Table], everything: bool) -> None:
    for table in tables:
        console.table(*table, None if everything else SHOWN_ROWS)
