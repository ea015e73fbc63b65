"""Propagation of argument shardings: the paper's examples, and laws.

The laws hold for any decisions on any program.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import analysed, plan, propagated_arguments, small_transformer, traced
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem, price
from toast_lab.lowering.listing import listing
from toast_lab.sharding.mesh import make_mesh
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.propagate import Propagation
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.state import State, legal_actions

S = jax.ShapeDtypeStruct
F = jnp.float32


def propagated(problem: Problem, *shardings: tuple[str, int, str]) -> ShardingPlan:
    state = propagated_arguments(problem, *shardings)
    propagated_plan = ShardingPlan(problem.analysis.program, problem.mesh, state)
    propagated_plan.check()
    return propagated_plan


def specs(made: ShardingPlan) -> dict[str, tuple[tuple[str, ...], ...]]:
    return dict(zip(made.program.value_name, made.value_specs(), strict=True))


def test_the_hidden_dim_of_w1_reaches_w2_and_emits_an_all_reduce():
    """This is the example of TOAST section 2.2, "How it was done before"."""
    problem = Problem(analysed("mlp"), {"m": 4})
    propagated_plan = propagated(problem, ("w1", 1, "m"))
    assert propagated_plan.argument_specs() == {
        "x": ((), ()),
        "w1": ((), ("m",)),
        "w2": (("m",), ()),
    }
    assert [(c.kind, c.value) for c in price(problem, propagated_plan).collectives] == [
        ("all_reduce", "w")
    ]
    assert "w  : [256, 16] = all_reduce {m} w_" in str(listing(problem, propagated_plan))


def test_two_paths_to_one_op_conflict_and_the_op_stays_whole():
    problem = Problem(analysed("xxt"), {"m": 4})
    specs_of = specs(propagated(problem, ("x", 0, "m")))
    assert (specs_of["x"], specs_of["y"], specs_of["z"]) == ((("m",), ()), ((), ("m",)), ((), ()))


def test_two_uses_that_want_different_dims_leave_the_value_whole():
    """A vector shards two products, one along the matrix's rows, one along its columns.

    So the matrix itself stays whole.
    """
    analysis = traced(lambda x, s: (x * s[:, None], x * s[None]), S((8, 8), F), S((8,), F))
    propagated_plan = propagated(Problem(analysis, {"m": 4}), ("s", 0, "m"))
    assert propagated_plan.argument_specs() == {"x": ((), ()), "s": (("m",),)}
    specs_of = propagated_plan.value_specs()
    assert [specs_of[int(v)] for v in analysis.program.outputs] == [(("m",), ()), ((), ("m",))]


def test_sharding_the_sequence_stops_at_the_conflict_of_attention():
    """Only a resolution can settle the conflict.

    Without one, every device computes the whole product of keys and queries.
    """
    analysis = analysed("attention")
    problem = Problem(analysis, {"m": 4})
    propagated_plan = propagated(problem, ("x", 0, "m"))
    assert specs(propagated_plan)["k"] == (("m",), ())
    assert specs(propagated_plan)["qt"] == ((), ("m",))
    product = analysis.program.value_op[analysis.program.value_name.index("a")]
    assert propagated_plan.op_factor[product].tolist() == [-1]
    gathered = {
        c.value for c in price(problem, propagated_plan).collectives if c.kind == "all_gather"
    }
    assert {"k", "qt"} <= gathered
    best = min(price(problem, plan(problem, ("S", "m", bit))).compute_s for bit in (0, 1))
    assert price(problem, propagated_plan).compute_s > best


def test_the_batch_of_the_tokens_alone_gives_data_parallelism_of_a_training_step():
    analysis = small_transformer(layers=2, mode="train")
    problem = Problem(analysis, {"d": 4})
    by_arguments = price(problem, propagated(problem, ("tokens", 0, "d")))
    by_colour = price(problem, plan(problem, ("batch", "d")))
    assert by_arguments.count("all_reduce", "d") > 10
    assert by_arguments.collectives == by_colour.collectives
    assert by_arguments.score == by_colour.score


def test_a_weight_sharded_after_the_batch_is_fsdp_and_before_it_is_not():
    problem = Problem(analysed("mlp"), {"d": 4})
    after = price(problem, propagated(problem, ("x", 0, "d"), ("w1", 0, "d")))
    assert [(c.kind, c.value) for c in after.collectives] == [("all_gather", "w1")]
    before = propagated(problem, ("w1", 0, "d"))
    # The weight's rows have put the axis on the columns of x
    assert before.argument_specs()["x"] == ((), ("d",))
    with pytest.raises(AssertionError):
        propagated(problem, ("w1", 0, "d"), ("x", 0, "d"))


def test_chains_of_square_weights_alternate_between_columns_and_rows():
    def chain(x, w):
        for each in w:
            x = jnp.tanh(x @ each)
        return x

    analysis = traced(chain, S((8, 16), F), [S((16, 16), F)] * 4)
    propagation = Propagation(analysis, make_mesh({"m": 4}))
    state = propagation.unsharded()
    propagation.shard(state, np.arange(1, 5), 1, 0)
    assert state.value_dim[1:5, 0].tolist() == [1, 0, 1, 0]


def test_loops_hand_shardings_on_from_round_to_round():
    def stack(x, ws):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w) + h, jnp.sum(h, axis=1)), x, ws)

    analysis = traced(stack, S((8, 16), F), S((3, 16, 16), F))
    problem = Problem(analysis, {"d": 4, "m": 2})
    propagated_plan = propagated(problem, ("x", 0, "d"), ("ws", 1, "m"))
    program = analysis.program
    carried = [
        value
        for value in range(program.n_values)
        if program.kind[program.value_op[value]] in ("while.enter", "while.result")
        and program.dims(value) == (8, 16)
    ]
    assert len(carried) >= 2
    for value in carried:
        assert propagated_plan.value_dim[value, 0] == 0, program.value_name[value]
    assert propagated_plan.value_specs()[int(program.outputs[0])][0] == ("d",)
    assert "all_reduce" in {c.kind for c in price(problem, propagated_plan).collectives}


def test_what_is_made_of_constants_takes_nothing():
    analysis = small_transformer(mode="forward")
    propagated_plan = propagated(Problem(analysis, {"d": 4}), ("tokens", 1, "d"))
    assert (propagated_plan.value_dim[analysis.program.value_is_constant] == -1).all()
    assert (propagated_plan.value_dim >= 0).sum() > 20


# -- laws ------------------------------------------------------------------------------------------

PROGRAMS = {
    "xxt": lambda: analysed("xxt"),
    "attention": lambda: analysed("attention"),
    "forward": lambda: small_transformer(mode="forward"),
    "train": lambda: small_transformer(mode="train", layers=2),
    "gns": lambda: analysed("gns", steps=1),
}
MESHES = [{"a": 2, "b": 4}, {"a": 8}, {"a": 2, "b": 2, "c": 2}, {"a": 3, "b": 2}]
decisions = st.lists(st.integers(0, 10**6), max_size=5)


def decide(
    analysis: Analysis, mesh: dict[str, int], numbers: list[int]
) -> list[tuple[int, int, int]]:
    """Return (argument, dim, axis) for each number."""
    program = analysis.program
    rows = [
        (a, d, x)
        for a in range(program.n_arguments)
        for d in range(len(program.dims(a)))
        for x in range(len(mesh))
    ]
    return [rows[n % len(rows)] for n in numbers]


@settings(max_examples=40)
@given(st.sampled_from(sorted(PROGRAMS)), st.sampled_from(MESHES), decisions, st.integers(0, 99))
def test_whole_sweeps_in_any_order_of_independent_ops_come_to_the_same(name, mesh, numbers, seed):
    """The worklist agrees with plain sweeps that apply the rules to every op.

    The sweeps visit independent ops in random order.
    """
    analysis = PROGRAMS[name]()
    propagation = Propagation(analysis, make_mesh(mesh))
    fast, slow = propagation.unsharded(), propagation.unsharded()
    order = reordered(analysis, np.random.default_rng(seed))
    for argument, dim, axis in decide(analysis, mesh, numbers):
        propagation.shard(fast, np.asarray([argument]), dim, axis)
        sweep(analysis, make_mesh(mesh).array(), slow, argument, dim, axis, order)
    assert np.array_equal(fast.op_factor, slow.op_factor)
    assert np.array_equal(fast.value_dim, slow.value_dim)


@settings(max_examples=40)
@given(st.sampled_from(sorted(PROGRAMS)), st.sampled_from(MESHES), decisions)
def test_propagated_shardings_are_plans_and_grow_only(name, mesh, numbers):
    analysis = PROGRAMS[name]()
    propagation = Propagation(analysis, make_mesh(mesh))
    state = propagation.unsharded()
    for argument, dim, axis in decide(analysis, mesh, numbers):
        before = state.copy()
        changed = propagation.shard(state, np.asarray([argument]), dim, axis)
        assert changed == sum((new != old).sum() for new, old in zip(state, before, strict=True))
        assert all(
            np.array_equal(new[old >= 0], old[old >= 0])
            for new, old in zip(state, before, strict=True)
        )
    ShardingPlan(analysis.program, make_mesh(mesh), state).check()


def reordered(analysis: Analysis, rng: np.random.Generator) -> list[int]:
    """Return the ops in a random order in which every value is defined before its uses.

    The program must have no loops.
    """
    program = analysis.program
    assert not program.regions
    makers = [
        {int(program.value_op[v]) for v in program.operands(op)} for op in range(program.n_ops)
    ]
    users: list[list[int]] = [[] for _ in makers]
    for op, needed in enumerate(makers):
        for maker in needed:
            users[maker].append(op)
    ready = [op for op, needed in enumerate(makers) if not needed]
    order = []
    while ready:
        order.append(ready.pop(int(rng.integers(len(ready)))))
        for user in users[order[-1]]:
            makers[user].discard(order[-1])
            if not makers[user]:
                ready.append(user)
    assert len(order) == program.n_ops
    return order


def sweep(
    analysis: Analysis,
    sizes: np.ndarray,
    state: Sharding,
    argument: int,
    dim: int,
    axis: int,
    order: list[int],
) -> None:
    """Propagate one decision by sweeps over all ops.

    Ops are visited forward and backward, until a whole round changes nothing.
    """
    program = analysis.program
    split, held = state.op_factor, state.value_dim

    def fits(size: int, row: np.ndarray, what: int) -> bool:
        return size > 1 and size % (sizes[axis] * np.prod(sizes[row == what], dtype=int)) == 0

    def shard(value: int, d: int) -> bool:
        if held[value, axis] >= 0 or program.value_is_constant[value]:
            return False
        if not fits(program.dims(value)[d], held[value], d):
            return False
        held[value, axis] = d
        return True

    def decide_op(op: int) -> bool:
        near = [
            (program.use_value[u], program.use_names(u))
            for u in range(*program.use_ptr[op : op + 2])
        ]
        near += [(v, program.def_names(v)) for v in program.results(op)]
        wanted = {names[held[v, axis]] for v, names in near if held[v, axis] >= 0}
        wanted = {
            f
            for f in wanted
            if analysis.names.shardable[f] and program.factor_size[f] % sizes[axis] == 0
        }
        if split[op, axis] >= 0 or len(wanted) != 1:
            return False
        (factor,) = wanted
        if not fits(program.factor_size[factor], split[op], factor):
            return False
        split[op, axis] = factor
        return True

    changed = shard(argument, dim)
    while changed:
        changed = False
        for op in order:
            changed |= decide_op(op)
            for v in program.results(op):
                if split[op, axis] in program.def_names(v):
                    changed |= shard(v, program.def_names(v).index(split[op, axis]))
        for op in reversed(order):
            for v in program.results(op):
                wanted = set()
                for u in uses_of(analysis)[v]:
                    user = int(np.searchsorted(program.use_ptr, u, side="right")) - 1
                    if split[user, axis] in program.use_names(u):
                        wanted.add(program.use_names(u).index(split[user, axis]))
                if len(wanted) == 1:
                    changed |= shard(v, wanted.pop())
            changed |= decide_op(op)


@functools.lru_cache(maxsize=8)
def uses_of(analysis: Analysis) -> list[list[int]]:
    uses: list[list[int]] = [[] for _ in range(analysis.program.n_values)]
    for use, value in enumerate(analysis.program.use_value.tolist()):
        uses[value].append(use)
    return uses


# -- the same arrays as a search state -------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(st.integers(0, 10_000), max_size=5))
def test_arrays_that_treat_alike_ops_alike_are_a_state_of_the_same_key(choices):
    problem = Problem(small_transformer(mode="train", layers=3), {"a": 2, "b": 2})
    state = State(problem.space)
    for choice in choices:
        actions = legal_actions(state)
        if actions:  # a few actions may leave none on so small a mesh
            state.apply(actions[choice % len(actions)])
    reloaded = State.from_arrays(problem.space, state.op_factor, state.value_dim)
    assert reloaded is not None
    assert reloaded.key == state.key
    assert np.array_equal(reloaded.op_factor, state.op_factor)
    assert np.array_equal(reloaded.value_dim, state.value_dim)


def test_arrays_that_tell_alike_ops_apart_are_no_state():
    analysis = small_transformer(mode="train", layers=3)
    problem = Problem(analysis, {"m": 4})
    one_layer = propagated(problem, ("params['layers'][1]['w_up']", 1, "m"))
    assert State.from_arrays(problem.space, one_layer.op_factor, one_layer.value_dim) is None
    all_layers = plan(problem, ("hidden", "m"))
    ops = all_layers.op_factor.copy()
    label = problem.space.alike.ops.label
    several = np.flatnonzero((ops[:, 0] >= 0) & (np.bincount(label)[label] > 1))
    ops[several[-1]] = -1  # only one op is computed whole; the values stay alike
    assert State.from_arrays(problem.space, all_layers.op_factor, all_layers.value_dim) is not None
    assert State.from_arrays(problem.space, ops, all_layers.value_dim) is None
