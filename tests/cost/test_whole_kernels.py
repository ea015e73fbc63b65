"""What a TPU may make as a whole although its readers take parts of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from toast_lab.cost.whole_kernels import SHARE
from toast_lab.sharding.plan import make_plan

PLACES, CLASSES, WIDTH = 65536, 1024, 128


def chosen(places: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two products read a one-hot matrix, which is made on the way into each."""
    matrix = jax.nn.one_hot(places, CLASSES, dtype=jnp.float32)
    return matrix @ x, matrix @ jnp.sin(y)


def chosen_once(places: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.nn.one_hot(places, CLASSES, dtype=jnp.float32) @ x


def problem(function: object, machine: str) -> tl.Problem:
    table = jax.ShapeDtypeStruct((CLASSES, WIDTH), jnp.float32)
    places = jax.ShapeDtypeStruct((PLACES,), jnp.int32)
    model = tl.from_jax(function, places, table, table)
    return tl.Problem(tl.analyse(model), "d=4", machine)


def slice_s(found: tl.Problem) -> float:
    """Seconds of taking parts of the one-hot matrix where it is kept whole."""
    program = found.analysis.program
    sharding = tl.Plan.from_actions(found, ["places->d"]).sharding.copy()
    products = np.asarray(program.kind) == "dot_general"
    sharding.op_factor[~products] = -1
    sharding.value_dim[~products[program.value_op]] = -1
    whole = make_plan(found.analysis, found.mesh, sharding, key=sharding.key())
    cost = tl.price(found, whole)
    assert not cost.collectives
    return sum(row.time_s for row in cost.ops if row.kind == "slice")


def test_a_part_of_what_is_kept_whole_pays_for_a_share_of_making_it() -> None:
    found = problem(chosen, "tpu-v3")
    whole_bytes = 4 * PLACES * CLASSES + 4 * PLACES  # written, and the places read
    # Both products take the same part, which is cut out once.
    share_s = SHARE * whole_bytes / found.machine.product_bytes_per_s
    assert slice_s(found) == pytest.approx(share_s)


def test_where_the_only_reader_makes_its_part_alone_it_costs_nothing() -> None:
    assert slice_s(problem(chosen_once, "tpu-v3")) == 0.0
