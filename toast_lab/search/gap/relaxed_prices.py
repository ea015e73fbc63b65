"""The least time to compute an op under each row, whatever the layouts of its operands.

The evaluator's own kernels price one op at a time. The time to compute grows with the bytes that
are read, and is convex in them. A lower bound is therefore the time with every operand read as
cheaply as possible, plus, for each operand on its own, the time added by reading that operand in
another layout.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.one_op import OpPricer, price_one
from toast_lab.kernels import compiled, copy_row, helper
from toast_lab.packs import Float64Array, Int32Matrix, Int64Array, packed
from toast_lab.sharding import steps as st
from toast_lab.sharding.step_kinds import COMPUTE
from toast_lab.sharding.steps import Steps


@packed
class Readings(NamedTuple):
    """The layouts of an op's operands, by the ``R`` values (roots) in whose memory they lie."""

    roots: Int64Array  #: [R] values
    layout_ptr: Int64Array  #: [R+1] where the layouts of each root start in ``layouts``
    layouts: Int64Array  #: layouts in which each root may be kept
    fewest_bytes: Float64Array  #: [uses] bytes of each operand or of its copy, whichever is fewer
    coarse: bool  #: has each root only one layout, finer than all those that it may be kept in?


@helper
def _computing_row(steps: Steps, n_steps: int) -> int:
    """The row of the step that computes the op; -1 if there is none."""
    for row in range(n_steps):
        if steps.kind[row] == COMPUTE:
            return row
    return -1


@compiled
def computing_times(
    op_pricer: OpPricer,
    op: int,
    menu: Int32Matrix,
    readings: Readings,
    least_s: Float64Array,
    more_s: Float64Array,
    kept: Int64Array,
    kept_own_s: Float64Array,
    kept_move_s: Float64Array,
) -> None:
    """Fill in the least time to compute an op under each row, and the time that layouts add.

    Prices are those of the rules, without a price list.

    Args:
        op_pricer: an op pricer without a price list; its facts are changed and restored.
        op: an op of the folded program.
        menu: [S, A] rows of the op.
        readings: the layouts in which its operands may lie.
        least_s: [S] filled with the least seconds over all layouts of the operands.
        more_s: [S * T'] filled with the seconds that reading a root in each layout adds.
        kept: [K] layouts in which its first result may be kept; empty if not needed.
        kept_own_s: [S * K] filled with the seconds to compute if the result goes to each layout.
        kept_move_s: [S * K] filled with the seconds to bring it there.
    """
    roots, layout_ptr, layouts = readings.roots, readings.layout_ptr, readings.layouts
    fewest_bytes, coarse = readings.fewest_bytes, readings.coarse
    tables, facts, steps = op_pricer.inputs.tables, op_pricer.inputs.facts, op_pricer.steps
    n_axes = menu.shape[1]
    row = tables.op_row[op]
    first, last = tables.use_ptr[op], tables.use_ptr[op + 1]
    saved_bytes = np.empty(last - first)
    saved_sent = np.empty(last - first)
    for use in range(first, last):
        saved_bytes[use - first] = facts.value.bytes[tables.use_value[use]]
        saved_sent[use - first] = facts.use.sent[use]
    for use in range(first, last):
        value = tables.use_value[use]
        if coarse or facts.root[use] != value:
            # A view is read as it is, or as a copy: count the smaller of the two.
            facts.value.bytes[value] = fewest_bytes[use - first]
            whole_bytes = tables.value_bytes[value]
            if whole_bytes > 0.0:
                facts.use.sent[use] = fewest_bytes[use - first] / whole_bytes
    n_layouts = layouts.shape[0]
    cheapest = np.zeros(roots.shape[0], np.int64)
    for strategy in range(menu.shape[0]):
        copy_row(op_pricer.op_factor[row], menu[strategy])
        for use in range(first, last):
            want = st.use_layout(tables, op_pricer.op_factor, tables.use_want[use], n_axes)
            steps.wanted[tables.use_want[use]] = want
            value = tables.use_value[use]
            steps.layout[value] = 0 if tables.value_constant[value] else want
        for position in range(tables.result_ptr[op], tables.result_ptr[op + 1]):
            result = tables.result[position]
            steps.layout[result], _ = st.natural_layout(tables, op_pricer.op_factor, result, n_axes)
        for root in range(roots.shape[0]):
            steps.layout[roots[root]] = layouts[layout_ptr[root]]
        for root in range(roots.shape[0]):
            fewest_read = np.inf
            for position in range(layout_ptr[root], layout_ptr[root + 1]):
                steps.layout[roots[root]] = layouts[position]
                n_steps = price_one(op_pricer, op)
                read_bytes = op_pricer.each.bytes[_computing_row(steps, n_steps)]
                if read_bytes < fewest_read:
                    fewest_read = read_bytes
                    cheapest[root] = position
            steps.layout[roots[root]] = layouts[cheapest[root]]
        n_steps = price_one(op_pricer, op)
        least = op_pricer.each.time_s[_computing_row(steps, n_steps)]
        least_s[strategy] = least
        for root in range(roots.shape[0]):
            for position in range(layout_ptr[root], layout_ptr[root + 1]):
                steps.layout[roots[root]] = layouts[position]
                n_steps = price_one(op_pricer, op)
                time_s = op_pricer.each.time_s[_computing_row(steps, n_steps)]
                more_s[strategy * n_layouts + position] = max(0.0, time_s - least)
            steps.layout[roots[root]] = layouts[cheapest[root]]
        for position in range(kept.shape[0]):
            result = tables.result[tables.result_ptr[op]]
            natural = steps.layout[result]
            steps.layout[result] = kept[position]
            n_steps = price_one(op_pricer, op)
            own_s, move_s = 0.0, 0.0
            for step in range(n_steps):
                if steps.kind[step] == COMPUTE:
                    own_s += op_pricer.each.time_s[step]
                elif steps.use[step] < 0:
                    move_s += op_pricer.each.time_s[step]
            kept_own_s[strategy * kept.shape[0] + position] = own_s
            kept_move_s[strategy * kept.shape[0] + position] = move_s
            steps.layout[result] = natural
    for use in range(first, last):
        facts.value.bytes[tables.use_value[use]] = saved_bytes[use - first]
        facts.use.sent[use] = saved_sent[use - first]
    op_pricer.op_factor[row] = -1
