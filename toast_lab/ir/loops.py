"""Take out of loops what they need not carry, before anything is named.

* A value that neither a round nor the code behind the loop needs is dropped.  Tracing leaves such
  values where unrolled code would not have them: the residuals of a causal mask, stacked for all
  layers, take many gigabytes.
* A value that every round returns unchanged and that is made of constants alone is read from
  outside instead.  Each use of a constant counts as its own copy, so that one mask does not tie a
  loop's tensors together.

One pass finds what a whole function needs, however deeply its loops nest: it visits every op once,
and every value that a loop hands on.  A loop value is one node, which needs its initial value and
what a round returns for it.  The needs are followed from what the function returns until nothing
new turns up.

Start reading at ``slim_loops``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from toast_lab._jaxlib import ir
from toast_lab.ir.dead import (
    TERMINATORS,
    blocks,
    has_side_effect,
    operations,
    short_kind,
    terminator,
)

_LOOP = "stablehlo.while"
_BRANCHES = ("stablehlo.case", "stablehlo.if")


def slim_loops(block: Any) -> None:
    """Slim every loop of a function, nested ones too, and drop the dead ops.  In place.

    Args:
        block: the function's body.
    """
    _read_constants_from_outside(block)
    _Pruning(_Needs(block)).block(block)


def has_loops(block: Any) -> bool:
    """Is there a loop in ``block`` or in a branch inside it?"""
    return any(operation.name == _LOOP for operation in _flow(block))


def _flow(block: Any) -> Iterator[Any]:
    """Loops and conditionals in program order, outer ones first."""
    waiting = [iter(list(block.operations))]
    while waiting:
        op = next(waiting[-1], None)
        if op is None:
            waiting.pop()
            continue
        operation = op.operation
        if operation.name == _LOOP or operation.name in _BRANCHES:
            yield operation
            waiting.append(iter([inner for part in blocks(op) for inner in part.operations]))


# -- constants ------------------------------------------------------------------------------------


def _read_constants_from_outside(block: Any) -> None:
    known: dict[Any, bool] = {}
    # Outer loops first and in program order: what they no longer hand on may be what later ones
    # start with.
    for loop in _flow(block):
        if loop.name != _LOOP:
            continue
        condition, body = (region.blocks[0] for region in loop.regions)
        last = terminator(body)
        for i, outside in enumerate(loop.operands):
            if last.operands[i] == body.arguments[i] and _constant(outside, known):
                for inside in (condition.arguments[i], body.arguments[i], loop.results[i]):
                    inside.replace_all_uses_with(outside)
                last.operands[i] = body.arguments[i]  # that use goes with the value


def _constant(value: Any, known: dict[Any, bool]) -> bool:
    """Is ``value`` computed from constants alone?  ``known`` is by operation."""
    waiting = [value]
    while waiting:
        latest = waiting[-1]
        if isinstance(latest, ir.BlockArgument) or latest.owner in known:
            waiting.pop()
            continue
        operation = latest.owner
        if len(operation.regions) or operation.name == "stablehlo.custom_call":
            known[operation] = False
            continue
        operands = list(operation.operands)
        if any(
            isinstance(operand, ir.BlockArgument) or known.get(operand.owner) is False
            for operand in operands
        ):
            known[operation] = False
            continue
        unknown = [operand for operand in operands if operand.owner not in known]
        if not unknown:
            known[operation] = True
        waiting.extend(unknown)
    return not isinstance(value, ir.BlockArgument) and known[value.owner]


# -- what is needed -------------------------------------------------------------------------------


class _Needs:
    """What depends on what, as a graph of numbers, and which of it the function's results need.

    A node is an op, a value that a loop hands on (its initial value, the bodies' arguments and its
    result are one), or the fact that a loop or conditional runs at all.
    """

    def __init__(self, block: Any) -> None:
        self.of_value: dict[Any, int] = {}
        self.of_flow: dict[Any, int] = {}  # loop or conditional -> node for whether it runs at all
        self.loops: list[
            tuple[int, list[int]]
        ] = []  # (node of the run, nodes of the values handed on)
        self.needs: list[list[int]] = []
        self.needed: list[bool] = []
        roots: list[int] = []
        self._number(block, -1, roots)
        self._follow([*roots, *self._nodes(terminator(block).operands)])

    def keeps(self, loop: Any) -> list[int]:
        """Positions of the loop's values that are needed."""
        return [i for i, result in enumerate(loop.results) if self.needed[self.of_value[result]]]

    def runs(self, operation: Any) -> bool:
        """Is this loop or conditional needed?"""
        return self.needed[self.of_flow[operation]]

    def _node(self, needs: list[int]) -> int:
        self.needs.append(needs)
        return len(self.needs) - 1

    def _nodes(self, values: Iterable[Any]) -> list[int]:
        # A function's arguments have none
        return [self.of_value[value] for value in values if value in self.of_value]

    def _number(self, block: Any, outer: int, roots: list[int]) -> None:
        """Add what is in ``block``, which runs if node ``outer`` does (-1: always)."""
        always = [] if outer < 0 else [outer]
        for op in block.operations:
            operation = op.operation
            name = operation.name
            if name == _LOOP:
                self._loop(operation, always, roots)
            elif name in _BRANCHES:
                node = self._node([*always, *self._nodes(operation.operands)])
                self.of_flow[operation] = node
                for region in operation.regions:
                    self._number(region.blocks[0], node, roots)
                    self.needs[node] += self._nodes(terminator(region.blocks[0]).operands)
                self.of_value.update((result, node) for result in operation.results)
            elif short_kind(op) not in TERMINATORS:
                needs = self._nodes(operation.operands)
                if len(operation.regions):  # what it captures
                    inner = operations(operation)
                    needs = [node for nested in inner for node in self._nodes(nested.operands)]
                node = self._node(needs)
                self.of_value.update((result, node) for result in operation.results)
                if not len(operation.results) or has_side_effect(op):
                    needs += always
                    roots.append(node)

    def _loop(self, loop: Any, always: list[int], roots: list[int]) -> None:
        condition, body = (region.blocks[0] for region in loop.regions)
        runs = self._node(list(always))
        self.of_flow[loop] = runs
        carried = []
        for i, start in enumerate(loop.operands):
            carried.append(self._node([runs, *self._nodes([start])]))
            for value in (condition.arguments[i], body.arguments[i], loop.results[i]):
                self.of_value[value] = carried[i]
        self._number(condition, runs, roots)
        self._number(body, runs, roots)
        self.needs[runs] += self._nodes(terminator(condition).operands)
        for node, value in zip(carried, terminator(body).operands, strict=True):
            self.needs[node] += self._nodes([value])
        self.loops.append((runs, carried))

    def _follow(self, roots: list[int]) -> None:
        self.needed = [False] * len(self.needs)
        waiting = roots
        while waiting:
            while waiting:
                node = waiting.pop()
                if not self.needed[node]:
                    self.needed[node] = True
                    waiting.extend(self.needs[node])
            # A loop that runs for its side effects alone keeps its values: StableHLO has no loop
            # without one.
            for runs, carried in self.loops:
                if self.needed[runs] and not any(self.needed[node] for node in carried):
                    waiting.extend(carried)


