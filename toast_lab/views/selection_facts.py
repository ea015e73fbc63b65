"""Facts about one name, op or conflict, as pairs of (label, text) and as frames."""

from __future__ import annotations

from collections import deque

import pandas as pd

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.dimension_graph import ConflictPlace
from toast_lab.ir import source_lines
from toast_lab.ir.program import FACTOR_CLASSES
from toast_lab.views.graph_layout import linked_names, place_text
from toast_lab.views.graph_rows import op_label, where

Facts = list[tuple[str, str]]
CONFLICT_COLUMNS = [
    "conflict",
    "colour",
    "tensor",
    "dims",
    "side 0",
    "side 1",
    "set",
    "bit",
    "line",
]


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
    following = names_table.op[names_table.followers(name)].tolist()
    facts = [
        ("name", analysis.name_text[name]),
        ("colour", analysis.dim_text(name)),
        ("size", str(int(names_table.size[name]))),
        ("splits", op_label(analysis, op)),
        ("defines", "; ".join(defined) or "nothing: it is reduced away"),
        ("uses", "; ".join(used_by) or "none"),
        ("leads to", _some([op_label(analysis, user) for user in following]) or "nowhere"),
        ("kind of factor", FACTOR_CLASSES[program.factor_class[name]].replace("_", " ")),
        *_source_facts(analysis, op),
        (
            "conflicts",
            _some([str(record.index) for record in analysis.conflicts if name in record.sides]),
        ),
    ]
    return [(label, value) for label, value in facts if value]


def _source_facts(analysis: Analysis, op: int) -> Facts:
    user_frame = source_lines.op_frame(analysis.program, op)
    return [
        ("line", user_frame.short or "unknown"),
        ("source", source_lines.source_text(user_frame)),
    ]


def op_facts(analysis: Analysis, op: int) -> Facts:
    """What an op computes, and where it is written."""
    program = analysis.program
    shapes = [
        f"{program.value_name[value]} {list(program.dims(value))}" for value in program.results(op)
    ]
    facts = [("op", op_label(analysis, op)), ("gives", _some(shapes))]
    return [(label, value) for label, value in facts + _source_facts(analysis, op) if value]


def conflict_facts(analysis: Analysis, conflict: int) -> Facts:
    """Everything about one conflict."""
    record = analysis.conflicts[conflict]
    owning_set = analysis.compatibility_sets[record.set]
    tied_sets = [
        str(other.index)
        for other in analysis.compatibility_sets
        if other.resolution == owning_set.resolution and other.index != owning_set.index
    ]
    boxed_conflicts = boxed_with(analysis, conflict)
    facts = [
        ("conflict", f"{conflict}, colour {analysis.colour_name[record.colour]}"),
        ("meets on", _some([_place(analysis, place) for place in record.places], 1)),
        ("side 0", _side(analysis, record.sides[0])),
        ("side 1", _side(analysis, record.sides[1])),
        ("set", f"{owning_set.index}, {len(owning_set.conflicts)} conflicts settled by one bit"),
        (
            "tied sets",
            _some(tied_sets) + (" (repeated layers, same bit)" if tied_sets else ""),
        ),
        (
            "boxed with",
            _some([f"{boxed} ({place_text(analysis, boxed)})" for boxed in boxed_conflicts]),
        ),
        *_source_facts(analysis, record.places[0].op(analysis.program)),
    ]
    return [(label, value) for label, value in facts if value]


def chain(analysis: Analysis, conflict: int) -> list[int]:
    """The shortest chain of M that gives both names of a conflict one colour.

    Links may be followed in either direction.
    """
    start_name, goal_name = analysis.conflicts[conflict].sides
    neighbours = linked_names(analysis)
    previous: dict[int, int] = {start_name: -1}
    queue = deque([start_name])
    while queue and goal_name not in previous:
        name = queue.popleft()
        for other in neighbours[name]:
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
    given_conflict = analysis.conflicts[conflict]

    def are_linked(sources: tuple[int, int], targets: tuple[int, int]) -> bool:
        return all(
            target in analysis.names.followers(source)
            for source, target in zip(sources, targets, strict=True)
        )

    return [
        candidate
        for candidate in analysis.compatibility_sets[given_conflict.set].conflicts
        if candidate != conflict
        and (
            are_linked(given_conflict.sides, analysis.conflicts[candidate].sides)
            or are_linked(analysis.conflicts[candidate].sides, given_conflict.sides)
        )
    ]


def conflicts_frame(analysis: Analysis) -> pd.DataFrame:
    """One row per conflict."""
    table = []
    for conflict in analysis.conflicts:
        place = conflict.places[0]
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
                "line": where(analysis, place.op(analysis.program)),
            }
        )
    return pd.DataFrame(table, columns=CONFLICT_COLUMNS)


def _place(analysis: Analysis, place: ConflictPlace) -> str:
    program = analysis.program
    tensor = f"{program.value_name[place.value]} {list(program.dims(place.value))}"
    meeting = f"{tensor}, dims {place.first_dim} and {place.second_dim}"
    if place.use < 0:
        return meeting
    return f"{meeting}, as used in {op_label(analysis, place.op(program))}"


def _side(analysis: Analysis, name: int) -> str:
    return f"{analysis.name_text[name]} of {op_label(analysis, int(analysis.names.op[name]))}"


def _some(texts: list[str], limit: int = 6) -> str:
    more = len(texts) - limit
    return "; ".join(texts[:limit]) + (f"; and {more} more" if more > 0 else "")
