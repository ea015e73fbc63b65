"""Along which factor each op is split, where only the shardings of values are known.

Propagation says how every value is sharded; a plan also says along which factor every op is split.
On each mesh axis an op is split

* along a factor that it sums over, if the axis cuts that dim of all its operands: each device sums
  a part, and the parts are added, or scattered to the dim that the axis cuts of the result;
* along the dim in which a gather looks things up, if the axis cuts it and would otherwise cut a
  dim that the gather has in common with what it looks up from: each device looks up what it has
  (``take_along_axis`` from logits whose vocabulary is cut). From a table that has no such dim XLA
  looks up what each device needs, and gathers the table for it;
* else along the factor of the dim that the axis cuts of its results: it is computed as it is kept;
* else along a factor that it sums over, if the axis cuts that dim of one operand and nothing else;
* else not at all: operands that are cut are gathered for it.

XLA compares how many parts a dim has in two tensors, not along which axes. So a product does not

* sum along a dim that one operand has in more parts than the other, apart from axes that it is
  split along otherwise: operands are gathered whole, and it is computed as it is kept. If the other
  operand has the dim whole, and another axis splits the product, it sums all the same;
* follow an axis of a dim that the result has in more parts than the operand because the axis of the
  sum cuts it as well, if that is the major axis there, or if the other operand is cut along the
  axis, too: each part of the sum is computed whole along it.

``tests/sharding/test_split_ops.py`` compares this with compiled products. Partitioners decide alike
in nearly all ops; where XLA does not, the comparison with the compiled program (``runtime.diff``)
shows it. Start reading at ``OpSplits``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.ir.program import PASS, REDUCTION, Program
from toast_lab.kernels import compiled, helper
from toast_lab.packs import (
    BoolArray,
    Int8Matrix,
    Int32Array,
    Int32Matrix,
    packed,
)
from toast_lab.sharding.touches import Touches, touches_of


@packed
class SplitFacts(NamedTuple):
    """Where values meet ops, and what decides along which factor each op is split."""

    touches: Touches
    factor_class: Int32Array  #: [F]
    can_split: BoolArray  #: [F] the factor can be sharded and is longer than 1
    #: [F] a factor of a gather that is a dim of what it looks up from as well as of its result
    is_shared: BoolArray


class OpSplits:
    """Splits the ops of one program."""

    def __init__(self, program: Program, shardable: np.ndarray) -> None:
        self.facts = SplitFacts(
            touches=touches_of(program),
            factor_class=program.factor_class.astype(np.int32),
            can_split=np.asarray(shardable & (program.factor_size > 1), np.bool_),
            is_shared=_shared_factors(program),
        )

    def split(
        self, computed: np.ndarray, read: np.ndarray, axis_sizes: np.ndarray, op_factor: np.ndarray
    ) -> None:
        """Write the factor of each op on each axis into ``op_factor``.

        Args:
            computed: [V, A] int8 dim of each value that each axis cuts where its op leaves it.
            read: [V, A] the same where ops read it.
            axis_sizes: [A] int64.
            op_factor: [O, A] int32, all -1.
        """
        axes = np.flatnonzero(np.asarray(axis_sizes) > 1).astype(np.int32)
        split_ops(self.facts, computed, read, axes=axes, op_factor=op_factor)


@compiled
def split_ops(
    facts: SplitFacts,
    computed: Int8Matrix,
    read: Int8Matrix,
    axes: Int32Array,
    op_factor: Int32Matrix,
) -> None:
    """The kernel of ``OpSplits.split``, on those axes."""
    for op in range(facts.touches.ptr.shape[0] - 1):
        for axis in axes:
            factor = _factor(facts, op, axis, computed, read)
            if factor >= 0 and facts.can_split[factor]:
                op_factor[op, axis] = factor
        kept_axes = 0
        for axis in axes:
            factor = op_factor[op, axis]
            if factor >= 0 and facts.factor_class[factor] == PASS:
                kept_axes |= 1 << axis
        for axis in axes:
            factor = op_factor[op, axis]
            if factor >= 0 and facts.factor_class[factor] == REDUCTION:
                more, less = _cutting_axes(facts, op, factor, read)
                if (more ^ less) & ~kept_axes and (less or not kept_axes):
                    op_factor[op, axis] = -1
        for axis in axes:
            factor = op_factor[op, axis]
            if factor >= 0 and facts.factor_class[factor] == PASS:
                for summed in axes:
                    if (
                        summed != axis
                        and op_factor[op, summed] >= 0
                        and facts.factor_class[op_factor[op, summed]] == REDUCTION
                        and _is_in_more_parts(facts, op, factor, axis, summed, computed, read)
                    ):
                        op_factor[op, axis] = -1


@helper
def _factor(facts: SplitFacts, op: int, axis: int, computed: np.ndarray, read: np.ndarray) -> int:
    """The factor along which an op is split on one axis; -1: none."""
    touches = facts.touches
    first, others, times, kept, looked_up = -1, False, 0, -1, -1
    for row in range(touches.ptr[op], touches.ptr[op + 1]):
        touch = touches.touch[row]
        value = touches.value[touch]
        if touch < touches.n_uses:
            dim = read[value, axis]
            if dim >= 0:
                factor = touches.dim_factor[touches.dim_ptr[touch] + dim]
                if first < 0:
                    first = factor
                times += 1
                others |= factor != first
                if row == touches.ptr[op]:
                    looked_up = factor
        else:
            dim = computed[value, axis]
            if dim >= 0:
                factor = touches.dim_factor[touches.dim_ptr[touch] + dim]
                if facts.factor_class[factor] == PASS and (kept < 0 or factor < kept):
                    kept = factor
    sums = first >= 0 and not others and facts.factor_class[first] == REDUCTION
    if sums and times > 1:
        more, less = _cutting_axes(facts, op, first, read)
        if kept < 0 or more == less:
            return first
    if kept >= 0:
        if facts.is_shared[kept] and looked_up >= 0 and facts.factor_class[looked_up] == REDUCTION:
            return looked_up
        return kept
    return first if sums else -1


@helper
def _cutting_axes(facts: SplitFacts, op: int, factor: int, read: np.ndarray) -> tuple[int, int]:
    """Bits of the axes that cut a factor in any operand that has it, and in all of them."""
    touches = facts.touches
    any_operand, all_operands = 0, -1
    for row in range(touches.ptr[op], touches.ptr[op + 1]):
        touch = touches.touch[row]
        if touch < touches.n_uses:
            for place in range(touches.dim_ptr[touch], touches.dim_ptr[touch + 1]):
                if touches.dim_factor[place] == factor:
                    dim, cutting = place - touches.dim_ptr[touch], 0
                    for axis in range(read.shape[1]):
                        if read[touches.value[touch], axis] == dim:
                            cutting |= 1 << axis
                    any_operand |= cutting
                    all_operands &= cutting
    return any_operand, all_operands


@helper
def _is_in_more_parts(
    facts: SplitFacts,
    op: int,
    factor: int,
    axis: int,
    summed: int,
    computed: np.ndarray,
    read: np.ndarray,
) -> bool:
    """Does the axis of a sum cut a factor of the result, so that XLA leaves another axis of it?"""
    touches = facts.touches
    cut, competes = False, False
    for row in range(touches.ptr[op], touches.ptr[op + 1]):
        touch = touches.touch[row]
        value = touches.value[touch]
        if touch >= touches.n_uses:
            dim = computed[value, summed]
            cut |= dim >= 0 and touches.dim_factor[touches.dim_ptr[touch] + dim] == factor
        else:
            dim = read[value, axis]
            competes |= dim >= 0 and touches.dim_factor[touches.dim_ptr[touch] + dim] != factor
    return cut and (summed < axis or competes)


def _shared_factors(program: Program) -> np.ndarray:
    """[F] bool, see ``SplitFacts.is_shared``."""
    is_shared = np.zeros(len(program.factor_size), np.bool_)
    for op in program.ops():
        if program.kind[op] == "gather":
            use = program.uses(op)[0]
            factors = np.asarray(program.use_names(use))
            is_shared[factors[program.factor_class[factors] == PASS]] = True
    return is_shared