# -- taking it out --------------------------------------------------------------------------------


class _Pruning:
    """Drops what is not needed, last first, so that users go before what they use."""

    def __init__(self, needs: _Needs) -> None:
        self.needs = needs

    def block(self, block: Any) -> None:
        needs = self.needs
        for op in reversed(list(block.operations)):
            operation = op.operation
            if operation.name == _LOOP:
                if not needs.runs(operation):
                    operation.erase()
                    continue
                keep = needs.keeps(operation)
                slimmer = len(keep) < len(operation.operands)
                if slimmer:
                    _return_only(operation.regions[1].blocks[0], keep)
                for region in operation.regions:
                    self.block(region.blocks[0])
                if slimmer:
                    _rebuild(operation, keep)
            elif operation.name in _BRANCHES:
                if not needs.runs(operation):
                    operation.erase()
                    continue
                for region in operation.regions:
                    self.block(region.blocks[0])
            elif len(operation.results) and not needs.needed[needs.of_value[operation.results[0]]]:
                operation.erase()


def _return_only(body: Any, keep: list[int]) -> None:
    last = terminator(body)
    with ir.InsertionPoint(last), last.location:
        ir.Operation.create(last.name, operands=[last.operands[i] for i in keep])
    last.erase()


def _rebuild(loop: Any, keep: list[int]) -> None:
    """Replace the loop by one that carries only the values in ``keep``."""
    attributes = {entry.name: entry.attr for entry in loop.attributes}
    with ir.InsertionPoint(loop), loop.location:
        slim_loop = ir.Operation.create(
            loop.name,
            results=[loop.results[i].type for i in keep],
            operands=[loop.operands[i] for i in keep],
            attributes=attributes,
            regions=2,
        )
    for i, result in zip(keep, slim_loop.results, strict=True):
        loop.results[i].replace_all_uses_with(result)
    kept = set(keep)
    for position in (0, 1):
        block = loop.regions[position].blocks[0]
        for i in reversed(range(len(block.arguments))):
            if i not in kept:
                # MLIR would end the whole process
                if users := _users(block.arguments[i]):
                    raise AssertionError(f"loop value {i} is to be dropped, but used by {users}")
                block.erase_argument(i)
        block.append_to(slim_loop.regions[position])
    loop.erase()


def _users(value: Any) -> str:
    return ", ".join(f"{use.owner.name} ({use.owner.location})" for use in value.uses)
