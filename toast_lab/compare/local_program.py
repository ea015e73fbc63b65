"""The program that one device of a mesh runs, changed so that a single device can run it alone.

Its collectives become stand-ins.

XLA itself divides the annotated program, by compiling it for as many virtual CPU devices as the
mesh has. The result is taken right after the SPMD partitioner, with local shapes and with
collectives, before any CPU-specific pass. So it covers every op that XLA can divide, including halo
exchanges and masks of gathers, and it is what XLA would run.

A stand-in makes a result of the right shape from the collective's operand: the operand as it is
(sums, permutes), reshaped (all_to_all), a piece of it (reduce_scatter), or copies of it side by
side (all_gather, which thus writes as much memory as the real one receives). It stands between
optimisation barriers, so that the compiler neither drops nor simplifies the code around it. So
values are wrong by construction. The device's number, which decides where local slices lie, is 0
behind a barrier.

Everything in this file runs in a child process. Start reading at ``divide``.
"""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.errors import RunFailed, UnsupportedOp, join_offenders
from toast_lab.ir import canonical, fourier
from toast_lab.runtime import _jax_private
from toast_lab.runtime import devices as dev

PASS = "spmd-partitioning"
# This compile only divides the program, so it skips optimised code, which takes longest
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "collective_permute",
    "collective_broadcast",
)
_NUMBERS = ("partition_id", "replica_id")
#: Name of stand-ins, by which they can be told from other ops in a compiled program.
STAND_IN = "toast.stand_in"
_REFUSED = ("infeed", "outfeed", "send", "recv")


class Removed(NamedTuple):
    """A collective that became a stand-in."""

    kind: str
    bytes: int  #: on one device, of its operands or of its results, whichever is larger


class LocalProgram(NamedTuple):
    """StableHLO for one device."""

    text: str  #: with the locations of the annotated program; stand-ins are named ``STAND_IN``
    removed: tuple[Removed, ...]  #: in program order, each once even if a loop repeats it
    argument_shapes: tuple[tuple[int, ...], ...]
    result_shapes: tuple[tuple[int, ...], ...]
    product_flops: float  #: of its matrix products, each once even if a loop repeats it


def flags(folder: str) -> str:
    """XLA flags with which it writes the divided program into ``folder``."""
    dump = f"--xla_dump_to={folder} --xla_dump_hlo_pass_re={PASS} --xla_dump_hlo_as_proto"
    return f"{dump} {_QUICK}"


def divide(
    text: str, n_devices: int, folder: str, donated: Sequence[bool], platform: str
) -> LocalProgram:
    """Divide annotated StableHLO.

    This process must have been started with ``flags(folder)`` and ``n_devices`` virtual devices.

    Args:
        text: StableHLO, as ``annotate`` gives it.
        n_devices: number of devices of its mesh.
        folder: the one given to ``flags``.
        donated: for each argument whether results may take its memory.
        platform: on which the result will run, "cpu", "gpu" or "tpu".

    Raises:
        UnsupportedOp: the program has ops without a stand-in, or ops that the platform lacks (all
            are listed).
        RunFailed: XLA wrote no divided program.
    """
    # For one device XLA divides nothing
    divided = text if n_devices == 1 else _divided(text, n_devices, folder)
    context = _jaxlib.make_context()
    module = _jaxlib.parse_module(context, divided)
    with context, ir.Location.unknown(context):
        return _local(module, donated, platform, divided=n_devices > 1)


def _divided(stablehlo: str, n_devices: int, folder: str) -> bytes:
    _jax_private.compile_module(stablehlo, dev.attached(dev.Devices("cpu", n_devices)))
    files = glob.glob(os.path.join(glob.escape(folder), f"*after_{PASS}.*.pb"))
    if len(files) != 1:
        raise RunFailed(f"XLA wrote {len(files)} divided programs where one was expected")
    with open(files[0], "rb") as file:
        return _jaxlib.stablehlo_of_hlo(file.read())


def _local(module: Any, donated: Sequence[bool], platform: str, *, divided: bool) -> LocalProgram:
    operations = _every(module)
    offenders = [why for op in operations if (why := _refusal(op, platform))]
    if offenders:
        raise UnsupportedOp(
            f"a replay on {platform} cannot run:\n{join_offenders(sorted(set(offenders)))}"
        )
    removed = []
    for op in operations:
        kind = _kind(op)
        if kind in COLLECTIVES:
            removed.append(Removed(kind, _bytes(op)))
            pairs = zip(op.operands, op.results, strict=True)
            _replace(op, [_stand_in(op, operand, result.type) for operand, result in pairs])
        elif kind in _NUMBERS:
            _replace(op, [_number(op)])
        # Layouts are left to the platform that runs the program
        elif kind == "copy" or fourier.is_pin(op):
            _replace(op, list(op.operands))
        elif op.name == "sdy.mesh" and divided:  # nothing refers to it any more
            op.erase()
    main = canonical.main_function(module)
    for name in [
        getattr(attribute, "name", attribute) for attribute in module.operation.attributes
    ]:
        if name.startswith("mhlo."):  # number of partitions and aliases, which no longer hold
            del module.operation.attributes[name]
    _donate(main, donated)
    module.operation.verify()
    function_type = main.type
    return LocalProgram(
        text=str(module.operation.get_asm(enable_debug_info=True)),
        removed=tuple(removed),
        argument_shapes=tuple(map(_shape, function_type.inputs)),
        result_shapes=tuple(map(_shape, function_type.results)),
        product_flops=float(sum(_product_flops(op) for op in _every(module))),
    )


