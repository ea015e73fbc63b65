"""Edits of Python sources: texts inserted, imports added, and the diff of it all."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable
from typing import NamedTuple

from toast_lab import syntax


class Patch(NamedTuple):
    """A diff, and the constraints that it leaves out."""

    text: str  #: unified diff, paths from ``root``; empty if there is nothing to change
    sources: dict[str, str]  #: new source of each changed file
    left_out: tuple[str, ...]  #: constraints that are not in the diff, each with the reason

    def __str__(self) -> str:
        return self.text


class Insertion(NamedTuple):
    """A text to insert into a source."""

    offset: int  #: in bytes
    text: str
    removed: int = 0  #: bytes after the offset in whose place it comes


def with_insertions(source: bytes, insertions: Iterable[Insertion]) -> bytes:
    """The source with texts inserted; those at the same place come in the order given."""
    parts, end = [], 0
    for insertion in sorted(insertions, key=lambda insertion: insertion.offset):
        parts += [source[end : insertion.offset], insertion.text.encode()]
        end = insertion.offset + insertion.removed
    return b"".join([*parts, source[end:]])


def line_starts(source: bytes) -> list[int]:
    """Where each line begins, and where the last one ends."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def span(starts: list[int], node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Where a node begins and ends, in bytes; ``starts`` are the ``line_starts`` of its source."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (
        starts[node.lineno - 1] + node.col_offset,
        starts[node.end_lineno - 1] + node.end_col_offset,
    )


def spec_name(tree: ast.Module) -> tuple[str, bool]:
    """What a module calls ``PartitionSpec``, and whether that has still to be imported.

    It is ``P`` where that is free, or else the full name, which needs ``import jax`` alone.
    """
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jax"):
            for alias in node.names:
                name = alias.asname or alias.name
                if alias.name in ("PartitionSpec", "P") and not _binds(tree, name, but=node):
                    return name, False
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            is_spec = ast.unparse(node.value) in ("jax.sharding.PartitionSpec", "jax.P")
            if is_spec and not _binds(tree, name, but=node):
                return name, False
    return ("jax.sharding.PartitionSpec", False) if _binds(tree, "P") else ("P", True)


def imports_jax(tree: ast.Module) -> bool:
    """Does a module bind the name ``jax`` by an import?"""
    return any(
        isinstance(node, ast.Import)
        and any(
            alias.asname is None and alias.name.partition(".")[0] == "jax" for alias in node.names
        )
        for node in tree.body
    )


def missing_imports(source: bytes, tree: ast.Module) -> list[Insertion]:
    """The imports that a module lacks for ``jax`` and the name of ``spec_name``."""
    statements = [] if imports_jax(tree) else ["import jax"]
    if spec_name(tree)[1]:
        statements.append("from jax.sharding import PartitionSpec as P")
    return [import_lines(source, tree, statements)] if statements else []


def import_lines(source: bytes, tree: ast.Module, statements: Iterable[str]) -> Insertion:
    """Import statements, after the docstring and the imports with which a module begins."""
    starts, last, is_docstring = line_starts(source), 0, False
    for i, node in enumerate(tree.body):
        is_text = i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (is_text or isinstance(node, ast.Import | ast.ImportFrom)):
            break
        last, is_docstring = node.end_lineno or 0, is_text
    if not last:  # after comments at the top, such as those that say how to run or read the file
        lines = source.splitlines()
        while last < len(lines) and lines[last].startswith(b"#"):
            last += 1
    end = line_end(source)
    start = end if is_docstring else ""
    if last and not source[: starts[last]].endswith((b"\n", b"\r")):
        start = end
    return Insertion(starts[last], start + "".join(f"{statement}{end}" for statement in statements))


def line_end(source: bytes) -> str:
    """How lines end in a source."""
    return "\r\n" if b"\r\n" in source else "\n"


def unified(before: str, after: str, old_name: str, new_name: str) -> str:
    """The unified diff of two versions of a file, as git and patch read it."""
    lines = difflib.unified_diff(_lines(before), _lines(after), old_name, new_name)
    missing_end = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + missing_end for line in lines)


def _lines(text: str) -> list[str]:
    """The lines of a text as git counts them."""
    lines = text.split("\n")
    return [*(f"{line}\n" for line in lines[:-1]), *([lines[-1]] if lines[-1] else [])]


def _binds(tree: ast.Module, name: str, but: ast.AST | None = None) -> bool:
    """Does a module bind a name, other than by one of its statements?"""
    outside = set(map(id, ast.walk(but))) if but is not None else set()
    for node in ast.walk(tree):
        if id(node) in outside:
            continue
        bound: list[str | None]
        if isinstance(node, ast.alias):
            bound = [(node.asname or node.name).partition(".")[0]]
        elif isinstance(node, ast.Name):
            bound = [] if isinstance(node.ctx, ast.Load) else [node.id]
        else:
            bound = [getattr(node, "arg", None), getattr(node, "name", None)]
        if name in bound:
            return True
    return False


def checked(source: bytes) -> str:
    """The text of an edited source, which has to be Python still."""
    text = source.decode()
    syntax.parse(text)
    return text
