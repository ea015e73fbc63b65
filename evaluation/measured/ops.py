"""Single ops as users write them, to be measured on a GPU and priced.

Sizes are those of one device of a training job: from ops dominated by launches to ops that fill
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

F32, BF16 = jnp.float32, jnp.bfloat16


class Single(NamedTuple):
    """A function of a few arrays, most often one op."""

    family: str
    name: str
    function: Callable[..., Any]
    arguments: tuple[jax.ShapeDtypeStruct, ...]


def shapes_of(dtype: Any, *shapes: tuple[int, ...]) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Abstract arrays of one type."""
    return tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)


def size_text(shape: tuple[int, ...]) -> str:
    """A shape as text, like "64x32"."""
    return "x".join(map(str, shape))


def float_name(dtype: Any) -> str:
    """The StableHLO name of a type, like "bf16"."""
    return {"float32": "f32", "bfloat16": "bf16"}.get(jnp.dtype(dtype).name, jnp.dtype(dtype).name)


def every() -> list[Single]:
    """All single ops; their names are unique."""
    makers = (
        _transposes, _products, _batched, _few_rows, _elementwise, _reductions, _normalisations,
        _lookups, _sorts, _moves, _convolutions, _windows, _fourier, _loops, _random,
    )  # fmt: skip
    singles = [single for make in makers for single in make()]
    names = [single.name for single in singles]
    assert len(set(names)) == len(names)
    return singles


def _transposes() -> Iterator[Single]:
    cases: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((8192, 8192), (1, 0)),
        ((1024, 1024), (1, 0)),
        ((131072, 64), (1, 0)),
        ((64, 131072), (1, 0)),
        ((8, 2048, 16, 128), (0, 2, 1, 3)),
        ((8, 2048, 16, 128), (0, 2, 3, 1)),
        ((64, 56, 56, 256), (0, 3, 1, 2)),
        ((64, 256, 56, 56), (0, 2, 3, 1)),
        ((2048, 4096, 4), (2, 0, 1)),
        ((2048, 4, 4096), (1, 0, 2)),
        ((256, 256, 256), (2, 1, 0)),
    )
    for dtype in (F32, BF16):
        for shape, order in cases:
            yield Single(
                "transpose",
                f"transpose {float_name(dtype)} {size_text(shape)} to {','.join(map(str, order))}",
                lambda x, order=order: lax.transpose(x, order),
                shapes_of(dtype, shape),
            )


def _products() -> Iterator[Single]:
    shapes = (
        (8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (1024, 1024, 1024),
        (512, 512, 512), (16384, 1024, 4096), (16384, 4096, 1024), (4096, 50304, 1024),
        (2048, 768, 3072), (8192, 8192, 64), (64, 8192, 8192), (1000, 3000, 1500),
    )  # fmt: skip
    for dtype in (BF16, F32):
        for rows, columns, depth in shapes:
            yield Single(
                "product",
                f"product {float_name(dtype)} {rows}x{depth} by {depth}x{columns}",
                jnp.matmul,
                shapes_of(dtype, (rows, depth), (depth, columns)),
            )
    for left, right, word in ((0, 0, "left"), (1, 1, "right"), (0, 1, "both")):
        yield Single(
            "product",
            f"product bf16 4096 squared, {word} transposed",
            lambda x, y, left=left, right=right: lax.dot_general(
                x, y, (((left,), (right,)), ((), ()))
            ),
            shapes_of(BF16, (4096, 4096), (4096, 4096)),
        )
    yield Single(
        "product",
        "product bf16 2048 squared into f32",
        lambda x, y: jnp.matmul(x, y, preferred_element_type=F32),
        shapes_of(BF16, (2048, 2048), (2048, 2048)),
    )
    yield Single(
        "product",
        "product f32 2048 squared, highest precision",
        lambda x, y: jnp.matmul(x, y, precision="highest"),
        shapes_of(F32, (2048, 2048), (2048, 2048)),
    )
    yield Single(
        "product",
        "product bf16 2048x1024 by 1024x4096, bias and gelu",
        lambda x, w, b: jax.nn.gelu(x @ w + b),
        shapes_of(BF16, (2048, 1024), (1024, 4096), (4096,)),
    )


def _batched() -> Iterator[Single]:
    for dtype in (BF16, F32):
        for batch, rows, columns, depth in (
            (128, 1024, 1024, 64), (128, 1024, 64, 1024), (1024, 64, 64, 64), (4096, 16, 16, 64),
            (65536, 8, 8, 8), (32, 2048, 2048, 128),
        ):  # fmt: skip
            yield Single(
                "batched product",
                f"product {float_name(dtype)} {batch} of {rows}x{depth} by {depth}x{columns}",
                jnp.matmul,
                shapes_of(dtype, (batch, rows, depth), (batch, depth, columns)),
            )
    yield Single(
        "batched product",
        "scores bf16 of 8x1024x16x64 heads",
        lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k),
        shapes_of(BF16, (8, 1024, 16, 64), (8, 1024, 16, 64)),
    )
    yield Single(
        "batched product",
        "attention bf16 of 8x1024x16x64 heads",
        attention,
        shapes_of(BF16, *((8, 1024, 16, 64),) * 3),
    )


