"""Products of a row or column with a matrix of its own, which a TPU's vector unit computes.

In a product of vectors, each with a matrix of its own, as of a decoding step with its cached keys,
no rows pass through an array of the matrix unit: the vector unit multiplies and sums.

Reference: none, TOAST section 4.5 counts FLOPs only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.fused_program import FusedProgram
from toast_lab.cost.matrix_tiles import SUBLANES, Products, have_one_row, sublane_padding
from toast_lab.cost.price_rule import Columns, PriceRule
from toast_lab.ir import program as p
from toast_lab.kernels import helper

#: Time for each number that a vector unit multiplies and adds, as bytes of memory traffic: 4 to 14
#: by libtpu 0.0.42 (12 shapes, and a decoding step), 71 to 200 numbers a cycle on v5e, 118 to 350
#: on v6e, fewest if the fusion holds more than the product.
VECTOR_BYTES = 6.5


class VectorProducts(NamedTuple):
    """Products of one row or column with each of many matrices."""

    use: np.ndarray  #: [O] int32 position of the operand that holds the matrices, -1: another op
    row_dim: np.ndarray  #: [O] int32 its last dim but one, which lies along the sublanes
    rows: np.ndarray  #: [O] float64 size of it


def _columns(fused: FusedProgram) -> Columns:
    vectors = vector_products(fused.program, fused.shapes)
    return {f"op.vector_{name}": values for name, values in vectors._asdict().items()}


def vector_products(program: p.Program, shapes: Products) -> VectorProducts:
    """Products that a TPU computes on its vector unit; ``shapes`` are those of ``products``."""
    op_count = program.n_ops
    vectors = VectorProducts(
        use=np.full(op_count, -1, np.int32),
        row_dim=np.zeros(op_count, np.int32),
        rows=np.full(op_count, SUBLANES),
    )
    several = (shapes.batch > 1.0) & (np.maximum(shapes.rows, shapes.columns) > 1.0)
    for op in np.flatnonzero(have_one_row(shapes) & several).tolist():
        use = 1 if shapes.rows[op] <= 1.0 else 0
        dims = program.dims(int(program.use_value[program.uses(op)[use]]))
        vectors.use[op] = use
        vectors.row_dim[op] = len(dims) - 2
        vectors.rows[op] = dims[-2]
    return vectors


@helper
def vector_traffic(numbers: float, rows: float) -> float:
    """Bytes of memory traffic that take as long as multiplying and adding so many numbers.

    ``rows``: local size of the dim that lies along the sublanes.
    """
    return numbers * sublane_padding(rows) * VECTOR_BYTES


VECTOR_PRODUCTS = PriceRule(
    name="vector_products",
    family="computing",
    says="A row times a matrix of its own, as in decoding, is computed by the vector unit.",
    source="libtpu 0.0.42 for v5e and v6e, 12 shapes and a decoding step",
    compilers=("tpu",),
    off={"op.vector_use": -1, "op.vector_row_dim": 0, "op.vector_rows": SUBLANES},
    columns=_columns,
)
