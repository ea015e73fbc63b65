"""Figure 2: the two-layer MLP, its colours and its two device-local programs.

The figure writes 64{m}) and (64{m} where it means 64{m}; our notation leaves the stray brackets
out. Its ReLU is max(y, 0) in StableHLO.
"""

from tests.helpers import analysed, plan
from toast_lab.cost.problem import Problem
from toast_lab.lowering.listing import listing

MESH = {"b": 4, "m": 4}


def test_2a_dims_that_should_be_sharded_alike_share_a_colour():
    analysis = analysed("mlp")
    program = analysis.program
    by_name = {program.value_name[v]: v for v in range(program.n_values)}

    def colours(*places):
        return {
            int(analysis.colour[program.def_names(by_name[value])[dim]]) for value, dim in places
        }

    yellow = colours(("x", 0), ("y", 0), ("z", 0), ("w", 0))
    green = colours(("w1", 1), ("w2", 0), ("y", 1), ("z", 1))
    assert len(yellow) == len(green) == 1
    assert yellow != green
    for dim in (("x", 1), ("w2", 1), ("w", 1)):
        assert colours(dim).isdisjoint(yellow | green)
    assert str(analysis) == (
        "def mlp(x : [B, X],\n"
        "        w1 : [X, U],\n"
        "        w2 : [U, W]) {\n"
        "  y : [B, U] = matmul(x, w1)\n"
        "  z : [B, U] = max(y, 0)\n"
        "  w : [B, W] = matmul(z, w2)\n"
        "  return w\n"
        "}"
    )


def test_2a_has_no_conflict():
    assert analysed("mlp").conflicts == ()


def test_2b_batch_partitioning_needs_no_communication():
    problem = Problem(analysed("mlp"), MESH)
    assert listing(problem, plan(problem, ("B", "b"))) == (
        "def mlp(x : [256{b}, 32],\n"
        "        w1 : [32, 64],\n"
        "        w2 : [64, 16]) {\n"
        "  y : [256{b}, 64] = matmul(x, w1)\n"
        "  z : [256{b}, 64] = max(y, 0)\n"
        "  w : [256{b}, 16] = matmul(z, w2)\n"
        "  return w\n"
        "}"
    )


def test_2c_batch_and_model_partitioning_ends_in_one_all_reduce():
    problem = Problem(analysed("mlp"), MESH)
    assert listing(problem, plan(problem, ("B", "b"), ("U", "m"))) == (
        "def mlp(x : [256{b}, 32],\n"
        "        w1 : [32, 64{m}],\n"
        "        w2 : [64{m}, 16]) {\n"
        "  y  : [256{b}, 64{m}] = matmul(x, w1)\n"
        "  z  : [256{b}, 64{m}] = max(y, 0)\n"
        "  w_ : [256{b}, 16] = matmul(z, w2)\n"
        "  w  : [256{b}, 16] = all_reduce {m} w_\n"
        "  return w\n"
        "}"
    )