def _every(module: Any) -> list[Any]:
    operations = []

    def collect(op: Any) -> Any:
        operations.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    return operations


def _kind(op: Any) -> str:
    return str(op.name).partition(".")[2]


def _refusal(op: Any, platform: str) -> str:
    kind = _kind(op)
    if kind in _REFUSED or kind.startswith("ragged_all_to_all"):
        return f"{kind}: it has no stand-in"
    if kind == "custom_call":
        target = str(op.attributes["call_target_name"]).strip('"')
        if platform != "cpu" and target.startswith("lapack_"):
            return (
                f"custom_call {target}: a routine of CPUs; trace and plan the model on the device"
            )
    if kind in COLLECTIVES and len(op.operands) != len(op.results):
        return (
            f"{kind} with {len(op.operands)} operands and {len(op.results)} results: it has no "
            "stand-in"
        )
    return ""


def _shape(type_: Any) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(type_).shape)


def _bytes(op: Any) -> int:
    def size(values: Any) -> int:
        types = [ir.RankedTensorType(value.type) for value in values]
        return sum(math.prod(type_.shape) * _width(type_.element_type) for type_ in types)

    return max(size(op.operands), size(op.results))


def _product_flops(op: Any) -> int:
    if _kind(op) not in ("dot_general", "dot"):
        return 0
    left_shape = _shape(op.operands[0].type)
    summed_dims = [len(left_shape) - 1]
    if _kind(op) == "dot_general":
        numbers = _jaxlib.stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        summed_dims = list(numbers.lhs_contracting_dimensions)
    return (
        2
        * math.prod(_shape(op.results[0].type))
        * math.prod(left_shape[dim] for dim in summed_dims)
    )


def _width(element: Any) -> int:
    name = str(element)
    if name.startswith("complex"):
        return 2 * int(name[9:-1]) // 8
    digits = (
        "".join(character for character in name.partition("E")[0] if character.isdigit())
        if not name.startswith("bf")
        else name[2:]
    )
    return max(int(digits) // 8, 1)


def _replace(op: Any, values: Sequence[Any]) -> None:
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def _make(before: Any, name: str, type_: Any, operands: Sequence[Any], **attributes: Any) -> Any:
    with ir.InsertionPoint(before), ir.Location.name(STAND_IN):
        operation = ir.Operation.create(
            f"stablehlo.{name}", results=[type_], operands=operands, attributes=attributes
        )
    return operation.results[0]


def _barrier(before: Any, value: Any) -> Any:
    return _make(before, "optimization_barrier", value.type, [value])


def _number(op: Any) -> Any:
    """A 0 in place of the device's number, which the compiler cannot know to be constant.

    It is made outside of loops: while compiling, XLA computes the values that a loop derives from
    its counter, and some of its passes fail at a barrier there.
    """
    outermost = op
    while outermost.parent.name != "func.func":
        outermost = outermost.parent.operation
    type_ = op.results[0].type
    zero = ir.DenseElementsAttr.get_splat(
        type_, ir.IntegerAttr.get(ir.RankedTensorType(type_).element_type, 0)
    )
    return _barrier(outermost, _make(outermost, "constant", type_, [], value=zero))


def _stand_in(op: Any, operand: Any, wanted: Any) -> Any:
    """``operand`` turned into a value of type ``wanted``."""
    value = _barrier(op, operand)
    if operand.type == wanted:
        return value
    shape, target = _shape(operand.type), _shape(wanted)
    element = ir.RankedTensorType(wanted).element_type
    if len(shape) != len(target) or (math.prod(shape) == math.prod(target) and shape != target):
        return _barrier(op, _make(op, "reshape", wanted, [value]))
    for dim, (size, target_size) in enumerate(zip(shape, target, strict=True)):
        new_shape = list(_shape(value.type))
        if target_size > size:
            copies = -(-target_size // size)
            new_shape[dim] = size * copies
            dim_attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
            type_ = ir.RankedTensorType.get(new_shape, element)
            value = _make(op, "concatenate", type_, [value] * copies, dimension=dim_attribute)
        if target_size < new_shape[dim]:
            new_shape[dim] = target_size
            value = _make(
                op,
                "slice",
                ir.RankedTensorType.get(new_shape, element),
                [value],
                start_indices=ir.DenseI64ArrayAttr.get([0] * len(new_shape)),
                limit_indices=ir.DenseI64ArrayAttr.get(new_shape),
                strides=ir.DenseI64ArrayAttr.get([1] * len(new_shape)),
            )
    return _barrier(op, value)


def _donate(main: Any, donated: Sequence[bool]) -> None:
    no_attributes = ir.DictAttr.get({})
    donor = ir.DictAttr.get({"jax.buffer_donor": ir.BoolAttr.get(True)})
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [donor if donate else no_attributes for donate in donated]
    )
    if "res_attrs" in main.attributes:
        del main.attributes["res_attrs"]
