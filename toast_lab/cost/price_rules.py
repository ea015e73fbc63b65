"""All rules of the price: what each says, where it is from, and what it is without it.

``toast-lab price --rules OP`` shows which of them act on an op, ``python -m evaluation ablation``
what each is good for. A rule stays if it lets prices choose better among plans of programs that it
was not read off, or if their peaks are nearer to the compiler's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from toast_lab.cost.collective_matmul import RING_PRODUCTS
from toast_lab.cost.combined_sums import COMBINED_SUMS
from toast_lab.cost.few_images import FEW_IMAGES
from toast_lab.cost.fused_program import FusedProgram
from toast_lab.cost.gathered_ahead import GATHERED_AHEAD
from toast_lab.cost.narrow_bytes import NARROW_BYTES
from toast_lab.cost.price_rule import COLUMNS, PriceRule
from toast_lab.cost.row_layouts import VALUE_ROWS
from toast_lab.cost.shifted_numbers import SHIFTED_NUMBERS
from toast_lab.cost.vector_products import VECTOR_PRODUCTS
from toast_lab.errors import InvalidProblem, did_you_mean

_TPU, _GPU = ("tpu",), ("gpu",)
_BOTH = ("tpu", "gpu")
_EVERY = ("tpu", "gpu", "cpu")
_V5E = "libtpu 0.0.42.1 for v5e"
_H100 = "jax-cuda12-pjrt 0.10.2 for H100"

RULES = (
    # -- computing ---------------------------------------------------------------------------------
    PriceRule(
        name="tile_rounding",
        family="computing",
        says="Local sizes of products, and of values in memory, are rounded up to whole tiles.",
        source="Norrie et al., IEEE Micro 41(2), 2021; layouts in libtpu's final programs",
        compilers=_TPU,
        off={"machine.tile": 0.0},
    ),
    VECTOR_PRODUCTS,
    FEW_IMAGES,
    PriceRule(
        name="features_apart",
        family="computing",
        says="Convolutions whose features do not mix are computed by the vector unit.",
        source=f"{_V5E}, windows of 4 to 49 places",
        compilers=_TPU,
        off={"op.vector_bytes": 0.0},
    ),
    NARROW_BYTES,
    SHIFTED_NUMBERS,
    PriceRule(
        name="memory_sustained",
        family="computing",
        says="Kernels that wait for memory reach a share of its rate.",
        source="libtpu 0.0.42, three products that wait for memory; measured on an H100",
        compilers=_BOTH,
        off={"machine.memory_sustained": 1.0},
    ),
    PriceRule(
        name="matrix_unit_flops",
        family="computing",
        says="Fourier transforms are products with matrices of roots.",
        source=f"{_V5E}, transforms of 128, 1024 and 4096 points",
        compilers=_TPU,
        off={"style.transforms_by_products": False},
    ),
    PriceRule(
        name="bfloat16",
        family="computing",
        says="What only products of one pass read is kept and sent in bfloat16.",
        source="libtpu's final programs of the built-in models",
        compilers=_TPU,
        off={"style.narrows": False},
    ),
    PriceRule(
        name="gpu_waves",
        family="computing",
        says="Tiles of a product run in waves, and the last wave takes as long as a full one.",
        source="NVIDIA, Matrix Multiplication Background; XLA's measured products of H100 and B200",
        compilers=_GPU,
        off={"machine.products": None},
    ),
    PriceRule(
        name="gpu_passes",
        family="computing",
        says="Sorts go over their numbers several times, and 16-bit sums of a scatter wait.",
        source="kernels of an H100",
        compilers=_GPU,
        off={"style.goes_over_again": False},
    ),
    PriceRule(
        name="ragged_products",
        family="computing",
        says="A ragged product is a masked product over all groups.",
        source=f"{_V5E} and {_H100}, 8 groups, forward and gradients",
        compilers=_EVERY,
        off={"style.masks_groups": False},
    ),
    # -- fusion ------------------------------------------------------------------------------------
    PriceRule(
        name="recomputes",
        family="fusion",
        says="A cheap value with several readers is computed in each of them.",
        source="final programs of the built-in models",
        compilers=_BOTH,
        off={"style.recomputes": False},
    ),
    PriceRule(
        name="into_products",
        family="fusion",
        says="Elementwise ops are computed on the way into a product or convolution.",
        source=f"{_V5E}, some 150 kernels",
        compilers=_TPU,
        off={"style.into_products": False},
    ),
    PriceRule(
        name="out_of_products",
        family="fusion",
        says="Ops that follow a product are computed in its kernel.",
        source=f"{_V5E}, some 150 kernels",
        compilers=_TPU,
        off={"style.out_of_products": False},
    ),
    PriceRule(
        name="several_results",
        family="fusion",
        says="Elementwise ops and sums that read the same values share a kernel.",
        source=f"{_V5E} and {_H100}",
        compilers=_BOTH,
        off={"style.several_results": False},
    ),
    PriceRule(
        name="runs_with_first",
        family="fusion",
        says="A kernel that ops share runs in place of the first of them.",
        source=_V5E,
        compilers=_TPU,
        off={"style.runs_with_first": False},
    ),
    PriceRule(
        name="picks_slices",
        family="fusion",
        says="A layer's weights that a scan picks are read by the product where they lie.",
        source="libtpu 0.0.42 for v5e, grouped decoding",
        compilers=_TPU,
        off={"style.picks_slices": False},
    ),
    PriceRule(
        name="compares_places",
        family="fusion",
        says="A scatter of one number a row into a constant is a comparison of indices.",
        source=_V5E,
        compilers=_TPU,
        off={"style.compares_places": False},
    ),
    PriceRule(
        name="ends_at_shifts",
        family="fusion",
        says="A value that is read at several offsets is written.",
        source=f"{_V5E} and {_H100}, stencils",
        compilers=_BOTH,
        off={"style.ends_at_shifts": False},
    ),
    PriceRule(
        name="joins_written",
        family="fusion",
        says="Slices that overlap and are joined again, as in a roll, are written.",
        source=f"{_V5E}, stencils",
        compilers=_TPU,
        off={"style.joins_written": False},
    ),
    PriceRule(
        name="sums_vectors",
        family="fusion",
        says="A product of a matrix and a vector is a sum, and no product.",
        source=f"{_H100}, llama_decode",
        compilers=_GPU,
        off={"style.sums_vectors": False},
    ),
    PriceRule(
        name="fuses_gathers",
        family="fusion",
        says="Rows that are looked up for one elementwise op are looked up in its kernel.",
        source=_H100,
        compilers=_GPU,
        off={"style.fuses_gathers": False},
    ),
    PriceRule(
        name="held_row",
        family="fusion",
        says="A row that a processor holds is read once for a sum and what spreads it again.",
        source="kernels of an H100",
        compilers=_GPU,
        off={"style.held_row": 0},
    ),
    PriceRule(
        name="reads_turned",
        family="fusion",
        says="A transpose next to a product costs nothing.",
        source=_H100,
        compilers=_GPU,
        off={"style.reads_turned": False},
    ),
    PriceRule(
        name="reads_cast",
        family="fusion",
        says="Products and look-ups cast what they read, and equal casts are one.",
        source=_H100,
        compilers=_GPU,
        off={"style.reads_cast": False},
    ),
    # -- layouts -----------------------------------------------------------------------------------
    VALUE_ROWS,
    PriceRule(
        name="transposed_copies",
        family="layouts",
        says="A copy that transposes in memory takes time for each number.",
        source="libtpu 0.0.42.1, copies of 16384 x 1024 and 16384 x 4096 numbers",
        compilers=_TPU,
        off={"machine.transposed_numbers_per_s": 0.0},
    ),
    PriceRule(
        name="cut_out",
        family="layouts",
        says="A part of a whole value is written to memory before a product reads it.",
        source="libtpu 0.0.42 for v5e, conjugate gradients",
        compilers=_EVERY,
        off={"use.cut_out": False},
    ),
    # -- loops -------------------------------------------------------------------------------------
    PriceRule(
        name="loop_residents",
        family="loops",
        says="Values that a loop reads in every round, or adds to, stay in vector memory.",
        source="libtpu 0.0.42 for v5e, recurrent steps and a solver",
        compilers=_TPU,
        off={"style.keeps_for_loops": False},
    ),
    PriceRule(
        name="loop_sums",
        family="loops",
        says="A sum over devices of what a loop only adds up is made once, behind the loop.",
        source="XLA's WhileLoopAllReduceCodeMotion",
        compilers=_BOTH,
        off={"style.sums_behind_loops": False},
    ),
    PriceRule(
        name="loop_copies",
        family="loops",
        says="A value that a loop hands on while it is still read is copied in every round.",
        source="XLA's CopyInsertion",
        compilers=_GPU,
        off={"style.copies_into_loops": False},
    ),
    # -- collectives -------------------------------------------------------------------------------
    RING_PRODUCTS,
    GATHERED_AHEAD,
    COMBINED_SUMS,
    # -- memory ------------------------------------------------------------------------------------
    PriceRule(
        name="vector_memory",
        family="memory",
        says="Small values that are needed soon stay in vector memory.",
        source="libtpu 0.0.42.1 for v5e, kernel results of four steps",
        compilers=_TPU,
        off={"machine.vector_memory_bytes": 0.0},
    ),
    PriceRule(
        name="reuses_places",
        family="memory",
        says="Only updates and casts take over the memory of an operand that dies there.",
        source=_H100,
        compilers=_GPU,
        off={"style.reuses_places": True},
    ),
    PriceRule(
        name="waits_with_sums",
        family="memory",
        says="Products that are summed over devices run last if only results need them.",
        source=f"{_H100}, XLA's latency hiding scheduler",
        compilers=_GPU,
        off={"style.waits_with_sums": False},
    ),
)

_BY_NAME = {rule.name: rule for rule in RULES}


def rules_named(names: Iterable[str]) -> tuple[PriceRule, ...]:
    """The rules of these names, in the order of ``RULES``.

    Raises:
        InvalidProblem: there is no such rule; the message lists every such name.
    """
    names = list(names)
    unknown = [name for name in names if name not in _BY_NAME]
    if unknown:
        texts = [f"{name!r}{did_you_mean(name, _BY_NAME)}" for name in unknown]
        raise InvalidProblem(
            f"no rule of the price is called {', '.join(texts)}; there are: {', '.join(_BY_NAME)}"
        )
    return tuple(rule for rule in RULES if rule.name in names)


def declared_columns(place: str) -> dict[str, Any]:
    """The neutral values of all columns that rules make, for "op", "use" or "value"."""
    columns: dict[str, Any] = {}
    for rule in RULES:
        if rule.columns is not None:
            columns |= rule.switches(place)
    return columns


def rule_columns(fused: FusedProgram) -> dict[str, dict[str, np.ndarray]]:
    """The columns that rules make, by name, for "op", "use" and "value".

    They are neutral if a rule does not act on what the program's compiler does.
    """
    program = fused.program
    lengths = {"op": program.n_ops, "use": program.n_uses, "value": program.n_values}
    columns: dict[str, dict[str, np.ndarray]] = {place: {} for place in COLUMNS}
    for rule in RULES:
        if rule.columns is None:
            continue
        acting = fused.compiler in rule.compilers
        values = rule.columns(fused) if acting else {}
        for place, length in lengths.items():
            for name, value in rule.switches(place).items():
                dtype = np.int32 if type(value) is int else type(value)
                neutral = np.full(length, value, dtype)
                columns[place][name] = values[f"{place}.{name}"] if acting else neutral
    return columns
