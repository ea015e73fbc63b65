from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from toast_lab import frontends
from toast_lab.errors import InvalidProblem, UnsupportedOp
from toast_lab.ir.program import Program
from toast_lab.runtime import inputs

S = jax.ShapeDtypeStruct


def program_of(fn, *args) -> Program:
    return frontends.from_jax(fn, *args).program


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        ("f32", np.float32),
        ("f64", np.float64),
        ("f16", np.float16),
        ("bf16", ml_dtypes.bfloat16),
        ("i1", np.bool_),
        ("i8", np.int8),
        ("i32", np.int32),
        ("i64", np.int64),
        ("ui8", np.uint8),
        ("ui32", np.uint32),
        ("i4", ml_dtypes.int4),
        ("ui4", ml_dtypes.uint4),
        ("f8E4M3FN", ml_dtypes.float8_e4m3fn),
        ("f8E5M2", ml_dtypes.float8_e5m2),
        ("complex<f32>", np.complex64),
        ("complex<f64>", np.complex128),
    ],
)
def test_element_types(element: str, dtype: type) -> None:
    assert inputs.dtype_of(element) == np.dtype(dtype)


@pytest.mark.parametrize("element", ["!stablehlo.token", "index", "q8"])
def test_what_no_array_can_hold_is_refused(element: str) -> None:
    with pytest.raises(UnsupportedOp, match="no array has element type"):
        inputs.dtype_of(element)


def test_every_kind_of_argument_is_drawn_with_its_own_type_and_shape() -> None:
    shapes = [
        S((8, 4), jnp.float32),
        S((8, 4), jnp.bfloat16),
        S((3,), jnp.int32),
        S((2,), jnp.uint32),
        S((5,), bool),
        S((4, 4), jnp.complex64),
        S((0, 4), jnp.float32),
        S((), jnp.float32),
        S((), jnp.int8),
    ]
    program = program_of(lambda *xs: [x + x if x.dtype != bool else ~x for x in xs], *shapes)
    arrays = inputs.draw(program)
    assert [(a.shape, a.dtype) for a in arrays] == [(s.shape, s.dtype) for s in shapes]
    assert np.iscomplexobj(arrays[5])
    assert arrays[5].imag.any()
    assert set(np.unique(arrays[2])) <= {0, 1}
    assert arrays[3].max() > 2**16  # random keys take all values


def test_the_seed_decides_everything() -> None:
    program = frontends.load("mlp").program
    first, again, other = inputs.draw(program, 1), inputs.draw(program, 1), inputs.draw(program, 2)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    twins = inputs.draw(program_of(lambda x, y: x + y, S((8, 4), "float32"), S((8, 4), "float32")))
    assert not np.array_equal(*twins)


def test_matrices_neither_blow_values_up_nor_let_them_die() -> None:
    program = program_of(lambda x, w: x @ w, S((64, 1024), "float32"), S((1024, 1024), "float32"))
    x, w = inputs.draw(program)
    assert 0.5 < np.std(x @ w) / np.std(x) < 2


def test_indices_stay_within_what_they_index() -> None:
    def lookup(table, small, tokens, flags):
        return table[tokens + 0], small[tokens.reshape(-1)], flags * 3

    shapes = S((100, 4), "float32"), S((7, 4), "float32"), S((50, 60), "int32"), S((50,), "int32")
    program = program_of(lookup, *shapes)
    assert inputs.index_bounds(program) == {2: 7}
    _, _, tokens, flags = inputs.draw(program)
    assert set(np.unique(tokens)) == set(range(7))
    assert set(np.unique(flags)) == {0, 1}


def test_scatter_indices_stay_within_what_they_write_to() -> None:
    def write(table, rows, values):
        return table.at[rows].add(values)

    program = program_of(write, S((9, 4), "float32"), S((300,), "int32"), S((300, 4), "float32"))
    assert inputs.index_bounds(program) == {1: 9}
    assert inputs.draw(program)[1].max() == 8


def test_transformer_tokens_are_drawn_from_the_vocabulary() -> None:
    model = frontends.load("transformer", layers=1, vocab=512)
    bounds = inputs.index_bounds(model.program)
    names = {model.program.value_name[a]: bound for a, bound in bounds.items()}
    assert names == {"tokens": 512, "targets": 512}


def test_non_negative_draws_are_the_same_numbers_without_signs() -> None:
    program = program_of(lambda x, n: x[n], S((8, 4), "float32"), S((3,), "int32"))
    plain, positive = inputs.draw(program), inputs.draw(program, non_negative=True)
    assert (plain[0] < 0).any()
    assert np.array_equal(np.abs(plain[0]), positive[0])
    assert np.array_equal(plain[1], positive[1])


def test_the_users_arrays_are_checked_all_at_once() -> None:
    program = frontends.load("mlp").program
    good = inputs.draw(program)
    assert inputs.check(program, good)[0] is good[0]
    with pytest.raises(InvalidProblem, match=rf"takes {len(good)} arrays, but 1 are given"):
        inputs.check(program, good[:1])
    bad = [a[:1] for a in good[:-1]] + [good[-1].astype(np.float64)]
    with pytest.raises(InvalidProblem) as caught:
        inputs.check(program, bad)
    assert str(caught.value).count("instead of") == len(good)


