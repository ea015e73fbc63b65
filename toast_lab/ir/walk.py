"""A canonical module as one flat list of ops: loops and conditionals opened, in execution order.

``while``, ``case`` and ``if`` only hand tensors on.  Each value that they hand on becomes
pseudo-ops of its own, which share one set of factors (see ``Item.shares``):

* a loop: ``while.enter`` (initial value -> body argument), the condition's ops and ``while.test``,
  the body's ops and ``while.next`` (what the body returns), then ``while.result``;
* a conditional: ``case.index``, each branch's ops and its ``case.yield``, then ``case.result``.

An ``optimization_barrier`` of several operands becomes one op for each of them, since they do not
depend on each other.  Reading (``read``) and annotating (``lowering.annotate``) both follow this
walk, so they count ops alike.

TOAST leaves control flow out.  Start reading at ``flatten``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from toast_lab.ir.dead import TERMINATORS, short_kind, terminator
from toast_lab.ir.program import Region
from toast_lab.ir.trips import trip_count

BRANCHES = ("case", "if")


class Item(NamedTuple):
    """One op of the flat program and where it stands in the module."""

    kind: str
    operation: Any  #: the MLIR operation that holds its operands
    region: int  #: innermost region, -1 outside all
    operands: tuple[int, ...] = ()  #: which of that operation's operands
    results: tuple[Any, ...] = ()  #: the MLIR values that it defines
    #: MLIR values that are the first result once more (the condition's view of a loop value)
    twins: tuple[Any, ...] = ()
    shares: int = -1  #: number of the item whose factors it has (may come later), -1: its own


class Flat(NamedTuple):
    """What ``flatten`` gives."""

    items: list[Item]
    regions: list[Region]
    outputs: list[Any]  #: MLIR values that @main returns


def flatten(main: Any) -> Flat:
    """Flatten the body of a canonical function."""
    walk = _Walk()
    last = walk.block(main.operation.regions[0].blocks[0], -1)
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
        condition, body = (part.blocks[0] for part in operation.regions)
        # What enters still belongs to the region outside
        loop = self.open("loop", region)
        first = len(self.items)
        for i, (inside, twin) in enumerate(zip(body.arguments, condition.arguments, strict=True)):
            self.items.append(
                Item(
                    "while.enter",
                    operation,
                    region,
                    operands=(i,),
                    results=(inside,),
                    twins=(twin,),
                )
            )
        trips = trip_count(operation, self.constants)
        known = trips is not None
        times = 1.0 if trips is None else trips
        inner = self.open("cond", loop, 1.0 + times, known)
        test = self.block(condition, inner)
        self.items.append(Item("while.test", test, inner, operands=(0,)))
        self.close(inner)
        inner = self.open("body", loop, times, known)
        last = self.block(body, inner)
        for i in range(len(operation.operands)):
            self.items.append(Item("while.next", last, inner, operands=(i,), shares=first + i))
        self.close(inner)
        self.close(loop)
        for i, result in enumerate(operation.results):
            self.items.append(
                Item("while.result", operation, region, results=(result,), shares=first + i)
            )

    def conditional(self, operation: Any, region: int) -> None:
        self.items.append(Item("case.index", operation, region, operands=(0,)))
        # Which branch runs is not known; each is counted as if all were taken equally often.
        share = 1.0 / len(operation.regions)
        result_count = len(operation.results)
        yields: list[int] = []
        for branch in operation.regions:
            inner = self.open("branch", region, share, False)
            last = self.block(branch.blocks[0], inner)
            for i in range(result_count):
                yields.append(len(self.items))
                self.items.append(Item("case.yield", last, inner, operands=(i,)))
            self.close(inner)
        first = len(self.items)
        for i, item in enumerate(yields):
            self.items[item] = self.items[item]._replace(shares=first + i % result_count)
        for result in operation.results:
            self.items.append(Item("case.result", operation, region, results=(result,)))
