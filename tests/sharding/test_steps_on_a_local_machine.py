"""Our own device-local steps compute the same function on a machine without XLA."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import analysed, traced
from tests.sharding.local_machine import LocalMachine
from toast_lab.cost.problem import Problem
from toast_lab.sharding.state import State, legal_actions
from toast_lab.sharding.step_kinds import ALL_GATHER, COMPUTE, STEP_KINDS

S = jax.ShapeDtypeStruct
F = jnp.float32


def softmax_block(x, w1, w2, scale):
    h = x * scale
    a = h @ h.T
    e = jnp.exp(a - jnp.max(a, axis=1)[:, None])
    p = e / jnp.sum(e, axis=1)[:, None]
    return jnp.tanh((p @ x) @ w1) @ w2 + x, jnp.sum(a, axis=0)


def two_sets(x):
    """A function with two compatibility sets; resolving them differently takes an all_to_all."""
    z = x @ x.T
    return z + jnp.sum(z, axis=1)[None, :]


PROGRAMS = {
    "mlp": lambda: (analysed("mlp", batch=16, inputs=8, hidden=16, outputs=8), None),
    "xxt": lambda: (analysed("xxt", rows=16, columns=8), None),
    "attention": lambda: (analysed("attention", sequence=16, d_model=8, key=8, value=8), None),
    "two sets": lambda: (traced(two_sets, S((16, 8), F)), two_sets),
    "softmax block": lambda: (
        traced(softmax_block, S((16, 8), F), S((8, 16), F), S((16, 8), F), S((8,), F)),
        softmax_block,
    ),
}


def reference(name, fn, arguments):
    fn = (
        fn
        or {
            "mlp": "toast_lab.models.mlp.mlp",
            "xxt": "toast_lab.models.xxt.f",
            "attention": "toast_lab.models.attention.attn",
        }[name]
    )
    if isinstance(fn, str):
        module, _, attribute = fn.rpartition(".")
        fn = getattr(__import__(module, fromlist=[attribute]), attribute)
    return [
        np.asarray(r)
        for r in jax.tree_util.tree_leaves(fn(*(np.asarray(a, np.float32) for a in arguments)))
    ]


@pytest.mark.parametrize("mesh", [{"a": 2, "b": 4}, {"a": 8}, {"a": 2, "b": 2, "c": 2}], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_forty_random_plans(name, mesh):
    analysis, fn = PROGRAMS[name]()
    problem = Problem(analysis, mesh)
    program = analysis.program
    rng = np.random.default_rng(7)
    arguments = [rng.normal(size=program.dims(a)) for a in range(program.n_arguments)]
    expected = reference(name, fn, arguments)
    kinds = set()
    for _ in range(40):
        state = State(problem.space)
        for _ in range(rng.integers(1, 10)):
            actions = legal_actions(state)
            if not actions:
                break
            state.apply(actions[rng.integers(len(actions))])
        machine = LocalMachine(program, state.op_factor, state.value_dim, problem.mesh.sizes)
        kinds |= {STEP_KINDS[k] for k in machine.steps.kind}
        for got, want in zip(machine.run(arguments), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
    assert {"all_gather", "compute"} <= kinds
    assert name != "two sets" or "all_to_all" in kinds


def test_three_axes_change_their_dims_in_few_steps():
    """Any change of dims moves the data correctly; one permute can exchange two axes."""
    program = traced(jnp.tanh, S((8, 8, 8), F)).program
    tanh = program.kind.index("tanh")
    names = program.use_names(int(program.use_ptr[tanh]))
    array = np.random.default_rng(3).normal(size=(8, 8, 8))
    dims = list(itertools.product(range(3), repeat=3))
    kinds = {}
    for before, after in itertools.product(dims, dims):
        value_dim = np.asarray([before, after], np.int8)
        op_factor = np.full((program.n_ops, 3), -1, np.int32)
        op_factor[tanh] = [names[dim] for dim in after]
        machine = LocalMachine(program, op_factor, value_dim, (2, 2, 2))
        (got,) = machine.run([array])
        np.testing.assert_allclose(got, np.tanh(array))
        kinds[before, after] = [STEP_KINDS[k] for k in machine.steps.kind if k != COMPUTE]
    assert kinds[(0, 0, 1), (0, 1, 0)] == ["permute"]
    assert kinds[(2, 1, 1), (1, 2, 1)] == ["permute"]
    # The first axis goes first; otherwise shards would have to be permuted in between
    assert kinds[(0, 0, 1), (0, 2, 0)] == ["all_to_all", "all_to_all"]
    assert kinds[(0, 1, 2), (0, 1, 2)] == []
    assert sum(map(len, kinds.values())) <= 1656, "of 729 changes; one fixed order took 1932"


def test_a_missing_gather_is_noticed():
    """The machine really checks: without one all_gather of a plan, its run fails."""
    analysis = analysed("attention", sequence=16, d_model=8, key=8, value=8)
    problem = Problem(analysis, {"s": 4})
    state = State(problem.space)
    from toast_lab.sharding.space import parse_action

    state.apply(parse_action(analysis, problem.mesh, ("S", "s", 1)))
    machine = LocalMachine(analysis.program, state.op_factor, state.value_dim, (4,))
    row = int(np.flatnonzero(machine.steps.kind == ALL_GATHER)[0])
    machine.steps.axes[row] = 0
    rng = np.random.default_rng(0)
    arguments = [rng.normal(size=analysis.program.dims(a)) for a in range(4)]
    with pytest.raises(AssertionError, match="does not hold"):
        machine.run(arguments)
