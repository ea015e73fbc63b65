"""The compiled cost kernel: device-local steps -> times, buffers and peak memory.

Compute is a roofline: the larger of flops over peak and bytes over bandwidth; ``tiles`` says how
much of the peak small shards of a product reach.  Which values are never written is ``fusion``'s
matter, what a TPU holds and sends at half width ``bfloat16``'s.  Views (reshape, broadcast) are
aliases.  Values made of constants alone cost nothing: XLA folds or fuses them.

Memory is a live range analysis over program order: arguments (those that are not donated live
throughout), written values from their definition to their last use, copies that collectives bring
until their last use, the whole result before a reduce_scatter, what is computed on the way into a
product beside it, and in-place reuse of an operand that dies in an elementwise op.

Loops and conditionals: an op counts as often as it runs (``Program.trips``); what a loop reads from
outside lives until the loop ends; what it hands on unchanged is the very buffer that came in.
Slices and gathers read no more than they deliver, and updates in place write no more than they
bring, or a loop over stacked layers would read all of them in every round.

Every formula stands here once.  ``price`` runs these functions over the whole program, a search
over the folded one (``fold``, ``reprice``), and a property test holds the two together.  To change
one:

* what a step takes, reads or writes, and what it holds in memory while it runs: ``price_steps``.
  It may look at all of ``Facts`` and ``Tables`` and at the layouts, but only at those of the op's
  own operands (and the values in whose memory they are), of its results and of its row of the
  state.  Whatever else a price depended on, ``fold`` and ``reprice`` would not know.
* something new that it needs to know of an op, a use or a value: a field of ``OpFacts``,
  ``UseFacts`` or ``ValueFacts``, filled by ``make_static``.  Ops that differ in it are told apart
  from then on, nothing else has to be done.  No fact may be an index: it would differ in every
  layer, and nothing would be folded.
* how long things live: ``live_bytes``, and ``Memory`` for what does not depend on the plan.
* what overlaps with what: ``clocks``, for whole programs only.

Reference: TOAST section 4.5.  We price memory-bound ops too unless ``paper_mode`` is asked for:
free gathers and elementwise ops are a known way for a search to be fooled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.facts import Facts, Memory
from toast_lab.cost.tiles import CONTRACTED, FREE, ROLE_BITS, busy
from toast_lab.ir import program as p
from toast_lab.kernels import compiled, helper
from toast_lab.machines.collectives import collective_time_s
from toast_lab.packs import (
    BoolArray,
    Float64Array,
    Float64Matrix,
    Int8Array,
    Int32Array,
    Int32Matrix,
    Int64Array,
    packed,
)
from toast_lab.sharding.step_kinds import ALL_REDUCE, COMPUTE, REDUCE_SCATTER, SLICE
from toast_lab.sharding.steps import LAYOUT_BITS, Steps, Tables, ways


@packed
class Rates(NamedTuple):
    """A machine as numbers."""

    memory_bytes_per_s: float
    link_bytes_per_s: Float64Array  #: [A] for each mesh axis
    link_latency_s: Float64Array  #: [A]
    switched: BoolArray  #: [A] bool
    link_shape: Float64Matrix  #: [A, 9], see topology.HOPS
    op_overhead_s: float
    paper_mode: bool
    tile: float  #: side of the matrix unit's array, 0: any size is as good


@packed
class Prices(NamedTuple):
    """What the steps of a state cost, by op and by use; arrays that the kernel fills."""

    op_time_s: Float64Array  #: [O] compute and collectives of the op's steps
    copied: Int8Array  #: [U] int8 how a use gets its value: AS_KEPT, BROUGHT or REUSED
    #: [U] what a use that is BROUGHT its value adds to memory until the copy's last use
    copy_bytes: Float64Array
    passing_bytes: Float64Array  #: [O] what is in memory at the op alone


AS_KEPT, BROUGHT, REUSED = range(3)


@packed
class StepPrices(NamedTuple):
    """What each step costs; scratch of the kernel."""

    time_s: Float64Array  #: [S]
    flops: Float64Array  #: [S]
    bytes: Float64Array  #: [S] read and written


def step_prices(rows: int) -> StepPrices:
    """Scratch for ``rows`` steps."""
    return StepPrices(np.zeros(rows), np.zeros(rows), np.zeros(rows))


def prices(t: Tables) -> Prices:
    """Arrays for the prices of a program."""
    n_ops, n_uses = len(t.op_row), len(t.use_value)
    return Prices(np.zeros(n_ops), np.zeros(n_uses, np.int8), np.zeros(n_uses), np.zeros(n_ops))


@compiled
def price_steps(
    f: Facts,
    r: Rates,
    t: Tables,
    ops: Int32Array,
    steps: Steps,
    n_steps: int,
    op_factor: Int32Matrix,
    axis_size: Int64Array,
    each: StepPrices,
    found: Prices,
) -> None:
    """Price every step: the one place where a step's time, traffic and memory are decided.

    ``steps`` are those of ``ops``, of the program itself or of its folded form.  Writes ``each``
    (rows of steps) and the rows of ``ops`` and of their uses in ``found``.  What is read here of
    ops, uses and values must be in ``t`` or ``f``, for ops that differ in these are told apart when
    a program is folded.

    One long function on purpose: handing the tuples of arrays to helpers for ops and collectives
    took 365 instead of 52 microseconds for 1,565 ops (references are counted for every array at
    every call), inlined or not.
    """
    n_axes = axis_size.shape[0]
    for op in ops:
        found.op_time_s[op] = 0.0
        found.passing_bytes[op] = 0.0
        for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
            row = steps.copy[use]
            brought = row >= 0 and steps.use[row] == use
            found.copied[use] = AS_KEPT if row == -1 else BROUGHT if brought else REUSED
            found.copy_bytes[use] = 0.0
    for i in range(n_steps):
        kind, op = steps.kind[i], steps.op[i]
        time_s = 0.0
        each.flops[i] = 0.0
        each.bytes[i] = 0.0
        if kind == COMPUTE:
            if not f.op.free[op]:
                cut = 1.0
                for a in range(n_axes):
                    if (steps.axes[i] >> a) & 1:
                        cut *= axis_size[a]
                moved = 0.0
                made = 0.0
                for k in range(t.result_ptr[op], t.result_ptr[op + 1]):
                    value = t.result[k]
                    if f.value.written[value] or f.op.slices[op]:
                        size = f.value.bytes[value] / ways(
                            _result_layout(steps, i, n_steps, value), axis_size
                        )
                        made += size
                        if f.value.written[value] and f.op.brings[op] < 0:
                            moved += size
                for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
                    value = t.use_value[use]
                    source = f.root[use]
                    if f.use.reads[use] > 0.0:
                        copied = steps.copy[use] != -1
                        layout = steps.wanted[t.use_want[use]] if copied else steps.layout[value]
                        # A copy is as it was sent, whatever the value itself is kept in.
                        whole_bytes = (
                            f.use.sent[use] * t.value_bytes[value]
                            if copied
                            else f.value.bytes[value]
                        )
                        piece = whole_bytes / ways(layout, axis_size)
                        whole = f.value.bytes[source] / ways(steps.layout[source], axis_size)
                        if not copied:
                            piece = min(piece, whole)
                        if f.use.delivered[use]:
                            piece = min(piece, made)
                        moved += f.use.reads[use] * piece
                        if not copied and not f.value.written[source]:
                            # Only products read what is not written: it is prepared beside them, as
                            # they take it.
                            found.passing_bytes[op] += f.use.sent[use] * piece
                    if use == t.use_ptr[op] + f.op.brings[op] and f.op.brings[op] >= 0:
                        moved += f.value.bytes[value] / ways(
                            steps.wanted[t.use_want[use]], axis_size
                        )
                flops = f.op.flops[op] / cut
                each.flops[i] = flops
                each.bytes[i] = moved * f.op.trips[op]
                peak = f.op.peak[op]
                if (
                    r.tile > 0.0
                    and f.op.op_class[op] == p.DOT
                    and t.use_ptr[op + 1] - t.use_ptr[op] == 2
                ):
                    rows, columns, depth = f.op.rows[op], f.op.columns[op], f.op.depth[op]
                    left = steps.wanted[t.use_want[t.use_ptr[op]]]
                    right = steps.wanted[t.use_want[t.use_ptr[op] + 1]]
                    for a in range(n_axes):
                        dim = ((left >> (LAYOUT_BITS * a)) & 31) - 1
                        if dim >= 0:
                            role = (f.op.left[op] >> (ROLE_BITS * dim)) & 3
                            if role == FREE:
                                rows /= axis_size[a]
                            elif role == CONTRACTED:
                                depth /= axis_size[a]
                        dim = ((right >> (LAYOUT_BITS * a)) & 31) - 1
                        if dim >= 0 and (f.op.right[op] >> (ROLE_BITS * dim)) & 3 == FREE:
                            columns /= axis_size[a]
                    peak *= busy(rows, columns, depth, r.tile)
                heavy = f.op.op_class[op] == p.DOT or f.op.op_class[op] == p.CONVOLUTION
                if heavy or not r.paper_mode:
                    time_s = max(flops / peak, each.bytes[i] / r.memory_bytes_per_s)
                    if f.op.starts[op]:
                        time_s += r.op_overhead_s * f.op.trips[op]
        else:
            use = steps.use[i]
            # What is cast before it is summed is not scattered by the compilers that cast: as slow
            # as in full width.
            sent = (
                1.0
                if kind == REDUCE_SCATTER
                else f.use.sent[use]
                if use >= 0
                else f.value.moved[steps.value[i]]
            )
            each.bytes[i] = sent * max(steps.in_bytes[i], steps.out_bytes[i])
            if kind != SLICE:
                time_s = collective_time_s(
                    kind,
                    steps.axes[i],
                    sent * steps.in_bytes[i],
                    axis_size,
                    r.link_bytes_per_s,
                    r.link_latency_s,
                    r.switched,
                    r.link_shape,
                )
                time_s *= f.op.trips[op]
            # memory: a copy for uses lives until its last use; the input of a definition's reshard
            # only now
            if use < 0:
                # Sums are made in place, and a part of what a soft op gives is computed alone.
                if kind != ALL_REDUCE and (kind != SLICE or not f.op.cuts[op]):
                    found.passing_bytes[op] += sent * steps.in_bytes[i]
            elif steps.copy[use] == i:
                found.copy_bytes[use] = sent * steps.out_bytes[i]
            else:
                found.passing_bytes[op] += sent * steps.out_bytes[i]
        each.time_s[i] = time_s
        found.op_time_s[op] += time_s


@helper
def _result_layout(steps: Steps, row: int, n_steps: int, value: int) -> int:
    """Layout in which the op writes a result: before its reshard if one follows, else as kept."""
    op = steps.op[row]
    i = row + 1
    while i < n_steps and steps.op[i] == op and steps.use[i] < 0:
        if steps.value[i] == value:
            return steps.before[i]
        i += 1
    return steps.layout[value]


@compiled
def clocks(
    t: Tables, steps: Steps, n_steps: int, time_s: Float64Array
) -> tuple[float, float, float]:
    """(compute_s, comm_s, overlapped_s) of all steps of a program in order.

    Overlapped: collectives run beside compute, one after the other, and everything waits for what
    it needs.
    """
    compute_s, comm_s = 0.0, 0.0
    compute_clock, link_clock = 0.0, 0.0
    ready = np.zeros(t.value_op.shape[0])
    copy_ready = np.zeros(n_steps)
    for i in range(n_steps):
        kind, op = steps.kind[i], steps.op[i]
        if kind == COMPUTE:
            begin = compute_clock
            for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
                row = steps.copy[use]
                arrives = copy_ready[row] if row >= 0 else ready[t.use_value[use]]
                begin = max(begin, arrives)
            op_ready = begin + time_s[i]
            if time_s[i] > 0.0:
                compute_clock = op_ready
            for k in range(t.result_ptr[op], t.result_ptr[op + 1]):
                ready[t.result[k]] = op_ready
            compute_s += time_s[i]
        else:
            value = steps.value[i]
            chained = (
                i > 0
                and steps.op[i - 1] == op
                and steps.use[i - 1] == steps.use[i]
                and steps.value[i - 1] == value
                and steps.kind[i - 1] != COMPUTE
            )
            start = copy_ready[i - 1] if chained else ready[value]
            if kind != SLICE:
                comm_s += time_s[i]
                start = max(start, link_clock)
                link_clock = start + time_s[i]
            copy_ready[i] = start + time_s[i]
            if steps.use[i] < 0:
                ready[value] = copy_ready[i]
    return compute_s, comm_s, max(compute_clock, link_clock)


@compiled
def live_bytes(
    f: Facts,
    m: Memory,
    t: Tables,
    layout: Int64Array,
    wanted: Int64Array,
    found: Prices,
    axis_size: Int64Array,
    size: Float64Array,
    last: Int32Array,
    live: Float64Array,
) -> tuple[float, int]:
    """(peak bytes, op at the peak) of a state; fills ``live`` (bytes alive at each op, [O + 2]).

    The one place where it is decided how long things live.  ``f``, ``t``, ``layout``, ``wanted``
    and ``found`` may be those of the folded program, ``m`` counts the ops of the program itself.
    ``size`` (values) and ``last`` (uses of the program itself) are scratch.
    """
    n_ops = live.shape[0] - 2
    for value in range(size.shape[0]):
        size[value] = f.value.bytes[value] / ways(layout[value], axis_size)
    live[:] = 0.0
    # Copies: until the last use that takes the copy.
    for like in range(found.copied.shape[0]):
        if found.copied[like] == BROUGHT:
            for k in range(m.member_ptr[like], m.member_ptr[like + 1]):
                use = m.member[k]
                last[use] = max(m.use_op[use], _needed_until(m, use, m.use_op[use]))
    for like in range(found.copied.shape[0]):
        if found.copied[like] == REUSED:
            want = wanted[t.use_want[like]]
            for k in range(m.member_ptr[like], m.member_ptr[like + 1]):
                use = m.member[k]
                value = m.use_value[use]
                for j in range(m.value_use_ptr[value], m.value_use_ptr[value + 1]):
                    maker = m.value_use[j]
                    if (
                        wanted[t.use_want[m.like_use[maker]]] == want
                        and m.use_op[use] < m.use_until[maker]
                    ):
                        last[maker] = max(last[maker], _needed_until(m, use, m.use_op[maker]))
                        break
    for like in range(found.copied.shape[0]):
        if found.copied[like] == BROUGHT:
            held = found.copy_bytes[like]
            for k in range(m.member_ptr[like], m.member_ptr[like + 1]):
                use = m.member[k]
                live[m.use_from[use]] += held
                live[last[use] + 1] -= held
    for like in range(found.passing_bytes.shape[0]):
        held = found.passing_bytes[like]
        if held > 0.0:
            for k in range(m.op_member_ptr[like], m.op_member_ptr[like + 1]):
                at = m.runs_at[m.op_member[k]]
                live[at] += held
                live[at + 1] -= held
    # Written values; an operand that dies in an elementwise op gives its place to the result, one
    # operand an op.
    heirs = np.zeros(n_ops + 1, np.bool_)
    for b in range(m.buffer_value.shape[0]):
        held = size[m.buffer_value[b]]
        end = m.buffer_end[b]
        heir = m.buffer_heir[b]
        if heir >= 0 and size[heir] == held and not heirs[end]:
            heirs[end] = True
            end -= 1
        live[m.buffer_start[b]] += held
        live[min(end, n_ops) + 1] -= held
    peak, peak_op, here_bytes = 0.0, 0, 0.0
    for op in range(n_ops + 1):
        here_bytes += live[op]
        live[op] = here_bytes
        if here_bytes > peak:
            peak, peak_op = here_bytes, op
    return peak, peak_op


@helper
def _needed_until(m: Memory, use: int, made: int) -> int:
    """Op until which a use needs a copy made at op ``made``.

    One from outside a loop is read in every round.
    """
    when = m.runs_at[m.use_op[use]]
    inside = m.region[m.use_op[use]]
    while inside >= 0:
        if made < m.region_begin[inside] and m.region_end[inside] > when:
            when = m.region_end[inside] - 1
        inside = m.region_parent[inside]
    return when
