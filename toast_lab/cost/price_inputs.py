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
    BoolArray,
    Float64Array,
    Float64Matrix,
    Int8Array,
    Int32Array,
    Int64Array,
    packed,
)
from toast_lab.sharding.steps import Tables

#: Of a GPU's memory: what XLA's scheduler lets be alive for the sake of order.
WAITING_SHARE = 0.8
#: Of vector memory, for all values that are there at once: libtpu keeps 16 of 128 MiB for kernels.
ROOM_SHARE = 0.875
#: Of vector memory, which a value may take to be there. By libtpu 0.0.42.1 for v5e, in four steps,
#: 6 in 7 results of kernels were there of less than 8 MiB, half from 32 MiB, a quarter from 64 MiB.
NEAR_SHARE = 0.25
#: At which products read vector memory. By libtpu 0.0.42.1 8 to 32 rows take 8.7 to 9.5 us for a
#: bfloat16 matrix of 4096 squared there, on v5e and v6e alike.
NEAR_BYTES_PER_S = 3.8e12
AS_KEPT, BROUGHT, REUSED = range(3)
#: Bytes that are in memory; that vector memory may do for; that could lie in the place of a result
#: of the program; and of such results themselves.
IN_MEMORY, NEAR, SMALL, RESULTS = range(4)


@packed
class MachineRates(NamedTuple):
    """A machine as numbers."""

    memory_bytes_per_s: float
    product_bytes_per_s: float  #: of memory traffic that products reach
    link_bytes_per_s: Float64Array  #: [A] for each mesh axis
    link_latency_s: Float64Array  #: [A]
    switched: BoolArray  #: [A] bool
    link_shape: Float64Matrix  #: [A, N_COLUMNS], see topology.HOPS
    op_overhead_s: float
    paper_mode: bool
    tile: float  #: side of the matrix unit's array, 0: any size is as good
    multiprocessors: float  #: of a GPU, 0: products do not come in waves; see ``GpuProducts``
    sustained: float
    product_start_s: float
    #: Of memory: products wait behind others, see ``Memory``, as long as not more is alive
    waiting_room_bytes: float
    near_bytes: float  #: most that a value in vector memory takes, 0: there is none
    near_room_bytes: float  #: of vector memory, for all values in it
    ring_devices: float  #: smallest group for ``collective_matmul``, 0: there is none
    ring_bytes_per_s: float  #: that a device sends one way around a ring
    near_bytes_per_s: float  #: at which products read vector memory
    transposed_numbers_per_s: float  #: that a transposing copy in memory takes
    unfused_numbers_per_s: float  #: that a kernel of a single op takes beside its traffic
    vector_steps_per_s: float  #: of the vector unit, see ``vector_work``
    #: share of a gather that runs beside earlier products, as far as the op that needs it computes
    gathered_ahead: float
    ahead_of: float  #: that many times what the op computes can hide it: once; inf, for bounds


@packed
class ListedTimes(NamedTuple):
    """Times that are known better than by rule: ``E`` entries, found by op and ``step_code``.

    The entries of an op stand in a row.  See ``price_list`` for where they come from.
    """

    begin: Int32Array  #: [O] first entry of each op ...
    end: Int32Array  #: [O] ... and the one after its last
    code: Int64Array  #: [E] see ``step_code``
    time_s: Float64Array  #: [E] of one step, trips of loops included
    compute_scale: float  #: what the rules' times of computing are multiplied by
    moving_scale: float  #: what those of collectives are


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
    #: [U] what a use that is BROUGHT its value adds to memory until the copy's last use
    copy_bytes: Float64Array
    passing_bytes: Float64Array  #: [O] what is in memory at the op alone
    #: [O] int8 1: what the op computes is summed over devices; where products may wait for that
    summed: Int8Array


@packed
class StepPrices(NamedTuple):
    """What each step costs; scratch of the kernel."""

    time_s: Float64Array  #: [S]
    flops: Float64Array  #: [S]
    bytes: Float64Array  #: [S] read and written
    times: Float64Array  #: [S] how often it runs
    entry: Int32Array  #: [S] entry of ``ListedTimes`` that the time is from, -1: the rule
    ahead_s: Float64Array  #: [S] what of it, in its turn, may run beside earlier products


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
    """A program on a mesh of a machine: all that prices depend on beside the plan.

    Op by op, or folded (``fold``): ``O'`` ops, each of which stands for ``times`` ops.
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
    """How long things live under a plan; arrays that the kernel fills.

    ``P`` places at which is asked what is in memory, see ``LiveRanges``.
    """

    size: Float64Array  #: [V] bytes of each value as it is kept
    waiting: Int8Array  #: [1] int8 1: products wait, see ``Memory.buffer_read_late``
    last: Int32Array  #: [C] last op at which a copy is needed
    live: Float64Array  #: [P + 1] bytes in memory at each place
    near: Float64Array  #: [P + 1] bytes that are alive as well, in vector memory
    #: [P + 1, 4] what comes and goes at each place, see ``IN_MEMORY`` and the others
    change: Float64Matrix
    reserved: Float64Array  #: [P + 1] bytes of the places of results that nothing uses yet


def lifetimes(inputs: PriceInputs) -> Lifetimes:
    """Arrays for the lifetimes of a program."""
    rows = inputs.ranges.n_places + 1
    return Lifetimes(
        size=np.empty(len(inputs.tables.value_op)),
        waiting=np.zeros(1, np.int8),
        last=np.empty(len(inputs.ranges.copy_use), np.int32),
        live=np.empty(rows),
        near=np.empty(rows),
        change=np.empty((rows, 4)),
        reserved=np.empty(rows),
    )
