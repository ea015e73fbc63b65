"""What users should know before they trust a program's price: counts and costs that are assumed."""

from __future__ import annotations

from collections.abc import Iterator

from toast_lab.ir.program import Program
from toast_lab.ir.rounds import rounds_notes
from toast_lab.text import counted, line_text


def program_notes(program: Program) -> tuple[str, ...]:
    """Sentences on loops of unknown rounds and kernels without a cost."""
    return (*rounds_notes(program), *_kernel_notes(program))


def _kernel_notes(program: Program) -> list[str]:
    """One sentence for each name of kernels that have no FLOPs."""
    places: dict[str, dict[str, None]] = {}
    lines: dict[str, str] = {}
    for name, where, line in _without_cost(program):
        places.setdefault(name, {})[line_text(where)] = None
        lines.setdefault(name, line)
    notes = []
    for name, source_lines in places.items():
        first, *others = source_lines
        more = f" and {counted(len(others), 'other line')}" if others else ""
        notes.append(
            f"{name} at {first}{more} has no FLOPs: priced by its bytes. "
            f"{lines[name]} gives it some"
        )
    return notes


def _without_cost(program: Program) -> Iterator[tuple[str, str, str]]:
    for op, line in program.without_cost:
        yield program.detail[op], program.where(op), line
    for shard_map in program.shard_maps:
        yield from _without_cost(shard_map.body)
