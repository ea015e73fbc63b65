"""Deterministic lane layout of the coloured dimension graph.

A colour group is a column (lane), program order runs down.  Where a colour has conflicts its lane
splits into two tracks, side 0 and side 1 of the compatibility set; where the conflict ends the
tracks join again.  M never leaves a colour and always runs down, so no edge crosses from lane to
lane and no two runs look different.

What differs between levels is only what a row is: a part of the program (``colours``), a function
(``functions``), a source line (``lines``) or one op (``names``).  All but the last fold the names
that share a row, a lane and a track into one node, so that repeated layers lie on top of each
other.

Start reading at ``graph_layout``.  Reference: TOAST sections 3.2, 3.3 and 3.5.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.views.graph_rows import (
    LEVELS,
    Row,
    op_label,
    op_scopes,
    phases,
    rows,
    start_level,
    where,
)
from toast_lab.views.palette import Style, style

__all__ = [
    "LEVELS",
    "ConflictEdge",
    "Edge",
    "GraphLayout",
    "Lane",
    "Node",
    "Outline",
    "Row",
    "chain_path",
    "graph_layout",
    "lane_groups",
    "lane_styles",
    "neighbourhood",
    "op_label",
    "phases",
    "place_text",
    "sides",
    "start_level",
    "where",
]

MAX_LANES = 40
WIDE = 2.8  # a lane with conflicts is this much wider than one without
TRACK = 0.75  # distance of side 0 and side 1 from the middle of their lane


class Lane(NamedTuple):
    """One column."""

    group: int
    label: str
    x: float  #: middle
    width: float
    style: Style
    n_names: int
    n_conflicts: int


class Node(NamedTuple):
    """One name, or all names that share a row, a lane and a track."""

    x: float
    y: int
    lane: int
    track: int  #: 0 or 1 where names conflict, else -1
    names: tuple[int, ...]
    label: str  #: short text beside the marker
    title: str  #: what it is, in a line
    sizes: str


class Edge(NamedTuple):
    """M between two nodes."""

    source: int
    target: int
    weight: int  #: pairs of names
    xs: tuple[float, float, float]  #: where a parabola begins, its middle, where it ends
    ys: tuple[float, float, float]


class ConflictEdge(NamedTuple):
    """Conflicts between two nodes."""

    source: int
    target: int
    conflicts: tuple[int, ...]
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    title: str


class Outline(NamedTuple):
    """Compatibility sets drawn around their names."""

    sets: tuple[int, ...]
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    label: str
    title: str


class GraphLayout(NamedTuple):
    """A drawing as data."""

    level: str
    lanes: tuple[Lane, ...]
    rows: tuple[Row, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    conflicts: tuple[ConflictEdge, ...]
    outlines: tuple[Outline, ...]
    node_of: np.ndarray  #: [N] node of each name, -1 if not shown
    note: str  #: what is left out and why


def lane_groups(analysis: Analysis, *, singles: bool = False) -> list[int]:
    """Colour groups worth a lane, those with conflicts and many names first.

    Groups of one name (dims that no other value shares, such as those of a constant) are left out
    unless asked for.
    """
    conflicts = Counter(int(analysis.group[c.colour]) for c in analysis.conflicts)
    wanted = [g for g in analysis.groups if g.n_names > 1 or (singles and g.n_names)]
    wanted.sort(key=lambda g: (-conflicts[g.index], -g.n_names, g.index))
    return [g.index for g in wanted]


def lane_styles(analysis: Analysis) -> dict[int, Style]:
    """Style of every colour group that has a lane; the same in every picture, table and listing."""
    return {g: style(i) for i, g in enumerate(lane_groups(analysis))}


def neighbourhood(analysis: Analysis, names: Iterable[int], hops: int) -> set[int]:
    """Names at most ``hops`` steps of M or of a conflict away, in either direction."""
    beside: dict[int, list[int]] = {}
    for a, b in [
        *zip(analysis.names.source.tolist(), analysis.names.target.tolist(), strict=True),
        *analysis.pairs,
    ]:
        beside.setdefault(a, []).append(b)
        beside.setdefault(b, []).append(a)
    reached = set(names)
    border = set(reached)
    for _ in range(hops):
        border = {b for a in border for b in beside.get(a, ())} - reached
        reached |= border
    return reached


def sides(analysis: Analysis) -> np.ndarray:
    """[N] side of each name in its conflicts, -1 where it has none.

    Tied sets are turned the same way.
    """
    votes = np.zeros((analysis.names.n, 2), dtype=np.int64)
    for conflict in analysis.conflicts:
        flipped = analysis.compatibility_sets[conflict.set].flipped
        for side, name in enumerate(conflict.sides):
            votes[name, side ^ int(flipped)] += 1
    return np.where(votes.sum(axis=1) == 0, -1, (votes[:, 1] > votes[:, 0]).astype(np.int64))


def graph_layout(
    analysis: Analysis,
    level: str | None = None,
    *,
    focus: Sequence[int] = (),
    hops: int = 2,
    conflicts_only: bool = False,
    singles: bool = False,
    groups: Sequence[int] | None = None,
    scopes: Sequence[str] | None = None,
    unfolded: Collection[str] = (),
) -> GraphLayout:
    """Lay the dimension graph out.

    Args:
        analysis: the analysed program.
        level: a key of ``LEVELS``; by default ``start_level``.
        focus: names to centre on; only names within ``hops`` of them are shown.
        hops: see ``focus``.
        conflicts_only: show only names that conflict, and those one step away from them.
        singles: show colours of a single name too.
        groups: show only these colour groups.
        scopes: show only what is written in these functions (``graph_rows.scopes``).
        unfolded: keys of rows whose runs are shown one by one; ``*`` unfolds all
            (``graph_rows.rows``).
    """
    level = level or start_level(analysis)
    shown_groups = lane_groups(analysis, singles=singles)
    if groups is not None:
        shown_groups = [g for g in shown_groups if g in set(groups)]
    keep = _kept(analysis, shown_groups[:MAX_LANES], focus, hops, conflicts_only, scopes)
    present = {int(g) for g in analysis.group[analysis.colour[keep]]}
    lane_of = {g: i for i, g in enumerate([g for g in shown_groups[:MAX_LANES] if g in present])}
    lanes = _lanes(analysis, lane_of)
    found, row_of = rows(
        analysis, level, sorted({int(o) for o in analysis.names.op[keep]}), unfolded
    )
    nodes, node_of = _nodes(analysis, level, keep, lane_of, lanes, row_of)
    return GraphLayout(
        level,
        lanes,
        found,
        nodes,
        _edges(analysis, nodes, node_of),
        _conflicts(analysis, nodes, node_of),
        _outlines(analysis, nodes, node_of),
        node_of,
        _note(
            analysis, keep, len(shown_groups), focus, hops, conflicts_only, singles, groups, scopes
        ),
    )


def _kept(
    analysis: Analysis,
    groups: Sequence[int],
    focus: Sequence[int],
    hops: int,
    only: bool,
    scopes: Sequence[str] | None,
) -> np.ndarray:
    mask = np.isin(analysis.group[analysis.colour], list(groups)) & (analysis.names.size > 1)
    for wanted, reach in (
        (list(focus), hops),
        ([n for p in analysis.pairs for n in p] if only else [], 1),
    ):
        if wanted or (only and reach == 1):
            near = np.zeros(analysis.names.n, dtype=bool)
            near[list(neighbourhood(analysis, wanted, reach))] = True
            mask &= near
    if scopes is not None:
        scope, wanted_scopes = op_scopes(analysis), set(scopes)
        inside = np.array([text in wanted_scopes for text in scope], dtype=bool)
        mask &= inside[analysis.names.op]
    return np.flatnonzero(mask)


def _lanes(analysis: Analysis, lane_of: dict[int, int]) -> tuple[Lane, ...]:
    styles = lane_styles(analysis)
    conflicts = Counter(int(analysis.group[c.colour]) for c in analysis.conflicts)
    out: list[Lane] = []
    left = 0.0
    for g in lane_of:
        group = analysis.groups[g]
        width = WIDE if conflicts[g] else 1.0
        text = group.name if len(group.colours) == 1 else f"{group.name} ×{len(group.colours)}"
        out.append(
            Lane(
                g,
                text,
                left + width / 2,
                width,
                styles.get(g, style(9)),
                group.n_names,
                conflicts[g],
            )
        )
        left += width
    return tuple(out)


def _nodes(
    analysis: Analysis,
    level: str,
    keep: np.ndarray,
    lane_of: dict[int, int],
    lanes: tuple[Lane, ...],
    row_of: dict[int, int],
) -> tuple[tuple[Node, ...], np.ndarray]:
    dims, side = analysis.names, sides(analysis)
    cells: dict[tuple[int, int, int], list[int]] = {}
    for name in keep.tolist():
        lane = lane_of[int(analysis.group[analysis.colour[name]])]
        cells.setdefault((row_of[int(dims.op[name])], lane, int(side[name])), []).append(name)
    node_of = np.full(dims.n, -1, dtype=np.int64)
    nodes: list[Node] = []
    for (y, lane, track), names in sorted(cells.items()):
        middle = lanes[lane].x + {-1: 0.0, 0: -TRACK, 1: TRACK}[track]
        parts = [[n] for n in names] if level == "names" else [names]
        step = min(0.13, 0.3 / len(parts))
        for i, part in enumerate(parts):
            sizes = sorted({int(dims.size[n]) for n in part})
            text = "–".join(str(s) for s in ([sizes[0], sizes[-1]] if len(sizes) > 1 else sizes))
            label = (
                analysis.name_text[part[0]].rpartition("#")[2]
                if level == "names"
                else f"{len(part)}"
            )
            title = (
                analysis.name_text[part[0]]
                if len(part) == 1
                else f"{len(part)} names of {analysis.dim_text(part[0])}"
            )
            node_of[part] = len(nodes)
            nodes.append(
                Node(
                    round(middle + step * (i - (len(parts) - 1) / 2), 4),
                    y,
                    lane,
                    track,
                    tuple(part),
                    label,
                    title,
                    text,
                )
            )
    return tuple(nodes), node_of


def _edges(analysis: Analysis, nodes: tuple[Node, ...], node_of: np.ndarray) -> tuple[Edge, ...]:
    pairs: Counter[tuple[int, int]] = Counter()
    for a, b in zip(
        node_of[analysis.names.source].tolist(),
        node_of[analysis.names.target].tolist(),
        strict=True,
    ):
        if a >= 0 and b >= 0 and a != b:
            pairs[a, b] += 1
    column: dict[float, list[int]] = {}
    for node in nodes:
        column.setdefault(node.x, []).append(node.y)
    for ys in column.values():
        ys.sort()
    return tuple(
        Edge(a, b, n, *_path(nodes[a], nodes[b], column)) for (a, b), n in sorted(pairs.items())
    )


def _path(
    a: Node, b: Node, column: dict[float, list[int]]
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """A straight line, or a bow round the nodes that stand in between."""
    low, high = sorted((a.y, b.y))
    between = 0
    if a.x == b.x:
        between = bisect.bisect_left(column[a.x], high) - bisect.bisect_right(column[a.x], low)
    if low == high or (not between if a.x == b.x else high - low == 1):
        return (a.x, (a.x + b.x) / 2, b.x), (float(a.y), (a.y + b.y) / 2, float(b.y))
    # Away from the other track
    out = -1 if 0 in (a.track, b.track) and 1 not in (a.track, b.track) else 1
    bow = out * min(0.3, 0.1 + 0.04 * math.log2(1 + high - low))
    return (a.x, round((a.x + b.x) / 2 + bow, 4), b.x), (float(a.y), (a.y + b.y) / 2, float(b.y))


def _conflicts(
    analysis: Analysis, nodes: tuple[Node, ...], node_of: np.ndarray
) -> tuple[ConflictEdge, ...]:
    between: dict[tuple[int, int], list[int]] = {}
    for conflict in analysis.conflicts:
        a, b = (int(node_of[n]) for n in conflict.sides)
        if a >= 0 and b >= 0:
            between.setdefault((min(a, b), max(a, b)), []).append(conflict.index)
    crowded = {(n.y, n.lane) for n in nodes if n.track < 0}
    out = []
    for (a, b), found in sorted(between.items()):
        first, second = nodes[a], nodes[b]
        if a == b:  # both names of a conflict ended in one node: a short bar still shows it
            xs: tuple[float, ...] = (first.x - 0.15, first.x + 0.15)
            ys: tuple[float, ...] = (first.y + 0.3, first.y + 0.3)
        else:  # where names are folded, names without a side may stand in between: pass above them
            ts = [i / 8 for i in range(9)]
            bow = 0.34 if (first.y, first.lane) in crowded else 0.0
            xs = tuple(round(first.x + (second.x - first.x) * t, 4) for t in ts)
            ys = tuple(
                round(first.y + (second.y - first.y) * t - bow * 4 * t * (1 - t), 4) for t in ts
            )
        tensors = list(dict.fromkeys(place_text(analysis, k) for k in found))
        title = f"{len(found)} conflicts" if len(found) > 1 else f"conflict {found[0]}"
        out.append(
            ConflictEdge(
                a,
                b,
                tuple(found),
                xs,
                ys,
                f"{title} on {', '.join(tensors[:4])}{' …' if len(tensors) > 4 else ''}",
            )
        )
    return tuple(out)


def place_text(analysis: Analysis, conflict: int) -> str:
    """The tensor on which two names meet: ``a`` where it is defined, ``a in matmul`` at a use."""
    place = analysis.conflicts[conflict].places[0]
    program = analysis.program
    text = program.value_name[place.value]
    if place.use < 0:
        return text
    op = int(np.searchsorted(program.use_ptr, place.use, side="right")) - 1
    return f"{text} in {program.kind[op]}"


def _outlines(
    analysis: Analysis, nodes: tuple[Node, ...], node_of: np.ndarray
) -> tuple[Outline, ...]:
    members: dict[tuple[int, ...], list[int]] = {}
    for s in analysis.compatibility_sets:
        names = [n for k in s.conflicts for n in analysis.conflicts[k].sides]
        inside = tuple(sorted({int(node_of[n]) for n in names if node_of[n] >= 0}))
        if inside:
            members.setdefault(inside, []).append(s.index)
    out = []
    for inside, sets in sorted(members.items()):
        xs = [nodes[i].x for i in inside]
        ys = [nodes[i].y for i in inside]
        left, right, top, bottom = min(xs) - 0.22, max(xs) + 0.22, min(ys) - 0.42, max(ys) + 0.42
        n = sum(len(analysis.compatibility_sets[s].conflicts) for s in sets)
        label = f"set {sets[0]}" if len(sets) == 1 else f"{len(sets)} sets"
        out.append(
            Outline(
                tuple(sets),
                (left, right, right, left),
                (top, top, bottom, bottom),
                label,
                f"{label} · {n} conflict{'s' if n > 1 else ''}",
            )
        )
    return tuple(out)


def _note(
    analysis: Analysis,
    keep: np.ndarray,
    n_groups: int,
    focus: Sequence[int],
    hops: int,
    only: bool,
    singles: bool,
    groups: Sequence[int] | None,
    scopes: Sequence[str] | None,
) -> str:
    real = int((analysis.names.size > 1).sum())
    parts = [f"{len(keep):,} of {real:,} names"]
    alone = sum(1 for g in analysis.groups if g.n_names == 1)
    if alone and not singles:
        parts.append(f"{alone:,} colours of a single name hidden")
    if n_groups > MAX_LANES:
        parts.append(f"the first {MAX_LANES} of {n_groups} colour groups")
    if len(focus):
        parts.append(f"within {hops} {'hop' if hops == 1 else 'hops'} of the selection")
    if only:
        parts.append("conflicts and their neighbours only")
    if groups is not None:
        parts.append(f"only {', '.join(analysis.groups[g].name for g in groups)}")
    if scopes is not None:
        parts.append(f"only in {', '.join(scopes)}")
    return " · ".join(parts)


def chain_path(layout: GraphLayout, names: Sequence[int]) -> list[int]:
    """The nodes that a chain of names passes through, in order.

    Names that are not shown are left out.
    """
    found: list[int] = []
    for node in (int(layout.node_of[n]) for n in names):
        if node >= 0 and found[-1:] != [node]:
            found.append(node)
    return found
