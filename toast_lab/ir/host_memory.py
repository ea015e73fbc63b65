"""Values in host memory: which arguments, results and values of a program the device never holds.

JAX writes ``mhlo.memory_kind`` on arguments and results, and for ``jax.device_put`` to another
memory a call of ``annotate_device_placement`` (on platforms that have memories; on the CPU the
transfer is no op at all). Start reading at ``read_host_memory``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toast_lab._jaxlib import ir
from toast_lab.ir import canonical
from toast_lab.ir.op_kinds import is_control, op_kind
from toast_lab.ir.program import HostMemory, Program

MEMORY_KIND = "mhlo.memory_kind"
PINNED_HOST = "pinned_host"  #: the name under which JAX offers host memory on every platform
_HOST_KINDS = (PINNED_HOST, "unpinned_host")
_PLACEMENT = "annotate_device_placement"


def read_host_memory(
    main: Any,
    program: Program,
    numbers: dict[Any, int],
    op_results: Sequence[tuple[Any, Sequence[Any]]],
    arguments_on_host: Sequence[bool] | None = None,
) -> HostMemory:
    """Everything of @main that is in host memory.

    Args:
        main: a function of a canonical module.
        program: the program read from it.
        numbers: index in the program of each MLIR value.
        op_results: (MLIR op, its results) for every op of the program except the arguments.
        arguments_on_host: what the frontend knows of the arguments beyond their attributes.
    """
    known = arguments_on_host or [False] * program.n_arguments
    arguments = {
        i
        for i, attributes in enumerate(
            canonical.attribute_dicts(main, "arg_attrs", program.n_arguments)
        )
        if known[i] or is_host(attributes)
    }
    results = {
        i
        for i, attributes in enumerate(
            canonical.attribute_dicts(main, "res_attrs", len(program.outputs))
        )
        if is_host(attributes)
    }
    placed: set[int] = set(arguments)
    brought: set[int] = set()
    for operation, op_values in op_results:
        kind = _placement(operation)
        if kind:
            target = placed if kind in _HOST_KINDS else brought
            target.update(numbers[value] for value in op_values)
    if not (placed or results):
        return HostMemory()
    values = _carried(program, placed, brought)
    return HostMemory(tuple(sorted(arguments)), tuple(sorted(results)), tuple(sorted(values)))


def is_host(attributes: Any) -> bool:
    """Do the attributes of an argument or result say that it is in host memory?"""
    return MEMORY_KIND in attributes and ir.StringAttr(attributes[MEMORY_KIND]).value in _HOST_KINDS


def _placement(operation: Any) -> str:
    """The memory to which a call moves its operand; empty for any other op."""
    if operation.name != "stablehlo.custom_call":
        return ""
    target = ir.StringAttr(operation.attributes["call_target_name"]).value
    if target in ("MoveToHost", "MoveToDevice"):
        return PINNED_HOST if target == "MoveToHost" else "device"
    if target != _PLACEMENT or "mhlo.frontend_attributes" not in operation.attributes:
        return ""
    attributes = operation.attributes["mhlo.frontend_attributes"]
    if "_xla_buffer_placement" not in attributes:
        return ""
    return str(ir.StringAttr(attributes["_xla_buffer_placement"]).value)


def _carried(program: Program, placed: set[int], brought: set[int]) -> set[int]:
    """The values placed on the host, and those that views, updates and loops make of them."""
    carriers = [op for op in program.ops() if op_kind(program.kind[op]).stays_in_memory]
    shared: dict[int, set[int]] = {}  # all pseudo-ops of an owner stand for one value
    for op in program.ops():
        if is_control(program.kind[op]):
            values_of_owner = shared.setdefault(int(program.owner[op]), set())
            values_of_owner.update(program.operands(op), program.results(op))
    on_device = {*brought, *range(program.n_arguments)} - placed
    values: set[int] = set()
    reached = set(placed)
    while reached - values:
        values |= reached
        for op in carriers:
            if values.intersection(program.operands(op)):
                reached.update(program.results(op))
        for values_of_owner in shared.values():
            if values & values_of_owner:
                reached |= values_of_owner
        reached -= on_device
    return values
