"""Turns a StableHLO module into a ``Program``.

Takes a canonical module (see ``canonical``), asks Shardy for the sharding rules and writes
everything into flat arrays. Start reading at ``read_program``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.errors import FrontendError
from toast_lab.ir import attributes, canonical, locations, rules, source_names, unsupported, walk
from toast_lab.ir.build import Builder, NewOp, Origin, finish
from toast_lab.ir.dead import operations, terminator
from toast_lab.ir.host_memory import read_host_memory
from toast_lab.ir.op_kinds import is_constant, is_control, op_kind
from toast_lab.ir.program import (
    MONOIDS,
    NEED_REPLICATION,
    PASS,
    Program,
    ShardMap,
    WrittenCollective,
)
from toast_lab.ir.random_keys import Keys, mark
from toast_lab.ir.read_annotations import read_annotations
from toast_lab.ir.shard_maps import axes_of_collective, interface
from toast_lab.ir.shard_maps import rule as shard_map_rule
from toast_lab.ir.stacked import stacked_factors

_NAME = re.compile(r'^loc\("([^"]*)"(?!:\d)')  # "file":12:3 is a source position, not a name


_TRACER = "toast_lab/frontends/"  # our own call of jax.jit is not part of the user's program
_PACKAGE = "toast_lab/"  # nor is what called the tracer, except for the user's own call


class Parsed(NamedTuple):
    """A canonical module and what was read from it."""

    program: Program
    text: str  #: the canonical module with locations
    notes: tuple[str, ...] = ()  #: one sentence about each op that was dropped


def parse(
    source: str | bytes,
    *,
    name: str = "main",
    argument_paths: Sequence[str] | None = None,
    output_paths: Sequence[str] | None = None,
    donated: Sequence[bool] | None = None,
    keys: Keys | None = None,
    on_host: Sequence[bool] | None = None,
    file: str = "",
) -> Parsed:
    """Parse StableHLO text, bytecode or a portable artifact, canonicalise it and read it.

    ``file`` is the path that the text was read from; ops without a location get its lines. ``keys``
    are the program's typed random keys, which StableHLO does not show, ``on_host`` says for each
    argument whether it is in host memory.

    Raises:
        FrontendError: the input is not StableHLO, is malformed, or holds ops that cannot be
            sharded (all are listed).
    """
    context = _jaxlib.make_context()
    try:
        module = _jaxlib.parse_module(context, source, file)
    except Exception as error:  # MLIRError has no public name
        raise FrontendError(
            f"this is not well-formed StableHLO: {_first_lines(str(error))}"
        ) from None
    notes = unsupported.refuse(module)
    canonical.canonicalise(module)
    unsupported.refuse_by_hand(module)
    text = str(module.operation.get_asm(enable_debug_info=True))
    _jaxlib.populate_rules(module)
    program = read_program(
        module,
        name,
        argument_paths=argument_paths,
        output_paths=output_paths,
        donated=donated,
        on_host=on_host,
    )
    return Parsed(mark(program, keys) if keys is not None else program, text, notes)


def _first_lines(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " | ".join(lines[:4])[:800]


def read_program(
    module: ir.Module,
    name: str,
    argument_paths: Sequence[str] | None = None,
    output_paths: Sequence[str] | None = None,
    donated: Sequence[bool] | None = None,
    on_host: Sequence[bool] | None = None,
) -> Program:
    """Read ``@main`` of a canonical module that carries Shardy's rules.

    ``argument_paths``, ``output_paths`` and ``donated`` default to the module's locations and
    attributes. Raises FrontendError on dynamic shapes.
    """
    main = canonical.main_function(module)
    block = main.operation.regions[0].blocks[0]
    paths = argument_paths or [
        argument_path(argument, i) for i, argument in enumerate(block.arguments)
    ]
    reader = _BlockReader(module)
    read = reader.block(
        block,
        name=name,
        argument_paths=paths,
        output_paths=output_paths or _output_paths(main, len(terminator(block).operands)),
        donated=donated if donated is not None else _donated(main, len(block.arguments)),
    )
    annotations = read_annotations(
        module, main, program=read.program, numbers=read.value_numbers, op_results=read.op_results
    )
    host = read_host_memory(
        main, read.program, read.value_numbers, read.op_results, arguments_on_host=on_host
    )
    if not annotations and not host:
        return read.program
    return dataclasses.replace(read.program, annotations=annotations, host=host)


class _ReadBlock(NamedTuple):
    """A program, and what its values and ops are in the module."""

    program: Program
    value_numbers: dict[Any, int]  #: number of each MLIR value
    op_results: list[tuple[Any, Sequence[Any]]]  #: (MLIR op, its results) of each op


class _BlockReader:
    """Reads blocks of one module: that of @main, and the bodies of its shard_maps."""

    def __init__(self, module: ir.Module) -> None:
        self.meshes = _jaxlib.meshes(module)
        self.cache = _ReadCache()

    def block(
        self,
        block: Any,
        *,
        name: str,
        argument_paths: Sequence[str],
        output_paths: Sequence[str],
        donated: Sequence[bool],
        mesh: _jaxlib.MeshAxes = (),
    ) -> _ReadBlock:
        """Read a block as a program; ``mesh`` is that of the ``shard_map`` whose body it is."""
        build, cache = Builder(), self.cache
        value_numbers: dict[Any, int] = {}
        for argument, path in zip(block.arguments, argument_paths, strict=True):
            tensor = cache.tensor(argument.type)
            rule = rules.separate([], [tensor.shape], PASS)
            (value_numbers[argument],) = build.add(
                NewOp("argument", [], [tensor], rule, origin=Origin(variable=path))
            )
        n_arguments = len(block.arguments)
        flat = walk.flatten(block)
        shard_maps: list[ShardMap] = []
        collectives: list[WrittenCollective] = []
        for op, item in enumerate(flat.items, n_arguments):
            shard_map = self.shard_map(op, item) if item.kind == "shard_map" else None
            if shard_map is not None:
                shard_maps.append(shard_map)
            elif collective := op_kind(item.kind).collective:
                axes, exact = axes_of_collective(item.operation, mesh)
                collectives.append(WrittenCollective(op, collective, axes, exact))
            new_op = _new_op(
                item,
                n_arguments,
                build=build,
                value_numbers=value_numbers,
                cache=cache,
                shard_map=shard_map,
            )
            results = build.add(new_op)
            value_numbers.update(zip(item.results, results, strict=True))
            value_numbers.update(dict.fromkeys(item.aliases, results[0] if results else -1))
        outputs = [value_numbers[value] for value in flat.outputs]
        for factor in stacked_factors(build):
            build.factor_class[factor] = NEED_REPLICATION
        program = finish(
            build,
            name=name,
            n_arguments=n_arguments,
            outputs=outputs,
            output_paths=tuple(output_paths),
            donated=list(donated),
            regions=tuple(
                region._replace(begin=region.begin + n_arguments, end=region.end + n_arguments)
                for region in flat.regions
            ),
        )
        if shard_maps or collectives:
            program = dataclasses.replace(
                program, shard_maps=tuple(shard_maps), collectives=tuple(collectives)
            )
        return _ReadBlock(
            program, value_numbers, [(item.operation, item.results) for item in flat.items]
        )

    def shard_map(self, op: int, item: walk.Item) -> ShardMap:
        """Read a ``shard_map`` with its body. Raises FrontendError if no plan can keep it."""
        operation = item.operation
        mesh, manual_axes, specs, trouble = interface(operation, self.meshes)
        if trouble:
            raise FrontendError(
                f"a shard_map{source_names.place(operation)} that cannot be kept: {trouble}"
            )
        (block,) = operation.regions[0].blocks
        read = self.block(
            block,
            name="shard_map",
            argument_paths=[f"in{i}" for i in range(len(block.arguments))],
            output_paths=[f"out{i}" for i in range(len(operation.results))],
            donated=[False] * len(block.arguments),
            mesh=mesh,
        )
        operand_count = len(operation.operands)
        return ShardMap(
            op=op,
            mesh=mesh,
            manual_axes=manual_axes,
            operand_specs=tuple(specs[:operand_count]),
            result_specs=tuple(specs[operand_count:]),
            body=read.program,
        )


class _ReadCache:
    """Caches decoded attributes: ten thousand ops have a few hundred rules, types and locations."""

    def __init__(self) -> None:
        self.tensor = functools.cache(attributes.tensor)
        self._rules: dict[Any, rules.Rule] = {}
        self._origins: dict[Any, Origin] = {}

    def shardy_rule(
        self, operation: Any, operands: rules.Shapes, results: rules.Shapes
    ) -> rules.Rule | None:
        """Shardy's rule for an op, or None if there is none."""
        attribute = _jaxlib.rule_attribute(operation)
        if attribute is None:
            return None
        key = (attribute, *operands, None, *results)
        if key not in self._rules:
            decoded = _jaxlib.rule_of(operation)
            assert decoded is not None
            self._rules[key] = rules.from_shardy(decoded, operands, results)
        return self._rules[key]

    def origin(self, operation: Any) -> Origin:
        """The origin of an op, with ``variable`` left empty."""
        attribute = operation.location.attr
        if attribute not in self._origins:
            self._origins[attribute] = _origin(str(operation.location))
        return self._origins[attribute]


