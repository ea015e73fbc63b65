"""Refuses ops that cannot be sharded, before any pass runs.

One error lists every such op with its line:

* dynamic shapes: Shardy's passes have no rules for them, and their own error message is no help;
* ops of dialects other than StableHLO, CHLO and Shardy: no later compiler accepts them;
* communication with the host (infeed, outfeed, send, recv, callbacks) and the tokens that order it:
  its order and count would change with the number of devices;
* collectives and device numbers outside of a ``shard_map``, and a ``shard_map`` inside another
  (``refuse_by_hand``).

Calls that only print (``jax.debug.print``, ``jax.debug.callback``) do not affect results. They are
dropped, and a note says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from toast_lab._jaxlib import ir
from toast_lab.errors import FrontendError, join_offenders
from toast_lab.ir import source_names
from toast_lab.ir.dead import is_used, operations, short_kind
from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.shard_maps import SHARD_MAP

DIALECTS = frozenset({"stablehlo", "chlo", "sdy", "func", "builtin"})
_CALLBACK = re.compile(r'"(?:[^"]*/)?(debug_print|debug_callback|io_callback|pure_callback):?"')
_DYNAMIC = re.compile(r"tensor<[^>]*\?[^>]*>+")

_ADVICE = {
    "dynamic": "Dynamic shapes: export the model with fixed sizes.",
    "dialect": "Foreign dialects: convert the module to StableHLO first.",
    "host": "Host communication: take it out of the function, or pass its data as arguments and "
    "results.",
    "ordered": "Ordered prints: leave out ordered=True; unordered ones are dropped with a note.",
    "by hand": "A program that is already split over devices by hand: give the function of whole "
    "arrays, with the hand-written parts inside jax.shard_map.",
    "nested": "Nested shard_maps: write one shard_map over the axes of both, with the specs of "
    "both on its arguments.",
}


def refuse(module: ir.Module) -> tuple[str, ...]:
    """Drop calls that only print, and refuse ops that cannot be sharded.

    Returns:
        Notes on the dropped calls.

    Raises:
        FrontendError: lists every offender, its source line and the remedy.
    """
    faults = [(op, *_fault(op)) for op in operations(module.operation)]
    prints = [op for op, fault, _ in faults if fault == "print"]
    _raise((op, fault, text) for op, fault, text in faults if fault and fault != "print")
    notes = tuple(
        dict.fromkeys(
            f"dropped {_primitive(op)}{source_names.place(op)}: it only prints" for op in prints
        )
    )
    for op in prints:
        op.erase()
    if prints:
        _drop_unused_meshes(module)
    return notes


def refuse_by_hand(module: ir.Module) -> None:
    """Refuse collectives outside of a ``shard_map``, and a ``shard_map`` inside another.

    Calls must be inlined: the body of a ``shard_map`` may call functions.

    Raises:
        FrontendError: as ``refuse``.
    """
    _raise(
        (op, "nested", "a shard_map inside the body of another")
        if op.name == SHARD_MAP
        else (op, "by hand", "its result depends on the device that runs it")
        for op in operations(module.operation)
        if (op.name == SHARD_MAP and _is_inside(op, SHARD_MAP))
        or (op_kind(short_kind(op)).per_device and not _is_inside(op, SHARD_MAP))
    )


def _raise(faults: Iterable[tuple[Any, str, str]]) -> None:
    """Raise FrontendError with all (op, key of ``_ADVICE``, description), if there are any."""
    offenders: dict[str, None] = {}
    advice: dict[str, None] = {}
    for op, fault, description in faults:
        offenders[f"{_title(op)}{source_names.place(op)}: {description}"] = None
        advice[_ADVICE[fault]] = None
    if offenders:
        count_text = "an op" if len(offenders) == 1 else f"{len(offenders)} ops"
        raise FrontendError(
            f"{count_text} that cannot be sharded:\n{join_offenders(offenders)}\n"
            + "\n".join(f"  {remedy}" for remedy in advice)
        )


def _fault(operation: Any) -> tuple[str, str]:
    """(kind of fault, description); both are empty if there is none."""
    dialect, _, name = operation.name.partition(".")
    if dialect not in DIALECTS:
        return "dialect", f"the dialect {dialect} is not StableHLO"
    types = [str(value.type) for value in operation.results]
    if operation.name == "func.func":
        types = [str(ir.TypeAttr(operation.attributes["function_type"]).value)]
    dynamic = dict.fromkeys(shape for printed in types for shape in _DYNAMIC.findall(printed))
    if dynamic:
        return "dynamic", f"dynamic shape {', '.join(dynamic)}"
    if dialect == "stablehlo" and op_kind(name).host:
        return "host", "it exchanges data with the host"
    if name == "custom_call" and all(word in _target(operation) for word in ("callback", "python")):
        primitive = _primitive(operation)
        if not primitive.startswith("debug") and (primitive or types):
            return "host", f"{primitive or 'a callback'} runs Python code on the host"
        return ("ordered", "its order is part of the program") if types else ("print", "")
    if op_kind(name).token and not is_used(operation):
        return "", ""  # dead code, which is dropped later
    if any("!stablehlo.token" in printed for printed in types):
        return "host", "it produces or takes a token, which orders side effects"
    return "", ""


def _is_inside(operation: Any, kind: str) -> bool:
    """Is one of the ops around ``operation`` of this kind?"""
    outer = operation.parent
    while outer is not None:
        if outer.name == kind:
            return True
        outer = outer.parent
    return False


def _target(operation: Any) -> str:
    return ir.StringAttr(operation.attributes["call_target_name"]).value


def _primitive(operation: Any) -> str:
    """JAX's name for a callback, such as ``io_callback``, which it writes into the location."""
    match = _CALLBACK.search(str(operation.location))
    return match.group(1) if match else ""


def _title(operation: Any) -> str:
    if operation.name == "func.func":
        return f"func.func @{ir.StringAttr(operation.attributes['sym_name']).value}"
    target = f" @{_target(operation)}" if operation.name == "stablehlo.custom_call" else ""
    return f"{operation.name}{target}"


def _drop_unused_meshes(module: ir.Module) -> None:
    """Drop the one-device meshes that came with callbacks and could be taken for the user's."""
    for op in list(module.body.operations):
        if op.operation.name == "sdy.mesh":
            mesh_name = ir.StringAttr(op.operation.attributes["sym_name"]).value
            module_text = str(
                module.operation.get_asm(enable_debug_info=False, large_elements_limit=16)
            )
            if mesh_name.startswith("maximal_mesh") and module_text.count(f"@{mesh_name}") == 1:
                op.operation.erase()
