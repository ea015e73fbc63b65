"""The compiled cost kernel: device-local steps -> times, buffers and peak memory.

Compute is a roofline: the larger of flops over peak and bytes over bandwidth.  Elementwise chains are fused:
a value with one consumer that can take it in is never written.  Views (reshape, broadcast) are aliases.
Values made of constants alone cost nothing: XLA folds or fuses them.

Memory is a live range analysis over program order: arguments (those that are not donated live throughout),
written values from their definition to their last use, gathered copies until their last use, the whole result
before a reduce_scatter, and in-place reuse of an operand that dies in an elementwise op.

Loops and conditionals: an op counts as often as it runs (``Program.trips``); what a loop reads from outside lives until
the loop ends; what it hands on unchanged is the very buffer that came in.  Slices and gathers read no more than they
deliver, and updates in place write no more than they bring, or a loop over stacked layers would read all of them in
every round.

Reference: TOAST section 4.5.  We price memory-bound ops too unless ``paper_mode`` is asked for: free gathers
and elementwise ops are a known way for a search to be fooled.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from toast_lab.cost.collectives import collective_time_s
from toast_lab.ir import program as p
from toast_lab.sharding.steps import COMPUTE, SLICE, Steps, Tables, use_layout, ways

FUSES = (p.ELEMENTWISE, p.REDUCE)
WHOLE, DELIVERED, NOTHING = range(3)
_SLICES = ("slice", "dynamic_slice", "gather")
_UPDATES = {"dynamic_update_slice": 1, "scatter": 2}  # kind -> operand that is brought in


class Static(NamedTuple):
    """What the kernel knows about a program on a machine, apart from the plan."""

    flops: np.ndarray  #: [O] whole op, times trips
    peak: np.ndarray  #: [O] FLOP/s of the op's element type
    trips: np.ndarray  #: [O]
    op_class: np.ndarray  #: [O]
    free: np.ndarray  #: [O] bool: op costs nothing (constants, views, arguments)
    root: np.ndarray  #: [V] value whose memory a view shows
    written: np.ndarray  #: [V] bool: the value is in memory (not fused away, not a view)
    last_op: np.ndarray  #: [V] last op that reads the value's memory, through views and fusion
    runs_at: np.ndarray  #: [O] op at which a fused op really runs
    donated: np.ndarray  #: [A]
    bytes: np.ndarray  #: [V] float64
    in_place: np.ndarray  #: [O] bool: its first result may take the place of an operand that dies there
    slices: np.ndarray  #: [O] bool: reads no more of its first operand than it delivers
    reads: np.ndarray  #: [U] WHOLE, DELIVERED (no more than the op's result) or NOTHING (updated in place)
    brings: np.ndarray  #: [O] the use whose size is what the op writes, -1: its whole result
    region: np.ndarray  #: [O] innermost region, -1 outside all
    region_parent: np.ndarray  #: [R + 1]
    region_begin: np.ndarray  #: [R + 1]
    region_end: np.ndarray  #: [R + 1]; 0 for all but loops, which alone make things live longer


class Rates(NamedTuple):
    """A machine as numbers."""

    memory_bytes_per_s: float
    link_bytes_per_s: np.ndarray  #: [A] for each mesh axis
    link_latency_s: np.ndarray  #: [A]
    switched: np.ndarray  #: [A] bool
    link_shape: np.ndarray  #: [A, 9], see layout.HOPS
    op_overhead_s: float
    paper_mode: bool


def make_static(program: p.Program, t: Tables, peak_flops: list[float]) -> Static:
    """Work out fusion, aliases and live ranges once per program."""
    n_ops, n_values = program.n_ops, program.n_values
    classes = program.op_class
    constant_op = np.asarray(
        [
            all(program.value_is_constant[v] for v in program.results(o)) and len(program.results(o)) > 0
            for o in range(n_ops)
        ]
    )
    view = classes == p.VIEW
    # Loop counters and the like: a few scalars never reach memory.
    scalar = np.asarray(
        [
            classes[o] == p.ELEMENTWISE
            and all(len(program.dims(v)) == 0 for v in (*program.operands(o), *program.results(o)))
            for o in range(n_ops)
        ]
    )
    free = constant_op | view | scalar | np.isin(classes, (p.ARGUMENT, p.CONSTANT, p.CONTROL))
    sliceable = np.asarray([k in ("slice", "pad", "concatenate", "reverse", "transpose") for k in program.kind])
    fusible = np.isin(classes, FUSES) | sliceable
    unchanged = _handed_on_unchanged(program)
    root = np.arange(n_values)
    for op in range(program.n_arguments, n_ops):
        if view[op] and len(program.results(op)) == len(program.operands(op)):
            for v, operand in zip(program.results(op), program.operands(op), strict=True):
                root[v] = root[operand]
        elif int(program.owner[op]) in unchanged:
            for v in program.results(op):
                root[v] = root[unchanged[int(program.owner[op])]]
    # Consumers through views, in reverse program order.
    consumers: list[set[int]] = [set() for _ in range(n_values)]
    for op in range(n_ops - 1, program.n_arguments - 1, -1):
        if view[op] and len(program.results(op)) == len(program.operands(op)):
            for v, operand in zip(program.results(op), program.operands(op), strict=True):
                consumers[operand] |= consumers[v] if not t.value_output[v] else {*consumers[v], n_ops}
        else:
            for operand in program.operands(op):
                consumers[operand].add(op)
    written = np.ones(n_values, dtype=bool)
    runs_at = np.arange(n_ops)
    for v in range(n_values - 1, -1, -1):
        op = int(program.value_op[v])
        if program.value_is_constant[v] or root[v] != v:
            written[v] = False
        elif classes[op] == p.ARGUMENT or t.value_output[v]:
            pass
        elif (
            (classes[op] == p.ELEMENTWISE or sliceable[op]) and len(consumers[v]) == 1 and len(program.results(op)) == 1
        ):
            (consumer,) = consumers[v]
            if consumer < n_ops and fusible[consumer] and program.region[consumer] == program.region[op]:
                written[v] = False
                runs_at[op] = runs_at[consumer]
    last_op = np.asarray([int(program.value_op[v]) for v in range(n_values)])
    for v in range(n_values):
        if t.value_output[v]:
            last_op[root[v]] = n_ops
    for op in range(program.n_arguments, n_ops):
        for operand in program.operands(op):
            for value in {operand, int(root[operand])}:
                when = program.kept_until(int(program.value_op[value]), int(runs_at[op]))
                last_op[value] = max(last_op[value], when)
    reads, brings = _partial_traffic(program, root, last_op)
    in_place = (np.isin(classes, (p.ELEMENTWISE, p.CONTROL)) | (brings >= 0)) & (np.diff(program.result_ptr) > 0)
    slices = np.asarray([k in _SLICES for k in program.kind])
    regions = [*program.regions, p.Region("", 0, 0, -1, 1.0, True)]
    return Static(
        program.flops * program.trips, np.asarray(peak_flops, dtype=np.float64), program.trips, classes, free,
        root.astype(np.int32), written, last_op.astype(np.int32), runs_at.astype(np.int32),
        program.donated.astype(bool), t.value_bytes, in_place, slices, reads, brings, program.region,
        np.asarray([r.parent for r in regions], np.int32), np.asarray([r.begin for r in regions], np.int32),
        np.asarray([r.end if r.kind == "loop" else 0 for r in regions], np.int32),
    )  # fmt: skip


def _handed_on_unchanged(program: p.Program) -> dict[int, int]:
    """Loop values that every round returns as it got them: ``while.enter`` op -> value that entered."""
    return {
        int(program.owner[op]): program.operands(int(program.owner[op]))[0]
        for op in program.ops()
        if program.kind[op] == "while.next" and program.operands(op)[0] in program.results(int(program.owner[op]))
    }


def _partial_traffic(program: p.Program, root: np.ndarray, last_op: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``Static.reads`` and ``Static.brings``."""
    reads, brings = np.full(program.n_uses, WHOLE, np.int8), np.full(program.n_ops, -1, np.int32)
    for op in program.ops():
        kind, first = program.kind[op], int(program.use_ptr[op])
        if kind in _SLICES:
            reads[first] = DELIVERED
        elif kind in _UPDATES and len(program.results(op)) == 1:
            source = int(root[program.use_value[first]])
            maker = int(program.value_op[source])
            owned = maker >= program.n_arguments or bool(program.donated[maker])
            # A buffer that is still needed, or that does not exist yet, is written as a whole.
            if owned and last_op[source] <= op and not program.value_is_constant[source]:
                reads[first] = NOTHING
                brings[op] = first + _UPDATES[kind]
    return reads, brings


