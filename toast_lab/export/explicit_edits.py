"""Edits that JAX's explicit mode needs beside a plan's constraints, found by tracing.

On a mesh with ``AxisType.Explicit`` shardings are part of types, and JAX refuses what is ambiguous.
The function is traced with the plan's shardings of arguments; at each refusal the expression that
JAX names gets the sharding that the plan has on its line, and the function is traced again:

* products and reshapes get ``out_sharding=``, ``a @ b`` becomes ``jax.numpy.matmul``;
* ``a[i]`` becomes ``a.at[i].get(out_sharding=...)``.

What JAX refuses else is not resolved: operands of elementwise ops with different shardings, and
what it refuses in a backward pass or inside of a library.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toast_lab import syntax
from toast_lab.export.source_edits import (
    Insertion,
    line_end,
    line_starts,
    span,
    spec_name,
    with_insertions,
)
from toast_lab.export.spec_text import spec_text
from toast_lab.frontends.instrumented import replaced
from toast_lab.frontends.user_code import short
from toast_lab.ir.model import Function
from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.program import DOT, Program
from toast_lab.lowering.specs import to_partition_spec, visible
from toast_lab.written.written_plan import WrittenPlan

MOST_REFUSALS = 60  #: more are not looked at
#: functions of JAX that take ``out_sharding``
_TAKE_SHARDING = {"einsum", "dot", "matmul", "tensordot", "dot_general", "reshape", "broadcast_to"}

Range = tuple[int, int, int, int]  # line, end line, column, end column; columns in bytes


class _Refused(NamedTuple):
    """What JAX refuses first."""

    file: str  #: of the innermost expression of the user; empty: none
    range: Range
    reason: str


class ExplicitTexts(NamedTuple):
    """Sources for the explicit mode."""

    texts: dict[str, str]
    unresolved: tuple[str, ...]  #: what JAX still refuses, each with its line


def explicit_texts(
    written: WrittenPlan, function: Function, texts: Mapping[str, str]
) -> ExplicitTexts:
    """The sources ``texts``, which have the constraints, with what else explicit mode needs."""
    program, current = written.problem.analysis.program, dict(texts)
    originals: dict[str, str] = {}
    given = _typed(written, function)
    for _ in range(MOST_REFUSALS):
        refused = _refused(function, given, current)
        if refused is None:
            return ExplicitTexts(current, ())
        where = f"{os.path.basename(refused.file)}:{refused.range[0]}"
        if not refused.file:
            return ExplicitTexts(current, (refused.reason,))
        originals.setdefault(refused.file, Path(refused.file).read_text(encoding="utf-8"))
        text = current.get(refused.file, originals[refused.file])
        line = _line_before(originals[refused.file], text, refused.range[0])
        specs = _specs_of_line(program, written, f"{refused.file}:{line}")
        for candidate in _candidates(text, refused.range, specs):
            trial = {**current, refused.file: candidate}
            following = _refused(function, given, trial)
            if following is None or not _is_refused(following, refused, candidate, text):
                current = trial
                break
        else:
            return ExplicitTexts(current, (f"{where}: {refused.reason}",))
    return ExplicitTexts(current, (f"more than {MOST_REFUSALS} expressions need a sharding",))


def _typed(written: WrittenPlan, function: Function) -> tuple[Any, ...]:
    """Shapes of the arguments with the plan's shardings, on a mesh with explicit axes."""
    import jax

    mesh = explicit_mesh(written)
    flattened: Any = jax.tree_util.tree_flatten(function.given)
    leaves, tree = flattened
    typed = [
        jax.ShapeDtypeStruct(
            jax.numpy.shape(leaf),
            jax.typeof(leaf).dtype if not hasattr(leaf, "dtype") else leaf.dtype,
            sharding=jax.sharding.NamedSharding(mesh, to_partition_spec(spec)),
        )
        for leaf, spec in zip(leaves, written.argument_specs(), strict=True)
    ]
    given: tuple[Any, ...] = tree.unflatten(typed)
    return given


def explicit_mesh(written: WrittenPlan) -> Any:
    """The plan's mesh, without devices, with explicit axes."""
    import jax

    mesh = written.problem.mesh
    types = (jax.sharding.AxisType.Explicit,) * len(mesh.axes)
    return jax.sharding.AbstractMesh(tuple(mesh.sizes), tuple(mesh.axes), axis_types=types)


def _refused(
    function: Function, given: tuple[Any, ...], texts: Mapping[str, str]
) -> _Refused | None:
    """What JAX refuses first when it traces the function with these sources; None: nothing."""
    import jax

    (mesh,) = {leaf.sharding.mesh for leaf in jax.tree_util.tree_leaves(given)}
    names = {"jax": jax, "P": jax.sharding.PartitionSpec}
    try:
        with replaced(texts, names), jax.sharding.use_abstract_mesh(mesh):
            jax.eval_shape(function.call, *given)
    except Exception as error:
        frames = [frame for frame in _frames(error) if _is_users(frame[0])]
        file, where = frames[-1] if frames else ("", (0, 0, 0, 0))
        return _Refused(file, where, short(error))
    return None


