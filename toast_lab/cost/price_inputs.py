"""What the price of a plan depends on, and the arrays that pricing fills.

Reference: TOAST section 4.5.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.buffers import Memory
from toast_lab.cost.live_ranges import LiveRanges
from toast_lab.cost.program_facts import ProgramFacts
from toast_lab.packs import (
    Float64Array,
    Float64Matrix,
    Int8Array,
    Int32Array,
    Int64Array,
    packed,
)
from toast_lab.sharding.steps import Tables

#: Share of a GPU's memory that XLA's scheduler lets a program fill by running products late.
WAITING_SHARE = 0.8
#: Share of vector memory for all values in it at once: libtpu keeps 16 of 128 MiB for kernels.
ROOM_SHARE = 0.875
#: Largest share of vector memory that one value in it may take. With libtpu 0.0.42.1 for v5e, in
#: four steps, 6 in 7 kernel results of less than 8 MiB were there, half of those from 32 MiB, a
#: quarter of those from 64 MiB.
NEAR_SHARE = 0.25
AS_KEPT, BROUGHT, REUSED = range(3)
#: Columns of ``Lifetimes.change``: bytes that are in memory, that may be in vector memory, that fit
#: into the memory of a result of the program, and of such results themselves.
IN_MEMORY, NEAR, SMALL, RESULTS = range(4)


@packed
class MachineRates(NamedTuple):
    """A machine as numbers."""

    memory_bytes_per_s: float
    product_bytes_per_s: float  #: rate of memory traffic that products reach
    link_shape: Float64Matrix  #: [A, N_COLUMNS] for each mesh axis, see topology.HOPS
    op_overhead_s: float
    paper_mode: bool
    tile: float  #: side of the matrix unit's array, 0: all sizes are equally good
    multiprocessors: float  #: of a GPU, 0: products do not come in waves; see ``GpuProducts``
    sustained: float
    product_start_s: float
    #: products run late, see ``Memory``, as long as no more than this is alive
    waiting_room_bytes: float
    near_bytes: float  #: largest value in vector memory, 0: there is no such memory
    near_room_bytes: float  #: room for all values in vector memory
    ring_devices: float  #: smallest group for ``collective_matmul``, 0: it does not apply
    ring_bytes_per_s: float  #: bytes that a device sends one way around a ring
    near_bytes_per_s: float  #: rate at which products read vector memory
    combined_sum_bytes: float  #: most bytes of a combined sum
    transposed_numbers_per_s: float  #: rate of a transposing copy in memory
    shifted_numbers_per_s: float  #: see ``shifted_numbers``
    gathered_ahead: float  #: share of a gather that may run beside earlier products
    #: most time so hidden, over the compute time of the op that needs the gather: 1; inf for bounds
    ahead_of: float


@packed
class ListedTimes(NamedTuple):
    """Times from better sources than the rules: ``E`` entries, found by op and ``step_code``.

    The entries of an op are contiguous. See ``price_list`` for where they come from.
    """

    begin: Int32Array  #: [O] first entry of each op ...
    end: Int32Array  #: [O] ... and the one after its last
    code: Int64Array  #: [E] see ``step_code``
    time_s: Float64Array  #: [E] of one step, trips of loops included
    compute_scale: float  #: factor on the rules' times of computing
    moving_scale: float  #: factor on the rules' times of collectives


def no_listed_times(n_ops: int) -> ListedTimes:
    """A list without entries."""
    none = np.zeros(n_ops, np.int32)
    return ListedTimes(
        begin=none,
        end=none,
        code=np.zeros(0, np.int64),
        time_s=np.zeros(0),
        compute_scale=1.0,
        moving_scale=1.0,
    )


@packed
class Prices(NamedTuple):
    """What the steps of a state cost, by op and by use; arrays that the kernel fills."""

    op_time_s: Float64Array  #: [O] compute and collectives of the op's steps
    copied: Int8Array  #: [U] int8 how a use gets its value: AS_KEPT, BROUGHT or REUSED
    #: [U] bytes of the copy that a BROUGHT use adds to memory until the copy's last use
    copy_bytes: Float64Array
    passing_bytes: Float64Array  #: [O] bytes in memory only while the op runs
    #: [O] int8 1: the op's result is summed over devices; filled where products may run late
    summed: Int8Array


@packed
class StepPrices(NamedTuple):
    """What each step costs; scratch of the kernel."""

    time_s: Float64Array  #: [S]
    flops: Float64Array  #: [S]
    bytes: Float64Array  #: [S] read and written
    times: Float64Array  #: [S] how often it runs
    entry: Int32Array  #: [S] entry of ``ListedTimes`` that the time is from, -1: the rule
    ahead_s: Float64Array  #: [S] part of the time that may run beside earlier products


def step_prices(rows: int) -> StepPrices:
    """Scratch for ``rows`` steps."""
    return StepPrices(
        time_s=np.zeros(rows),
        flops=np.zeros(rows),
        bytes=np.zeros(rows),
        times=np.ones(rows),
        entry=np.full(rows, -1, np.int32),
        ahead_s=np.zeros(rows),
    )


def prices(tables: Tables) -> Prices:
    """Arrays for the prices of a program."""
    n_ops, n_uses = len(tables.op_row), len(tables.use_value)
    return Prices(
        op_time_s=np.zeros(n_ops),
        copied=np.zeros(n_uses, np.int8),
        copy_bytes=np.zeros(n_uses),
        passing_bytes=np.zeros(n_ops),
        summed=np.zeros(n_ops, np.int8),
    )


@packed
class PriceInputs(NamedTuple):
    """A program on a mesh of a machine: everything that prices depend on apart from the plan.

    Either op by op, or folded (``fold``) into ``O'`` ops, each of which stands for ``times`` ops.
    """

    tables: Tables
    facts: ProgramFacts
    memory: Memory
    ranges: LiveRanges
    times: Float64Array  #: [O'] how many ops each one stands for
    rates: MachineRates
    axis_size: Int64Array  #: [A]
    listed: ListedTimes


@packed
class Lifetimes(NamedTuple):
    """Lifetimes under a plan, and the bytes in memory; arrays that the kernel fills.

    These bytes are counted at ``P`` places of the program, see ``LiveRanges``.
    """

    size: Float64Array  #: [V] bytes of each value as it is kept
    run_late: Int8Array  #: [1] int8 1: products run late, see ``Buffers.read_late``
    last: Int32Array  #: [C] last op at which a copy is needed
    live: Float64Array  #: [P + 1] bytes in memory at each place
    near: Float64Array  #: [P + 1] further bytes, in vector memory
    #: [P + 1, 4] change in bytes at each place; columns are ``IN_MEMORY`` and the others
    change: Float64Matrix
    reserved: Float64Array  #: [P + 1] bytes reserved for results, and unused so far


def lifetimes(inputs: PriceInputs) -> Lifetimes:
    """Arrays for the lifetimes of a program."""
    rows = inputs.ranges.n_places + 1
    return Lifetimes(
        size=np.empty(len(inputs.tables.value_op)),
        run_late=np.zeros(1, np.int8),
        last=np.empty(len(inputs.ranges.copy_use), np.int32),
        live=np.empty(rows),
        near=np.empty(rows),
        change=np.empty((rows, 4)),
        reserved=np.empty(rows),
    )
