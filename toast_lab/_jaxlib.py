"""Every private name of jaxlib that TOAST Lab uses, in one place.

Only the Python bindings of MLIR that ship inside jaxlib are used: parsing StableHLO and running
Shardy's registered passes does not require jax itself. Tested with jaxlib 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

# The value that ``import jax`` sets. jaxlib reads it when it is loaded, to show or hide XLA's notes
# on devices.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, func, sdy, stablehlo

__all__ = ["chlo", "func", "ir", "sdy", "stablehlo"]

# Axes such as "m", or parts of axes such as "m:(2)2"
Axes = tuple[str, ...]


def make_context() -> ir.Context:
    """A context with StableHLO, CHLO, Shardy and func; ops of unknown dialects are accepted."""
    context = ir.Context()
    context.allow_unregistered_dialects = True
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    sdy.register_dialect(context)
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    return context


def inline_call(callee: Any, arguments: list[Any], location: Any) -> list[Any]:
    """Copy the body of a single-block function to the current insertion point.

    Gives the values that it returns.
    """
    return list(_jax_mlir_ext.inlined_func_call(callee, arguments, location))


def parse_module(context: ir.Context, text: str | bytes, file: str = "") -> ir.Module:
    """Parse StableHLO text, MLIR bytecode or a portable artifact. Raises ValueError or MLIRError.

    If ``file`` is given, the text is read from it, and ops without a location get its lines.
    """
    with context:
        if isinstance(text, bytes):
            if b"StableHLO" in text[:64]:
                return stablehlo.deserialize_portable_artifact(context, text)
            return ir.Module.parse(text)
        return ir.Module.parseFile(file) if file else ir.Module.parse(text)


def stablehlo_of_hlo(data: bytes) -> bytes:
    """Convert an HLO module, as XLA dumps it (a serialised HloProto), to StableHLO bytecode.

    Raises ValueError.
    """
    from jaxlib import _jax

    offset = 0
    while offset < len(data):
        key, offset = _varint(data, offset)
        size, offset = _varint(data, offset)
        # field 1, a message: the HloModuleProto
        if key == 1 << 3 | 2:
            return bytes(_jax.mlir.hlo_to_stablehlo(data[offset : offset + size]))
        offset += size
    raise ValueError("no HLO module in this dump")


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """A protocol-buffer varint, and the offset of the byte after it."""
    value, shift = 0, 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, offset


def run_passes(module: ir.Module, pipeline: str) -> None:
    """Run a textual pass pipeline in place, for instance ``builtin.module(canonicalize)``."""
    with module.context:
        passmanager.PassManager.parse(pipeline).run(module.operation)


def populate_rules(module: ir.Module) -> None:
    """Let Shardy attach ``sdy.sharding_rule`` to every op it knows."""
    run_passes(module, "builtin.module(func.func(sdy-populate-op-sharding-rules))")


def _mapping(attr: Any) -> list[list[int]]:
    tensor = sdy.TensorMappingAttr(attr)
    return [list(sdy.DimMappingAttr(dim).factor_indices) for dim in tensor.dim_mappings]


def rule_attribute(op: Any) -> Any:
    """``sdy.sharding_rule`` of ``op`` or None; it is hashable, and equal for equal rules."""
    return op.attributes["sdy.sharding_rule"] if "sdy.sharding_rule" in op.attributes else None


def rule_of(op: Any) -> dict[str, Any] | None:
    """The decoded sharding rule of ``op``, or None if it has none.

    Keys: ``sizes`` (list of int), ``operands`` and ``results`` (per tensor, per dim, factor indices
    with the major one first), ``reduction``, ``need_replication``, ``permutation`` (factor
    indices).
    """
    attribute = rule_attribute(op)
    if attribute is None:
        return None
    rule = sdy.OpShardingRuleAttr(attribute)
    return {
        "sizes": list(rule.factor_sizes),
        "operands": [_mapping(mapping) for mapping in rule.operand_mappings],
        "results": [_mapping(mapping) for mapping in rule.result_mappings],
        "reduction": list(rule.reduction_factors),
        "need_replication": list(rule.need_replication_factors),
        "permutation": list(rule.permutation_factors),
    }


def elementwise_rule(shape: Sequence[int], operand_count: int) -> Any:
    """``sdy.sharding_rule`` of an op on tensors of one shape; needs a current context."""
    if not shape:
        operands, result, sizes = ["[]"] * operand_count, "[]", ""
    else:
        names = ["i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"][: len(shape)]
        result = f"[{', '.join(names)}]"
        operands = [result] * operand_count
        pairs = zip(names, shape, strict=True)
        sizes = f" {{{', '.join(f'{name}={size}' for name, size in pairs)}}}"
    return ir.Attribute.parse(f"#sdy.op_sharding_rule<({', '.join(operands)})->({result}){sizes}>")


def constant_text(op: Any) -> str:
    """The value of a ``stablehlo.constant`` as MLIR prints it, ``dense<0.0> : tensor<4xf32>``."""
    try:
        return str(op.attributes["value"])
    except TypeError:  # the bindings have no Python class for complex elements
        match = re.search(
            r"dense(?:_resource)?<.*> : tensor<.*>", op.get_asm(enable_debug_info=False)
        )
        return match.group(0) if match else ""


def mesh_attribute(axes: Sequence[str], sizes: Sequence[int]) -> Any:
    """``#sdy.mesh<["d"=2, "m"=4]>``; needs a current context."""
    return sdy.MeshAttr.get(
        [sdy.MeshAxisAttr.get(axis, size) for axis, size in zip(axes, sizes, strict=True)]
    )