def _frames(error: BaseException) -> Iterator[tuple[str, Range]]:
    """File and range of the expressions that led to an error, the outermost first."""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        position = list(code.co_positions())[traceback.tb_lasti // 2]
        if None not in position:
            yield code.co_filename, position  # type: ignore[misc]
        traceback = traceback.tb_next


def _is_users(file: str) -> bool:
    parts = Path(file).parts
    room = str(Path(__file__).resolve().parents[1] / "frontends")
    is_library = {"site-packages", "dist-packages"} & {*parts} or file.startswith(room)
    return os.path.isfile(file) and not is_library and file != __file__


def _specs_of_line(program: Program, written: WrittenPlan, where: str) -> list[Any]:
    """Specs that the plan has on a line, of products and gathers first."""
    ranked: dict[Any, int] = {}
    for op in program.ops():
        if program.where(op) != where or "transpose(" in program.name_stack[op]:
            continue
        kind = op_kind(program.kind[op])
        moves = kind.done_while_fetched or kind.moves_elements
        rank = 0 if kind.cost_class == DOT or kind.looks_up else 1 if moves else 2
        for value in program.results(op):
            spec = visible(program, value, written.plan.lowered.kept[value])
            ranked[spec] = min(rank, ranked.get(spec, rank))
    return sorted(ranked, key=lambda spec: ranked[spec])


def _candidates(text: str, where: Range, specs: Sequence[Any]) -> Iterator[str]:
    """Texts with a sharding for the expression at a range."""
    data, tree = text.encode(), syntax.parse(text)
    name, _ = spec_name(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and where == (
            node.lineno,
            node.end_lineno,
            node.col_offset,
            node.end_col_offset,
        ):
            for spec in specs:
                insertions = _insertions(data, node, spec_text(spec, name=name))
                if insertions:
                    yield with_insertions(data, insertions).decode()
            return


def _insertions(data: bytes, node: ast.expr, spec: str) -> list[Insertion]:
    """What gives an expression a sharding; nothing if it is of no kind that takes one."""
    starts = line_starts(data)

    begin, end = span(starts, node)
    if isinstance(node, ast.Call):
        has_sharding = any(keyword.arg == "out_sharding" for keyword in node.keywords)
        if ast.unparse(node.func).rpartition(".")[2] not in _TAKE_SHARDING or has_sharding:
            return []
        given = (*node.args, *(keyword.value for keyword in node.keywords))
        last = max(span(starts, value)[1] for value in given)
        return [_last_argument(data, last, end - 1, f"out_sharding={spec}")]
    if isinstance(node, ast.Subscript):
        return [
            Insertion(span(starts, node.value)[1], ".at"),
            Insertion(end, f".get(out_sharding={spec})"),
        ]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        left_end = span(starts, node.left)[1]
        before, _, _ = data[left_end : span(starts, node.right)[0]].partition(b"@")
        gap = len(before) - len(before.rstrip())
        return [
            Insertion(begin, "jax.numpy.matmul("),
            Insertion(left_end + len(before) - gap, ",", removed=gap + 1),
            Insertion(end, f", out_sharding={spec})"),
        ]
    return []


def _last_argument(data: bytes, last: int, closing: int, text: str) -> Insertion:
    """One more argument of a call, whose last one ends at ``last``, before its bracket closes."""
    between = data[last:closing].decode()
    if "," not in re.sub("#.*", "", between):
        return Insertion(closing, f", {text}")
    _, newline, indentation = between.rpartition("\n")
    if not newline:
        return Insertion(closing, f" {text}" if between.endswith(",") else text)
    return Insertion(closing, f"    {text},{line_end(data)}{indentation}")


def _is_refused(following: _Refused, refused: _Refused, candidate: str, text: str) -> bool:
    """Is the expression that got a sharding still what JAX refuses first?"""
    if following.file != refused.file:
        return False
    before, after = text.encode(), candidate.encode()
    begin, end = _offsets(before, refused.range)
    return _offsets(after, following.range) == (begin, end + len(after) - len(before))


def _offsets(data: bytes, where: Range) -> tuple[int, int]:
    """Where a range begins and ends, in bytes."""
    starts = line_starts(data)
    line, end_line, column, end_column = where
    return starts[line - 1] + column, starts[end_line - 1] + end_column


def _line_before(original: str, text: str, line: int) -> int:
    """The line of the original that a line of an edited text was."""
    matcher = difflib.SequenceMatcher(None, original.splitlines(), text.splitlines(), False)
    offset = 0
    for block in matcher.get_matching_blocks():
        if block.b > line - 1:
            break
        offset = block.b - block.a
    return line - offset
