"""Deterministic lane layout of the coloured dimension graph.

A colour group is a column (lane); program order runs down. Where a colour has conflicts its lane
splits into two tracks, side 0 and side 1 of the compatibility set; where the conflict ends the
tracks join again. M never leaves a colour and always runs down, so no edge crosses from lane to
lane and no two runs look different.

What differs between levels is only what a row is: a part of the program (``colours``), a function
(``functions``), a source line (``lines``) or one op (``names``). All but the last fold the names
that share a row, a lane and a track into one node, so that repeated layers lie on top of each
other.

Start reading at ``graph_layout``. Reference: TOAST sections 3.2, 3.3 and 3.5.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.colouring import CompatibilitySet
from toast_lab.conflicts.networkx_graph import name_sides as sides
from toast_lab.views.graph_rows import (
    GraphRow,
    op_scopes,
    rows,
    start_level,
)
from toast_lab.views.palette import ColourStyle, style

MAX_LANES = 40
# a lane with conflicts is this much wider than one without
CONFLICT_LANE_WIDTH = 2.8
# distance of side 0 and side 1 from the middle of their lane
SIDE_DISTANCE = 0.75


class Lane(NamedTuple):
    """One column of the drawing, for a colour group."""

    group: int
    label: str
    #: middle of the column
    x: float
    width: float
    style: ColourStyle
    n_names: int
    n_conflicts: int


class GraphNode(NamedTuple):
    """One name, or all names that share a row, a lane and a track."""

    x: float
    y: int
    lane: int
    #: 0 or 1 where names conflict, else -1
    track: int
    names: tuple[int, ...]
    #: short text beside the marker
    label: str
    #: description in one line
    title: str
    sizes: str


class Edge(NamedTuple):
    """The edges of M between two nodes, drawn as one line."""

    source: int
    target: int
    #: number of pairs of names
    weight: int
    #: start, middle and end of a parabola
    xs: tuple[float, float, float]
    ys: tuple[float, float, float]


class ConflictEdge(NamedTuple):
    """The conflicts between two nodes, drawn as one line."""

    source: int
    target: int
    conflicts: tuple[int, ...]
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    title: str

    @property
    def nodes(self) -> tuple[int, int]:
        """Its two ends."""
        return self.source, self.target


class Outline(NamedTuple):
    """Compatibility sets drawn around their names."""

    sets: tuple[int, ...]
    conflicts: tuple[int, ...]
    nodes: tuple[int, ...]
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    label: str
    title: str
    label_is_below: bool
    """A marker stands where the label would be above."""

    @property
    def label_place(self) -> tuple[float, float]:
        """Left end and height of the edge on which the label stands, or hangs if it is below."""
        return min(self.xs), (max if self.label_is_below else min)(self.ys)


class GraphLayout(NamedTuple):
    """A drawing of the dimension graph, as data."""

    level: str
    lanes: tuple[Lane, ...]
    rows: tuple[GraphRow, ...]
    nodes: tuple[GraphNode, ...]
    edges: tuple[Edge, ...]
    conflicts: tuple[ConflictEdge, ...]
    outlines: tuple[Outline, ...]
    #: [N] node of each name, -1 if not shown
    node_of: np.ndarray
    #: what is shown, and what is left out and why
    note: str


class GraphFilter(NamedTuple):
    """Which part of a dimension graph is shown; by default everything that has a lane.

    Attributes:
        focus: names to centre on; only names within ``hops`` of them are shown.
        hops: see ``focus``.
        conflicts_only: show only names that conflict, and those one step away from them.
        singles: also show colours of a single name.
        groups: show only these colour groups.
        scopes: show only code that is written in these functions (``graph_rows.scopes``).
    """

    focus: Sequence[int] = ()
    hops: int = 2
    conflicts_only: bool = False
    singles: bool = False
    groups: Sequence[int] | None = None
    scopes: Sequence[str] | None = None


EVERYTHING = GraphFilter()


def lane_groups(analysis: Analysis, *, singles: bool = False) -> list[int]:
    """Colour groups worth a lane, those with conflicts and many names first.

    Groups of one name (dims that no other value shares, such as those of a constant) are left out
    unless asked for.
    """
    conflicts = conflicts_of_groups(analysis)
    shown = [group for group in analysis.groups if group.n_names > (0 if singles else 1)]
    shown.sort(key=lambda group: (-conflicts[group.index], -group.n_names, group.index))
    return [group.index for group in shown]


def conflicts_of_groups(analysis: Analysis) -> Counter[int]:
    """How many conflicts each colour group has."""
    return Counter(int(analysis.group[conflict.colour]) for conflict in analysis.conflicts)


def lane_styles(analysis: Analysis) -> dict[int, ColourStyle]:
    """Style of every colour group that has a lane; the same in every picture, table and listing."""
    return {group: style(index) for index, group in enumerate(lane_groups(analysis))}


def neighbourhood(analysis: Analysis, names: Iterable[int], hops: int) -> set[int]:
    """Names at most ``hops`` steps of M or of a conflict away, in either direction."""
    neighbours = linked_names(analysis)
    for first, second in analysis.pairs:
        neighbours[first].append(second)
        neighbours[second].append(first)
    reached = set(names)
    border = set(reached)
    for _ in range(hops):
        border = {other for name in border for other in neighbours[name]} - reached
        reached |= border
    return reached


def linked_names(analysis: Analysis) -> defaultdict[int, list[int]]:
    """For each name, the names that M links it with, in either direction."""
    neighbours: defaultdict[int, list[int]] = defaultdict(list)
    for name, other in zip(
        analysis.names.source.tolist(), analysis.names.target.tolist(), strict=True
    ):
        neighbours[name].append(other)
        neighbours[other].append(name)
    return neighbours


def graph_layout(
    analysis: Analysis,
    level: str | None = None,
    only: GraphFilter = EVERYTHING,
    *,
    unfolded: Collection[str] = (),
) -> GraphLayout:
    """Lay out the dimension graph.

    Args:
        analysis: the analysed program.
        level: a key of ``LEVELS``; by default ``start_level``.
        only: which part of the graph is shown.
        unfolded: keys of rows whose runs are shown one by one; ``*`` unfolds all
            (``graph_rows.rows``).
    """
    level = level or start_level(analysis)
    groups = lane_groups(analysis, singles=only.singles)
    if only.groups is not None:
        groups = [group for group in groups if group in only.groups]
    shown_names = _shown_names(analysis, groups[:MAX_LANES], only)
    present = set(analysis.group[analysis.colour[shown_names]].tolist())
    lanes = _lanes(analysis, [group for group in groups[:MAX_LANES] if group in present])
    ops = np.unique(analysis.names.op[shown_names]).tolist()
    table, row_of = rows(analysis, level, ops, unfolded)
    nodes, node_of = _nodes(analysis, level, shown_names, lanes=lanes, row_of=row_of)
    return GraphLayout(
        level=level,
        lanes=lanes,
        rows=table,
        nodes=nodes,
        edges=_edges(analysis, nodes, node_of),
        conflicts=_conflict_edges(analysis, nodes, node_of),
        outlines=_outlines(analysis, nodes, node_of),
        node_of=node_of,
        note=_note(analysis, len(shown_names), len(groups), only),
    )


def _shown_names(analysis: Analysis, groups: Sequence[int], only: GraphFilter) -> np.ndarray:
    mask = np.isin(analysis.group[analysis.colour], groups) & (analysis.names.size > 1)
    if len(only.focus):
        mask &= _near(analysis, only.focus, only.hops)
    if only.conflicts_only:
        mask &= _near(analysis, itertools.chain(*analysis.pairs), 1)
    if only.scopes is not None:
        mask &= np.isin(op_scopes(analysis), list(only.scopes))[analysis.names.op]
    return np.flatnonzero(mask)


def _near(analysis: Analysis, names: Iterable[int], hops: int) -> np.ndarray:
    """[N] whether each name is at most ``hops`` steps away from one of ``names``."""
    near = np.zeros(analysis.names.n, dtype=bool)
    near[list(neighbourhood(analysis, names, hops))] = True
    return near


def _lanes(analysis: Analysis, groups: Sequence[int]) -> tuple[Lane, ...]:
    styles = lane_styles(analysis)
    conflicts = conflicts_of_groups(analysis)
    lanes: list[Lane] = []
    left_edge = 0.0
    for index in groups:
        group = analysis.groups[index]
        width = CONFLICT_LANE_WIDTH if conflicts[index] else 1.0
        mirrored = len(group.colours)
        lanes.append(
            Lane(
                group=index,
                label=group.name if mirrored == 1 else f"{group.name} ×{mirrored}",
                x=left_edge + width / 2,
                width=width,
                style=styles.get(index, style(9)),
                n_names=group.n_names,
                n_conflicts=conflicts[index],
            )
        )
        left_edge += width
    return tuple(lanes)


def _nodes(
    analysis: Analysis,
    level: str,
    shown_names: np.ndarray,
    *,
    lanes: tuple[Lane, ...],
    row_of: dict[int, int],
) -> tuple[tuple[GraphNode, ...], np.ndarray]:
    names_table, side = analysis.names, sides(analysis)
    lane_of = {lane.group: lane_index for lane_index, lane in enumerate(lanes)}
    names_of_cell: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for name in shown_names.tolist():
        lane_index = lane_of[int(analysis.group[analysis.colour[name]])]
        names_of_cell[row_of[names_table.op[name]], lane_index, int(side[name])].append(name)
    node_of = np.full(names_table.n, -1, dtype=np.int64)
    nodes: list[GraphNode] = []
    for (row, lane_index, track), names in sorted(names_of_cell.items()):
        middle = lanes[lane_index].x + {-1: 0.0, 0: -SIDE_DISTANCE, 1: SIDE_DISTANCE}[track]
        nodes_of_cell = [[name] for name in names] if level == "names" else [names]
        spacing = min(0.13, 0.3 / len(nodes_of_cell))
        for node_index, node_names in enumerate(nodes_of_cell):
            name_text = analysis.name_text[node_names[0]]
            folded = f"{len(node_names)} names of {analysis.dim_text(node_names[0])}"
            sizes = np.unique(names_table.size[node_names]).tolist()
            node_of[node_names] = len(nodes)
            nodes.append(
                GraphNode(
                    x=round(middle + spacing * (node_index - (len(nodes_of_cell) - 1) / 2), 4),
                    y=row,
                    lane=lane_index,
                    track=track,
                    names=tuple(node_names),
                    label=name_text.rpartition("#")[2] if level == "names" else str(len(names)),
                    title=name_text if len(node_names) == 1 else folded,
                    sizes=f"{sizes[0]}–{sizes[-1]}" if len(sizes) > 1 else str(sizes[0]),
                )
            )
    return tuple(nodes), node_of


def _edges(
    analysis: Analysis, nodes: tuple[GraphNode, ...], node_of: np.ndarray
) -> tuple[Edge, ...]:
    sources = node_of[analysis.names.source].tolist()
    targets = node_of[analysis.names.target].tolist()
    weights = Counter(
        (source, target)
        for source, target in zip(sources, targets, strict=True)
        if source >= 0 and target >= 0 and source != target
    )
    rows_at: dict[float, list[int]] = defaultdict(list)
    for node in nodes:
        bisect.insort(rows_at[node.x], node.y)
    return tuple(
        Edge(source, target, weight, *_bow(nodes[source], nodes[target], rows_at))
        for (source, target), weight in sorted(weights.items())
    )


def _bow(
    source: GraphNode, target: GraphNode, rows_at: dict[float, list[int]]
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """A straight line, or a bow around the nodes in between."""
    top, bottom = sorted((source.y, target.y))
    straight = bottom - top == 1
    if source.x == target.x:
        column = rows_at[source.x]
        straight = bisect.bisect_left(column, bottom) == bisect.bisect_right(column, top)
    middle = (source.x + target.x) / 2
    if top != bottom and not straight:
        tracks = (source.track, target.track)
        away_from_other_track = -1 if 0 in tracks and 1 not in tracks else 1
        bow_depth = min(0.3, 0.1 + 0.04 * math.log2(1 + bottom - top))
        middle = round(middle + away_from_other_track * bow_depth, 4)
    line_ys = (float(source.y), (source.y + target.y) / 2, float(target.y))
    return (source.x, middle, target.x), line_ys


def _conflict_edges(
    analysis: Analysis, nodes: tuple[GraphNode, ...], node_of: np.ndarray
) -> tuple[ConflictEdge, ...]:
    conflicts_between: dict[tuple[int, int], list[int]] = defaultdict(list)
    for conflict in analysis.conflicts:
        low, high = sorted(node_of[list(conflict.sides)].tolist())
        if low >= 0:
            conflicts_between[low, high].append(conflict.index)
    crowded = {(node.y, node.lane) for node in nodes if node.track < 0}
    edges = []
    for (source, target), conflicts in sorted(conflicts_between.items()):
        start, end = nodes[source], nodes[target]
        if source == target:
            # Both names of a conflict are in one node: a short bar still shows the conflict
            line_xs: tuple[float, ...] = (start.x - 0.15, start.x + 0.15)
            line_ys: tuple[float, ...] = (start.y + 0.3, start.y + 0.3)
        else:
            # Where names are folded, names without a side may stand in between: pass above them
            shares = np.linspace(0, 1, 9)
            bow_height = 0.34 if (start.y, start.lane) in crowded else 0.0
            xs = start.x + (end.x - start.x) * shares
            ys = start.y + (end.y - start.y) * shares - bow_height * 4 * shares * (1 - shares)
            line_xs, line_ys = tuple(xs.round(4).tolist()), tuple(ys.round(4).tolist())
        tensors = list(dict.fromkeys(place_text(analysis, conflict) for conflict in conflicts))
        count = len(conflicts)
        edge_title = f"{count} conflicts" if count > 1 else f"conflict {conflicts[0]}"
        edges.append(
            ConflictEdge(
                source=source,
                target=target,
                conflicts=tuple(conflicts),
                xs=line_xs,
                ys=line_ys,
                title=f"{edge_title} on {', '.join(tensors[:4])}{' …' if len(tensors) > 4 else ''}",
            )
        )
    return tuple(edges)


def place_text(analysis: Analysis, conflict: int) -> str:
    """The tensor on which two names meet: ``a`` where it is defined, ``a in matmul`` at a use."""
    place, program = analysis.conflicts[conflict].places[0], analysis.program
    tensor = program.value_name[place.value]
    return tensor if place.use < 0 else f"{tensor} in {program.kind[place.op(program)]}"


def _outlines(
    analysis: Analysis, nodes: tuple[GraphNode, ...], node_of: np.ndarray
) -> tuple[Outline, ...]:
    sets_of_nodes: dict[tuple[int, ...], list[CompatibilitySet]] = defaultdict(list)
    for compatible in analysis.compatibility_sets:
        sides = [analysis.conflicts[conflict].sides for conflict in compatible.conflicts]
        set_nodes = tuple(sorted({*node_of[np.array(sides)].ravel().tolist()} - {-1}))
        if set_nodes:
            sets_of_nodes[set_nodes].append(compatible)
    outlines = []
    for set_nodes, sets in sorted(sets_of_nodes.items()):
        xs = [nodes[node].x for node in set_nodes]
        ys = [nodes[node].y for node in set_nodes]
        left, right = min(xs) - 0.22, max(xs) + 0.22
        top, bottom = min(ys) - 0.42, max(ys) + 0.42
        count = sum(len(compatible.conflicts) for compatible in sets)
        outline_label = f"set {sets[0].index}" if len(sets) == 1 else f"{len(sets)} sets"
        outlines.append(
            Outline(
                sets=tuple(compatible.index for compatible in sets),
                conflicts=tuple(
                    conflict for compatible in sets for conflict in compatible.conflicts
                ),
                nodes=set_nodes,
                xs=(left, right, right, left),
                ys=(top, top, bottom, bottom),
                label=outline_label,
                title=f"{outline_label} · {count} conflict{'s' if count > 1 else ''}",
                label_is_below=(
                    _has_marker(nodes, (left, right), min(ys) - 1)
                    and not _has_marker(nodes, (left, right), max(ys) + 1)
                ),
            )
        )
    return tuple(outlines)


def _has_marker(nodes: tuple[GraphNode, ...], between: tuple[float, float], row: float) -> bool:
    return any(abs(node.y - row) < 0.5 and between[0] < node.x < between[1] for node in nodes)


def _note(analysis: Analysis, name_count: int, group_count: int, only: GraphFilter) -> str:
    all_names = int((analysis.names.size > 1).sum())
    remarks = [f"{name_count:,} of {all_names:,} names"]
    single_count = sum(group.n_names == 1 for group in analysis.groups)
    if single_count and not only.singles:
        remarks.append(f"{single_count:,} colours of a single name hidden")
    if group_count > MAX_LANES:
        remarks.append(f"the first {MAX_LANES} of {group_count} colour groups")
    if len(only.focus):
        hops = "hop" if only.hops == 1 else "hops"
        remarks.append(f"within {only.hops} {hops} of the selection")
    if only.conflicts_only:
        remarks.append("conflicts and their neighbours only")
    if only.groups is not None:
        remarks.append(f"only {', '.join(analysis.groups[group].name for group in only.groups)}")
    if only.scopes is not None:
        remarks.append(f"only in {', '.join(only.scopes)}")
    return " · ".join(remarks)


def chain_path(layout: GraphLayout, names: Sequence[int]) -> list[int]:
    """The nodes that a chain of names passes through, in order.

    Names that are not shown are left out.
    """
    nodes = layout.node_of[list(names)].tolist() if names else []
    return [node for node, _ in itertools.groupby(node for node in nodes if node >= 0)]
