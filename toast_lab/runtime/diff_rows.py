"""Collectives of a plan and of a compiled program in one form, and why the two may differ."""

from __future__ import annotations

from typing import NamedTuple

from toast_lab.text import bytes_text

EQUAL, CHANGED, MISSING, EXTRA = "equal", "changed", "missing", "extra"
STATUSES = (EQUAL, CHANGED, MISSING, EXTRA)

NARROWER = "sent in another element type: the cast was moved before the collective"
UNCAST = "sent in float32: the price counts on a cast to bfloat16 before it is sent"
OTHER_TIMES = "run another number of times: moved out of a loop, or into one"
SUM_AND_SLICE = "an all_reduce and a local slice instead of a reduce_scatter"
SCATTERED = "scattered, since no device needs the whole sum"
SUM_OF_SHARDS = (
    "gathered as a sum: each device adds its shard in a row of zeros, so that small gathers merge "
    "with other all_reduces"
)
WINDOWED = (
    "passed around in pieces beside the matrix product that needs or makes it (collective matmul)"
)
OTHER_AXES = "over other axes: several steps of ours in one, or one in several"
OTHER_ROUTE = "another route between the same shardings"
OTHER_SIZE = (
    "on a value of another size: before or after a slice, a pad or a reduction, or at another "
    "precision"
)
COMPLEX = "complex numbers are sent as two arrays, of their real and their imaginary parts"
PADDED = "on a padded value, by an eighth at most"
IN_PARTS = "in parts of one size, for instance before a concatenation instead of behind it"
OTHER_OP = (
    "carried by another op: moved past elementwise ops, or named after its neighbour in a fusion"
)
SHARED = "the compiler has one for several: equal ones were merged"
BROADCAST_LATER = (
    "not needed: each device broadcasts what it uses, from what it has or what is sent elsewhere"
)
REASSOCIATED = "summed on each device first, so that one collective serves several sums"
REMATERIALISED = "the partitioner found no efficient reshard (involuntary full rematerialization)"
REPEATED = "the compiler makes the same one again where it would have to be kept long"
IDLE = (
    "cut along an axis that the plan leaves idle there, so that each device sums only a part of it"
)
WHOLE = "whole along an axis that the plan cuts it along, so that each device sums all of it"
ONE_STEP = "several steps of ours in one: the same value is summed over all these axes at once"
KEPT_WHOLE = "not needed: the sum that it gathers or moves was made whole, by an all_reduce"
OTHER_SHARDS = (
    "the compiler computes the op on other shards: it moves operands where the plan sums partial "
    "results, or the other way round, or sums over other axes"
)
EDGES = "neighbours exchange the edges of their shards, of an op computed where its dim is cut"
SCATTERED_ONTO = "gathered to be scattered onto, instead of being added to what is scattered"
REORDER = "devices exchange shards to get into the order that a merged collective wants"
UNEXPLAINED = ""


class Side(NamedTuple):
    """One collective on one array, as priced or as compiled."""

    op: int  #: op index, -1 if unknown
    kind: str
    axes: tuple[str, ...] | None  #: None: not over whole mesh axes
    bytes: float  #: the larger of operand and result on one device
    times: float  #: how often one step runs it
    value: str = ""  #: name in the program; empty on the compiled side
    dtype: str = ""  #: as sent; empty on the priced side
    merged: bool = False  #: one of several arrays of one compiled collective

    @property
    def total_bytes(self) -> float:
        """Bytes in one step."""
        return self.bytes * self.times

    def __str__(self) -> str:
        axes = "?" if self.axes is None else ",".join(self.axes)
        times = f" x{self.times:g}" if self.times != 1 else ""
        return (
            f"{self.kind} {{{axes}}} "
            f"{bytes_text(self.bytes)}{times}{' ' + self.dtype if self.dtype else ''}"
        )


class DiffRow(NamedTuple):
    """One row of the comparison."""

    op: int
    op_kind: str  #: "dot_general"
    where: str  #: source line
    predicted: Side | None
    compiled: Side | None
    status: str  #: one of STATUSES
    reason: str  #: one of the sentences above, "" if none is known (or needed)

    def __str__(self) -> str:
        predicted, compiled = (
            str(side) if side else "-" for side in (self.predicted, self.compiled)
        )
        return (
            f"%{self.op} {self.op_kind} ({self.where}): {predicted} | {compiled} | {self.status}: "
            f"{self.reason or 'unexplained'}"
        )
