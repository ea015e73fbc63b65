"""Products whose sums a TPU scatters piece by piece: when this is priced, and at which time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import toast_lab as tl
from toast_lab.machines.catalogue import MACHINES
from toast_lab.sharding.plan import make_plan
from toast_lab.sharding.step_kinds import COMPUTE

US = 1e-6
MACHINE = MACHINES["tpu-v5e"]
APART = dataclasses.replace(MACHINE, collective_matmul=0.0)


def gradient(x: jax.Array, g: jax.Array) -> jax.Array:
    return jnp.einsum("mk,mn->kn", x, g)


def priced(
    sizes: tuple[int, int, int],
    mesh: dict[str, int],
    *,
    summed: str,
    scattered: dict[int, str],
    cut: str = "",
    machine: tl.Machine = MACHINE,
) -> tuple[float, float, float]:
    """Price a product of ``sizes`` (rows, left, right) that sums over its cut rows.

    ``summed`` are the axes of the sum, ``scattered`` those of each dim of the result after it,
    ``cut`` those of the columns. Gives seconds of computing and of collectives, and bytes at the
    peak, including those in vector memory.
    """
    rows, left, right = sizes
    actions = [("x.0", axis) for axis in summed] + [("g.1", axis) for axis in cut]
    shapes = ((rows, left), (rows, right))
    return priced_of(gradient, shapes, mesh, actions=actions, scattered=scattered, machine=machine)


def priced_of(
    function: Callable[..., jax.Array],
    shapes: tuple[tuple[int, ...], ...],
    mesh: dict[str, int],
    *,
    actions: list[tuple[str, str]],
    scattered: dict[int, str],
    machine: tl.Machine,
) -> tuple[float, float, float]:
    """Price any function of one product; its ``actions`` cut the dim that is summed."""
    leaves = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    model = tl.from_jax(function, *leaves)
    return priced_model(model, mesh, actions=actions, scattered=scattered, machine=machine)


def priced_model(
    model: tl.Model,
    mesh: dict[str, int],
    *,
    actions: list[tuple[str, str]],
    scattered: dict[int, str],
    machine: tl.Machine = MACHINE,
) -> tuple[float, float, float]:
    """Price any program of one product."""
    analysis = tl.analyse(model)
    problem = tl.Problem(analysis, mesh, machine)
    plan = tl.Plan.from_actions(problem, actions)
    sharding = plan.sharding.copy()
    program = analysis.program
    (product,) = [op for op in range(program.n_ops) if program.kind[op] == "dot_general"]
    (result,) = program.results(product)
    for dim, axes in scattered.items():
        for axis in axes:
            sharding.value_dim[result, problem.mesh.axes.index(axis)] = dim
    plan = make_plan(analysis, problem.mesh, sharding, key=sharding.key())
    totals = problem.prices.totals(plan.op_factor, plan.value_dim)
    times = [
        (int(totals.steps.kind[row]), float(totals.each.time_s[row]))
        for row in range(totals.n_steps)
    ]
    return (
        sum(time_s for kind, time_s in times if kind == COMPUTE),
        sum(time_s for kind, time_s in times if kind != COMPUTE),
        float((totals.lives.live + totals.lives.near).max()),
    )


SQUARE = {"d": 4, "m": 4}


@pytest.mark.parametrize(
    ("sizes", "scattered", "columns", "compiled_us"),
    [
        ((65536, 4096, 4096), {0: "dm"}, "", 1153),
        ((65536, 4096, 4096), {1: "dm"}, "", 1153),
        ((8192, 1024, 4096), {0: "dm"}, "", 169),
        ((8192, 4096, 1024), {0: "dm"}, "", 155),
        ((8192, 4096, 4096), {0: "dm"}, "", 445),
        ((6144, 4096, 4096), {0: "dm"}, "", 431),
        ((8192, 8192, 8192), {0: "dm"}, "", 1569),
        ((8192, 4096, 4096), {0: "d"}, "m", 162),
        ((8192, 8192, 8192), {0: "d"}, "m", 638),
        ((65536, 4096, 4096), {0: "d"}, "m", 794),
        # Most time of these two is a copy that brings the summed dim to the first operand's lanes
        ((262144, 4096, 1024), {0: "dm"}, "", 2001),
        ((131072, 4096, 1024), {0: "dm"}, "", 751),
        ((262144, 1024, 4096), {1: "dm"}, "", 995),
    ],
)
def test_the_kernels_take_what_libtpu_says(
    sizes: tuple[int, int, int], scattered: dict[int, str], columns: str, compiled_us: float
) -> None:
    """Compares with ``estimated_cycles`` of libtpu 0.0.42.1 for v5e:4x4."""
    compute_s, _, _ = priced(
        sizes, SQUARE, summed="d" if columns else "dm", scattered=scattered, cut=columns
    )
    assert compute_s == pytest.approx(compiled_us * US, rel=0.3)


@pytest.mark.parametrize(
    ("rows", "columns", "kept", "compiled_us"),
    [
        (128, 2048, jnp.float32, 67.2),
        (1024, 4096, jnp.float32, 151.4),
        (8192, 4096, jnp.float32, 428.1),
        (128, 2048, jnp.bfloat16, 21.5),
        (1024, 4096, jnp.bfloat16, 57.4),
    ],
)
def test_what_is_cast_on_the_way_in_is_cast_in_front_of_the_pieces(
    rows: int, columns: int, kept: jnp.dtype, compiled_us: float
) -> None:
    """Compares with ``estimated_cycles`` of libtpu 0.0.42.1 for v5e:4x4."""
    x = jax.ShapeDtypeStruct((rows, 8192), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((8192, columns), kept)
    model = tl.from_jax(lambda x, w: x @ w.astype(jnp.bfloat16), x, w)
    compute_s, _, _ = priced_model(
        model, SQUARE, actions=[("x.0", "d"), ("x.1", "m")], scattered={0: "d", 1: "m"}
    )
    assert compute_s == pytest.approx(compiled_us * US, rel=0.1)


def projected(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.einsum("bsk,kn->bsn", x, w)


def activated(x: jax.Array, w: jax.Array) -> jax.Array:
    return projected(jax.nn.gelu(x), w)


def shifted(x: jax.Array, w: jax.Array) -> jax.Array:
    return projected(jnp.pad(x[:, :-1], ((0, 0), (0, 1), (0, 0))), w)


@pytest.mark.parametrize(
    ("function", "shape", "columns", "groups", "scattered", "compiled_us"),
    [
        # Scattering rows of the sequence of every example: a pair of pieces is cut out first ...
        (projected, (16, 2048, 16384), 2048, "m", {1: "m"}, 1158),
        (projected, (64, 256, 16384), 4096, "m", {1: "m"}, 1104),
        # ... but not for columns, for one example, or where pieces come in a loop
        (projected, (16, 2048, 16384), 2048, "m", {2: "m"}, 1005),
        (projected, (64, 256, 16384), 4096, "m", {2: "m"}, 1002),
        (projected, (4, 2048, 8192), 2048, "m", {1: "m"}, 161),
        (projected, (16, 2048, 16384), 2048, "dm", {1: "dm"}, 2022),
        (projected, (16, 2048, 16384), 2048, "dm", {0: "dm"}, 2125),
        # An operand that the product would compute itself is written first if pieces of it are read
        (activated, (16, 1024, 32768), 1024, "m", {1: "m"}, 897),
        (activated, (4, 4096, 32768), 1024, "m", {1: "m"}, 736),
        (activated, (16, 2048, 16384), 2048, "dm", {0: "dm"}, 2424),
        (activated, (16, 2048, 16384), 2048, "dm", {2: "dm"}, 2249),
        (shifted, (16, 1024, 32768), 1024, "m", {1: "m"}, 895),
        # ... but not if all of it is read for each pair
        (activated, (16, 1024, 32768), 1024, "m", {2: "m"}, 454),
    ],
)
def test_what_pieces_are_cut_out_of_has_to_be_there(
    function: Callable[..., jax.Array],
    shape: tuple[int, ...],
    columns: int,
    groups: str,
    scattered: dict[int, str],
    compiled_us: float,
) -> None:
    """Compares with ``estimated_cycles`` of libtpu 0.0.42.1 for v5e:4x4."""
    apart = [axis for axis in "dm" if axis not in groups]
    actions = [("x.2", axis) for axis in groups] + [("x.0", axis) for axis in apart]
    compute_s, _, _ = priced_of(
        function,
        (shape, (shape[-1], columns)),
        SQUARE,
        actions=actions,
        scattered=scattered,
        machine=MACHINE,
    )
    assert compute_s == pytest.approx(compiled_us * US, rel=0.3)


@pytest.mark.parametrize(
    ("rows", "in_pieces"), [(2048, False), (4096, False), (5120, True), (65536, True)]
)
def test_pieces_take_no_longer_to_send_than_all_takes_to_multiply(
    rows: int, in_pieces: bool
) -> None:
    """libtpu 0.0.42.1 for v5e:4x4 begins to send pieces between 4096 and 5120 rows."""
    sizes = (rows, 4096, 4096)
    together = priced(sizes, SQUARE, summed="dm", scattered={0: "dm"})
    apart = priced(sizes, SQUARE, summed="dm", scattered={0: "dm"}, machine=APART)
    assert (together != apart) == in_pieces
    if in_pieces:
        assert together[0] > apart[0]
        assert together[1] < apart[1]
        assert together[2] < apart[2]


@pytest.mark.parametrize(
    ("mesh", "summed", "scattered", "columns", "why"),
    [
        ({"d": 2, "m": 8}, "d", {0: "d"}, "m", "a group of two"),
        ({"d": 4}, "d", {0: "d"}, "", "four devices in all"),
        ({"d": 4, "m": 4}, "d", {0: "d"}, "", "an axis that cuts nothing"),
        ({"d": 4, "m": 4}, "dm", {0: "d", 1: "m"}, "", "two dims"),
    ],
)
def test_it_is_not_done_for(
    mesh: dict[str, int], summed: str, scattered: dict[int, str], columns: str, why: str
) -> None:
    sizes = (65536, 4096, 4096)
    together, apart = (
        priced(sizes, mesh, summed=summed, scattered=scattered, cut=columns, machine=machine)
        for machine in (MACHINE, APART)
    )
    assert together == apart, why


def updating_s(rows: int, *, whole: bool) -> float:
    """Return the seconds to compute a gradient and update a weight, whole or in parts."""

    def updated(x: jax.Array, g: jax.Array, weight: jax.Array) -> jax.Array:
        return weight - gradient(x, g)

    shapes = ((rows, 4096), (rows, 4096), (4096, 4096))
    leaves = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    analysis = tl.analyse(tl.from_jax(updated, *leaves))
    program = analysis.program
    problem = tl.Problem(analysis, SQUARE, MACHINE)
    sharding = tl.Plan.from_actions(problem, [("x.0", "d"), ("x.0", "m")]).sharding.copy()
    update = next(op for op in program.ops() if program.kind[op] == "subtract")
    (result,) = program.results(update)
    for value in (*program.operands(update), result):
        sharding.value_dim[value] = -1 if whole else 0
    sharding.op_factor[update] = -1 if whole else program.def_names(result)[0]
    plan = make_plan(analysis, problem.mesh, sharding, key=sharding.key())
    totals = problem.prices.totals(plan.op_factor, plan.value_dim)
    return float(totals.compute_s)


#: The weight is read and written, and the sum is read.
UPDATE_S = 3.0 * 2.0 * 4096**2 / MACHINE.product_bytes_per_s


def test_what_follows_a_scattered_sum_is_as_small_as_its_part() -> None:
    saved_s = updating_s(4096, whole=True) - updating_s(4096, whole=False)
    assert 15 / 16 * UPDATE_S <= saved_s < 2.0 * UPDATE_S


def test_what_follows_pieces_is_as_small_as_its_part() -> None:
    alone_s, _, _ = priced((65536, 4096, 4096), SQUARE, summed="dm", scattered={0: "dm"})
    # The update reads memory; a result that is not returned is in vector memory.
    assert updating_s(65536, whole=False) - alone_s < 2.0 / 16 * UPDATE_S


def test_what_the_vector_unit_multiplies_is_not_cut_into_pieces() -> None:
    """One row times each of many matrices, as a decoding step multiplies with cached values."""

    def attended(weights: jax.Array, cached: jax.Array) -> jax.Array:
        return jnp.einsum("bt,btk->bk", weights, cached)

    shapes = ((256, 16384), (256, 16384, 2048))
    actions = [("weights.1", "d"), ("weights.1", "m")]
    together, apart = (
        priced_of(attended, shapes, SQUARE, actions=actions, scattered={1: "dm"}, machine=machine)
        for machine in (MACHINE, APART)
    )
    assert together == apart


def test_no_other_machine_does_it() -> None:
    having = {name for name, machine in MACHINES.items() if machine.collective_matmul}
    assert having == {"tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e"}
