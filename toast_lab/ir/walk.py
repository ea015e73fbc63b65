"""Flattens a canonical module, loops and conditionals included, to a list of ops in program order.

``while``, ``case`` and ``if`` only pass tensors on. Each value that they pass on becomes several
pseudo-ops, which share one set of factors (see ``Item.factor_owner``):

* a loop: ``while.enter`` (initial value -> body argument), the condition's ops and ``while.test``,
  the body's ops and ``while.next`` (a value that the body returns), then ``while.result``;
* a conditional: ``case.index``, each branch's ops and its ``case.yield``, then ``case.result``.

An ``optimization_barrier`` of several operands becomes one op for each of them, since they do not
depend on each other. Reading (``read``) and annotating (``lowering.annotate``) both use this walk,
so that they number ops alike.

The paper does not cover control flow. Start reading at ``flatten``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from toast_lab.ir.dead import TERMINATORS, short_kind, terminator
from toast_lab.ir.program import Region
from toast_lab.ir.trips import trip_count

BRANCHES = ("case", "if")


class Item(NamedTuple):
    """One op of the flat program and its position in the module."""

    kind: str
    operation: Any  #: the MLIR operation that holds its operands
    region: int  #: innermost region, -1 outside all
    operands: tuple[int, ...] = ()  #: indices of those operands of ``operation`` that it uses
    results: tuple[Any, ...] = ()  #: the MLIR values that it defines
    #: other MLIR values that stand for the first result (a loop value as the condition's argument)
    aliases: tuple[Any, ...] = ()
    factor_owner: int = (
        -1
    )  #: index of the item, possibly a later one, whose factors it has; -1: its own


class Flat(NamedTuple):
    """The flat program, as ``flatten`` returns it."""

    items: list[Item]
    regions: list[Region]
    outputs: list[Any]  #: MLIR values that the block returns


def flatten(block: Any) -> Flat:
    """Flatten the body of a canonical function, or of a ``shard_map`` in it."""
    walk = _Walk()
    last = walk.block(block, -1)
    return Flat(walk.items, walk.regions, list(last.operands))


class _Walk:
    def __init__(self) -> None:
        self.items: list[Item] = []
        self.regions: list[Region] = []
        self.constants: dict[Any, int | None] = {}

    def open(self, kind: str, parent: int, times: float = 1.0, known: bool = True) -> int:
        begin = len(self.items)
        self.regions.append(
            Region(kind=kind, begin=begin, end=-1, parent=parent, times=times, known=known)
        )
        return len(self.regions) - 1

    def close(self, region: int) -> None:
        self.regions[region] = self.regions[region]._replace(end=len(self.items))

    def block(self, block: Any, region: int) -> Any:
        """Add the ops of ``block``; returns its terminator."""
        for op in block.operations:
            operation = op.operation
            kind = short_kind(op)
            if kind == "while":
                self.loop(operation, region)
            elif kind in BRANCHES:
                self.conditional(operation, region)
            elif kind == "optimization_barrier":
                for i, result in enumerate(operation.results):
                    self.items.append(
                        Item(kind, operation, region, operands=(i,), results=(result,))
                    )
            elif kind not in TERMINATORS:
                operands = tuple(range(len(operation.operands)))
                results = tuple(operation.results)
                self.items.append(Item(kind, operation, region, operands=operands, results=results))
        return terminator(block)

    def loop(self, operation: Any, region: int) -> None:
        condition, body = (nested.blocks[0] for nested in operation.regions)
        # The ``while.enter`` ops still belong to the outer region.
        loop = self.open("loop", region)
        first_enter = len(self.items)
        for i, (inside, twin) in enumerate(zip(body.arguments, condition.arguments, strict=True)):
            self.items.append(
                Item(
                    "while.enter",
                    operation,
                    region,
                    operands=(i,),
                    results=(inside,),
                    aliases=(twin,),
                )
            )
        trips = trip_count(operation, self.constants)
        known = trips is not None
        times = 1.0 if trips is None else trips
        inner_region = self.open("cond", loop, 1.0 + times, known)
        condition_terminator = self.block(condition, inner_region)
        self.items.append(Item("while.test", condition_terminator, inner_region, operands=(0,)))
        self.close(inner_region)
        inner_region = self.open("body", loop, times, known)
        body_terminator = self.block(body, inner_region)
        for i in range(len(operation.operands)):
            self.items.append(
                Item(
                    "while.next",
                    body_terminator,
                    inner_region,
                    operands=(i,),
                    factor_owner=first_enter + i,
                )
            )
        self.close(inner_region)
        self.close(loop)
        for i, result in enumerate(operation.results):
            self.items.append(
                Item(
                    "while.result",
                    operation,
                    region,
                    results=(result,),
                    factor_owner=first_enter + i,
                )
            )

    def conditional(self, operation: Any, region: int) -> None:
        self.items.append(Item("case.index", operation, region, operands=(0,)))
        # The branch that runs is not known; all branches are assumed to run equally often.
        branch_times = 1.0 / len(operation.regions)
        result_count = len(operation.results)
        yields: list[int] = []
        for branch in operation.regions:
            branch_region = self.open("branch", region, branch_times, False)
            branch_terminator = self.block(branch.blocks[0], branch_region)
            for i in range(result_count):
                yields.append(len(self.items))
                self.items.append(
                    Item("case.yield", branch_terminator, branch_region, operands=(i,))
                )
            self.close(branch_region)
        first_result = len(self.items)
        for i, yield_index in enumerate(yields):
            self.items[yield_index] = self.items[yield_index]._replace(
                factor_owner=first_result + i % result_count
            )
        for result in operation.results:
            self.items.append(Item("case.result", operation, region, results=(result,)))
