"""The program as a table: one row an op, every dim with the colour that the graph gives it."""

from __future__ import annotations

import collections
from typing import NamedTuple

import pandas as pd

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.listing import op_text, outline, shown_ops, value_text
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
    names: tuple[int, ...]  #: names of its results' dims

    @property
    def text(self) -> str:
        """The line without colours."""
        return "".join(s.text for s in self.segments)


def program_lines(analysis: Analysis) -> list[Line]:
    """The paper's annotated listing, in pieces: ``a : [S●, S●] = matmul(k, qt)``.

    Loops and branches are indented behind a line of their own, which stands for the first op
    inside.
    """
    program = analysis.program
    styles, phase = lane_styles(analysis), phases(analysis)
    out = []
    depth, labels = outline(program)
    waiting = collections.deque(sorted(labels))
    for op in [*range(program.n_arguments), *shown_ops(program)]:
        while waiting and waiting[0] <= op:
            begin = waiting.popleft()
            for level, text in labels[begin]:
                out.append(
                    Line(
                        begin,
                        phase[begin],
                        (Segment("  " * level + text),),
                        where(analysis, begin),
                        (),
                    )
                )
        segments: list[Segment] = [Segment("  " * depth[op])] if depth[op] else []
        for i, value in enumerate(program.results(op)):
            segments.append(Segment((", " if i else "") + program.value_name[value] + " : ["))
            for d, name in enumerate(program.def_names(value)):
                found = styles.get(int(analysis.group[analysis.colour[name]]))
                if d:
                    segments.append(Segment(", "))
                size = program.dims(value)[d]
                segments.append(
                    Segment(f"{analysis.dim_text(name)} {found.symbol}", found.hue)
                    if found
                    else Segment(str(size))
                )
            segments.append(Segment("]"))
        if op >= program.n_arguments:
            operands = [value_text(program, v) for v in program.operands(op)]
            text = op_text(program, op, operands)
            segments.append(Segment(f" = {text}" if program.results(op) else text))
        names = tuple(n for v in program.results(op) for n in program.def_names(v))
        out.append(
            Line(
                op,
                phase[op],
                tuple(segments),
                where(analysis, op),
                tuple(program.factors(op)) or names,
            )
        )
    return out


def program_frame(analysis: Analysis) -> pd.DataFrame:
    """One row an op: result, type, shape, colours, source line, FLOPs."""
    program = analysis.program
    rows = []
    for op in [*range(program.n_arguments), *shown_ops(program)]:
        for value in program.results(op):
            rows.append(
                {
                    "op": op,
                    "result": program.value_name[value],
                    "kind": program.kind[op],
                    "type": (
                        f"{program.value_dtype[value]}"
                        f"[{', '.join(str(d) for d in program.dims(value))}]"
                    ),
                    "colours": ", ".join(analysis.dim_text(n) for n in program.def_names(value)),
                    "operands": ", ".join(value_text(program, v) for v in program.operands(op)),
                    "flops": float(program.flops[op] * program.trips[op]),
                    "bytes": program.nbytes(value),
                    "where": where(analysis, op),
                }
            )
    return pd.DataFrame(rows)


def colours_frame(analysis: Analysis) -> pd.DataFrame:
    """One row a colour group: what an action can shard."""
    styles = lane_styles(analysis)
    n_conflicts = collections.Counter(int(analysis.group[c.colour]) for c in analysis.conflicts)
    return pd.DataFrame(
        [
            {
                "": styles[g.index].symbol if g.index in styles else "·",
                "colour": g.name,
                "size": g.size,
                "names": g.n_names,
                "mirrored": len(g.colours),
                "conflicts": n_conflicts[g.index],
                "resolutions": 2 ** len(g.resolutions),
                "shardable": g.shardable,
                "group": g.index,
            }
            for g in sorted(analysis.groups, key=lambda g: -g.n_names)
            if g.n_names > 1
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