def attention(q: Any, k: Any, v: Any) -> Any:
    """Softmax attention with heads of size 64."""
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8, axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def _few_rows() -> Iterator[Single]:
    for dtype in (BF16, F32):
        for rows in (1, 4, 16, 64, 128, 256):
            yield Single(
                "product of few rows",
                f"product {float_name(dtype)} {rows} rows by 4096x16384",
                jnp.matmul,
                shapes_of(dtype, (rows, 4096), (4096, 16384)),
            )
    yield Single(
        "product of few rows",
        "product bf16 8 queries of 32 heads with caches of 4096",
        lambda q, k: jnp.einsum("bhd,bshd->bhs", q, k),
        shapes_of(BF16, (8, 32, 128), (8, 4096, 32, 128)),
    )
    yield Single(
        "product of few rows",
        "product f32 16384 squared by a vector",
        jnp.matmul,
        shapes_of(F32, (16384, 16384), (16384,)),
    )


def _elementwise() -> Iterator[Single]:
    functions: dict[str, Callable[..., Any]] = {
        "add": lambda x: x + 1,
        "exp": jnp.exp,
        "tanh": jnp.tanh,
        "log": lambda x: jnp.log(jnp.abs(x)),
        "sine": jnp.sin,
        "root": lambda x: jnp.sqrt(jnp.abs(x)),
        "quotient": lambda x: 1 / x,
        "erf": lax.erf,
        "gelu": jax.nn.gelu,
        "power": lambda x: jnp.abs(x) ** 1.7,
    }
    for name, function in functions.items():
        for dtype in (F32, BF16):
            yield Single(
                "elementwise",
                f"{name} {float_name(dtype)} of 64 Mi",
                function,
                shapes_of(dtype, (2**26,)),
            )
    for power in (14, 18, 20, 22, 24):
        yield Single(
            "elementwise", f"add f32 of 2^{power}", lambda x: x + 1, shapes_of(F32, (2**power,))
        )
    yield Single(
        "elementwise",
        "sum of two f32 of 64 Mi",
        lambda x, y: x + y,
        shapes_of(F32, (2**26,), (2**26,)),
    )
    yield Single(
        "elementwise",
        "cast bf16 to f32 of 64 Mi",
        lambda x: x.astype(F32),
        shapes_of(BF16, (2**26,)),
    )
    yield Single(
        "elementwise",
        "cast f32 to bf16 of 64 Mi",
        lambda x: x.astype(BF16),
        shapes_of(F32, (2**26,)),
    )
    yield Single(
        "elementwise",
        "Adam f32 of 16 Mi",
        _adam,
        shapes_of(F32, *((2**24,),) * 4),
    )
    yield Single(
        "elementwise",
        "row added to f32 8192x8192",
        lambda x, row: x + row,
        shapes_of(F32, (8192, 8192), (8192,)),
    )
    yield Single(
        "elementwise",
        "column added to f32 8192x8192",
        lambda x, column: x + column[:, None],
        shapes_of(F32, (8192, 8192), (8192,)),
    )


def _adam(weights: Any, gradient: Any, mean: Any, square: Any) -> Any:
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.999 * square + 0.001 * gradient * gradient
    return weights - 1e-3 * mean / (jnp.sqrt(jnp.abs(square)) + 1e-8), mean, square


def _reductions() -> Iterator[Single]:
    for dtype in (F32, BF16):
        for shape, axes in (
            ((8192, 8192), (1,)), ((8192, 8192), (0,)), ((8192, 8192), (0, 1)),
            ((64, 1024, 1024), (1,)), ((2**20, 64), (1,)), ((2**20, 64), (0,)),
            ((512, 512), (1,)), ((512, 512), (0,)), ((16, 2**22), (1,)), ((32, 512, 4096), (0, 1)),
        ):  # fmt: skip
            yield Single(
                "reduction",
                f"sum {float_name(dtype)} {size_text(shape)} over {','.join(map(str, axes))}",
                lambda x, axes=axes: jnp.sum(x, axis=axes),
                shapes_of(dtype, shape),
            )
    yield Single(
        "reduction",
        "max f32 8192x8192 over 1",
        lambda x: jnp.max(x, 1),
        shapes_of(F32, (8192, 8192)),
    )
    yield Single(
        "reduction",
        "argmax f32 4096x32000 over 1",
        lambda x: jnp.argmax(x, 1),
        shapes_of(F32, (4096, 32000)),
    )
    yield Single(
        "reduction",
        "mean of squares f32 of 64 Mi",
        lambda x: jnp.mean(x * x),
        shapes_of(F32, (2**26,)),
    )


