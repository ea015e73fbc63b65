"""Names and M on programs that the paper's figures do not show."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.helpers import traced

S = jax.ShapeDtypeStruct
F = jnp.float32


def test_every_factor_is_a_name_and_arguments_come_first():
    analysis = traced(lambda x, y: x @ y, S((3, 5), F), S((5, 7), F))
    assert analysis.names.n == analysis.program.n_factors == 4 + 3
    assert [analysis.program.kind[analysis.names.op[n]] for n in range(4)] == ["argument"] * 4


def test_size_one_dims_carry_no_edges():
    analysis = traced(lambda x: jnp.sin(x), S((1, 5), F))
    assert analysis.names.source.tolist() == [1]


def test_a_merged_dim_links_its_major_factor_only():
    """[6, 4] -> [24].

    Rows are the major part of the merged dim and keep their colour, columns lose it.
    """
    analysis = traced(
        lambda x: jnp.sin(x.reshape(24)), S((6, 4), F), dim_names={"x": ("rows", "columns")}
    )
    program = analysis.program
    (out,) = program.def_names(int(program.outputs[0]))
    assert analysis.dim_text(out) == "rows"
    reshape = program.kind.index("reshape")
    rows, columns = program.factors(reshape)
    assert analysis.names.shardable[rows]
    assert not analysis.names.shardable[columns]


def test_minor_factors_are_linked_where_both_sides_split_alike():
    """[6, 4] -> [24] -> [6, 4].

    Merging and splitting in the same way brings the columns' colour back.
    """

    def fn(x):
        return jnp.sin(jnp.sin(x.reshape(24)).reshape(6, 4))

    analysis = traced(
        lambda x: x.reshape(24).reshape(6, 4) * 2.0,
        S((6, 4), F),
        dim_names={"x": ("rows", "columns")},
    )
    out = analysis.program.def_names(int(analysis.program.outputs[0]))
    assert [analysis.dim_text(n) for n in out] == ["rows", "columns"]
    through = traced(fn, S((6, 4), F), dim_names={"x": ("rows", "columns")})
    out = through.program.def_names(int(through.program.outputs[0]))
    assert through.dim_text(out[0]) == "rows"
    # sin works on one merged dim, which has no columns
    assert through.dim_text(out[1]) != "columns"


def test_unknown_reductions_cannot_be_sharded():
    """argmax reduces with a comparison of pairs.

    Partial results do not combine with one operator.
    """
    analysis = traced(lambda x: jnp.argmax(x, axis=1), S((4, 8), F))
    program = analysis.program
    op = next(
        o for o in program.ops() if program.kind[o] == "reduce" and len(program.results(o)) == 2
    )
    shardable = [bool(analysis.names.shardable[n]) for n in program.factors(op)]
    assert shardable == [True, False]


def test_arrays_cannot_be_written():
    analysis = traced(lambda x: x + 1, S((3,), F))
    for array in (analysis.names.op, analysis.names.source, analysis.program.shape):
        assert not array.flags.writeable


def test_map_points_forward():
    analysis = traced(lambda x, y: jnp.tanh(x @ y) @ y.T, S((4, 6), F), S((6, 8), F))
    op = analysis.names.op
    assert np.all(op[analysis.names.source] < op[analysis.names.target])


def test_paths_stay_within_one_round_of_a_loop() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ w), x)

    names = traced(fn, S((8, 4), F), S((4, 4), F)).names
    back = [
        (int(a), int(b))
        for a, b in zip(names.source, names.target, strict=True)
        if names.op[a] >= names.op[b]
    ]
    assert back  # what a round returns is mapped to what the next one starts with
    followed = {
        (n, int(t))
        for n in range(names.n)
        for t in names.successor[names.ptr[n] : names.ptr[n + 1]]
    }
    assert followed == set(zip(names.source.tolist(), names.target.tolist(), strict=True)) - set(
        back
    )
