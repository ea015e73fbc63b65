"""The share of the matrix units that a product keeps busy once it is cut.

Local sizes are rounded up to tiles.

**TPUs** (``busy``). A systolic array of ``t`` by ``t`` cells holds a tile of one operand, ``t`` of
the contracted dim by ``t`` of a free dim, while rows of the other pass through eight at a time. A
shard of 32 columns keeps a quarter of 128 busy: cutting further then buys no time. Convolutions
(``weights_busy``, ``JOINED_SHARE``, ``vector_bytes``) are explained in ``docs/machines.md``.

**GPUs** (``waves_busy``). ``docs/machines.md`` explains waves of tiles ("Products of GPUs"). Tiles
of 128 by 64 come closest to XLA's measured products; sides shorter than a tile are rounded up to
16, as the tensor cores' instructions are. Libraries split deep sums (split-K); we assume chunks of
2048. Writing the result comes on top, since it begins when the multiplying ends
(``computing_prices``).

Source: Norrie et al., The Design Process for Google's Training Chips: TPUv2 and TPUv3, IEEE Micro
41(2), 2021 (arrays of 128 by 128, eight sublanes). Which operand stays is the compiler's choice; we
assume the better one. NVIDIA, Matrix Multiplication Background User's Guide, 2023 (tile and wave
quantisation; Hopper's and Ampere's tiles). Reference: TOAST section 4.5 counts FLOPs only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from toast_lab.ir import program as p
from toast_lab.kernels import compiled, helper

BATCH, FREE, CONTRACTED = range(3)
ROLE_BITS = 2
SUBLANES = 8.0  # rows of a tile of a TPU
LANES = 128.0  # numbers in each of these rows
FOURIER_POINTS = 128.0  # points of one stage of a Fourier transform on a TPU
FULL_PRECISION_PASSES = 6.0
#: Features of a convolution are joined with their neighbours' up to this many ...
JOINED_FEATURES = 128.0
#: ... and then reach this share of what as many features would. By libtpu 0.0.42.1 for v5e, ten
#: convolutions of 3 to 32 features: 0.28 to 0.84, median 0.59.
JOINED_SHARE = 0.6
#: Side of the windows in which a product computes its result if its operands are too large for
#: vector memory; it fetches the parts that it needs anew for each window. And the shares of that
#: traffic for which it waits, with more than two bytes a number and with two or less. By libtpu
#: 0.0.42.1 for v5e, v5p and v6e, 32 products of 104 MiB to 1 GiB an operand: within 12%.
WINDOW = 1024.0
WAITED_WIDE = 0.77
WAITED_NARROW = 0.34
#: The vector unit does a convolution whose features do not mix. In bytes of memory traffic, each
#: number of its result takes this ...
BYTES_APART = 7.5
#: ... and this for each place of the window. By libtpu 0.0.42.1 for v5e, windows of 4 to 49 places
#: ...
BYTES_APART_OF_TAP = 0.67
#: ... and the gradient of its kernel this for each number that it sums.
BYTES_SUMMED_APART = 5.0
GPU_TILE = (128.0, 64.0)
GPU_INSTRUCTION = 16.0
GPU_DEPTH = 2048.0


class Products(NamedTuple):
    """Sizes of the products of a program; 1 and 0 for all other ops."""

    rows: np.ndarray  #: [O] float64 product of the free dims of the first operand
    columns: np.ndarray  #: [O] float64 product of the free dims of the second operand
    depth: np.ndarray  #: [O] float64 product of the contracted dims
    batch: np.ndarray  #: [O] float64 product of the batch dims
    left: np.ndarray  #: [O] int64 role of each dim of the first operand, ROLE_BITS bits each
    right: np.ndarray  #: [O] int64 the same of the second operand
    #: [O] float64 bytes of traffic that take as long as the vector unit does for a convolution
    #: whose features do not mix; 0 for all other ops
    vector_bytes: np.ndarray


def products(program: p.Program) -> Products:
    """Read the sizes off the factors of each dot_general and each convolution.

    A convolution that sums no features, each being a group of its own, has only the size ``batch``,
    its number of features: the others are 0, which counts as keeping any array busy.
    """
    op_count = program.n_ops
    shapes = Products(
        rows=np.ones(op_count),
        columns=np.ones(op_count),
        depth=np.ones(op_count),
        batch=np.ones(op_count),
        left=np.zeros(op_count, np.int64),
        right=np.zeros(op_count, np.int64),
        vector_bytes=np.zeros(op_count),
    )
    for op in np.flatnonzero(program.op_class == p.DOT).tolist():
        if len(program.uses(op)) != 2 or len(program.results(op)) != 1:
            continue
        left, right = program.uses(op)
        left_roles, right_roles = dim_roles(program, op)
        for use, roles, sizes, packed in (
            (left, left_roles, shapes.rows, shapes.left),
            (right, right_roles, shapes.columns, shapes.right),
        ):
            for dim, (name, role) in enumerate(zip(program.use_names(use), roles, strict=True)):
                size = float(program.factor_size[name])
                packed[op] |= role << (ROLE_BITS * dim)
                if role == FREE:
                    sizes[op] *= size
                elif use == left:
                    (shapes.depth if role == CONTRACTED else shapes.batch)[op] *= size
    for op in np.flatnonzero(program.op_class == p.CONVOLUTION).tolist():
        _add_convolution(program, op, shapes)
    return shapes


def _add_convolution(program: p.Program, op: int, shapes: Products) -> None:
    """Fill in the sizes of one convolution."""
    shapes.rows[op] = shapes.columns[op] = shapes.depth[op] = 0.0
    if len(program.uses(op)) != 2 or len(program.results(op)) != 1:
        return
    left, right = (list(program.use_names(use)) for use in program.uses(op))
    written = set(program.def_names(program.results(op)[0]))
    summed = set(left) & set(right) - written
    apart = set(left) & set(right) & written  # features that do not mix

    def numbers_of(names: Iterable[int]) -> float:
        return float(np.prod([program.factor_size[name] for name in names]))

    for names, packed in ((left, shapes.left), (right, shapes.right)):
        for dim, name in enumerate(names):
            role = BATCH if name in apart else FREE if name in written else CONTRACTED
            packed[op] |= role << (ROLE_BITS * dim)
    rows = numbers_of(name for name in left if name in written and name not in right)
    columns = numbers_of(name for name in right if name in written and name not in left)
    if apart and (not summed or rows == columns == 1.0):
        depth, columns = _features_of_group(program, op, apart)
        if depth > 1.0 and columns > 1.0:
            # A product for each group, which fills as much of the matrix unit as it has features.
            shapes.rows[op], shapes.columns[op], shapes.depth[op] = rows, columns, depth
            return
        value = program.operands(op)[0] if summed else program.results(op)[0]
        numbers = float(np.prod(program.dims(value)))
        taps = 0.5 * float(program.flops[op]) / max(1.0, numbers)
        bytes_per_number = BYTES_SUMMED_APART if summed else BYTES_APART + taps * BYTES_APART_OF_TAP
        shapes.vector_bytes[op], shapes.batch[op] = numbers * bytes_per_number, numbers_of(apart)
        return
    if not summed:
        return
    depth = numbers_of(summed)
    kernel_dims = program.dims(int(program.use_value[program.uses(op)[1]]))
    window = max(
        (
            size
            for name, size in zip(right, kernel_dims, strict=True)
            if name not in summed and name not in written
        ),
        default=1,
    )
    if min(columns, depth) * window <= JOINED_FEATURES:
        joined = max(1.0, JOINED_SHARE * window)
        columns, depth = (columns * joined, depth) if columns < depth else (columns, depth * joined)
    shapes.rows[op], shapes.columns[op], shapes.depth[op] = rows, columns, depth


def _features_of_group(program: p.Program, op: int, apart: set[int]) -> list[float]:
    """Number of features of each operand of a convolution in one of its groups.

    ``apart`` are the names of the groups. The size of a dim with such a name is the number of
    groups times the features of a group.
    """
    return [
        float(
            np.prod(
                [
                    size / program.factor_size[name]
                    for name, size in zip(program.use_names(use), program.dims(value), strict=True)
                    if name in apart
                ]
            )
        )
        for use, value in zip(program.uses(op), program.operands(op), strict=True)
    ]


def dim_roles(program: p.Program, op: int) -> list[list[int]]:
    """For each operand of a product, the role of each of its dims."""
    names = [program.use_names(use) for use in program.uses(op)]
    result = set(program.def_names(program.results(op)[0]))
    roles = []
    for position, dim_names in enumerate(names):
        others = {name for other in names[:position] + names[position + 1 :] for name in other}
        roles.append(
            [
                FREE if name not in others else BATCH if name in result else CONTRACTED
                for name in dim_names
            ]
        )
    return roles


def have_one_row(shapes: Products) -> np.ndarray:
    """[O] bool: products of which an operand has no rows of its own, or a single one."""
    return np.asarray(np.minimum(shapes.rows, shapes.columns) <= 1.0)


def matrix_unit_flops(program: p.Program) -> np.ndarray:
    """[O] FLOPs of each op as a TPU does them: its Fourier transforms are products.

    Each stage multiplies groups of ``FOURIER_POINTS`` complex numbers with a matrix, in six passes
    of bfloat16 that make up full precision; longer transforms take as many stages as they need, in
    which some of the groups are padded.

    Source: libtpu 0.0.42.1 for v5e, estimated cycles of transforms of 128, 1024 and 4096 points:
    1.1, 3.6 and 4.1 times the time in which their data passes through memory.
    """
    flops = program.flops.copy()
    for op in program.ops():
        if program.kind[op] == "fft":
            values = [*program.operands(op), *program.results(op)]
            elements = max(float(np.prod(program.dims(value))) for value in values)
            doublings = flops[op] / (5.0 * elements) if elements else 0.0
            stages = np.ceil(doublings / np.log2(FOURIER_POINTS))
            flops[op] = stages * elements * FOURIER_POINTS * 8.0 * FULL_PRECISION_PASSES
    return flops


@compiled
def busy(rows: float, columns: float, depth: float, tile: float) -> float:
    """Share of the matrix unit that works, for local sizes; 1 where ``tile`` is 0."""
    if tile <= 0.0:
        return 1.0
    rows_pass = _filled(rows, SUBLANES) * _filled(columns, tile)
    columns_pass = _filled(columns, SUBLANES) * _filled(rows, tile)
    return max(rows_pass, columns_pass) * _filled(depth, tile)


@compiled
def weights_busy(columns: float, depth: float, tile: float) -> float:
    """Share of the matrix unit that works while a kernel's features stay in it."""
    return 1.0 if tile <= 0.0 else _filled(columns, tile) * _filled(depth, tile)


