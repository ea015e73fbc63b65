"""What is known about one name or one conflict, as pairs of (label, text) and as frames."""

from __future__ import annotations

from collections import deque

import numpy as np
import pandas as pd

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.graph import Place
from toast_lab.ir.program import FACTOR_CLASSES
from toast_lab.views import source_lines
from toast_lab.views.graph_layout import op_label, place_text, where

Facts = list[tuple[str, str]]


def use_op(analysis: Analysis, use: int) -> int:
    """The op that a use belongs to."""
    return int(np.searchsorted(analysis.program.use_ptr, use, side="right")) - 1


def name_facts(analysis: Analysis, name: int) -> Facts:
    """Everything about one dimension name."""
    program, dims = analysis.program, analysis.names
    op = int(dims.op[name])
    defined = [
        f"{program.value_name[v]} dim {d} of [{', '.join(map(str, program.dims(v)))}]"
        for v in program.results(op)
        for d, n in enumerate(program.def_names(v))
        if n == name
    ]
    used = [
        f"{program.value_name[int(program.use_value[u])]} dim {d}"
        for u in program.uses(op)
        for d, n in enumerate(program.use_names(u))
        if n == name
    ]
    after = [int(n) for n in dims.successor[dims.ptr[name] : dims.ptr[name + 1]]]
    frame = source_lines.op_frame(program, op)
    facts = [
        ("name", analysis.name_text[name]),
        ("colour", analysis.dim_text(name)),
        ("size", str(int(dims.size[name]))),
        ("splits", op_label(analysis, op)),
        ("defines", "; ".join(defined) or "nothing: it is reduced away"),
        ("uses", "; ".join(used) or "none"),
        ("goes on to", _some([op_label(analysis, int(dims.op[n])) for n in after]) or "nowhere"),
        ("kind of factor", FACTOR_CLASSES[int(program.factor_class[name])].replace("_", " ")),
        ("line", frame.short or "unknown"),
        ("source", source_lines.source_text(frame)),
    ]
    mine = [c.index for c in analysis.conflicts if name in c.sides]
    if mine:
        facts.append(("conflicts", _some([str(k) for k in mine])))
    return [(k, v) for k, v in facts if v]


def op_facts(analysis: Analysis, op: int) -> Facts:
    """What an op computes, and where it is written."""
    program, frame = analysis.program, source_lines.op_frame(analysis.program, op)
    shapes = [
        f"{program.value_name[v]} [{', '.join(map(str, program.dims(v)))}]"
        for v in program.results(op)
    ]
    facts = [
        ("op", op_label(analysis, op)),
        ("gives", _some(shapes)),
        ("line", frame.short or "unknown"),
        ("source", source_lines.source_text(frame)),
    ]
    return [(k, v) for k, v in facts if v]


def conflict_facts(analysis: Analysis, conflict: int) -> Facts:
    """Everything about one conflict."""
    found = analysis.conflicts[conflict]
    owner = analysis.compatibility_sets[found.set]
    place = found.places[0]
    program = analysis.program
    op = use_op(analysis, place.use) if place.use >= 0 else int(program.value_op[place.value])
    frame = source_lines.op_frame(program, op)
    tied = [
        s.index
        for s in analysis.compatibility_sets
        if s.resolution == owner.resolution and s.index != owner.index
    ]
    boxes = boxed_with(analysis, conflict)
    facts = [
        ("conflict", f"{conflict}, colour {analysis.colour_name[found.colour]}"),
        ("meets on", _some([_place(analysis, p) for p in found.places], 1)),
        ("side 0", _side(analysis, found.sides[0])),
        ("side 1", _side(analysis, found.sides[1])),
        ("set", f"{owner.index}, {len(owner.conflicts)} conflicts settled by one bit"),
        (
            "tied sets",
            _some([str(s) for s in tied]) + (" (repeated layers, same bit)" if tied else ""),
        ),
        ("boxed with", _some([f"{k} ({place_text(analysis, k)})" for k in boxes])),
        ("line", frame.short or "unknown"),
        ("source", source_lines.source_text(frame)),
    ]
    return [(k, v) for k, v in facts if v]


def chain(analysis: Analysis, conflict: int) -> list[int]:
    """The shortest chain of M that gives both names of a conflict one colour.

    Links may be followed in either direction.
    """
    start, goal = analysis.conflicts[conflict].sides
    beside: dict[int, list[int]] = {}
    for a, b in zip(analysis.names.source.tolist(), analysis.names.target.tolist(), strict=True):
        beside.setdefault(a, []).append(b)
        beside.setdefault(b, []).append(a)
    came: dict[int, int] = {start: -1}
    queue = deque([start])
    while queue and goal not in came:
        here = queue.popleft()
        for there in beside.get(here, ()):
            if there not in came:
                came[there] = here
                queue.append(there)
    path: list[int] = []
    here = goal if goal in came else -1
    while here >= 0:
        path.append(here)
        here = came[here]
    return path[::-1]


def boxed_with(analysis: Analysis, conflict: int) -> list[int]:
    """Conflicts one box away: M takes both names of one to both names of the other."""
    dims = analysis.names
    after = [
        {int(n) for n in dims.successor[dims.ptr[name] : dims.ptr[name + 1]]}
        for name in analysis.conflicts[conflict].sides
    ]
    found = []
    for k in analysis.compatibility_sets[analysis.conflicts[conflict].set].conflicts:
        other = analysis.conflicts[k]
        down = other.sides[0] in after[0] and other.sides[1] in after[1]
        mine = analysis.conflicts[conflict].sides
        up = all(
            m in dims.successor[dims.ptr[o] : dims.ptr[o + 1]]
            for m, o in zip(mine, other.sides, strict=True)
        )
        if k != conflict and (down or up):
            found.append(k)
    return found


def conflicts_frame(analysis: Analysis) -> pd.DataFrame:
    """One row a conflict."""
    rows = []
    for c in analysis.conflicts:
        place = c.places[0]
        op = (
            use_op(analysis, place.use)
            if place.use >= 0
            else int(analysis.program.value_op[place.value])
        )
        rows.append(
            {
                "conflict": c.index,
                "colour": analysis.colour_name[c.colour],
                "tensor": place_text(analysis, c.index),
                "dims": f"{place.first_dim} × {place.second_dim}",
                "side 0": analysis.name_text[c.sides[0]],
                "side 1": analysis.name_text[c.sides[1]],
                "set": c.set,
                "bit": analysis.compatibility_sets[c.set].resolution,
                "line": where(analysis, op),
            }
        )
    return pd.DataFrame(
        rows,
        columns=["conflict", "colour", "tensor", "dims", "side 0", "side 1", "set", "bit", "line"],
    )


def _place(analysis: Analysis, place: Place) -> str:
    value, use, first, second = place
    program = analysis.program
    shape = ", ".join(map(str, program.dims(value)))
    text = f"{program.value_name[value]} [{shape}], dims {first} and {second}"
    return text if use < 0 else f"{text}, as used in {op_label(analysis, use_op(analysis, use))}"


def _side(analysis: Analysis, name: int) -> str:
    return f"{analysis.name_text[name]} of {op_label(analysis, int(analysis.names.op[name]))}"


def _some(texts: list[str], limit: int = 6) -> str:
    more = len(texts) - limit
    return "; ".join(texts[:limit]) + (f"; and {more} more" if more > 0 else "")
