"""Products whose sums a TPU's compiler scatters piece by piece, as it computes them.

``docs/machines.md`` says when, what it costs and how well prices agree ("Sums that are scattered
piece by piece"). Read off some 130 products compiled one by one by libtpu 0.0.42.1, of 64 to
131,072 rows by matrices of 1,024 to 32,768 squared over groups of 2 to 32 devices: most of them for
v5e; when it does so, also for v4, v5p and v6e. v3 never does.

TOAST section 4.5 adds up the times of products and collectives.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.fused_program import FusedProgram
from toast_lab.cost.matrix_tiles import BATCH, CONTRACTED, FREE, dim_roles
from toast_lab.cost.price_rule import Columns, PriceRule
from toast_lab.cost.vector_products import VectorProducts, vector_products
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import ops_where
from toast_lab.kernels import helper
from toast_lab.packs import Float64Array, Int64Array
from toast_lab.sharding.step_kinds import REDUCE_SCATTER
from toast_lab.sharding.steps import Steps, layout_dim

#: Pieces in memory at once: two that are sent, two that are multiplied.
HELD_PIECES = 4.0


class RingFacts(NamedTuple):
    """Facts that decide whether a product's sums may be scattered piece by piece."""

    batch_dims: np.ndarray  #: [O] int32 leading dims of its result that both operands have ...
    left_dims: np.ndarray  #: [O] int32 ... and that the first one has, -1: another op
    numbers: np.ndarray  #: [O] float64 size of its result
    #: [O] float64 numbers of its first operand if that is transposed before a loop reads pieces of
    #: it, else 0
    turned: np.ndarray
    #: [O] float64 bytes of each operand over those of what it is cast from on the way in; 1: it is
    #: not cast there
    left_cast: np.ndarray
    right_cast: np.ndarray
    #: [O] bool: is each operand computed inside the product, by more than a cast?
    left_inside: np.ndarray
    right_inside: np.ndarray


def _columns(fused: FusedProgram) -> Columns:
    facts = _ring_facts(
        fused.program,
        vector_products(fused.program, fused.shapes),
        widths=fused.fusion.reads,
        inside=_inside(fused),
    )
    return {f"op.ring_{name}": values for name, values in facts._asdict().items()}


def _ring_facts(
    program: p.Program, vectors: VectorProducts, *, widths: np.ndarray, inside: np.ndarray
) -> RingFacts:
    """Read the facts off a program; products on the vector unit are not cut into pieces.

    Args:
        program: the program of the products.
        vectors: the products on the vector unit.
        widths: [U] bytes that are read for a use over those of the value.
        inside: [U] bool: is the operand computed in the kernel that uses it?
    """
    facts = RingFacts(
        batch_dims=np.zeros(program.n_ops, np.int32),
        left_dims=np.full(program.n_ops, -1, np.int32),
        numbers=np.zeros(program.n_ops),
        turned=np.zeros(program.n_ops),
        left_cast=np.ones(program.n_ops),
        right_cast=np.ones(program.n_ops),
        left_inside=np.zeros(program.n_ops, bool),
        right_inside=np.zeros(program.n_ops, bool),
    )
    for op in np.flatnonzero((program.op_class == p.DOT) & (vectors.use < 0)).tolist():
        if len(program.uses(op)) == 2 and len(program.results(op)) == 1:
            roles = dim_roles(program, op)[0]
            facts.batch_dims[op] = roles.count(BATCH)
            facts.left_dims[op] = len(roles) - roles.count(CONTRACTED)
            facts.numbers[op] = float(np.prod(program.dims(program.results(op)[0])))
            casts = [1.0 / widths[use] if widths[use] > 0.0 else 1.0 for use in program.uses(op)]
            facts.left_cast[op], facts.right_cast[op] = casts
            facts.left_inside[op], facts.right_inside[op] = inside[program.uses(op)]
            left = program.operands(op)[0]
            if roles and roles[-1] == FREE and not _is_product_for_it_alone(program, left):
                facts.turned[op] = float(np.prod(program.dims(left)))
    return facts


