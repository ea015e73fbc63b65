"""Deterministic lane layout of the coloured dimension graph.

A colour group is a column (lane), program order runs down.  Where a colour has conflicts its lane splits into two
tracks, side 0 and side 1 of the compatibility set; where the conflict ends the tracks join again.  M never leaves
a colour and always runs down, so no edge crosses from lane to lane and no two runs look different.

What differs between levels is only what a row is: a part of the program (``colours``), a function (``functions``),
a source line (``lines``) or one op (``names``).  All but the last fold the names that share a row, a lane and a
track into one node, so that repeated layers lie on top of each other.

Start reading at ``graph_layout``.  Reference: TOAST sections 3.2, 3.3 and 3.5.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.listing import op_text, value_text
from toast_lab.views import source_lines
from toast_lab.views.palette import Style, style

LEVELS = {
    "colours": "colours by part of the program",
    "functions": "functions, layers folded",
    "lines": "source lines, layers folded",
    "names": "dimension names",
}
NAMES_AT_ONCE = 120  # a program with more names than this starts at the level of colours
MAX_LANES = 40
WIDE = 2.0  # a lane with conflicts is this much wider than one without
TRACK = 0.55  # distance of side 0 and side 1 from the middle of their lane


class Lane(NamedTuple):
    """One column."""

    group: int
    label: str
    x: float  #: middle
    width: float
    style: Style
    n_names: int
    n_conflicts: int


class Row(NamedTuple):
    """One line of the picture."""

    label: str
    where: str
    ops: tuple[int, ...]
    repeats: int


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
    xs: tuple[float, ...]
    ys: tuple[float, ...]


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


def start_level(analysis: Analysis) -> str:
    """The level a program is first shown at: small ones with their names, others by colour."""
    return "names" if analysis.dims.n <= NAMES_AT_ONCE else "colours"


def lane_groups(analysis: Analysis, *, singles: bool = False) -> list[int]:
    """Colour groups worth a lane, those with conflicts and many names first.

    Groups of one name (dims that no other value shares, such as those of a constant) are left out unless asked for.
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
    for a, b in [*zip(analysis.dims.source.tolist(), analysis.dims.target.tolist(), strict=True), *analysis.pairs]:
        beside.setdefault(a, []).append(b)
        beside.setdefault(b, []).append(a)
    reached = set(names)
    border = set(reached)
    for _ in range(hops):
        border = {b for a in border for b in beside.get(a, ())} - reached
        reached |= border
    return reached


def sides(analysis: Analysis) -> np.ndarray:
    """[N] side of each name in its conflicts, -1 where it has none; tied sets are turned the same way."""
    votes = np.zeros((analysis.dims.n, 2), dtype=np.int64)
    for conflict in analysis.conflicts:
        flipped = analysis.compatibility_sets[conflict.set].flipped
        for side, name in enumerate(conflict.sides):
            votes[name, side ^ int(flipped)] += 1
    return np.where(votes.sum(axis=1) == 0, -1, (votes[:, 1] > votes[:, 0]).astype(np.int64))


def phases(analysis: Analysis) -> tuple[str, ...]:
    """The part of the program that each op belongs to."""
    program = analysis.program
    backward = ["transpose(" in stack for stack in program.name_stack]
    last = max((op for op, b in enumerate(backward) if b), default=-1)
    out = []
    for op in range(program.n_ops):
        if op < program.n_arguments:
            out.append("arguments")
        elif backward[op]:
            out.append("backward")
        else:
            out.append("forward" if op < last or last < 0 else "update")
    if last < 0:
        out = ["program" if p == "forward" else p for p in out]
    return tuple(out)