def _origin(location: str) -> Origin:
    frames = _frames_of_user(source_names.frames(location))
    stack = _NAME.match(location)
    return Origin(
        location=locations.joined([(frame.file, frame.line) for frame in frames]),
        name_stack=stack.group(1) if stack else "",
        frame=frames[0] if frames else None,
    )


def _frames_of_user(frames: list[source_names.SourceRange]) -> list[source_names.SourceRange]:
    tracer = [at for at, frame in enumerate(frames) if _TRACER in frame.file]
    end = tracer[0] if tracer else len(frames)
    return frames[:end] + [frame for frame in frames[end:] if _PACKAGE not in frame.file]


def _new_op(
    item: walk.Item,
    n_arguments: int,
    *,
    build: Builder,
    value_numbers: dict[Any, int],
    cache: _ReadCache,
    shard_map: ShardMap | None,
) -> NewOp:
    operation, kind = item.operation, item.kind
    operands = [value_numbers[operation.operands[i]] for i in item.operands]
    results = [cache.tensor(result.type) for result in item.results]
    shapes = [build.tensor[value].shape for value in operands]
    result_shapes = [tensor.shape for tensor in results]
    origin = cache.origin(operation)
    origin = origin._replace(variable=_variable(kind, origin))
    if is_control(kind):
        shared = item.factor_owner >= 0
        rule = rules.handed_on(shapes, result_shapes, shared=shared)
        owner = n_arguments + item.factor_owner if shared else -1
        return NewOp(kind, operands, results, rule, origin=origin, owner=owner, region=item.region)
    if shard_map is not None:
        specs = (*shard_map.operand_specs, *shard_map.result_specs)
        return NewOp(
            kind,
            operands,
            results,
            shard_map_rule(shapes, result_shapes, specs),
            origin=origin,
            detail=",".join(shard_map.manual_axes),
            flops=shard_map.flops,
            region=item.region,
        )
    shardy_rule = cache.shardy_rule(operation, shapes, result_shapes)
    rule = rules.rule_for(kind, shardy_rule, shapes, result_shapes, operation=operation)
    if captured := _captured(operation, value_numbers):
        rule = rules.with_captured(rule, [build.tensor[value].shape for value in captured], kind)
    facts, monoid = op_kind(kind), rules.monoid(kind, operation)
    return NewOp(
        kind=kind,
        operands=operands + captured,
        results=results,
        rule=rule,
        origin=origin,
        detail=facts.detail(operation, monoid) if facts.detail is not None else "",
        monoid=MONOIDS.index(monoid),
        flops=facts.flops(operation, rule, results) if facts.flops is not None else 0.0,
        moved_bytes=facts.moved_bytes(operation) if facts.moved_bytes is not None else None,
        without_cost=facts.without_cost(operation) if facts.without_cost is not None else "",
        region=item.region,
    )


