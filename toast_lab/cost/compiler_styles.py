"""What XLA's compilers for TPUs, GPUs and CPUs do to a program that prices depend on.

Read off what they make of the built-in models and of the corpus; ``price_rules`` says what each
field means for a price, and switches it off.
"""

from __future__ import annotations

from typing import NamedTuple


class CompilerStyle(NamedTuple):
    """What a compiler fuses, and what else it does to a program; each field is a rule's switch."""

    compiler: str = "cpu"  #: its name
    #: A soft value with several consumers may be computed in each
    recomputes: bool = False
    #: Soft values are computed on the way into a matrix product or convolution
    into_products: bool = False
    #: Ops behind a product are computed on the way out, see ``epilogues``
    out_of_products: bool = False
    #: Elementwise results may take over the memory of an operand that dies there
    reuses_places: bool = True
    #: Products that are summed over devices run after all others, if only results need them
    waits_with_sums: bool = False
    #: Products of matrices and vectors count as sums, not as products
    sums_vectors: bool = False
    #: Elementwise ops and sums that read the same values share a kernel
    several_results: bool = False
    #: ... which runs in place of the first of them; further operands of the others are computed
    #: before it, if they can be
    runs_with_first: bool = False
    #: A slice picked at run time, such as a layer's weights in a scan, is soft
    picks_slices: bool = False
    #: So are rows looked up in a table, for the only elementwise op that needs them. Sums take them
    #: in as well, but are as slow as if they were written: an H100 needs 2.4 times their traffic
    fuses_gathers: bool = False
    #: A scatter of one number a row into a constant is a comparison of indices, see ``_marks``
    compares_places: bool = False
    #: Values that are read at several offsets are written, see ``shifts``
    ends_at_shifts: bool = False
    #: So are their slices, if they are joined again, as values that are rolled are
    joins_written: bool = False
    #: Most numbers of a row that a kernel holds to go over them a second time, see
    #: ``fusion``; 0: none does
    held_row: int = 0
    #: What only products of one pass read is kept and sent in bfloat16, see ``bfloat16``
    narrows: bool = False
    #: Values that a loop reads in every round, or adds to, stay on the chip, see ``loop_residents``
    keeps_for_loops: bool = False
    #: A sum over devices of what a loop only adds up is made behind the loop, see ``loop_sums``
    sums_behind_loops: bool = False
    #: Operands that are gone over several times count as often, see ``gpu_passes``
    goes_over_again: bool = False
    #: A value that a loop updates in place is copied into it, see ``loop_copies``
    copies_into_loops: bool = False
    #: Products read and write their operands in either order, see ``read_as_is``
    reads_turned: bool = False
    #: Products and look-ups cast what they read, and equal casts are one, see ``read_as_is``
    reads_cast: bool = False
    #: Ragged products are products over all groups, masked, see ``ragged_products``
    masks_groups: bool = True
    #: Fourier transforms are products with matrices of roots, see ``matrix_tiles``
    transforms_by_products: bool = False


STYLES = {
    "tpu": CompilerStyle(
        compiler="tpu",
        recomputes=True,
        into_products=True,
        out_of_products=True,
        several_results=True,
        runs_with_first=True,
        picks_slices=True,
        compares_places=True,
        ends_at_shifts=True,
        joins_written=True,
        narrows=True,
        transforms_by_products=True,
        keeps_for_loops=True,
        sums_behind_loops=True,
    ),
    "gpu": CompilerStyle(
        compiler="gpu",
        recomputes=True,
        reuses_places=False,
        waits_with_sums=True,
        sums_vectors=True,
        several_results=True,
        fuses_gathers=True,
        ends_at_shifts=True,
        held_row=16384,
        sums_behind_loops=True,
        goes_over_again=True,
        copies_into_loops=True,
        reads_turned=True,
        reads_cast=True,
    ),
    "cpu": CompilerStyle(),
}
