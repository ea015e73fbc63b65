"""Machine files, which describe a machine in TOML.

Reading a file reports all of its mistakes at once; writing is whole or not at all.

A file is read into the fields of a ``Machine``; ``Machine.from_toml`` then makes the machine.

    name = "my-machine"
    memory_bytes = 16e9
    memory_bytes_per_s = 900e9
    op_overhead_s = 1e-6
    memory_sustained = 0.8       # optional, default 1: share of the rate above in products
    overlap = 0.8                # optional, default 1: share of a collective that can hide
    tile = 128                   # optional: side of the matrix unit; local sizes round up to it
    vector_memory_bytes = 134217728  # optional, TPU: memory on the chip, used by loops
    vector_memory_bytes_per_s = 3.8e12  # optional, TPU: rate at which products read it
    collective_matmul = 4        # optional, TPU: smallest group that sends during products
    combined_sum_bytes = 120e6   # optional, TPU: most bytes of sums that are made together
    transposed_numbers_per_s = 5e10  # optional, TPU: rate of a transposing copy, in elements
    shifted_numbers_per_s = 1.5e11  # optional: elements that stencils bring to other places
    gathered_ahead = 0.9         # optional: share of gathers that overlaps with earlier products
    host_link_bytes_per_s = 64e9  # optional: link between a device and host memory, one way
    compiler = "gpu"             # whose fusions to expect: "cpu" (default), "gpu" or "tpu"
    [flops]
    f32 = 15e12
    bf16 = 120e12
    [[links]]                    # innermost level first
    name = "NVLink"
    topology = "switch"          # or "torus", "ring"
    bytes_per_s = 150e9
    latency_s = 3e-6
    devices = 8                  # optional in the outermost level
    # for a torus also: extents = [16, 16], wrap_multiple = 16, wrap_all = false
    [links.collectives]          # optional, for a switch: terms fitted to measured times, by kind
    all_gather = { start_s = 2e-5, byte_s = 3e-12 }  # device_s, root_byte_s, byte_over_n_s: 0
    [products]                   # optional, GPU: instead of tile
    multiprocessors = 132
    sustained = 0.9
    start_s = 4e-6               # optional, default 0
    sustained_f32 = 0.75         # optional, for float32, by default as for other types
    full_f32_flops = 67e12       # optional, for products in full float32
    convolutions = 0.36          # optional, default 1: share of the peak with 64 features
    [sources]                    # optional texts: where the numbers come from
    [provenance]                 # optional texts: date and hardware of a measurement

``docs/machines.md`` explains each key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from toast_lab.errors import InvalidProblem, did_you_mean, join_offenders
from toast_lab.files import write_whole
from toast_lab.machines.gpu_products import GpuProducts
from toast_lab.machines.links import COLLECTIVES, CollectiveTerms, Link
from toast_lab.machines.machine_checks import machine_problems

#: Keys with a number, and whether the file must have them.
_NUMBERS = {
    "memory_bytes": True,
    "memory_bytes_per_s": True,
    "op_overhead_s": True,
    "memory_sustained": False,
    "overlap": False,
    "tile": False,
    "vector_memory_bytes": False,
    "vector_memory_bytes_per_s": False,
    "collective_matmul": False,
    "combined_sum_bytes": False,
    "transposed_numbers_per_s": False,
    "shifted_numbers_per_s": False,
    "gathered_ahead": False,
    "host_link_bytes_per_s": False,
}
#: Keys with a table, and whether the file must have them.
_TABLES = {"flops": True, "sources": False, "provenance": False}
#: Keys of a level of links: whether it must have them, and the kind of their value.
_LINK_KEYS = {
    "name": (True, "a text"),
    "topology": (True, "a text"),
    "bytes_per_s": (True, "a number"),
    "latency_s": (True, "a number"),
    "devices": (False, "a whole number"),
    "extents": (False, "whole numbers"),
    "wrap_multiple": (False, "a whole number"),
    "wrap_all": (False, "true or false"),
    "source": (False, "a text"),
    "collectives": (False, "a table"),
}
#: A machine file is about a page long; a larger file is not one.
LARGEST_BYTES = 4 * 2**20


class WritableMachine(Protocol):
    """The parts of a ``Machine`` that are written besides its numbers and tables."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def compiler(self) -> str: ...  # noqa: D102

    @property
    def links(self) -> tuple[Link, ...]: ...  # noqa: D102

    @property
    def products(self) -> GpuProducts | None: ...  # noqa: D102


