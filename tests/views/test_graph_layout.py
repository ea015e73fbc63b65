"""The layout of the dimension graph as data: lanes, tracks, folding and focus."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from tests.helpers import traced
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.views import graph_layout as gl
from toast_lab.views import graph_rows
from toast_lab.views.graph_plot import MANY_LANES, GraphPlot, nodes_frame


def analysed(which: str, **sizes: object) -> Analysis:
    model = tl.load(which, **sizes)
    return analyse(model)


@pytest.fixture(scope="module")
def attention() -> Analysis:
    return analysed("attention")


@pytest.fixture(scope="module")
def transformer() -> Analysis:
    return analysed(
        "transformer", d_model=64, hidden=128, heads=4, key_size=16, vocab=256, sequence=32
    )


def test_attention_starts_with_its_names(attention: Analysis) -> None:
    layout = gl.graph_layout(attention)
    assert layout.level == "names"
    assert [lane.label for lane in layout.lanes] == ["S", "D", "H1", "H2"]
    assert [row.label for row in layout.rows][-3:] == [
        "c = broadcast_{0}(b)",
        "d = div(a, c)",
        "z = matmul(d, v)",
    ]
    assert len(layout.nodes) == attention.names.n
    assert len(layout.edges) == len(attention.names.source)


def test_a_large_program_starts_with_its_colours(transformer: Analysis) -> None:
    layout = gl.graph_layout(transformer)
    assert layout.level == "colours"
    assert len(layout.nodes) < 60
    assert [row.label for row in layout.rows] == ["arguments", "forward", "backward", "update"]


def test_tracks_split_where_conflicts_are_and_join_elsewhere(attention: Analysis) -> None:
    layout = gl.graph_layout(attention)
    middle = layout.lanes[0].x
    for conflict in attention.conflicts:
        left, right = (layout.nodes[layout.node_of[n]] for n in conflict.sides)
        assert (left.track, right.track) == (0, 1)
        assert left.x < middle < right.x
        assert left.y == right.y
    free = [n for n in layout.nodes if n.track < 0]
    assert {n.x for n in free if n.lane == 0} == {middle}


def test_edges_never_leave_their_lane_and_run_down(transformer: Analysis) -> None:
    layout = gl.graph_layout(transformer, "names")
    assert layout.edges
    for edge in layout.edges:
        a, b = layout.nodes[edge.source], layout.nodes[edge.target]
        lane = layout.lanes[a.lane]
        assert a.lane == b.lane
        assert a.y < b.y
        assert all(lane.x - lane.width / 2 <= x <= lane.x + lane.width / 2 for x in edge.xs)


def test_layout_is_deterministic(transformer: Analysis) -> None:
    first, second = (gl.graph_layout(transformer, "functions") for _ in range(2))
    assert first[:-2] == second[:-2]
    assert np.array_equal(first.node_of, second.node_of)


@pytest.mark.parametrize("level", graph_rows.LEVELS)
def test_folding_loses_no_name_and_no_conflict(transformer: Analysis, level: str) -> None:
    layout = gl.graph_layout(transformer, level, gl.GraphFilter(singles=True))
    shown = sorted(n for node in layout.nodes for n in node.names)
    lanes = {lane.group for lane in layout.lanes}
    real = [
        n
        for n in range(transformer.names.n)
        if transformer.names.size[n] > 1 and transformer.group[transformer.colour[n]] in lanes
    ]
    assert shown == real
    assert sorted(k for c in layout.conflicts for k in c.conflicts) == [
        c.index for c in transformer.conflicts
    ]
    assert sorted(s for o in layout.outlines for s in o.sets) == [
        s.index for s in transformer.compatibility_sets
    ]


def test_the_label_of_a_set_stands_clear_of_markers_and_in_the_picture(
    attention: Analysis,
) -> None:
    """The label of attention's set is below its last row, since a marker is above its first."""
    layout = gl.graph_layout(attention, "names")
    (outline,) = layout.outlines
    above, below = min(outline.ys) - 0.6, max(outline.ys) + 0.6

    def markers(row: float) -> int:
        return sum(
            abs(node.y - row) < 0.5 and min(outline.xs) < node.x < max(outline.xs)
            for node in layout.nodes
        )

    assert (markers(above), markers(below)) == (1, 0)
    assert outline.label_place == (min(outline.xs), max(outline.ys))
    y_range = GraphPlot(layout).figure.y_range
    assert y_range.start > outline.label_place[1] + 0.5


def test_repeated_layers_fold_and_say_how_often() -> None:
    sizes = {"d_model": 64, "hidden": 128, "heads": 4, "key_size": 16, "vocab": 256, "sequence": 32}
    one, three = (
        gl.graph_layout(analysed("transformer", layers=n, **sizes), "functions") for n in (1, 3)
    )
    assert {r.label for r in one.rows} == {r.label for r in three.rows}
    repeats = {r.label: r.repeats for r in three.rows}
    assert repeats["attention"] == 3
    assert repeats["geglu"] == 3
    assert repeats["loss_fn"] == 1


def test_focus_keeps_what_is_near(attention: Analysis) -> None:
    name = attention.conflicts[0].sides[0]
    one, two = (
        gl.graph_layout(attention, None, gl.GraphFilter(focus=[name], hops=k)) for k in (1, 2)
    )
    near = {n for node in one.nodes for n in node.names}
    assert name in near
    assert near == gl.neighbourhood(attention, [name], 1)
    assert near < {n for node in two.nodes for n in node.names}
    assert "within 1 hop of" in one.note


