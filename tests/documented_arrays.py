"""Checks that objects have the shapes and dtypes that the package's records document.

The ``#:`` comment of a field that holds an array gives its shape and dtype: ``#: [V, A] int8 dim of
each value on each axis``. Within one object a letter is one size; ``[V+1]`` is one more, a number
is itself, and ``[at most E]`` is a bound. ``K of [S, A]`` is a list of K arrays, each with its own
S. The letters of ``SHARED`` mean the same in all objects that are made from one program, and A is
the number of mesh axes.

No class is named here: ``Recorder`` watches every record that is made.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

import toast_lab

PACKAGE = Path(toast_lab.__file__).parent
SHARED = {
    "V": lambda program: program.n_values,
    "O": lambda program: program.n_ops,
    "U": lambda program: len(program.use_value),
    "F": lambda program: program.n_factors,
    "N": lambda program: program.n_factors,  # names are numbered like factors
}
MOST = 6  # the most objects of a class that are kept
_SHAPE = re.compile(r"#:\s*(?:(?P<count>\w+'?) of )?\[(?P<dims>[^\]]*)\]\s*(?P<rest>.*)")
_DTYPE = re.compile(r"(bool|u?int(?:8|16|32|64)|float(?:32|64))\b")
_TERM = re.compile(r"([A-Za-z_]\w*'?)\s*(?:([+-])\s*(\d+))?")


class Field(NamedTuple):
    """A field of a record, with the shape and dtype in its comment."""

    name: str
    is_array: bool  #: annotated as one array or a list of them
    documented: bool
    count: str  #: the length of a list of arrays, "" for one array
    dims: tuple[str, ...]
    dtype: str  #: "" if the comment gives none


class Record(NamedTuple):
    """A dataclass or named tuple with array fields."""

    module: str
    name: str
    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def type(self) -> type:
        """The record's class itself."""
        return getattr(importlib.import_module(self.module), self.name)


@functools.cache
def records() -> tuple[Record, ...]:
    """All records of the package that have array fields."""
    with_arrays = []
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and _is_record(node):
                fields = tuple(_fields(node, source.splitlines()))
                if any(field.is_array for field in fields):
                    with_arrays.append(Record(".".join(parts), node.name, fields))
    return tuple(with_arrays)


def _is_record(node: ast.ClassDef) -> bool:
    bases = [ast.unparse(base) for base in node.bases]
    return "NamedTuple" in bases or any(
        "dataclass" in ast.unparse(decorator) for decorator in node.decorator_list
    )


def _fields(node: ast.ClassDef, lines: list[str]) -> Iterator[Field]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            annotation = ast.unparse(statement.annotation)
            comment = _comment(statement, lines)
            match = _SHAPE.match(comment)
            yield Field(
                statement.target.id,
                "np.ndarray" in annotation,
                match is not None,
                (match["count"] or "") if match else "",
                tuple(part.strip() for part in match["dims"].split(",")) if match else (),
                (dtype[1] if (dtype := _DTYPE.match(match["rest"])) else "") if match else "",
            )


def _comment(statement: ast.AnnAssign, lines: list[str]) -> str:
    """The ``#:`` comment on the field's own line, or in the block above it."""
    last = lines[(statement.end_lineno or statement.lineno) - 1]
    if "#:" in last:
        return last[last.index("#:") :]
    block: list[str] = []
    for line in reversed(lines[: statement.lineno - 1]):
        if not line.strip().startswith("#"):
            break
        block.insert(0, line.strip())
    start = next((i for i, line in enumerate(block) if line.startswith("#:")), len(block))
    return " ".join(block[start:])


# -- objects ---------------------------------------------------------------------------------------


class Recorder:
    """Keeps the first objects of every record class that are made inside the ``with`` block."""

    def __init__(self) -> None:
        self.kept: dict[Record, list[Any]] = {}
        self._undo: list[tuple[type, str, Any]] = []

    def __enter__(self) -> Recorder:
        for record in records():
            kind = record.type
            name = "__new__" if issubclass(kind, tuple) else "__init__"
            self._undo.append((kind, name, kind.__dict__[name]))
            setattr(kind, name, self._watched(record, kind.__dict__[name]))
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        for kind, name, original in self._undo:
            setattr(kind, name, original)

    def _watched(self, record: Record, original: Any) -> Any:
        kept = self.kept.setdefault(record, [])

        @functools.wraps(original)
        def make(first: Any, /, *args: Any, **keywords: Any) -> Any:
            result = original(first, *args, **keywords)
            if len(kept) < MOST:
                kept.append(first if result is None else result)
            return result

        return make


def faults(
    record: Record, value: Any, programs: list[Any], n_axes: int | None = None
) -> Iterator[str]:
    """Give a message for each field of an object that is not as documented.

    Args:
        record: the object's class.
        value: the object.
        programs: the programs that it may have been made from.
        n_axes: the number of mesh axes, the letter A in all objects.
    """
    sizes: dict[str, int] = {} if n_axes is None else {"A": n_axes}
    bounds: list[tuple[str, str, int]] = []
    for field in record.fields:
        content = getattr(value, field.name)
        if not field.documented or content is None or isinstance(content, dict):
            continue
        place = f"{record}.{field.name}"
        if field.count:
            yield from _dim(f"{place}: its number", field.count, len(content), sizes, bounds)
            for item in content:
                # A letter is one size within an item, but may differ between items
                yield from _array(place, field, item, dict(sizes), bounds)
        elif isinstance(content, np.ndarray):
            yield from _array(place, field, content, sizes, bounds)
        elif len(field.dims) == 1 and isinstance(content, (tuple, list)):
            yield from _dim(place, field.dims[0], len(content), sizes, bounds)
    for place, letter, size in bounds:
        if size > sizes.get(letter, size):
            yield f"{place} has {size}, but {letter} is {sizes[letter]}"
    ours = {letter: size for letter, size in sizes.items() if letter in SHARED}
    if ours and not any(
        all(SHARED[letter](program) == size for letter, size in ours.items())
        for program in programs
    ):
        yield f"{record}: {ours} are the sizes of no program that it could be of"


def _array(
    place: str,
    field: Field,
    array: np.ndarray,
    sizes: dict[str, int],
    bounds: list[tuple[str, str, int]],
) -> Iterator[str]:
    if array.ndim != len(field.dims):
        yield f"{place}: documented as {list(field.dims)}, has the shape {array.shape}"
        return
    for dim, size in zip(field.dims, array.shape, strict=True):
        yield from _dim(place, dim, size, sizes, bounds)
    if field.dtype and array.dtype != np.dtype(field.dtype):
        yield f"{place}: documented as {field.dtype}, is {array.dtype}"


def _dim(
    place: str, dim: str, size: int, sizes: dict[str, int], bounds: list[tuple[str, str, int]]
) -> Iterator[str]:
    if dim.isdigit():
        if size != int(dim):
            yield f"{place} has {size} where {dim} is documented"
        return
    if dim.startswith("at most "):
        bounds.append((place, dim.removeprefix("at most "), size))
        return
    if term := _TERM.fullmatch(dim):
        dim, sign, number = term.groups()
        size -= int(f"{sign or '+'}{number or 0}")
    if sizes.setdefault(dim, size) != size:
        yield f"{place}: {dim} is {size}, and {sizes[dim]} in the fields before"


def writeable(value: Any) -> list[str]:
    """The fields of a frozen dataclass whose arrays are writeable."""
    return [
        field.name
        for field in dataclasses.fields(value)
        if isinstance(array := getattr(value, field.name), np.ndarray) and array.flags.writeable
    ]
