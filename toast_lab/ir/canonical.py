"""Brings a StableHLO module into the one form that is analysed, annotated and executed.

Calls are inlined (each call site gets its own copy, hence its own names), dead ops are dropped and
only ``@main`` remains. Gathers and scatters that index by position become batched ones. All of this
is done in the bodies of shard_maps too. Ops that annotating wrapped in manual computations
are unwrapped. Every later stage refers to the ops of the printed result, in their
order. Canonicalising it again changes nothing.
"""

from __future__ import annotations

from typing import Any

from toast_lab import _jaxlib
from toast_lab._jaxlib import inline_call, ir
from toast_lab.errors import FrontendError
from toast_lab.ir.annotations import CONSTRAINT
from toast_lab.ir.batched_indices import batch_by_position
from toast_lab.ir.dead import (
    blocks,
    drop_dead,
    drop_empty_parts,
    has_side_effect,
    operations,
    short_kind,
)
from toast_lab.ir.local_ops import merge_local
from toast_lab.ir.loops import has_loops, read_constants_from_outside, slim_loops
from toast_lab.ir.shard_maps import SHARD_MAP


def functions(module: ir.Module) -> dict[str, Any]:
    """All functions of the module, by symbol name."""
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
        "or name one of them main"
    )


def canonicalise(module: ir.Module) -> ir.Module:
    """Inline every call into ``@main``; drop other functions and dead ops. In place."""
    with module.context, ir.Location.unknown(module.context):
        by_name = functions(module)
        main = main_function(module)
        _expand(main, by_name, set(), [])
        _drop_annotation_ops(main)
        bodies = [block for op in (*_shard_maps(main), main) for block in blocks(op)]
        for block in bodies:
            read_constants_from_outside(block)
        batch_by_position(main)
        drop_empty_parts(main)
        for block in bodies:
            if has_loops(block):
                slim_loops(block)
            else:
                drop_dead(block)
        used_functions = _functions_in_attributes(main, by_name)
        for name, function in by_name.items():
            if function.operation != main.operation and name not in used_functions:
                function.operation.erase()
    return module


def attribute_dicts(main: Any, key: str, count: int) -> list[dict[str, Any]]:
    """``arg_attrs`` or ``res_attrs`` of a function: one dict for each of its ``count`` values."""
    if key not in main.attributes:
        return [{} for _ in range(count)]
    value_dicts: list[Any] = [
        ir.DictAttr(value_dict) for value_dict in ir.ArrayAttr(main.attributes[key])
    ]
    return [{entry.name: entry.attr for entry in value_dict} for value_dict in value_dicts]


def _functions_in_attributes(main: Any, by_name: dict[str, Any]) -> set[str]:
    """Functions that attributes of custom calls name, such as the comparator of an ApproxTopK."""
    function_names: set[str] = set()
    unread_functions = [main]
    while unread_functions:
        for op in operations(unread_functions.pop().operation):
            if op.name == "stablehlo.custom_call" and "called_computations" in op.attributes:
                for symbol in ir.ArrayAttr(op.attributes["called_computations"]):
                    name = ir.FlatSymbolRefAttr(symbol).value
                    if name in by_name and name not in function_names:
                        function_names.add(name)
                        unread_functions.append(by_name[name])
    return function_names


def _drop_annotation_ops(function: Any) -> None:
    """Remove the ops that annotating an earlier copy of the module added.

    The operand of a ``custom_call @Sharding`` replaces it, since a single one makes XLA ignore
    Shardy and with it every plan. Ops are taken out of the manual computations of ``local_ops``.
    """
    for block in blocks(function):
        for op in list(block.operations):
            operation = op.operation
            if short_kind(op) == "custom_call":
                if ir.StringAttr(operation.attributes["call_target_name"]).value == "Sharding":
                    operation.results[0].replace_all_uses_with(operation.operands[0])
                    operation.erase()
            elif len(operation.regions) and not merge_local(operation):
                _drop_annotation_ops(op)


def _shard_maps(main: Any) -> list[Any]:
    """The shard_maps of a function, without what JAX leaves behind in them and of them.

    Differentiating one can leave another that takes nothing and gives nothing.
    """
    shard_maps = []
    for operation in [op for op in operations(main.operation) if op.name == SHARD_MAP]:
        if not len(operation.results) and not has_side_effect(operation):
            operation.erase()
            continue
        _drop_open_constraints(operation)
        shard_maps.append(operation)
    return shard_maps


def _drop_open_constraints(shard_map: Any) -> None:
    """Remove the constraints that JAX leaves all over a partly manual body, which name no axis."""
    for operation in [op for op in operations(shard_map) if op.name == CONSTRAINT]:
        if not _jaxlib.names_axes(operation.attributes["sharding"]):
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()


def _expand(function: Any, by_name: dict[str, Any], expanded: set[str], callers: list[str]) -> None:
    name = ir.StringAttr(function.attributes["sym_name"]).value
    if name in expanded:
        return
    if name in callers:
        raise FrontendError(
            f"function @{name} calls itself ({' -> '.join([*callers, name])}); recursion cannot be "
            "sharded"
        )
    for block in blocks(function):
        _expand_block(block, by_name, expanded, [*callers, name])
    expanded.add(name)


def _expand_block(
    block: Any, by_name: dict[str, Any], expanded: set[str], callers: list[str]
) -> None:
    for op in list(block.operations):
        kind = op.operation.name
        if kind in ("func.call", "stablehlo.composite"):
            callee_attribute = "callee" if kind == "func.call" else "decomposition"
            callee_name = ir.FlatSymbolRefAttr(op.attributes[callee_attribute]).value
            if callee_name not in by_name:
                raise FrontendError(f"call of @{callee_name}, which the module does not define")
            _expand(by_name[callee_name], by_name, expanded, callers)
            _inline(op, by_name[callee_name])
        else:
            for nested_block in blocks(op):
                _expand_block(nested_block, by_name, expanded, callers)


def _inline(call: Any, callee: Any) -> None:
    operation = call.operation
    with ir.InsertionPoint(call):
        values = inline_call(callee.operation, list(operation.operands), operation.location)
    for result, replacement in zip(operation.results, values, strict=True):
        result.replace_all_uses_with(replacement)
    operation.erase()
