"""Ops computed on the way out of a matrix product, in the product's own kernel.

``docs/machines.md`` says which ops these are ("Kernels of a TPU"). Of the values in the kernel one
is written: the smallest of those through which everything that follows has to go. Others are
written only if no reader could compute them again from it.

Read off libtpu 0.0.42.1 for v5e on products of 256 to 16,384 rows by 2,048 to 8,192 squared, with
and without casts, activations, updates and sums.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

_MOST_OPS = 64  # in one kernel, so that it stays small


class FusionGraph(NamedTuple):
    """The facts of a program that decide which kernel computes an op, as lists."""

    n_arguments: int
    n_ops: int
    operands: Sequence[Sequence[int]]  #: [O] roots of the values that each op reads
    results: Sequence[Sequence[int]]  #: [O]
    maker: Sequence[int]  #: [V]
    region: Sequence[int]  #: [O]
    #: [V] ops that read each value, views looked through; O: a result of the program
    consumers: Sequence[Set[int]]
    elements: Sequence[float]  #: [V] how many numbers it has
    bytes: Sequence[float]  #: [V]
    is_root: Sequence[bool]  #: [V] not a view of another value
    is_constant: Sequence[bool]  #: [V]
    is_output: Sequence[bool]  #: [V]
    free: Sequence[bool]  #: [O]
    product: Sequence[bool]  #: [O]
    computable_in_parts: Sequence[bool]  #: [O] elementwise, or moves elements
    elementwise: Sequence[bool]  #: [O]
    takes: Sequence[bool]  #: [O] computes soft operands on its way in
    reduces: Sequence[bool]  #: [O]


class Epilogues(NamedTuple):
    """The ops in the kernels of products, and the values that these kernels write."""

    product: np.ndarray  #: [O] the product in whose kernel the op can be computed, -1: none
    #: [O] for a product, the op after which its kernel writes: itself, or the last in its kernel
    end: np.ndarray
    inner: frozenset[int]  #: values that exist only inside such a kernel
    ends: frozenset[int]  #: values that such kernels write


def no_epilogues(n_ops: int) -> Epilogues:
    """For compilers that write products as they are."""
    return Epilogues(np.full(n_ops, -1), np.arange(n_ops), frozenset(), frozenset())


def epilogues(graph: FusionGraph) -> Epilogues:
    """Assign ops to the kernels of products; an op goes to the last product that it depends on."""
    every = no_epilogues(graph.n_ops)
    inner, ends = set[int](), set[int]()
    for op in range(graph.n_ops):
        if graph.product[op] and not graph.free[op] and len(graph.results[op]) == 1:
            (value,) = graph.results[op]
            if graph.is_root[value]:
                _end(graph, op, epilogues=every, inner=inner, ends=ends)
    return every._replace(inner=frozenset(inner), ends=frozenset(ends))


def _end(
    graph: FusionGraph, op: int, *, epilogues: Epilogues, inner: set[int], ends: set[int]
) -> None:
    """Find the ops in one product's kernel, and the values that it writes."""
    (value,) = graph.results[op]
    members = _members(graph, op, epilogues.product)
    if not members:
        return
    inside = {
        value,
        *(graph.results[member][0] for member in members if graph.computable_in_parts[member]),
    }
    reached = set(members)
    needed = {
        candidate
        for candidate in inside
        if graph.is_output[candidate] or graph.consumers[candidate] - reached
    }
    epilogues.product[members] = op
    if value not in needed and all(_must_be_written(graph, candidate, op) for candidate in needed):
        inner |= inside - needed
        ends |= needed
        epilogues.end[op] = max(members)
        return
    last = _narrowest(graph, value, reached)
    if last != value:
        end = graph.maker[last]
        inner |= {candidate for candidate in inside if graph.maker[candidate] < end}
        ends.add(last)
        epilogues.end[op] = end
    elif value not in needed and all(
        _goes_into_products(graph, candidate, op, reached) for candidate in needed
    ):
        # Several values are needed, which other products could compute from this one's result.
        if sum(graph.bytes[candidate] for candidate in needed) <= graph.bytes[value]:
            inner |= inside - needed
            ends |= needed
            epilogues.end[op] = max(members)
        else:
            inner |= inside - {value}


def _members(graph: FusionGraph, product: int, taken: np.ndarray) -> list[int]:
    """Ops behind a product that need nothing but its result and values made before it."""
    (value,) = graph.results[product]
    inside, members = {value}, list[int]()
    known: dict[int, bool] = {}
    waiting = sorted(graph.consumers[value])
    seen = set(waiting)
    while waiting and len(members) < _MOST_OPS:
        op = heapq.heappop(waiting)
        if (
            op >= graph.n_ops
            or graph.free[op]
            or taken[op] >= 0
            or graph.region[op] != graph.region[product]
            or not (graph.reduces[op] or graph.computable_in_parts[op])
        ):
            continue
        if not all(
            operand in inside or _precedes(graph, operand, product, known)
            for operand in graph.operands[op]
        ):
            continue
        if graph.computable_in_parts[op]:
            (result,) = graph.results[op]
            if graph.elements[result] != graph.elements[value] or not graph.is_root[result]:
                continue
            inside.add(result)
            for consumer in graph.consumers[result] - seen:
                seen.add(consumer)
                heapq.heappush(waiting, consumer)
        members.append(op)
    return members


def _precedes(graph: FusionGraph, value: int, product: int, known: dict[int, bool]) -> bool:
    """Is a value made before the product, or computed from such values alone?"""
    if value not in known:
        op = graph.maker[value]
        known[value] = (
            graph.is_constant[value]
            or op < product
            or (
                (graph.elementwise[op] or graph.free[op])
                and graph.region[op] == graph.region[product]
                and all(_precedes(graph, operand, product, known) for operand in graph.operands[op])
            )
        )
    return known[value]


def _must_be_written(graph: FusionGraph, value: int, product: int) -> bool:
    """Is it a result, or read by an op that does not compute operands on its way in?"""
    return graph.is_output[value] or any(
        consumer >= graph.n_ops
        or not graph.takes[consumer]
        or graph.region[consumer] != graph.region[product]
        for consumer in graph.consumers[value]
    )


def _goes_into_products(graph: FusionGraph, value: int, product: int, members: Set[int]) -> bool:
    """Do only products of the same region need it outside of the kernel?"""
    return not graph.is_output[value] and all(
        consumer < graph.n_ops
        and graph.product[consumer]
        and graph.takes[consumer]
        and graph.region[consumer] == graph.region[product]
        for consumer in graph.consumers[value] - members
    )


def _narrowest(graph: FusionGraph, value: int, members: Set[int]) -> int:
    """The smallest value, and of equal ones the last, through which all that follows has to go.

    Sums do not count, since they are computed on the way.
    """
    best = current = value
    waiting = sorted(op for op in graph.consumers[value] if not _is_sum(graph, op, members))
    seen = set(waiting)
    while waiting and not graph.is_output[current]:
        op = heapq.heappop(waiting)
        if op not in members:
            break
        all_pass = not waiting
        (current,) = graph.results[op]
        for consumer in graph.consumers[current] - seen:
            if not _is_sum(graph, consumer, members):
                seen.add(consumer)
                heapq.heappush(waiting, consumer)
        if all_pass and graph.bytes[current] <= graph.bytes[best]:
            best = current
    return best


def _is_sum(graph: FusionGraph, op: int, members: Set[int]) -> bool:
    return op in members and graph.reduces[op]
