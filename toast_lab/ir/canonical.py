"""Bring a StableHLO module into the one form that is analysed, annotated and executed.

Calls are inlined (each call site gets its own copy, hence its own names), dead ops are dropped and
only ``@main`` is left.  Fourier transforms that annotating put into manual computations are taken
out of them.  Every later stage refers to the printed result, op by op, in order.  Canonicalising it
again changes nothing.
"""

from __future__ import annotations

from typing import Any

from toast_lab._jaxlib import inline_call, ir
from toast_lab.errors import FrontendError
from toast_lab.ir import fourier
from toast_lab.ir.dead import blocks, drop_dead, operations, short_kind
from toast_lab.ir.loops import has_loops, slim_loops


def functions(module: ir.Module) -> dict[str, Any]:
    """Functions of the module by symbol name."""
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in module.body.operations
        if op.operation.name == "func.func"
    }


def main_function(module: ir.Module) -> Any:
    """``@main``, or the only public function."""
    by_name = functions(module)
    if "main" in by_name:
        return by_name["main"]
    public = [
        function
        for function in by_name.values()
        if "sym_visibility" not in function.attributes
        or ir.StringAttr(function.attributes["sym_visibility"]).value == "public"
    ]
    if len(public) == 1:
        return public[0]
    raise FrontendError(
        f"the module has no function @main and {len(public)} public functions "
        f"({', '.join(sorted(by_name)) or 'none'}); keep exactly one public function, "
        "or name it main"
    )


def canonicalise(module: ir.Module) -> ir.Module:
    """Inline every call into ``@main``, drop the other functions and the dead ops.  In place."""
    with module.context, ir.Location.unknown(module.context):
        by_name = functions(module)
        main = main_function(module)
        _expand(main, by_name, set(), [])
        _drop_marks(main)
        for block in blocks(main):
            if has_loops(block):
                slim_loops(block)
            else:
                drop_dead(block)
        named = _still_named(main, by_name)
        for name, function in by_name.items():
            if function.operation != main.operation and name not in named:
                function.operation.erase()
    return module


def attribute_dicts(main: Any, key: str, count: int) -> list[dict[str, Any]]:
    """``arg_attrs`` or ``res_attrs`` of a function, a dict for each of its ``count`` values."""
    if key not in main.attributes:
        return [{} for _ in range(count)]
    rows: list[Any] = [ir.DictAttr(row) for row in ir.ArrayAttr(main.attributes[key])]
    return [{entry.name: entry.attr for entry in row} for row in rows]


def _still_named(main: Any, by_name: dict[str, Any]) -> set[str]:
    """Functions that custom calls name in their attributes, as the comparator of an ApproxTopK."""
    named: set[str] = set()
    waiting = [main]
    while waiting:
        for op in operations(waiting.pop().operation):
            if op.name == "stablehlo.custom_call" and "called_computations" in op.attributes:
                for symbol in ir.ArrayAttr(op.attributes["called_computations"]):
                    name = ir.FlatSymbolRefAttr(symbol).value
                    if name in by_name and name not in named:
                        named.add(name)
                        waiting.append(by_name[name])
    return named


def _drop_marks(function: Any) -> None:
    """Take out the marks that annotating an earlier copy put around ops.

    ``custom_call @Sharding`` is forwarded, since a single one makes XLA ignore Shardy and with it
    every plan.  Transforms come out of their manual computations.
    """
    for block in blocks(function):
        for op in list(block.operations):
            operation = op.operation
            if short_kind(op) == "custom_call":
                if ir.StringAttr(operation.attributes["call_target_name"]).value == "Sharding":
                    operation.results[0].replace_all_uses_with(operation.operands[0])
                    operation.erase()
            elif len(operation.regions) and not fourier.merge_local(operation):
                _drop_marks(op)


def _expand(function: Any, by_name: dict[str, Any], done: set[str], stack: list[str]) -> None:
    name = ir.StringAttr(function.attributes["sym_name"]).value
    if name in done:
        return
    if name in stack:
        raise FrontendError(
            f"function @{name} calls itself ({' -> '.join([*stack, name])}); recursion cannot be "
            "sharded"
        )
    for block in blocks(function):
        _expand_block(block, by_name, done, [*stack, name])
    done.add(name)


def _expand_block(block: Any, by_name: dict[str, Any], done: set[str], stack: list[str]) -> None:
    for op in list(block.operations):
        kind = op.operation.name
        if kind in ("func.call", "stablehlo.composite"):
            key = "callee" if kind == "func.call" else "decomposition"
            callee_name = ir.FlatSymbolRefAttr(op.attributes[key]).value
            if callee_name not in by_name:
                raise FrontendError(f"call of @{callee_name}, which the module does not define")
            _expand(by_name[callee_name], by_name, done, stack)
            _inline(op, by_name[callee_name])
        else:
            for inner in blocks(op):
                _expand_block(inner, by_name, done, stack)


def _inline(call: Any, callee: Any) -> None:
    operation = call.operation
    with ir.InsertionPoint(call):
        values = inline_call(callee.operation, list(operation.operands), operation.location)
    for result, value in zip(operation.results, values, strict=True):
        result.replace_all_uses_with(value)
    operation.erase()
