"""Gathers and scatters that index a dim by the position itself are read as batched ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import toast_lab as tl
from toast_lab.frontends import from_jax
from toast_lab.ir.read import parse

B, N, D = 8, 6, 5
S = jax.ShapeDtypeStruct
TABLE, ROWS = S((B, N, D), "float32"), S((B, D), "float32")
INDEX, SEVERAL = S((B,), "int32"), S((B, 3), "int32")
GRID = S((B, N), "int32")


def positions() -> jax.Array:
    return jnp.arange(B)


def gathered(indices: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``lax.gather`` with a hand-made tensor of indices."""
    numbers = lax.GatherDimensionNumbers((1,), (0, 1), (0, 1))
    return lambda t, i: lax.gather(t, indices(i), numbers, (1, 1, D), **options)


def carried(table: Any, index: Any, rows: Any) -> Any:
    """A loop that carries the positions."""
    return lax.while_loop(
        lambda state: state[0] < 3,
        lambda state: (state[0] + 1, state[1], state[2].at[state[1], index].add(rows)),
        (0, positions(), table),
    )


def scanned(table: Any, index: Any, rows: Any) -> Any:
    outside = positions()
    return lax.scan(
        lambda t, j: (t.at[outside, (index + j) % N].set(rows), t[outside, j]), table, jnp.arange(3)
    )


def gradients(table: Any, rows: Any, index: Any) -> Any:
    def loss(table: Any, rows: Any) -> Any:
        written = jnp.sin(table).at[positions(), index].add(jnp.cos(rows))
        return jnp.sum(written[positions(), index] ** 2)

    return jax.grad(jax.checkpoint(loss), (0, 1))(table, rows)


BATCHED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[int]]] = {
    "get": (lambda t, i: t[positions(), i], (TABLE, INDEX), [0]),
    "clip": (lambda t, i: t.at[positions(), i].get(mode="clip"), (TABLE, INDEX), [0]),
    "fill": (lambda t, i: t.at[positions(), i].get(mode="fill"), (TABLE, INDEX), [0]),
    "NumPy's arange": (lambda t, i: t[np.arange(B), i], (TABLE, INDEX), [0]),
    "bytes": (lambda t, i: t[jnp.arange(B, dtype="int8"), i], (TABLE, INDEX), [0]),
    "second dim": (lambda t, i: t[i, jnp.arange(N)], (TABLE, S((N,), "int32")), [1]),
    "last dim": (lambda t, i: t[i, i, jnp.arange(D)], (TABLE, S((D,), "int32")), [2]),
    "several rows each": (lambda t, i: t[positions()[:, None], i], (TABLE, SEVERAL), [0]),
    "two dims": (
        lambda t, i: t[positions()[:, None], jnp.arange(N)[None], i],
        (TABLE, GRID),
        [0, 1],
    ),
    "all dims": (lambda t: t[positions()[None], jnp.arange(N)[:, None]], (TABLE,), [0, 1]),
    "diagonal": (lambda t: t[positions(), positions()], (S((B, B), "float32"),), [0]),
    "set": (lambda t, i, x: t.at[positions(), i].set(x), (TABLE, INDEX, ROWS), [0]),
    "apply": (lambda t, i: t.at[positions(), i].apply(jnp.sin), (TABLE, INDEX), [0]),
    "clamped together": (
        gathered(lambda i: jnp.stack([positions(), i], 1), mode="clip"),
        (TABLE, INDEX),
        [0],
    ),
    "windows": (
        lambda t, i: jax.vmap(lambda b, j: lax.dynamic_slice(t, (b, j, 0), (1, 2, D)))(
            positions(), i
        ),
        (TABLE, INDEX),
        [0],
    ),
    "vmap": (
        lambda t, i: jax.vmap(lambda t, j: t[jnp.arange(N), j])(t, i),
        (TABLE, GRID),
        [0, 1],
    ),
    "carried": (carried, (TABLE, INDEX, ROWS), [0]),
    "scanned": (scanned, (TABLE, INDEX, ROWS), [0]),
    "gradients": (gradients, (TABLE, ROWS, INDEX), [0]),
}


def batch_dims(text: str) -> list[list[int]]:
    """The operand's batch dims of every gather and scatter."""
    ops = re.findall(r'"stablehlo\.(?:gather|scatter)".*', text)
    matches = [re.search(r"(?:operand|input)_batching_dims = \[([\d, ]*)\]", op) for op in ops]
    return [[int(dim) for dim in match[1].split(",")] if match else [] for match in matches]


@pytest.mark.parametrize("name", list(BATCHED))
def test_positions_become_batch_dims(name: str) -> None:
    fn, arguments, dims = BATCHED[name]
    text = from_jax(fn, *arguments).stablehlo
    seen = batch_dims(text)
    assert seen
    assert seen == [dims] * len(seen)
    assert parse(text).text == text  # reading it again changes nothing


NOT_POSITIONS: dict[str, Callable[..., Any]] = {
    "another order": lambda t, i: t[positions()[::-1], i],
    "shifted": lambda t, i: t[positions() + 1, i],
    "a part of the dim": lambda t, i: t[jnp.arange(4), i[:4]],
    "repeated": lambda t, i: t[jnp.arange(B).repeat(2), i.repeat(2)],
    "unless it is an argument": lambda t, i: t[jnp.where(i > 0, i, positions()), i],
    "two positions of a window": lambda t, i: jax.vmap(
        lambda b, j: lax.dynamic_slice(t, (b, j, 0), (2, 1, D))
    )(positions(), i),
}


@pytest.mark.parametrize("name", list(NOT_POSITIONS))
def test_other_indices_stay(name: str) -> None:
    assert batch_dims(from_jax(NOT_POSITIONS[name], TABLE, INDEX).stablehlo) == [[]]


@pytest.mark.parametrize(
    ("by_position", "by_vmap", "arguments"),
    [
        (
            lambda t, i: t[positions(), i],
            jax.vmap(lambda t, j: t[j]),
            (TABLE, INDEX),
        ),
        (
            lambda t, i, x: t.at[positions(), i].add(x),
            jax.vmap(lambda t, j, x: t.at[j].add(x)),
            (TABLE, INDEX, ROWS),
        ),
    ],
    ids=["gather", "scatter"],
)
def test_a_cut_batch_costs_what_it_costs_under_vmap(
    by_position: Any, by_vmap: Any, arguments: Any
) -> None:
    times = []
    for fn in (by_position, by_vmap):
        problem = tl.Problem(tl.analyse(from_jax(fn, *arguments)), {"data": 4}, "tpu-v5e")
        paths = tl.replicated(problem).argument_specs()
        specs = {
            path: ("data",) + (None,) * (len(argument.shape) - 1)
            for path, argument in zip(paths, arguments, strict=True)
        }
        cost = tl.price(problem, tl.Plan.from_specs(problem, specs))
        assert not cost.collectives
        times.append(cost.time_s)
    assert times[0] == pytest.approx(times[1], rel=0.01)
