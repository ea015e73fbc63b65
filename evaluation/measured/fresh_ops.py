"""Single ops of other sizes, off which no rule was read; they were judged once, on 2026-11-26."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from evaluation.measured.ops import (
    BF16,
    F32,
    Single,
    attention,
    convolved_by,
    float_name,
    layer_norm,
    shapes_of,
    size_text,
    whole_numbers,
)


def every() -> list[Single]:
    """All fresh single ops; their families are those of ``ops``."""
    makers = (_moved, _multiplied, _computed, _summed, _looked_up, _convolved, _layers)
    return [single for make in makers for single in make()]


def _moved() -> Iterator[Single]:
    for dtype in (F32, BF16):
        name = float_name(dtype)
        for shape, order in (
            ((4000, 6000), (1, 0)),
            ((16, 1500, 12, 64), (0, 2, 1, 3)),
            ((32, 96, 80, 80), (0, 2, 3, 1)),
            ((512, 512, 96), (2, 0, 1)),
        ):
            yield Single(
                "transpose",
                f"transpose {name} {size_text(shape)} to {','.join(map(str, order))}",
                lambda x, order=order: lax.transpose(x, order),
                shapes_of(dtype, shape),
            )
        yield Single(
            "movement",
            f"three {name} 3000x2000 joined along 1",
            lambda x, y, z: jnp.concatenate([x, y, z], 1),
            shapes_of(dtype, *((3000, 2000),) * 3),
        )
        yield Single(
            "movement",
            f"{name} 5000x3000 rolled by 7",
            lambda x: jnp.roll(x, 7, 1),
            shapes_of(dtype, (5000, 3000)),
        )


def _multiplied() -> Iterator[Single]:
    for dtype in (F32, BF16):
        name = float_name(dtype)
        for rows, columns, depth in ((6144, 6144, 1536), (3072, 1000, 768), (24, 8192, 8192)):
            family = "product of few rows" if rows < 256 else "product"
            yield Single(
                family,
                f"product {name} {rows}x{depth} by {depth}x{columns}",
                jnp.matmul,
                shapes_of(dtype, (rows, depth), (depth, columns)),
            )
        yield Single(
            "batched product",
            f"product {name} 96 of 768x768 by 768x96",
            jnp.matmul,
            shapes_of(dtype, (96, 768, 768), (96, 768, 96)),
        )
        yield Single(
            "batched product",
            f"attention {name} of 16x512x12x64 heads",
            attention,
            shapes_of(dtype, *((16, 512, 12, 64),) * 3),
        )
    yield Single(
        "product",
        "product f32 3000 squared, highest precision",
        lambda x, y: jnp.matmul(x, y, precision="highest"),
        shapes_of(F32, (3000, 3000), (3000, 3000)),
    )


def _computed() -> Iterator[Single]:
    functions: dict[str, Callable[..., Any]] = {
        "cosine": jnp.cos,
        "logistic": jax.nn.sigmoid,
        "cube": lambda x: x**3,
        "silu": jax.nn.silu,
    }
    for word, function in functions.items():
        for dtype in (F32, BF16):
            yield Single(
                "elementwise",
                f"{word} {float_name(dtype)} of 24 Mi",
                function,
                shapes_of(dtype, (3 * 2**23,)),
            )


def _summed() -> Iterator[Single]:
    for dtype in (F32, BF16):
        name = float_name(dtype)
        for shape, axis in (((6000, 5000), 1), ((6000, 5000), 0), ((96, 300, 900), 1)):
            yield Single(
                "reduction",
                f"sum {name} {size_text(shape)} over {axis}",
                lambda x, axis=axis: jnp.sum(x, axis),
                shapes_of(dtype, shape),
            )
        yield Single(
            "normalisation",
            f"softmax {name} 24x12x768x768",
            lambda x: jax.nn.softmax(x, -1),
            shapes_of(dtype, (24, 12, 768, 768)),
        )
        yield Single(
            "normalisation",
            f"layer norm {name} 20000x2560",
            layer_norm,
            shapes_of(dtype, (20000, 2560), (2560,), (2560,)),
        )


def _looked_up() -> Iterator[Single]:
    for dtype in (F32, BF16):
        name = float_name(dtype)
        (table,) = shapes_of(dtype, (50000, 768))
        yield Single(
            "lookup",
            f"8192 rows of {name} 50000x768",
            lambda t, i: t[i],
            (table, whole_numbers(8192)),
        )
        yield Single(
            "lookup",
            f"8192 rows added to {name} 50000x768",
            lambda t, i, x: t.at[i].add(x),
            (table, whole_numbers(8192), *shapes_of(dtype, (8192, 768))),
        )
        yield Single(
            "lookup",
            f"sums of segments {name} 2^18x128 into 2^14",
            lambda x, i: jax.ops.segment_sum(x, i, num_segments=2**14),
            (*shapes_of(dtype, (2**18, 128)), whole_numbers(2**18)),
        )
    yield Single("sort", "sort f32 1000x5000 along 1", jnp.sort, shapes_of(F32, (1000, 5000)))
    yield Single("sort", "sort f32 of 2^22", jnp.sort, shapes_of(F32, (2**22,)))
    yield Single(
        "sort", "top 16 of f32 4096x256", lambda x: lax.top_k(x, 16), shapes_of(F32, (4096, 256))
    )


def _convolved() -> Iterator[Single]:
    for dtype in (F32, BF16):
        for word, image, kernel, stride in (
            ("3x3", (32, 28, 28, 128), (3, 3, 128, 128), 1),
            ("5x5", (16, 64, 64, 32), (5, 5, 32, 96), 1),
            ("16x16 by 16", (64, 224, 224, 3), (16, 16, 3, 768), 16),
            ("1x1", (32, 28, 28, 512), (1, 1, 512, 512), 1),
        ):
            yield Single(
                "convolution",
                f"convolution {word} {float_name(dtype)} {size_text(image)} to {kernel[-1]}",
                convolved_by(stride),
                shapes_of(dtype, image, kernel),
            )


def _layers() -> Iterator[Single]:
    def block(x: Any, scale: Any, shift: Any, up: Any, down: Any) -> Any:
        return x + jax.nn.gelu(layer_norm(x, scale, shift) @ up) @ down

    def loss(*arguments: Any) -> Any:
        return jnp.sum(jnp.square(block(*arguments).astype(F32)))

    for dtype in (F32, BF16):
        arguments = shapes_of(dtype, (8192, 1280), (1280,), (1280,), (1280, 5120), (5120, 1280))
        name = float_name(dtype)
        yield Single("block", f"block {name} 8192x1280", block, arguments)
        yield Single(
            "block",
            f"gradient of a block {name} 8192x1280",
            jax.grad(loss, argnums=(0, 1, 2, 3, 4)),
            arguments,
        )