def _variable(kind: str, origin: Origin) -> str:
    # A derivative carries the source line of its primal, but is not the value of that variable.
    is_derivative = "transpose(" in origin.name_stack
    if origin.frame is None or kind == "while.enter" or is_constant(kind) or is_derivative:
        return ""
    return source_names.variable(origin.frame)


def _captured(operation: Any, value_numbers: dict[Any, int]) -> list[int]:
    """Outer values that an op uses in its regions but not as operands, in order of use."""
    if not len(operation.regions):
        return []
    direct_operands = set(operation.operands)
    return list(
        dict.fromkeys(
            value_numbers[value]
            for nested_op in itertools.islice(operations(operation), 1, None)
            for value in nested_op.operands
            if value in value_numbers and value not in direct_operands
        )
    )


def argument_path(argument: Any, index: int) -> str:
    """The name in an argument's location, else ``arg`` and its index (empty if it is negative)."""
    match = _NAME.match(str(argument.location)) if hasattr(argument, "location") else None
    if match and match.group(1):
        return match.group(1)
    return f"arg{index}" if index >= 0 else ""


def _output_paths(main: Any, count: int) -> list[str]:
    results = canonical.attribute_dicts(main, "res_attrs", count)
    infos = [attributes.get("jax.result_info") for attributes in results]
    return [
        f"result[{i}]" if info is None else ir.StringAttr(info).value
        for i, info in enumerate(infos)
    ]


def _donated(main: Any, count: int) -> list[bool]:
    arguments = canonical.attribute_dicts(main, "arg_attrs", count)
    donation_attributes = {"tf.aliasing_output", "jax.buffer_donor"}
    return [not donation_attributes.isdisjoint(attributes) for attributes in arguments]