def graph_layout(
    analysis: Analysis,
    level: str | None = None,
    *,
    focus: Sequence[int] = (),
    hops: int = 2,
    conflicts_only: bool = False,
    singles: bool = False,
    groups: Sequence[int] | None = None,
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
    """
    level = level or start_level(analysis)
    shown_groups = lane_groups(analysis, singles=singles)
    if groups is not None:
        shown_groups = [g for g in shown_groups if g in set(groups)]
    keep = _kept(analysis, shown_groups[:MAX_LANES], focus, hops, conflicts_only)
    present = {int(g) for g in analysis.group[analysis.colour[keep]]}
    lane_of = {g: i for i, g in enumerate([g for g in shown_groups[:MAX_LANES] if g in present])}
    lanes = _lanes(analysis, lane_of)
    rows, row_of = _rows(analysis, level, sorted({int(o) for o in analysis.dims.op[keep]}))
    nodes, node_of = _nodes(analysis, level, keep, lane_of, lanes, row_of)
    return GraphLayout(
        level,
        lanes,
        rows,
        nodes,
        _edges(analysis, nodes, node_of),
        _conflicts(analysis, nodes, node_of),
        _outlines(analysis, nodes, node_of),
        node_of,
        _note(analysis, keep, len(shown_groups), focus, hops, conflicts_only, singles),
    )


def _kept(analysis: Analysis, groups: Sequence[int], focus: Sequence[int], hops: int, only: bool) -> np.ndarray:
    mask = np.isin(analysis.group[analysis.colour], list(groups)) & (analysis.dims.size > 1)
    for wanted, reach in ((list(focus), hops), ([n for p in analysis.pairs for n in p] if only else [], 1)):
        if wanted or (only and reach == 1):
            near = np.zeros(analysis.dims.n, dtype=bool)
            near[list(neighbourhood(analysis, wanted, reach))] = True
            mask &= near
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
        out.append(Lane(g, text, left + width / 2, width, styles.get(g, style(9)), group.n_names, conflicts[g]))
        left += width
    return tuple(out)


def _row_key(analysis: Analysis, level: str) -> Callable[[int], tuple[str, str]]:
    program, phase = analysis.program, phases(analysis)

    def key(op: int) -> tuple[str, str]:
        if level == "colours" or phase[op] == "arguments":
            return phase[op], ""
        frame = source_lines.op_frame(program, op)
        if not frame.file:
            return f"{program.kind[op]}", ""
        text = source_lines.function_of(frame) if level == "functions" else frame.short
        return (f"{text} · {phase[op]}" if phase[op] in ("backward", "update") else text), frame.short

    return key


def _rows(analysis: Analysis, level: str, ops: list[int]) -> tuple[tuple[Row, ...], dict[int, int]]:
    if level == "names":
        return tuple(Row(op_label(analysis, op), where(analysis, op), (op,), 1) for op in ops), {
            op: i for i, op in enumerate(ops)
        }
    key = _row_key(analysis, level)
    members: dict[str, list[int]] = {}
    places: dict[str, str] = {}
    for op in ops:
        label, place = key(op)
        members.setdefault(label, []).append(op)
        places.setdefault(label, place)
    rows = tuple(
        Row(label, places[label], tuple(m), _repeats(analysis, m) if places[label] else 1)
        for label, m in members.items()
    )
    return rows, {op: i for i, m in enumerate(members.values()) for op in m}


def _repeats(analysis: Analysis, ops: list[int]) -> int:
    """How often the same code ran: what the counts of its ops have in common, call by call."""
    program = analysis.program
    counts: dict[int, Counter[str]] = {}
    for op in ops:
        counts.setdefault(int(program.location[op]), Counter())[program.kind[op]] += 1
    return Counter(math.gcd(*c.values()) for c in counts.values()).most_common(1)[0][0]


def op_label(analysis: Analysis, op: int) -> str:
    """``a = matmul(k, qt)``, or ``x (argument)``; long ones are cut in the middle."""
    program = analysis.program
    results = ", ".join(program.value_name[v] for v in program.results(op))
    if op < program.n_arguments:
        return results
    operands = [value_text(program, v) for v in program.operands(op)]
    text = op_text(program, op, operands)
    return f"{results} = {text}" if results else text


def where(analysis: Analysis, op: int) -> str:
    """The user's line of an op."""
    return source_lines.op_frame(analysis.program, op).short


def _nodes(
    analysis: Analysis,
    level: str,
    keep: np.ndarray,
    lane_of: dict[int, int],
    lanes: tuple[Lane, ...],
    row_of: dict[int, int],
) -> tuple[tuple[Node, ...], np.ndarray]:
    dims, side = analysis.dims, sides(analysis)
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
            label = analysis.name_text[part[0]].rpartition("#")[2] if level == "names" else f"{len(part)}"
            title = (
                analysis.name_text[part[0]] if len(part) == 1 else f"{len(part)} names of {analysis.dim_text(part[0])}"
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
    for a, b in zip(node_of[analysis.dims.source].tolist(), node_of[analysis.dims.target].tolist(), strict=True):
        if a >= 0 and b >= 0 and a != b:
            pairs[a, b] += 1
    column: dict[float, list[int]] = {}
    for node in nodes:
        column.setdefault(node.x, []).append(node.y)
    for ys in column.values():
        ys.sort()
    return tuple(Edge(a, b, n, *_path(nodes[a], nodes[b], column)) for (a, b), n in sorted(pairs.items()))


def _path(a: Node, b: Node, column: dict[float, list[int]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A straight line, or a bow round the nodes that stand in between."""
    low, high = sorted((a.y, b.y))
    between = 0
    if a.x == b.x:
        between = bisect.bisect_left(column[a.x], high) - bisect.bisect_right(column[a.x], low)
    if low == high or (not between if a.x == b.x else high - low == 1):
        return (a.x, b.x), (float(a.y), float(b.y))
    out = -1 if 0 in (a.track, b.track) and 1 not in (a.track, b.track) else 1  # away from the other track
    bow = out * min(0.3, 0.1 + 0.04 * math.log2(1 + high - low))
    ts = [i / 10 for i in range(11)]
    return (
        tuple(round(a.x + (b.x - a.x) * t + bow * 4 * t * (1 - t), 4) for t in ts),
        tuple(round(a.y + (b.y - a.y) * t, 4) for t in ts),
    )


def _conflicts(analysis: Analysis, nodes: tuple[Node, ...], node_of: np.ndarray) -> tuple[ConflictEdge, ...]:
    between: dict[tuple[int, int], list[int]] = {}
    for conflict in analysis.conflicts:
        a, b = (int(node_of[n]) for n in conflict.sides)
        if a >= 0 and b >= 0:
            between.setdefault((min(a, b), max(a, b)), []).append(conflict.index)
    out = []
    for (a, b), found in sorted(between.items()):
        first, second = nodes[a], nodes[b]
        if a == b:  # both names of a conflict ended in one node: a short bar still shows it
            xs: tuple[float, ...] = (first.x - 0.15, first.x + 0.15)
            ys: tuple[float, ...] = (first.y + 0.3, first.y + 0.3)
        else:  # where names are folded, names without a side may stand in between: pass above them
            ts = [i / 8 for i in range(9)]
            bow = 0.34 if any(n.y == first.y and n.lane == first.lane and n.track < 0 for n in nodes) else 0.0
            xs = tuple(round(first.x + (second.x - first.x) * t, 4) for t in ts)
            ys = tuple(round(first.y + (second.y - first.y) * t - bow * 4 * t * (1 - t), 4) for t in ts)
        tensors = list(dict.fromkeys(place_text(analysis, k) for k in found))
        title = f"{len(found)} conflicts" if len(found) > 1 else f"conflict {found[0]}"
        out.append(
            ConflictEdge(
                a, b, tuple(found), xs, ys, f"{title} on {', '.join(tensors[:4])}{' …' if len(tensors) > 4 else ''}"
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


def _outlines(analysis: Analysis, nodes: tuple[Node, ...], node_of: np.ndarray) -> tuple[Outline, ...]:
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
                f"{label} · {n} conflict{'s' if n > 1 else ''}",
            )
        )
    return tuple(out)


def _note(
    analysis: Analysis, keep: np.ndarray, n_groups: int, focus: Sequence[int], hops: int, only: bool, singles: bool
) -> str:
    real = int((analysis.dims.size > 1).sum())
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
    return " · ".join(parts)
