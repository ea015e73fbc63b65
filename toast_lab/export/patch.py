"""``plan.to_patch()``: the constraints as a diff against the user's source.

Each constraint becomes ``jax.lax.with_sharding_constraint`` around its expression. JAX records the
source range of every equation, to the column, and its callers. The patch wraps the innermost
expression all of whose values need this sharding (so it may wrap the call of a function that is
called from two places). Autodiff sees the constraint too: the gradient of a constrained value gets
the same one. So the patch leaves out constraints of the backward pass; it also leaves out those in
libraries. ``left_out`` lists both.
"""

from __future__ import annotations

import ast
import difflib
import functools
import itertools
import linecache
import os
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from toast_lab import syntax
from toast_lab.errors import InvalidPlan
from toast_lab.export.minimal import MinimalConstraints, Pinned
from toast_lab.export.places import Equation, SourceSpan
from toast_lab.export.source_edits import Patch
from toast_lab.files import PathLike
from toast_lab.ir.program import Program
from toast_lab.lowering.specs import spec_entries, visible
from toast_lab.sharding.plan import ShardingPlan, Spec


class _Edit(NamedTuple):
    span: SourceSpan
    specs: tuple[Spec, ...]


def to_patch(
    plan: ShardingPlan,
    constraints: MinimalConstraints,
    *,
    root: PathLike | None = None,
) -> Patch:
    """The constraints as a diff.

    Args:
        plan: of the model.
        constraints: result of ``plan.constraints(minimal=True)``.
        root: folder to which paths in the diff are relative; by default the current one. Files
            outside it get absolute paths.

    Raises:
        InvalidPlan: the program came without its function.
    """
    if constraints.source is None:
        raise InvalidPlan(
            f"{plan.program.name} came without its function, so its source is unknown; "
            "use tl.from_jax"
        )
    finder = _Finder(plan.program, constraints.source.equations)
    edits: dict[_Edit, None] = {}
    left_out = []
    for row in constraints:
        row_edits, reason = finder.edits(row, constraints)
        edits.update(dict.fromkeys(row_edits))
        if reason:
            left_out.append(f"{row}: {reason}")
    by_file: dict[str, list[_Edit]] = {}
    for edit in edits:
        by_file.setdefault(edit.span[0], []).append(edit)
    sources = {file: _rewritten(file, file_edits) for file, file_edits in by_file.items()}
    root_path = Path(root if root is not None else ".").resolve()
    texts: list[str] = []
    for file, source in sorted(sources.items()):
        path = Path(file).resolve()
        name = path.relative_to(root_path) if path.is_relative_to(root_path) else path
        before = "".join(linecache.getlines(file)).splitlines(keepends=True)
        after = source.splitlines(keepends=True)
        texts += difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
    return Patch("".join(texts), sources, tuple(left_out))


