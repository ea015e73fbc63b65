"""Repeated layers: isomorphic compatibility sets share one bit, alike arguments form a group.

A compatibility set is seen as a labelled graph: its names (labelled by op kind, role in the rule
and sizes), the edges of M among them, and one extra node per conflict.  Sets whose graphs are
isomorphic are tied, with the isomorphism saying which side corresponds to which.  Arguments group
when all their uses look the same; an action on a colour of one is mirrored to the corresponding
colours of the others.

Reference: TOAST sections 3.5 and 4.4.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, NamedTuple

import networkx as nx
import numpy as np

from toast_lab.conflicts.compatibility import Sets
from toast_lab.conflicts.use_keys import use_keys
from toast_lab.ir.program import NEED_REPLICATION, Program
from toast_lab.nda.names import Names


class Ties(NamedTuple):
    """Resolution classes over ``S`` compatibility sets."""

    class_of: np.ndarray  #: [S] class of each set, numbered by first set
    flipped: np.ndarray  #: [S] bool: side 0 of the set is side 1 of its class


def tie_repeated(names: Names, pairs: list[tuple[int, int]], sets: Sets) -> Ties:
    """Tie isomorphic compatibility sets."""
    n_sets = int(sets.set_of.max()) + 1 if len(sets.set_of) else 0
    members: list[list[int]] = [[] for _ in range(n_sets)]
    for conflict, s in enumerate(sets.set_of):
        members[s].append(conflict)
    graphs = [_graph(names, pairs, sets, m) for m in members]
    buckets: dict[str, list[int]] = defaultdict(list)
    class_of = np.zeros(n_sets, dtype=np.int32)
    flipped = np.zeros(n_sets, dtype=bool)
    n_classes = 0
    for s, graph in enumerate(graphs):
        key = nx.weisfeiler_lehman_graph_hash(
            graph.to_undirected(), node_attr="label", iterations=3
        )
        for other in buckets[key]:
            mapping = _isomorphism(graphs[other], graph)
            if mapping is not None:
                class_of[s] = class_of[other]
                flipped[s] = (
                    _sides_swap(pairs, sets, members[other], members[s], mapping) ^ flipped[other]
                )
                break
        else:
            class_of[s] = n_classes
            n_classes += 1
            buckets[key].append(s)
    return Ties(class_of, flipped)


def name_label(names: Names, name: int) -> str:
    """What a name is, apart from where it stands.

    That is op kind, position and role in the rule, and all factor sizes.
    """
    program = names.program
    op = int(names.op[name])
    factors = program.factors(op)
    return "|".join(
        (
            program.kind[op],
            program.detail[op],
            str(name - factors.start),
            ",".join(f"{program.factor_size[f]}:{program.factor_class[f]}" for f in factors),
        )
    )


def _graph(
    names: Names, pairs: list[tuple[int, int]], sets: Sets, members: list[int]
) -> nx.DiGraph:
    graph = nx.DiGraph()
    nodes = sorted({n for k in members for n in pairs[k]})
    for node in nodes:
        graph.add_node(node, label=name_label(names, node))
    inside = set(nodes)
    for node in nodes:
        for target in names.successor[names.ptr[node] : names.ptr[node + 1]]:
            if int(target) in inside:
                graph.add_edge(node, int(target))
    for k in members:
        key = ("conflict", k)
        graph.add_node(key, label="conflict")
        for node in pairs[k]:
            graph.add_edge(key, node)
    return graph


def _isomorphism(left: nx.DiGraph, right: nx.DiGraph) -> dict[Any, Any] | None:
    # Layers are written in the same order, so matching nodes by rank nearly always succeeds at
    # once.
    if len(left) == len(right) and left.number_of_edges() == right.number_of_edges():
        mapping = dict(zip(left.nodes, right.nodes, strict=True))
        if all(
            left.nodes[a]["label"] == right.nodes[b]["label"] for a, b in mapping.items()
        ) and all(right.has_edge(mapping[a], mapping[b]) for a, b in left.edges):
            return mapping
    return nx.vf2pp_isomorphism(left, right, node_label="label")


def _sides_swap(
    pairs: list[tuple[int, int]],
    sets: Sets,
    left: list[int],
    right: list[int],
    mapping: dict[Any, Any],
) -> bool:
    """Does the isomorphism send side 0 of ``left`` to side 1 of ``right``?"""
    first = left[0]
    side0 = pairs[first][1 if sets.flipped[first] else 0]
    image = mapping[side0]
    conflict = mapping[("conflict", first)][1]
    assert conflict in right
    return bool(image != pairs[conflict][1 if sets.flipped[conflict] else 0])


def argument_groups(program: Program) -> list[list[int]]:
    """Arguments whose uses have equal keys, as lists of argument indices; singletons included.

    The key of an argument is its shape and type and, for each use, the op kind, the operand
    position, the rule and what becomes of the result a few ops further on; what only hands a tensor
    on (a loop, a slice, a reshape) does not count as a step.  Where argument paths differ in list
    indices only (``layers[0].wq``, ``layers[3].wq``) the nearest uses decide, and are asked first,
    since the last layer's results flow elsewhere than the others' and may do so just like some
    other argument's.
    """
    near, far = (keys[: program.n_arguments].tolist() for keys in use_keys(program, (1, 4)))
    by_key: dict[Any, int] = {}
    groups: list[list[int]] = []
    for a in range(program.n_arguments):
        path = program.value_name[a]
        general = re.sub(r"\[\d+\]", "[*]", path)
        keys: list[tuple[Any, ...]] = [("far", program.dims(a), far[a])]
        # The same place in a list of layers says more than a likeness elsewhere
        if general != path:
            keys.insert(0, ("path", general, near[a]))
        home = next((by_key[k] for k in keys if k in by_key), None)
        if home is None:
            home = len(groups)
            groups.append([])
        groups[home].append(a)
        for k in keys:
            by_key.setdefault(k, home)
    return groups


def colour_groups(names: Names, colour: np.ndarray, groups: list[list[int]]) -> np.ndarray:
    """Group of each colour, [colours] int32, numbered by first colour.

    Colours are mirrored when the argument dims that carry them are the same dims of the same
    argument groups, all of them: the optimiser's moments of keys and of values look alike, their
    weights do not.  Two colours that meet in one op are never put together: a mirrored action there
    would have to choose between them, which is no mirror (stacked square layers ``x @ w1 @ w2`` are
    the plain example).  The stacking dims of one loop are mirrored too: whoever cuts stacked
    parameters by layers cuts all of them.
    """
    n = int(colour.max()) + 1 if len(colour) else 0
    families = [*_carried_alike(names, colour, groups), *_stacked_together(names, colour)]
    members = np.zeros(n, dtype=bool)
    members[[c for family in families for c in family]] = True
    ops: dict[int, set[int]] = {c: set() for c in np.flatnonzero(members).tolist()}
    wanted = np.flatnonzero(members[colour] & (names.size > 1))
    for c, op in zip(colour[wanted].tolist(), names.op[wanted].tolist(), strict=True):
        ops[c].add(op)
    home = list(range(n))
    for family in families:
        merged: list[int] = []  # leaders of the groups made of these colours
        for c in dict.fromkeys(_leader(home, c) for c in family):
            leader = next((m for m in merged if ops[m].isdisjoint(ops[c])), None)
            if leader is None:
                merged.append(c)
            else:
                home[c] = leader
                ops[leader] |= ops[c]
    number: dict[int, int] = {}
    return np.asarray(
        [number.setdefault(_leader(home, c), len(number)) for c in range(n)], dtype=np.int32
    )


def _leader(home: list[int], colour: int) -> int:
    while home[colour] != colour:
        colour = home[colour]
    return colour


def _carried_alike(names: Names, colour: np.ndarray, groups: list[list[int]]) -> list[list[int]]:
    """Colours on the same dims of the same argument groups, as lists of at least two."""
    carried: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for g, group in enumerate(groups):
        for a in group:
            for d, name in enumerate(names.program.def_names(a)):
                if names.size[name] > 1:
                    carried[int(colour[name])].append((g, d))
    alike: dict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
    for c in sorted(carried):
        alike[tuple(sorted(carried[c]))].append(c)
    return [family for family in alike.values() if len(family) > 1]


def _stacked_together(names: Names, colour: np.ndarray) -> list[list[int]]:
    """Colours along which one loop stacks what its rounds take and give.

    The layers of one network.
    """
    program = names.program
    # Whole for another reason than being stacked
    hidden = set(program.def_dim_factor[program.hidden].tolist())
    families: list[list[int]] = []
    for region in program.regions:
        if region.kind != "loop":
            continue
        found: dict[int, None] = {}
        op = region.begin
        while program.kind[op] == "while.enter":
            for factor in program.factors(op):
                stacked = (
                    program.factor_class[factor] == NEED_REPLICATION
                    and program.factor_size[factor] > 1
                )
                if stacked and factor not in hidden:
                    found[int(colour[factor])] = None
            op += 1
        if len(found) > 1:
            families.append(list(found))
    return families