def sharding_attribute(
    mesh_name: str, spec: Sequence[Sequence[str]], *, closed: bool = True
) -> Any:
    """``#sdy.sharding<@mesh, [{"d"}, {}]>``; propagation may add axes to dims that are not closed.

    ``spec`` lists the mesh axes of each dim.
    """
    dims = [
        sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(axis) for axis in axes], closed)
        for axes in spec
    ]
    return sdy.TensorShardingAttr.get(mesh_name, dims)


def names_axes(attribute: Any) -> bool:
    """Does an ``sdy.sharding`` cut any dim, or close one?"""
    dims = map(sdy.DimensionShardingAttr, sdy.TensorShardingAttr(attribute).dimension_shardings)
    return any(dim.is_closed or len(dim.axes) for dim in dims)


def on_mesh(attribute: Any, mesh_name: str) -> Any:
    """The same ``sdy.sharding`` on the mesh ``mesh_name``."""
    sharding = sdy.TensorShardingAttr(attribute)
    return sdy.TensorShardingAttr.get(
        mesh_name, sharding.dimension_shardings, sharding.replicated_axes, sharding.unreduced_axes
    )


def manual_axes(axes: Sequence[str]) -> Any:
    """``#sdy<manual_axes{"d", "m"}>``; needs a current context."""
    return sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in axes])


def sharding_per_value(shardings: Sequence[Any]) -> Any:
    """``#sdy.sharding_per_value<[...]>``, one sharding for each result of an op."""
    return sdy.TensorShardingPerValueAttr.get(list(shardings))


# -- shardings in the user's program ---------------------------------------------------------------

MeshAxes = tuple[tuple[str, int], ...]
# The attribute in which jax.export stores Shardy's, since its format has no place for them
_EXPORTED = "mhlo.frontend_attributes"


def meshes(module: ir.Module) -> dict[str, MeshAxes]:
    """Axes and sizes of every ``sdy.mesh`` that a module declares.

    Meshes that jax.export stores in an attribute are included.
    """
    axes_of = {}
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            name = ir.StringAttr(op.operation.attributes["sym_name"]).value
            axes_of[name] = _mesh_axes(sdy.MeshAttr(op.operation.attributes["mesh"]))
    exported = _entry(module.operation.attributes, _EXPORTED, "xla.sdy.meshes")
    if exported is not None:
        with module.context:
            entries: Any = ir.DictAttr(ir.Attribute.parse(exported))
            for entry in entries:
                axes_of.setdefault(entry.name, _mesh_axes(sdy.MeshAttr(entry.attr)))
    return axes_of


def _mesh_axes(attribute: Any) -> MeshAxes:
    return tuple((axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, attribute.axes))


def _entry(attributes: Any, key: str, name: str) -> str | None:
    """The string under ``name`` in the dictionary attribute ``key``, None if there is none."""
    if key not in attributes:
        return None
    entries = ir.DictAttr(attributes[key])
    return ir.StringAttr(entries[name]).value if name in entries else None


