"""Facts about one name, op or conflict, as pairs of (label, text) and as frames."""

from __future__ import annotations

from collections import deque

import numpy as np
import pandas as pd

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.dimension_graph import ConflictPlace
from toast_lab.ir.program import FACTOR_CLASSES
from toast_lab.views import source_lines
from toast_lab.views.graph_layout import op_label, place_text, where

Facts = list[tuple[str, str]]


def use_op(analysis: Analysis, use: int) -> int:
    """The op that a use belongs to."""
    return int(np.searchsorted(analysis.program.use_ptr, use, side="right")) - 1


def name_facts(analysis: Analysis, name: int) -> Facts:
    """Everything about one dimension name."""
    program, names_table = analysis.program, analysis.names
    op = int(names_table.op[name])
    defined = [
        f"{program.value_name[value]} dim {dim} of [{', '.join(map(str, program.dims(value)))}]"
        for value in program.results(op)
        for dim, dim_name in enumerate(program.def_names(value))
        if dim_name == name
    ]
    used_by = [
        f"{program.value_name[int(program.use_value[use])]} dim {dim}"
        for use in program.uses(op)
        for dim, dim_name in enumerate(program.use_names(use))
        if dim_name == name
    ]
    following = [
        int(dim_name)
        for dim_name in names_table.successor[names_table.ptr[name] : names_table.ptr[name + 1]]
    ]
    user_frame = source_lines.op_frame(program, op)
    facts = [
        ("name", analysis.name_text[name]),
        ("colour", analysis.dim_text(name)),
        ("size", str(int(names_table.size[name]))),
        ("splits", op_label(analysis, op)),
        ("defines", "; ".join(defined) or "nothing: it is reduced away"),
        ("uses", "; ".join(used_by) or "none"),
        (
            "goes on to",
            _some([op_label(analysis, int(names_table.op[dim_name])) for dim_name in following])
            or "nowhere",
        ),
        ("kind of factor", FACTOR_CLASSES[int(program.factor_class[name])].replace("_", " ")),
        ("line", user_frame.short or "unknown"),
        ("source", source_lines.source_text(user_frame)),
    ]
    own_conflicts = [conflict.index for conflict in analysis.conflicts if name in conflict.sides]
    if own_conflicts:
        facts.append(("conflicts", _some([str(conflict) for conflict in own_conflicts])))
    return [(label, value) for label, value in facts if value]


def op_facts(analysis: Analysis, op: int) -> Facts:
    """What an op computes, and where it is written."""
    program, user_frame = analysis.program, source_lines.op_frame(analysis.program, op)
    shapes = [
        f"{program.value_name[value]} [{', '.join(map(str, program.dims(value)))}]"
        for value in program.results(op)
    ]
    facts = [
        ("op", op_label(analysis, op)),
        ("gives", _some(shapes)),
        ("line", user_frame.short or "unknown"),
        ("source", source_lines.source_text(user_frame)),
    ]
    return [(label, value) for label, value in facts if value]


def conflict_facts(analysis: Analysis, conflict: int) -> Facts:
    """Everything about one conflict."""
    record = analysis.conflicts[conflict]
    owner = analysis.compatibility_sets[record.set]
    first_place = record.places[0]
    program = analysis.program
    op = (
        use_op(analysis, first_place.use)
        if first_place.use >= 0
        else int(program.value_op[first_place.value])
    )
    user_frame = source_lines.op_frame(program, op)
    tied_sets = [
        other.index
        for other in analysis.compatibility_sets
        if other.resolution == owner.resolution and other.index != owner.index
    ]
    boxed_conflicts = boxed_with(analysis, conflict)
    facts = [
        ("conflict", f"{conflict}, colour {analysis.colour_name[record.colour]}"),
        ("meets on", _some([_place(analysis, first_place) for first_place in record.places], 1)),
        ("side 0", _side(analysis, record.sides[0])),
        ("side 1", _side(analysis, record.sides[1])),
        ("set", f"{owner.index}, {len(owner.conflicts)} conflicts settled by one bit"),
        (
            "tied sets",
            _some([str(other) for other in tied_sets])
            + (" (repeated layers, same bit)" if tied_sets else ""),
        ),
        (
            "boxed with",
            _some([f"{number} ({place_text(analysis, number)})" for number in boxed_conflicts]),
        ),
        ("line", user_frame.short or "unknown"),
        ("source", source_lines.source_text(user_frame)),
    ]
    return [(label, text) for label, text in facts if text]


def chain(analysis: Analysis, conflict: int) -> list[int]:
    """The shortest chain of M that gives both names of a conflict one colour.

    Links may be followed in either direction.
    """
    start_name, goal_name = analysis.conflicts[conflict].sides
    neighbours: dict[int, list[int]] = {}
    for first, second in zip(
        analysis.names.source.tolist(), analysis.names.target.tolist(), strict=True
    ):
        neighbours.setdefault(first, []).append(second)
        neighbours.setdefault(second, []).append(first)
    previous: dict[int, int] = {start_name: -1}
    queue = deque([start_name])
    while queue and goal_name not in previous:
        name = queue.popleft()
        for other in neighbours.get(name, ()):
            if other not in previous:
                previous[other] = name
                queue.append(other)
    names: list[int] = []
    name = goal_name if goal_name in previous else -1
    while name >= 0:
        names.append(name)
        name = previous[name]
    return names[::-1]


def boxed_with(analysis: Analysis, conflict: int) -> list[int]:
    """Conflicts one box away: M takes both names of one to both names of the other."""
    table = analysis.names
    followers = [
        {int(follower) for follower in table.successor[table.ptr[name] : table.ptr[name + 1]]}
        for name in analysis.conflicts[conflict].sides
    ]
    boxed = []
    for candidate in analysis.compatibility_sets[analysis.conflicts[conflict].set].conflicts:
        other = analysis.conflicts[candidate]
        box_below = other.sides[0] in followers[0] and other.sides[1] in followers[1]
        own_sides = analysis.conflicts[conflict].sides
        box_above = all(
            own_name in table.successor[table.ptr[other_name] : table.ptr[other_name + 1]]
            for own_name, other_name in zip(own_sides, other.sides, strict=True)
        )
        if candidate != conflict and (box_below or box_above):
            boxed.append(candidate)
    return boxed


def conflicts_frame(analysis: Analysis) -> pd.DataFrame:
    """One row per conflict."""
    table = []
    for conflict in analysis.conflicts:
        place = conflict.places[0]
        op = (
            use_op(analysis, place.use)
            if place.use >= 0
            else int(analysis.program.value_op[place.value])
        )
        table.append(
            {
                "conflict": conflict.index,
                "colour": analysis.colour_name[conflict.colour],
                "tensor": place_text(analysis, conflict.index),
                "dims": f"{place.first_dim} × {place.second_dim}",
                "side 0": analysis.name_text[conflict.sides[0]],
                "side 1": analysis.name_text[conflict.sides[1]],
                "set": conflict.set,
                "bit": analysis.compatibility_sets[conflict.set].resolution,
                "line": where(analysis, op),
            }
        )
    return pd.DataFrame(
        table,
        columns=["conflict", "colour", "tensor", "dims", "side 0", "side 1", "set", "bit", "line"],
    )


def _place(analysis: Analysis, place: ConflictPlace) -> str:
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
