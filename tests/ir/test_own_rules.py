"""Our own sharding rules, and where they narrow Shardy's, read off small programs.

These tests say what the rules are; evaluation/certification/rules certifies by execution that they
are right.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from toast_lab.errors import FrontendError
from toast_lab.frontends import from_jax
from toast_lab.ir import program as p
from toast_lab.ir.program import Program
from toast_lab.ir.read import parse

S = jax.ShapeDtypeStruct
ROLES = {p.PASS: "pass", p.REDUCTION: "reduce", p.NEED_REPLICATION: "-", p.PERMUTATION: "-"}


def lowered(fn: Any, *args: Any, platform: str = "cpu") -> Program:
    return parse(jax.jit(fn).trace(*args).lower(lowering_platforms=(platform,)).as_text()).program


def leaf(*shape: int, dtype: Any = jnp.float32) -> S:
    return S(shape, dtype)


def op_of(program: Program, kind: str, target: str = "") -> int:
    return next(o for o in program.ops() if program.kind[o] == kind and target in program.detail[o])


def roles(program: Program, op: int) -> str:
    """Roles of the factors at each dim of each operand and result, as text.

    For instance ``[pass, -] -> [pass]``.
    """

    def row(names: list[int]) -> str:
        return "[" + ", ".join(ROLES[int(program.factor_class[n])] for n in names) + "]"

    uses = range(int(program.use_ptr[op]), int(program.use_ptr[op + 1]))
    left = " ".join(row(program.use_names(u)) for u in uses)
    return f"{left} -> {' '.join(row(program.def_names(v)) for v in program.results(op))}"


def text(body: str, arguments: str, result: str) -> Program:
    return parse(
        f"func.func public @main({arguments}) -> {result} {{\n{body}\n  return %0 : {result}\n}}"
    ).program


MATRICES = leaf(4, 8, 8)


@pytest.mark.parametrize(
    ("fn", "platform", "target", "expected"),
    [
        (jnp.linalg.qr, "cpu", "lapack_sgeqrf_ffi", "[pass, -, -] -> [pass, -, -] [pass, -]"),
        (jnp.linalg.qr, "cuda", "cusolver_geqrf_ffi", "[pass, -, -] -> [pass, -, -] [pass, -]"),
        (jnp.linalg.qr, "tpu", "Qr", "[pass, -, -] -> [pass, -, -] [pass, -]"),
        (jnp.linalg.qr, "cuda", "cusolver_orgqr_ffi", "[pass, -, -] [pass, -] -> [pass, -, -]"),
        (
            jnp.linalg.svd,
            "cuda",
            "cusolver_gesvdj_ffi",
            "[pass, -, -] -> [pass, -, -] [pass, -] [pass, -, -] [pass, -, -] [pass]",
        ),
        (
            jnp.linalg.eigh,
            "cuda",
            "cusolver_syevd_ffi",
            "[pass, -, -] -> [pass, -, -] [pass, -] [pass]",
        ),
        (jnp.linalg.eigh, "tpu", "Eigh", "[-, -, -] -> [-, -, -] [-, -]"),
        (
            lax.linalg.lu,
            "cuda",
            "cusolver_getrf_ffi",
            "[pass, -, -] -> [pass, -, -] [pass, -] [pass]",
        ),
        (lax.linalg.lu, "cuda", "cu_lu_pivots_to_permutation", "[pass, -] -> [pass, -]"),
        (jnp.linalg.cholesky, "cuda", "cusolver_potrf_ffi", "[pass, -, -] -> [pass, -, -] [pass]"),
    ],
)
def test_linear_algebra_on_every_platform(
    fn: Any, platform: str, target: str, expected: str
) -> None:
    program = lowered(fn, MATRICES, platform=platform)
    assert roles(program, op_of(program, "custom_call", target)) == expected


def test_calls_inside_a_loop_are_read() -> None:
    def loop(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, y: jnp.linalg.qr(y)[0] + lax.top_k(y, 8)[0], x)

    assert from_jax(loop, MATRICES).program.n_arguments == 1


def test_random_bits_by_a_custom_call_act_element_by_element() -> None:
    types = (
        "(tensor<8xui32>, tensor<8xui32>, tensor<8xui32>, tensor<8xui32>) -> "
        "(tensor<8xui32>, tensor<8xui32>)"
    )
    program = text(
        f"  %1:2 = stablehlo.custom_call @cu_threefry2x32_ffi(%a, %a, %a, %a) : {types}\n"
        "  %0 = stablehlo.add %1#0, %1#1 : tensor<8xui32>",
        "%a: tensor<8xui32>",
        "tensor<8xui32>",
    )
    assert roles(program, op_of(program, "custom_call")) == (
        "[pass] [pass] [pass] [pass] -> [pass] [pass]"
    )


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("__cudnn$fmhaSoftmax", "contains the whole shapes"),
        ("tpu_custom_call", "written by hand"),
        ("something_new", "no sharding rule for custom_call @something_new"),
    ],
)
def test_other_calls_stay_whole_and_say_why(target: str, reason: str) -> None:
    program = text(
        f'  %0 = stablehlo.custom_call @"{target}"(%a) : (tensor<8x4xf32>) -> tensor<8x4xf32>',
        "%a: tensor<8x4xf32>",
        "tensor<8x4xf32>",
    )
    op = op_of(program, "custom_call")
    assert roles(program, op) == "[-, -] -> [-, -]"
    assert [text for o, text in program.missing_rules if o == op and reason in text]


def test_an_eigendecomposition_for_tpu_is_reported() -> None:
    program = lowered(jnp.linalg.eigh, MATRICES, platform="tpu")
    assert any("@Eigh" in reason and "gathers" in reason for _, reason in program.missing_rules)


def test_top_k_is_never_split_along_the_sorted_dim() -> None:
    for k in (3, 16):
        program = from_jax(lambda x, k=k: lax.top_k(x, k), leaf(8, 16)).program
        assert roles(program, op_of(program, "chlo.top_k")) == "[pass, -] -> [pass, -] [pass, -]"


def test_an_approximate_top_k_keeps_its_comparator_and_its_sorted_dim() -> None:
    model = from_jax(lambda x: lax.approx_max_k(x, 8, reduction_dimension=0), leaf(8, 16))
    op = op_of(model.program, "custom_call")
    assert roles(model.program, op) == "[-, pass] [-, pass] [] [] -> [-, pass] [-, pass]"
    assert "@top_k_gt_f32_comparator(%" in model.stablehlo
    assert parse(model.stablehlo).program.digest() == model.program.digest()


def test_a_ragged_product() -> None:
    args = leaf(16, 8), leaf(4, 8, 32), leaf(4, dtype=jnp.int32)
    program = lowered(lax.ragged_dot, *args, platform="tpu")
    op = op_of(program, "chlo.ragged_dot")
    assert roles(program, op) == "[-, reduce] [-, reduce, pass] [-] -> [-, pass]"
    assert program.flops[op] == 2 * 16 * 8 * 32
    assert p.MONOIDS[program.monoid[op]] == "add"
    assert program.op_class[op] == p.DOT


def test_a_mark_of_another_partitioner_is_dropped() -> None:
    program = text(
        '  %1 = stablehlo.custom_call @Sharding(%a) {mhlo.sharding = "{replicated}"} : '
        "(tensor<8xf32>) -> tensor<8xf32>\n"
        "  %0 = stablehlo.sine %1 : tensor<8xf32>",
        "%a: tensor<8xf32>",
        "tensor<8xf32>",
    )
    assert [program.kind[o] for o in program.ops()] == ["sine"]


@pytest.mark.parametrize(
    "body",
    [
        "  %0 = stablehlo.partition_id : tensor<ui32>",
        "  %0 = stablehlo.replica_id : tensor<ui32>",
        '  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<0> '
        ": tensor<1x1xi64>}>"
        " : (tensor<8xui32>) -> tensor<8xui32>",
    ],
)
def test_a_program_split_by_hand_is_refused(body: str) -> None:
    result = "tensor<8xui32>" if "all_gather" in body else "tensor<ui32>"
    with pytest.raises(FrontendError, match=r"already split over devices by hand"):
        text(body, "%a: tensor<8xui32>", result)


def test_complex_constants_are_read() -> None:
    program = from_jax(lambda x: jnp.sum(x * (1 + 2j)), leaf(4, dtype=jnp.complex64)).program
    assert "(1" in next(program.detail[o] for o in program.ops() if program.kind[o] == "constant")
    assert roles(program, op_of(program, "reduce")) == "[reduce] [] -> []"


# -- reductions ------------------------------------------------------------------------------------


def reduction(body: str, init: str = "0.0", element: str = "f32") -> str:
    program = text(
        f"  %c = stablehlo.constant dense<{init}> : tensor<{element}>\n"
        f'  %0 = "stablehlo.reduce"(%a, %c) <{{dimensions = array<i64: 0>}}> ({{\n'
        f"  ^bb0(%x: tensor<{element}>, %y: tensor<{element}>):\n"
        f"    %z = stablehlo.{body} : tensor<{element}>\n    stablehlo.return %z : "
        f"tensor<{element}>\n"
        f"  }}) : (tensor<8x4x{element}>, tensor<{element}>) -> tensor<4x{element}>",
        f"%a: tensor<8x4x{element}>",
        f"tensor<4x{element}>",
    )
    return roles(program, op_of(program, "reduce"))


@pytest.mark.parametrize(
    ("body", "init", "element", "splits"),
    [
        ("add %x, %y", "0.0", "f32", True),
        ("add %y, %x", "-0.0", "f32", True),
        ("add %x, %y", "5.0", "f32", False),  # every shard would add the init value
        ("multiply %x, %y", "1.0", "f32", True),
        ("multiply %x, %y", "2", "i32", False),
        ("maximum %x, %y", "5.0", "f32", True),  # the init value may count twice
        ("and %x, %y", "true", "i1", True),
        ("and %x, %y", "-1", "i32", False),  # no collective combines bit by bit
        ("xor %x, %y", "0", "i32", False),
        ("add %y, %y", "0.0", "f32", False),  # this doubles the last element
        ("add %x, %y", "(0.0,0.0)", "complex<f32>", True),
        ("add %x, %y", "(0.0,1.0)", "complex<f32>", False),
    ],
)
def test_a_reduction_splits_if_partial_results_combine(
    body: str, init: str, element: str, splits: bool
) -> None:
    assert reduction(body, init, element) == f"[{'reduce' if splits else '-'}, pass] [] -> [pass]"


def test_several_operands_at_once_do_not_combine() -> None:
    program = from_jax(lambda x: jnp.argmax(x, axis=1), leaf(8, 4)).program
    assert roles(program, op_of(program, "reduce")) == "[pass, -] [pass, -] [] [] -> [pass] [pass]"


# -- windows ---------------------------------------------------------------------------------------


def convolution(x: tuple[int, ...], kernel: tuple[int, ...], **options: Any) -> str:
    given = {
        "window_strides": (1, 1),
        "padding": "VALID",
        "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
        **options,
    }
    program = lowered(lambda x, k: lax.conv_general_dilated(x, k, **given), leaf(*x), leaf(*kernel))
    return roles(program, op_of(program, "convolution"))


def test_windows_pass_where_they_do_not_overlap() -> None:
    patches = convolution((4, 16, 16, 3), (4, 4, 3, 8), window_strides=(4, 4))
    assert patches == "[pass, pass, pass, reduce] [-, -, reduce, pass] -> [pass, pass, pass, pass]"
    one = convolution((4, 16, 16, 3), (1, 1, 3, 8))
    assert one == "[pass, pass, pass, reduce] [-, -, reduce, pass] -> [pass, pass, pass, pass]"
    same = convolution((4, 16, 16, 3), (3, 3, 3, 8), padding="SAME")
    assert same == "[pass, -, -, reduce] [-, -, reduce, pass] -> [pass, -, -, pass]"
    stride = convolution((4, 16, 16, 3), (2, 2, 3, 8), window_strides=(4, 2))
    assert stride == "[pass, -, pass, reduce] [-, -, reduce, pass] -> [pass, -, pass, pass]"


def test_one_window_over_the_whole_dim_is_a_contraction() -> None:
    assert convolution((4, 8, 16, 3), (8, 16, 3, 8)).startswith("[pass, reduce, reduce, reduce]")
    padded = convolution((4, 8, 16, 3), (8, 16, 3, 8), padding=((4, 3), (0, 0)))
    assert padded.startswith("[pass, -, reduce, reduce]")


def test_an_update_of_one_element_leaves_the_cache_sharded() -> None:
    for length, expected in ((1, "pass"), (2, "-"), (8, "pass")):
        program = lowered(
            lambda c, u, i: lax.dynamic_update_slice(c, u, (i, 0)),
            leaf(8, 4),
            leaf(length, 4),
            leaf(dtype=jnp.int32),
        )
        assert roles(program, op_of(program, "dynamic_update_slice")).startswith(
            f"[{expected}, pass]"
        )


# -- odd shapes ------------------------------------------------------------------------------------


def test_no_elements_no_rank_and_size_one() -> None:
    program = from_jax(
        lambda x, y, z: (x.reshape(0, 2), jnp.sin(y) + 1, z.reshape(8), jnp.concatenate([x, x])),
        leaf(2, 0),
        leaf(),
        leaf(1, 8, 1),
    ).program
    assert [program.dims(int(v)) for v in program.outputs] == [(0, 2), (), (8,), (4, 0)]
    assert any("without elements" in reason for _, reason in program.missing_rules)


def test_tuples_stay_whole() -> None:
    program = text(
        "  %1 = stablehlo.tuple %a, %a : tuple<tensor<8xf32>, tensor<8xf32>>\n"
        "  %0 = stablehlo.get_tuple_element %1[1] : (tuple<tensor<8xf32>, tensor<8xf32>>) -> "
        "tensor<8xf32>",
        "%a: tensor<8xf32>",
        "tensor<8xf32>",
    )
    assert roles(program, op_of(program, "get_tuple_element")) == "[] -> [-]"
    assert len(program.missing_rules) == 2


def test_numpy_style_broadcasts_of_chlo() -> None:
    program = text(
        "  %0 = chlo.broadcast_add %a, %b {broadcast_dimensions = array<i64: 0>} : "
        "(tensor<4x8xf32>, tensor<4xf32>) -> tensor<4x8xf32>",
        "%a: tensor<4x8xf32>, %b: tensor<4xf32>",
        "tensor<4x8xf32>",
    )
    op = op_of(program, "chlo.broadcast_add")
    assert roles(program, op) == "[pass, pass] [pass] -> [pass, pass]"
    first, second = int(program.use_ptr[op]), int(program.use_ptr[op]) + 1
    assert program.use_names(second) == program.use_names(first)[:1]
    assert np.all(program.factor_size[program.factors(op)] == [4, 8])
