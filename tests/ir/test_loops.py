"""Canonicalising removes values from loops, and the programs still compute the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toast_lab import _jaxlib
from toast_lab.frontends import from_jax
from toast_lab.ir import canonical
from toast_lab.ir.program import Program
from toast_lab.runtime import _jax_private


def leaf(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def carried(program: Program) -> list[tuple[int, ...]]:
    return [
        program.dims(program.results(op)[0])
        for op in program.ops()
        if program.kind[op] == "while.enter"
    ]


def executed(text: str, arrays: list[np.ndarray]) -> np.ndarray:
    """Run a module unchanged on one CPU device; gives its first result."""
    device = jax.devices("cpu")[0]
    program = _jax_private.compile_module(text, [device])
    return np.asarray(
        _jax_private.execute(program, [jax.device_put(a, device) for a in arrays])[0][0]
    )


def dead(x: jax.Array, junk: jax.Array) -> jax.Array:
    """A loop that carries ``junk`` and computes with it, though nothing depends on it."""

    def body(i: Any, c: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        h, j = c
        return jnp.tanh(h), jnp.sin(j) * 2

    return jax.lax.fori_loop(0, 3, body, (x, junk))[0]


def test_values_that_nothing_depends_on_are_dropped() -> None:
    program = from_jax(dead, leaf(8, 4), leaf(64, 64)).program
    assert (64, 64) not in carried(program)
    assert (8, 4) in carried(program)
    assert "sine" not in program.kind
    assert program.n_arguments == 2  # the arguments of the program stay


def test_values_that_others_depend_on_stay() -> None:
    def fn(x: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
        def body(i: Any, c: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            h, g, f = c
            return jnp.tanh(h + g[:8, :4]), jnp.sin(g) + f, f * 2

        return jax.lax.fori_loop(0, 3, body, (x, y, z))[0]

    assert carried(from_jax(fn, leaf(8, 4), leaf(16, 4), leaf(1, 4)).program).count((1, 4)) == 1
    assert (16, 4) in carried(from_jax(fn, leaf(8, 4), leaf(16, 4), leaf(1, 4)).program)


def test_a_value_that_only_the_condition_reads_stays() -> None:
    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        def test(c: tuple[jax.Array, jax.Array]) -> jax.Array:
            return jnp.max(c[1]) < 9

        return jax.lax.while_loop(test, lambda c: (c[0] * 2, c[1] + 1), (x, y))[0]

    assert (3, 3) in carried(from_jax(fn, leaf(8, 4), leaf(3, 3)).program)


def masked(xs: jax.Array, x: jax.Array) -> jax.Array:
    """A loop that carries a causal mask, made outside, unchanged."""
    mask = jnp.tril(jnp.ones((8, 8), bool))
    return jax.lax.scan(lambda h, w: (jnp.where(mask, h @ w @ h.T, 0.0) @ h, None), x, xs)[0]


def test_constants_that_go_round_are_read_from_outside() -> None:
    program = from_jax(masked, leaf(3, 4, 4), leaf(8, 4)).program
    assert (8, 8) not in carried(program)
    select = next(op for op in program.ops() if program.kind[op] == "select")
    assert program.value_is_constant[program.operands(select)[0]]
    assert program.region[program.value_op[program.operands(select)[0]]] == -1


def chained(x: jax.Array, junk: jax.Array) -> jax.Array:
    """Two loops that carry ``junk`` from one to the other, though nothing depends on it."""

    def first(i: Any, c: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(c[0]), jnp.sin(c[1])

    def second(i: Any, c: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return jnp.exp(c[0]), jnp.cos(c[1])

    return jax.lax.fori_loop(0, 3, second, jax.lax.fori_loop(0, 3, first, (x, junk)))[0]


def test_what_only_a_later_loop_handed_on_is_dropped_from_the_earlier_one() -> None:
    model = from_jax(chained, leaf(8, 4), leaf(64, 64))
    assert carried(model.program).count((8, 4)) == 2
    assert (64, 64) not in carried(model.program)
    assert not {"sine", "cosine"} & set(model.program.kind)


def test_the_canonical_module_stays_as_it_is() -> None:
    text = from_jax(chained, leaf(8, 4), leaf(64, 64)).stablehlo
    module = _jaxlib.parse_module(_jaxlib.make_context(), text)
    assert (
        str(canonical.canonicalise(module).operation.get_asm(enable_debug_info=True)).strip()
        == text.strip()
    )


def test_nested_loops_are_slimmed_from_within() -> None:
    def inner(h: jax.Array, junk: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.fori_loop(0, 2, lambda i, c: (jnp.tanh(c[0]), jnp.sin(c[1])), (h, junk))

    def fn(x: jax.Array, junk: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda i, c: inner(*c), (x, junk))[0]

    program = from_jax(fn, leaf(8, 4), leaf(64, 64)).program
    assert (64, 64) not in carried(program)
    assert carried(program).count((8, 4)) == 2


@pytest.mark.parametrize("fn", [dead, masked])
def test_the_slimmed_program_computes_the_same(fn: Any) -> None:
    shapes = {dead: (leaf(8, 4), leaf(64, 64)), masked: (leaf(3, 4, 4), leaf(8, 4))}[fn]
    model = from_jax(fn, *shapes)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s.shape).astype(s.dtype) * 0.5 for s in shapes]
    wanted = np.asarray(fn(*arrays))
    np.testing.assert_allclose(executed(model.stablehlo, arrays), wanted, rtol=2e-5, atol=1e-6)