def _signature_shardings(main: Any, key: str, value_count: int) -> list[Any]:
    if key not in main.attributes:
        return [None] * value_count
    attribute_dicts = [ir.DictAttr(attributes) for attributes in ir.ArrayAttr(main.attributes[key])]
    return [_sharding_in(attributes, main.operation.context) for attributes in attribute_dicts]


def _sharding_in(attributes: Any, context: ir.Context) -> Any:
    """Shardy's sharding among the attributes of an argument or result, else XLA's, else None."""
    if "sdy.sharding" in attributes:
        return attributes["sdy.sharding"]
    exported = _entry(attributes, _EXPORTED, "xla.sdy.sharding")
    if exported is not None:
        with context:
            return ir.Attribute.parse(exported)
    return attributes["mhlo.sharding"] if "mhlo.sharding" in attributes else None


def argument_shardings(main: Any) -> list[Any]:
    """The sharding attribute of each argument of a function, or None."""
    return _signature_shardings(
        main, "arg_attrs", len(main.operation.regions[0].blocks[0].arguments)
    )


def output_shardings(main: Any) -> list[Any]:
    """The sharding attribute of each result of a function, or None."""
    block = main.operation.regions[0].blocks[0]
    return _signature_shardings(
        main, "res_attrs", len(block.operations[len(block.operations) - 1].operands)
    )


def shardings_in(op: Any, key: str) -> list[Any]:
    """The shardings in an attribute that has one for each operand, or for each result."""
    return list(sdy.TensorShardingPerValueAttr(op.attributes[key]).shardings)


def manual_axes_of(op: Any) -> tuple[str, ...]:
    """The axes of an ``sdy.manual_computation``."""
    return tuple(re.findall(r'"([^"]+)"', str(op.attributes["manual_axes"])))


def result_shardings(op: Any) -> list[Any]:
    """The sharding attribute of each result of an op that has ``sdy.sharding``."""
    return shardings_in(op, "sdy.sharding")


def sharding_parts(
    attribute: Any, axes_of_mesh: dict[str, MeshAxes], rank: int
) -> tuple[MeshAxes, tuple[Axes, ...], Axes, str]:
    """Read a sharding attribute of a value with ``rank`` dims.

    Gives (mesh, axes per dim with ``"*"`` after those of open dims, replicated axes, why no plan
    can express it).
    """
    whole_spec: tuple[Axes, ...] = ((),) * rank
    try:
        sharding = sdy.TensorShardingAttr(attribute)
    except ValueError:
        xla_sharding = str(attribute)
        is_replicated = "replicated" in xla_sharding and "last" not in xla_sharding
        return (), whole_spec, (), "" if is_replicated else f"it names no mesh axes: {xla_sharding}"
    mesh_reference = sharding.mesh_or_ref
    mesh = (
        axes_of_mesh.get(mesh_reference.value, ())
        if isinstance(mesh_reference, ir.FlatSymbolRefAttr)
        else _mesh_axes(sdy.MeshAttr(mesh_reference))
    )
    trouble, dims = [], []
    for dim in map(sdy.DimensionShardingAttr, sharding.dimension_shardings):
        references = [sdy.AxisRefAttr(axis) for axis in dim.axes]
        trouble += [
            f"it cuts over a part of axis {reference.name}"
            for reference in references
            if reference.sub_axis_info is not None
        ]
        dims.append(
            (*(reference.name for reference in references), *(() if dim.is_closed else ("*",)))
        )
    if len(sharding.unreduced_axes):
        trouble.append("it leaves sums unreduced")
    replicated = tuple(sdy.AxisRefAttr(axis).name for axis in sharding.replicated_axes)
    return mesh, tuple(dims) if len(dims) == rank else whole_spec, replicated, "; ".join(trouble)


PROPAGATION = "sdy-propagation-pipeline"
_AXIS = re.compile(r'"(\w+)"(?::\((\d+)\)(\d+))?')


# -- Shardy's own propagation ----------------------------------------------------------------------


def numbered_axes(main: Any, key: str) -> dict[tuple[int, int], tuple[Axes, ...]]:
    """Axes per dim of every result of the numbered ops, by (number, result index).

    An op's number is its integer attribute ``key``.
    """
    return {
        (number, result_index): dim_axes(_result_sharding(operation, result_index), _rank(result))
        for number, operation in numbered_ops(main, key)
        for result_index, result in enumerate(operation.results)
    }


#: Kinds that Shardy may give another result than propagation did, followed by a reshard
_RESHARDED_RESULTS = ("stablehlo.concatenate", "stablehlo.dot_general", "stablehlo.dot")


