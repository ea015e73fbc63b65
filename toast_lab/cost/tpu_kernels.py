"""Facts of ops, uses and values about what only a TPU's compiler does with kernels, by name.

``tpu_kernels`` computes them, ``other_kernels`` gives the neutral ones for all other compilers.
They were read off libtpu, see the modules that each comes from and docs/machines.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.collective_matmul import RingFacts, no_ring_facts, ring_facts
from toast_lab.cost.combined_sums import combined_sums, no_combined_sums
from toast_lab.cost.few_images import FewImages, few_images, no_few_images
from toast_lab.cost.fusion import Fusion
from toast_lab.cost.loop_casts import cast_rounds
from toast_lab.cost.matrix_tiles import (
    Products,
    VectorProducts,
    matrix_unit_flops,
    no_vector_products,
    vector_products,
)
from toast_lab.cost.row_layouts import (
    RowLayouts,
    SliceRows,
    no_rows,
    no_slice_rows,
    rows_of,
    slice_rows_of,
)
from toast_lab.cost.value_roots import Roots
from toast_lab.cost.vector_work import VectorWork, vector_work
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind, ops_where
from toast_lab.sharding.steps import Tables

Fields = dict[str, np.ndarray]


class KernelFacts(NamedTuple):
    """Fields of ``program_facts.OpFacts``, ``UseFacts`` and ``ValueFacts``, and two more arrays.

    The fields are described there.
    """

    op: Fields
    use: Fields
    value: Fields
    flops: np.ndarray  #: [O] FLOPs in the matrix unit, of one run of the op
    use_from: np.ndarray  #: [U] first op at which a copy brought to the use is in memory


def tpu_kernels(
    program: p.Program,
    tables: Tables,
    fusion: Fusion,
    roots: Roots,
    *,
    shapes: Products,
    kept_bytes: np.ndarray,
    reads_whole: np.ndarray,
) -> KernelFacts:
    """Compute what a TPU's compiler makes of the kernels of a program.

    Args:
        program: the program.
        tables: its tables.
        fusion: its kernels.
        roots: the values in whose memory its values are.
        shapes: sizes of its matrix products and convolutions.
        kept_bytes: [V] bytes of each value in memory.
        reads_whole: [U] how often a use reads memory, 0: it reads no more than the result has.
    """
    vectors = vector_products(program, shapes)
    unfused_numbers, unfused_bytes = _unfused(program, fusion, kept_bytes)
    inside = _inside(program, fusion, roots)
    return KernelFacts(
        op={
            **_named(
                rings=ring_facts(program, vectors, widths=fusion.reads, inside=inside),
                vectors=vectors,
                slices=slice_rows_of(program, starts=fusion.starts_kernel),
                work=vector_work(program, fusion, kept_bytes),
                images=few_images(program),
            ),
            "sums_together": combined_sums(program, tables),
            "sorted_operand": _sorted_operand(program),
            "narrow_bytes": _narrow_bytes(program, fusion, kept_bytes),
            "unfused_numbers": unfused_numbers,
            "unfused_bytes": unfused_bytes,
            "filled": _filled(program, fusion),
        },
        use={
            "broadcast_written": _spread(program, fusion, roots.root),
            "cast_rounds": cast_rounds(
                program,
                fusion.narrowed,
                root=roots.root,
                reads=reads_whole,
                written=fusion.written,
            ),
        },
        value=_row_fields(rows_of(program)),
        flops=(
            matrix_unit_flops(program) if fusion.style.transforms_by_products else program.flops
        ),
        use_from=(
            _brought_from(program, tables, fusion.product)
            if fusion.style.brings_beside_products
            else tables.use_op
        ),
    )


def other_kernels(program: p.Program, tables: Tables, work: VectorWork) -> KernelFacts:
    """The facts for a compiler that does none of this, but for vector work."""
    n_ops, n_uses = program.n_ops, program.n_uses
    return KernelFacts(
        op={
            **_named(
                rings=no_ring_facts(program),
                vectors=no_vector_products(program),
                slices=no_slice_rows(program),
                work=work,
                images=no_few_images(n_ops),
            ),
            "sums_together": no_combined_sums(n_ops),
            "sorted_operand": np.full(n_ops, -1, np.int32),
            "narrow_bytes": np.zeros(n_ops),
            "unfused_numbers": np.zeros(n_ops),
            "unfused_bytes": np.zeros(n_ops),
            "filled": np.zeros(n_ops, bool),
        },
        use={"broadcast_written": np.zeros(n_uses, bool), "cast_rounds": np.zeros(n_uses)},
        value=_row_fields(no_rows(program)),
        flops=program.flops,
        use_from=tables.use_op,
    )


def _named(
    *,
    rings: RingFacts,
    vectors: VectorProducts,
    slices: SliceRows,
    work: VectorWork,
    images: FewImages,
) -> Fields:
    """The columns under their names in ``OpFacts``."""
    return {
        **{f"ring_{name}": values for name, values in rings._asdict().items()},
        **{f"vector_{name}": values for name, values in vectors._asdict().items()},
        **{f"vector_{name}": values for name, values in work._asdict().items()},
        **images._asdict(),
        "slice_row_dim": slices.dim,
        "slice_rows": slices.size,
    }


def _row_fields(rows: RowLayouts) -> Fields:
    """The columns under their names in ``ValueFacts``."""
    return {"row_dim": rows.dim, "row_size": rows.size}


def _spread(program: p.Program, fusion: Fusion, root: np.ndarray) -> np.ndarray:
    """[U] bool: is a broadcast value read by an op that takes whole operands from memory?

    Elementwise ops, sums and products spread it on the way; a scatter or a sort does not.
    """
    whole = np.isin(program.op_class, (p.INDEXING, p.OTHER))
    whole &= ~ops_where(program.kind, "picks_slice") & ~ops_where(program.kind, "moves_elements")
    value = program.use_value
    return np.asarray(
        whole[np.repeat(np.arange(program.n_ops), np.diff(program.use_ptr))]
        & (fusion.elements[value] > fusion.elements[root[value]])
        & ~np.asarray(program.value_is_constant)[root[value]]
    )


def _inside(program: p.Program, fusion: Fusion, roots: Roots) -> np.ndarray:
    """[U] bool: does a product compute the operand on its way in, by more than a preparation?

    Results of free ops, such as broadcasts, do not count: read in parts, they take no memory.
    """
    root, free = roots.root, roots.free
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


def _unfused(
    program: p.Program, fusion: Fusion, kept_bytes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``OpFacts.unfused_numbers`` and ``unfused_bytes``, without ``narrow_bytes``."""
    numbers, traffic_bytes = np.zeros(program.n_ops), np.zeros(program.n_ops)
    for op in np.flatnonzero(fusion.is_sole_op).tolist():
        operands, results = program.operands(op), program.results(op)
        if program.op_class[op] == p.REDUCE:
            numbers[op] = fusion.elements[operands[0]]
            traffic_bytes[op] = kept_bytes[operands[0]]
        else:
            numbers[op] = fusion.elements[results[0]]
            # Of an operand that is sliced only the slice is read.
            read_bytes = sum(
                kept_bytes[value] * min(1.0, numbers[op] / max(1.0, fusion.elements[value]))
                for value in operands
            )
            traffic_bytes[op] = read_bytes + kept_bytes[results[0]]
    return numbers, traffic_bytes


