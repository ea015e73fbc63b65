"""Figure 5: simplified attention has five conflicts, one compatibility set, two resolutions.

The paper prints its set as {(S111, S311), (S111, S31111), (Sc, S31111), (Sc1, S3112), (Sc11,
S21)}. Two of these are misprints against its own listing 5c: ``a`` is defined with [S11, S311], so
the first pair is (S11, S311); the reduce uses ``a`` as [S111, S3111], so the second is (S111,
S3111) - S111 and S31111 never meet on one tensor. Its reduce_{1,add} counts dims from 1 (it
removes the rows, since ``b`` keeps S3111), its broadcast_0 from 0; ours both count from 0.
"""

import jax.numpy as jnp
import pytest

from tests.helpers import analysed, pair_texts, plan, traced
from toast_lab.conflicts.analysis import names_listing
from toast_lab.conflicts.compatibility import JOINED
from toast_lab.cost.problem import Problem, price
from toast_lab.lowering.listing import listing
from toast_lab.models.attention import attn, make

# the paper's name -> ours (the k-th name of colour S in program order)
PAPER = {
    "S": "S#0",
    "S1": "S#1",
    "S2": "S#2",
    "S3": "S#3",
    "S31": "S#4",
    "S11": "S#5",
    "S311": "S#6",
    "S111": "S#7",
    "S3111": "S#8",
    "Sc": "S#9",
    "S31111": "S#10",
    "Sc1": "S#11",
    "S3112": "S#12",
    "Sc11": "S#13",
    "S21": "S#14",
}


def test_5a_colours():
    assert str(analysed("attention")) == (
        "def attn(x : [S, D],\n"
        "         wq : [D, H1],\n"
        "         wk : [D, H1],\n"
        "         wv : [D, H2]) {\n"
        "  k  : [S, H1] = matmul(x, wk)\n"
        "  v  : [S, H2] = matmul(x, wv)\n"
        "  q  : [S, H1] = matmul(x, wq)\n"
        "  qt : [H1, S] = transpose(q)\n"
        "  a  : [S, S] = matmul(k, qt)\n"
        "  b  : [S] = reduce_{0,add}(a)\n"
        "  c  : [S, S] = broadcast_{0}(b)\n"
        "  d  : [S, S] = div(a, c)\n"
        "  z  : [S, H2] = matmul(d, v)\n"
        "  return z\n"
        "}"
    )


def test_5b_one_resolution_is_sequence_sharding_character_for_character():
    problem = Problem(analysed("attention"), {"s": 4})
    assert listing(problem, plan(problem, ("S", "s", 1)), dims="names") == (
        "def attn(x : [S{s}, D],\n"
        "         wq : [D, H1],\n"
        "         wk : [D, H1],\n"
        "         wv : [D, H2]) {\n"
        "  k  : [S{s}, H1] = matmul(x, wk)\n"
        "  v  : [S{s}, H2] = matmul(x, wv)\n"
        "  q  : [S{s}, H1] = matmul(x, wq)\n"
        "  qt : [H1, S{s}] = transpose(q)\n"
        "  k_ : [S, H1] = all_gather {s} k\n"
        "  a  : [S, S{s}] = matmul(k_, qt)\n"
        "  b  : [S{s}] = reduce_{0,add}(a)\n"
        "  c  : [S, S{s}] = broadcast_{0}(b)\n"
        "  d  : [S, S{s}] = div(a, c)\n"
        "  z_ : [S, H2] = matmul(d, v)\n"
        "  z  : [S{s}, H2] = reduce_scatter {s} z_\n"
        "  return z\n"
        "}"
    )


def test_5b_the_other_resolution_introduces_two_all_gathers():
    problem = Problem(analysed("attention"), {"s": 4})
    cost = price(problem, plan(problem, ("S", "s", 0)))
    assert cost.count("all_gather") == 2
    assert [c.value for c in cost.collectives if c.kind == "all_gather"] == ["qt", "v"]
    # the mock softmax sums over the dim that this resolution cuts, hence one more collective
    assert [(c.kind, c.value) for c in cost.collectives if c.kind != "all_gather"] == [
        ("all_reduce", "b")
    ]