class _Finder:
    """Finds the source expressions of constraints."""

    def __init__(self, program: Program, equations: Sequence[Equation]) -> None:
        self.program = program
        self.equations = sorted(equations, key=lambda equation: equation.ops[0])
        self.forward = [equation for equation in self.equations if not equation.place.backward]
        self.of_op = {op: equation for equation in self.equations for op in equation.ops}
        self.users: dict[int, list[int]] = {}
        for op in program.ops():
            for value in program.operands(op):
                self.users.setdefault(value, []).append(op)
        self.value = {name: value for value, name in enumerate(program.value_name)}

    def edits(self, row: Pinned, constraints: Iterable[Pinned]) -> tuple[list[_Edit], str]:
        """The edits that put ``row`` into the source, and why a part of it is left out, if any."""
        if row.backward:
            return [], "it is in the backward pass, which has no source of its own"
        if row.targets[0].side == "operand":
            return self.at_operands(row)
        wanted = {
            self.value[name]
            for constraint in constraints
            if constraint.specs == row.specs
            for name in constraint.values
        }
        edits: dict[_Edit, None] = {}
        count_of_reason: dict[str, int] = {}
        for name in row.values:
            expression = self.expression(self.value[name], wanted)
            if expression is None:
                reason = _no_expression(self.of_op[int(self.program.value_op[self.value[name]])])
                count_of_reason[reason] = count_of_reason.get(reason, 0) + 1
            else:
                specs = tuple(visible(self.program, self.value[name], spec) for spec in row.specs)
                edits[_Edit(expression, specs)] = None
        return list(edits), "; ".join(
            f"{count} of {len(row.values)} values: {reason}"
            for reason, count in count_of_reason.items()
        )

    def expression(self, value: int, wanted: set[int]) -> SourceSpan | None:
        """The user's innermost expression for ``value`` whose values are all ``wanted``."""
        equation = self.of_op[int(self.program.value_op[value])]
        for expression in equation.frames:
            if _is_library(expression[0]) or _node(expression) is None:
                continue
            values = self.values_of(expression)
            if value in values and values <= wanted:
                return expression
        return None

    @functools.lru_cache(maxsize=4096)  # noqa: B019 (a finder serves one patch)
    def values_of(self, expression: SourceSpan) -> frozenset[int]:
        """The values of an expression, one for each evaluation in the forward pass."""
        values: set[int] = set()
        run: list[Equation] = []
        run_outer_frames: tuple[SourceSpan, ...] | None = None
        for equation in [*self.forward, None]:
            outer_frames = (
                equation.frames[equation.frames.index(expression) + 1 :]
                if equation is not None and expression in equation.frames
                else None
            )
            if run and outer_frames != run_outer_frames:
                values.update(self.outcome(run))
                run = []
            run_outer_frames = outer_frames
            if equation is not None and outer_frames is not None:
                run.append(equation)
        return frozenset(values)

    def outcome(self, run: list[Equation]) -> list[int]:
        """The value of one evaluation: the last result that the forward pass uses."""
        inside = {op for equation in run for op in equation.ops}
        for equation in reversed(run):
            for value in reversed(equation.results):
                if value < 0:
                    continue
                users = [op for op in self.users.get(value, ()) if op not in inside]
                if value in map(int, self.program.outputs) or any(
                    op not in self.of_op or not self.of_op[op].place.backward for op in users
                ):
                    return [value]
        return []

    def at_operands(self, row: Pinned) -> tuple[list[_Edit], str]:
        """The edits around the operands of the expressions that read a value."""
        edits: dict[_Edit, None] = {}
        lines_of_reason: dict[str, list[str]] = {}
        specs = tuple(visible(self.program, self.value[row.values[0]], spec) for spec in row.specs)
        for target, frames in zip(row.targets, row.frames, strict=True):
            if target.place.backward:
                continue  # the gradient of a constrained operand gets the same constraint
            library = bool(frames) and _is_library(frames[0][0])
            operand = None if library or not frames else _operand(frames[0], target.number)
            if operand is None:
                reason = (
                    "library code reads it"
                    if library
                    else "the expression that reads it cannot be told apart"
                )
                lines_of_reason.setdefault(reason, []).append(
                    target.place.source.partition(" < ")[0] or "unknown line"
                )
            else:
                edits[_Edit(operand, specs)] = None
        return list(edits), "; ".join(
            f"{reason} at {', '.join(dict.fromkeys(lines))}"
            for reason, lines in lines_of_reason.items()
        )


def _no_expression(equation: Equation) -> str:
    """Why no expression in the user's code stands for the result of an equation."""
    if not equation.frames:
        return "JAX records no source line for it"
    if all(_is_library(frame[0]) for frame in equation.frames):
        return (
            f"made by library code ({os.path.basename(equation.frames[0][0])}), which a patch "
            "leaves alone"
        )
    return "every expression of your code that makes it also makes values without this constraint"