def _inside(fused: FusedProgram) -> np.ndarray:
    """[U] bool: does a product compute the operand on its way in, by more than a preparation?

    Results of free ops, such as broadcasts, do not count: read in parts, they take no memory.
    """
    program, fusion = fused.program, fused.fusion
    root, free = fused.root, fused.roots.free
    done_while_fetched = ops_where(program.kind, "done_while_fetched")

    def is_inside(value: int) -> bool:
        source = int(root[value])
        op = int(program.value_op[source])
        if op < program.n_arguments or fusion.written[source] or free[op]:
            return False
        return not done_while_fetched[op] or is_inside(int(program.operands(op)[0]))

    inside = np.zeros(program.n_uses, bool)
    for op in np.flatnonzero(fusion.product).tolist():
        for use in program.uses(op):
            inside[use] = is_inside(int(program.use_value[use]))
    return inside


def _is_product_for_it_alone(program: p.Program, value: int) -> bool:
    """Is a value the result of a product that may write it in the order of its only reader?"""
    op = int(program.value_op[value])
    return (
        op >= 0
        and program.op_class[op] == p.DOT
        and int((program.use_value == value).sum()) == 1
        and value not in program.outputs
    )


RING_PRODUCTS = PriceRule(
    name="ring_products",
    family="collectives",
    says="Sums of a product are scattered piece by piece while it is computed.",
    source="libtpu 0.0.42.1, some 130 products over groups of 2 to 32 devices",
    compilers=("tpu",),
    off={
        "machine.collective_matmul": 0.0,
        "op.ring_batch_dims": 0,
        "op.ring_left_dims": -1,
        "op.ring_numbers": 0.0,
        "op.ring_turned": 0.0,
        "op.ring_left_cast": 1.0,
        "op.ring_right_cast": 1.0,
        "op.ring_left_inside": False,
        "op.ring_right_inside": False,
    },
    columns=_columns,
)


@helper
def ring_size(axes: int, axis_size: Int64Array) -> float:
    """Number of devices of a group over a mask of axes."""
    devices = 1.0
    for axis in range(axis_size.shape[0]):
        if (axes >> axis) & 1:
            devices *= axis_size[axis]
    return devices


@helper
def only_dim(layout: int, axes: int, axis_size: Int64Array) -> int:
    """The dim that all of ``axes`` cut and no other axis does; -1 if there is none."""
    chosen = -1
    for axis in range(axis_size.shape[0]):
        if (axes >> axis) & 1:
            dim = layout_dim(layout, axis)
            if dim < 0 or (chosen >= 0 and dim != chosen):
                return -1
            chosen = dim
    for axis in range(axis_size.shape[0]):
        if not (axes >> axis) & 1 and layout_dim(layout, axis) == chosen:
            return -1
    return chosen


@helper
def scattering_row(steps: Steps, row: int, n_steps: int, axis_size: Int64Array) -> int:
    """Row of the step that scatters a product's sums as they are computed, -1: there is none.

    The only step on the result has to be one ``reduce_scatter`` along one dim that no other axis
    cuts, and every device has to have its own part of the multiplying.
    """
    following = row + 1
    op = steps.op[row]
    if following >= n_steps or steps.op[following] != op or steps.use[following] >= 0:
        return -1
    if steps.kind[following] != REDUCE_SCATTER:
        return -1
    if following + 1 < n_steps and steps.op[following + 1] == op and steps.use[following + 1] < 0:
        return -1
    for axis in range(axis_size.shape[0]):
        if axis_size[axis] > 1 and not (steps.axes[row] >> axis) & 1:
            return -1
    if only_dim(steps.after[following], steps.axes[following], axis_size) < 0:
        return -1
    return following


@helper
def adding_bytes(numbers: float, number_bytes: float, pieces: float, near_bytes: float) -> float:
    """Bytes of memory traffic that take as long as the kernels that add sums.

    Args:
        numbers: how many numbers a device's result has before it is scattered.
        number_bytes: bytes of each of them.
        pieces: number of pieces into which it is cut.
        near_bytes: largest value in vector memory.
    """
    pairs, piece_numbers = 0.5 * pieces, numbers / pieces
    far = written_far_bytes(piece_numbers, number_bytes, near_bytes)
    # Two sums at a time are added to what came in, and those of both directions at the end.
    size = (
        (pairs + 1.0)
        * piece_numbers
        * (4.0 * number_bytes + waited_bytes(number_bytes) + 2.0 * far)
    )
    if is_looped(pieces):  # a loop has to select whether this is its first round
        size += pairs * piece_numbers * (number_bytes + waited_bytes(number_bytes) + far)
    return size


