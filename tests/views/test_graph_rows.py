"""Rows that unfold, filters, overlays, chains and patterns of the graph page, as data."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from tests.helpers import SMALL, analysed, plan, small_transformer
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import ToastError
from toast_lab.ir import locations, source_lines
from toast_lab.views import graph_layout as gl
from toast_lab.views import overlay, selection_facts
from toast_lab.views.graph_rows import LEVELS, op_scopes, scopes
from toast_lab.views.palette import NEUTRAL
from toast_lab.views.patterns import LONGEST, containing, matching
from toast_lab.views.program_table import program_lines


@pytest.fixture(scope="module")
def three() -> Analysis:
    return small_transformer(layers=3)


def test_a_row_unfolds_into_its_runs_and_layers_keep_their_number_backwards(
    three: Analysis,
) -> None:
    folded = gl.graph_layout(three, "functions")
    keys = {r.key for r in folded.rows if r.key}
    assert {"attention", "attention · backward"} <= keys
    layout = gl.graph_layout(three, "functions", unfolded={"attention", "attention · backward"})
    labels = [r.label for r in layout.rows]
    assert [x for x in labels if x.startswith("attention ") and "·" not in x] == [
        f"attention {k}/3" for k in (1, 2, 3)
    ]
    backward = [x for x in labels if x.startswith("attention · backward")]
    assert backward == [f"attention · backward {k}/3" for k in (3, 2, 1)]  # in program order
    # a run of the backward pass belongs to the run of the forward pass with the same number: they
    # share weights
    for k in (1, 2, 3):
        rows = [
            r for r in layout.rows if r.label in (f"attention {k}/3", f"attention · backward {k}/3")
        ]
        layers = {
            f"[{i}]"
            for r in rows
            for op in r.ops
            for v in three.program.operands(op)
            for i in range(3)
            if f"params['layers'][{i}]" in three.program.value_name[v]
        }
        assert layers == {f"[{k - 1}]"}
    assert sorted(op for r in layout.rows for op in r.ops) == sorted(
        op for r in folded.rows for op in r.ops
    )


def test_star_unfolds_everything_and_nothing_is_left_to_unfold(three: Analysis) -> None:
    layout = gl.graph_layout(three, "lines", unfolded=("*",))
    assert all(r.repeats == 1 for r in layout.rows)
    assert sum(len(n.names) for n in layout.nodes) == sum(
        len(n.names) for n in gl.graph_layout(three, "lines").nodes
    )
    assert [r.ops[0] for r in layout.rows] == sorted(r.ops[0] for r in layout.rows)


def test_each_layer_has_an_outline_of_its_own_once_unfolded(three: Analysis) -> None:
    assert [len(o.sets) for o in gl.graph_layout(three, "functions").outlines] == [3]
    assert [len(o.sets) for o in gl.graph_layout(three, "functions", unfolded=("*",)).outlines] == [
        1,
        1,
        1,
    ]


def test_filters_by_colour_and_by_function(three: Analysis) -> None:
    group = three.group_index("hidden")
    layout = gl.graph_layout(three, "lines", gl.GraphFilter(groups=[group]))
    assert [lane.group for lane in layout.lanes] == [group]
    assert "only hidden" in layout.note
    assert "geglu" in scopes(three)
    scope = op_scopes(three)
    shown = gl.graph_layout(three, "names", gl.GraphFilter(scopes=["geglu"]))
    assert {scope[op] for r in shown.rows for op in r.ops} == {"geglu"}


def test_bytes_of_a_name_are_those_of_the_values_that_carry_it() -> None:
    attention = analysed("attention")
    carried = overlay.name_bytes(attention)
    program = attention.program
    x = program.value_name.index("x")
    assert carried[program.def_names(x)[1]] == program.nbytes(x)
    drawn = overlay.overlay(attention, gl.graph_layout(attention), "bytes")
    assert drawn is not None
    assert "8 KiB" in drawn.texts
    assert set(drawn.hues) <= {*overlay.HUE_SCALE, NEUTRAL}


def test_axes_of_a_plan_on_the_markers() -> None:
    attention = analysed("attention")
    problem = Problem(attention, {"data": 4, "model": 2})
    sharded = plan(problem, "S@1->data", "D->model")
    axes_of_name = overlay.name_axes(attention, sharded)
    for v, spec in enumerate(sharded.value_specs()):
        for name, axes in zip(attention.program.def_names(v), spec, strict=True):
            assert set(axes) <= set(axes_of_name[name])
    drawn = overlay.overlay(attention, gl.graph_layout(attention), "axis", sharded)
    assert drawn is not None
    assert set(drawn.texts) == {"", "data", "model"}
    hue_of = dict(zip(drawn.texts, drawn.hues, strict=True))
    assert len({hue_of["data"], hue_of["model"], hue_of[""]}) == 3


def test_shares_of_the_time_add_up_over_ops() -> None:
    attention = analysed("attention")
    problem = Problem(attention, {"data": 4})
    cost = price(problem, plan(problem))
    layout = gl.graph_layout(attention)
    shares = overlay._shares(attention, layout, cost)
    by_op = {
        int(attention.names.op[n.names[0]]): s for n, s in zip(layout.nodes, shares, strict=True)
    }
    total = sum(row.time_s for row in cost.ops)
    assert total > 0
    assert by_op == pytest.approx(
        {row.op: row.time_s / total for row in cost.ops if row.op in by_op}
        | {op: 0.0 for op in by_op if op not in {row.op for row in cost.ops}}
    )
    assert sum(by_op.values()) == pytest.approx(1.0)
    assert overlay.overlay(attention, layout, "colour") is None


def test_the_chain_runs_from_side_to_side_through_nodes_that_are_shown(three: Analysis) -> None:
    conflict = three.conflicts[0]
    names = selection_facts.chain(three, 0)
    for level in LEVELS:
        layout = gl.graph_layout(three, level)
        path = gl.chain_path(layout, names)
        assert path[0] == layout.node_of[conflict.sides[0]]
        assert path[-1] == layout.node_of[conflict.sides[1]]
        assert all(a != b for a, b in itertools.pairwise(path))


def test_patterns() -> None:
    texts = ["a = dot_general(b)", "c = Transpose(a)", "<img src=x>"]
    assert containing("TRANS", texts) == [1]
    assert matching("^(a|c) =", texts) == [0, 1]
    with pytest.raises(ToastError, match=r"unterminated subpattern at character 1"):
        matching("(a", texts)
    with pytest.raises(ToastError, match=f"at most {LONGEST}"):
        matching("a" * (LONGEST + 1), texts)


def test_only_python_is_read_as_source(tmp_path: object) -> None:
    assert source_lines.file_lines("/etc/hostname") == []
    assert source_lines.source_text(locations.SourceFrame("/etc/hostname", 1)) == ""
    attention = analysed("attention")
    ops = source_lines.ops_of_lines(attention.program)
    (file,) = ops
    text = source_lines.file_lines(file)
    assert text[24].strip() == "b = jnp.sum(a, axis=0)"
    assert sorted(op for line_ops in ops[file].values() for op in line_ops) == list(
        range(attention.program.n_arguments, attention.program.n_ops)
    )


def test_a_listing_travels_as_one_string_of_all_its_lines(three: Analysis) -> None:
    pytest.importorskip("panel")
    from toast_lab.app.listing_pane import packed

    lines, sent = program_lines(three), json.loads(packed(three))
    assert len(sent) == len(lines) > SMALL["layers"]
    assert ["".join(text for text, _ in pieces) for _, pieces, _ in sent] == [
        line.text for line in lines
    ]
    assert np.all(np.diff([op for op, _, _ in sent]) >= 0)
