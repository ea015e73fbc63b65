"""Reading StableHLO: calls, dead code, source lines, names of values, and rules or their lack."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toast_lab.conflicts.analysis import analyse
from toast_lab.frontends import from_jax
from toast_lab.ir import program as p
from toast_lab.ir.model import Model
from toast_lab.ir.program import Program
from toast_lab.ir.read import parse

S = jax.ShapeDtypeStruct


def leaf(*shape: int, dtype: Any = jnp.float32) -> S:
    return S(shape, dtype)


def traced(fn: Any, *args: Any) -> Program:
    return from_jax(fn, *args).program


def module(
    body: str,
    arguments: str = "%x: tensor<8x4xf32>",
    result: str = "tensor<8x4xf32>",
    more: str = "",
) -> Program:
    text = (
        f"module {{\n  func.func public @main({arguments}) -> {result} {{\n{body}\n  "
        f"}}\n{more}\n}}\n"
    )
    return parse(text).program


def kinds(program: Program) -> list[str]:
    return [program.kind[op] for op in program.ops()]


def only(program: Program, kind: str) -> int:
    (op,) = [op for op in program.ops() if program.kind[op] == kind]
    return op


def value(program: Program, name: str) -> int:
    return program.value_name.index(name)


def shardable(program: Program, name: int) -> bool:
    return program.factor_size[name] > 1 and program.factor_class[name] in (p.PASS, p.REDUCTION)


# -- calls -----------------------------------------------------------------------------------------


def test_calls_are_inlined() -> None:
    @jax.jit
    def inner(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * 2

    program = traced(lambda x: inner(x) + 1, leaf(4))
    assert "func.call" not in kinds(program)
    assert [k for k in kinds(program) if k not in ("constant", "broadcast_in_dim")] == [
        "sine",
        "multiply",
        "add",
    ]


def test_each_call_site_gets_its_own_copy() -> None:
    @jax.jit
    def twice(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    @jax.jit
    def middle(x: jax.Array) -> jax.Array:
        return twice(x) * twice(x + 1)

    program = traced(lambda x: middle(x) - middle(jnp.cos(x)), leaf(4))
    assert kinds(program).count("sine") == 4
    assert kinds(program).count("multiply") == 2
    names = [program.factors(op) for op in program.ops() if program.kind[op] == "sine"]
    assert len({name for row in names for name in row}) == 4, "fresh names at each site"


def test_a_call_with_several_results_and_a_call_of_a_call() -> None:
    program = module(
        "    %0:2 = func.call @outer(%x) : (tensor<8x4xf32>) -> (tensor<8x4xf32>, "
        "tensor<8x4xf32>)\n"
        "    %1 = stablehlo.add %0#0, %0#1 : tensor<8x4xf32>\n    return %1 : tensor<8x4xf32>",
        more="""
  func.func private @outer(%a: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
    %0 = func.call @inner(%a) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    return %0, %a : tensor<8x4xf32>, tensor<8x4xf32>
  }
  func.func private @inner(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
    %0 = stablehlo.tanh %a : tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }""",
    )
    assert kinds(program) == ["tanh", "add"]
    tanh, add = program.ops()
    assert program.operands(add) == [program.results(tanh)[0], 0]


def test_dead_code_is_dropped() -> None:
    program = module(
        "    %0 = stablehlo.sine %x : tensor<8x4xf32>\n    %1 = stablehlo.exponential %0 : "
        "tensor<8x4xf32>\n"
        "    %2 = stablehlo.tanh %x : tensor<8x4xf32>\n    return %2 : tensor<8x4xf32>",
        more="  func.func private @unused(%a: tensor<2xf32>) -> tensor<2xf32> {\n    return %a : "
        "tensor<2xf32>\n  }",
    )
    assert kinds(program) == ["tanh"]
    assert program.n_arguments == 1


def test_what_a_custom_call_does_is_not_known_so_it_stays() -> None:
    program = module(
        "    %0 = stablehlo.custom_call @log(%x) {has_side_effect = true} : (tensor<8x4xf32>) -> "
        "tensor<8x4xf32>\n"
        "    return %x : tensor<8x4xf32>"
    )
    assert kinds(program) == ["custom_call"]


# -- source lines and names ------------------------------------------------------------------------


def test_source_lines_and_name_stacks() -> None:
    def fn(x: jax.Array) -> jax.Array:
        with jax.named_scope("block"):
            y = jnp.sin(x)
        return y + x

    first = inspect.getsourcelines(fn)[1]
    program = traced(fn, leaf(4))
    sine, add = only(program, "sine"), only(program, "add")
    assert Path(program.where(sine)).name == f"{Path(__file__).name}:{first + 2}"
    assert Path(program.where(add)).name == f"{Path(__file__).name}:{first + 3}"
    assert program.name_stack[sine] == "jit(fn)/block/sin"
    assert program.name_stack[add] == "jit(fn)/add"


def test_a_line_in_a_helper_comes_before_the_line_that_called_it() -> None:
    def helper(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    def fn(x: jax.Array) -> jax.Array:
        return helper(x)

    program = traced(fn, leaf(4))
    frames = program.locations[int(program.location[only(program, "sine")])].split(" < ")
    lines = [int(f.rpartition(":")[2]) for f in frames]
    assert lines[:2] == [inspect.getsourcelines(helper)[1] + 1, inspect.getsourcelines(fn)[1] + 1]


def test_an_op_without_a_location_says_so() -> None:
    program = module(
        "    %0 = stablehlo.tanh %x : tensor<8x4xf32> loc(unknown)\n    return %0 : tensor<8x4xf32>"
    )
    assert program.where(only(program, "tanh")) == "unknown line"


def test_values_are_called_after_their_variables() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        hidden = x @ w
        act = jnp.tanh(hidden) + hidden
        hidden = act * 2
        return hidden

    program = traced(fn, leaf(4, 4), leaf(4, 4))
    assert program.kind[program.value_op[value(program, "hidden")]] == "dot_general"
    # The variable holds the result of the last op of the expression.
    assert program.kind[program.value_op[value(program, "act")]] == "add"
    assert program.kind[program.value_op[value(program, "hidden_1")]] == "multiply"
    tanh = program.results(only(program, "tanh"))[0]
    assert program.value_name[tanh] == f"%{tanh}"
    assert len(set(program.value_name)) == program.n_values


# -- rules -----------------------------------------------------------------------------------------


def test_a_dot_is_an_einsum() -> None:
    program = traced(lambda x, w: jnp.einsum("bsd,dhk->bshk", x, w), leaf(2, 6, 8), leaf(8, 3, 4))
    dot = only(program, "dot_general")
    x, w = (program.use_names(u) for u in range(program.use_ptr[dot], program.use_ptr[dot + 1]))
    assert x[2] == w[0], "the contracted dim is one factor"
    assert program.def_names(program.results(dot)[0]) == [x[0], x[1], w[1], w[2]]
    assert program.factor_class[x[2]] == p.REDUCTION
    assert p.MONOIDS[program.monoid[dot]] == "add"
    assert program.flops[dot] == 2 * 2 * 6 * 8 * 3 * 4


@pytest.mark.parametrize(
    ("before", "after"),
    [((4, 6), (24,)), ((24,), (4, 6)), ((2, 3, 5), (6, 5)), ((8, 1, 3), (8, 3))],
)
def test_reshapes_map_dims_in_factors(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    program = traced(lambda x: jnp.reshape(x, after), leaf(*before))
    op = only(program, "reshape")
    use = int(program.use_ptr[op])
    start = int(program.use_dim_ptr[use])
    inside = [program.use_dim_factors[start + d] for d in range(len(before))]
    at = int(program.shape_ptr[program.results(op)[0]])
    outside = [program.def_dim_minor[at + d] for d in range(len(after))]
    for dims, shape in ((inside, before), (outside, after)):
        for factors, size in zip(dims, shape, strict=True):
            assert np.prod([program.factor_size[f] for f in factors]) == size
            assert not any(shardable(program, f) for f in factors[1:]), (
                "a minor factor alone needs a strided layout"
            )
    merged = max([*inside, *outside], key=len)
    assert shardable(program, merged[0]), "the major factor can be split"


def test_only_the_major_factor_of_a_merged_dim_joins_colours() -> None:
    program = traced(lambda x: jnp.tanh(jnp.reshape(x, (24,))), leaf(4, 6))
    analysis = analyse(Model(program.name, program))
    first, second = program.def_names(0)
    merged = program.def_names(program.results(only(program, "tanh"))[0])[0]
    assert analysis.colour[first] == analysis.colour[merged]
    assert analysis.colour[second] != analysis.colour[merged]


def test_elementwise_chlo_ops_have_a_rule() -> None:
    program = module(
        "    %0 = chlo.erf_inv %x : tensor<8x4xf32> -> tensor<8x4xf32>\n    return "
        "%0 : tensor<8x4xf32>"
    )
    op = only(program, "chlo.erf_inv")
    assert program.use_names(int(program.use_ptr[op])) == program.def_names(program.results(op)[0])
    assert all(shardable(program, f) for f in program.factors(op))
    assert program.missing_rules == ()
    assert p.CLASSES[program.op_class[op]] == "elementwise"


@pytest.mark.parametrize(
    ("fn", "monoid"),
    [
        (jnp.sum, "add"),
        (jnp.max, "max"),
        (jnp.min, "min"),
        (jnp.prod, "mul"),
        (lambda x, axis: jnp.all(x > 0, axis), "and"),
        (lambda x, axis: jnp.any(x > 0, axis), "or"),
    ],
)
def test_what_combines_the_parts_of_a_reduction(fn: Any, monoid: str) -> None:
    program = traced(lambda x: fn(x, axis=1), leaf(8, 4))
    op = only(program, "reduce")
    assert p.MONOIDS[program.monoid[op]] == monoid
    reduced = program.use_names(int(program.use_ptr[op]))[1]
    assert program.factor_class[reduced] == p.REDUCTION


def test_a_reduction_with_an_unknown_combiner_cannot_be_split() -> None:
    program = traced(lambda x: jnp.argmax(x, axis=1), leaf(8, 4))
    op = only(program, "reduce")
    kept, reduced = program.use_names(int(program.use_ptr[op]))
    assert shardable(program, kept)
    assert program.factor_class[reduced] == p.NEED_REPLICATION


def test_ops_without_a_rule_are_reported_and_stay_whole() -> None:
    program = module(
        """    %0 = stablehlo.custom_call @somebody_elses(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    return %0 : tensor<8x4xf32>"""
    )
    call = only(program, "custom_call")
    assert [op for op, _ in program.missing_rules] == [call]
    assert "no sharding rule for custom_call" in program.missing_rules[0][1]
    assert not any(shardable(program, f) for f in program.factors(call))


def test_ordinary_networks_have_a_rule_for_every_op() -> None:
    def fn(x: jax.Array, k: jax.Array) -> jax.Array:
        y = jax.lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = jax.nn.softmax(jnp.cumsum(jnp.sort(y, axis=-1), axis=1), axis=-1)
        return jnp.pad(y[:, 1:], ((0, 0), (0, 1), (0, 0), (0, 0)))

    program = traced(fn, leaf(2, 8, 8, 4), leaf(3, 3, 4, 16))
    assert program.missing_rules == ()
    conv = only(program, "convolution")
    assert program.flops[conv] == 2 * (2 * 8 * 8 * 16) * (3 * 3 * 4)


# -- the arrays ------------------------------------------------------------------------------------


def test_constants_are_known_through_ops() -> None:
    def fn(x: jax.Array) -> jax.Array:
        mask = jnp.tril(jnp.ones((4, 4)))
        return x * mask

    program = traced(fn, leaf(4, 4))
    product = only(program, "multiply")
    x, mask = program.operands(product)
    assert not program.value_is_constant[x]
    assert program.value_is_constant[mask]
    assert not program.value_is_constant[program.results(product)[0]]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(jnp.float32, 4), (jnp.bfloat16, 2), (jnp.int8, 1), (jnp.bool_, 1), (jnp.complex64, 8)],
)
def test_sizes_in_bytes(dtype: Any, size: int) -> None:
    program = traced(lambda x: x, leaf(3, 5, dtype=dtype))
    assert program.nbytes(0) == 15 * size


def test_arrays_are_read_only() -> None:
    program = traced(lambda x: x + 1, leaf(4))
    with pytest.raises(ValueError, match="read-only"):
        program.shape[0] = 3


def test_the_digest_is_of_the_program_not_of_its_names() -> None:
    def one(x: jax.Array) -> jax.Array:
        first = jnp.sin(x)
        return first

    def other(y: jax.Array) -> jax.Array:
        return jnp.sin(y)

    assert traced(one, leaf(4)).digest() == traced(other, leaf(4)).digest()
    assert traced(one, leaf(4)).digest() != traced(other, leaf(5)).digest()
    assert traced(one, leaf(4)).digest() != traced(lambda y: jnp.cos(y), leaf(4)).digest()


def test_complex_constants_are_read() -> None:
    program = from_jax(
        lambda x: x * (1 + 2j) + jnp.asarray([1j, 2.0, 3.0]), S((3,), jnp.complex64)
    ).program
    constants = [program.detail[op] for op in program.ops() if program.kind[op] == "constant"]
    assert constants == ["", "(1.000000e+00,2.000000e+00)"]


@pytest.mark.parametrize(("dtype", "kept_whole"), [(jnp.uint32, True), (jnp.bool_, False)])
def test_bitwise_sums_of_integers_have_no_collective(dtype: Any, kept_whole: bool) -> None:
    program = from_jax(lambda x: jax.lax.reduce_or(x, (0,)), S((8, 4), dtype)).program
    (op,) = (op for op in program.ops() if program.kind[op] == "reduce")
    summed = program.use_names(int(program.use_ptr[op]))[0]
    assert program.factor_class[summed] == (p.NEED_REPLICATION if kept_whole else p.REDUCTION)


@pytest.mark.parametrize("groups", [1, 2])
def test_the_contraction_of_a_convolution_with_batch_groups_stays_whole(groups: int) -> None:
    def kernel_gradient(x: Any, g: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            g,
            (1, 1),
            ((1, 1), (1, 1)),
            batch_group_count=groups,
            dimension_numbers=("CHWN", "IHWO", "HWNC"),
        )

    program = from_jax(
        kernel_gradient, S((8, 4, 4, 8), jnp.float32), S((8, 4, 4, 8), jnp.float32)
    ).program
    (op,) = (op for op in program.ops() if program.kind[op] == "convolution")
    contracted = program.use_names(int(program.use_ptr[op]))[0]
    assert program.factor_class[contracted] == (p.REDUCTION if groups == 1 else p.NEED_REPLICATION)