@functools.lru_cache(maxsize=256)
def _nodes(file: str) -> dict[tuple[int, int, int, int], ast.expr]:
    try:
        tree = syntax.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    nodes: dict[tuple[int, int, int, int], ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (range_ := _range_of(node)):
            nodes.setdefault(range_, node)
    return nodes


def _node(span: SourceSpan) -> ast.expr | None:
    """The expression at a source range."""
    file, line, column, end_line, end_column = span
    return _nodes(file).get((line, column, end_line, end_column))


def _operand(span: SourceSpan, number: int) -> SourceSpan | None:
    """The sub-expression that is operand ``number`` of a binary operation, call or subscript."""
    node = _node(span)
    operands: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        operands = [node.left, node.right]
    elif isinstance(node, ast.Call):
        operands = [
            argument
            for argument in node.args
            if not isinstance(argument, ast.Constant | ast.Starred)
        ]
    elif isinstance(node, ast.Subscript):
        operands = [node.value, node.slice]
    if number >= len(operands):
        return None
    range_ = _range_of(operands[number])
    return None if range_ is None else (span[0], *range_)


def _range_of(node: ast.expr) -> tuple[int, int, int, int] | None:
    if node.end_lineno is None or node.end_col_offset is None:
        return None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _is_library(file: str) -> bool:
    """Is this a library file, which users do not change?"""
    paths = sysconfig.get_paths()
    roots = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib") if key in paths}
    if not os.path.exists(file) or any(file.startswith(root + os.sep) for root in roots):
        return True
    # Outside this environment, a file is the user's or belongs to another environment
    return bool({"site-packages", "dist-packages"} & {*Path(file).parts})


def _rewritten(file: str, edits: Sequence[_Edit]) -> str:
    """The source of ``file`` with the expressions of ``edits`` wrapped."""
    lines = [source_line.encode() for source_line in linecache.getlines(file)]
    starts = [0, *itertools.accumulate(map(len, lines))]
    source = b"".join(lines)
    tree = syntax.parse(source)
    can_use_p = not _binds(tree, "P")
    spec_name = "P" if can_use_p else "jax.sharding.PartitionSpec"
    # (offset, 0: closing, 1: opening, larger expressions outside, text), applied from the end
    inserts: list[tuple[int, int, int, bytes]] = []
    for (_, line, column, end_line, end_column), specs in edits:
        start, end = starts[line - 1] + column, starts[end_line - 1] + end_column
        inserts.append((start, 1, start - end, b"jax.lax.with_sharding_constraint(" * len(specs)))
        closing = "".join(
            f", {spec_name}({', '.join(map(repr, spec_entries(spec)))}))" for spec in specs
        )
        inserts.append((end, 0, end - start, closing.encode()))
    for offset, _, _, text in sorted(inserts, reverse=True):
        source = source[:offset] + text + source[offset:]
    return _with_imports(
        source.decode(), "from jax.sharding import PartitionSpec as P" if can_use_p else ""
    )


def _binds(tree: ast.Module, name: str) -> bool:
    """Does a module bind or use this name for something else?"""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "jax.sharding":
            continue
        names = {getattr(node, key, None) for key in ("id", "arg", "name", "asname")}
        if name in names and not isinstance(node, ast.alias):
            return not _imports_spec(tree)
    return False


def _imports_spec(tree: ast.Module) -> bool:
    """Does a module already import PartitionSpec as ``P``?"""
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "jax.sharding"
        and any(alias.asname == "P" for alias in node.names)
        for node in ast.walk(tree)
    )


def _with_imports(source: str, spec_import: str) -> str:
    """``source`` with the imports that constraints need."""
    tree = syntax.parse(source)
    has_jax = any(
        isinstance(node, ast.Import)
        and any(alias.name == "jax" and alias.asname is None for alias in node.names)
        for node in tree.body
    )
    missing = [] if has_jax else ["import jax"]
    if spec_import and not _imports_spec(tree):
        missing.append(spec_import)
    if not missing:
        return source
    line_count = 0
    for i, node in enumerate(tree.body):
        is_text = i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            line_count = node.end_lineno or 0
        else:
            break
    lines = source.splitlines(keepends=True)
    return "".join([*lines[:line_count], *(f"{line}\n" for line in missing), *lines[line_count:]])
