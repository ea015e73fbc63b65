"""One op on its own: cut out of a traced program, run whole, and run on shards.

The op is cut out of the canonical StableHLO, with the values that its operands have in the program.
``local_text`` writes the same op for local shapes, and makes attributes local that spell out sizes
(slice sizes, limits, group counts).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.ir import canonical, narrowing, own_rules
from toast_lab.ir import program as p
from toast_lab.ir.program import Program
from toast_lab.ir.read import parse
from toast_lab.runtime import _jax_private

Shape = tuple[int, ...]
Reference = Callable[..., Sequence[Any]]
_WRITTEN_RULE = re.compile(r"(, )?sdy\.sharding_rule = #sdy\.op_sharding_rule<[^>]*->[^>]*>")
# Kinds whose init values have to be constants in the program
_STATIC = {"reduce", "reduce_window", "select_and_scatter"}


@dataclasses.dataclass(frozen=True, eq=False)
class SingleOp:
    """A module whose ``@main`` is one op, with the op's operand values and expected results.

    The module also holds the constants that the op starts from.
    """

    kind: str
    text: str
    program: Program
    op: int  #: its number in ``program``
    body: str  #: the op in MLIR's generic form
    helpers: str  #: functions that the op calls
    operands: list[np.ndarray]
    expected: list[np.ndarray]
    pinned: dict[int, str]  #: operands that are constants in ``text``, in MLIR syntax
    reference: Reference | None = None  #: computes the op if XLA's CPU compiler lacks it
    undefined: tuple[int, ...] = ()  #: results that are uninitialised memory

    def factor_dims(self, factor: int) -> tuple[list[int | None], list[int | None]]:
        """The dim of each operand and each result that has ``factor``, or None."""
        program = self.program

        def of(names: list[int]) -> int | None:
            return names.index(factor) if factor in names else None

        uses = range(int(program.use_ptr[self.op]), int(program.use_ptr[self.op + 1]))
        return [of(program.use_names(u)) for u in uses], [
            of(program.def_names(v)) for v in program.results(self.op)
        ]

    def free(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The values of the operands that are arguments of ``text``."""
        return [v for i, v in enumerate(values) if i not in self.pinned]

    @property
    def monoid(self) -> str:
        """The monoid that combines partial results."""
        return p.MONOIDS[self.program.monoid[self.op]]


def _tensors(values: Any) -> list[tuple[Shape, str]]:
    return [(tuple(v.type.shape), str(v.type.element_type)) for v in values]


def tensor_type(shape: Sequence[int], element: str) -> str:
    """A tensor type in MLIR syntax, as ``tensor<2x3xf32>``."""
    return "tensor<" + "".join(f"{s}x" for s in shape) + element + ">"


def cut_out(
    text: str,
    kind: str,
    arguments: Sequence[np.ndarray],
    target: str = "",
    reference: Reference | None = None,
    undefined: tuple[int, ...] = (),
) -> SingleOp:
    """Cut the first op of ``kind`` out of a module, with the values of its operands.

    Of custom calls, the first with call target ``target`` is cut out.
    """
    context = _jaxlib.make_context()
    module = _jaxlib.parse_module(context, text)
    canonical.canonicalise(module)
    main = canonical.main_function(module)
    with context, ir.Location.unknown():
        op = next(
            candidate.operation
            for candidate in main.operation.regions[0].blocks[0].operations
            if canonical.short_kind(candidate) == kind
            and (not target or own_rules.call_target(candidate.operation) == target)
        )
        body = op.get_asm(print_generic_op_form=True, enable_debug_info=False)
        helpers = "\n".join(
            str(f.operation.get_asm(enable_debug_info=False))
            for f in canonical.functions(module).values()
            if f.operation != main.operation
        )
        operands, results = _tensors(op.operands), _tensors(op.results)
        pinned = {}
        if kind in _STATIC:
            for i, value in enumerate(op.operands):
                number = narrowing.splat(value)
                if number and not operands[i][0]:
                    pinned[i] = f"dense<{number}> : {tensor_type(*operands[i])}"
        values = _operand_values(module, main, op, arguments)
    single = module_text(body, operands, results, pinned, helpers)
    program = parse(single).program
    (number,) = [o for o in program.ops() if program.kind[o] == kind]
    single_op = SingleOp(
        kind, single, program, number, body, helpers, values, [], pinned, reference, undefined
    )
    expected = (
        [np.asarray(a) for a in reference(*values)]
        if reference
        else execute(single, single_op.free(values))
    )
    return dataclasses.replace(single_op, expected=expected)


