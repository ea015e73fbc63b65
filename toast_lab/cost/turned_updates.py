"""Weights that a TPU's compiler turns for their update, and back behind it.

The derivative of ``x @ w`` by ``w`` comes as a product with rows and columns exchanged, and a
transpose puts them right.  Where nothing stands between the two the compiler makes one product of
both.  But a sum over devices does: it sums what the product gave, and the transpose behind it is no
more than another layout in memory.  All that follows element by element is computed in that layout:
the weights and the state of the optimizer are copied into it, and what becomes of them is copied
out of it, for a program's arguments and results have their order.  Products with batch dims are
never made one with a transpose.

A matrix of fewer columns than a tile has lanes lies turned from the start, as that is smaller.

Read off libtpu 0.0.42.1 for v5e: nine training steps, with gradient descent and Adam, data parallel
and fully sharded, and gradients that are results themselves.

Reference: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.cost.dim_order import Order, is_turned, order_of
from toast_lab.cost.loop_sums import users_of
from toast_lab.cost.matrix_tiles import LANES
from toast_lab.ir import program as p
from toast_lab.packs import Float64Array
from toast_lab.sharding.steps import Tables


class Turned(NamedTuple):
    """Numbers that are copied because a product gives a gradient turned, by product."""

    arguments: Float64Array  #: [O] of arguments of the program
    results: Float64Array  #: [O] of its results


def none_turned(n_ops: int) -> Turned:
    """Of compilers that choose other layouts."""
    return Turned(np.zeros(n_ops), np.zeros(n_ops))


def turned_updates(program: p.Program, tables: Tables, numbers: Float64Array) -> Turned:
    """Of each product that a transpose and elementwise ops lead from to results of the program.

    The product's own numbers count for each of these results and for each argument that takes part.
    What several products lead to is counted once.  Inside loops nothing is.

    Args:
        program: the program.
        tables: its tables.
        numbers: [V] that each value has.
    """
    turned, counted = none_turned(program.n_ops), set[int]()
    for op in np.flatnonzero(program.op_class == p.DOT).tolist():
        (value,) = program.results(op)
        if _has_whole_rows(program.dims(value)):
            walk = _Turning(program, tables, numbers, value)
            results = walk.results() - counted
            if results:
                counted |= results
                turned.results[op] = walk.numbers * len(results)
                turned.arguments[op] = walk.numbers * len(walk.arguments - counted)
                counted |= walk.arguments
    return turned


def _has_whole_rows(dims: Sequence[int]) -> bool:
    return len(dims) > 1 and dims[-1] >= LANES


class _Turning:
    """What elementwise ops compute of a product's result once it is turned."""

    def __init__(
        self, program: p.Program, tables: Tables, numbers: Float64Array, value: int
    ) -> None:
        self._program, self._tables, self._start = program, tables, value
        self._numbers_of = numbers
        self.numbers = float(numbers[value])
        self.arguments = set[int]()  #: that take part, once ``results`` were asked for

    def results(self) -> set[int]:
        """Results of the program that are turned back."""
        program, turned_back = self._program, set[int]()
        pending = [(self._start, tuple(range(len(program.dims(self._start)))))]
        seen = set(pending)
        while pending:
            value, order = pending.pop()
            dims = program.dims(value)
            is_update = is_turned(order, dims) and _has_whole_rows(dims)
            if is_update and self._tables.value_output[value]:
                turned_back.add(value)
            for reader in users_of(self._tables, value):
                following = self._order_behind(reader, order)
                if following is None:
                    continue
                if is_update:
                    for operand in program.operands(reader):
                        self.arguments |= self._arguments_of(operand)
                for result in program.results(reader):
                    if self._is_whole(result) and (result, following) not in seen:
                        seen.add((result, following))
                        pending.append((result, following))
        return turned_back

    def _order_behind(self, op: int, order: Order) -> Order | None:
        """Of the op's results, given that of what it reads; None where the walk ends."""
        program = self._program
        if program.kind[op] == "transpose":
            return tuple(order[place] for place in order_of(program, op))
        if program.op_class[op] == p.ELEMENTWISE:
            return order
        return None

    def _arguments_of(self, value: int) -> set[int]:
        """Arguments of the product's size of which elementwise ops compute a value."""
        arguments, pending, seen = set[int](), [value], set[int]()
        while pending:
            value = pending.pop()
            if value in seen or not self._is_whole(value):
                continue
            seen.add(value)
            maker = int(self._program.value_op[value])
            if self._program.op_class[maker] == p.ARGUMENT:
                arguments.add(value)
            elif self._program.op_class[maker] in (p.ELEMENTWISE, p.VIEW):
                pending += self._program.operands(maker)
        return arguments

    def _is_whole(self, value: int) -> bool:
        return bool(self._numbers_of[value] == self.numbers)
