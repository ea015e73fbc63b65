"""Colours, conflicts, sets and their sides, none of which renaming or reordering may change."""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import small_transformer, traced
from toast_lab.conflicts.compatibility import _ParityUnion
from toast_lab.conflicts.dimension_graph import _smallest_connected, has_path
from toast_lab.conflicts.repeated import _form, _Graph, _isomorphism

S = jax.ShapeDtypeStruct
F = jnp.float32


def test_colours_are_the_weak_components_of_m():
    analysis = small_transformer(mode="train")
    graph = nx.Graph()
    graph.add_nodes_from(range(analysis.names.n))
    graph.add_edges_from(
        zip(analysis.names.source.tolist(), analysis.names.target.tolist(), strict=True)
    )
    for component in nx.connected_components(graph):
        assert len({int(analysis.colour[n]) for n in component}) == 1
    assert len(analysis.colours) == nx.number_connected_components(graph)


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39))))
def test_connected_nodes_have_one_smallest_node(count, edges):
    edges = [(a % count, b % count) for a, b in edges]
    source, target = np.array(edges, dtype=np.int32).reshape(-1, 2).T
    graph = nx.Graph(edges)
    graph.add_nodes_from(range(count))
    expected = {n: min(part) for part in nx.connected_components(graph) for n in part}
    assert _smallest_connected(count, source, target).tolist() == [*map(expected.get, range(count))]


@given(
    st.lists(st.sampled_from("ab"), min_size=1, max_size=7),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14),
    st.randoms(use_true_random=False),
)
def test_graphs_are_isomorphic_as_networkx_says_and_then_of_one_form(labels, edges, rng):
    count = len(labels)
    edges = {(a % count, b % count): None for a, b in edges}
    left = _Graph(dict(enumerate(labels)), edges)
    to = rng.sample(range(count), count)
    turned = _Graph(
        {to[i]: labels[i] for i in rng.sample(range(count), count)},
        {(to[a], to[b]): None for a, b in edges},
    )
    mapping = _isomorphism(left, turned)
    assert mapping is not None
    assert all(labels[i] == turned.label[mapping[i]] for i in range(count))
    assert {(mapping[a], mapping[b]) for a, b in edges} == set(turned.edges)
    assert _form(left) == _form(turned)
    # As many edges, between other nodes
    shifted = _Graph(left.label, {(a, (b + 1) % count): None for a, b in edges})
    digraphs = []
    for graph in (left, shifted):
        digraphs.append(nx.DiGraph(graph.edges.keys()))
        digraphs[-1].add_nodes_from((node, {"label": text}) for node, text in graph.label.items())
    same = nx.is_isomorphic(*digraphs, node_match=lambda a, b: a["label"] == b["label"])
    assert (_isomorphism(left, shifted) is not None) == same
    assert _form(left) == _form(shifted) or not same


def test_conflicts_are_exactly_the_pairs_of_one_colour_on_one_tensor():
    """Compares with a brute-force search over every definition and use."""
    analysis = small_transformer(mode="train")
    program = analysis.program
    rows = [
        program.def_names(v) for v in range(program.n_values) if not program.value_is_constant[v]
    ]
    rows += [program.use_names(u) for u in range(program.n_uses)]
    expected = {
        (min(a, b), max(a, b))
        for row in rows
        for a in row
        for b in row
        if a != b
        and analysis.colour[a] == analysis.colour[b]
        and min(analysis.names.size[[a, b]]) > 1
    }
    assert set(analysis.pairs) == expected


def test_boxes_keep_sides_together():
    analysis = small_transformer(mode="train")
    conflicts = analysis.conflicts
    side = {}
    for c in conflicts:
        for i, name in enumerate(c.sides):
            assert side.setdefault((c.set, name), i) == i
    edges = set(zip(analysis.names.source.tolist(), analysis.names.target.tolist(), strict=True))
    joined = [box for box in analysis.sets.boxes if box.outcome == "joined"]
    assert joined
    for box in joined:
        outer, inner = conflicts[box.outer], conflicts[box.inner]
        assert outer.set == inner.set
        linked = [(a, b) for a in outer.sides for b in inner.sides if (a, b) in edges]
        assert linked
        assert all(outer.sides.index(a) == inner.sides.index(b) for a, b in linked)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 1)), max_size=30))
