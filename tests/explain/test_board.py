"""The conflict board: what each side of each conflict costs on each axis."""

import json

import pytest

import toast_lab as tl
from tests.helpers import analysed, plan, small_transformer
from toast_lab.cost.problem import Problem, price
from toast_lab.explain.board import conflicts
from toast_lab.text import line_text

MESH = {"d": 2, "m": 4}


@pytest.fixture(scope="module", params=["attention", "forward", "train"])
def problem(request):
    if request.param == "attention":
        return Problem(analysed("attention"), MESH, "tpu-v3")
    return Problem(small_transformer(layers=3, mode=request.param), MESH, "tpu-v3")


def test_there_is_a_row_for_every_resolution_and_an_option_for_each_side_and_axis(problem):
    board, analysis = conflicts(problem), problem.analysis
    assert 2 * len(board.disputes) == analysis.n_resolutions > 0
    assert sorted(s for d in board.disputes for s in d.sets) == [
        s.index for s in analysis.compatibility_sets
    ]
    for dispute in board.disputes:
        assert [(o.axis, o.bit) for o in dispute.options] == [
            ("d", 0),
            ("d", 1),
            ("m", 0),
            ("m", 1),
        ]


def test_an_option_costs_what_a_plan_of_its_action_costs(problem):
    board = conflicts(problem)
    for option in (o for d in board.disputes for o in d.options if o.possible):
        cost = price(problem, plan(problem, option.action))
        assert option.time_s == pytest.approx(cost.time_s, rel=1e-12)
        assert option.peak_bytes == cost.peak_bytes
        assert sum(option.collectives.values()) == len(cost.collectives)
        assert option.comm_bytes >= 0
    assert (board.unsharded_time_s, board.unsharded_peak_bytes) == problem.baseline


def test_a_side_shards_the_dim_that_it_says(problem):
    """The plan of an option has its axis on the conflict's dim that the option names.

    This is checked on the tensors whose definition has the conflict.
    """
    program, checked = problem.analysis.program, 0
    for dispute in conflicts(problem).disputes:
        for option in (o for o in dispute.options if o.possible):
            specs = dict(
                zip(program.value_name, plan(problem, option.action).value_specs(), strict=True)
            )
            for tensor in dispute.tensors:
                value = next(
                    v for v in range(program.n_values) if program.value_name[v] == tensor.value
                )
                if program.where(int(program.value_op[value])) != tensor.where:
                    continue
                spec = specs[tensor.value]
                if any(option.axis in axes for axes in spec):
                    assert option.axis in spec[tensor.dims[option.bit]], (tensor, option)
                    checked += 1
    assert checked >= 4


def test_the_sides_differ_and_the_table_names_them(problem):
    board = conflicts(problem)
    text = str(board)
    for dispute in board.disputes:
        assert dispute.cheapest in dispute.options
        assert all(o.action in text for o in dispute.options if o.possible)
        assert any(f"{t.value} " in text and line_text(t.where) in text for t in dispute.tensors)
    assert any(len({o.time_s for o in d.options}) > 2 for d in board.disputes)
    assert json.loads(json.dumps(board.to_json()))["conflicts"][0]["options"][0]["action"] in text


def test_axes_that_do_not_divide_are_said_and_axes_of_one_left_out():
    board = conflicts(Problem(analysed("attention"), {"a": 3, "b": 1, "c": 2}))
    options = board.disputes[0].options
    assert {o.axis for o in options} == {"a", "c"}
    assert [o.possible for o in options] == [False, False, True, True]
    assert board.disputes[0].cheapest.axis == "c"
    assert "not possible" in str(board)


def test_a_program_without_conflicts():
    board = conflicts(Problem(analysed("mlp"), MESH))
    assert board.disputes == ()
    assert "no conflicts" in str(board)
    assert str(board).startswith("unsharded: ")


def test_it_is_public_and_its_stage_stays_importable():
    from toast_lab.conflicts import analysis

    assert analysis.Analysis is tl.Analysis
    assert tl.conflicts(Problem(analysed("mlp"), MESH)).disputes == ()