def _filled(program: p.Program, fusion: Fusion) -> np.ndarray:
    """``OpFacts.filled``: ops that update a part of a constant, as gradients of gathers do.

    If there are more updates than elements to update, the constant is never written: the updates of
    each element are added up first (libtpu 0.0.42.1).
    """
    filled = np.zeros(program.n_ops, bool)
    for op in program.ops():
        update, operands = op_kind(program.kind[op]).update_operand, program.operands(op)
        if (
            update >= 0
            and not fusion.computable_in_parts[op]
            and program.value_is_constant[operands[0]]
        ):
            filled[op] = fusion.elements[operands[update]] < fusion.elements[operands[0]]
    return filled


def _sorted_operand(program: p.Program) -> np.ndarray:
    """``OpFacts.sorted_operand``: a TPU's compiler sorts a scatter's updates by their target."""
    positions = np.full(program.n_ops, -1, np.int32)
    for op in np.flatnonzero(ops_where(program.kind, "sorts_updates")).tolist():
        positions[op] = op_kind(program.kind[op]).update_operand
    return positions


def _narrow_bytes(program: p.Program, fusion: Fusion, kept_bytes: np.ndarray) -> np.ndarray:
    """[O] ``OpFacts.narrow_bytes``: 4 a number for heads of kernels that write no 4-byte type."""
    elements, soft_or_product = fusion.elements, fusion.product | fusion.computable_in_parts
    numbers, is_wide = np.zeros(program.n_ops), np.zeros(program.n_ops, bool)
    for op in program.ops():
        head = int(fusion.head[op])
        if fusion.starts_kernel[op]:
            if soft_or_product[op]:
                numbers[op] = elements[program.results(op)[0]]
            elif program.op_class[op] == p.REDUCE:
                numbers[op] = elements[program.operands(op)[0]]
        for value in program.results(op):
            if fusion.written[value] and soft_or_product[op]:
                is_wide[head] |= (
                    kept_bytes[value] >= 4.0 * elements[value] and elements[value] >= numbers[head]
                )
    return np.where(is_wide, 0.0, 4.0 * numbers)


def _brought_from(program: p.Program, tables: Tables, product: np.ndarray) -> np.ndarray:
    """[U] op beside which a collective for the use starts: the matrix product before the use.

    It starts later if its value is made, or its loop or branch begins, after that product.
    """
    previous = np.concatenate(
        [[0], np.maximum.accumulate(np.where(product, np.arange(program.n_ops), 0))[:-1]]
    )
    begin = np.zeros(program.n_ops, np.int64)
    for region in program.regions:  # those inside others come later
        begin[region.begin : region.end] = region.begin
    begin = np.maximum(begin, program.n_arguments)
    op = tables.use_op
    start = np.maximum(np.maximum(previous[op], program.value_op[tables.use_value]), begin[op])
    return np.minimum(start, op).astype(np.int32)
