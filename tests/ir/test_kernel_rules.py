"""Rules of hand-written kernels: what they let plans cut, what they cost, what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import toast_lab as tl
from toast_lab.errors import FrontendError, InvalidInput
from toast_lab.ir import kernel_rules
from toast_lab.ir.kernel_rules import KernelRule, example, fitted
from toast_lab.ir.program import NEED_REPLICATION, PASS

S = jax.ShapeDtypeStruct


def f32(*shape: int) -> S:
    return S(shape, "float32")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """No rule outlives its test."""
    before = kernel_rules.registered()
    yield
    for rule in kernel_rules.registered():
        if rule not in before:
            kernel_rules.forget(rule.name)


def called(name: str, *args: Any, result: Any, **options: Any) -> Any:
    """A model of one FFI call."""
    call = jax.ffi.ffi_call(name, result, **options)
    return tl.from_jax(lambda *arrays: call(*arrays), *args)


def test_dims_are_one_where_names_are() -> None:
    rule = fitted(
        KernelRule("k", "b s (k g) d, b t k d, b t k d -> b s (k g) d", whole=frozenset("d")),
        [(2, 16, 8, 4), (2, 32, 2, 4), (2, 32, 2, 4)],
        [(2, 16, 8, 4)],
        "",
    )
    (b, s, heads, d), (b_key, t, k, _), _ = (
        [dims if len(dims) > 1 else dims[0] for dims in tensor] for tensor in rule.operands
    )
    assert rule.results[0] == rule.operands[0]
    assert b == b_key
    assert heads[0] == k
    assert [rule.sizes[factor] for factor in (b, s, *heads, d, t)] == [2, 16, 2, 4, 4, 32]
    passing = {factor for factor, role in enumerate(rule.classes) if role == PASS}
    # t is only read, d was declared whole, and a minor factor cannot be cut alone.
    assert passing == {b, s, k}
    assert rule.classes[t] == rule.classes[d] == rule.classes[heads[1]] == NEED_REPLICATION


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a b -> a b", "it has 2 operands, the rule 1"),
        ("a b c, a -> a b", "operand 0 has 2 dims, the rule 3"),
        ("a b, b -> a b", "b is 8 on one tensor and 16 on another|b is 16 on one"),
        ("a b, a -> a", "result 0 has 2 dims, the rule 1"),
    ],
)
def test_a_rule_that_does_not_fit_names_line_reason_and_remedy(text: str, reason: str) -> None:
    tl.kernel_rule("my_call", text)
    with pytest.raises(FrontendError, match=reason) as caught:
        called("my_call", f32(16, 8), f32(16), result=f32(16, 8))
    assert "test_kernel_rules.py:" in str(caught.value)
    assert 'tl.kernel_rule("my_call", "a b, a -> a b")' in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "options", "reason"),
    [
        (("no_arrow",), {}, "no rule"),
        (("name", "a b"), {}, "operands -> results"),
        (("(", "a -> a"), {}, "regular expression"),
        (("name", "a -> a"), {"whole": "c"}, "whole='c'"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused(arguments: Any, options: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        tl.kernel_rule(*arguments, **options)


def test_a_named_kernel_is_cut_and_priced_as_its_rule_says() -> None:
    args = (f32(64, 128), f32(128))
    before = called("my_norm_12", *args, result=f32(64, 128))
    (missing,) = before.program.missing_rules
    assert 'tl.kernel_rule("my_norm_12", "a b, b -> a b")' in missing[1]
    assert missing[1] in str(tl.coverage(tl.analyse(before)))
    tl.kernel_rule(r"my_norm_\d+", "b d, d -> b d", whole="d", flops="8*b*d", bytes=1e9)
    model = called("my_norm_12", *args, result=f32(64, 128))
    program = model.program
    assert not program.missing_rules
    assert program.flops.sum() == 8 * 64 * 128
    problem = tl.Problem(tl.analyse(model), {"data": 4}, machine="tpu-v5e")
    whole = tl.price(problem, tl.replicated(problem))
    assert whole.time_s == pytest.approx(1e9 / problem.machine.product_bytes_per_s, rel=0.01)
    plan = next(
        tl.Plan.from_actions(problem, [(group.name, "data")])
        for group in problem.analysis.groups
        if group.shardable
    )
    assert tl.price(problem, plan).time_s < 0.4 * whole.time_s
    assert not tl.price(problem, plan).collectives


def test_a_kernel_without_a_cost_is_priced_by_its_bytes_and_that_is_said() -> None:
    call = jax.ffi.ffi_call("my_opaque", f32(64, 128))
    model = tl.from_jax(lambda x: call(call(x)) + 1, f32(64, 128))
    (note,) = (note for note in model.notes if "FLOPs" in note)
    assert note.startswith("my_opaque at test_kernel_rules.py:")
    assert 'tl.kernel_rule("my_opaque", "a b -> a b", flops=...)' in note
    problem = tl.Problem(tl.analyse(model), {"data": 2})
    assert note in str(tl.price(problem, tl.replicated(problem)))
    assert "flops=...) gives it some" in str(tl.coverage(problem.analysis))
    # Its rule is kept in the line, and a rule with FLOPs or bytes is a cost.
    tl.kernel_rule("my_opaque", "rows _ -> rows _")
    again = tl.from_jax(lambda x: call(x), f32(64, 128))
    assert 'tl.kernel_rule("my_opaque", "rows _ -> rows _", flops=...)' in str(again.notes)
    for cost in ({"flops": 0}, {"bytes": 1e6}):
        tl.kernel_rule("my_opaque", "rows _ -> rows _", **cost)
        assert not tl.from_jax(lambda x: call(x), f32(64, 128)).program.without_cost
    # Linear algebra of JAX is no kernel of the user's.
    assert not tl.from_jax(jnp.linalg.cholesky, f32(8, 8)).program.without_cost


def test_an_expression_knows_dims_and_arithmetic_only() -> None:
    tl.kernel_rule("my_call", "a b -> a b", flops="__import__('os')")
    with pytest.raises(FrontendError, match="gives no number for the sizes a=4, b=8"):
        called("my_call", f32(4, 8), result=f32(4, 8))
    tl.kernel_rule("my_call", "a b -> a b", flops=lambda sizes: 3.0 * sizes["a"] ** 2)
    assert called("my_call", f32(4, 8), result=f32(4, 8)).program.flops.sum() == 48


def test_a_function_of_sizes_that_fails_is_named_with_what_it_gets() -> None:
    tl.kernel_rule("my_call", "a b -> a b", flops=lambda a, b: a * b)
    with pytest.raises(FrontendError, match="function <lambda>, called with one dict") as caught:
        called("my_call", f32(4, 8), result=f32(4, 8))
    assert " at 0x" not in str(caught.value)
    tl.kernel_rule("my_call", "a b -> a b", flops="8*a*z")
    with pytest.raises(FrontendError, match="no dim is called z"):
        called("my_call", f32(4, 8), result=f32(4, 8))


def test_a_decorator_that_does_not_fit_gets_a_decorator() -> None:
    @tl.kernel_rule("a, a -> a")
    def scaled(x: Any, scale: Any) -> Any:
        return x * scale

    with pytest.raises(FrontendError, match=r"operand 0 has 2 dims") as caught:
        tl.from_jax(lambda x, scale: scaled(x, scale), f32(4, 8), f32(8))
    assert '@tl.kernel_rule("a b, b -> a b")' in str(caught.value)
    assert "\\" not in str(caught.value)
    with pytest.raises(InvalidInput, match="decorates with a rule"):
        tl.kernel_rule(scaled)


def test_the_estimate_of_a_pallas_call_is_its_cost() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    estimate = pl.CostEstimate(flops=12345, bytes_accessed=678, transcendentals=0)
    model = tl.from_jax(
        lambda x: pl.pallas_call(
            kernel, out_shape=S(x.shape, x.dtype), cost_estimate=estimate, name="doubled"
        )(x),
        f32(64, 128),
        platform="tpu",
    )
    assert model.program.flops.sum() == 12345
    assert [moved for _, moved in model.program.moved_bytes] == [678]
    assert model.program.detail[1] == "doubled"


def test_rules_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('["my_file_.*"]\nrule = "b d -> b d"\nwhole = "d"\nflops = "b*d"\n')
    kernel_rules.read_file(path)
    program = called("my_file_call", f32(4, 8), result=f32(4, 8)).program
    assert program.flops.sum() == 32
    path.write_text('["a"]\nruel = "x"\n["b"]\nrule = "x -> x"\nflop = 1\n["c"]\nrule = "x"\n')
    with pytest.raises(InvalidInput) as caught:
        kernel_rules.read_file(path)
    for part in ('["a"] has no rule', 'flop (did you mean "flops"?)', "operands -> results"):
        assert part in str(caught.value)
    path.write_text("not toml")
    with pytest.raises(InvalidInput, match="not TOML"):
        kernel_rules.read_file(path)


def shardable_sizes(model: Any) -> set[int]:
    """Sizes of the dims of custom calls that plans can cut."""
    program = model.program
    return {
        int(program.factor_size[factor])
        for op in program.ops()
        if program.kind[op] == "custom_call"
        for factor in program.factors(op)
        if program.factor_class[factor] == PASS
    }


def test_attention_of_pallas_is_cut_along_batch_and_heads() -> None:
    from jax.experimental.pallas.ops.tpu import flash_attention

    def loss(q: Any, k: Any, v: Any) -> Any:
        return flash_attention.flash_attention(q, k, v, causal=True).sum()

    q = f32(2, 4, 256, 128)
    model = tl.from_jax(jax.grad(loss, argnums=(0, 1, 2)), q, q, q, platform="tpu")
    assert not model.program.missing_rules
    assert shardable_sizes(model) == {2, 4}
    # Two products forward, four and three backward, of which each is 2*b*h*s*t*d FLOPs.
    kernels = [op for op in model.program.ops() if model.program.kind[op] == "custom_call"]
    product = 2 * 2 * 4 * 256 * 256 * 128
    assert sorted(model.program.flops[kernels] / product) == [2, 3, 4]


def test_attention_of_cudnn_shares_keys_among_heads() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")

    q, k = S((4, 128, 8, 64), "bfloat16"), S((4, 128, 2, 64), "bfloat16")
    model = tl.from_jax(attention, q, k, k)
    assert shardable_sizes(model) == {4, 2}
    assert model.program.flops.sum() == 4 * 4 * 8 * 128 * 128 * 64


@pytest.mark.parametrize("columns", [384, 256])
def test_grouped_products_are_known_by_the_function_that_calls_them(columns: int) -> None:
    from jax.experimental.pallas.ops.tpu.megablox import ops

    def loss(x: Any, w: Any, sizes: Any) -> Any:
        return ops.gmm(x, w, sizes).sum()

    args = f32(512, 256), f32(4, 256, columns), S((4,), "int32")
    model = tl.from_jax(jax.grad(loss, argnums=(0, 1)), *args, platform="tpu")
    program = model.program
    kernels = [op for op in program.ops() if program.kind[op] == "custom_call"]
    # Newer versions of JAX leave out the product whose result nobody uses
    assert [program.detail[op] for op in kernels][-2:] == ["gmm", "tgmm"]
    assert set(program.flops[kernels]) == {2 * 512 * 256 * columns}
    # Rows and groups stay whole; of a square matrix nobody can tell which dim is summed over.
    assert shardable_sizes(model) == {256, columns}
    assert len(program.missing_rules) == (len(kernels) - 1 if columns == 256 else 0)


def test_paged_attention_is_cut_along_batch_and_key_heads() -> None:
    from jax.experimental.pallas.ops.tpu import paged_attention

    pages = f32(8, 64, 16, 128)
    model = tl.from_jax(
        lambda q, k, v, lengths, lists: paged_attention.paged_attention(
            q, k, v, lengths, lists, pages_per_compute_block=4
        ),
        f32(4, 32, 128),
        pages,
        pages,
        S((4,), "int32"),
        S((4, 16), "int32"),
        platform="tpu",
    )
    assert not model.program.missing_rules
    assert shardable_sizes(model) == {4, 8}
    assert model.program.flops.sum() >= 4 * 4 * 16 * 16 * 32 * 128


def test_a_rule_names_a_kernel_or_the_jitted_function_around_it() -> None:
    @jax.jit
    def doubled(x: Any) -> Any:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...] * 2

        return pl.pallas_call(kernel, out_shape=S(x.shape, x.dtype))(x)

    def sizes() -> set[int]:
        return shardable_sizes(tl.from_jax(lambda x: doubled(x), f32(64, 128), platform="tpu"))

    assert sizes() == set()
    tl.kernel_rule("doubled", "a _ -> a _")
    assert sizes() == {64}
    tl.kernel_rule("kernel", "_ b -> _ b")  # its own name comes first
    assert sizes() == {128}


def test_an_example_has_the_ranks_of_the_kernel() -> None:
    assert example("k", [(8, 8), (), (4,)], [(8, 4)]) == ('tl.kernel_rule("k", "a b, *, c -> a c")')


def test_norms_are_cut_along_all_but_their_last_dim() -> None:
    from jax.experimental.pallas.ops.gpu import rms_norm

    model = tl.from_jax(
        lambda x, w, b: rms_norm.rms_norm(x, w, b),
        f32(16, 128, 512),
        f32(512),
        f32(512),
        platform="gpu",
    )
    assert shardable_sizes(model) <= {16, 128}
    assert jnp.isfinite(model.program.flops.sum())