def _normalisations() -> Iterator[Single]:
    for dtype in (F32, BF16):
        name = float_name(dtype)
        yield Single(
            "normalisation",
            f"softmax {name} 8x16x1024x1024",
            lambda x: jax.nn.softmax(x, -1),
            shapes_of(dtype, (8, 16, 1024, 1024)),
        )
        yield Single(
            "normalisation",
            f"log softmax {name} 4096x32000",
            lambda x: jax.nn.log_softmax(x, -1),
            shapes_of(dtype, (4096, 32000)),
        )
        yield Single(
            "normalisation",
            f"softmax {name} 1024x50304",
            lambda x: jax.nn.softmax(x, -1),
            shapes_of(dtype, (1024, 50304)),
        )
        yield Single(
            "normalisation",
            f"layer norm {name} 16384x1024",
            layer_norm,
            shapes_of(dtype, (16384, 1024), (1024,), (1024,)),
        )
        yield Single(
            "normalisation",
            f"gradient of layer norm {name} 16384x1024",
            _layer_norm_gradient,
            shapes_of(dtype, (16384, 1024), (1024,), (1024,)),
        )
        yield Single(
            "normalisation",
            f"batch norm {name} 64x56x56x256",
            _batch_norm,
            shapes_of(dtype, (64, 56, 56, 256), (256,), (256,)),
        )


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    """Normalise the last dim in float32, as most libraries write it."""
    wide = x.astype(F32)
    mean = wide.mean(-1, keepdims=True)
    spread = wide.var(-1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(spread + 1e-5)).astype(x.dtype) * scale + shift


def _layer_norm_gradient(x: Any, scale: Any, shift: Any) -> Any:
    def loss(*arguments: Any) -> Any:
        return jnp.sum(jnp.sin(layer_norm(*arguments)).astype(F32))

    return jax.grad(loss, argnums=(0, 1, 2))(x, scale, shift)


def _batch_norm(x: Any, scale: Any, shift: Any) -> Any:
    wide = x.astype(F32)
    mean, spread = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
    return ((wide - mean) * lax.rsqrt(spread + 1e-5)).astype(x.dtype) * scale + shift


