"""The requested precision of a matrix product or convolution is part of its detail."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from toast_lab.frontends import from_jax
from toast_lab.ir.read import parse

PRECISIONS = [
    (None, ""),
    ("default", ""),
    ("high", "high"),
    ("highest", "highest"),
    (("default", "default"), ""),
    (("highest", "default"), "highest"),
    (("default", "high"), "high"),
    (("high", "highest"), "highest"),
]


def details(fn: Any, kind: str) -> list[str]:
    program = from_jax(fn, *[jax.ShapeDtypeStruct((4, 4), jnp.float32)] * 2).program
    return [program.detail[op] for op in program.ops() if program.kind[op] == kind]


@pytest.mark.parametrize(("precision", "expected"), PRECISIONS)
def test_detail_of_a_product_is_the_most_precise_operand(precision: Any, expected: str) -> None:
    assert details(lambda x, w: jax.lax.dot(x, w, precision=precision), "dot_general") == [expected]


@pytest.mark.parametrize(("precision", "expected"), PRECISIONS)
def test_detail_of_a_convolution_is_the_most_precise_operand(precision: Any, expected: str) -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x[None],
            w[None],
            (1,),
            "SAME",
            dimension_numbers=("NWC", "WIO", "NWC"),
            precision=precision,
        )

    assert details(fn, "convolution") == [expected]


def test_each_product_has_its_own_precision() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.dot(jnp.dot(x, w, precision="high"), jnp.dot(x, w), precision="highest")

    assert sorted(details(fn, "dot_general")) == ["", "high", "highest"]


def test_products_without_a_precision_have_the_default_one() -> None:
    """Other frontends than JAX leave the attribute out."""
    text = """module {
  func.func public @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.dot_general %0, %x, contracting_dims = [1] x [0], precision = [DEFAULT, HIGHEST] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %1 : tensor<4x4xf32>
  }
}
"""  # noqa: E501
    program = parse(text).program
    assert [program.detail[op] for op in program.ops()] == ["", "highest"]