@numba.njit(cache=True, nogil=True)
def price_steps(
    s: Static,
    r: Rates,
    t: Tables,
    steps: Steps,
    n_steps: int,
    op_axis: np.ndarray,
    axis_size: np.ndarray,
    step_time_s: np.ndarray,
    step_flops: np.ndarray,
    step_bytes: np.ndarray,
    live: np.ndarray,
    totals: np.ndarray,
) -> None:
    """Price every step.

    Writes ``step_time_s``, ``step_flops``, ``step_bytes`` (rows of steps), ``live`` (bytes alive at each op, [O+2])
    and ``totals``: time_s, compute_s, comm_s,
    peak_bytes, overlapped time_s, op at the peak.

    One long function on purpose: handing the tuples of arrays to helpers for ops and collectives took 365 instead
    of 52 microseconds for 1,565 ops (references are counted for every array at every call), inlined or not.
    """
    n_axes = axis_size.shape[0]
    n_ops = s.flops.shape[0]
    live[:] = 0.0
    compute_s, comm_s = 0.0, 0.0
    compute_clock, link_clock = 0.0, 0.0
    ready = np.zeros(t.value_op.shape[0])
    copy_ready = np.zeros(n_steps)
    op_ready = 0.0
    copy_last = np.full(n_steps, -1, np.int32)
    for use in range(t.use_value.shape[0]):
        row = steps.copy[use]
        if row >= 0 and t.use_op[use] >= t.n_arguments:
            when = s.runs_at[t.use_op[use]]
            inside = s.region[t.use_op[use]]
            while inside >= 0:  # a copy from outside a loop is read in every round
                if steps.op[row] < s.region_begin[inside] and s.region_end[inside] > when:
                    when = s.region_end[inside] - 1
                inside = s.region_parent[inside]
            if when > copy_last[row]:
                copy_last[row] = when
    for i in range(n_steps):
        kind, op = steps.kind[i], steps.op[i]
        time_s = 0.0
        step_flops[i] = 0.0
        step_bytes[i] = 0.0
        if kind == COMPUTE:
            if not s.free[op]:
                cut = 1.0
                for a in range(n_axes):
                    if op_axis[op, a] >= 0:
                        cut *= axis_size[a]
                moved = 0.0
                made = 0.0
                for value in range(t.result_ptr[op], t.result_ptr[op + 1]):
                    if s.written[value] or s.slices[op]:
                        size = s.bytes[value] / ways(
                            _result_layout(steps, i, n_steps, value, op_axis, t, n_axes), axis_size
                        )
                        made += size
                        if s.written[value] and s.brings[op] < 0:
                            moved += size
                for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
                    if s.reads[use] == NOTHING:
                        continue
                    value = t.use_value[use]
                    source = s.root[value]
                    if s.written[source]:
                        row = steps.copy[use]
                        piece = s.bytes[value] / ways(steps.after[row] if row >= 0 else steps.layout[value], axis_size)
                        whole = s.bytes[source] / ways(steps.layout[source], axis_size)
                        if row < 0:
                            piece = min(piece, whole)
                        if s.reads[use] == DELIVERED:
                            piece = min(piece, made)
                        moved += piece
                    if use == s.brings[op]:
                        moved += s.bytes[value] / ways(use_layout(t, op_axis, use, n_axes), axis_size)
                flops = s.flops[op] / cut
                step_flops[i] = flops
                step_bytes[i] = moved * s.trips[op]
                heavy = s.op_class[op] == p.DOT or s.op_class[op] == p.CONVOLUTION
                if heavy or not r.paper_mode:
                    time_s = max(flops / s.peak[op], step_bytes[i] / r.memory_bytes_per_s)
                    if moved > 0.0 or heavy:
                        time_s += r.op_overhead_s * s.trips[op]
            begin = compute_clock
            for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
                row = steps.copy[use]
                arrives = copy_ready[row] if row >= 0 else ready[t.use_value[use]]
                begin = max(begin, arrives)
            op_ready = begin + time_s
            if time_s > 0.0:
                compute_clock = op_ready
            for value in range(t.result_ptr[op], t.result_ptr[op + 1]):
                ready[value] = op_ready
            compute_s += time_s
        else:
            big = max(steps.in_bytes[i], steps.out_bytes[i])
            step_bytes[i] = big
            if kind != SLICE:
                time_s = collective_time_s(
                    kind,
                    steps.axes[i],
                    steps.in_bytes[i],
                    axis_size,
                    r.link_bytes_per_s,
                    r.link_latency_s,
                    r.switched,
                    r.link_shape,
                )
                time_s *= s.trips[op]
                comm_s += time_s
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
                start = max(start, link_clock)
                link_clock = start + time_s
            copy_ready[i] = start + time_s
            if steps.use[i] < 0:
                ready[value] = copy_ready[i]
            # memory: a copy for uses lives until its last use; the input of a definition's reshard only now
            if steps.use[i] >= 0:
                end = op
                if copy_last[i] > end:
                    end = copy_last[i]
                live[op] += steps.out_bytes[i]
                live[end + 1] -= steps.out_bytes[i]
            else:
                live[op] += steps.in_bytes[i]
                live[op + 1] -= steps.in_bytes[i]
        step_time_s[i] = time_s
    _buffers(s, t, steps, axis_size, live, n_ops)
    peak, peak_op, here_bytes = 0.0, 0, 0.0
    for op in range(n_ops + 1):
        here_bytes += live[op]
        live[op] = here_bytes
        if here_bytes > peak:
            peak, peak_op = here_bytes, op
    totals[0] = compute_s + comm_s
    totals[1] = compute_s
    totals[2] = comm_s
    totals[3] = peak
    totals[4] = max(compute_clock, link_clock)
    totals[5] = peak_op