@helper
def cast_first(
    far: float, near: float, cast: float, near_bytes: float
) -> tuple[float, float, float]:
    """Bytes of casting an operand in front of the pieces, and those that the pieces read of it.

    The pieces of an operand that is cast on the way in are cut out of the result of the cast.

    Args:
        far: bytes of what it is cast from, in memory.
        near: the same in vector memory.
        cast: bytes of the operand over those, 1: it is not cast.
        near_bytes: largest value in vector memory.

    Returns:
        Bytes of traffic that take as long as the cast, then the bytes of the operand in memory and
        in vector memory.
    """
    if cast == 1.0 or far <= 0.0:
        return 0.0, far, near
    operand_bytes = far * cast
    size = far
    if cast < 1.0:  # it writes nothing of four bytes
        size += 2.0 * operand_bytes
    if operand_bytes <= near_bytes:
        return size, 0.0, near + operand_bytes
    return size + operand_bytes, operand_bytes, near


@helper
def computed_first(
    far: float, near: float, own: float, number_bytes: float, near_bytes: float
) -> tuple[float, float, float]:
    """``cast_first`` for an operand that the product would have computed on its way in.

    It is written before the pieces.

    Args:
        far: bytes that the product itself reads for it, in memory.
        near: the same in vector memory.
        own: bytes of the operand.
        number_bytes: bytes of each of its numbers.
        near_bytes: largest value in vector memory.

    Returns:
        As ``cast_first``.
    """
    waited = own / number_bytes * waited_bytes(number_bytes)
    if own <= near_bytes:
        return waited + far, 0.0, near + own
    return waited + far + own, own, near


@helper
def cut_bytes(own: float, number_bytes: float, outer: float) -> float:
    """Bytes of traffic for cutting pieces out of an operand whose pieces are not contiguous.

    Of two unrolled pairs one is cut out first; the other one, and the pairs of a loop, are read in
    place. By libtpu 0.0.42.1 for v5e, eleven products in float32 and bfloat16.

    Args:
        own: bytes of the operand.
        number_bytes: bytes of each of its numbers.
        outer: rows on a device of the dims before the one that is cut.
    """
    if outer < 2.0:
        return 0.0
    return 0.5 * (2.0 * own + 0.5 * own / number_bytes * waited_bytes(number_bytes))


@helper
def kernels_of(pieces: float) -> float:
    """Number of kernels beside those that multiply."""
    return (1.5 if is_looped(pieces) else 1.0) * 0.5 * pieces + 1.0


@helper
def is_looped(pieces: float) -> bool:
    """Are the pieces computed in a loop? Two pairs are unrolled."""
    return pieces > 4.0


@helper
def written_far_bytes(part: float, number_bytes: float, near_bytes: float) -> float:
    """Bytes a number that two pieces of ``part`` numbers write to memory, not vector memory."""
    return number_bytes if 2.0 * part * number_bytes > near_bytes else 0.0


@helper
def waited_bytes(number_bytes: float) -> float:
    """Bytes a number that a kernel waits for, in addition, if it writes no 4-byte type."""
    return 4.0 if number_bytes < 4.0 else 0.0


@helper
def passed_on_s(
    piece_bytes: float, axes: int, ring_bytes_per_s: float, hop_s: Float64Array
) -> float:
    """Seconds in which every device passes on a piece, both ways at once.

    ``hop_s`` [A] is the latency along the whole of each axis, since the last device of a line sends
    to the first.
    """
    latency_s = 0.0
    for axis in range(hop_s.shape[0]):
        if (axes >> axis) & 1:
            latency_s += hop_s[axis]
    return latency_s + piece_bytes / ring_bytes_per_s
