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

from toast_lab.compiled import depends_on
from toast_lab.cost import collectives
from toast_lab.cost.collectives import collective_time_s
from toast_lab.ir import program as p
from toast_lab.sharding import steps as st
from toast_lab.sharding.steps import COMPUTE, SLICE, Steps, Tables, ways

FUSES = (p.ELEMENTWISE, p.REDUCE)
WHOLE, DELIVERED, NOTHING = range(3)
_SLICES = ("slice", "dynamic_slice", "gather")
_UPDATES = {"dynamic_update_slice": 1, "scatter": 2}  # kind -> operand that is brought in


class OpFacts(NamedTuple):
    """What prices may know of each op apart from the plan; ops that differ here are never folded into one."""

    flops: np.ndarray  #: [O] whole op, times trips
    peak: np.ndarray  #: [O] FLOP/s of the op's element type
    trips: np.ndarray  #: [O]
    op_class: np.ndarray  #: [O]
    free: np.ndarray  #: [O] bool: op costs nothing (constants, views, arguments)
    slices: np.ndarray  #: [O] bool: reads no more of its first operand than it delivers
    brings: np.ndarray  #: [O] position of the operand whose size is what the op writes, -1: its whole result


class UseFacts(NamedTuple):
    """What prices may know of each use."""

    reads: np.ndarray  #: [U] WHOLE, DELIVERED (no more than the op's result) or NOTHING (updated in place)


class ValueFacts(NamedTuple):
    """What prices may know of each value."""

    bytes: np.ndarray  #: [V] float64
    written: np.ndarray  #: [V] bool: the value is in memory (not fused away, not a view)


class Facts(NamedTuple):
    """A program on a machine apart from the plan, op by op or folded.  Only ``root`` holds indices."""

    op: OpFacts
    use: UseFacts
    value: ValueFacts
    root: np.ndarray  #: [U] value in whose memory the used value is (views show another one's)


class Memory(NamedTuple):
    """When what is in memory: for the whole program in its order, however its prices are folded.

    ``B`` buffers are written values; sizes come from the value that stands for each (itself, if nothing is folded).
    """

    buffer_value: np.ndarray  #: [B] value that it is like
    buffer_start: np.ndarray  #: [B] first op at which it is alive
    buffer_end: np.ndarray  #: [B] last op at which it is alive; O: to the end
    buffer_heir: np.ndarray  #: [B] value like the result that may take its place at its last op if of equal size, or -1
    member_ptr: np.ndarray  #: [U'+1] row starts into member
    member: np.ndarray  #: uses that are like each use that is priced
    like_use: np.ndarray  #: [U] the use that is priced for each
    like_op: np.ndarray  #: [O]
    op_member_ptr: np.ndarray  #: [O'+1]
    op_member: np.ndarray  #: ops that are like each op that is priced
    use_op: np.ndarray  #: [U]
    use_value: np.ndarray  #: [U]
    use_until: np.ndarray  #: [U] see ``Tables``
    value_use_ptr: np.ndarray  #: [V+1]
    value_use: np.ndarray
    runs_at: np.ndarray  #: [O] op at which a fused op really runs
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
    op_overhead_s: float
    paper_mode: bool


def make_static(program: p.Program, t: Tables, peak_flops: list[float]) -> tuple[Facts, Memory]:
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
    facts = Facts(
        OpFacts(
            program.flops * program.trips, np.asarray(peak_flops, dtype=np.float64), program.trips, classes, free,
            slices, brings,
        ),
        UseFacts(reads),
        ValueFacts(t.value_bytes, written),
        root[program.use_value].astype(np.int32),
    )  # fmt: skip
    return facts, _memory(program, t, written, last_op, runs_at, in_place)


