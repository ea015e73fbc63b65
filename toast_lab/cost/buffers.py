"""The live ranges of everything that is written to memory, in program order.

They are computed once per program on a machine, before there is a plan.

Reference: TOAST section 4.5.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from toast_lab.cost.fusion import Fusion
from toast_lab.cost.host_traffic import beside_link, first_reads
from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind
from toast_lab.packs import BoolArray, Float64Array, Int32Array, packed
from toast_lab.sharding.steps import Tables

#: Most products that may run while a value stays in vector memory. A value that is needed even
#: later goes to memory and comes back, like what the forward pass keeps for the backward pass.
NEAR_PRODUCTS = 8
#: Most times that memory could bring the value while these run. libtpu 0.0.42 leaves values of 8
#: MiB and more in vector memory where it could up to 26 times, and does not where it could 40 times
#: and more (``llama`` for v6e).
NEAR_ROUNDS = 30.0


@packed
class Buffers(NamedTuple):
    """Written values, and the ops at which they are alive."""

    value: Int32Array  #: [B] value that represents it
    start: Int32Array  #: [B] first op at which it is alive
    end: Int32Array  #: [B] last op at which it is alive; O: to the end
    #: [B] value that represents the result that may take over its memory at its last op, if both
    #: have equal size; or -1
    heir: Int32Array
    near: BoolArray  #: [B] bool: may stay in vector memory if it is small enough
    computed: BoolArray  #: [B] bool: not an argument
    result: BoolArray  #: [B] bool: a result that takes over no argument's memory
    #: [B] the last product that reads it, of those that run late if their result is summed over
    #: devices; or -1
    read_late: Int32Array
    written_late: Int32Array  #: [B] the same for the product that writes it


@packed
class Memory(NamedTuple):
    """Live ranges over the ops of the whole program, whether or not its prices are folded.

    The ``B`` buffers are written values. Each has the size of the value that represents it (itself,
    if nothing is folded).
    """

    buffers: Buffers
    late_op: int  #: the last product that runs late; others that do run just before it
    like_use: Int32Array  #: [U] the use that is priced in its place
    like_op: Int32Array  #: [O] the op that is priced in its place
    use_op: Int32Array  #: [U]
    use_value: Int32Array  #: [U]
    use_until: Int32Array  #: [U] see ``Tables``
    runs_at: Int32Array  #: [O] op at which it runs, another one if it is fused
    ends_at: Int32Array  #: [O] last op whose kernel contains it
    products: Int32Array  #: [O + 2] number of products before each op
    #: [O + 2] bytes that memory could bring while these run, divided by ``NEAR_ROUNDS``
    passed_bytes: Float64Array
    region: Int32Array  #: [O] innermost region, -1 outside all
    region_parent: Int32Array  #: [R + 1]
    region_begin: Int32Array  #: [R + 1]
    region_end: Int32Array  #: [R + 1]; 0 except for loops, since only they extend lifetimes


class NearFacts(NamedTuple):
    """Facts that decide whether a value may stay in vector memory."""

    may_be_near: np.ndarray  #: [V] see ``program_facts.ValueFacts``
    kept_bytes: np.ndarray  #: [V] bytes of each value as it is kept
    product_bytes: np.ndarray  #: [O] bytes that memory could bring while an op multiplies


def make_memory(
    program: p.Program,
    tables: Tables,
    fusion: Fusion,
    last_op: np.ndarray,
    root: np.ndarray,
    in_place: np.ndarray,
    near: NearFacts,
) -> Memory:
    """Compute the live ranges in program order."""
    n_ops, n_arguments, runs_at = program.n_ops, program.n_arguments, fusion.runs_at
    on_device = _on_device(program)
    value = np.flatnonzero(fusion.written & on_device)
    maker = program.value_op[value]
    argument = maker < n_arguments
    start = np.where(argument, 0, runs_at[maker])
    # Values computed on the way out of a product are in memory from the product on. Results of the
    # program overwrite what they update, and sums the value to which they add.
    head = fusion.head[maker]
    is_inside = fusion.product[head] & ~tables.value_output[value]
    start = np.where(is_inside, head, start)
    is_result = np.isin(value, _results_apart(program, root[program.outputs]))
    end = np.maximum(last_op[value], start)
    stays_to_end = np.zeros(n_ops, bool)
    stays_to_end[:n_arguments] = ~program.donated
    end = np.where(stays_to_end[maker], n_ops, end)
    # The device has a copy of an argument in host memory while ops read it
    for brought, first_op in first_reads(program).items():
        is_copy = value == brought
        start = np.where(is_copy, runs_at[first_op], start)
        end = np.where(is_copy, np.maximum(last_op[value], start), end)
        argument = argument & ~is_copy
    has_heir = (end >= n_arguments) & (end < n_ops) & (end > start)
    dying_op = np.where(has_heir, end, 0)
    heir = program.result_ptr[dying_op].astype(np.int32)
    has_heir[has_heir] = in_place[dying_op[has_heir]] & fusion.written[heir[has_heir]]
    if not fusion.style.reuses_places:
        is_elementwise = program.op_class[dying_op] == p.ELEMENTWISE
        has_heir &= argument | ~is_elementwise | _updates(program, fusion)[dying_op]
    late_products = np.flatnonzero(fusion.runs_late & fusion.product).tolist()
    read_late = np.full(program.n_values, -1)
    for op in late_products:
        for operand in program.operands(op):
            read_late[root[operand]] = op
    products, passed_bytes = np.zeros(n_ops + 2, np.int32), np.zeros(n_ops + 2)
    products[1 : n_ops + 1] = np.cumsum(fusion.product)
    passed_bytes[1 : n_ops + 1] = np.cumsum(fusion.product * near.product_bytes) / NEAR_ROUNDS
    products[-1], passed_bytes[-1] = products[n_ops], passed_bytes[n_ops]
    last = np.minimum(end, n_ops)
    is_near = (products[last] - products[start + 1] <= NEAR_PRODUCTS) & (
        passed_bytes[last] - passed_bytes[start + 1] <= near.kept_bytes[value]
    )
    uses, ops = np.arange(program.n_uses, dtype=np.int32), np.arange(n_ops, dtype=np.int32)
    # One row more than there are regions, for ops outside all of them.
    regions = program.regions
    loop_ends = [region.end if region.kind == "loop" else 0 for region in regions]
    is_near &= ~np.isin(value, root[np.asarray(beside_link(program), int)])
    return Memory(
        buffers=Buffers(
            value=value.astype(np.int32),
            start=start.astype(np.int32),
            end=end.astype(np.int32),
            heir=np.where(has_heir, heir, -1).astype(np.int32),
            near=near.may_be_near[value] & is_near,
            computed=~argument,
            result=is_result,
            read_late=read_late[value].astype(np.int32),
            written_late=np.where(np.isin(maker, late_products), maker, -1).astype(np.int32),
        ),
        late_op=max(late_products, default=0),
        like_use=uses,
        like_op=ops,
        use_op=tables.use_op,
        use_value=tables.use_value,
        use_until=tables.use_until,
        runs_at=runs_at.astype(np.int32),
        ends_at=fusion.ends_at.astype(np.int32),
        products=products,
        passed_bytes=passed_bytes,
        region=program.region,
        region_parent=np.asarray([*(region.parent for region in regions), -1], np.int32),
        region_begin=np.asarray([*(region.begin for region in regions), 0], np.int32),
        region_end=np.asarray([*loop_ends, 0], np.int32),
    )


def _on_device(program: p.Program) -> np.ndarray:
    """[V] bool: values that are in a device's memory, at least as a copy."""
    on_device = np.ones(program.n_values, bool)
    on_device[list(program.host.values)] = False
    on_device[list(first_reads(program))] = True
    return on_device