def test_windows_start_where_they_lie_inside() -> None:
    def window(x, i, j, y):
        i = jnp.where(i < 0, i + 16, i)
        return jax.lax.dynamic_slice(x, (i, 0), (4, 8)), jax.lax.dynamic_update_slice(x, y, (j, j))

    shapes = S((16, 8), "float32"), S((), "int32"), S((), "int32"), S((2, 2), "float32")
    # i starts windows of 4 in 16 (the index 0 of 8 is constant); j starts windows of 2 in 16 and in
    # 8, of which the narrower counts.
    assert inputs.index_bounds(program_of(window, *shapes)) == {1: 13, 2: 7}


def carried_along(first, second, third, use):
    """A loop that uses one value a round and hands the others on, a place further each round.

    ``first`` is used in the first round, ``third`` from the third round on.
    """

    def fn(x, *carry):
        def body(i, c):
            total, a, b, d = c
            return total + use(x, a), b, d, d

        return jax.lax.fori_loop(0, 5, body, (jnp.zeros(4), *carry))[0]

    return program_of(fn, S((11, 4), "float32"), first, second, third)


def test_indices_are_followed_from_round_to_round() -> None:
    program = carried_along(*[S((), "int32")] * 3, lambda x, token: x[token])
    assert inputs.index_bounds(program) == {1: 11, 2: 11, 3: 11}
    assert set(np.unique([a for seed in range(40) for a in inputs.draw(program, seed)[1:]])) == set(
        range(11)
    )


def test_roots_are_followed_from_round_to_round() -> None:
    program = carried_along(*[S((4,), "float32")] * 3, lambda x, moment: jnp.sqrt(moment) + x[0])
    assert inputs.under_roots(program) == {1, 2, 3}


def test_what_stands_under_a_root_is_not_negative() -> None:
    def step(m, v, g, z, p):
        v = 0.9 * v + 0.1 * g * g
        return p - m / (jnp.sqrt(v / 0.5) + 1e-8), v, jnp.log(1.0 + z.T), jnp.sum(p * p, axis=0)

    program = program_of(step, *[S((8, 4), "float32")] * 5)
    # Found are the second moment and z; squares are not followed to their operands
    assert inputs.under_roots(program) == {1, 3}
    m, v, _, z, _ = inputs.draw(program)
    assert (m < 0).any()
    assert v.min() > 0.01
    assert z.min() > 0.01


def test_in_a_training_step_of_adam_only_second_moments_stand_under_roots() -> None:
    small = {
        "layers": 1,
        "d_model": 16,
        "hidden": 16,
        "heads": 2,
        "key_size": 4,
        "vocab": 16,
        "batch": 2,
        "sequence": 4,
    }
    program = frontends.load("transformer", **small, mode="train").program
    rooted = {program.value_name[a] for a in inputs.under_roots(program)}
    assert rooted
    assert all("nu" in name for name in rooted)


def test_what_is_divided_by_keeps_away_from_zero() -> None:
    def weighted(x, w, v, g, n):
        scores = x @ w
        scaled = v / jnp.sum(scores, axis=0)
        return scaled / jnp.sum(g * g, axis=0), scaled / jnp.sum(jnp.exp(n), axis=0)

    program = program_of(weighted, *[S((8, 8), "float32")] * 5)
    # Squares and exponentials are positive whatever their operands
    assert inputs.under_fractions(program) == {0, 1}
    x, w, v, g, n = inputs.draw(program)
    assert np.abs((x @ w).sum(axis=0)).min() > 0.01
    assert all((array < 0).any() for array in (v, g, n))


def test_divisors_are_followed_from_round_to_round() -> None:
    program = carried_along(*[S((4,), "float32")] * 3, lambda x, weight: x[0] / weight)
    assert inputs.under_fractions(program) == {1, 2, 3}


def test_nothing_in_training_steps_has_to_keep_its_sign_to_be_divided_by() -> None:
    for name, sizes in (
        ("transformer", {"layers": 1, "mode": "train"}),
        ("gns", {"steps": 1, "nodes": 64, "edges": 128, "latent": 16, "hidden": 16}),
    ):
        program = frontends.load(name, **sizes).program
        found = {program.value_name[argument] for argument in inputs.under_fractions(program)}
        assert found == set(), name


def test_the_papers_attention_is_far_from_dividing_by_nothing() -> None:
    program = frontends.load("attention", sequence=2048).program
    single = inputs.draw(program)

    def result(x, wq, wk, wv):
        scores = (x @ wk) @ (x @ wq).T
        return (scores / scores.sum(axis=0)) @ (x @ wv)

    exact = result(*(array.astype(np.float64) for array in single))
    error = np.abs(result(*single) - exact).max() / np.abs(exact).max()
    # Summing in another order, as shards do, makes errors of this size
    assert error < 1e-6
