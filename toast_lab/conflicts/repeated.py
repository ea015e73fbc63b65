"""Repeated layers: isomorphic compatibility sets share one bit, similar arguments form a group.

A compatibility set is seen as a labelled graph: its names (labelled by op kind, role in the rule
and sizes), the edges of M among them, and one extra node per conflict. Sets whose graphs are
isomorphic are tied, with the isomorphism saying which side corresponds to which. Arguments form a
group when all their uses look the same; an action on a colour of one is mirrored to the
corresponding colours of the others.

Reference: TOAST sections 3.5 and 4.4.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from toast_lab.conflicts.compatibility import Sets
from toast_lab.conflicts.use_keys import use_keys
from toast_lab.ir.program import NEED_REPLICATION, Program
from toast_lab.nda.names import Names
from toast_lab.ragged import Ragged


class Ties(NamedTuple):
    """Resolution classes over ``S`` compatibility sets."""

    class_of: np.ndarray  #: [S] class of each set, numbered by first set
    flipped: np.ndarray  #: [S] bool: side 0 of the set is side 1 of its class


def tie_repeated(names: Names, pairs: list[tuple[int, int]], sets: Sets) -> Ties:
    """Tie isomorphic compatibility sets."""
    n_sets = int(sets.set_of.max(initial=-1)) + 1
    in_set = Ragged.by_key(sets.set_of, n_sets)
    members = [in_set.row(set_index).tolist() for set_index in range(n_sets)]
    graphs = [_graph(names, pairs, conflicts) for conflicts in members]
    buckets: dict[tuple[int, ...], list[int]] = defaultdict(list)
    class_of = np.zeros(n_sets, dtype=np.int32)
    flipped = np.zeros(n_sets, dtype=bool)
    n_classes = 0
    for set_index, graph in enumerate(graphs):
        key = _form(graph)
        for other in buckets[key]:
            mapping = _isomorphism(graphs[other], graph)
            if mapping is not None:
                class_of[set_index] = class_of[other]
                flipped[set_index] = (
                    _sides_swap(
                        pairs=pairs,
                        sets=sets,
                        left=members[other],
                        right=members[set_index],
                        mapping=mapping,
                    )
                    ^ flipped[other]
                )
                break
        else:
            class_of[set_index] = n_classes
            n_classes += 1
            buckets[key].append(set_index)
    return Ties(class_of, flipped)


def name_label(names: Names, name: int) -> str:
    """Label of a name by op kind, position and role in the rule, and the sizes of all factors."""
    program = names.program
    op = int(names.op[name])
    factors = program.factors(op)
    roles = [f"{program.factor_size[factor]}:{program.factor_class[factor]}" for factor in factors]
    position = str(name - factors.start)
    return "|".join((program.kind[op], program.detail[op], position, ",".join(roles)))


class _Graph(NamedTuple):
    """The labelled graph of a compatibility set."""

    label: dict[Any, str]  #: by node: the names in order, then a node for each conflict
    edges: dict[tuple[Any, Any], None]  #: (source, target), in the order of insertion


def _graph(names: Names, pairs: list[tuple[int, int]], conflicts: list[int]) -> _Graph:
    nodes = sorted({name for conflict in conflicts for name in pairs[conflict]})
    label: dict[Any, str] = {node: name_label(names, node) for node in nodes}
    edges: dict[tuple[Any, Any], None] = {}
    for node in nodes:
        targets = names.followers(node).tolist()
        edges.update(((node, target), None) for target in targets if target in label)
    for conflict in conflicts:
        key = ("conflict", conflict)
        label[key] = "conflict"
        edges.update(((key, node), None) for node in pairs[conflict])
    return _Graph(label, edges)


def _form(graph: _Graph) -> tuple[int, ...]:
    """Sorted hashes of the nodes of a graph, equal for isomorphic graphs.

    Few other graphs have the same hashes; ``_isomorphism`` decides. The hash of a node starts as
    that of its label and is combined three times with those of its neighbours (Weisfeiler and
    Leman).
    """
    hashes = {node: hash(text) for node, text in graph.label.items()}
    for _ in range(3):
        after: dict[Any, list[int]] = {node: [] for node in hashes}
        before: dict[Any, list[int]] = {node: [] for node in hashes}
        for source, target in graph.edges:
            after[source].append(hashes[target])
            before[target].append(hashes[source])
        hashes = {
            node: hash((own_hash, tuple(sorted(after[node])), tuple(sorted(before[node]))))
            for node, own_hash in hashes.items()
        }
    return tuple(sorted(hashes.values()))


def _isomorphism(left: _Graph, right: _Graph) -> dict[Any, Any] | None:
    # Layers are written in the same order, so matching nodes by rank nearly always succeeds at
    # once.
    if len(left.label) == len(right.label) and len(left.edges) == len(right.edges):
        mapping = dict(zip(left.label, right.label, strict=True))
        if all(left.label[node] == right.label[image] for node, image in mapping.items()) and all(
            (mapping[source], mapping[target]) in right.edges for source, target in left.edges
        ):
            return mapping
    # Loaded late: its import takes longer than most analyses.
    import networkx

    graphs = []
    for graph in (left, right):
        graphs.append(networkx.DiGraph())
        graphs[-1].add_nodes_from((node, {"label": text}) for node, text in graph.label.items())
        graphs[-1].add_edges_from(graph.edges)
    return networkx.vf2pp_isomorphism(*graphs, node_label="label")


def _sides_swap(
    pairs: list[tuple[int, int]],
    sets: Sets,
    left: list[int],
    right: list[int],
    mapping: dict[Any, Any],
) -> bool:
    """Does the isomorphism send side 0 of ``left`` to side 1 of ``right``?"""
    conflict, image = left[0], mapping["conflict", left[0]][1]
    assert image in right
    side0 = pairs[conflict][int(sets.flipped[conflict])]
    return bool(mapping[side0] != pairs[image][int(sets.flipped[image])])


def argument_groups(program: Program) -> list[list[int]]:
    """Arguments whose uses have equal keys, as lists of argument indices; singletons included.

    The key of an argument is its shape and type and, for each use, the op kind, the operand
    position, the rule and the uses of the result a few ops further on; ops that only hand a tensor
    on (a loop, a slice, a reshape) do not count as a step. Where argument paths differ only in list
    indices (``layers[0].wq``, ``layers[3].wq``) the nearest uses decide. They are compared first,
    because the results of the last layer flow elsewhere than those of the others, so that its
    arguments may look like unrelated ones further on.
    """
    near, far = (keys[: program.n_arguments].tolist() for keys in use_keys(program, (1, 4)))
    by_key: dict[Any, int] = {}
    groups: list[list[int]] = []
    for argument in range(program.n_arguments):
        path = program.value_name[argument]
        path_pattern = re.sub(r"\[\d+\]", "[*]", path)
        keys: list[tuple[Any, ...]] = [("far", program.dims(argument), far[argument])]
        # The same place in a list of layers is stronger evidence than similar uses
        if path_pattern != path:
            keys.insert(0, ("path", path_pattern, near[argument]))
        group_index = next((by_key[key] for key in keys if key in by_key), None)
        if group_index is None:
            group_index = len(groups)
            groups.append([])
        groups[group_index].append(argument)
        for key in keys:
            by_key.setdefault(key, group_index)
    return groups


def colour_groups(names: Names, colour: np.ndarray, groups: list[list[int]]) -> np.ndarray:
    """Group of each colour, [colours] int32, numbered by first colour.

    Colours are mirrored if all argument dims that carry them are the same dims of the same argument
    groups: the optimiser's moments of keys and of values look alike, their weights do not. Two
    colours that meet in one op are never grouped, since a mirrored action would have to choose
    between them there (the simplest example is stacked square layers, ``x @ w1 @ w2``). The
    stacking dims of one loop are mirrored too: cutting stacked parameters by layers cuts all of
    them.
    """
    colour_count = int(colour.max(initial=-1)) + 1
    families = [*_carried_alike(names, colour, groups), *_stacked_together(names, colour)]
    members = np.zeros(colour_count, dtype=bool)
    members[[member for family in families for member in family]] = True
    ops: dict[int, set[int]] = defaultdict(set)
    is_counted = members[colour] & (names.size > 1)
    for member, op in zip(colour[is_counted].tolist(), names.op[is_counted].tolist(), strict=True):
        ops[member].add(op)
    leader_of = list(range(colour_count))
    for family in families:
        merged: list[int] = []  # leaders of the groups made of these colours
        for member in dict.fromkeys(_leader(leader_of, member) for member in family):
            leader = next(
                (candidate for candidate in merged if ops[candidate].isdisjoint(ops[member])), None
            )
            if leader is None:
                merged.append(member)
            else:
                leader_of[member] = leader
                ops[leader] |= ops[member]
    group_number: dict[int, int] = {}
    return np.asarray(
        [
            group_number.setdefault(_leader(leader_of, member), len(group_number))
            for member in range(colour_count)
        ],
        dtype=np.int32,
    )


def _leader(leader_of: list[int], colour: int) -> int:
    while leader_of[colour] != colour:
        colour = leader_of[colour]
    return colour


def _carried_alike(names: Names, colour: np.ndarray, groups: list[list[int]]) -> list[list[int]]:
    """Colours on the same dims of the same argument groups, as lists of at least two."""
    carried: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for group_index, group in enumerate(groups):
        for argument in group:
            for dim, name in enumerate(names.program.def_names(argument)):
                if names.size[name] > 1:
                    carried[int(colour[name])].append((group_index, dim))
    alike: dict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
    for member in sorted(carried):
        alike[tuple(sorted(carried[member]))].append(member)
    return [family for family in alike.values() if len(family) > 1]


def _stacked_together(names: Names, colour: np.ndarray) -> list[list[int]]:
    """Colours of the dims along which one loop stacks its rounds: the layers of one network."""
    program = names.program
    # These are whole for another reason than being stacked.
    hidden = set(program.def_dim_factor[program.hidden].tolist())
    families: list[list[int]] = []
    for region in program.regions:
        if region.kind != "loop":
            continue
        together: dict[int, None] = {}
        op = region.begin
        while program.kind[op] == "while.enter":
            for factor in program.factors(op):
                stacked = (
                    program.factor_class[factor] == NEED_REPLICATION
                    and program.factor_size[factor] > 1
                )
                if stacked and factor not in hidden:
                    together[int(colour[factor])] = None
            op += 1
        if len(together) > 1:
            families.append(list(together))
    return families
