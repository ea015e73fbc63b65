"""The program as a table of ops, every dim with the colour that the graph gives it."""

from __future__ import annotations

import collections
from typing import NamedTuple

import pandas as pd

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.annotated_listing import op_text, outline, shown_ops, value_text
from toast_lab.views.graph_layout import lane_styles, phases, where


class Segment(NamedTuple):
    """A piece of a listing line; ``hue`` is empty for plain text."""

    text: str
    hue: str = ""


class Line(NamedTuple):
    """One line of the listing."""

    op: int
    phase: str
    segments: tuple[Segment, ...]
    where: str
    #: names of its results' dims
    names: tuple[int, ...]

    @property
    def text(self) -> str:
        """The line without colours."""
        return "".join(segment.text for segment in self.segments)


def program_lines(analysis: Analysis) -> list[Line]:
    """The paper's annotated listing, in pieces: ``a : [S●, S●] = matmul(k, qt)``.

    Loops and branches are indented behind a line of their own, which stands for the first op
    inside.
    """
    program = analysis.program
    styles, phase_of_op = lane_styles(analysis), phases(analysis)
    lines = []
    depth, labels = outline(program)
    waiting = collections.deque(sorted(labels))
    for op in [*range(program.n_arguments), *shown_ops(program)]:
        while waiting and waiting[0] <= op:
            region_start = waiting.popleft()
            for level, line_text in labels[region_start]:
                lines.append(
                    Line(
                        op=region_start,
                        phase=phase_of_op[region_start],
                        segments=(Segment("  " * level + line_text),),
                        where=where(analysis, region_start),
                        names=(),
                    )
                )
        segments: list[Segment] = [Segment("  " * depth[op])] if depth[op] else []
        for index, value in enumerate(program.results(op)):
            segments.append(Segment((", " if index else "") + program.value_name[value] + " : ["))
            for dim, name in enumerate(program.def_names(value)):
                lane_style = styles.get(int(analysis.group[analysis.colour[name]]))
                if dim:
                    segments.append(Segment(", "))
                size = program.dims(value)[dim]
                segments.append(
                    Segment(f"{analysis.dim_text(name)} {lane_style.symbol}", lane_style.hue)
                    if lane_style
                    else Segment(str(size))
                )
            segments.append(Segment("]"))
        if op >= program.n_arguments:
            operands = [value_text(program, value) for value in program.operands(op)]
            line_text = op_text(program, op, operands)
            segments.append(Segment(f" = {line_text}" if program.results(op) else line_text))
        names = tuple(name for value in program.results(op) for name in program.def_names(value))
        lines.append(
            Line(
                op=op,
                phase=phase_of_op[op],
                segments=tuple(segments),
                where=where(analysis, op),
                names=tuple(program.factors(op)) or names,
            )
        )
    return lines


def program_frame(analysis: Analysis) -> pd.DataFrame:
    """One row per op: result, type, shape, colours, source line, FLOPs."""
    program = analysis.program
    table_rows = []
    for op in [*range(program.n_arguments), *shown_ops(program)]:
        for value in program.results(op):
            table_rows.append(
                {
                    "op": op,
                    "result": program.value_name[value],
                    "kind": program.kind[op],
                    "type": (
                        f"{program.value_dtype[value]}"
                        f"[{', '.join(str(size) for size in program.dims(value))}]"
                    ),
                    "colours": ", ".join(
                        analysis.dim_text(name) for name in program.def_names(value)
                    ),
                    "operands": ", ".join(
                        value_text(program, operand) for operand in program.operands(op)
                    ),
                    "flops": float(program.flops[op] * program.trips[op]),
                    "bytes": program.nbytes(value),
                    "where": where(analysis, op),
                }
            )
    return pd.DataFrame(table_rows)


def colours_frame(analysis: Analysis) -> pd.DataFrame:
    """One row per colour group: what an action can shard."""
    styles = lane_styles(analysis)
    n_conflicts = collections.Counter(
        int(analysis.group[conflict.colour]) for conflict in analysis.conflicts
    )
    return pd.DataFrame(
        [
            {
                "": styles[group.index].symbol if group.index in styles else "·",
                "colour": group.name,
                "size": group.size,
                "names": group.n_names,
                "mirrored": len(group.colours),
                "conflicts": n_conflicts[group.index],
                "resolutions": 2 ** len(group.resolutions),
                "shardable": group.shardable,
                "group": group.index,
            }
            for group in sorted(analysis.groups, key=lambda group: -group.n_names)
            if group.n_names > 1
        ],
        columns=[
            "",
            "colour",
            "size",
            "names",
            "mirrored",
            "conflicts",
            "resolutions",
            "shardable",
            "group",
        ],
    )