def whole_numbers(*shape: int) -> jax.ShapeDtypeStruct:
    """An abstract array of indices."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _lookups() -> Iterator[Single]:
    def add_rows(table: Any, rows: Any, values: Any) -> Any:
        return table.at[rows].add(values)

    for dtype in (F32, BF16):
        name = float_name(dtype)
        table = shapes_of(dtype, (32000, 1024))[0]
        yield Single(
            "lookup",
            f"16384 rows of {name} 32000x1024",
            lambda t, i: t[i],
            (table, whole_numbers(16384)),
        )
        yield Single(
            "lookup",
            f"16384 rows added to {name} 32000x1024",
            add_rows,
            (table, whole_numbers(16384), *shapes_of(dtype, (16384, 1024))),
        )
        yield Single(
            "lookup",
            f"2^20 rows of {name} 2^18x64",
            lambda t, i: t[i],
            (*shapes_of(dtype, (2**18, 64)), whole_numbers(2**20)),
        )
        yield Single(
            "lookup",
            f"sums of segments {name} 2^20x64 into 2^16",
            lambda x, i: jax.ops.segment_sum(x, i, num_segments=2**16),
            (*shapes_of(dtype, (2**20, 64)), whole_numbers(2**20)),
        )
    yield Single(
        "lookup",
        "2^22 elements of f32 2^24",
        lambda x, i: x[i],
        (*shapes_of(F32, (2**24,)), whole_numbers(2**22)),
    )
    yield Single(
        "lookup",
        "one of each row f32 8192x32000",
        lambda x, i: jnp.take_along_axis(x, i[:, None], 1),
        (*shapes_of(F32, (8192, 32000)), whole_numbers(8192)),
    )


def _sorts() -> Iterator[Single]:
    yield Single("sort", "sort f32 of 2^20", jnp.sort, shapes_of(F32, (2**20,)))
    yield Single("sort", "sort f32 of 2^24", jnp.sort, shapes_of(F32, (2**24,)))
    yield Single("sort", "sort f32 4096x1024 along 1", jnp.sort, shapes_of(F32, (4096, 1024)))
    yield Single("sort", "argsort f32 64x32000", jnp.argsort, shapes_of(F32, (64, 32000)))
    yield Single(
        "sort", "top 8 of f32 16384x64", lambda x: lax.top_k(x, 8), shapes_of(F32, (16384, 64))
    )
    yield Single(
        "sort", "top 64 of f32 256x32000", lambda x: lax.top_k(x, 64), shapes_of(F32, (256, 32000))
    )
    for shape, axis in (((4096, 4096), 1), ((4096, 4096), 0), ((2**24,), 0)):
        yield Single(
            "sort",
            f"running sum f32 {size_text(shape)} along {axis}",
            lambda x, axis=axis: jnp.cumsum(x, axis),
            shapes_of(F32, shape),
        )


def _moves() -> Iterator[Single]:
    for dtype in (F32, BF16):
        name = float_name(dtype)
        for axis in (0, 1):
            yield Single(
                "movement",
                f"two {name} 4096x8192 joined along {axis}",
                lambda x, y, axis=axis: jnp.concatenate([x, y], axis),
                shapes_of(dtype, (4096, 8192), (4096, 8192)),
            )
        yield Single(
            "movement",
            f"{name} 4094x8190 padded to 4096x8192",
            lambda x: jnp.pad(x, 1),
            shapes_of(dtype, (4094, 8190)),
        )
        yield Single(
            "movement",
            f"half of {name} 8192x8192 along 1",
            lambda x: x[:, 2048:6144],
            shapes_of(dtype, (8192, 8192)),
        )
        yield Single(
            "movement",
            f"half of {name} 8192x8192 along 0",
            lambda x: x[2048:6144],
            shapes_of(dtype, (8192, 8192)),
        )
        yield Single(
            "movement",
            f"every second of {name} 8192x8192 along 1",
            lambda x: x[:, ::2],
            shapes_of(dtype, (8192, 8192)),
        )
        yield Single(
            "movement",
            f"{name} 8192x8192 reversed along 1",
            lambda x: x[:, ::-1],
            shapes_of(dtype, (8192, 8192)),
        )
        yield Single(
            "movement",
            f"{name} 8192 spread over 8192 rows",
            lambda x: jnp.broadcast_to(x, (8192, 8192)),
            shapes_of(dtype, (8192,)),
        )
        yield Single(
            "movement",
            f"{name} 8192 spread over 8192 columns",
            lambda x: jnp.broadcast_to(x[:, None], (8192, 8192)),
            shapes_of(dtype, (8192,)),
        )
        yield Single(
            "movement",
            f"heads of {name} 8192x2048 split and turned",
            lambda x: x.reshape(8, 1024, 16, 128).transpose(0, 2, 1, 3).reshape(128, 1024, 128),
            shapes_of(dtype, (8192, 2048)),
        )
        yield Single(
            "movement",
            f"a row written into {name} 8x4096x32x128",
            lambda cache, row: lax.dynamic_update_slice(cache * 1, row, (0, 77, 0, 0)),
            shapes_of(dtype, (8, 4096, 32, 128), (8, 1, 32, 128)),
        )


def convolved_by(stride: int, groups: int = 1) -> Callable[[Any, Any], Any]:
    """A convolution of images or volumes with channels last."""

    def function(x: Any, kernel: Any) -> Any:
        spatial = x.ndim - 2
        names = ("NHWC", "HWIO", "NHWC") if spatial == 2 else ("NDHWC", "DHWIO", "NDHWC")
        return lax.conv_general_dilated(
            x,
            kernel,
            (stride,) * spatial,
            "SAME",
            dimension_numbers=names,
            feature_group_count=groups,
        )

    return function


def _convolutions() -> Iterator[Single]:
    cases: tuple[tuple[str, tuple[int, ...], tuple[int, ...], int, int], ...] = (
        ("3x3", (64, 56, 56, 64), (3, 3, 64, 64), 1, 1),
        ("3x3", (64, 14, 14, 256), (3, 3, 256, 256), 1, 1),
        ("3x3 by 2", (64, 56, 56, 128), (3, 3, 128, 128), 2, 1),
        ("1x1", (64, 56, 56, 256), (1, 1, 256, 64), 1, 1),
        ("7x7 by 2", (64, 224, 224, 3), (7, 7, 3, 64), 2, 1),
        ("3x3 of each channel", (64, 56, 56, 128), (3, 3, 1, 128), 1, 128),
        ("3x3x3", (4, 32, 32, 32, 64), (3, 3, 3, 64, 64), 1, 1),
    )
    for dtype in (BF16, F32):
        for word, image, kernel, stride, groups in cases:
            yield Single(
                "convolution",
                f"convolution {word} {float_name(dtype)} {size_text(image)} to {kernel[-1]}",
                convolved_by(stride, groups),
                shapes_of(dtype, image, kernel),
            )
    for dtype in (BF16, F32):
        yield Single(
            "convolution",
            f"gradient of convolution 3x3 {float_name(dtype)} 64x56x56x64 to 64",
            _gradients_of(convolved_by(1)),
            shapes_of(dtype, (64, 56, 56, 64), (3, 3, 64, 64)),
        )
        yield Single(
            "convolution",
            f"gradient of convolution 3x3 {float_name(dtype)} 64x14x14x256 to 256",
            _gradients_of(convolved_by(1)),
            shapes_of(dtype, (64, 14, 14, 256), (3, 3, 256, 256)),
        )


def _gradients_of(function: Callable[..., Any]) -> Callable[..., Any]:
    def loss(*arguments: Any) -> Any:
        return jnp.sum(jnp.sin(function(*arguments)).astype(F32))

    return jax.grad(loss, argnums=(0, 1))


def _windows() -> Iterator[Single]:
    for dtype in (F32, BF16):
        name = float_name(dtype)
        yield Single(
            "window",
            f"max of 2x2 {name} 64x112x112x64",
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
            shapes_of(dtype, (64, 112, 112, 64)),
        )
        yield Single(
            "window",
            f"max of 3x3 by 2 {name} 64x112x112x64",
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
            shapes_of(dtype, (64, 112, 112, 64)),
        )
    yield Single(
        "window",
        "gradient of max of 2x2 f32 64x112x112x64",
        jax.grad(
            lambda x: jnp.sum(
                jnp.sin(
                    lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
                )
            )
        ),
        shapes_of(F32, (64, 112, 112, 64)),
    )


def _fourier() -> Iterator[Single]:
    yield Single(
        "Fourier", "fft c64 4096x4096", jnp.fft.fft, shapes_of(jnp.complex64, (4096, 4096))
    )
    yield Single(
        "Fourier", "fft2 c64 64x512x512", jnp.fft.fft2, shapes_of(jnp.complex64, (64, 512, 512))
    )
    yield Single("Fourier", "rfft f32 16384x1024", jnp.fft.rfft, shapes_of(F32, (16384, 1024)))
    yield Single(
        "Fourier",
        "fft c64 1024x4096 along 0",
        lambda x: jnp.fft.fft(x, axis=0),
        shapes_of(jnp.complex64, (1024, 4096)),
    )
    yield Single(
        "Fourier",
        "fft3 c64 8x64x64x64",
        lambda x: jnp.fft.fftn(x, axes=(1, 2, 3)),
        shapes_of(jnp.complex64, (8, 64, 64, 64)),
    )


def _loops() -> Iterator[Single]:
    def small(state: Any, weights: Any) -> Any:
        return lax.fori_loop(0, 200, lambda _, s: jnp.tanh(s @ weights), state)

    def scanned(inputs: Any, weights: Any, state: Any) -> Any:
        def step(s: Any, x: Any) -> tuple[Any, Any]:
            s = jnp.tanh(s @ weights + x)
            return s, s

        return lax.scan(step, state, inputs)

    yield Single(
        "loop",
        "200 rounds of tanh of f32 128 squared",
        small,
        shapes_of(F32, (128, 128), (128, 128)),
    )
    yield Single(
        "loop",
        "200 rounds of tanh of bf16 1024 squared",
        small,
        shapes_of(BF16, (1024, 1024), (1024, 1024)),
    )
    yield Single(
        "loop",
        "scan of 256 over f32 64x512",
        scanned,
        shapes_of(F32, (256, 64, 512), (512, 512), (64, 512)),
    )
    yield Single(
        "loop",
        "200 rounds of sine of f32 2^22",
        lambda x: lax.fori_loop(0, 200, lambda _, s: jnp.sin(s), x),
        shapes_of(F32, (2**22,)),
    )


def _random() -> Iterator[Single]:
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    yield Single("random", "2^24 normal f32", lambda k: jax.random.normal(k, (2**24,)), (key,))
    yield Single(
        "random",
        "dropout of bf16 8192x4096",
        lambda k, x: jnp.where(jax.random.bernoulli(k, 0.9, x.shape), x / 0.9, 0),
        (key, *shapes_of(BF16, (8192, 4096))),
    )
