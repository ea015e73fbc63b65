"""Loops and conditionals become stretches of the flat op list.

The tests check their order, shared factors, rounds and stacked values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toast_lab.frontends import from_jax
from toast_lab.ir.program import NEED_REPLICATION, PASS, Program

F32 = "float32"


def leaf(*shape: int, dtype: str = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def traced(fn: Callable[..., Any], *args: Any) -> Program:
    return from_jax(fn, *args).program


def of_kind(program: Program, kind: str) -> list[int]:
    return [op for op in program.ops() if program.kind[op] == kind]


def rounds(program: Program) -> list[tuple[float, bool]]:
    return [(r.times, r.known) for r in program.regions if r.kind == "body"]


# -- order and regions -----------------------------------------------------------------------------


def test_a_loop_is_entered_tested_gone_through_and_left() -> None:
    program = traced(lambda x: jax.lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h), x), leaf(8, 4))
    order = [k for k in program.kind if k.startswith("while.")]
    n = order.count("while.enter")
    assert order == ["while.enter"] * n + ["while.test"] + ["while.next"] * n + ["while.result"] * n
    loop, cond, body = program.regions
    assert (loop.kind, cond.kind, body.kind) == ("loop", "cond", "body")
    assert cond.parent == body.parent == 0
    assert loop.begin == of_kind(program, "while.enter")[0]
    assert cond.end == body.begin == of_kind(program, "while.test")[0] + 1
    assert body.end == loop.end == of_kind(program, "while.next")[-1] + 1
    tanh = of_kind(program, "tanh")[0]
    assert program.region[tanh] == 2
    assert program.trips[tanh] == 3
    assert program.trips[of_kind(program, "while.test")[0]] == 4
    assert all(
        program.region[o] == -1 and program.trips[o] == 1 for o in of_kind(program, "while.enter")
    )
    assert program.missing_rules == ()


def test_a_handed_on_value_has_one_set_of_factors() -> None:
    program = traced(lambda x: jax.lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h), x), leaf(8, 4))
    enter = next(o for o in of_kind(program, "while.enter") if program.operands(o) == [0])
    (inside,) = program.results(enter)
    factors = list(program.factors(enter))
    assert program.def_names(inside) == factors
    assert [program.factor_size[f] for f in factors] == [8, 4]
    following = [o for o in range(program.n_ops) if program.owner[o] == enter and o != enter]
    assert [program.kind[o] for o in following] == ["while.next", "while.result"]
    back, left = following
    assert program.operands(back) == list(program.results(of_kind(program, "tanh")[0]))
    assert program.use_names(int(program.use_ptr[back])) == factors
    assert program.def_names(program.results(left)[0]) == factors
    assert len(program.factors(back)) == len(program.factors(left)) == 0
    assert program.outputs.tolist() == list(program.results(left))


def test_the_condition_sees_the_same_value_as_the_body() -> None:
    program = traced(
        lambda x: jax.lax.while_loop(lambda h: jnp.max(h) < 9, lambda h: h * 2, x), leaf(8, 4)
    )
    (enter,) = of_kind(program, "while.enter")
    (inside,) = program.results(enter)
    users = {int(program.region[o]) for o in program.ops() if inside in program.operands(o)}
    kinds = {program.regions[r].kind for r in users}
    assert kinds == {"cond", "body"}


def test_values_from_outside_are_plain_uses() -> None:
    program = traced(
        lambda x, w: jax.lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ w), x),
        leaf(8, 4),
        leaf(4, 4),
    )
    dot = of_kind(program, "dot_general")[0]
    owners = {int(program.value_op[v]) for v in program.operands(dot)}
    assert all(program.kind[o] in ("argument", "while.enter") for o in owners)
    assert all(
        program.factor_class[f] != NEED_REPLICATION
        for u in range(program.use_ptr[dot], program.use_ptr[dot + 1])
        for f in program.use_names(u)
    )


@pytest.mark.parametrize("n", [2, 3])
def test_branches_join_in_the_result(n: int) -> None:
    branches = [jnp.sin, jnp.cos, lambda x: x][:n]
    program = traced(lambda i, x: jax.lax.switch(i, branches, x), leaf(dtype="int32"), leaf(8, 4))
    (result,) = of_kind(program, "case.result")
    yields = of_kind(program, "case.yield")
    assert len(yields) == n
    assert all(program.owner[y] == result for y in yields)
    names = program.def_names(program.results(result)[0])
    assert names == list(program.factors(result))
    assert all(program.use_names(int(program.use_ptr[y])) == names for y in yields)
    found = [r for r in program.regions if r.kind == "branch"]
    assert len(found) == n
    assert all(a.end == b.begin for a, b in itertools.pairwise(found))
    sine = of_kind(program, "sine")[0]
    assert program.trips[sine] == pytest.approx(1 / n)


def test_nested_loops_multiply() -> None:
    def inner(h: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 5, lambda i, g: jnp.tanh(g), h)

    program = traced(lambda x: jax.lax.fori_loop(0, 3, lambda i, h: inner(h), x), leaf(8, 4))
    assert program.trips[of_kind(program, "tanh")[0]] == 15
    assert program.trips[of_kind(program, "while.test")].tolist() == [4, 18]


def test_an_optimization_barrier_is_one_op_for_each_value() -> None:
    program = traced(lambda x, y: jax.lax.optimization_barrier((x, y)), leaf(8, 4), leaf(3))
    assert [program.operands(o) for o in of_kind(program, "optimization_barrier")] == [[0], [1]]


def test_what_no_round_needs_is_dropped_from_a_body() -> None:
    def body(i: jax.Array, h: jax.Array) -> jax.Array:
        jnp.sin(h)
        return jnp.tanh(h)

    text = jax.jit(lambda x: jax.lax.fori_loop(0, 3, body, x)).lower(leaf(8, 4)).as_text()
    assert "sine" not in traced(lambda x: jax.lax.fori_loop(0, 3, body, x), leaf(8, 4)).kind
    assert "while" in text


# -- rounds ----------------------------------------------------------------------------------------


def test_scan_says_its_rounds() -> None:
    program = traced(
        lambda xs, x: jax.lax.scan(lambda c, w: (c + w, c), x, xs), leaf(7, 4), leaf(4)
    )
    assert rounds(program) == [(7, True)]


def test_rounds_that_come_in_as_an_argument_are_unknown() -> None:
    program = traced(
        lambda n, x: jax.lax.fori_loop(0, n, lambda i, h: h + 1, x), leaf(dtype="int32"), leaf(4)
    )
    assert rounds(program) == [(1, False)]


def loop_text(
    start: int, limit: int, step: int, compare: str, op: str = "add", swap: bool = False
) -> str:
    test = "%limit, %i" if swap else "%i, %limit"
    return f"""func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %start = stablehlo.constant dense<{start}> : tensor<i32>
  %limit = stablehlo.constant dense<{limit}> : tensor<i32>
  %0:2 = stablehlo.while(%i = %start, %h = %x) : tensor<i32>, tensor<4xf32>
  cond {{
    %1 = stablehlo.compare {compare}, {test}, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }} do {{
    %step = stablehlo.constant dense<{step}> : tensor<i32>
    %2 = stablehlo.{op} %i, %step : tensor<i32>
    %3 = stablehlo.tanh %h : tensor<4xf32>
    stablehlo.return %2, %3 : tensor<i32>, tensor<4xf32>
  }}
  return %0#1 : tensor<4xf32>
}}"""


@pytest.mark.parametrize(
    ("start", "limit", "step", "compare", "op", "swap"),
    [
        (0, 10, 1, "LT", "add", False),
        (0, 10, 3, "LT", "add", False),
        (2, 10, 4, "LE", "add", False),
        (10, 0, 3, "GT", "subtract", False),
        (10, 1, 3, "GE", "subtract", False),
        (10, 0, -1, "GT", "add", False),
        (0, 9, 3, "NE", "add", False),
        (0, 10, 3, "GT", "add", True),
        (10, 0, 3, "LE", "subtract", True),
        (5, 5, 1, "LT", "add", False),
        (7, 3, 1, "LT", "add", False),
    ],
)
def test_rounds_are_counted_as_they_run(
    start: int, limit: int, step: int, compare: str, op: str, swap: bool
) -> None:
    from toast_lab.ir.read import parse

    holds = {
        "LT": np.less,
        "LE": np.less_equal,
        "GT": np.greater,
        "GE": np.greater_equal,
        "NE": np.not_equal,
    }[compare]
    i, count = start, 0
    while holds(limit, i) if swap else holds(i, limit):
        i, count = i + step if op == "add" else i - step, count + 1
    program = parse(loop_text(start, limit, step, compare, op, swap)).program
    assert rounds(program) == [(count, True)]


@pytest.mark.parametrize(
    ("start", "limit", "step", "compare"),
    [(0, 10, -1, "LT"), (0, 10, 3, "NE"), (0, 10, 0, "LT"), (3, 3, 1, "EQ")],
)
def test_loops_that_do_not_count_to_an_end(start: int, limit: int, step: int, compare: str) -> None:
    from toast_lab.ir.read import parse

    assert rounds(parse(loop_text(start, limit, step, compare)).program) == [(1, False)]


def test_a_limit_that_the_loop_carries_unchanged_is_known() -> None:
    def fn(x: jax.Array) -> jax.Array:
        def body(
            c: tuple[jax.Array, jax.Array, jax.Array],
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            i, n, h = c
            return i + 2, n, h * 2

        return jax.lax.while_loop(lambda c: c[0] < c[1], body, (jnp.int32(1), jnp.int32(12), x))[2]

    assert rounds(traced(fn, leaf(4))) == [(6, True)]


# -- stacked values --------------------------------------------------------------------------------


def stack(xs: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), c), x, xs)


def test_the_stacking_dim_of_a_scan_is_held_whole_inside() -> None:
    program = traced(stack, leaf(6, 4, 4), leaf(8, 4))
    by_shape = {}
    for enter in of_kind(program, "while.enter"):
        (inside,) = program.results(enter)
        by_shape[program.dims(inside)] = [
            int(program.factor_class[f]) for f in program.def_names(inside)
        ]
    assert by_shape[6, 4, 4] == [NEED_REPLICATION, PASS, PASS]
    assert by_shape[6, 8, 4] == [NEED_REPLICATION, PASS, PASS]
    assert by_shape[8, 4] == [PASS, PASS]
    assert program.factor_class[0] == PASS  # the argument itself may still be cut along its layers


def test_a_cache_that_attention_reads_is_not_stacked() -> None:
    def step(
        c: tuple[jax.Array, jax.Array], q: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        cache, at = c
        cache = jax.lax.dynamic_update_slice(cache, q[None], (at, 0))
        return (cache, at + 1), jax.nn.softmax(cache @ q)

    program = traced(
        lambda cache, at, qs: jax.lax.scan(step, (cache, at), qs),
        leaf(16, 4),
        leaf(dtype="int32"),
        leaf(5, 4),
    )
    enter = next(
        o for o in of_kind(program, "while.enter") if program.dims(program.results(o)[0]) == (16, 4)
    )
    assert [int(program.factor_class[f]) for f in program.factors(enter)] == [PASS, PASS]
