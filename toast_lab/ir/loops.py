"""Removes values that loops need not carry, before names are assigned.

* A value that neither a round nor the code after the loop needs is dropped. Tracing leaves such
  values where unrolled code would have none: the residuals of a causal mask, stacked for all
  layers, take many gigabytes.
* A value that every round returns unchanged and that is computed from constants only is read from
  outside the loop instead. Each use of a constant counts as a separate copy, so that one mask does
  not tie a loop's tensors together.

One pass finds all values that a function needs, however deeply its loops nest: it visits every op
and every loop value once. A loop value is one node of a graph, which depends on its initial value
and on the value that a round returns for it. The dependencies are followed from the function's
results until no new node is reached.

Start reading at ``read_constants_from_outside`` and ``slim_loops``.
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
    """Drop the loop values of a function that nothing needs, and dead ops. In place.

    Args:
        block: the function's body.
    """
    _Pruning(_Needs(block)).block(block)


def has_loops(block: Any) -> bool:
    """Is there a loop in ``block`` or in a branch inside it?"""
    return any(operation.name == _LOOP for operation in _control_flow(block))


def _control_flow(block: Any) -> Iterator[Any]:
    """Yields loops and conditionals in program order, outer ones first."""
    open_blocks = [iter(list(block.operations))]
    while open_blocks:
        op = next(open_blocks[-1], None)
        if op is None:
            open_blocks.pop()
            continue
        operation = op.operation
        if operation.name == _LOOP or operation.name in _BRANCHES:
            yield operation
            open_blocks.append(
                iter([inner for nested_block in blocks(op) for inner in nested_block.operations])
            )


# -- constants ------------------------------------------------------------------------------------


def read_constants_from_outside(block: Any) -> None:
    """Read constants that loops carry unchanged from outside them. In place.

    Args:
        block: a function's body.
    """
    constant_ops: dict[Any, bool] = {}
    # In program order, outer loops first: a constant that replaces the result of one loop may be
    # the initial value of an inner or a later one.
    for loop in _control_flow(block):
        if loop.name != _LOOP:
            continue
        condition, body = (region.blocks[0] for region in loop.regions)
        body_terminator = terminator(body)
        for i, initial_value in enumerate(loop.operands):
            if body_terminator.operands[i] == body.arguments[i] and _is_constant(
                initial_value, constant_ops
            ):
                for loop_value in (condition.arguments[i], body.arguments[i], loop.results[i]):
                    loop_value.replace_all_uses_with(initial_value)
                # This use is dropped together with the loop value.
                body_terminator.operands[i] = body.arguments[i]


def _is_constant(value: Any, constant_ops: dict[Any, bool]) -> bool:
    """Is ``value`` computed from constants only? ``constant_ops`` caches the answers."""
    pending = [value]
    while pending:
        current = pending[-1]
        if isinstance(current, ir.BlockArgument) or current.owner in constant_ops:
            pending.pop()
            continue
        operation = current.owner
        if len(operation.regions) or operation.name == "stablehlo.custom_call":
            constant_ops[operation] = False
            continue
        operands = list(operation.operands)
        if any(
            isinstance(operand, ir.BlockArgument) or constant_ops.get(operand.owner) is False
            for operand in operands
        ):
            constant_ops[operation] = False
            continue
        unknown = [operand for operand in operands if operand.owner not in constant_ops]
        if not unknown:
            constant_ops[operation] = True
        pending.extend(unknown)
    return not isinstance(value, ir.BlockArgument) and constant_ops[value.owner]


# -- needed values --------------------------------------------------------------------------------


class _Needs:
    """The dependency graph of a function's body, and the nodes that the function's results need.

    A node, which is a number, stands for an op, for a loop value (its initial value, the arguments
    of condition and body and the loop's result share one node), or for the fact that a loop or
    conditional runs at all.
    """

    def __init__(self, block: Any) -> None:
        self.of_value: dict[Any, int] = {}
        self.of_flow: dict[Any, int] = {}  # loop or conditional -> node for whether it runs at all
        self.loops: list[
            tuple[int, list[int]]
        ] = []  # (node for whether it runs, nodes of its values)
        self.needs: list[list[int]] = []
        self.needed: list[bool] = []
        roots: list[int] = []
        self._number(block, -1, roots)
        self._follow([*roots, *self._nodes(terminator(block).operands)])

    def keeps(self, loop: Any) -> list[int]:
        """Positions of those loop values that are needed."""
        return [i for i, result in enumerate(loop.results) if self.needed[self.of_value[result]]]

    def runs(self, operation: Any) -> bool:
        """Is this loop or conditional needed?"""
        return self.needed[self.of_flow[operation]]

    def _node(self, needs: list[int]) -> int:
        self.needs.append(needs)
        return len(self.needs) - 1

    def _nodes(self, values: Iterable[Any]) -> list[int]:
        # A function's arguments have no nodes.
        return [self.of_value[value] for value in values if value in self.of_value]

    def _number(self, block: Any, outer: int, roots: list[int]) -> None:
        """Add nodes for the ops in ``block``, which runs if node ``outer`` does (-1: always)."""
        conditions = [] if outer < 0 else [outer]
        for op in block.operations:
            operation = op.operation
            name = operation.name
            if name == _LOOP:
                self._loop(operation, conditions, roots)
            elif name in _BRANCHES:
                node = self._node([*conditions, *self._nodes(operation.operands)])
                self.of_flow[operation] = node
                for region in operation.regions:
                    self._number(region.blocks[0], node, roots)
                    self.needs[node] += self._nodes(terminator(region.blocks[0]).operands)
                self.of_value.update((result, node) for result in operation.results)
            elif short_kind(op) not in TERMINATORS:
                needs = self._nodes(operation.operands)
                if len(operation.regions):  # it also needs the values that its regions capture
                    inner_ops = operations(operation)
                    needs = [node for nested in inner_ops for node in self._nodes(nested.operands)]
                node = self._node(needs)
                self.of_value.update((result, node) for result in operation.results)
                if not len(operation.results) or has_side_effect(op):
                    needs += conditions
                    roots.append(node)

    def _loop(self, loop: Any, conditions: list[int], roots: list[int]) -> None:
        condition, body = (region.blocks[0] for region in loop.regions)
        runs = self._node(list(conditions))
        self.of_flow[loop] = runs
        carried = []
        for i, initial_value in enumerate(loop.operands):
            carried.append(self._node([runs, *self._nodes([initial_value])]))
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
        pending = roots
        while pending:
            while pending:
                node = pending.pop()
                if not self.needed[node]:
                    self.needed[node] = True
                    pending.extend(self.needs[node])
            # A loop that runs only for its side effects keeps its values, since StableHLO has no
            # loop without values.
            for runs, carried in self.loops:
                if self.needed[runs] and not any(self.needed[node] for node in carried):
                    pending.extend(carried)


# -- pruning --------------------------------------------------------------------------------------


class _Pruning:
    """Drops ops and loop values that are not needed, last first, so that uses go first."""

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
    old_terminator = terminator(body)
    with ir.InsertionPoint(old_terminator), old_terminator.location:
        ir.Operation.create(
            old_terminator.name, operands=[old_terminator.operands[i] for i in keep]
        )
    old_terminator.erase()


def _rebuild(loop: Any, keep: list[int]) -> None:
    """Replace a loop by one that carries only the values at the positions ``keep``."""
    attributes = {attribute.name: attribute.attr for attribute in loop.attributes}
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
    kept_positions = set(keep)
    for region_index in (0, 1):
        block = loop.regions[region_index].blocks[0]
        for i in reversed(range(len(block.arguments))):
            if i not in kept_positions:
                # MLIR would abort the whole process.
                if users := _users(block.arguments[i]):
                    raise AssertionError(f"loop value {i} should be dropped but is used by {users}")
                block.erase_argument(i)
        block.append_to(slim_loop.regions[region_index])
    loop.erase()


def _users(value: Any) -> str:
    return ", ".join(f"{use.owner.name} ({use.owner.location})" for use in value.uses)