def _operand_values(
    module: Any, main: Any, op: Any, arguments: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Compute the values of the op's operands.

    ``@main`` is made to return them instead of its results, and the ops after them are dropped.
    """
    block = main.operation.regions[0].blocks[0]
    operands = list(op.operands)
    for other in reversed(list(block.operations)):
        if other.operation == op:
            break
        other.operation.erase()
    op.erase()
    with ir.InsertionPoint(block):
        _jaxlib.func.ReturnOp(operands)
    inputs = [a.type for a in block.arguments]
    main.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(inputs, [o.type for o in operands])
    )
    if "res_attrs" in main.attributes:
        del main.attributes["res_attrs"]
    return execute(str(module.operation.get_asm(enable_debug_info=False)), list(arguments))


def module_text(
    body: str,
    operands: Sequence[tuple[Shape, str]],
    results: Sequence[tuple[Shape, str]],
    pinned: dict[int, str],
    helpers: str = "",
) -> str:
    """Write a module whose ``@main`` is ``body`` on operands and results of these types.

    Pinned operands become constants.
    """
    match = re.match(r'^(?:%[\w:#]+ = )?("[\w.]+")\(([^)]*)\)', body)
    assert match, body
    attributes = body[match.end() : body.rfind(" : (")]
    operand_types = [tensor_type(*t) for t in operands]
    result_types = [tensor_type(*t) for t in results]
    lines = [f"    %in{i} = stablehlo.constant {value}" for i, value in pinned.items()]
    names = ", ".join(f"%in{i}" for i in range(len(operands)))
    arguments = ", ".join(f"%in{i}: {t}" for i, t in enumerate(operand_types) if i not in pinned)
    signature = f"({', '.join(operand_types)}) -> ({', '.join(result_types)})"
    outputs = (
        ", ".join(f"%out#{i}" for i in range(len(result_types)))
        if len(result_types) > 1
        else "%out"
    )
    head = f"%out:{len(result_types)}" if len(result_types) > 1 else "%out"
    lines += [
        f"    {head} = {match.group(1)}({names}){attributes} : {signature}",
        f"    return {outputs} : {', '.join(result_types)}",
    ]
    main = (
        f"  func.func public @main({arguments}) -> ({', '.join(result_types)}) {{\n"
        + "\n".join(lines)
        + ("\n  }")
    )
    return f"module {{\n{main}\n{helpers}\n}}\n"


def execute(text: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a module on one device."""
    import jax

    device = jax.devices()[0]
    with jax.enable_x64(True):  # otherwise JAX would convert 64-bit arrays to 32 bits
        inputs = [jax.device_put(a, device) for a in arrays]
    outputs = _jax_private.execute(_compiled(text), inputs)
    return [np.asarray(parts[0]) for parts in outputs]


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> Any:
    import jax

    return _jax_private.compile_module(text, jax.devices()[:1])


# -- the op on local shapes ------------------------------------------------------------------------


def local_text(single: SingleOp, factor: int, ways: int, pinned: dict[int, str]) -> str:
    """The module of ``single`` for the local shapes after splitting ``factor`` into ``ways``."""
    split_operands, split_results = single.factor_dims(factor)
    operands = [
        (cut(a.shape, dim, ways), e)
        for a, dim, e in zip(single.operands, split_operands, elements(single), strict=True)
    ]
    results = [
        (cut(single.program.dims(v), dim, ways), single.program.value_dtype[v])
        for v, dim in zip(single.program.results(single.op), split_results, strict=True)
    ]
    adjust = _LOCAL.get(single.kind)
    body = adjust(single, split_operands, split_results, ways) if adjust else single.body
    body = _WRITTEN_RULE.sub("", body)  # the rule that JAX writes on a call spells out whole sizes
    return module_text(body, operands, results, pinned, single.helpers)


def elements(single: SingleOp) -> list[str]:
    """Element type of each operand."""
    return [single.program.value_dtype[v] for v in single.program.operands(single.op)]


def cut(shape: Shape, dim: int | None, ways: int) -> Shape:
    """A shape with one dim cut into ``ways`` pieces."""
    return tuple(s // ways if i == dim else s for i, s in enumerate(shape))


def _replace_ints(body: str, key: str, change: Callable[[list[int]], list[int]]) -> str:
    def edit(match: re.Match[str]) -> str:
        return (
            f"{key} = array<i64: "
            f"{', '.join(map(str, change([int(x) for x in match.group(1).split(',')])))}>"
        )

    return re.sub(rf"\b{key} = array<i64: ([\d, -]+)>", edit, body)


def _local_slice(single: SingleOp, operands: list, results: list, ways: int) -> str:
    return _replace_ints(
        single.body,
        "limit_indices",
        lambda xs: [x // ways if d == operands[0] else x for d, x in enumerate(xs)],
    )


def _local_sizes(single: SingleOp, operands: list, results: list, ways: int) -> str:
    # If slices take a whole dim, they take the whole local dim on a shard; if they take one
    # element, they still take one.
    whole = single.operands[0].shape
    return _replace_ints(
        single.body,
        "slice_sizes",
        lambda xs: [
            x // ways if d == operands[0] and x == whole[d] else x for d, x in enumerate(xs)
        ],
    )


def _local_convolution(single: SingleOp, operands: list, results: list, ways: int) -> str:
    body = single.body
    for key in ("feature_group_count", "batch_group_count"):
        groups = int(re.search(rf"\b{key} = (\d+)", body).group(1))  # type: ignore[union-attr]
        # The group factor is the one that all three tensors have.
        if (
            groups > 1
            and operands[0] is not None
            and operands[1] is not None
            and results[0] is not None
        ):
            body = re.sub(rf"\b{key} = \d+", f"{key} = {groups // ways}", body)
    return body


def _local_broadcast(single: SingleOp, operands: list, results: list, ways: int) -> str:
    return _replace_ints(
        single.body,
        "broadcast_sizes",
        lambda xs: [x // ways if d == results[0] else x for d, x in enumerate(xs)],
    )


_LOCAL: dict[str, Callable[[SingleOp, list, list, int], str]] = {
    "broadcast": _local_broadcast,
    "slice": _local_slice,
    "dynamic_slice": _local_sizes,
    "gather": _local_sizes,
    "convolution": _local_convolution,
}
