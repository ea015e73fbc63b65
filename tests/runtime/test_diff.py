"""Differences between priced and compiled collectives have the right reasons.

Every rule is tested on hand-made sides, and whole programs on virtual CPU devices.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.runtime.test_run import MESH, small_step
from toast_lab import frontends
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan
from toast_lab.ir.model import Model
from toast_lab.plan_verbs import Plan
from toast_lab.runtime import diff_rows as rows
from toast_lab.runtime.compile import compile_plan
from toast_lab.runtime.diff import compare, diff_compiled
from toast_lab.runtime.diff_rows import Side
from toast_lab.runtime.run import run
from toast_lab.sharding.mesh import make_mesh

LARGE = 2.0**20


def problem_of(model: Model, mesh: dict[str, int]) -> Problem:
    return Problem(analyse(model), mesh, "cpu")


@pytest.fixture(scope="module")
def model() -> Model:
    return frontends.load("mlp")


@pytest.fixture(scope="module")
def product(model: Model) -> int:
    return next(op for op in model.program.ops() if model.program.kind[op] == "dot_general")


def one(
    model: Model, ours: list[Side], theirs: list[Side], remats: tuple[int, ...] = ()
) -> list[tuple[str, str]]:
    found = compare(model.program, make_mesh(MESH), ours, theirs, remats)
    assert sum(r.predicted is not None for r in found.rows) == len(ours), "none is lost"
    return [(row.status, row.reason) for row in found.rows]


def test_rules(model: Model, product: int) -> None:
    """Sides that differ in one way are given the reason for that difference."""
    w = next(
        name for name in model.program.value_name if model.program.value_dtype[0] == "f32" and name
    )
    gather = Side(product, "all_gather", ("d",), 4096.0, 1.0, w)
    scatter = Side(product, "reduce_scatter", ("d",), 4096.0, 1.0, w)
    move = Side(product, "all_to_all", ("m",), 4096.0, 1.0, w)
    permute = Side(product, "collective_permute", ("d",), 1024.0, 1.0, "", "f32")
    r = gather._replace

    def s(side: Side, **changes: object) -> list[Side]:
        return [side._replace(value="", dtype="f32", **changes)]

    expected = [
        ([gather], s(gather), (rows.EQUAL, "")),
        ([gather], [r(bytes=2048.0, dtype="bf16")], (rows.CHANGED, rows.NARROWER)),
        ([gather], s(gather, bytes=8192.0), (rows.CHANGED, rows.UNCAST)),
        ([gather], s(gather, times=4.0), (rows.CHANGED, rows.OTHER_TIMES)),
        ([scatter], s(scatter, kind="all_reduce"), (rows.CHANGED, rows.SUM_AND_SLICE)),
        ([scatter], s(scatter, kind="all_reduce", bytes=1024.0), (rows.CHANGED, rows.IDLE)),
        ([scatter], s(scatter, kind="all_reduce", bytes=2048.0), (rows.CHANGED, rows.IDLE)),
        ([scatter._replace(kind="all_reduce")], s(scatter), (rows.CHANGED, rows.SCATTERED)),
        ([gather], [permute] * 3, (rows.CHANGED, rows.WINDOWED)),
        ([gather], s(gather, op=-1), (rows.CHANGED, rows.OTHER_OP)),
        ([gather], s(gather, bytes=100.0), (rows.CHANGED, rows.OTHER_SIZE)),
        ([gather], s(gather, axes=("d", "m")), (rows.CHANGED, rows.OTHER_AXES)),
        ([move], s(move, kind="all_gather"), (rows.CHANGED, rows.OTHER_ROUTE)),
        ([gather], s(gather, bytes=4608.0), (rows.CHANGED, rows.PADDED)),
        ([gather], s(gather, op=-1, bytes=1024.0) * 4, (rows.CHANGED, rows.IN_PARTS)),
        ([gather], s(gather, op=-1, kind="all_reduce"), (rows.CHANGED, rows.SUM_OF_SHARDS)),
        ([scatter], s(scatter, op=-1, kind="all_reduce"), (rows.CHANGED, rows.SUM_AND_SLICE)),
        ([scatter], s(scatter, bytes=16384.0), (rows.CHANGED, rows.WHOLE)),
        ([gather], [], (rows.MISSING, "")),
        ([], s(gather), (rows.EXTRA, "")),
    ]
    for ours, theirs, wanted in expected:
        assert one(model, ours, theirs) == [wanted], wanted


def test_one_for_two_equal_ones_is_shared_and_two_for_one_repeated(
    model: Model, product: int
) -> None:
    gather = Side(product, "all_gather", ("d",), 4096.0, 1.0, "w")
    compiled = gather._replace(value="", dtype="f32")
    assert sorted(one(model, [gather, gather], [compiled])) == [
        (rows.EQUAL, ""),
        (rows.MISSING, rows.SHARED),
    ]
    assert sorted(one(model, [gather], [compiled, compiled])) == [
        (rows.EQUAL, ""),
        (rows.EXTRA, rows.REPEATED),
    ]


def test_a_gather_of_what_another_op_computes_is_repeated(model: Model, product: int) -> None:
    (result,) = model.program.results(product)
    (user, *_) = (op for op in model.program.ops() if result in model.program.operands(op))
    name = model.program.value_name[result]
    gather = Side(user, "all_gather", ("d",), 4096.0, 1.0, name)
    compiled = gather._replace(value="", dtype="f32")
    assert sorted(one(model, [gather], [compiled, compiled._replace(op=product)])) == [
        (rows.EQUAL, ""),
        (rows.EXTRA, rows.REPEATED),
    ]


def test_a_move_beside_a_sum_of_other_shards(model: Model, product: int) -> None:
    ours = Side(product, "reduce_scatter", ("d",), 1024.0, 1.0, "w")
    whole = ours._replace(kind="all_reduce", bytes=3000.0, value="", dtype="f32")
    moved = Side(product, "all_gather", ("m",), LARGE, 1.0, "", "f32")
    assert sorted(one(model, [ours], [whole, moved])) == [
        (rows.CHANGED, rows.SUM_AND_SLICE),
        (rows.EXTRA, rows.OTHER_SHARDS),
    ]
    same = whole._replace(bytes=1024.0)
    assert (rows.EXTRA, "") in one(model, [ours], [same, moved])


def test_what_we_do_at_an_op_goes_before_what_is_equal_elsewhere() -> None:
    """A collective is matched at its own op before equal ones elsewhere.

    The compiler may use a collective that equals another op's in place of this op's own.
    """
    square = np.zeros((8, 8), np.float32)
    model = frontends.from_jax(lambda x, w: x @ w @ w @ w @ w, square, square)
    first, *_, last = (op for op in model.program.ops() if model.program.kind[op] == "dot_general")
    near = Side(first, "all_to_all", ("d",), 512.0, 1.0, "w")
    far = Side(last, "all_gather", ("d", "m"), 4096.0, 1.0, "h")
    compiled = far._replace(op=first, value="", dtype="f32")
    parts = [
        compiled._replace(op=last, axes=("d",)),
        compiled._replace(op=last, axes=("m",), bytes=1024.0),
    ]
    found = one(model, [near, far], [compiled, *parts])
    assert (rows.CHANGED, rows.OTHER_ROUTE) in found
    assert (rows.MISSING, "") not in found
    assert (rows.EXTRA, "") not in found


def test_what_is_named_after_a_transpose_of_a_product_serves_the_product() -> None:
    model = frontends.from_jax(
        lambda x, w: (x @ w).T, np.zeros((8, 4), np.float32), np.zeros((4, 2), np.float32)
    )
    product, transpose = (
        next(op for op in model.program.ops() if model.program.kind[op] == kind)
        for kind in ("dot_general", "transpose")
    )
    ours = Side(product, "reduce_scatter", ("d",), LARGE, 1.0, "%1")
    reduced = Side(transpose, "all_reduce", ("d",), LARGE / 2, 1.0, "", "f32")
    permuted = Side(transpose, "collective_permute", ("d", "m"), LARGE / 2, 1.0, "", "f32")
    assert one(model, [ours], [reduced, permuted]) == [
        (rows.CHANGED, rows.IDLE),
        (rows.EXTRA, rows.REORDER),
    ]
    own = Side(transpose, "collective_permute", ("d", "m"), LARGE / 2, 1.0, "%2")
    assert one(model, [own], [permuted]) == [(rows.EQUAL, "")]


def test_what_a_sum_is_scattered_onto_is_gathered() -> None:
    """A gather of the operand that XLA scatters onto is explained.

    XLA makes one scatter of a scatter and the sum after it.
    """

    def step(table: jax.Array, rows_: jax.Array, new: jax.Array) -> jax.Array:
        return table * 2 + jnp.zeros_like(table).at[rows_].add(new)

    sizes = np.zeros((8, 4), np.float32), np.zeros(6, np.int32), np.zeros((6, 4), np.float32)
    model = frontends.from_jax(step, *sizes)
    (scatter,) = (op for op in model.program.ops() if model.program.kind[op] == "scatter")
    gather = Side(scatter, "all_gather", ("d",), 128.0, 1.0, "", "f32")
    assert one(model, [], [gather]) == [(rows.EXTRA, rows.SCATTERED_ONTO)]
    assert one(model, [], [gather._replace(bytes=256.0)]) == [(rows.EXTRA, "")]


def test_a_large_gather_is_no_sum_of_shards(model: Model, product: int) -> None:
    gather = Side(product, "all_gather", ("d",), LARGE, 1.0, "w")
    compiled = gather._replace(op=-1, kind="all_reduce", value="", dtype="f32")
    assert sorted(one(model, [gather], [compiled])) == [(rows.EXTRA, ""), (rows.MISSING, "")]


def test_five_quarters_are_no_parts(model: Model, product: int) -> None:
    gather = Side(product, "all_gather", ("d",), LARGE, 1.0, "w")
    quarter = Side(-1, "all_gather", ("d",), LARGE / 4, 1.0, "", "f32")
    found = one(model, [gather], [quarter] * 5)
    assert sorted(found) == [(rows.CHANGED, rows.IN_PARTS), (rows.EXTRA, "")]
    assert sorted(one(model, [gather], [quarter] * 3)) == [
        *[(rows.EXTRA, "")] * 3,
        (rows.MISSING, ""),
    ]


def test_a_sum_over_two_axes_in_one_step(model: Model, product: int) -> None:
    """A reduce_scatter along one axis and an all_reduce over another may become one all_reduce."""
    scatter = Side(product, "reduce_scatter", ("d",), LARGE, 1.0, "w")
    rest = Side(product, "all_reduce", ("m",), LARGE / 4, 1.0, "w")
    whole = Side(-1, "all_reduce", ("d", "m"), LARGE, 1.0, "", "f32")
    assert sorted(one(model, [scatter, rest], [whole])) == [
        (rows.CHANGED, rows.ONE_STEP),
        (rows.MISSING, rows.ONE_STEP),
    ]
    other = rest._replace(value="v")
    assert rows.ONE_STEP not in {why for _, why in one(model, [scatter, other], [whole])}


def test_what_a_whole_sum_makes_needless(model: Model, product: int) -> None:
    scatter = Side(product, "reduce_scatter", ("d",), LARGE, 1.0, "w")
    whole = Side(product, "all_reduce", ("d",), LARGE, 1.0, "", "f32")
    kept = [(rows.CHANGED, rows.SUM_AND_SLICE), (rows.MISSING, rows.KEPT_WHOLE)]
    (user,) = (
        op
        for op in model.program.ops()
        if model.program.kind[op] == "maximum"
        and set(model.program.operands(op)) & set(model.program.results(product))
    )
    gather = Side(user, "all_gather", ("d",), LARGE, 1.0, "v")
    assert sorted(one(model, [scatter, gather], [whole])) == kept
    other_axis = gather._replace(axes=("m",))
    assert sorted(one(model, [scatter, other_axis], [whole])) == [kept[0], (rows.MISSING, "")]


def test_one_gather_in_two_steps_and_two_moves_in_one(model: Model, product: int) -> None:
    gather = Side(product, "all_gather", ("d", "m"), LARGE, 1.0, "w")
    steps = [
        Side(product, "all_gather", ("d",), LARGE / 4, 1.0, "", "f32"),
        Side(product, "all_gather", ("m",), LARGE, 1.0, "", "f32"),
    ]
    assert sorted(one(model, [gather], steps)) == [
        (rows.CHANGED, rows.OTHER_AXES),
        (rows.EXTRA, rows.OTHER_AXES),
    ]
    moves = [
        Side(product, "all_to_all", ("d",), LARGE / 4, 1.0, "w"),
        Side(product, "collective_permute", ("m",), LARGE / 4, 1.0, "w"),
    ]
    swap = Side(product, "all_to_all", ("d", "m"), LARGE, 1.0, "", "f32")
    for kind, reason in (("all_to_all", rows.OTHER_AXES), ("all_gather", rows.OTHER_ROUTE)):
        assert sorted(one(model, moves, [swap._replace(kind=kind)])) == [
            (rows.CHANGED, reason),
            (rows.MISSING, reason),
        ]


def test_operands_moved_where_results_were_to_be_summed(model: Model, product: int) -> None:
    total = Side(product, "all_reduce", ("d",), LARGE, 1.0, "w")
    move = Side(product, "all_to_all", ("d",), LARGE / 4, 1.0, "", "f32")
    assert sorted(one(model, [total], [move])) == [
        (rows.EXTRA, rows.OTHER_SHARDS),
        (rows.MISSING, rows.OTHER_SHARDS),
    ]
    elsewhere = move._replace(op=-1)
    assert sorted(one(model, [total], [elsewhere])) == [(rows.EXTRA, ""), (rows.MISSING, "")]


def test_complex_numbers_are_sent_as_two_arrays() -> None:
    model = frontends.from_jax(wave, np.zeros((8, 16), np.complex64))
    program = model.program
    value = next(v for v, d in enumerate(program.value_dtype) if d == "complex<f32>")
    op = int(program.value_op[value])
    priced = Side(op, "all_to_all", ("d",), 1024.0, 1.0, program.value_name[value])
    part = Side(op, "all_to_all", ("d",), 512.0, 1.0, "", "f32")
    assert one(model, [priced], [part, part]) == [(rows.CHANGED, rows.COMPLEX)]
    assert one(model, [priced], [part._replace(bytes=1024.0, dtype="c64")]) == [(rows.EQUAL, "")]


def test_equal_ops_on_equal_operands_are_one_op_of_the_compiler() -> None:
    model = frontends.from_jax(twice, np.zeros((8, 16), np.float32))
    sums = [op for op in model.program.ops() if model.program.kind[op] == "reduce"]
    first, second, other = (
        Side(op, "all_reduce", ("d",), 64.0, 1.0, model.program.value_name[result])
        for op in sums
        for result in model.program.results(op)
    )
    compiled = first._replace(value="", dtype="f32")
    assert sorted(one(model, [first, second, other], [compiled])) == [
        (rows.EQUAL, ""),
        (rows.MISSING, ""),
        (rows.MISSING, rows.SHARED),
    ]


def nested(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A sum in two steps with a reshape between, the same in one step, and a sum of fewer dims."""
    return jnp.sin(x.sum(2)[:, :, None].sum((0, 2))), jnp.cos(x.sum((0, 2))), x.sum((1, 2))


