"""Records in TOML files: classes whose annotations say what a file may hold.

    class Link:
        name: str
        bytes_per_s: Annotated[float, ABOVE_ZERO]
        devices: Annotated[int | None, ABOVE_ZERO] = None

``read`` takes such a record out of the data of a file and lists every mistake; ``problems`` lists
what is impossible in one, wherever it comes from; ``lines`` writes one. Fields are texts, numbers,
whole numbers, truth values and tuples of whole numbers; and, as tables, further records, mappings
to any of these, and tuples of records. A record may have a method ``offences``, which tells what is
wrong about several of its fields together.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from toast_lab.errors import InvalidProblem, did_you_mean

LARGEST = 2**62  #: whole numbers of a file are smaller


class Demand(NamedTuple):
    """What a value must be, beyond its type."""

    words: str  #: "must be above 0"
    is_met: Callable[[Any], bool]
    choices: Sequence[str] = ()  #: of a text, or the keys of a table; empty: any


ABOVE_ZERO = Demand("must be above 0", lambda value: math.isfinite(value) and value > 0)
AT_LEAST_ZERO = Demand("must not be below 0", lambda value: math.isfinite(value) and value >= 0)
SHARE = Demand("must be from 0 to 1", lambda value: 0 <= value <= 1)
PART = Demand("must be above 0 and at most 1", lambda value: 0 < value <= 1)


def one_of(choices: Sequence[str]) -> Demand:
    """The demand that a text, or each key of a table, is one of these."""
    return Demand(f"one of {', '.join(choices)}", lambda value: value in choices, choices)


class _Field(NamedTuple):
    """A field of a record."""

    type: Any  #: without None and demands
    demands: tuple[Demand, ...]
    is_required: bool
    default: Any  #: None if it is required, or made anew for each record


@functools.cache
def _fields(record: Any) -> dict[str, _Field]:
    if dataclasses.is_dataclass(record):
        defaults = {field.name: field for field in dataclasses.fields(record)}
        given = {
            name: None if field.default is dataclasses.MISSING else field.default
            for name, field in defaults.items()
            if field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        }
    else:
        given = record._field_defaults
    hints = typing.get_type_hints(record, include_extras=True)
    return {
        name: _Field(*_plain(hint), name not in given, given.get(name))
        for name, hint in hints.items()
        if typing.get_origin(hint) is not typing.ClassVar
    }


def _plain(hint: Any) -> tuple[Any, tuple[Demand, ...]]:
    """A type without ``Annotated`` and ``None``, and its demands."""
    demands: tuple[Demand, ...] = ()
    if typing.get_origin(hint) is Annotated:
        hint, *extras = typing.get_args(hint)
        demands = tuple(extra for extra in extras if isinstance(extra, Demand))
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        members = [member for member in typing.get_args(hint) if member is not types.NoneType]
        hint = members[0] if len(members) == 1 else hint
    return hint, demands


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))


# -- checking --------------------------------------------------------------------------------------
def problems(record: Any) -> Iterator[str]:
    """What is impossible in a record and the records in it, a sentence each."""
    kind: Any = type(record)
    own = {name: getattr(record, name) for name in _fields(kind)}
    yield from out_of_range(own, kind)
    for name, value in own.items():
        if isinstance(value, Mapping):
            parts = {f"{name}.{key}": part for key, part in value.items()}
        elif isinstance(value, tuple) and not _is_record(type(value)):
            parts = {f"{name}[{i}]": part for i, part in enumerate(value)}
        else:
            parts = {name: value}
        for key, part in parts.items():
            if _is_record(type(part)):
                yield from (f"{key}.{text}" for text in problems(part))
    yield from getattr(record, "offences", tuple)()


def out_of_range(given: Mapping[str, Any], record: type) -> Iterator[str]:
    """What is impossible about single fields of a record, of those that are given."""
    for name, field in _fields(record).items():
        if name not in given or given[name] is None:
            continue
        values, demands = {name: given[name]}, field.demands
        if typing.get_origin(field.type) is Mapping:
            values = {f"{name}.{key}": value for key, value in given[name].items()}
            for demand in demands:
                for key in given[name]:
                    if not demand.is_met(key):
                        yield f"{name}.{key} ({demand.words})"
            demands = _plain(typing.get_args(field.type)[1])[1]
        for key, value in values.items():
            for demand in demands:
                if not demand.is_met(value):
                    yield f"{key} = {value!r} ({demand.words})"


# -- reading ---------------------------------------------------------------------------------------
def load(path: str | Path, subject: str, most_bytes: int, advice: str = "") -> dict[str, Any]:
    """The data of a TOML file.

    Args:
        path: the file.
        subject: what the file is, for messages.
        most_bytes: a larger file is none of these.
        advice: added to the message if the file cannot be read.

    Raises:
        InvalidProblem: it cannot be read, is too large or is not TOML.
    """
    file = Path(path)
    try:
        if (size := file.stat().st_size) > most_bytes:
            raise InvalidProblem(f"{file}: {size} bytes are too many for {subject}")
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidProblem(f"{file}: cannot read {subject}: {error.strerror}{advice}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidProblem(f"{file}: this is not TOML: {error}") from None


def read(
    data: Mapping[str, Any], record: type, mistakes: list[str], prefix: str = ""
) -> dict[str, Any]:
    """The fields of a record, from data; those that cannot be read are left out.

    A sentence on each is added to ``mistakes``, and one on each number out of range. ``prefix``
    stands before the names of keys in them.
    """
    fields = _fields(record)
    mistakes += _unknown(data, fields, prefix)
    values = {}
    for name, field in fields.items():
        if name in data:
            value = _value(data[name], field.type, field.demands, prefix + name, mistakes=mistakes)
            if value is not None:
                values[name] = value
        elif field.is_required:
            mistakes.append(f"{_heading(prefix + name, field.type)} is missing")
    mistakes += [prefix + text for text in out_of_range(values, record)]
    return values


def _unknown(data: Iterable[str], keys: Collection[str], prefix: str) -> list[str]:
    return [
        f"{prefix}{key}: no such key{did_you_mean(key, keys)}" for key in data if key not in keys
    ]


def _heading(key: str, kind: Any) -> str:
    """A key as it is written in a file: a table in brackets."""
    if typing.get_origin(kind) is Mapping or _is_record(kind):
        return f"[{key}]"
    is_array = typing.get_origin(kind) is tuple and _is_record(typing.get_args(kind)[0])
    return f"[[{key}]]" if is_array else key


def _value(
    value: Any, kind: Any, demands: Sequence[Demand], key: str, mistakes: list[str]
) -> Any | None:
    """A value of a file as a field of this kind; None, and a mistake, if it cannot be one."""
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin is Mapping and isinstance(value, dict):
        keys = next((demand.choices for demand in demands if demand.choices), list(value))
        mistakes += _unknown(value, keys, f"{key}.")
        member, its_demands = _plain(members[1])
        table = {
            name: _value(entry, member, its_demands, f"{key}.{name}", mistakes=mistakes)
            for name, entry in value.items()
            if name in keys
        }
        known = {name: entry for name, entry in table.items() if entry is not None}
        # Without a number, which one is missing cannot be told any more
        return known if len(known) == len(table) or _is_record(member) else None
    if _is_record(kind) and isinstance(value, dict):
        return _record(value, kind, key, mistakes)
    if origin is tuple and _is_record(members[0]) and isinstance(value, list) and value:
        if all(isinstance(entry, dict) for entry in value):
            parts = [_record(v, members[0], f"{key}[{i}]", mistakes) for i, v in enumerate(value)]
            return None if None in parts else tuple(parts)
    if kind is str and demands:
        return value  # they say what it must be
    words, plain = _PLAIN.get(kind, ("a table", lambda value: None))
    converted = plain(value)
    if converted is None:
        mistakes.append(f"{key} = {value!r:.60} is not {words}")
    return converted


def _record(data: Mapping[str, Any], record: type, key: str, mistakes: list[str]) -> Any | None:
    """A record in a file; None if a field that it must have cannot be read."""
    values = read(data, record, mistakes, f"{key}.")
    if any(field.is_required and name not in values for name, field in _fields(record).items()):
        return None
    whole = record(**values)
    mistakes += [f"{key}.{text}" for text in getattr(whole, "offences", tuple)()]
    return whole


def _number(value: Any) -> int | float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def _float(value: Any) -> float | None:
    number = _number(value)
    try:
        return None if number is None else float(number)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def _whole(value: Any) -> int | None:
    number = _number(value)
    is_whole = number is not None and abs(number) < LARGEST and number == int(number)
    return int(value) if is_whole else None


def _wholes(value: Any) -> tuple[int, ...] | None:
    numbers = [_whole(item) for item in value] if isinstance(value, list) else [None]
    return None if None in numbers else tuple(number for number in numbers if number is not None)


#: How values without tables are called, and read: None if they are something else.
_PLAIN: dict[Any, tuple[str, Callable[[Any], Any]]] = {
    str: ("a text", lambda value: value if isinstance(value, str) else None),
    bool: ("true or false", lambda value: value if isinstance(value, bool) else None),
    int: ("a whole number", _whole),
    float: ("a number", _float),
    int | float: ("a number", _number),
    tuple[int, ...]: ("whole numbers", _wholes),
}


# -- writing ---------------------------------------------------------------------------------------
def lines(record: Any, *, heading: str = "", defaults: bool = False) -> list[str]:
    """A record as lines of TOML, its tables below it; ``defaults``: also what equals its default.

    ``heading`` is the dotted name of its own table.
    """
    within = f"{heading}." if heading else ""
    kind: Any = type(record)
    own, below = [], list[str]()
    for name, field in _fields(kind).items():
        value, is_table = getattr(record, name), _heading("", field.type) != ""
        if is_table and not value:
            continue
        if not is_table:
            if value is not None and (defaults or field.is_required or value != field.default):
                own.append(f"{name} = {toml_value(value)}")
        elif isinstance(value, Mapping):
            rows = [f"{_key(key)} = {toml_value(entry)}" for key, entry in value.items()]
            below += ["", f"[{within}{name}]", *rows]
        elif _is_record(type(value)):
            below += ["", f"[{within}{name}]", *lines(value, heading=within + name)]
        else:
            for part in value:
                below += ["", f"[[{within}{name}]]", *lines(part, heading=within + name)]
    return own + below


def toml_value(value: Any) -> str:
    """A value in TOML; a record of numbers as an inline table, without those that are defaults."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if _is_record(type(value)):
        return f"{{ {', '.join(lines(value))} }}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)


def _key(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else quoted(name)


def quoted(value: str) -> str:
    """A basic TOML string, with quotes and control characters, which it may not hold, escaped."""
    escaped = "".join(
        f"\\{character}"
        if character in '"\\'
        else f"\\u{ord(character):04x}"
        if ord(character) < 32 or ord(character) == 127
        else character
        for character in value
    )
    return f'"{escaped}"'