def _updates(program: p.Program, fusion: Fusion) -> np.ndarray:
    """[O] bool: elementwise ops that have to write their result over an operand.

    Among these are ops whose result a loop hands on to its next round.
    """
    updates = np.zeros(program.n_ops, bool)
    for op in np.flatnonzero(program.op_class == p.ELEMENTWISE).tolist():
        (result, *_) = program.results(op)
        consumers = fusion.consumers[result]
        updates[op] |= bool(consumers) and all(
            consumer < program.n_ops and program.op_class[consumer] == p.CONTROL
            for consumer in consumers
        )
    return updates


def _results_apart(program: p.Program, results: np.ndarray) -> list[int]:
    """Results of the program that find no donated argument whose memory they could take over.

    Results of loops, branches and updates in place use memory that exists already; they are left
    out.
    """
    unclaimed: dict[tuple[Any, ...], int] = defaultdict(int)
    on_host = set(program.host.values)
    for argument in set(np.flatnonzero(program.donated).tolist()) - on_host:
        for value in program.results(argument):
            unclaimed[(*program.dims(value), program.value_dtype[value])] += 1
    apart = []
    for value in dict.fromkeys(results.tolist()):
        op, form = int(program.value_op[value]), (*program.dims(value), program.value_dtype[value])
        if op < program.n_arguments or value in on_host:
            continue
        if unclaimed[form]:
            unclaimed[form] -= 1
        elif program.op_class[op] != p.CONTROL and op_kind(program.kind[op]).update_operand < 0:
            apart.append(value)
    return apart
