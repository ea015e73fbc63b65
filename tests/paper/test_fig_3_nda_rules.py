"""Figure 3: the rules of the named dimension analysis, one test each.

The identities I are built into names (one name per factor of an op); ``source`` and ``target`` hold
the map M.
"""

import jax
import jax.numpy as jnp

from tests.helpers import traced

S = jax.ShapeDtypeStruct


def names_of(fn, *shapes):
    """Return the result's def names, its op's use names, M as pairs, the arguments' def names."""
    analysis = traced(fn, *(S(shape, jnp.float32) for shape in shapes))
    program = analysis.program
    op = int(program.value_op[program.outputs[0]])
    uses = [program.use_names(u) for u in range(program.use_ptr[op], program.use_ptr[op + 1])]
    edges = set(zip(analysis.names.source.tolist(), analysis.names.target.tolist(), strict=True))
    arguments = [program.def_names(a) for a in range(program.n_arguments)]
    return program.def_names(int(program.outputs[0])), uses, edges, arguments


def test_variable_use_gets_fresh_names_and_a_map_from_the_definition():
    _, (use,), edges, (definition,) = names_of(jnp.sin, (3, 5))
    assert set(use).isdisjoint(definition)
    assert edges == set(zip(definition, use, strict=True))


def test_two_uses_get_different_names():
    _, uses, edges, (definition,) = names_of(lambda x: jnp.sin(x) + jnp.cos(x), (3, 5))
    targets = [t for s, t in edges if s == definition[0]]
    assert len(targets) == 2
    assert len(uses) == 2


def test_function_maps_dims_one_to_one():
    result, (use,), _, _ = names_of(jnp.sin, (3, 5))
    assert result == use


def test_op_identifies_both_operands_with_the_result():
    result, (left, right), _, _ = names_of(jnp.add, (3, 5), (3, 5))
    assert result == left == right


def test_matmul_identifies_rows_columns_and_the_contracting_dim():
    (a1, a2), ((d1, d2), (c1, c2)), _, _ = names_of(jnp.matmul, (3, 5), (5, 7))
    assert (a1, a2, d2) == (d1, c2, c1)
    assert len({a1, a2, d2}) == 3


def test_reduce_drops_the_reduced_dim():
    result, (use, *_), _, _ = names_of(lambda x: jnp.max(x, axis=1), (3, 5, 7))
    assert result == [use[0], use[2]]


def test_transpose_permutes():
    result, (use,), _, _ = names_of(lambda x: jnp.transpose(x, (2, 0, 1)), (3, 5, 7))
    assert result == [use[2], use[0], use[1]]


def test_broadcast_adds_a_fresh_dim():
    result, (use,), edges, _ = names_of(lambda x: jax.lax.broadcast(x, (4,)), (3, 5))
    assert result[1:] == use
    assert result[0] not in {n for edge in edges for n in edge}


def test_values_made_of_constants_carry_no_edges():
    """We differ from the paper here: one causal mask must not tie two uses together."""

    def fn(x, y):
        mask = jnp.tril(jnp.ones((6, 6), bool))
        return jnp.where(mask, x, 0.0), jnp.where(mask, y, 0.0)

    analysis = traced(fn, S((6, 6), jnp.float32), S((6, 6), jnp.float32))
    colour = analysis.colour
    x, y = (analysis.program.def_names(a) for a in range(2))
    assert colour[x[0]] != colour[y[0]]
