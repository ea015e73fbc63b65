"""A canonical module as one flat list of ops: loops and conditionals opened up, in execution order.

``while``, ``case`` and ``if`` do nothing to a tensor but hand it on, so each value that they hand
on becomes pseudo-ops of its own, which share one set of factors (see ``Item.shares``):

* a loop: ``while.enter`` (initial value -> body argument), the condition's ops and ``while.test``,
  the body's ops and ``while.next`` (what the body returns), then ``while.result``;
* a conditional: ``case.index``, each branch's ops and its ``case.yield``, then ``case.result``.

``optimization_barrier`` of several operands is one op for each, since they have nothing to do with
each other.  Reading (``read``) and annotating (``lowering.annotate``) both follow this walk, so
they count ops alike.

TOAST leaves control flow out.  Start reading at ``flatten``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from toast_lab.ir.dead import TERMINATORS, short_kind
from toast_lab.ir.program import Region
from toast_lab.ir.trips import trip_count

BRANCHES = ("case", "if")


class Item(NamedTuple):
    """One op of the flat program and where it stands in the module."""

    kind: str
    operation: Any  #: the MLIR operation that holds its operands
    operands: tuple[int, ...]  #: which of that operation's operands
    results: tuple[Any, ...]  #: the MLIR values that it defines
    #: MLIR values that are the first result once more (the condition's view of a loop value)
    twins: tuple[Any, ...]
    shares: int  #: number of the item whose factors it has (may come later), -1: its own
    region: int  #: innermost region, -1 outside all


class Flat(NamedTuple):
    """What ``flatten`` gives."""

    items: list[Item]
    regions: list[Region]
    outputs: list[Any]  #: MLIR values that @main returns


def flatten(main: Any) -> Flat:
    """Flatten the body of a canonical function."""
    walk = _Walk()
    block = main.operation.regions[0].blocks[0]
    walk.block(block, -1)
    last = block.operations[len(block.operations) - 1]
    return Flat(walk.items, walk.regions, list(last.operation.operands))


class _Walk:
    def __init__(self) -> None:
        self.items: list[Item] = []
        self.regions: list[Region] = []
        self.constants: dict[Any, int | None] = {}

    def add(
        self,
        kind: str,
        operation: Any,
        operands: tuple[int, ...],
        results: tuple[Any, ...],
        region: int,
        shares: int = -1,
        twins: tuple[Any, ...] = (),
    ) -> None:
        self.items.append(Item(kind, operation, operands, results, twins, shares, region))

    def open(self, kind: str, parent: int, times: float = 1.0, known: bool = True) -> int:
        self.regions.append(Region(kind, len(self.items), -1, parent, times, known))
        return len(self.regions) - 1

    def close(self, region: int) -> None:
        self.regions[region] = self.regions[region]._replace(end=len(self.items))

    def block(self, block: Any, region: int) -> Any:
        """Add the ops of ``block``; gives its terminator."""
        last = None
        for op in block.operations:
            operation = op.operation
            kind = short_kind(op)
            if kind in TERMINATORS:
                last = operation
            elif kind == "while":
                self.loop(operation, region)
            elif kind in BRANCHES:
                self.conditional(operation, region)
            elif kind == "optimization_barrier":
                for i, result in enumerate(operation.results):
                    self.add(kind, operation, (i,), (result,), region)
            else:
                self.add(
                    kind,
                    operation,
                    tuple(range(len(operation.operands))),
                    tuple(operation.results),
                    region,
                )
        return last

    def loop(self, operation: Any, region: int) -> None:
        condition, body = (r.blocks[0] for r in operation.regions)
        n = len(operation.operands)
        # From here on by count; what enters still belongs to the region outside
        loop = self.open("loop", region)
        first = len(self.items)
        for i, (inside, twin) in enumerate(zip(body.arguments, condition.arguments, strict=True)):
            self.add("while.enter", operation, (i,), (inside,), region, twins=(twin,))
        trips = trip_count(operation, self.constants)
        inner = self.open("cond", loop, 1.0 + (1.0 if trips is None else trips), trips is not None)
        test = self.block(condition, inner)
        self.add("while.test", test, (0,), (), inner)
        self.close(inner)
        inner = self.open("body", loop, 1.0 if trips is None else trips, trips is not None)
        last = self.block(body, inner)
        for i in range(n):
            self.add("while.next", last, (i,), (), inner, first + i)
        self.close(inner)
        self.close(loop)
        for i, result in enumerate(operation.results):
            self.add("while.result", operation, (), (result,), region, first + i)

    def conditional(self, operation: Any, region: int) -> None:
        self.add("case.index", operation, (0,), (), region)
        # Which branch runs is not known; each is counted as if all were taken equally often.
        share = 1.0 / len(operation.regions)
        n = len(operation.results)
        yields: list[int] = []
        for branch in operation.regions:
            inner = self.open("branch", region, share, False)
            last = self.block(branch.blocks[0], inner)
            for i in range(n):
                yields.append(len(self.items))
                self.add("case.yield", last, (i,), (), inner)
            self.close(inner)
        first = len(self.items)
        for k, item in enumerate(yields):
            self.items[item] = self.items[item]._replace(shares=first + k % n)
        for result in operation.results:
            self.add("case.result", operation, (), (result,), region)
