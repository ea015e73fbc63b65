"""The program as a table of ops, every dim with the colour that the graph gives it."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.annotated_listing import op_text, outline, shown_ops, value_text
from toast_lab.views.graph_layout import conflicts_of_groups, lane_styles
from toast_lab.views.graph_rows import phases, where


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
    #: names of the op; if it has none, those of its results' dims
    names: tuple[int, ...]

    @property
    def text(self) -> str:
        """The line without colours."""
        return "".join(segment.text for segment in self.segments)


def program_lines(analysis: Analysis) -> list[Line]:
    """The paper's annotated listing, in pieces: ``a : [S●, S●] = matmul(k, qt)``.

    Loops and branches are indented below a heading of their own, which stands for the first op
    inside.
    """
    program = analysis.program
    styles, phase_of_op = lane_styles(analysis), phases(analysis)
    lines = []
    depth, labels = outline(program)
    waiting = collections.deque(sorted(labels))

    def add(op: int, segments: list[Segment], names: Iterable[int]) -> None:
        lines.append(
            Line(op, phase_of_op[op], tuple(segments), where(analysis, op), names=tuple(names))
        )

    for op in [*range(program.n_arguments), *shown_ops(program)]:
        while waiting and waiting[0] <= op:
            region_start = waiting.popleft()
            for level, heading in labels[region_start]:
                add(region_start, [Segment("  " * level + heading)], ())
        segments: list[Segment] = [Segment("  " * depth[op])] if depth[op] else []
        for index, value in enumerate(program.results(op)):
            segments.append(Segment((", " if index else "") + program.value_name[value] + " : ["))
            for dim, name in enumerate(program.def_names(value)):
                lane_style = styles.get(analysis.group[analysis.colour[name]])
                if dim:
                    segments.append(Segment(", "))
                segments.append(
                    Segment(f"{analysis.dim_text(name)} {lane_style.symbol}", lane_style.hue)
                    if lane_style
                    else Segment(str(program.dims(value)[dim]))
                )
            segments.append(Segment("]"))
        if op >= program.n_arguments:
            operands = [value_text(program, value) for value in program.operands(op)]
            op_call = op_text(program, op, operands)
            segments.append(Segment(f" = {op_call}" if program.results(op) else op_call))
        names = [name for value in program.results(op) for name in program.def_names(value)]
        add(op, segments, program.factors(op) or names)
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
                    "type": f"{program.value_dtype[value]}{list(program.dims(value))}",
                    "colours": ", ".join(map(analysis.dim_text, program.def_names(value))),
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
    conflicts = conflicts_of_groups(analysis)
    return pd.DataFrame(
        [
            (
                styles[group.index].symbol if group.index in styles else "·",
                group.name,
                group.size,
                group.n_names,
                len(group.colours),
                conflicts[group.index],
                2 ** len(group.resolutions),
                group.shardable,
                group.index,
            )
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