def numbered_results(main: Any, key: str) -> dict[tuple[int, int], tuple[Axes, ...]]:
    """Like ``numbered_axes``; a constraint counts with the sharding that it asks for.

    If an op is made in another sharding than propagation gave it, as Shardy does with some products
    and concatenations, its readers' one counts.
    """
    return {
        (number, result_index): dim_axes(sharding_of(_as_read(result, key), main), _rank(result))
        for number, operation in numbered_ops(main, key)
        for result_index, result in enumerate(operation.results)
    }


def _as_read(result: Any, key: str) -> Any:
    """The tensor that an op's readers see: its result, or a reshard that all of them read.

    A reshard for one operand of a concatenation is not meant.
    """
    uses = list(itertools.islice(result.uses, 2))
    if len(uses) == 1 and result.owner.name in _RESHARDED_RESULTS:
        reader = uses[0].owner.operation
        if reader.name == "sdy.reshard" and key not in reader.attributes:
            return reader.results[0]
    return result


def numbered_reads(main: Any, key: str) -> dict[tuple[int, int], tuple[Axes, ...]]:
    """Axes per dim of every operand as the numbered ops read it, by (number, operand index).

    An op's number is its integer attribute ``key``.
    """
    return {
        (number, operand_index): dim_axes(sharding_of(operand, main), _rank(operand))
        for number, operation in numbered_ops(main, key)
        for operand_index, operand in enumerate(operation.operands)
        if isinstance(operand.type, ir.RankedTensorType)
    }


def numbered_ops(main: Any, key: str) -> Iterator[tuple[int, Any]]:
    """Yields (number, op) for every numbered op, including those inside regions."""
    blocks = [main.operation.regions[0].blocks[0]]
    while blocks:
        for op in blocks.pop().operations:
            operation = op.operation
            if key in operation.attributes:
                yield ir.IntegerAttr(operation.attributes[key]).value, operation
            blocks += [
                nested_block for region in operation.regions for nested_block in region.blocks
            ]


def _rank(value: Any) -> int:
    return len(value.type.shape) if isinstance(value.type, ir.RankedTensorType) else 0


def propagate(module: ir.Module) -> None:
    """Run Shardy's whole propagation in place, as XLA does. It may abort the process."""
    run_passes(module, f"builtin.module({PROPAGATION})")


def sharding_of(value: Any, main: Any) -> str:
    """The sharding attribute of a value, as text; empty if there is none."""
    if isinstance(value.owner, ir.Block):
        # A loop value inside the loop has the sharding of the loop's result.
        if value.owner != main.operation.regions[0].blocks[0]:
            outer_op = value.owner.owner
            return _result_sharding(outer_op, ir.BlockArgument(value).arg_number)
        if "arg_attrs" not in main.attributes:
            return ""
        attributes = ir.DictAttr(
            ir.ArrayAttr(main.attributes["arg_attrs"])[ir.BlockArgument(value).arg_number]
        )
        return str(attributes["sdy.sharding"]) if "sdy.sharding" in attributes else ""
    op = value.owner.operation
    for key in ("out_sharding", "sharding"):
        if op.name.startswith("sdy.") and key in op.attributes:
            return str(op.attributes[key])
    return _result_sharding(op, ir.OpResult(value).result_number)


def _result_sharding(op: Any, result: int) -> str:
    if "out_shardings" in op.attributes:  # an sdy.manual_computation
        return str(shardings_in(op, "out_shardings")[result])
    if "sdy.sharding" not in op.attributes:
        return ""
    return str(sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings[result])


@functools.lru_cache(maxsize=4096)
def dim_axes(sharding: str, rank: int) -> tuple[Axes, ...]:
    """Axes per dim of a printed sharding; no axes if the text is empty."""
    match = re.search(r"@\w+, \[(.*?)\]", sharding)
    # An open dim has a "?" after its axes, which ``axis_list`` ignores.
    dims = re.findall(r"\{(.*?)\}", match.group(1)) if match else []
    return tuple(map(axis_list, dims)) if len(dims) == rank else ((),) * rank


def axis_list(printed_axes: str) -> Axes:
    """The axes in ``"d", "m":(2)2``."""
    return tuple(
        f"{axis}:({pre_size}){size}" if size else axis
        for axis, pre_size, size in _AXIS.findall(printed_axes)
    )