def test_parity_union_agrees_with_two_colouring(joins):
    """A join is refused exactly if it and the constraints so far have no two-colouring."""
    union = _ParityUnion(8)
    joined: list[tuple[int, int, int]] = []

    def consistent(constraints):
        side: dict[int, int] = {}
        changed = True
        for start in range(8):
            if start in side:
                continue
            side[start] = 0
            changed = True
            while changed:
                changed = False
                for a, b, parity in constraints:
                    for u, v in ((a, b), (b, a)):
                        if u in side and v not in side:
                            side[v] = side[u] ^ parity
                            changed = True
        return all(side[a] ^ side[b] == parity for a, b, parity in constraints)

    for a, b, parity in joins:
        accepted = union.join(a, b, parity)
        assert accepted == consistent([*joined, (a, b, parity)])
        if accepted:
            joined.append((a, b, parity))


@given(st.integers(2, 12), st.data())
def test_has_path_agrees_with_networkx(n, data):
    edges = data.draw(
        st.sets(
            st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1])
        )
    )
    edges = sorted(edges)
    ptr = np.zeros(n + 1, np.int64)
    for a, _ in edges:
        ptr[a + 1] += 1
    ptr = np.cumsum(ptr)
    successor = np.asarray([b for _, b in edges], np.int32)
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(n))
    stamp = np.zeros(n, np.int64)
    order = np.arange(n, dtype=np.int32)
    mark = 0
    for a in range(n):
        for b in range(a + 1, n):
            mark += 1
            assert has_path(ptr, successor, order, a, b, stamp, mark) == nx.has_path(graph, a, b)


def test_reordering_independent_ops_changes_nothing():
    def first(x, y):
        a = x @ x.T
        b = jnp.tanh(y)
        return jax.nn.softmax(a, axis=-1) @ b

    def second(x, y):
        b = jnp.tanh(y)
        a = x @ x.T
        return jax.nn.softmax(a, axis=-1) @ b

    shapes = S((8, 4), F), S((8, 5), F)
    one, two = traced(first, *shapes), traced(second, *shapes)
    assert len(one.pairs) == len(two.pairs) > 0
    assert [len(s.conflicts) for s in one.compatibility_sets] == [
        len(s.conflicts) for s in two.compatibility_sets
    ]
    assert sorted(len(c.names) for c in one.colours) == sorted(len(c.names) for c in two.colours)


@settings(max_examples=10, deadline=None)
@given(st.permutations(["wq", "wk", "wv", "extra"]))
def test_renaming_arguments_changes_only_names(order):
    renamed = dict(zip(["wq", "wk", "wv", "extra"], order, strict=True))

    def fn(p, x):
        q, k, v = (x @ p[renamed[n]] for n in ("wq", "wk", "wv"))
        return (q @ k.T) @ v

    p = {name: S((4, 4), F) for name in renamed.values()}
    analysis = traced(fn, p, S((8, 4), F))
    assert len(analysis.pairs) == 2
    assert len(analysis.compatibility_sets) == 1


def test_stacked_square_layers_are_not_mirrored_into_each_other():
    """The hidden dims of a chain of square layers look alike but meet in ops.

    So each keeps its own action.
    """

    def fn(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return x

    analysis = traced(fn, [S((16, 16), F)] * 4, S((8, 16), F))
    # Only the hidden dims of the first and the third op never meet.
    assert sorted(len(group.colours) for group in analysis.groups) == [1, 1, 1, 1, 2]
    for group in analysis.groups:
        ops = [set(analysis.names.op[analysis.colours[c].names].tolist()) for c in group.colours]
        for i, a in enumerate(ops):
            for b in ops[i + 1 :]:
                assert a.isdisjoint(b)


def test_hidden_dims_of_separate_blocks_are_mirrored():
    def fn(blocks, x):
        for b in blocks:
            x = x + jnp.tanh(x @ b["up"]) @ b["down"]
        return x

    blocks = [{"up": S((16, 64), F), "down": S((64, 16), F)} for _ in range(3)]
    analysis = traced(fn, blocks, S((8, 16), F), dim_names={"up": ("d", "h"), "down": ("h", "d")})
    group = analysis.groups[analysis.group_index("h")]
    assert len(group.colours) == 3


def test_unknown_colour_suggests_one():
    with pytest.raises(Exception, match='did you mean "sequence"'):
        small_transformer(mode="forward").group_index("sequenc")