def test_conflicts_only(transformer: Analysis) -> None:
    layout = gl.graph_layout(transformer, "names", gl.GraphFilter(conflicts_only=True))
    assert [lane.label for lane in layout.lanes] == ["sequence"]
    assert sum(len(c.conflicts) for c in layout.conflicts) == len(transformer.conflicts)


def test_conflicts_only_of_a_program_without_any_is_empty() -> None:
    assert gl.graph_layout(analysed("mlp"), None, gl.GraphFilter(conflicts_only=True)).nodes == ()


def test_every_marker_has_a_row_in_the_table_twin(transformer: Analysis) -> None:
    layout = gl.graph_layout(transformer, "functions")
    frame = nodes_frame(layout)
    assert len(frame) == len(layout.nodes)
    assert frame["n_names"].sum() == sum(len(n.names) for n in layout.nodes)


def test_a_tap_reports_names_and_conflicts(attention: Analysis) -> None:
    seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    plot = GraphPlot(gl.graph_layout(attention), on_select=lambda *found: seen.append(found))
    plot.tapped.tags = [[3], [], [], 1]
    assert seen[-1] == (plot.layout.nodes[3].names, ())
    plot.tapped.tags = [[], [1], [0], 2]
    assert seen[-1][1] == plot.layout.conflicts[1].conflicts
    assert set(seen[-1][0]) == set(attention.conflicts[seen[-1][1][0]].sides)
    # A marker lies on its red line, and the line in its set: the tap was meant for the marker
    plot.tapped.tags = [[3], [1], [0], 3]
    assert seen[-1] == (plot.layout.nodes[3].names, ())
    plot.tapped.tags = [[], [], [], 4]
    assert seen[-1] == ((), ())


def test_a_tap_inside_an_outline_reports_all_of_its_set(attention: Analysis) -> None:
    seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    plot = GraphPlot(gl.graph_layout(attention), on_select=lambda *found: seen.append(found))
    plot.tapped.tags = [[], [], [0], 1]
    (compatible,) = attention.compatibility_sets
    assert set(seen[-1][1]) == set(compatible.conflicts)
    assert set(seen[-1][0]) == {
        name for conflict in compatible.conflicts for name in attention.conflicts[conflict].sides
    }


def test_a_selection_from_elsewhere_is_shown_without_an_echo(attention: Analysis) -> None:
    seen: list[object] = []
    plot = GraphPlot(gl.graph_layout(attention), on_select=lambda *found: seen.append(found))
    conflict = attention.conflicts[2]
    plot.select(conflict.sides, [2])
    assert plot.nodes.selected.indices == sorted(
        int(plot.layout.node_of[n]) for n in conflict.sides
    )
    assert plot.conflicts.selected.indices == [2]
    assert not seen


def test_many_lanes_have_room_for_their_headings_and_markers() -> None:
    sizes = range(20, 20 + 2 * MANY_LANES)
    matrices = [jnp.ones(shape) for shape in itertools.pairwise(sizes)]
    layout = gl.graph_layout(
        traced(lambda *factors: functools.reduce(jnp.matmul, factors), *matrices)
    )
    assert len(layout.lanes) > MANY_LANES
    plot = GraphPlot(layout)
    assert plot.figure.xaxis[0].major_label_orientation == "vertical"
    headings = plot.figure.xaxis[0].major_label_overrides.values()
    assert all("\n" not in str(heading) for heading in headings)
    assert max(plot.nodes.data["size"]) < 12


def test_what_is_selected_is_seen_on_every_hue(attention: Analysis) -> None:
    figure = GraphPlot(gl.graph_layout(attention)).figure
    (markers,) = figure.select(name="names")
    drawn, selected = markers.glyph, markers.selection_glyph
    assert (drawn.fill_color, selected.fill_color) == ("hue", "white")
    assert (drawn.size, selected.size) == ("size", "size_on")


def test_the_picture_is_drawn_on_canvas(attention: Analysis) -> None:
    assert GraphPlot(gl.graph_layout(attention)).figure.output_backend == "canvas"


def lanes_of(**sizes: int) -> GraphPlot:
    """The graph of a chain of products whose weights have these names and sizes."""

    def chain(x: Any, weights: dict[str, Any]) -> Any:
        for word in words[1:]:
            x = x @ weights[word]
        return x

    words, dims = list(sizes), list(sizes.values())
    shapes = {
        word: jax.ShapeDtypeStruct(shape, "float32")
        for word, shape in zip(words[1:], itertools.pairwise(dims), strict=True)
    }
    x = jax.ShapeDtypeStruct((4, dims[0]), "float32")
    return GraphPlot(gl.graph_layout(analyse(tl.from_jax(chain, x, shapes))))


def test_headings_stand_upright_where_they_would_run_into_each_other() -> None:
    narrow = lanes_of(a=8, b=16, c=32)
    assert narrow.figure.xaxis[0].major_label_orientation == "horizontal"
    words = [
        "input",
        "embedding",
        "projection",
        "attention",
        "transition",
        "expansion",
        "reduction",
    ]
    wide = lanes_of(**{word: 8 * (number + 1) for number, word in enumerate(words)})
    assert len(wide.layout.lanes) < 12
    assert wide.figure.xaxis[0].major_label_orientation == "vertical"