def test_5c_every_op_and_argument_has_fresh_names():
    text = names_listing(analysed("attention"))
    assert "  qt : [H1#4, S#4] = transpose(q : [S#4, H1#4])" in text
    assert "  a  : [S#5, S#6] = matmul(k : [S#5, H1#5], qt : [H1#5, S#6])" in text
    assert "  b  : [S#8] = reduce_{0,add}(a : [S#7, S#8])" in text
    assert "  c  : [S#9, S#10] = broadcast_{0}(b : [S#10])" in text
    assert "  d  : [S#11, S#12] = div(a : [S#11, S#12], c : [S#11, S#12])" in text
    assert "  z  : [S#13, H2#2] = matmul(d : [S#13, S#14], v : [S#14, H2#2])" in text


def test_5d_exactly_five_conflicts_with_the_pairs_of_the_listing():
    expected = [
        ("S11", "S311"),
        ("S111", "S3111"),
        ("Sc", "S31111"),
        ("Sc1", "S3112"),
        ("Sc11", "S21"),
    ]
    assert pair_texts(analysed("attention")) == [(PAPER[a], PAPER[b]) for a, b in expected]


def test_5d_the_printed_set_has_two_pairs_that_never_meet():
    pairs = pair_texts(analysed("attention"))
    assert (PAPER["S111"], PAPER["S311"]) not in pairs
    assert (PAPER["S111"], PAPER["S31111"]) not in pairs


def test_5d_dimension_graph_of_s():
    analysis = analysed("attention")
    text = analysis.name_text
    ours = {v: k for k, v in PAPER.items()}
    edges = {
        (ours[text[s]], ours[text[t]])
        for s, t in zip(analysis.names.source, analysis.names.target, strict=True)
        if text[s] in ours
    }
    assert edges == {
        ("S", "S1"),
        ("S", "S2"),
        ("S", "S3"),
        ("S3", "S31"),
        ("S31", "S311"),
        ("S1", "S11"),
        ("S11", "S111"),
        ("S311", "S3111"),
        ("S11", "Sc1"),
        ("S311", "S3112"),
        ("S3111", "S31111"),
        ("Sc", "Sc1"),
        ("S31111", "S3112"),
        ("Sc1", "Sc11"),
        ("S3112", "S21"),
        ("S2", "S21"),
    }


def test_one_compatibility_set_with_two_resolutions():
    analysis = analysed("attention")
    assert [len(s.conflicts) for s in analysis.compatibility_sets] == [5]
    assert analysis.n_resolutions == 2
    assert {box.outcome for box in analysis.sets.boxes} == {JOINED}


def test_sides_follow_rows_and_columns():
    """Side 0 of every conflict is the key sequence (rows of a), side 1 the query sequence."""
    analysis = analysed("attention")
    sides = [tuple(analysis.name_text[n] for n in c.sides) for c in analysis.conflicts]
    assert sides == pair_texts(analysis)


def attn_as_users_write_it(x, wq, wk, wv):
    a = (x @ wk) @ (x @ wq).T
    c = jnp.broadcast_to(jnp.sum(a, axis=0)[None, :], a.shape)
    return (a / c) @ (x @ wv)


@pytest.mark.parametrize(
    ("fn", "n_ops", "n_names"), [(attn, 10, 31), (attn_as_users_write_it, 11, 34)]
)
def test_size_of_the_analysis(fn, n_ops, n_names):
    """The ops include the zero of the reduction; [None, :] is a broadcast of its own."""
    analysis = traced(fn, *make().args)
    assert analysis.program.n_ops - analysis.program.n_arguments == n_ops
    assert analysis.names.n == n_names
    assert len(analysis.conflicts) == 5
    assert len(analysis.compatibility_sets) == 1
