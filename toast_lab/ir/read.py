"""StableHLO module -> ``Program``.

Takes a canonical module (see ``canonical``), asks Shardy for the rules and writes everything into
flat arrays.  Start reading at ``read_program``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.errors import FrontendError
from toast_lab.ir import attributes, canonical, rules, source_names, unsupported, walk
from toast_lab.ir import program as p
from toast_lab.ir.build import Builder, finish
from toast_lab.ir.op_kinds import is_constant, is_control, op_kind
from toast_lab.ir.random_keys import Keys, mark
from toast_lab.ir.read_annotations import read_annotations
from toast_lab.ir.stacked import stacked_factors

_NAME = re.compile(r'^loc\("([^"]*)"(?!:\d)')  # "file":12:3 is a place, not a name


class Parsed(NamedTuple):
    """A canonical module and what was read from it."""

    program: p.Program
    text: str  #: the canonical module with locations
    notes: tuple[str, ...] = ()  #: what was dropped, a sentence each


def parse(
    source: str | bytes,
    *,
    name: str = "main",
    argument_paths: Sequence[str] | None = None,
    output_paths: Sequence[str] | None = None,
    donated: Sequence[bool] | None = None,
    keys: Keys | None = None,
    file: str = "",
) -> Parsed:
    """Parse StableHLO text, bytecode or a portable artifact, canonicalise it and read it.

    ``file`` is where a text came from; ops that carry no location of their own get its lines.
    ``keys``: what of it are typed random keys, which StableHLO does not tell.

    Raises:
        FrontendError: the input is not StableHLO, is malformed, or holds what cannot be sharded
            (all is listed).
    """
    context = _jaxlib.make_context()
    try:
        module = _jaxlib.parse_module(context, source, file)
    except Exception as error:  # MLIRError is not an Exception subclass with a public name
        raise FrontendError(
            f"this is not well-formed StableHLO: {_first_lines(str(error))}"
        ) from None
    notes = unsupported.refuse(module)
    canonical.canonicalise(module)
    text = str(module.operation.get_asm(enable_debug_info=True))
    _jaxlib.populate_rules(module)
    program = read_program(module, name, argument_paths, output_paths, donated)
    return Parsed(mark(program, keys) if keys is not None else program, text, notes)


_TRACER = "toast_lab/frontends/"  # our own call of jax.jit is no part of the user's program


def _first_lines(message: str, limit: int = 4) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " | ".join(lines[:limit])[:800]


def read_program(
    module: ir.Module,
    name: str,
    argument_paths: Sequence[str] | None = None,
    output_paths: Sequence[str] | None = None,
    donated: Sequence[bool] | None = None,
) -> p.Program:
    """Read ``@main`` of a canonical module that carries Shardy's rules.

    ``argument_paths``, ``output_paths`` and ``donated`` default to what the module's locations and
    attributes say.  Raises FrontendError on dynamic shapes.
    """
    main = canonical.main_function(module)
    block = main.operation.regions[0].blocks[0]
    build = Builder()
    known = _Known()
    numbers: dict[Any, int] = {}
    for i, argument in enumerate(block.arguments):
        shape = known.tensor(argument.type)
        path = argument_paths[i] if argument_paths else argument_path(argument, i)
        rule = rules.separate([], [shape.shape], p.PASS)
        numbers[argument] = build.add("argument", [], [shape], rule, variable=path)[0]
    n_arguments = len(block.arguments)
    flat = walk.flatten(main)
    for item in flat.items:
        _read_op(build, numbers, known, item, n_arguments)
    outputs = [numbers[v] for v in flat.outputs]
    infos = _result_attributes(main, len(outputs))
    for factor in stacked_factors(build):
        build.factor_class[factor] = p.NEED_REPLICATION
    program = finish(
        build,
        name=name,
        n_arguments=n_arguments,
        outputs=outputs,
        output_paths=tuple(
            output_paths or (a.get("path", f"result[{i}]") for i, a in enumerate(infos))
        ),
        donated=list(donated) if donated is not None else _donated(main, n_arguments),
        regions=tuple(
            r._replace(begin=r.begin + n_arguments, end=r.end + n_arguments) for r in flat.regions
        ),
    )
    made = [(item.operation, item.results) for item in flat.items]
    found = read_annotations(module, main, numbers, made, program)
    return dataclasses.replace(program, annotations=found) if found else program


class _Place(NamedTuple):
    """What an op's location says."""

    ranges: list[source_names.Frame]  #: innermost first, our own frames left out
    lines: str
    name_stack: str


