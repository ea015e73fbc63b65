"""The annotated program as a JAX primitive: under any ``jax.jit`` a call of exactly that StableHLO.

``jax.export`` can call a module too, but its serialisation drops donations and the shardings of
ordinary ops. So the text is parsed into the module under construction, with the mesh written into
every sharding, as JAX itself does while lowering; JAX then merges meshes of the same shape and
names into one symbol.

Outside ``jit`` the primitive raises an error. For derivatives see ``jit``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toast_lab.errors import InvalidPlan
from toast_lab.ir import fourier
from toast_lab.ir.dead import terminator
from toast_lab.lowering.annotate import MESH_NAME
from toast_lab.sharding.mesh import Mesh

# Donations and shardings of @main, which are replaced by the caller's
_INTERFACE = ("arg_attrs", "res_attrs")
# Attributes of ops that name functions
_CALLED = ("called_computations", "callee")


class Callee:
    """The program to call; compared by identity, so JAX can use it as a cache key."""

    def __init__(self, name: str, text: str, mesh: Mesh, results: Sequence[Any]) -> None:
        """``results`` are ShapeDtypeStructs, one for each result."""
        self.name, self.mesh, self.results = name, mesh, tuple(results)
        self.text = with_mesh_inside(text, mesh)

    def __repr__(self) -> str:
        return f"{self.name} on {self.mesh}"


def with_mesh_inside(text: str, mesh: Mesh) -> str:
    """Annotated StableHLO with the mesh written out in each sharding instead of a mesh symbol."""
    axes = ", ".join(f'"{axis}"={size}' for axis, size in zip(mesh.axes, mesh.sizes, strict=True))
    text = re.sub(rf"^\s*sdy\.mesh @{MESH_NAME} = .*$\n?", "", text, flags=re.MULTILINE)
    return text.replace(f"<@{MESH_NAME}, ", f"<mesh<[{axes}]>, ")


@functools.cache
def primitive() -> Any:
    """The primitive, created on first use so that JAX is imported only then."""
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    call = Primitive("toast_program")
    call.multiple_results = True
    call.def_abstract_eval(_abstract)
    call.def_impl(_outside_jit)
    mlir.register_lowering(call, _lower)
    return call


def _abstract(*_: Any, callee: Callee) -> list[Any]:
    from jax.core import ShapedArray

    return [
        ShapedArray(result.shape, result.dtype, weak_type=result.weak_type)
        for result in callee.results
    ]


def _outside_jit(*_: Any, callee: Callee) -> Any:
    raise InvalidPlan(f"{callee.name} runs a sharding plan, so it must be called inside jax.jit")


def _lower(context: Any, *arguments: Any, callee: Callee) -> Any:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    target = context.module_context
    device_count = _devices(target.axis_context)
    if device_count not in (None, callee.mesh.n_devices):
        raise InvalidPlan(
            f"{callee.name}: the plan is for {callee.mesh.n_devices} devices ({callee.mesh}), "
            f"but the jit around it runs on {device_count}"
        )
    source = ir.Module.parse(callee.text, target.module.context)
    if "cpu" in target.platforms:
        fourier.pin_layouts(source)
    (main,) = (op for op in source.body.operations if _symbol(op) == "main")
    for attribute in _INTERFACE:
        if attribute in main.operation.attributes:
            del main.operation.attributes[attribute]
    symbol = _move(source, target, f"toast_{callee.name}")
    types = [result.type for result in terminator(main.operation.regions[0].blocks[0]).operands]
    called = func.CallOp(types, ir.FlatSymbolRefAttr.get(symbol), list(arguments))
    return list(called.results)


def _move(source: Any, target: Any, prefix: str) -> str:
    """Move all functions of a module into the one under construction; gives the name of @main.

    Besides @main there are computations that ops call, such as the comparison of a top-k.
    """
    from jaxlib.mlir import ir

    new_names = {}
    moved = list(source.body.operations)
    for op in moved:
        old_name = _symbol(op)
        op.operation.attributes["sym_visibility"] = ir.StringAttr.get("private")
        name = prefix if old_name == "main" else f"{prefix}_{old_name}"
        op.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        op.operation.detach_from_parent()
        target.module.body.append(op)
        # Made unique
        new_names[old_name] = ir.StringAttr(target.symbol_table.insert(op)).value
    for op in moved:
        op.operation.walk(functools.partial(_rename_calls, new_names=new_names))
    return new_names["main"]


def _rename_calls(operation: Any, new_names: Mapping[str, str]) -> Any:
    """Make an op call the computations by their new names."""
    from jaxlib.mlir import ir

    def renamed(attribute: Any) -> Any:
        if isinstance(attribute, ir.FlatSymbolRefAttr) and attribute.value in new_names:
            return ir.FlatSymbolRefAttr.get(new_names[attribute.value])
        if isinstance(attribute, ir.ArrayAttr):
            return ir.ArrayAttr.get([renamed(entry) for entry in attribute])
        return attribute

    for key in _CALLED:
        if key in operation.attributes:
            operation.attributes[key] = renamed(operation.attributes[key])
    return ir.WalkResult.ADVANCE


def _symbol(op: Any) -> str:
    from jaxlib.mlir import ir

    return str(ir.StringAttr(op.attributes["sym_name"]).value)


def _devices(axis_context: Any) -> int | None:
    count = getattr(axis_context, "num_devices", None)
    if count is None and hasattr(axis_context, "mesh"):
        count = axis_context.mesh.size
    return None if count is None else int(count)
