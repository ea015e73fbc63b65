"""Propagation: how a sharding of arguments spreads through a program, one mesh axis at a time.

Partitioners with a propagating compiler work in this way, and searches over argument shardings rely
on it. The sharding of one argument dim goes forward to the ops that use the argument and to their
results, and backward to their other operands and the ops that make those, until nothing changes.
Nothing is computed ahead of time, and colours and repeated layers play no part: every op is
considered by itself.

The op's rule says what a value's dim means to the op: the dim has one factor of the op. An op *is
wanted* along the factors of the dims in which its operands and results are sharded on the axis; a
value *is wanted* in the dims along which the ops that use it are split. An op that is wanted along
one factor takes it. An op that is wanted along two is in conflict and left as it is: it is computed
whole on this axis, and its operands are gathered for it. The same holds for values. Earlier
decisions are never revised, so their order matters, as it does for PartIR's tactics. Example: in
``x @ x.T`` with the rows of ``x`` on ``a``, the operands want different dims of the product, so the
product is whole.

Passes alternate between forward (an op, then its results) and backward (results by their uses, then
the op). In a forward pass an op is decided after everything that it reads, in a backward pass after
everything that reads its results, so the outcome does not depend on the order in which independent
ops are listed. The ops of a loop or conditional that share factors (see ``toast_lab.ir.walk``) are
decided as one, at the position of the op that has the factors.

Factors that cannot be sharded, or whose size the axis does not divide, are never wanted. Values
made of constants neither take on nor pass on shardings. Arguments and results that propagation does
not reach stay whole.

Differences from the published engines: PartIR rewrites the program into loops and propagates
through those; here the loops are implied. Shardy also orders ops by priority and settles some
conflicts by size (see ``tests/lowering/test_propagation_oracle.py``). Only the major factor of a
merged dim is propagated, since a plan can express no more.

Reference: TOAST section 2.2 ("How it was done before"); PartIR (arXiv 2401.11202), section on
propagation. Start reading at ``Propagation``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.kernels import compiled, helper
from toast_lab.packs import (
    BoolMatrix,
    Int8Matrix,
    Int32Array,
    Int32Matrix,
    Int64Array,
    Int64Matrix,
    packed,
)
from toast_lab.ragged import Ragged
from toast_lab.sharding.divides import divides
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.touches import Touches, touches_of

if TYPE_CHECKING:
    from toast_lab.sharding.pins import Pins

CONFLICT = -2  #: wanted along two factors, or in two dims
#: waiting ops are looked for in blocks of this size, so that a small change costs little
BLOCK = 64


@packed
class Flow(NamedTuple):
    """Where ops and values meet, as arrays for compiled code.

    ``O`` ops, ``V`` values, ``U`` uses, ``F`` factors, ``A`` axes. *Op* means the one that has the
    factors (``program.owner``); the rows of other ops are empty. A *touch* is a place where a
    value meets an op: first come the uses, then the definitions (touch ``U + v`` defines value
    ``v``).
    """

    touches: Touches
    value_use_ptr: Int32Array  #: [V+1] row starts into value_use
    value_use: Int32Array  #: [U] uses of each value
    value_dim_ptr: Int32Array  #: [V+1] row starts into value_size
    #: [A, sum of ranks] sizes; 1 where the axis may not cut (constants, pins)
    value_size: Int64Matrix
    factor_size: Int64Array  #: [F]
    #: [A, F] bool: the factor can be sharded, the axis by itself divides it, and pins allow it
    usable: BoolMatrix
    axis_size: Int64Array  #: [A]


@packed
class Waiting(NamedTuple):
    """Ops to visit in the next pass forward (row 0) and backward (row 1)."""

    ops: BoolMatrix  #: [2, O or more]
    blocks: BoolMatrix  #: [2, blocks] which blocks of ops may have such ops


class Propagation:
    """Propagates through one program on one mesh; holds scratch arrays, so use one per thread.

    With ``pins`` every state obeys them: it has their fixed entries from the start, and takes on
    none that they close.
    """

    def __init__(self, analysis: Analysis, mesh: Mesh, pins: Pins | None = None) -> None:
        self.analysis, self.mesh, self.pins = analysis, mesh, pins
        self.flow = _flow(analysis, mesh, pins)
        self._start: Sharding | None = None
        blocks = -(-analysis.program.n_ops // BLOCK)
        self._waiting = Waiting(
            np.zeros((2, blocks * BLOCK), np.bool_), np.zeros((2, blocks), np.bool_)
        )

    def start(self) -> Sharding:
        """The fixed entries of the pins, propagated; without pins the unsharded state."""
        if self._start is None:
            self._start = self.unsharded()
            if self.pins is not None:
                self._start = Sharding(self.pins.op_fixed.copy(), self.pins.value_fixed.copy())
                for value, axis in self.pins.sharded_values():
                    dim = int(self.pins.value_fixed[value, axis])
                    # ``shard`` skips values that have the axis already, so this one gives it up
                    # first.
                    self._start.value_dim[value, axis] = -1
                    self.shard(self._start, np.array([value]), dim, axis)
        return self._start.copy()

    def unsharded(self) -> Sharding:
        """The state in which nothing is sharded, pins ignored."""
        return Sharding.whole(self.analysis.program, len(self.mesh.axes))

    def shard(self, state: Sharding, values: np.ndarray, dim: int, axis: int) -> int:
        """Shard ``dim`` of each of ``values`` on ``axis`` (by number) and propagate, in place.

        The values are taken in order, each with its own propagation. A value that an earlier one
        has already reached on this axis, or whose dim the axis no longer divides, is left as it is.
        Gives the number of ops and values changed.
        """
        return int(
            shard_values(
                self.flow,
                state.op_factor,
                state.value_dim,
                np.asarray(values, np.int32),
                dim,
                axis,
                self._waiting,
            )
        )


def _flow(analysis: Analysis, mesh: Mesh, pins: Pins | None) -> Flow:
    program, axis_size = analysis.program, mesh.array()
    usable = analysis.names.shardable & (program.factor_size % axis_size[:, None] == 0)
    uses = Ragged.by_key(program.use_value, program.n_values)
    never_cut = np.repeat(program.value_is_constant, np.diff(program.shape_ptr)) | program.hidden
    closed = np.tile(never_cut, (len(axis_size), 1))
    if pins is not None:
        usable &= ~pins.name_closed.T
        closed |= pins.dim_closed.T
    return Flow(
        touches=touches_of(program),
        value_use_ptr=uses.ptr.astype(np.int32),
        value_use=uses.flat.astype(np.int32),
        value_dim_ptr=np.array(program.shape_ptr, np.int32),
        value_size=np.where(closed, 1, program.shape),
        factor_size=program.factor_size,
        usable=usable,
        axis_size=axis_size,
    )


@helper
def _wanted_factor(flow: Flow, op: int, held: np.ndarray, usable: np.ndarray) -> int:
    """The one factor along which the values around ``op`` want it, -1: none, CONFLICT: several."""
    wanted_factor = -1
    for row in range(flow.touches.ptr[op], flow.touches.ptr[op + 1]):
        touch = flow.touches.touch[row]
        dim = held[flow.touches.value[touch]]
        if dim >= 0:
            factor = flow.touches.dim_factor[flow.touches.dim_ptr[touch] + dim]
            if usable[factor] and wanted_factor != factor:
                if wanted_factor >= 0:
                    return CONFLICT
                wanted_factor = factor
    return wanted_factor


@helper
def _wanted_dim(flow: Flow, value: int, split: np.ndarray) -> int:
    """The one dim in which the ops that use ``value`` want it, -1: none, CONFLICT: several."""
    wanted_dim = -1
    for row in range(flow.value_use_ptr[value], flow.value_use_ptr[value + 1]):
        use = flow.value_use[row]
        factor = split[flow.touches.op[use]]
        if factor >= 0:
            dim = _dim_of(flow, value, use, factor)
            if dim >= 0 and wanted_dim != dim:
                if wanted_dim >= 0:
                    return CONFLICT
                wanted_dim = dim
    return wanted_dim


@helper
def _dim_of(flow: Flow, value: int, touch: int, factor: int) -> int:
    """The first dim of ``value`` that has the factor at a touch, -1: none."""
    start = flow.touches.dim_ptr[touch]
    for dim in range(flow.value_dim_ptr[value + 1] - flow.value_dim_ptr[value]):
        if flow.touches.dim_factor[start + dim] == factor:
            return dim
    return -1


@compiled
def shard_values(
    flow: Flow,
    op_factor: Int32Matrix,
    value_dim: Int8Matrix,
    values: Int32Array,
    dim: int,
    axis: int,
    waiting: Waiting,
) -> int:
    """The kernel of ``Propagation.shard``.

    ``waiting.ops[2, O in whole blocks]`` and ``waiting.blocks[2, blocks]`` have to be all False.
    """
    split = op_factor[:, axis]
    changed = 0
    for value in values:
        if value_dim[value, axis] < 0 and _hold(flow, value_dim, split, value, dim, axis, waiting):
            changed += 1 + _spread(flow, op_factor, value_dim, axis, waiting)
    return changed


@helper
def _hold(
    flow: Flow,
    value_dim: np.ndarray,
    split: np.ndarray,
    value: int,
    dim: int,
    axis: int,
    waiting: Waiting,
) -> bool:
    """Shard a dim of a value on ``axis`` if that divides, and let the ops that it meets wait."""
    size = flow.value_size[axis, flow.value_dim_ptr[value] + dim]
    if not divides(size, value_dim, value, dim, axis, flow.axis_size):
        return False
    value_dim[value, axis] = dim
    # Ops that already have a factor on the axis do not wait.
    _wait_both_ways(flow.touches.op[flow.touches.n_uses + value], split, waiting)
    for row in range(flow.value_use_ptr[value], flow.value_use_ptr[value + 1]):
        _wait_both_ways(flow.touches.op[flow.value_use[row]], split, waiting)
    return True


@helper
def _wait_both_ways(op: int, split: np.ndarray, waiting: Waiting) -> None:
    if split[op] < 0:
        _wait(op, 0, waiting)
        _wait(op, 1, waiting)


@helper
def _wait(op: int, direction: int, waiting: Waiting) -> None:
    waiting.ops[direction, op] = True
    waiting.blocks[direction, op // BLOCK] = True


@helper
def _spread(
    flow: Flow,
    op_factor: np.ndarray,
    value_dim: np.ndarray,
    axis: int,
    waiting: Waiting,
) -> int:
    """Make forward and backward passes until no op waits, and return the number of changes."""
    n_uses, n_blocks = flow.touches.n_uses, waiting.blocks.shape[1]
    split, held, usable = op_factor[:, axis], value_dim[:, axis], flow.usable[axis]
    changed = 0
    while True:
        visited = False
        for visit in range(2 * n_blocks):
            direction = 0 if visit < n_blocks else 1
            block = visit if visit < n_blocks else 2 * n_blocks - 1 - visit
            if not waiting.blocks[direction, block]:
                continue
            visited = True
            for offset in range(BLOCK):
                op = block * BLOCK + (offset if direction == 0 else BLOCK - 1 - offset)
                if not waiting.ops[direction, op]:
                    continue
                waiting.ops[direction, op] = False
                begin, end = flow.touches.ptr[op], flow.touches.ptr[op + 1]
                if direction == 1:  # the results follow their uses
                    for row in range(begin, end):
                        touch = flow.touches.touch[row]
                        value = flow.touches.value[touch]
                        if touch < n_uses or held[value] >= 0:
                            continue
                        dim = _wanted_dim(flow, value, split)
                        if dim >= 0 and _hold(flow, value_dim, split, value, dim, axis, waiting):
                            changed += 1
                if split[op] < 0:
                    factor = _wanted_factor(flow, op, held, usable)
                    if factor >= 0 and divides(
                        flow.factor_size[factor], op_factor, op, factor, axis, flow.axis_size
                    ):
                        split[op] = factor
                        changed += 1
                        # The ops that make its operands, and the op itself, may follow.
                        for row in range(begin, end):
                            touch = flow.touches.touch[row]
                            value = flow.touches.value[touch]
                            if held[value] < 0:
                                other_direction = 0 if touch >= n_uses else 1
                                _wait(flow.touches.op[n_uses + value], other_direction, waiting)
                if direction == 0 and split[op] >= 0:  # the results follow the op
                    waiting.ops[0, op] = False
                    for row in range(begin, end):
                        touch = flow.touches.touch[row]
                        value = flow.touches.value[touch]
                        if touch < n_uses or held[value] >= 0:
                            continue
                        dim = _dim_of(flow, value, touch, split[op])
                        if dim >= 0 and _hold(flow, value_dim, split, value, dim, axis, waiting):
                            changed += 1
            # Because of loops, an op before the one just visited may wait now: it is left for the
            # next pass.
            waiting.blocks[direction, block] = False
            for op in range(block * BLOCK, (block + 1) * BLOCK):
                waiting.blocks[direction, block] |= waiting.ops[direction, op]
        if not visited:
            return changed