def read(path: str | Path) -> dict[str, Any]:
    """The fields of the ``Machine`` that a file describes.

    Raises:
        InvalidProblem: the file is missing, is not TOML or is wrong; every offending key is listed
            with the file's name.
    """
    file = Path(path)
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise InvalidProblem(
                f"{file}: {file.stat().st_size} bytes are too many for a machine file"
            )
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidProblem(f"{file}: cannot read the machine file: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidProblem(f"{file}: this is not TOML: {error}") from None
    return parse(data, str(file))


def parse(data: dict[str, Any], file: str) -> dict[str, Any]:
    """The fields of a ``Machine`` from a file's data; ``file`` is its name in messages.

    Raises:
        InvalidProblem: as for ``read``.
    """
    mistakes: list[str] = []
    keys = ["name", "compiler", "links", "products", *_NUMBERS, *_TABLES]
    for key in data:
        if key not in keys:
            mistakes.append(f"{key}: no such key{did_you_mean(key, keys)}")
    name = data.get("name", Path(file).stem)
    if not isinstance(name, str) or not name.strip():
        mistakes.append(f"name = {name!r} is not a text")
    numbers: dict[str, float] = {}
    for key, needed in _NUMBERS.items():
        if key in data:
            _read_number(data[key], key, numbers, mistakes)
        elif needed:
            mistakes.append(f"{key} is missing")
    tables: dict[str, dict[str, Any]] = {}
    for key, needed in _TABLES.items():
        tables[key] = data.get(key, {})
        if not isinstance(tables[key], dict):
            mistakes.append(f"{key} = {tables[key]!r} is not a table")
            tables[key] = {}
        elif needed and key not in data:
            mistakes.append(f"[{key}] is missing")
    for key in ("sources", "provenance"):
        mistakes += [
            f"{key}.{name} = {text!r:.60} is not a text"
            for name, text in tables[key].items()
            if not isinstance(text, str)
        ]
    rates: dict[str, float] = {}
    for dtype, rate in tables["flops"].items():
        _read_number(rate, f"flops.{dtype}", rates, mistakes)
    flops = {key.removeprefix("flops."): rate for key, rate in rates.items()}
    links = _read_links(data.get("links"), mistakes)
    # Possible values replace numbers that could not be read, so each mistake is reported once.
    fields = {
        "name": name,
        "flops": flops,
        "memory_bytes": 1.0,
        "memory_bytes_per_s": 1.0,
        "op_overhead_s": 0.0,
        "links": links,
        **numbers,
        "sources": {key: str(text) for key, text in tables["sources"].items()},
        "provenance": {key: str(text) for key, text in tables["provenance"].items()},
    }
    if "compiler" in data:
        fields["compiler"] = data["compiler"]
    if "products" in data:
        numbers = _read_numbers(data["products"], "products", GpuProducts, mistakes)
        fields["products"] = GpuProducts(**{"multiprocessors": 1.0, "sustained": 1.0, **numbers})
    # The machine's own checks run on whatever could be read, so that all mistakes are reported
    # together.
    f32_reported = "flops" not in data or ("f32" in tables["flops"] and "f32" not in flops)
    for key, text in machine_problems(fields):
        if (key == "flops" and f32_reported) or (key == "links" and not links):
            continue
        mistakes.append(f"{key}.{text}" if key.startswith("links[") else text)
    if mistakes:
        title = f"{file}: {len(mistakes)} mistakes in this machine file:"
        raise InvalidProblem(f"{title}\n{join_offenders(mistakes)}")
    return fields


def _read_number(value: Any, key: str, numbers: dict[str, float], mistakes: list[str]) -> None:
    """Add the number to ``numbers``, or a sentence on its mistake to ``mistakes``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        mistakes.append(f"{key} = {value!r} is not a number")
    elif key == "tile" and abs(value) <= 2**53:
        # The side of a matrix unit stays an integer, to be written as one.
        numbers[key] = value
    else:
        numbers[key] = _as_float(value)


def _read_numbers(
    table: Any, key: str, record: type[GpuProducts | CollectiveTerms], mistakes: list[str]
) -> dict[str, float]:
    """The fields of a ``record`` of numbers, from the table at ``key``."""
    numbers: dict[str, float] = {}
    if not isinstance(table, dict):
        mistakes.append(f"{key} = {table!r} is not a table")
        return numbers
    for name, value in table.items():
        if name in record._fields:
            _read_number(value, f"{key}.{name}", numbers, mistakes)
        else:
            guess = did_you_mean(name, record._fields)
            mistakes.append(f"{key}.{name}: no such key{guess}")
    for name in record._fields:
        if name not in table and name not in record._field_defaults:
            mistakes.append(f"{key}.{name} is missing")
    return {name.removeprefix(f"{key}."): value for name, value in numbers.items()}


def _read_collectives(
    table: dict[str, Any], key: str, mistakes: list[str]
) -> dict[str, CollectiveTerms]:
    """The fitted terms of a level of links, by kind of collective."""
    terms = {}
    for kind, row in table.items():
        if kind not in COLLECTIVES:
            mistakes.append(f"{key}.{kind}: no such key{did_you_mean(kind, COLLECTIVES)}")
            continue
        numbers = _read_numbers(row, f"{key}.{kind}", CollectiveTerms, mistakes)
        terms[kind] = CollectiveTerms(**{"start_s": 0.0, "byte_s": 1.0, **numbers})
    return terms


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        # An integer of hundreds of digits; the checks refuse "inf" as impossible.
        return float("inf")


def _read_links(data: Any, mistakes: list[str]) -> tuple[Link, ...]:
    """All levels of links.

    For values that cannot be read, a sentence is added to ``mistakes`` and a possible value taken.
    """
    if not isinstance(data, list) or not data or not all(isinstance(link, dict) for link in data):
        mistakes.append("[[links]] is missing; give at least one level of links")
        return ()
    links = []
    for level, table in enumerate(data):
        for key in table:
            if key not in _LINK_KEYS:
                mistakes.append(f"links[{level}].{key}: no such key{did_you_mean(key, _LINK_KEYS)}")
        fields: dict[str, Any] = {
            "name": f"links[{level}]",
            "topology": "switch",
            "bytes_per_s": 1.0,
            "latency_s": 0.0,
        }
        for key, (needed, kind) in _LINK_KEYS.items():
            if key not in table:
                if needed:
                    mistakes.append(f"links[{level}].{key} is missing")
            elif not _is_kind(table[key], kind):
                mistakes.append(f"links[{level}].{key} = {table[key]!r} is not {kind}")
                if key == "extents":
                    # Otherwise a torus would also be reported as having no dims.
                    fields["extents"] = (1,)
            elif key == "collectives":
                collectives_key = f"links[{level}].collectives"
                fields[key] = _read_collectives(table[key], collectives_key, mistakes)
            else:
                fields[key] = tuple(table[key]) if key == "extents" else table[key]
        fields["bytes_per_s"] = _as_float(fields["bytes_per_s"])
        fields["latency_s"] = _as_float(fields["latency_s"])
        links.append(Link(**fields))
    return tuple(links)


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "a text":
        return isinstance(value, str)
    if kind == "a table":
        return isinstance(value, dict)
    if kind == "true or false":
        return isinstance(value, bool)
    if kind == "whole numbers":
        return isinstance(value, list) and all(_is_kind(item, "a whole number") for item in value)
    allowed = int if kind == "a whole number" else int | float
    return isinstance(value, allowed) and not isinstance(value, bool)


def write(machine: WritableMachine, path: str | Path, comment: str = "") -> None:
    """Write ``machine`` so that ``read`` gives its fields.

    ``comment`` is added at the end as comment lines.

    Raises:
        NotSaved: it cannot be written; an existing file is unchanged.
    """
    write_whole(path, text(machine, comment), "the machine file")


def text(machine: WritableMachine, comment: str = "") -> str:
    """The TOML text of ``machine``, with ``comment`` at its end."""
    lines = [f"name = {_quoted(machine.name)}", f"compiler = {_quoted(machine.compiler)}"]
    for key in _NUMBERS:
        lines.append(f"{key} = {_toml_value(getattr(machine, key))}")
    for key in _TABLES:
        if table := getattr(machine, key):
            lines += ["", f"[{key}]"]
            lines += [f"{_quoted(key)} = {_toml_value(value)}" for key, value in table.items()]
    if machine.products:
        lines += ["", "[products]", *_number_lines(machine.products)]
    for link in machine.links:
        lines += ["", "[[links]]"]
        for key in _LINK_KEYS:
            value = getattr(link, key)
            default = Link.__dataclass_fields__[key].default
            if key != "collectives" and value is not None and value != default:
                lines.append(f"{key} = {_toml_value(value)}")
        lines += collective_lines(link.collectives)
    if comment:
        lines += ["", *(f"# {line}".rstrip() for line in comment.splitlines())]
    return "\n".join(lines) + "\n"


def collective_lines(collectives: Mapping[str, CollectiveTerms]) -> list[str]:
    """The fitted terms of a level of links as TOML lines, [] if there are none."""
    if not collectives:
        return []
    rows = [
        f"{kind} = {{ {', '.join(_number_lines(terms))} }}" for kind, terms in collectives.items()
    ]
    return ["", "[links.collectives]", *rows]


def _number_lines(record: GpuProducts | CollectiveTerms) -> list[str]:
    """TOML lines of a record of numbers, without those that equal their default."""
    defaults = record._field_defaults
    return [
        f"{key} = {_toml_value(value)}"
        for key, value in record._asdict().items()
        if value != defaults.get(key)
    ]


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return repr(value)


def _quoted(value: str) -> str:
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