@numba.njit(cache=True, nogil=True)
def _result_layout(
    steps: Steps, row: int, n_steps: int, value: int, op_axis: np.ndarray, t: Tables, n_axes: int
) -> int:
    """Layout in which the op writes a result: before its reshard if one follows, else as kept."""
    op = steps.op[row]
    i = row + 1
    while i < n_steps and steps.op[i] == op and steps.use[i] < 0:
        if steps.value[i] == value:
            return steps.before[i]
        i += 1
    return steps.layout[value]


@numba.njit(cache=True, nogil=True)
def _buffers(
    s: Static,
    t: Tables,
    steps: Steps,
    axis_size: np.ndarray,
    live: np.ndarray,
    n_ops: int,
) -> None:
    """Add the live ranges of arguments and written values; an operand that dies in an elementwise op is reused."""
    taken = np.zeros(n_ops + 1, np.int8)  # op already reuses an operand
    for value in range(t.value_op.shape[0]):
        op = t.value_op[value]
        if not s.written[value]:
            continue
        size = s.bytes[value] / ways(steps.layout[value], axis_size)
        start = op
        end = s.last_op[value]
        if op < t.n_arguments:
            start = 0
            if not s.donated[op]:
                end = n_ops
        else:
            start = s.runs_at[op]
            end = max(end, start)
        if end < n_ops and end >= t.n_arguments and taken[end] == 0 and s.in_place[end]:
            result = t.result_ptr[end]
            if s.written[result] and s.bytes[result] / ways(steps.layout[result], axis_size) == size and end > start:
                taken[end] = 1
                end -= 1
        live[start] += size
        live[min(end, n_ops) + 1] -= size