class _Known:
    """What was read before.

    It pays: a program of ten thousand ops has a few hundred rules, types and locations.
    """

    def __init__(self) -> None:
        self._tensors: dict[Any, attributes.Tensor] = {}
        self._decoded: dict[Any, Any] = {}
        self._rules: dict[Any, rules.Rule] = {}
        self._places: dict[Any, _Place] = {}

    def tensor(self, mlir_type: Any) -> attributes.Tensor:
        """``attributes.tensor``."""
        found = self._tensors.get(mlir_type)
        if found is None:
            found = self._tensors[mlir_type] = attributes.tensor(mlir_type)
        return found

    def shardy_rule(
        self, operation: Any, operands: rules.Shapes, results: rules.Shapes
    ) -> rules.Rule | None:
        """Shardy's rule of an op, None if it has none."""
        attribute = _jaxlib.rule_attribute(operation)
        if attribute is None:
            return None
        key = (attribute, *operands, None, *results)
        found = self._rules.get(key)
        if found is None:
            decoded = _jaxlib.rule_of(operation)
            assert decoded is not None
            found = self._rules[key] = rules.from_shardy(decoded, operands, results)
        return found

    def place(self, operation: Any) -> _Place:
        """Where an op stands."""
        attribute = operation.location.attr
        found = self._places.get(attribute)
        if found is None:
            printed = str(operation.location)
            ranges = [f for f in source_names.frames(printed) if _TRACER not in f.file]
            stack = _NAME.match(printed)
            lines = " < ".join(f"{f.file}:{f.line}" for f in ranges[:6])
            found = self._places[attribute] = _Place(ranges, lines, stack.group(1) if stack else "")
        return found


def _read_op(
    build: Builder, numbers: dict[Any, int], known: _Known, item: walk.Item, n_arguments: int
) -> None:
    operation, kind = item.operation, item.kind
    results = [known.tensor(r.type) for r in item.results]
    operands = [numbers[operation.operands[i]] for i in item.operands]
    shapes = [build.tensor[v].shape for v in operands]
    made_shapes = [r.shape for r in results]
    owner, monoid, flops, detail = -1, 0, 0.0, ""
    if is_control(kind):
        rule = rules.handed_on(shapes, made_shapes, shared=item.shares >= 0)
        owner = n_arguments + item.shares if item.shares >= 0 else -1
    else:
        rule = rules.rule_for(
            kind, known.shardy_rule(operation, shapes, made_shapes), shapes, made_shapes, operation
        )
        if captured := _captured(operation, numbers):
            rule = rules.with_captured(rule, [build.tensor[v].shape for v in captured], kind)
            operands = operands + captured
        facts, monoid_name = op_kind(kind), rules.monoid(kind, operation)
        monoid = p.MONOIDS.index(monoid_name)
        if facts.flops is not None:
            flops = facts.flops(operation, rule, results)
        if facts.detail is not None:
            detail = facts.detail(operation, monoid_name)
    place = known.place(operation)
    made = build.add(
        kind,
        operands,
        results,
        rule,
        location=place.lines,
        variable="" if kind == "while.enter" else _variable(kind, place),
        frame=place.ranges[0] if place.ranges else None,
        name_stack=place.name_stack,
        detail=detail,
        monoid=monoid,
        flops=flops,
        owner=owner,
        region=item.region,
    )
    numbers.update(zip(item.results, made, strict=True))
    numbers.update(dict.fromkeys(item.twins, made[0] if made else -1))


def _variable(kind: str, place: _Place) -> str:
    # A derivative carries its primal's line, yet it is not the value that the variable holds.
    if not place.ranges or is_constant(kind) or "transpose(" in place.name_stack:
        return ""
    return source_names.variable(place.ranges[0])


def _captured(operation: Any, numbers: dict[Any, int]) -> list[int]:
    if not len(operation.regions):
        return []
    own = set(operation.operands)
    found: dict[int, None] = {}

    def visit(op: Any) -> None:
        for region in op.regions:
            for block in region.blocks:
                for inner in block.operations:
                    for value in inner.operation.operands:
                        if value in numbers and value not in own:
                            found[numbers[value]] = None
                    visit(inner.operation)

    visit(operation)
    return list(found)


def argument_path(argument: Any, index: int) -> str:
    """The name in an argument's location, else ``arg`` and its index; empty for a negative one."""
    match = _NAME.match(str(argument.location)) if hasattr(argument, "location") else None
    return match.group(1) if match and match.group(1) else f"arg{index}" if index >= 0 else ""


def _dicts(main: Any, key: str, count: int) -> list[dict[str, Any]]:
    if key not in main.attributes:
        return [{} for _ in range(count)]
    rows: list[Any] = [ir.DictAttr(d) for d in ir.ArrayAttr(main.attributes[key])]
    return [{entry.name: entry.attr for entry in row} for row in rows]


def _result_attributes(main: Any, count: int) -> list[dict[str, str]]:
    out = []
    for row in _dicts(main, "res_attrs", count):
        info = row.get("jax.result_info")
        out.append({"path": ir.StringAttr(info).value} if info is not None else {})
    return out


def _donated(main: Any, count: int) -> list[bool]:
    keys = ("tf.aliasing_output", "jax.buffer_donor")
    return [any(k in row for k in keys) for row in _dicts(main, "arg_attrs", count)]
