"""The networkx graph agrees with the analysis, for every built-in model."""

from __future__ import annotations

import io
from collections import defaultdict

import jax
import jax.numpy as jnp
import networkx
import pytest

from tests.helpers import analysed, small_transformer, traced
from toast_lab.conflicts.analysis import Analysis
from toast_lab.models.registry import MODELS
from toast_lab.text import line_text

# More layers would not make these tests find more
SMALL = {
    "transformer": {},
    "t2b": {"layers": 1},
    "t7b": {"layers": 1},
    "itx": {"layers": 1},
    "gns": {"steps": 1},
}


def analysis_of(name: str) -> Analysis:
    return small_transformer() if name == "transformer" else analysed(name, **SMALL.get(name, {}))


def of_map(graph: networkx.MultiDiGraph) -> networkx.MultiDiGraph:
    conflicts = [edge for edge in graph.edges(keys=True) if edge[2] == "conflict"]
    map_graph = graph.copy()
    map_graph.remove_edges_from(conflicts)
    return map_graph


@pytest.mark.parametrize("name", MODELS)
def test_components_are_colours_and_conflict_edges_conflicts(name: str) -> None:
    analysis = analysis_of(name)
    graph = analysis.to_networkx()
    assert list(graph) == list(analysis.name_text)
    colours = {frozenset(analysis.name_text[n] for n in c.names) for c in analysis.colours}
    for part in (graph, of_map(graph)):
        assert set(map(frozenset, networkx.weakly_connected_components(part))) == colours

    names = analysis.names
    text = analysis.name_text
    edges: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for source, target, kind in graph.edges(data="kind"):
        edges[kind].append((source, target))
    pairs = zip(names.source.tolist(), names.target.tolist(), strict=True)
    assert sorted(edges.pop("M")) == sorted((text[s], text[t]) for s, t in pairs)
    conflicts = [(text[c.sides[0]], text[c.sides[1]]) for c in analysis.conflicts]
    assert sorted(edges.pop("conflict", [])) == sorted(conflicts)
    assert not edges


@pytest.mark.parametrize("name", MODELS)
def test_attributes_of_names(name: str) -> None:
    analysis = analysis_of(name)
    program, names = analysis.program, analysis.names
    graph = analysis.to_networkx()
    in_conflict = {n for c in analysis.conflicts for n in c.sides}
    for index, (text, node) in enumerate(graph.nodes(data=True)):
        colour = analysis.colours[int(analysis.colour[index])]
        assert node["index"] == index
        assert text.startswith(f"{node['colour']}#")
        assert (node["colour"], node["group"]) == (colour.name, analysis.group_name[colour.group])
        assert node["size"] == names.size[index]
        assert node["shardable"] == names.shardable[index]
        assert node["op"] == names.op[index]
        assert node["source_line"] == line_text(program.where(node["op"]))
        assert (node["side"] >= 0) == (node["compatibility_set"] >= 0) == (index in in_conflict)
        if node["on"] == "definition":
            assert node["op"] == program.value_op[program.value_name.index(node["value"])]
    for conflict in analysis.conflicts:
        left, right = (analysis.name_text[n] for n in conflict.sides)
        edge = graph.edges[left, right, "conflict"]
        assert (edge["conflict"], edge["compatibility_set"]) == (conflict.index, conflict.set)


def test_an_edge_says_what_is_passed_and_how_large_it_is() -> None:
    def f(x, w):  # type: ignore[no-untyped-def]
        hidden = x @ w
        return hidden @ hidden.T

    shape = jax.ShapeDtypeStruct
    analysis = traced(f, shape((32, 4), jnp.float32), shape((4, 8), jnp.float32))
    graph = analysis.to_networkx()
    sizes = {edge["value"]: edge["bytes"] for *_, edge in graph.edges(data=True) if "bytes" in edge}
    assert sizes["x"] == 32 * 4 * 4
    assert sizes["w"] == 4 * 8 * 4
    assert not any(r for *_, r in graph.edges(data="next_round"))
    (conflict,) = [e for *_, e in graph.edges(data=True) if e["kind"] == "conflict"]
    assert (conflict["on"], conflict["first_dim"], conflict["second_dim"]) == ("definition", 0, 1)
    assert conflict["source_line"].startswith("test_networkx_graph.py:")


def test_a_dim_that_is_summed_over_has_the_operand_that_it_is_seen_on() -> None:
    graph = analysed("mlp").to_networkx()
    summed = [n for _, n in graph.nodes(data=True) if n["on"] == "use"]
    assert [(n["factor_class"], n["op_kind"], n["dim"]) for n in summed] == [
        ("reduction", "dot_general", 1)
    ] * 2


def test_edges_of_a_loop_to_its_next_round_are_marked() -> None:
    def f(x, w):  # type: ignore[no-untyped-def]
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ w), x)

    shape = jax.ShapeDtypeStruct
    analysis = traced(f, shape((8, 16), jnp.float32), shape((16, 16), jnp.float32))
    graph = analysis.to_networkx()
    carried = [(s, t) for s, t, again in graph.edges(data="next_round") if again]
    names = analysis.names
    later = names.op[names.source] >= names.op[names.target]
    assert len(carried) == int(later.sum()) > 0


def test_others_can_read_it() -> None:
    graph = analysed("attention").to_networkx()
    stream = io.BytesIO()
    networkx.write_graphml(graph, stream)
    stream.seek(0)
    reloaded = networkx.read_graphml(stream, force_multigraph=True)
    assert dict(reloaded.nodes(data=True)) == dict(graph.nodes(data=True))
    assert reloaded.number_of_edges() == graph.number_of_edges()
