"""The dimension graph as a networkx graph, for questions that this package does not ask.

``analysis.to_networkx()`` makes it. Nodes and edges hold plain Python numbers and strings, so that
``networkx.write_graphml`` and ``networkx.node_link_data`` take them as they are.

Reference: TOAST sections 3.1 to 3.4.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from toast_lab.ir.program import FACTOR_CLASSES, Program
from toast_lab.nda.names import Names
from toast_lab.text import line_text

if TYPE_CHECKING:
    import networkx

MAP, CONFLICT = "M", "conflict"  #: kinds of edges, and their keys


def name_sides(analysis: Any) -> np.ndarray:
    """[N] side of each name in most of its conflicts, -1 where it has none.

    The sides of tied sets are aligned, so that a side is the bit of a resolution.
    """
    side_votes = np.zeros((analysis.names.n, 2), dtype=np.int64)
    for conflict in analysis.conflicts:
        flipped = analysis.compatibility_sets[conflict.set].flipped
        side_votes[list(conflict.sides), [int(flipped), int(not flipped)]] += 1
    return np.where(side_votes.any(axis=1), side_votes[:, 1] > side_votes[:, 0], -1)


def networkx_graph(analysis: Any) -> networkx.MultiDiGraph:
    """Build the graph of ``Analysis.to_networkx``, whose docstring lists all attributes."""
    import networkx

    graph = networkx.MultiDiGraph(name=analysis.program.name)
    graph.add_nodes_from(_nodes(analysis))
    graph.add_edges_from(_map_edges(analysis))
    graph.add_edges_from(_conflict_edges(analysis))
    return graph


def _nodes(analysis: Any) -> list[tuple[str, dict[str, Any]]]:
    names, program = analysis.names, analysis.program
    places = _first_places(program)
    side = name_sides(analysis).tolist()
    first_conflict: dict[int, Any] = {}
    for conflict in analysis.conflicts:
        for name in conflict.sides:
            first_conflict.setdefault(name, conflict)
    lines = program.source_lines()
    nodes = []
    for name, text in enumerate(analysis.name_text):
        op, colour = int(names.op[name]), int(analysis.colour[name])
        value, dim, on = places.get(name, (-1, -1, ""))
        conflict = first_conflict.get(name)
        set_index = -1 if conflict is None else conflict.set
        resolution = -1 if conflict is None else analysis.compatibility_sets[set_index].resolution
        nodes.append(
            (
                text,
                {
                    "index": name,
                    "colour": analysis.colour_name[colour],
                    "group": analysis.group_name[int(analysis.group[colour])],
                    "size": int(names.size[name]),
                    "shardable": bool(names.shardable[name]),
                    "factor_class": FACTOR_CLASSES[int(program.factor_class[name])],
                    "op": op,
                    "op_kind": "argument" if op < program.n_arguments else program.kind[op],
                    "value": program.value_name[value] if value >= 0 else "",
                    "dim": dim,
                    "on": on,
                    "compatibility_set": int(set_index),
                    "resolution": int(resolution),
                    "side": int(side[name]),
                    "source_line": lines[op],
                },
            )
        )
    return nodes


def _first_places(program: Program) -> dict[int, tuple[int, int, str]]:
    """(value, dim, "definition" or "use") where each name is first seen, definitions first."""
    places: dict[int, tuple[int, int, str]] = {}
    for value in range(program.n_values):
        begin = int(program.shape_ptr[value])
        for dim in range(len(program.def_names(value))):
            for name in program.def_dim_minor[begin + dim]:
                places.setdefault(int(name), (value, dim, "definition"))
    for use, value in enumerate(program.use_value.tolist()):
        begin = int(program.use_dim_ptr[use])
        for dim in range(len(program.use_names(use))):
            for name in program.use_dim_factors[begin + dim]:
                places.setdefault(int(name), (value, dim, "use"))
    return places


def _map_edges(analysis: Any) -> list[tuple[str, str, str, dict[str, Any]]]:
    names, text = analysis.names, analysis.name_text
    passed = _passed_values(names)
    program = names.program
    edges = []
    for pair in zip(names.source.tolist(), names.target.tolist(), strict=True):
        values = passed[pair]
        source, target = pair
        edges.append(
            (
                text[source],
                text[target],
                MAP,
                {
                    "kind": MAP,
                    "value": program.value_name[values[0]],
                    "bytes": sum(program.nbytes(value) for value in values),
                    "next_round": bool(names.op[source] >= names.op[target]),
                },
            )
        )
    return edges


def _passed_values(names: Names) -> dict[tuple[int, int], list[int]]:
    """For each edge of M, the values that go from the op of its source to that of its target."""
    program = names.program
    passed: dict[tuple[int, int], list[int]] = defaultdict(list)
    for use, value in enumerate(program.use_value.tolist()):
        definition_begin = int(program.shape_ptr[value])
        use_begin = int(program.use_dim_ptr[use])
        for dim in range(len(program.use_names(use))):
            for pair in zip(
                program.def_dim_minor[definition_begin + dim],
                program.use_dim_factors[use_begin + dim],
                strict=False,  # the minor factors of a merged dim flow only to equal ones
            ):
                values = passed[int(pair[0]), int(pair[1])]
                if value not in values:
                    values.append(value)
    return passed


def _conflict_edges(analysis: Any) -> list[tuple[str, str, str, dict[str, Any]]]:
    program, text = analysis.program, analysis.name_text
    edges = []
    for conflict in analysis.conflicts:
        place = conflict.places[0]
        edges.append(
            (
                text[conflict.sides[0]],
                text[conflict.sides[1]],
                CONFLICT,
                {
                    "kind": CONFLICT,
                    "conflict": int(conflict.index),
                    "compatibility_set": int(conflict.set),
                    "resolution": int(analysis.compatibility_sets[conflict.set].resolution),
                    "value": program.value_name[place.value],
                    "on": "definition" if place.use < 0 else "use",
                    "first_dim": int(place.first_dim),
                    "second_dim": int(place.second_dim),
                    "n_places": len(conflict.places),
                    "source_line": line_text(program.where(place.op(program))),
                },
            )
        )
    return edges
