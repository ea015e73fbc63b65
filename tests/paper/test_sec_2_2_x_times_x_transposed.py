"""Sections 2.2 and 3.2: f(x) = x @ x.T reaches one matmul along two paths."""

from tests.helpers import analysed, pair_texts, plan
from toast_lab.cost.problem import Problem
from toast_lab.lowering.listing import listing


def test_both_dims_of_the_result_get_the_same_colour():
    assert str(analysed("xxt")) == (
        "def f(x : [S, T]) {\n  y : [T, S] = transpose(x)\n  z : [S, S] = matmul(x, y)\n  return "
        "z\n}"
    )


def test_one_conflict_on_the_result():
    analysis = analysed("xxt")
    assert pair_texts(analysis) == [("S#2", "S#3")]
    (place,) = analysis.places[0]
    assert analysis.program.value_name[place.value] == "z"
    assert place.use == -1


def test_its_two_resolutions_shard_rows_or_columns():
    problem = Problem(analysed("xxt"), {"a": 4})
    rows, columns = (listing(problem, plan(problem, ("S", "a", bit))) for bit in (0, 1))
    assert "y_ : [4, 32] = all_gather {a} y\n  z  : [32{a}, 32] = matmul(x, y_)" in rows
    assert "x_ : [32, 4] = all_gather {a} x\n  z  : [32, 32{a}] = matmul(x_, y)" in columns
