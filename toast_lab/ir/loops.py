"""Take out of loops what need not go round in them, before anything is named.

* A value that no round and nobody behind the loop needs is dropped (tracing leaves such values where unrolled code
  would simply not have them: residuals of a causal mask, stacked for all layers, are many gigabytes).
* A value that every round returns as it came in and that is made of constants alone is read from outside instead.  Each
  use of a constant counts as its own copy, so that one mask does not tie a loop's tensors together.

Start reading at ``slim_loops``.
"""

from __future__ import annotations

from typing import Any

from toast_lab._jaxlib import ir
from toast_lab.ir.dead import drop_dead, has_side_effect

_CONTROL = ("stablehlo.while", "stablehlo.case", "stablehlo.if")


def slim_loops(block: Any) -> bool:
    """Slim every loop in ``block`` and the blocks inside it, outer loops first.  In place; True if anything changed.

    What one loop no longer needs may have been all that an earlier one was there for: repeat, dropping dead ops in
    between, until nothing changes.
    """
    changed = False
    for op in list(block.operations):
        operation = op.operation
        if operation.name == "stablehlo.while":
            slim = _slim(operation)
            changed |= slim is not operation
            operation = slim
        for region in operation.regions if operation.name in _CONTROL else ():
            for inner in region.blocks:
                changed |= slim_loops(inner)
    return changed


def _slim(loop: Any) -> Any:
    condition, body = (region.blocks[0] for region in loop.regions)
    last = terminator(body)
    n = len(loop.operands)
    known: dict[Any, bool] = {}
    drop = set()
    for i in range(n):
        if last.operands[i] == body.arguments[i] and _constant(loop.operands[i], known):
            outside = loop.operands[i]
            for inside in (condition.arguments[i], body.arguments[i], loop.results[i]):
                inside.replace_all_uses_with(outside)
            last.operands[i] = body.arguments[i]  # that use goes with the value
            drop.add(i)
    needed = _closure(loop, {i for i, result in enumerate(loop.results) if _used(result)})
    drop.update(i for i in range(n) if i not in needed)
    if not 0 < len(drop) < n:
        return loop
    return _rebuild(loop, [i for i in range(n) if i not in drop])


def terminator(block: Any) -> Any:
    """The last operation of a block."""
    return block.operations[len(block.operations) - 1].operation


def _closure(loop: Any, wanted: set[int]) -> set[int]:
    """``wanted`` loop values and all that they, the number of rounds and side effects depend on."""
    condition, body = (region.blocks[0] for region in loop.regions)
    last = terminator(body)
    needed = wanted | _arguments_behind(terminator(condition).operands[0], condition)
    for block in (condition, body):
        for op in list(block.operations)[:-1]:
            if not len(op.operation.results) or has_side_effect(op):
                for value in _all_operands(op.operation):
                    needed |= _arguments_behind(value, block)
    waiting = list(needed)
    while waiting:
        for i in _arguments_behind(last.operands[waiting.pop()], body) - needed:
            needed.add(i)
            waiting.append(i)
    return needed


def _used(value: Any) -> bool:
    return any(True for _ in value.uses)


def _users(block: Any, i: int) -> str:
    return ", ".join(f"{use.owner.name} ({use.owner.location})" for use in block.arguments[i].uses)


def _arguments_behind(value: Any, block: Any) -> set[int]:
    """Arguments of ``block`` that ``value`` is computed from."""
    found: set[int] = set()
    seen: set[Any] = set()
    waiting = [value]
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        if isinstance(here, ir.BlockArgument):
            if here.owner == block:
                found.add(int(here.arg_number))
        elif here.owner.name == "stablehlo.while":  # what an inner loop hands on apart stays apart
            loop = here.owner
            waiting.extend(loop.operands[i] for i in _closure(loop, {int(here.result_number)}))
            waiting.extend(v for region in loop.regions for b in region.blocks for v in _inside(b))
        else:
            waiting.extend(_all_operands(here.owner))
    return found


def _inside(block: Any) -> list[Any]:
    """What the ops of a block use."""
    return [value for op in block.operations for value in _all_operands(op.operation)]


def _all_operands(operation: Any) -> list[Any]:
    """Operands of an operation and of everything inside it."""
    found = list(operation.operands)
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                found.extend(_all_operands(inner.operation))
    return found


def _constant(value: Any, known: dict[Any, bool]) -> bool:
    """Is ``value`` computed from constants alone?"""
    if isinstance(value, ir.BlockArgument):
        return False
    operation = value.owner
    if operation not in known:
        plain = not len(operation.regions) and operation.name != "stablehlo.custom_call"
        known[operation] = plain and all(_constant(v, known) for v in operation.operands)
    return known[operation]


def _rebuild(loop: Any, keep: list[int]) -> Any:
    """The same loop with only the values in ``keep``."""
    attributes = {entry.name: entry.attr for entry in loop.attributes}
    with ir.InsertionPoint(loop), loop.location:
        made = ir.Operation.create(
            loop.name,
            results=[loop.results[i].type for i in keep],
            operands=[loop.operands[i] for i in keep],
            attributes=attributes,
            regions=2,
        )
    for i, result in zip(keep, made.results, strict=True):
        loop.results[i].replace_all_uses_with(result)
    body = loop.regions[1].blocks[0]
    last = terminator(body)
    with ir.InsertionPoint(last), last.location:
        ir.Operation.create(last.name, operands=[last.operands[i] for i in keep])
    last.erase()
    for position in (0, 1):
        block = loop.regions[position].blocks[0]
        drop_dead(block)
        slim_loops(block)  # an inner loop may be all that still hands a dropped value on
        drop_dead(block)
        for i in reversed(range(len(block.arguments))):
            if i not in keep:
                if _used(block.arguments[i]):  # MLIR ends the whole process here
                    raise AssertionError(f"loop value {i} is to be dropped and still used by {_users(block, i)}")
                block.erase_argument(i)
        block.append_to(made.regions[position])
    loop.erase()
    return made