@compiled
def windowed_bytes(
    left: float, right: float, rows: float, columns: float, depth: float, batch: float
) -> float:
    """Traffic that a TPU's product waits for if neither operand fits into vector memory.

    Args:
        left: bytes of its left operand.
        right: bytes of its right operand.
        rows: rows of the left operand.
        columns: columns of the right operand.
        depth: size of the contracted dims.
        batch: number of matrices in each operand.
    """
    tall = np.ceil(rows / WINDOW)
    wide = np.ceil(columns / WINDOW)
    left_width = left / (rows * depth * batch)
    right_width = right / (columns * depth * batch)
    waited = left * wide * (WAITED_WIDE if left_width > 2.0 else WAITED_NARROW)
    return waited + right * tall * (WAITED_WIDE if right_width > 2.0 else WAITED_NARROW)


@helper
def lane_padding(features: float, tile: float) -> float:
    """Factor by which a vector unit works on fewer numbers at once than it could."""
    return 1.0 / _filled(features, tile)


@compiled
def waves_busy(
    rows: float, columns: float, depth: float, batch: float, multiprocessors: float
) -> float:
    """Share of a GPU's multiprocessors that works, for local sizes."""
    if rows * columns * depth * batch <= 0.0:
        return 1.0
    chunks = np.ceil(depth / GPU_DEPTH)
    share = 0.0
    for tall in range(2):
        height = min(GPU_TILE[1 - tall], np.ceil(rows / GPU_INSTRUCTION) * GPU_INSTRUCTION)
        width = min(GPU_TILE[tall], np.ceil(columns / GPU_INSTRUCTION) * GPU_INSTRUCTION)
        units = np.ceil(rows / height) * np.ceil(columns / width) * np.ceil(batch) * chunks
        waves = np.ceil(units / multiprocessors)
        worked = waves * multiprocessors * height * width / chunks
        share = max(share, rows * columns * batch / worked)
    return share


@helper
def sublane_padding(rows: float) -> float:
    """Factor by which a vector unit works on fewer numbers at once than it could."""
    return 1.0 / _filled(rows, SUBLANES)


@helper
def _filled(size: float, tile: float) -> float:
    return size / (np.ceil(size / tile) * tile) if size > 0.0 else 1.0