def _memory(
    program: p.Program, t: Tables, written: np.ndarray, last_op: np.ndarray, runs_at: np.ndarray, in_place: np.ndarray
) -> Memory:
    n_ops, n_arguments = program.n_ops, program.n_arguments
    value = np.flatnonzero(written)
    maker = program.value_op[value]
    argument = maker < n_arguments
    start = np.where(argument, 0, runs_at[maker])
    end = np.maximum(last_op[value], start)
    kept = np.zeros(n_ops, bool)
    kept[:n_arguments] = ~program.donated
    end = np.where(kept[maker], n_ops, end)
    inside = (end >= n_arguments) & (end < n_ops) & (end > start)
    at = np.where(inside, end, 0)
    heir = program.result_ptr[at].astype(np.int32)
    inside[inside] = in_place[at[inside]] & written[heir[inside]]
    uses, ops = np.arange(program.n_uses, dtype=np.int32), np.arange(n_ops, dtype=np.int32)
    regions = [*program.regions, p.Region("", 0, 0, -1, 1.0, True)]
    return Memory(
        value.astype(np.int32), start.astype(np.int32), end.astype(np.int32),
        np.where(inside, heir, -1).astype(np.int32),
        np.arange(len(uses) + 1, dtype=np.int32), uses, uses, ops, np.arange(n_ops + 1, dtype=np.int32), ops,
        t.use_op, t.use_value, t.use_until, t.value_use_ptr, t.value_use,
        runs_at.astype(np.int32), program.region,
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
    """``UseFacts.reads`` and ``OpFacts.brings``."""
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
                brings[op] = _UPDATES[kind]
    return reads, brings


class Prices(NamedTuple):
    """What the steps of a state cost, by op and by use; arrays that the kernel fills."""

    op_time_s: np.ndarray  #: [O] compute and collectives of the op's steps
    copied: np.ndarray  #: [U] int8 how a use gets its value: AS_KEPT, BROUGHT or REUSED
    copy_bytes: np.ndarray  #: [U] what a use that is BROUGHT its value adds to memory until the copy's last use
    passing_bytes: np.ndarray  #: [O] what is in memory at the op alone


AS_KEPT, BROUGHT, REUSED = range(3)


class StepPrices(NamedTuple):
    """What each step costs; scratch of the kernel."""

    time_s: np.ndarray  #: [S]
    flops: np.ndarray  #: [S]
    bytes: np.ndarray  #: [S] read and written


def step_prices(rows: int) -> StepPrices:
    """Scratch for ``rows`` steps."""
    return StepPrices(np.zeros(rows), np.zeros(rows), np.zeros(rows))


def prices(t: Tables) -> Prices:
    """Arrays for the prices of a program."""
    n_ops, n_uses = len(t.op_row), len(t.use_value)
    return Prices(np.zeros(n_ops), np.zeros(n_uses, np.int8), np.zeros(n_uses), np.zeros(n_ops))


@depends_on(st, collectives)
@numba.njit(cache=True, nogil=True)
def price_steps(
    f: Facts,
    r: Rates,
    t: Tables,
    ops: np.ndarray,
    steps: Steps,
    n_steps: int,
    op_axis: np.ndarray,
    axis_size: np.ndarray,
    each: StepPrices,
    found: Prices,
) -> None:
    """Price every step: the one place where a step's time, traffic and memory are decided.

    ``steps`` are those of ``ops``, of the program itself or of its folded form.  Writes ``each`` (rows of steps) and
    the rows of ``ops`` and of their uses in ``found``.  What is read here of ops, uses and values must be in ``t`` or
    ``f``, for ops that differ in these are told apart when a program is folded.

    One long function on purpose: handing the tuples of arrays to helpers for ops and collectives took 365 instead
    of 52 microseconds for 1,565 ops (references are counted for every array at every call), inlined or not.
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
                        size = f.value.bytes[value] / ways(_result_layout(steps, i, n_steps, value), axis_size)
                        made += size
                        if f.value.written[value] and f.op.brings[op] < 0:
                            moved += size
                for use in range(t.use_ptr[op], t.use_ptr[op + 1]):
                    if f.use.reads[use] == NOTHING:
                        continue
                    value = t.use_value[use]
                    source = f.root[use]
                    if f.value.written[source]:
                        copied = steps.copy[use] != -1
                        layout = steps.wanted[t.use_want[use]] if copied else steps.layout[value]
                        piece = f.value.bytes[value] / ways(layout, axis_size)
                        whole = f.value.bytes[source] / ways(steps.layout[source], axis_size)
                        if not copied:
                            piece = min(piece, whole)
                        if f.use.reads[use] == DELIVERED:
                            piece = min(piece, made)
                        moved += piece
                    if use == t.use_ptr[op] + f.op.brings[op] and f.op.brings[op] >= 0:
                        moved += f.value.bytes[value] / ways(steps.wanted[t.use_want[use]], axis_size)
                flops = f.op.flops[op] / cut
                each.flops[i] = flops
                each.bytes[i] = moved * f.op.trips[op]
                heavy = f.op.op_class[op] == p.DOT or f.op.op_class[op] == p.CONVOLUTION
                if heavy or not r.paper_mode:
                    time_s = max(flops / f.op.peak[op], each.bytes[i] / r.memory_bytes_per_s)
                    if moved > 0.0 or heavy:
                        time_s += r.op_overhead_s * f.op.trips[op]
        else:
            each.bytes[i] = max(steps.in_bytes[i], steps.out_bytes[i])
            if kind != SLICE:
                time_s = collective_time_s(
                    kind, steps.axes[i], steps.in_bytes[i], axis_size, r.link_bytes_per_s, r.link_latency_s, r.switched
                )
                time_s *= f.op.trips[op]
            # memory: a copy for uses lives until its last use; the input of a definition's reshard only now
            use = steps.use[i]
            if use < 0:
                found.passing_bytes[op] += steps.in_bytes[i]
            elif steps.copy[use] == i:
                found.copy_bytes[use] = steps.out_bytes[i]
            else:
                found.passing_bytes[op] += steps.out_bytes[i]
        each.time_s[i] = time_s
        found.op_time_s[op] += time_s


@numba.njit(cache=True, nogil=True)
def _result_layout(steps: Steps, row: int, n_steps: int, value: int) -> int:
    """Layout in which the op writes a result: before its reshard if one follows, else as kept."""
    op = steps.op[row]
    i = row + 1
    while i < n_steps and steps.op[i] == op and steps.use[i] < 0:
        if steps.value[i] == value:
            return steps.before[i]
        i += 1
    return steps.layout[value]


@depends_on(st, collectives)
@numba.njit(cache=True, nogil=True)
def clocks(t: Tables, steps: Steps, n_steps: int, time_s: np.ndarray) -> tuple[float, float, float]:
    """(compute_s, comm_s, overlapped_s) of all steps of a program in order.

    Overlapped: collectives run beside compute, one after the other, and everything waits for what it needs.
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


@depends_on(st, collectives)
@numba.njit(cache=True, nogil=True)
def live_bytes(
    f: Facts,
    m: Memory,
    t: Tables,
    layout: np.ndarray,
    wanted: np.ndarray,
    found: Prices,
    axis_size: np.ndarray,
    size: np.ndarray,
    last: np.ndarray,
    live: np.ndarray,
) -> tuple[float, int]:
    """(peak bytes, op at the peak) of a state; fills ``live`` (bytes alive at each op, [O + 2]).

    The one place where it is decided how long things live.  ``f``, ``t``, ``layout``, ``wanted`` and ``found`` may be
    those of the folded program, ``m`` counts the ops of the program itself.  ``size`` (values) and ``last`` (uses of
    the program itself) are scratch.
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
                    if wanted[t.use_want[m.like_use[maker]]] == want and m.use_op[use] < m.use_until[maker]:
                        last[maker] = max(last[maker], _needed_until(m, use, m.use_op[maker]))
                        break
    for like in range(found.copied.shape[0]):
        if found.copied[like] == BROUGHT:
            held = found.copy_bytes[like]
            for k in range(m.member_ptr[like], m.member_ptr[like + 1]):
                use = m.member[k]
                live[m.use_op[use]] += held
                live[last[use] + 1] -= held
    for like in range(found.passing_bytes.shape[0]):
        held = found.passing_bytes[like]
        if held > 0.0:
            for k in range(m.op_member_ptr[like], m.op_member_ptr[like + 1]):
                live[m.op_member[k]] += held
                live[m.op_member[k] + 1] -= held
    # Written values; an operand that dies in an elementwise op gives its place to the result, one operand an op.
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


@numba.njit(cache=True, nogil=True)
def _needed_until(m: Memory, use: int, made: int) -> int:
    """Op until which a use needs a copy made at op ``made``: one from outside a loop is read in every round."""
    when = m.runs_at[m.use_op[use]]
    inside = m.region[m.use_op[use]]
    while inside >= 0:
        if made < m.region_begin[inside] and m.region_end[inside] > when:
            when = m.region_end[inside] - 1
        inside = m.region_parent[inside]
    return when
