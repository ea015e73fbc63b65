"""StableHLO module -> ``Program``.

Takes a canonical module (see ``canonical``), asks Shardy for the rules and writes everything into flat
arrays.  Start reading at ``read_program``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab import _jaxlib
from toast_lab._jaxlib import ir
from toast_lab.errors import FrontendError
from toast_lab.ir import canonical, kinds, own_rules, rules, source_names
from toast_lab.ir import program as p

_ITEMSIZE = {"i1": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "complex<f32>": 8, "complex<f64>": 16}
_NAME = re.compile(r'^loc\("([^"]*)"(?!:\d)')  # "file":12:3 is a place, not a name


class Parsed(NamedTuple):
    """A canonical module and what was read from it."""

    program: p.Program
    text: str  #: the canonical module with locations


def parse(
    source: str | bytes,
    *,
    name: str = "main",
    argument_paths: Sequence[str] | None = None,
    output_paths: Sequence[str] | None = None,
    donated: Sequence[bool] | None = None,
) -> Parsed:
    """Parse StableHLO text, bytecode or a portable artifact, canonicalise it and read it.

    Raises:
        FrontendError: the input is not StableHLO, is malformed, or has dynamic shapes (all are listed).
    """
    context = _jaxlib.make_context()
    try:
        module = _jaxlib.parse_module(context, source)
    except Exception as error:  # MLIRError is not an Exception subclass with a public name
        raise FrontendError(f"this is not well-formed StableHLO: {_first_lines(str(error))}") from None
    _refuse_dynamic_shapes(module)
    canonical.canonicalise(module)
    text = str(module.operation.get_asm(enable_debug_info=True))
    _jaxlib.populate_rules(module)
    return Parsed(read_program(module, name, argument_paths, output_paths, donated), text)


_TRACER = ("toast_lab/frontends.py",)  # our own call of jax.jit is no part of the user's program
_DYNAMIC = re.compile(r"tensor<(?:[\d?]+x)*\?[^>]*>")


def _refuse_dynamic_shapes(module: ir.Module) -> None:
    # Before any pass: Shardy's cannot name rules of dynamic shapes, and its message says nothing to users.
    found = list(dict.fromkeys(_DYNAMIC.findall(str(module.operation.get_asm(enable_debug_info=False)))))
    if found:
        raise FrontendError(
            f"dynamic shapes: {', '.join(found[:20])}{' ...' if len(found) > 20 else ''}. "
            "Export the model with fixed sizes."
        )


def _first_lines(message: str, limit: int = 4) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " | ".join(lines[:limit])[:800]


@functools.lru_cache(maxsize=4096)
def _itemsize(element: str) -> int:
    if element in _ITEMSIZE:
        return _ITEMSIZE[element]
    digits = re.match(r"[a-z]+(\d+)", element)
    return max(1, int(digits.group(1)) // 8) if digits else 1


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    element: str


def _tensor(mlir_type: Any) -> _Tensor:
    if not isinstance(mlir_type, ir.RankedTensorType):
        return _Tensor((), str(mlir_type))  # tokens and tuples: nothing to shard
    if not mlir_type.has_static_shape:
        raise FrontendError(f"dynamic shape {mlir_type}: export the model with fixed sizes")
    return _Tensor(tuple(mlir_type.shape), str(mlir_type.element_type))


class _Builder:
    """Grows the arrays of a Program op by op."""

    def __init__(self) -> None:
        self.shape_ptr, self.use_dim_ptr, self.use_ptr, self.result_ptr, self.factor_ptr = (
            [0],
            [0],
            [0],
            [0],
            [0],
        )
        self.shape: list[int] = []
        self.tensor: list[_Tensor] = []
        self.value_op: list[int] = []
        self.constant: list[bool] = []
        self.variable: list[str] = []
        self.frame: list[source_names.Frame | None] = []  # per value, where its expression stands
        self.kind: list[str] = []
        self.monoid: list[int] = []
        self.flops: list[float] = []
        self.location: list[int] = []
        self.locations: dict[str, int] = {}
        self.name_stack: list[str] = []
        self.detail: list[str] = []
        self.use_value: list[int] = []
        self.factor_size: list[int] = []
        self.factor_class: list[int] = []
        self.use_dim: list[tuple[int, ...]] = []
        self.def_dim: list[tuple[int, ...]] = []
        self.missing: list[tuple[int, str]] = []

    def add(
        self,
        kind: str,
        operands: list[int],
        results: list[_Tensor],
        rule: rules.Rule,
        *,
        location: str = "",
        variable: str = "",
        frame: source_names.Frame | None = None,
        name_stack: str = "",
        detail: str = "",
        monoid: int = 0,
        flops: float = 0.0,
    ) -> list[int]:
        op, base = len(self.kind), len(self.factor_size)
        self.kind.append(kind)
        self.monoid.append(monoid)
        self.flops.append(flops)
        self.location.append(self.locations.setdefault(location, len(self.locations)))
        self.name_stack.append(name_stack)
        self.detail.append(detail)
        if rule.missing:
            self.missing.append((op, rule.missing))
        constant = kind in kinds.CONSTANTS or (
            bool(operands) and all(self.constant[v] for v in operands) and kinds.op_class(kind) != p.OPAQUE
        )
        self.factor_size.extend(rule.sizes)
        # A reduction whose combiner is unknown cannot be split: its partial results cannot be combined.
        self.factor_class.extend(p.NEED_REPLICATION if c == p.REDUCTION and not monoid else c for c in rule.classes)
        self.factor_ptr.append(len(self.factor_size))
        for value, dims in zip(operands, rule.operands, strict=True):
            self.use_value.append(value)
            self.use_dim.extend(tuple(base + f for f in dim) for dim in dims)
            self.use_dim_ptr.append(len(self.use_dim))
        self.use_ptr.append(len(self.use_value))
        made = []
        for i, (tensor, dims) in enumerate(zip(results, rule.results, strict=True)):
            made.append(len(self.tensor))
            self.tensor.append(tensor)
            self.value_op.append(op)
            self.constant.append(constant and kind != "argument")
            self.variable.append(variable if len(results) == 1 or not variable else f"{variable}_{i}")
            self.frame.append(frame)
            self.shape.extend(tensor.shape)
            self.shape_ptr.append(len(self.shape))
            self.def_dim.extend(tuple(base + f for f in dim) for dim in dims)
        self.result_ptr.append(len(self.tensor))
        return made


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
    build = _Builder()
    numbers: dict[Any, int] = {}
    for i, argument in enumerate(block.arguments):
        tensor = _tensor(argument.type)
        path = argument_paths[i] if argument_paths else _argument_path(argument, i)
        rule = rules.separate([], [tensor.shape], p.PASS)
        numbers[argument] = build.add("argument", [], [tensor], rule, variable=path)[0]
    outputs: list[int] = []
    for op in block.operations:
        if op.operation.name == "func.return":
            outputs = [numbers[v] for v in op.operation.operands]
            break
        _read_op(build, numbers, op)
    attributes = _result_attributes(main, len(outputs))
    return _finish(
        build,
        name=name,
        n_arguments=len(block.arguments),
        outputs=outputs,
        output_paths=tuple(output_paths or (a.get("path", f"result[{i}]") for i, a in enumerate(attributes))),
        donated=list(donated) if donated is not None else _donated(main, len(block.arguments)),
    )


def _read_op(build: _Builder, numbers: dict[Any, int], op: Any) -> None:
    operation = op.operation
    kind = canonical.short_kind(op)
    results = [_tensor(r.type) for r in operation.results]
    operands = [numbers[v] for v in operation.operands]
    shapes = [build.tensor[v].shape for v in operands]
    captured = _captured(operation, numbers)
    rule = rules.rule_for(kind, _jaxlib.rule_of(operation), shapes, [r.shape for r in results], operation)
    if captured:  # values that a region uses without naming them as operands are uses all the same
        extra = rules.separate([build.tensor[v].shape for v in captured], [], p.NEED_REPLICATION)
        offset = len(rule.sizes)
        rule = rules.Rule(
            rule.sizes + extra.sizes,
            rule.classes + extra.classes,
            rule.operands + [[(f[0] + offset,) for f in dims] for dims in extra.operands],
            rule.results,
            rule.missing or f"{kind} uses outer values in its body",
        )
        operands = operands + captured
    printed = str(operation.location)
    ranges = [f for f in source_names.frames(printed) if not f.file.endswith(_TRACER)]
    stack = _NAME.match(printed)
    made = build.add(
        kind,
        operands,
        results,
        rule,
        location=" < ".join(f"{f.file}:{f.line}" for f in ranges[:6]),
        variable=_variable(kind, ranges, stack.group(1) if stack else ""),
        frame=ranges[0] if ranges else None,
        name_stack=stack.group(1) if stack else "",
        detail=_detail(kind, operation),
        monoid=_monoid(kind, operation),
        flops=_flops(kind, operation, rule, results),
    )
    numbers.update(zip(operation.results, made, strict=True))


def _variable(kind: str, ranges: list[source_names.Frame], stack: str) -> str:
    # A derivative carries its primal's line, yet it is not the value that the variable holds.
    if not ranges or kind in kinds.CONSTANTS or "transpose(" in stack:
        return ""
    return source_names.variable(ranges[0])


def _last_of_expression(build: _Builder) -> list[str]:
    """Variable names, kept only on the last op of the expression that was assigned."""
    inner = set()
    for op in range(len(build.kind)):
        made = range(build.result_ptr[op], build.result_ptr[op + 1])
        for use in build.use_value[build.use_ptr[op] : build.use_ptr[op + 1]]:
            if made and build.frame[use] is not None and build.frame[use] == build.frame[made[0]]:
                inner.add(use)
    return ["" if v in inner else name for v, name in enumerate(build.variable)]


def _captured(operation: Any, numbers: dict[Any, int]) -> list[int]:
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


def _argument_path(argument: Any, index: int) -> str:
    match = _NAME.match(str(argument.location)) if hasattr(argument, "location") else None
    return match.group(1) if match and match.group(1) else f"arg{index}"


def _dicts(main: Any, key: str, count: int) -> list[dict[str, Any]]:
    if key not in main.attributes:
        return [{} for _ in range(count)]
    rows: list[Any] = [ir.DictAttr(d) for d in ir.ArrayAttr(main.attributes[key])]
    return [{entry.name: entry.attr for entry in row} for row in rows]


def _result_attributes(main: Any, count: int) -> list[dict[str, str]]:
    out = []
    for attributes in _dicts(main, "res_attrs", count):
        info = attributes.get("jax.result_info")
        out.append({"path": ir.StringAttr(info).value} if info is not None else {})
    return out


def _donated(main: Any, count: int) -> list[bool]:
    keys = ("tf.aliasing_output", "jax.buffer_donor")
    return [any(k in attributes for k in keys) for attributes in _dicts(main, "arg_attrs", count)]


def _monoid(kind: str, operation: Any) -> int:
    if kind in ("dot_general", "dot", "chlo.ragged_dot", "convolution", "gather"):
        return p.MONOIDS.index("add")  # a gather's shards each deliver the rows they hold, zero elsewhere
    if kind not in ("reduce", "scatter", "reduce_window", "select_and_scatter"):
        return 0
    region = operation.regions[1 if kind == "select_and_scatter" else 0]
    return p.MONOIDS.index(own_rules.body_monoid(region) or "none")


def _elements(shape: tuple[int, ...]) -> float:
    return float(np.prod(shape, dtype=np.float64))


def _flops(kind: str, operation: Any, rule: rules.Rule, results: list[_Tensor]) -> float:
    if kind in ("dot_general", "dot"):
        return 2.0 * _elements(tuple(rule.sizes))
    if kind == "chlo.ragged_dot":  # each row of the left side meets one group of the right side
        left, right = (_tensor(o.type).shape for o in list(operation.operands)[:2])
        free = (
            set(range(len(right)))
            - {
                d
                for name in ("batching", "contracting")
                for d in own_rules.ragged_dims(operation, f"rhs_{name}_dimensions")
            }
            - set(own_rules.ragged_dims(operation, "rhs_group_dimensions"))
        )
        return 2.0 * _elements(left) * _elements(tuple(right[d] for d in free))
    if kind in ("convolution", "dynamic_conv"):
        kernel = _tensor(operation.operands[1].type).shape
        match = re.search(r"x\[([^\]]*)\]->", str(operation.attributes["dimension_numbers"]))
        output_features = kernel[[t.strip() for t in match.group(1).split(",")].index("o")] if match else 1
        return 2.0 * _elements(results[0].shape) * _elements(kernel) / max(1, output_features)
    inner = 0.0
    if kind in ("while", "case", "if", "custom_call"):
        for region in operation.regions:
            for block in region.blocks:
                for op in block.operations:
                    name = canonical.short_kind(op)
                    if name == "func.return" or not len(op.operation.results):
                        continue
                    shapes = [_tensor(o.type).shape for o in op.operation.operands]
                    made = [_tensor(r.type) for r in op.operation.results]
                    inner += _flops(
                        name,
                        op.operation,
                        rules.rule_for(name, _jaxlib.rule_of(op.operation), shapes, [m.shape for m in made]),
                        made,
                    )
    return inner


_DETAIL_KEYS = {
    "transpose": ("permutation",),
    "broadcast_in_dim": ("broadcast_dimensions",),
    "reduce": ("dimensions",),
    "concatenate": ("dimension",),
    "iota": ("iota_dimension",),
    "custom_call": ("call_target_name",),
    "compare": ("comparison_direction",),
}


_SPLAT = re.compile(r"^dense<([^<>\[\]\"]+)> : ")


# MLIR prints what has no decimal form as bits: infinities and the usual NaN of f64, f32, bf16 and f16.
_BITS = {
    **dict.fromkeys(("0xFFF0000000000000", "0xFF800000", "0xFF80", "0xFC00"), "-inf"),
    **dict.fromkeys(("0x7FF0000000000000", "0x7F800000", "0x7F80", "0x7C00"), "inf"),
    **dict.fromkeys(("0x7FF8000000000000", "0x7FC00000", "0x7FC0", "0x7E00"), "nan"),
}


def _literal(attribute: str) -> str:
    """The value of a constant whose elements are all alike, as people write it; empty otherwise."""
    match = _SPLAT.match(attribute)
    if not match:
        return ""
    text = _BITS.get(match.group(1), match.group(1))
    if text in ("true", "false") or text.startswith("0x"):
        return text
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def _slice_detail(operation: Any) -> str:
    """The dims that a slice cuts, as ``dim:start:limit``, with the stride where it is not 1."""
    starts, limits, strides = (
        [int(t) for t in re.findall(r"-?\d+", str(operation.attributes[key]).split(":", 1)[-1])]
        for key in ("start_indices", "limit_indices", "strides")
    )
    shape = _tensor(operation.operands[0].type).shape
    return ",".join(
        f"{d}:{start}:{limit}" + (f":{stride}" if stride != 1 else "")
        for d, (start, limit, stride, size) in enumerate(zip(starts, limits, strides, shape, strict=True))
        if (start, limit, stride) != (0, size, 1)
    )


def _detail(kind: str, operation: Any) -> str:
    parts = []
    if kind == "constant":
        return _literal(own_rules.constant_text(operation))
    if kind == "convert":
        return _tensor(operation.results[0].type).element
    if kind == "slice":
        return _slice_detail(operation)
    for key in _DETAIL_KEYS.get(kind, ()):
        if key in operation.attributes:
            raw = str(operation.attributes[key])
            clean = re.sub(r"^array<i64:? ?(.*)>$", r"\1", raw)
            clean = re.sub(r"^(.*) : i64$", r"\1", clean)
            clean = re.sub(r"^#stablehlo<\w+ (\w+)>$", r"\1", clean)
            parts.append(clean.strip('"'))
    if kind == "reduce":
        parts.append(p.MONOIDS[_monoid(kind, operation)])
    return ",".join(parts)


def _unique(names: list[str]) -> tuple[str, ...]:
    """Number repeated names, and values without one by their position."""
    seen: dict[str, int] = {}
    out = []
    for i, name in enumerate(names):
        if not name:
            out.append(f"%{i}")
            continue
        count = seen.get(name, 0)
        seen[name] = count + 1
        candidate = name if not count else f"{name}_{count}"
        while candidate != name and candidate in seen:
            count += 1
            candidate = f"{name}_{count}"
        seen.setdefault(candidate, 1)
        out.append(candidate)
    return tuple(out)


def _finish(
    build: _Builder,
    *,
    name: str,
    n_arguments: int,
    outputs: list[int],
    output_paths: tuple[str, ...],
    donated: list[bool],
) -> p.Program:
    def ints(values: Sequence[int], dtype: Any = np.int32) -> np.ndarray:
        return np.asarray(values, dtype=dtype)

    classes = [p.ARGUMENT if k == "argument" else kinds.op_class(k) for k in build.kind]
    missing_ops = {op for op, _ in build.missing}
    classes = [p.OPAQUE if o in missing_ops and c == p.ELEMENTWISE else c for o, c in enumerate(classes)]
    return p.Program(
        name=name,
        shape_ptr=ints(build.shape_ptr),
        shape=ints(build.shape, np.int64),
        itemsize=ints([_itemsize(t.element) for t in build.tensor]),
        value_op=ints(build.value_op),
        value_is_constant=np.asarray(build.constant, dtype=bool),
        value_dtype=tuple(t.element for t in build.tensor),
        value_name=_unique(_last_of_expression(build)),
        kind=tuple(build.kind),
        op_class=ints(classes),
        result_ptr=ints(build.result_ptr),
        use_ptr=ints(build.use_ptr),
        use_value=ints(build.use_value),
        monoid=ints(build.monoid),
        flops=np.asarray(build.flops, dtype=np.float64),
        trips=np.ones(len(build.kind)),
        location=ints(build.location),
        locations=tuple(build.locations),
        name_stack=tuple(build.name_stack),
        detail=tuple(build.detail),
        factor_ptr=ints(build.factor_ptr),
        factor_size=ints(build.factor_size, np.int64),
        factor_class=ints(build.factor_class),
        use_dim_ptr=ints(build.use_dim_ptr),
        use_dim_factor=ints([d[0] for d in build.use_dim]),
        use_dim_minor=tuple(build.use_dim),
        def_dim_factor=ints([d[0] for d in build.def_dim]),
        def_dim_minor=tuple(build.def_dim),
        n_arguments=n_arguments,
        outputs=ints(outputs),
        output_paths=output_paths,
        donated=np.asarray(donated, dtype=bool),
        missing_rules=tuple(build.missing),
    )
