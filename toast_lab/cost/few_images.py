"""Convolutions of fewer images than a tile of a TPU has rows.

``docs/machines.md`` says what libtpu does with them and how well that is met ("Convolutions").
Strips overlap by a window, which is convolved twice (``OVERLAP_FACTOR``). Transposing copies move
each number twice if the convolved value comes from a normalisation, since sums over strips are sums
over parts, and about once if a chain of convolutions keeps the strips or the window is a single
place.

Reference: none, the paper counts FLOPs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.fused_program import FusedProgram
from toast_lab.cost.price_rule import Columns, PriceRule
from toast_lab.ir import program as p
from toast_lab.kernels import helper

FEW_IMAGES_LIMIT = 8.0  # images: the rows of a tile
OVERLAP_FACTOR = 1.25  #: factor on the time of a convolution, since strips overlap
_NORMALIZED, _CHAINED = 2.0, 0.8  # copies of each number
_SHORTEST = 16  # shortest side of an image that is cut into strips
_FAR = 40  # most ops of a normalisation


class FewImages(NamedTuple):
    """Facts of convolutions in which features mix; 0 for all other ops."""

    #: [O] float64 images, the first dim of the first operand, also where they are summed over
    image_count: np.ndarray
    #: [O] float64 numbers that are copied if these are few: of the first operand ...
    relaid_left: np.ndarray
    relaid_right: np.ndarray  #: [O] ... of the second one, in gradients of kernels ...
    relaid_result: np.ndarray  #: [O] ... and of the result


def _columns(fused: FusedProgram) -> Columns:
    return {f"op.{name}": values for name, values in few_images(fused.program)._asdict().items()}


def few_images(program: p.Program) -> FewImages:
    """Find what is copied of few images, if there are few, by convolution."""
    few = FewImages(*(np.zeros(program.n_ops) for _ in FewImages._fields))
    for op in np.flatnonzero(program.op_class == p.CONVOLUTION).tolist():
        if len(program.uses(op)) != 2 or len(program.results(op)) != 1:
            continue
        left, right = (list(program.use_names(use)) for use in program.uses(op))
        (result,) = program.results(op)
        written = list(program.def_names(result))
        if set(left) & set(right) & set(written):
            continue  # If features do not mix, the vector unit computes it.
        images = left[0]
        makes_kernel = images in right
        image, other = program.operands(op)
        kernel, names = (result, written) if makes_kernel else (other, right)
        in_images = {*left, *(right if makes_kernel else written)}
        is_single_place = all(
            size == 1
            for name, size in zip(names, program.dims(kernel), strict=True)
            if name not in in_images
        )
        met = set(left) & set(right)
        side_names = (met if makes_kernel else set(left) - met) - {images}
        sides = dict(zip(left, program.dims(image), strict=True))
        if max((sides[name] for name in side_names), default=1) < _SHORTEST:
            continue
        is_normalized = not is_single_place and _comes_of_sums(program, image)
        copies = _NORMALIZED if is_normalized else _CHAINED
        few.image_count[op] = program.factor_size[images]
        few.relaid_left[op] = copies * _numbers(program, image)
        if makes_kernel:
            few.relaid_right[op] = copies * _numbers(program, other)
        else:
            few.relaid_result[op] = copies * _numbers(program, result)
    return few


def _numbers(program: p.Program, value: int) -> float:
    return float(np.prod(program.dims(value)))


def _comes_of_sums(program: p.Program, value: int) -> bool:
    """Is a value computed element by element with the help of sums, as in a normalisation?"""
    pending, seen = [value], set[int]()
    while pending and len(seen) < _FAR:
        value = pending.pop()
        op = int(program.value_op[value])
        if value in seen or program.op_class[op] == p.ARGUMENT:
            continue
        seen.add(value)
        if program.op_class[op] == p.REDUCE:
            return True
        if program.op_class[op] in (p.ELEMENTWISE, p.VIEW):
            pending += program.operands(op)
    return False


@helper
def are_few(images: float) -> bool:
    """Are this many images on a device cut into strips?"""
    return 0.0 < images < FEW_IMAGES_LIMIT


FEW_IMAGES = PriceRule(
    name="few_images",
    family="computing",
    says="Convolutions of fewer than eight images are cut into strips, which are copied.",
    source="libtpu 0.0.42.1 for v5e, residual blocks and chains of 1 to 32 images",
    compilers=("tpu",),
    off={f"op.{name}": 0.0 for name in FewImages._fields},
    columns=_columns,
)
