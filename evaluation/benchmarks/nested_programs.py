"""Programs with nested loops: texts of any depth, and solvers of differential equations.

The texts are generated for the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def nested_loops(depth: int, carried: int, *, dead: bool = False, constant: bool = False) -> str:
    """StableHLO of ``depth`` nested loops, each of which carries ``carried`` values.

    The depth is limited only by MLIR's parser.

    Args:
        depth: depth of the innermost loop, 1 for a single loop.
        carried: number of values besides each loop's counter.
        dead: carry one more value through every loop; the innermost body doubles it, and nothing
            reads it.
        constant: carry one more value through every loop; it is a constant, and the innermost body
            adds it.
    """
    lines: list[str] = []
    more = dead + constant
    types = ["tensor<i32>"] + ["tensor<8x8xf32>"] * (carried + more)

    def innermost(values: list[str]) -> list[str]:
        own, rest = values[:carried], values[carried:]
        made = [f"%v{i}" for i in range(carried)]
        for i, name in enumerate(made):
            other = rest[-1] if constant and i == 0 else own[(i + 1) % carried]
            lines.append(f"{name} = stablehlo.add {own[i]}, {other} : {types[1]}")
        if dead:
            lines.append(f"%dead = stablehlo.add {rest[0]}, {rest[0]} : {types[1]}")
        return [*made, *(["%dead"] if dead else []), *(rest[-1:] if constant else [])]

    def loop(level: int, values: list[str]) -> list[str]:
        own = [f"%a{level}_{i}" for i in range(len(values))]
        bound = ", ".join(
            f"{a} = {v}" for a, v in zip([f"%i{level}", *own], [f"%z{level}", *values], strict=True)
        )
        lines.extend(
            [
                f"%z{level} = stablehlo.constant dense<0> : {types[0]}",
                f"%r{level}:{len(types)} = stablehlo.while({bound}) : {', '.join(types)} cond {{",
                f"%n{level} = stablehlo.constant dense<3> : {types[0]}",
                f"%p{level} = stablehlo.compare LT, %i{level}, %n{level} : ({types[0]}, "
                f"{types[0]}) "
                "-> tensor<i1>",
                f"stablehlo.return %p{level} : tensor<i1>",
                "} do {",
            ]
        )
        inner = loop(level - 1, own) if level > 1 else innermost(own)
        if constant:  # as JAX carries the values that a body closes over
            inner = [*inner[:-1], own[-1]]
        lines.extend(
            [
                f"%o{level} = stablehlo.constant dense<1> : {types[0]}",
                f"%j{level} = stablehlo.add %i{level}, %o{level} : {types[0]}",
                f"stablehlo.return {', '.join([f'%j{level}', *inner])} : {', '.join(types)}",
                "}",
            ]
        )
        return [f"%r{level}#{i + 1}" for i in range(len(values))]

    arguments = [f"%x{i}" for i in range(carried + dead)]
    if constant:
        lines.append(f"%mask = stablehlo.constant dense<0.5> : {types[1]}")
    results = loop(depth, [*arguments, *(["%mask"] if constant else [])])[:carried]
    given = ", ".join(f"{a}: {types[1]}" for a in arguments)
    returned = ", ".join(types[1 : carried + 1])
    head = f"func.func @main({given}) -> ({returned}) {{"
    last = f"return {', '.join(results)} : {returned}"
    return "\n".join([head, *lines, last, "}"])


def bounded_while(
    test: Callable[[Any], Any], step: Callable[[Any], Any], state: Any, depth: int, base: int = 3
) -> Any:
    """Run at most ``base ** depth`` steps, as loops in conditionals in loops.

    Derivatives can be taken through it.
    """

    def rounds(state: Any, depth: int) -> Any:
        inner = step if depth == 0 else lambda s: rounds(s, depth - 1)

        def one(s: Any, _: None) -> tuple[Any, None]:
            return lax.cond(test(s), inner, lambda s: s, s), None

        return lax.scan(one, state, None, length=base)[0]

    return rounds(state, depth - 1)


def field(t: jax.Array, y: jax.Array, weights: Any) -> jax.Array:
    """The right-hand side of the equation: a network of two layers."""
    inner, outer = weights
    return jnp.tanh(y @ inner + t) @ outer


def solve(weights: Any, y: jax.Array, times: jax.Array, depth: int) -> jax.Array:
    """Solve the equation for states at ``times``, with steps as long as their error allows.

    The method is that of Bogacki and Shampine, of 2nd and 3rd order.
    """

    def step(state: Any, end: jax.Array) -> Any:
        t, y, h, slope = state
        h = jnp.minimum(h, end - t)
        k2 = field(t + h / 2, y + h / 2 * slope, weights)
        k3 = field(t + 0.75 * h, y + 0.75 * h * k2, weights)
        new = y + h * (2 / 9 * slope + 1 / 3 * k2 + 4 / 9 * k3)
        k4 = field(t + h, new, weights)
        error = h * (-5 / 72 * slope + 1 / 12 * k2 + 1 / 9 * k3 - 1 / 8 * k4)
        ratio = jnp.sqrt(jnp.mean((error / (1e-3 + 1e-3 * jnp.abs(y))) ** 2) + 1e-12)
        factor = jnp.clip(0.9 * ratio ** (-1 / 3), 0.2, 5.0)
        taken = ratio <= 1
        return lax.cond(
            taken, lambda: (t + h, new, h * factor, k4), lambda: (t, y, h * factor, slope)
        )

    def to(state: Any, end: jax.Array) -> tuple[Any, jax.Array]:
        state = bounded_while(lambda s: s[0] < end - 1e-6, lambda s: step(s, end), state, depth)
        return state, state[1]

    start = (times[0], y, jnp.float32(0.05), field(times[0], y, weights))
    return lax.scan(to, start, times[1:])[1]


def fit(
    weights: Any, y: jax.Array, times: jax.Array, wanted: jax.Array, depth: int
) -> tuple[jax.Array, Any]:
    """The loss of the solution, and its gradient through the solver."""
    return jax.value_and_grad(lambda w: jnp.mean((solve(w, y, times, depth) - wanted) ** 2))(
        weights
    )