def test_a_sum_in_several_steps_is_the_one_in_a_single_step() -> None:
    model = frontends.from_jax(nested, np.zeros((8, 8, 4), np.float32))
    sides = [
        Side(op, "all_reduce", ("d",), 32.0, 1.0, model.program.value_name[result])
        for op in model.program.ops()
        for result in model.program.results(op)
        if model.program.kind[op] == "reduce" and model.program.dims(result) == (8,)
    ]
    assert len(sides) == 3
    compiled = Side(-1, "all_reduce", ("d",), 32.0, 1.0, "", "f32")
    found = compare(model.program, make_mesh(MESH), sides, [compiled, compiled])
    reasons = [row.reason for row in sorted(found.rows, key=lambda row: row.op)]
    assert reasons.count(rows.SHARED) == 1
    assert reasons[-1] == rows.OTHER_OP, "what is merged takes no partner of others"


def test_what_a_broadcast_made_need_not_be_gathered() -> None:
    def widen(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.concatenate([jnp.broadcast_to(jnp.cos(x), y.shape), jnp.sin(y)], 1)

    model = frontends.from_jax(widen, np.zeros(4, np.float32), np.zeros((8, 4), np.float32))
    program = model.program
    (joined,) = (op for op in program.ops() if program.kind[op] == "concatenate")
    ours = [
        Side(joined, "all_gather", ("d",), 128.0, 1.0, program.value_name[value])
        for value in program.operands(joined)
    ]
    edges = Side(joined, "collective_permute", ("d",), 2.0, 1.0, "", "f32")
    assert one(model, [], [edges]) == [(rows.EXTRA, rows.EDGES)]
    assert one(model, [], [edges._replace(bytes=32.0)]) == [(rows.EXTRA, "")]
    later = (rows.MISSING, rows.BROADCAST_LATER)
    assert sorted(one(model, ours, [])) == [(rows.MISSING, ""), later]
    (wide,) = (op for op in program.ops() if program.kind[op] == "broadcast_in_dim")
    (narrow,) = (program.value_name[value] for value in program.operands(wide))
    gather = Side(wide, "all_gather", ("d",), 16.0, 1.0, narrow)
    assert one(model, [gather], []) == [later]
    # The transfer for the broadcast also serves the op that reads the smaller value.
    elsewhere = gather._replace(op=joined)
    compiled = gather._replace(op=joined, bytes=24.0, value="", dtype="f32")
    assert sorted(one(model, [ours[0], elsewhere], [compiled])) == [
        (rows.CHANGED, rows.OTHER_SIZE),
        (rows.MISSING, rows.SHARED),
    ]


def wave(x: jax.Array) -> jax.Array:
    return jnp.exp(x) * 2


def twice(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Two equal sums and one of another operand; no op combines any of them."""
    return jnp.sin(x.sum(1)), jnp.cos(x.sum(1)), (x + 1).sum(1)


def test_what_the_partitioner_gave_up_on_is_said(model: Model, product: int) -> None:
    extra = Side(product, "all_gather", ("m",), 4096.0, 1.0, "", "f32")
    assert one(model, [], [extra], (product,)) == [(rows.EXTRA, rows.REMATERIALISED)]


def test_a_plan_on_virtual_devices_is_explained_in_full() -> None:
    model = small_step()
    problem = problem_of(model, MESH)
    plan = Plan.from_actions(problem, [("batch", "d"), ("inner", "d")])
    found = diff_compiled(problem, plan, compile_plan(model, plan, "cpu:8", store=False))
    assert found.rows
    assert not found.unexplained, str(found)
    priced = price(problem, plan)
    assert sum(row.predicted is not None for row in found.rows) == len(priced.collectives)
    assert {row.where.rsplit(":", 1)[0].rsplit("/", 1)[-1] for row in found.rows} == {"test_run.py"}
    tidy = found.tidy()
    assert len(tidy) == len(found.rows)
    assert len({tuple(row) for row in tidy}) == 1, "the same keys everywhere"
    ours, theirs = found.bytes_by_kind()["all_gather"]
    assert ours == theirs == 8192.0


def test_a_run_can_be_compared_too() -> None:
    model = small_step()
    problem = problem_of(model, MESH)
    plan = Plan.from_actions(problem, [("batch", "d"), ("inner", "d")])
    ran = run(model, plan, "cpu:8", repeats=1, warmup=0, reference=False)
    assert not diff_compiled(problem, plan, ran).unexplained


def test_results_of_other_plans_and_refusals_are_refused() -> None:
    model = small_step()
    problem = problem_of(model, MESH)
    plan = Plan.from_actions(problem, [("batch", "d")])
    other = Plan.from_actions(problem, [("batch", "m")])
    compiled = compile_plan(model, plan, "cpu:8", store=False)
    with pytest.raises(InvalidPlan, match=f"{other.key:016x}"):
        diff_compiled(problem, other, compiled)
    refused = dataclasses.replace(compiled, fits=False, needed_bytes=2.0**34, limit_bytes=2.0**33)
    with pytest.raises(InvalidPlan, match=r"16\.00 GiB of 8\.00 GiB"):
        diff_compiled(problem, plan, refused)
