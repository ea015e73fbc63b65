"""The ops to certify: for every kind, some ways in which JAX emits it.

Sizes and attributes are drawn. A case gives a function to trace (or StableHLO text) and its
arguments; the op of its kind is then cut out of the traced program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evaluation.certification.rules.draw import Draw
from evaluation.certification.rules.single_op import Reference, SingleOp, cut_out, tensor_type

Made = tuple[Callable[..., Any] | str, list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Case:
    """One way in which programs come to hold an op of ``kind``."""

    kind: str
    label: str
    make: Callable[[Draw], Made]
    #: platform that the function is lowered for; it runs on the CPU in any case
    platform: str = "cpu"
    target: str = ""  #: call target of a custom call
    reference: Reference | None = None
    undefined: tuple[int, ...] = ()  #: results that are uninitialised memory
    sharded: bool = True  #: does its rule have a factor that may be sharded?

    @property
    def name(self) -> str:
        """Kind and label, as ``gather/embedding``."""
        return f"{self.kind}/{self.label}"

    def draw(self, draw: Draw) -> SingleOp:
        """Trace the function and cut out the op, with values of its operands."""
        fn, arguments = self.make(draw)
        if isinstance(fn, str):
            text = fn
        else:
            text = (
                jax.jit(fn, keep_unused=True)
                .trace(*arguments)
                .lower(lowering_platforms=(self.platform,))
                .as_text()
            )
        return cut_out(text, self.kind, arguments, self.target, self.reference, self.undefined)


CASES: list[Case] = []


def case(
    kind: str, label: str, **options: Any
) -> Callable[[Callable[[Draw], Made]], Callable[[Draw], Made]]:
    """Register a function as a case."""

    def register(make: Callable[[Draw], Made]) -> Callable[[Draw], Made]:
        CASES.append(Case(kind, label, make, **options))
        return make

    return register


# -- element by element ----------------------------------------------------------------------------

_UNARY_FLOAT = (
    "abs cbrt ceil cosine exponential exponential_minus_one floor log log_plus_one logistic "
    "negate round_nearest_afz "
    "round_nearest_even rsqrt sign sine sqrt tan tanh chlo.acos chlo.asin chlo.asinh chlo.atan "
    "chlo.atanh "
    "chlo.bessel_i1e chlo.cosh chlo.digamma chlo.erf chlo.erf_inv chlo.erfc chlo.lgamma "
    "chlo.sinh chlo.square chlo.tan "
    "optimization_barrier"
).split()
_BINARY_FLOAT = (
    "add atan2 divide maximum minimum multiply power remainder subtract chlo.next_after chlo.zeta"
).split()
_BINARY_INT = "and or xor shift_left shift_right_arithmetic shift_right_logical chlo.mulhi".split()


def _pointwise(kind: str, operands: list[str], result: str, attributes: str = "") -> None:
    def make(d: Draw) -> Made:
        shape = d.pick([(d.size(),), (d.size(), d.size()), (4, 2, d.size())])
        types = [tensor_type(shape, e) for e in operands]
        arrays = [d.numbers(e, *shape) for e in operands]
        if kind == "chlo.acosh":
            arrays = [a + 1 for a in arrays]
        if kind == "chlo.polygamma":
            arrays[0] = np.ones_like(arrays[0])
        if kind == "chlo.zeta":
            arrays[0] = arrays[0] + 2
        name = kind if "." in kind else f"stablehlo.{kind}"
        dimensions = f"array<i64: {', '.join(str(i) for i in range(len(shape)))}>"
        filled = attributes.replace("DIMENSIONS", dimensions)
        names = [f"%a{i}" for i in range(len(operands))]
        made = tensor_type(shape, result)
        arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
        text = (
            f"func.func public @main({arguments}) -> {made} {{\n"
            f'  %0 = "{name}"({", ".join(names)}) {filled} : ({", ".join(types)}) -> {made}\n'
            f"  return %0 : {made}\n}}"
        )
        return text, arrays

    CASES.append(Case(kind, "pointwise", make))


for _kind in _UNARY_FLOAT:
    _pointwise(_kind, ["f32"], "f32")
for _kind in _BINARY_FLOAT:
    _pointwise(_kind, ["f32", "f32"], "f32")
for _kind in _BINARY_INT:
    _pointwise(_kind, ["i32", "i32"], "i32")
for _kind in ("not", "popcnt", "count_leading_zeros"):
    _pointwise(_kind, ["i32"], "i32")
for _kind in ("chlo.is_inf", "chlo.is_neg_inf", "chlo.is_pos_inf", "is_finite"):
    _pointwise(_kind, ["f32"], "i1")
for _kind in ("real", "imag"):
    _pointwise(_kind, ["complex<f32>"], "f32")
_pointwise("chlo.acosh", ["f32"], "f32")
_pointwise("chlo.polygamma", ["f32", "f32"], "f32")
_pointwise("chlo.conj", ["complex<f32>"], "complex<f32>")
_pointwise("chlo.constant_like", ["f32"], "f32", "{value = 2.0 : f32}")
_pointwise("complex", ["f32", "f32"], "complex<f32>")
_pointwise("convert", ["f32"], "bf16")
_pointwise("convert", ["i32"], "f32")
_pointwise("clamp", ["f32", "f32", "f32"], "f32")
_pointwise("select", ["i1", "f32", "f32"], "f32")
_pointwise(
    "compare", ["f32", "f32"], "i1", "{comparison_direction = #stablehlo<comparison_direction LT>}"
)
_pointwise("reduce_precision", ["f32"], "f32", "{exponent_bits = 5 : i32, mantissa_bits = 5 : i32}")
_pointwise("bitcast_convert", ["f32"], "i32")
_pointwise("chlo.broadcast_add", ["f32", "f32"], "f32")
_pointwise(
    "map",
    ["f32"],
    "f32",
    "({ ^bb0(%x: tensor<f32>): %y = stablehlo.sine %x : tensor<f32> stablehlo.return %y : "
    "tensor<f32> }) "
    "{dimensions = DIMENSIONS}",
)


@case("select", "scalar predicate")
def _(d: Draw) -> Made:
    x = d.floats(d.size(), d.size())
    return lambda p, x, y: lax.select(p, x, y), [np.asarray(True), x, -x]


@case("clamp", "scalar bounds")
def _(d: Draw) -> Made:
    n = d.size()
    t, s = tensor_type((n, 4), "f32"), "tensor<f32>"
    text = (
        f"func.func public @main(%l: {s}, %x: {t}, %h: {s}) -> {t} {{\n"
        f"  %0 = stablehlo.clamp %l, %x, %h : ({s}, {t}, {s}) -> {t}\n  return %0 : {t}\n}}"
    )
    return text, [np.float32(-0.5), d.floats(n, 4), np.float32(0.5)]


@case("chlo.broadcast_multiply", "ranks differ")
def _(d: Draw) -> Made:
    n, m = d.size(), d.size()
    big, row = tensor_type((n, m), "f32"), tensor_type((m,), "f32")
    text = (
        f"func.func public @main(%a: {big}, %b: {row}) -> {big} {{\n"
        f"  %0 = chlo.broadcast_multiply %a, %b {{broadcast_dimensions = array<i64: 1>}} : "
        f"({big}, {row}) -> {big}\n"
        f"  return %0 : {big}\n}}"
    )
    return text, [d.floats(n, m), d.floats(m)]


@case("bitcast_convert", "to smaller elements")
def _(d: Draw) -> Made:
    return lambda x: lax.bitcast_convert_type(x, jnp.uint8), [d.floats(d.size(), d.size())]


@case("bitcast_convert", "to larger elements")
def _(d: Draw) -> Made:
    return lambda x: lax.bitcast_convert_type(x, jnp.uint32), [
        d.ints(255, d.size(), d.size(), 4, dtype=np.uint8)
    ]


# -- shape -----------------------------------------------------------------------------------------


@case("reshape", "split and merge")
def _(d: Draw) -> Made:
    a, b, c = d.size(), d.size(), d.size()
    shape, to = d.pick(
        [
            ((a, b, c), (a, b * c)),
            ((a, b, c), (a * b, c)),
            ((a * b, c), (a, b, c)),
            ((a, b, c), (a * b * c,)),
        ]
    )
    return lambda x: x.reshape(to), [d.floats(*shape)]


@case("reshape", "sizes that overlap")
def _(d: Draw) -> Made:
    shape, to = d.pick(
        [((6, 4), (4, 6)), ((8, 6), (4, 12)), ((12, 2, 4), (4, 24)), ((4, 9), (12, 3))]
    )
    return lambda x: x.reshape(to), [d.floats(*shape)]


@case("reshape", "nothing in common", sharded=False)
def _(d: Draw) -> Made:
    return lambda x: x.reshape(4, 3), [d.floats(3, 4)]


@case("reshape", "dims of size 1")
def _(d: Draw) -> Made:
    n, m = d.size(), d.size()
    return lambda x: x.reshape(1, n, 1, m), [d.floats(n, m, 1)]


@case("broadcast_in_dim", "new and widened dims")
def _(d: Draw) -> Made:
    n, m = d.size(), d.size()
    return lambda x: lax.broadcast_in_dim(x, (4, n, m, 8), (1, 2)), [d.floats(n, d.pick([m, 1]))]


@case("broadcast", "new dims first")
def _(d: Draw) -> Made:
    n = d.size()
    small, big = tensor_type((n, 4), "f32"), tensor_type((8, n, 4), "f32")
    text = (
        f"func.func public @main(%a: {small}) -> {big} {{\n"
        f'  %0 = "stablehlo.broadcast"(%a) {{broadcast_sizes = array<i64: 8>}} : ({small}) -> '
        f"{big}\n"
        f"  return %0 : {big}\n}}"
    )
    return text, [d.floats(n, 4)]


@case("transpose", "three dims")
def _(d: Draw) -> Made:
    order = d.pick([(2, 0, 1), (0, 2, 1), (2, 1, 0)])
    return lambda x: lax.transpose(x, order), [d.floats(d.size(), d.size(), d.size())]


@case("reverse", "one dim of two")
def _(d: Draw) -> Made:
    dim = d.pick([0, 1])
    return lambda x: lax.rev(x, (dim,)), [d.floats(d.size(), d.size())]


@case("pad", "edges and between")
def _(d: Draw) -> Made:
    config = [(0, 0, 0), d.pick([(1, 2, 0), (1, -1, 0), (0, 0, 1), (-1, -1, 0), (2, -1, 1)])]
    return lambda x: lax.pad(x, np.float32(0.5), config), [d.floats(d.size(), d.size())]


@case("pad", "shift")
def _(d: Draw) -> Made:
    amount = d.pick([1, -1, 2])
    return lambda x: lax.pad(x, np.float32(0), [(0, 0, 0), (amount, -amount, 0)]), [
        d.floats(d.size(), d.size())
    ]


@case("concatenate", "other dims")
def _(d: Draw) -> Made:
    n = d.size()
    return lambda x, y: lax.concatenate([x, y], 1), [
        d.floats(n, d.size(), 4),
        d.floats(n, d.size(), 4),
    ]


@case("slice", "with stride")
def _(d: Draw) -> Made:
    n = d.size()
    start, stride = d.small(0, 2), d.small(1, 2)
    return lambda x: lax.slice(x, (0, start), (n, 8), (1, stride)), [d.floats(n, d.pick([8, 12]))]


@case("dynamic_slice", "cache")
def _(d: Draw) -> Made:
    n, m = d.size(), d.size()
    at = np.int32(d.small(-3, m + 3))
    return lambda x, i: lax.dynamic_slice(x, (0, i, 0), (n, 4, 8)), [d.floats(n, m, 8), at]


@case("dynamic_update_slice", "cache")
def _(d: Draw) -> Made:
    n, m = d.size(), d.size()
    length = d.pick([1, 4, 3])
    at = np.int32(d.small(-3, m + 3))
    return lambda x, u, i: lax.dynamic_update_slice(x, u, (0, i, 0)), [
        d.floats(n, m, 8),
        d.floats(n, length, 8),
        at,
    ]


# -- contractions ----------------------------------------------------------------------------------


@case("dot_general", "batch")
def _(d: Draw) -> Made:
    b, m, k, n = d.size(), d.size(), d.size(), d.size()
    return lambda x, y: jnp.einsum("bmk,bkn->bmn", x, y), [d.floats(b, m, k), d.floats(b, k, n)]


@case("dot_general", "two contractions")
def _(d: Draw) -> Made:
    a, b = d.size(), d.size()
    return lambda x, y: jnp.einsum("abm,abn->mn", x, y), [d.floats(a, b, 4), d.floats(a, b, 8)]


@case("dot_general", "integers")
def _(d: Draw) -> Made:
    dtype = d.pick([np.int8, np.int32, np.uint32])
    x = d.ints(100, 8, d.size(), dtype=dtype)
    y = d.ints(100, x.shape[1], 4, dtype=dtype)
    dims = (((1,), (0,)), ((), ()))
    return lambda x, y: lax.dot_general(x, y, dims, preferred_element_type=jnp.int32), [x, y]


@case("dot_general", "complex")
def _(d: Draw) -> Made:
    n = d.size()
    return jnp.dot, [d.floats(4, n, dtype=np.complex64), d.floats(n, 4, dtype=np.complex64)]


@case("dot_general", "bf16 to f32")
def _(d: Draw) -> Made:
    n = d.size()
    return lambda x, y: lax.dot(
        x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), preferred_element_type=jnp.float32
    ), [
        d.floats(4, n),
        d.floats(n, 8),
    ]


@case("dot", "old form")
def _(d: Draw) -> Made:
    n, m = d.size(), d.size()
    a, b, c = tensor_type((n, m), "f32"), tensor_type((m, 8), "f32"), tensor_type((n, 8), "f32")
    text = (
        f"func.func public @main(%a: {a}, %b: {b}) -> {c} {{\n"
        f'  %0 = "stablehlo.dot"(%a, %b) : ({a}, {b}) -> {c}\n  return %0 : {c}\n}}'
    )
    return text, [d.floats(n, m), d.floats(m, 8)]


def _ragged(x: Any, y: Any, g: Any) -> list[Any]:
    return [lax.ragged_dot(jnp.asarray(x), jnp.asarray(y), jnp.asarray(g))]


@case("chlo.ragged_dot", "rows in groups", platform="tpu", reference=_ragged)
def _(d: Draw) -> Made:
    m, k, n, groups = d.size(), d.size(), d.size(), d.small(2, 4)
    cuts = np.sort(d.ints(m + 1, groups - 1))
    sizes = np.diff(np.concatenate([[0], cuts, [m]])).astype(np.int32)
    return lambda x, y, g: lax.ragged_dot(x, y, g), [d.floats(m, k), d.floats(groups, k, n), sizes]


_RAGGED_CONTRACTION = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[],
)


def _ragged_contraction(x: Any, y: Any, g: Any) -> list[Any]:
    return [
        lax.ragged_dot_general(jnp.asarray(x), jnp.asarray(y), jnp.asarray(g), _RAGGED_CONTRACTION)
    ]


@case("chlo.ragged_dot", "contraction in groups", platform="tpu", reference=_ragged_contraction)
def _(d: Draw) -> Made:
    k, m, n = d.size(), d.size(), d.size()
    first = d.small(0, k)
    return lambda x, y, g: _ragged_contraction(x, y, g)[0], [
        d.floats(k, m),
        d.floats(k, n),
        np.asarray([first, k - first], np.int32),
    ]


def _conv(**options: Any) -> Callable[[Any, Any], Any]:
    given = {
        "window_strides": (1, 1),
        "padding": "SAME",
        "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
        **options,
    }
    return lambda x, k: lax.conv_general_dilated(x, k, **given)


@case("convolution", "batch and features")
def _(d: Draw) -> Made:
    i = d.size()
    dilation = d.pick([(1, 1), (2, 2)])
    strides = d.pick([(1, 1), (2, 1)])
    return _conv(rhs_dilation=dilation, window_strides=strides), [
        d.floats(4, 8, 8, i),
        d.floats(3, 3, i, d.size()),
    ]


@case("convolution", "feature groups")
def _(d: Draw) -> Made:
    groups, i, o = 4, d.pick([1, 2, 4]), d.pick([1, 2, 4])
    return _conv(feature_group_count=groups), [
        d.floats(4, 6, 6, groups * i),
        d.floats(3, 3, i, groups * o),
    ]


@case("convolution", "batch groups")
def _(d: Draw) -> Made:
    groups = 4
    n, o = d.pick([4, 8]), d.pick([4, 8])
    return _conv(batch_group_count=groups), [d.floats(n, 6, 6, 4), d.floats(3, 3, 4, o)]


@case("convolution", "patches")
def _(d: Draw) -> Made:
    patch, count = d.pick([2, 4, 3]), d.size()
    return _conv(window_strides=(patch, patch), padding="VALID"), [
        d.floats(4, patch * count, patch * 4, 4),
        d.floats(patch, patch, 4, 8),
    ]


@case("convolution", "one by one")
def _(d: Draw) -> Made:
    return _conv(), [d.floats(4, d.size(), 8, 4), d.floats(1, 1, 4, 8)]


@case("convolution", "one window")
def _(d: Draw) -> Made:
    n = d.size()
    return _conv(padding="VALID"), [d.floats(4, n, 8, 4), d.floats(n, 8, 4, 8)]


@case("convolution", "gradient of the kernel")
def _(d: Draw) -> Made:
    size = d.pick([8, 12])
    conv = _conv(padding=d.pick(["SAME", "VALID"]))
    return lambda x, k: jax.grad(lambda k: jnp.sum(conv(x, k) * jnp.sin(conv(x, k))))(k), [
        d.floats(4, size, size, 4),
        d.floats(3, 3, 4, 8),
    ]


@case("convolution", "gradient of the kernel itself")
def _(d: Draw) -> Made:
    size, kernel = 8, d.pick([3, 1])
    g = d.floats(4, size, size, 8)
    conv = _conv()
    return lambda x, k, g: jax.vjp(lambda k: conv(x, k), k)[1](g)[0], [
        d.floats(4, size, size, 4),
        d.floats(kernel, kernel, 4, 8),
        g,
    ]


@case("convolution", "transposed")
def _(d: Draw) -> Made:
    i = d.size()
    return _conv(lhs_dilation=(2, 2), padding=((1, 2), (2, 2))), [
        d.floats(4, 4, 4, i),
        d.floats(3, 3, i, 8),
    ]


# -- reductions ------------------------------------------------------------------------------------


@case("reduce", "monoids")
def _(d: Draw) -> Made:
    op = d.pick([lax.reduce_sum, lax.reduce_max, lax.reduce_min, lax.reduce_prod])
    x = d.floats(d.size(), d.size(), 4)
    return lambda x: op(x, axes=(0, 1)), [x]


@case("reduce", "bits and bools")
def _(d: Draw) -> Made:
    op = d.pick([lax.reduce_and, lax.reduce_or])
    n, m = d.size(), d.size()
    x = d.pick([d.ints(255, n, m), d.ints(2, n, m).astype(bool)])
    return lambda x: op(x, axes=(0,)), [x]


@case("reduce", "exclusive or")
def _(d: Draw) -> Made:
    return lambda x: lax.reduce_xor(x, axes=(0,)), [d.ints(255, d.size(), d.size())]


@case("reduce", "NaN in a maximum")
def _(d: Draw) -> Made:
    x = d.floats(d.size(), d.size())
    x[0, 0] = np.nan
    axis = d.pick([0, 1])
    return lambda x: jnp.max(x, axis=axis), [x]


@case("reduce", "several operands")
def _(d: Draw) -> Made:
    return lambda x: jnp.argmax(x, axis=1), [d.ints(3, d.size(), d.size(), 4)]


@case("reduce", "init that is not neutral")
def _(d: Draw) -> Made:
    op, init = d.pick([(lax.add, 5.0), (lax.mul, 3.0), (lax.max, 0.25), (lax.min, 0.25)])
    return lambda x: lax.reduce(x, np.float32(init), op, (0,)), [d.floats(d.size(), d.size())]


@case("reduce", "init that is not known")
def _(d: Draw) -> Made:
    op = d.pick([lax.add, lax.max])
    return lambda x, i: lax.reduce(x, i, op, (0,)), [d.floats(d.size(), d.size()), np.float32(0.5)]


@case("reduce", "types")
def _(d: Draw) -> Made:
    dtype = d.pick([np.int32, np.uint32, np.complex64, np.int8])
    x = (
        d.floats(d.size(), d.size(), dtype=dtype)
        if dtype == np.complex64
        else d.ints(100, d.size(), 4, dtype=dtype)
    )
    return lambda x: lax.reduce_sum(x, axes=(0,)), [x]


@case("reduce_window", "pool")
def _(d: Draw) -> Made:
    window, stride = d.pick(
        [((1, 2, 2), (1, 2, 2)), ((1, 3, 3), (1, 1, 1)), ((1, 3, 1), (1, 2, 1))]
    )
    padding = d.pick(["SAME", "VALID"])
    op, init = d.pick([(lax.max, -np.inf), (lax.add, 0.0)])
    return lambda x: lax.reduce_window(x, np.float32(init), op, window, stride, padding), [
        d.floats(d.size(), 8, 8)
    ]


@case("reduce_window", "cumulative sum", platform="tpu")
def _(d: Draw) -> Made:
    op = d.pick([lax.cumsum, lax.cummax, lax.cumprod])
    return lambda x: op(x, axis=1), [d.floats(d.size(), d.size(), 4)]


@case("reduce_window", "several operands")
def _(d: Draw) -> Made:
    def pool(x: Any) -> Any:
        return lax.reduce_window(
            (x, x),
            (np.float32(0), np.float32(1)),
            lambda a, b: (a[0] + b[0], a[1] * b[1]),
            (1, 2),
            (1, 2),
            "VALID",
        )

    return pool, [d.floats(d.size(), d.size())]


@case("select_and_scatter", "gradient of a pool")
def _(d: Draw) -> Made:
    window = d.pick([2, 3])

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, window, 1), (1, 2, 1), "SAME")

    return lambda x: jax.grad(lambda x: jnp.sum(jnp.sin(pool(x))))(x), [
        d.floats(d.size(), 8, d.size())
    ]


@case("sort", "several operands")
def _(d: Draw) -> Made:
    dim = d.pick([0, 1, 2])
    n, m = d.size(), d.size()
    x, y = d.ints(3, n, m, 4), d.floats(n, m, 4)
    return lambda x, y: lax.sort((x, y), dimension=dim, num_keys=1, is_stable=True), [x, y]


# -- look-ups --------------------------------------------------------------------------------------


@case("gather", "embedding")
def _(d: Draw) -> Made:
    n, m = d.size(), d.size()
    mode = d.pick(["clip", "fill"])
    indices = d.ints(n + 4, d.size(), 4, low=-4)  # some of them out of bounds
    return lambda e, i: jnp.take(e, i, axis=0, mode=mode), [d.floats(n, m), indices]


@case("gather", "take_along_axis")
def _(d: Draw) -> Made:
    b, n = d.size(), d.size()
    return lambda x, i: jnp.take_along_axis(x, i, axis=1, mode="clip"), [
        d.floats(b, n),
        d.ints(n, b, d.size()),
    ]


@case("gather", "two indexed dims")
def _(d: Draw) -> Made:
    n, m, k = d.size(), d.size(), d.size()
    return lambda x, i, j: x.at[i, :, j].get(mode="clip"), [
        d.floats(n, m, k),
        d.ints(n, 8),
        d.ints(k, 8),
    ]


@case("gather", "windows")
def _(d: Draw) -> Made:
    b, n = d.size(), d.size()
    return lambda x, i: jax.vmap(lambda x, i: lax.dynamic_slice(x, (i, 0), (3, 8)))(x, i), [
        d.floats(b, n, 8),
        d.ints(n, b),
    ]


# The tensor of indices that StableHLO had is [positions, i]; the op that is certified has [i].
@case("gather", "by position")
def _(d: Draw) -> Made:
    b, n = d.size(), d.size()
    return lambda x, i: x[jnp.arange(b), i], [d.floats(b, n, 4), d.ints(n, b)]


@case("gather", "integers and bools")
def _(d: Draw) -> Made:
    n = d.size()
    x = d.pick(
        [
            d.ints(100, n, 4, low=-100),
            d.ints(2, n, 4).astype(bool),
            d.ints(200, n, 4, dtype=np.uint8),
        ]
    )
    return lambda x, i: jnp.take(x, i, axis=0, mode="clip"), [x, d.ints(n, d.size())]


@case("scatter", "add")
def _(d: Draw) -> Made:
    n, m, k = d.size(), d.size(), d.size()
    mode = d.pick(["drop", "clip"])
    return lambda x, i, u: x.at[i].add(u, mode=mode), [
        d.floats(n, m),
        d.ints(n + 3, k, low=-3),
        d.floats(k, m),
    ]


@case("scatter", "min, max, mul")
def _(d: Draw) -> Made:
    n, k = d.size(), d.size()
    name = d.pick(["min", "max", "mul"])
    return lambda x, i, u: getattr(x.at[i], name)(u), [d.floats(n, 4), d.ints(n, k), d.floats(k, 4)]


@case("scatter", "set")
def _(d: Draw) -> Made:
    n, m = d.size(), d.size()
    return lambda x, i, u: x.at[i].set(u), [
        d.floats(n, m),
        d.rng.permutation(n)[: n // 2].astype(np.int32),
        d.floats(n // 2, m),
    ]


@case("scatter", "batching dims")
def _(d: Draw) -> Made:
    b, n, k = d.size(), d.size(), d.size()
    return lambda x, i, u: jax.vmap(lambda x, i, u: x.at[i].add(u))(x, i, u), [
        d.floats(b, n),
        d.ints(n, b, k),
        d.floats(b, k),
    ]


@case("scatter", "by position")
def _(d: Draw) -> Made:
    b, n = d.size(), d.size()
    return lambda x, i, u: x.at[jnp.arange(b), i].set(u), [
        d.floats(b, n, 4),
        d.ints(n + 3, b),  # some of them out of bounds
        d.floats(b, 4),
    ]


@case("scatter", "windows")
def _(d: Draw) -> Made:
    n, k = d.size(), d.size()
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2), inserted_window_dims=(), scatter_dims_to_operand_dims=(0,)
    )
    return lambda x, i, u: lax.scatter_add(x, i, u, numbers), [
        d.floats(n, 8),
        d.ints(n, k, 1),
        d.floats(k, 3, 8),
    ]


@case("scatter", "apply")
def _(d: Draw) -> Made:
    n = d.size()
    return lambda x, i: x.at[i].apply(jnp.sin), [
        d.floats(n, 4),
        d.rng.permutation(n)[: n // 2].astype(np.int32),
    ]


@case("scatter", "integers")
def _(d: Draw) -> Made:
    n, k = d.size(), d.size()
    return lambda x, i, u: x.at[i].add(u), [d.ints(9, n, 4), d.ints(n, k), d.ints(9, k, 4)]


@case("scatter", "several operands")
def _(d: Draw) -> Made:
    n = d.size()
    t, i, u = tensor_type((n, 4), "f32"), tensor_type((8, 1), "i32"), tensor_type((8, 4), "f32")
    text = f"""func.func public @main(%a: {t}, %b: {t}, %i: {i}, %u: {u}, %v: {u}) -> ({t}, {t}) {{
  %0:2 = "stablehlo.scatter"(%a, %b, %i, %u, %v) <{{scatter_dimension_numbers = #stablehlo.scatter<
    update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
    index_vector_dim = 1>}}> ({{
  ^bb0(%p: tensor<f32>, %q: tensor<f32>, %r: tensor<f32>, %s: tensor<f32>):
    %x = stablehlo.add %p, %r : tensor<f32>
    %y = stablehlo.maximum %q, %s : tensor<f32>
    stablehlo.return %x, %y : tensor<f32>, tensor<f32>
  }}) : ({t}, {t}, {i}, {u}, {u}) -> ({t}, {t})
  return %0#0, %0#1 : {t}, {t}
}}"""
    return text, [d.floats(n, 4), d.floats(n, 4), d.ints(n, 8, 1), d.floats(8, 4), d.floats(8, 4)]


# -- numbers out of a state, transforms, linear algebra --------------------------------------------


@case("rng_bit_generator", "bits")
def _(d: Draw) -> Made:
    shape = (d.size(), d.size())
    dtype = d.pick([np.uint32, np.uint8])
    return lambda k: lax.rng_bit_generator(k, shape, dtype=dtype), [d.ints(99, 4, dtype=np.uint32)]


@case("fft", "one or two dims")
def _(d: Draw) -> Made:
    fn = d.pick([jnp.fft.fft, jnp.fft.ifft2, lambda x: jnp.fft.irfft(x, n=x.shape[-1] * 2 - 2)])
    return fn, [d.floats(d.size(), d.size(), 8, dtype=np.complex64)]


@case("fft", "real")
def _(d: Draw) -> Made:
    return d.pick([jnp.fft.rfft, jnp.fft.rfft2]), [d.floats(d.size(), 8, d.size())]


def _matrices(d: Draw) -> np.ndarray:
    n = d.pick([4, 8])
    x = d.floats(d.size(), d.size(), n, n)
    return x @ x.swapaxes(-1, -2) + 2 * n * np.eye(n, dtype=np.float32)


@case("cholesky", "batch", platform="tpu")
def _(d: Draw) -> Made:
    return lax.linalg.cholesky, [_matrices(d)]


@case("triangular_solve", "batch and right-hand sides", platform="tpu")
def _(d: Draw) -> Made:
    a, left, transposed = _matrices(d), d.pick([True, False]), d.pick([False, True])
    shape = (a.shape[-1], d.size())
    b = d.floats(*a.shape[:2], *(shape if left else shape[::-1]))
    return lambda a, b: lax.linalg.triangular_solve(
        a, b, left_side=left, transpose_a=transposed, lower=True
    ), [a, b]


def _linear_algebra(
    target: str, fn: Callable[..., Any], platform: str = "cpu", **options: Any
) -> None:
    CASES.append(
        Case("custom_call", target, lambda d: (fn, [_matrices(d)]), platform, target, **options)
    )


def _tridiagonal(x: Any) -> Any:
    return lax.linalg.tridiagonal_solve(x[..., 0], x[..., 1], x[..., 2] + 9.0, x)


_linear_algebra("lapack_sgeqrf_ffi", jnp.linalg.qr)
_linear_algebra("lapack_sorgqr_ffi", jnp.linalg.qr)
_linear_algebra("lapack_ssyevd_ffi", jnp.linalg.eigh)
_linear_algebra("lapack_sgesdd_ffi", jnp.linalg.svd)
_linear_algebra("lapack_sgetrf_ffi", jax.scipy.linalg.lu_factor)
_linear_algebra("lapack_spotrf_ffi", jnp.linalg.cholesky)
_linear_algebra("lapack_strsm_ffi", lambda x: jnp.linalg.solve(x, x))
_linear_algebra("lapack_sgeev_ffi", jnp.linalg.eig, undefined=(2,))  # left vectors: not requested
_linear_algebra("lapack_sgees_ffi", lax.linalg.schur)
_linear_algebra("lapack_sgehrd_ffi", lax.linalg.hessenberg)
_linear_algebra("lapack_ssytrd_ffi", lax.linalg.tridiagonal)
_linear_algebra("lapack_sgtsv_ffi", _tridiagonal)
_linear_algebra("Qr", jnp.linalg.qr, "tpu")
_linear_algebra("ProductOfElementaryHouseholderReflectors", jnp.linalg.qr, "tpu")
_linear_algebra("Eigh", jnp.linalg.eigh, "tpu", sharded=False)
_linear_algebra(
    "LuDecomposition",
    lax.linalg.lu,
    "tpu",
    reference=lambda x: lax.linalg.lu(jnp.asarray(x)),
    sharded=False,
)


@case("chlo.top_k", "k of the last dim")
def _(d: Draw) -> Made:
    n = d.size()
    k = d.pick([3, n])
    return lambda x: lax.top_k(x, k), [d.floats(d.size(), d.size(), n)]


@case("custom_call", "ApproxTopK", target="ApproxTopK")
def _(d: Draw) -> Made:
    n = d.size()
    k, dim = d.pick([n, 3]), d.pick([1, 2])
    return lambda x: lax.approx_max_k(x, k, reduction_dimension=dim), [d.floats(d.size(), n, n)]
