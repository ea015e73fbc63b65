"""Machine files: a ``Machine`` as TOML, read with every mistake reported at once and written whole or not at all.

    name = "my-machine"
    memory_bytes = 16e9
    memory_bytes_per_s = 900e9
    op_overhead_s = 1e-6
    overlap = 0.8                # optional, 1 if left out
    tile = 128                   # optional: side of the matrix unit, to which local sizes are rounded up
    compiler = "gpu"             # whose fusions to expect: "cpu" (if left out), "gpu" or "tpu"
    [flops]
    f32 = 15e12
    bf16 = 120e12
    [[links]]                    # innermost level first
    name = "NVLink"
    topology = "switch"          # or "torus", "ring"
    bytes_per_s = 150e9
    latency_s = 3e-6
    devices = 8                  # may be left out of the outermost level
    # of a torus also: extents = [16, 16], wrap_multiple = 16, wrap_all = false
    [sources]                    # optional texts: where the numbers are from
    [provenance]                 # optional texts: what a measurement was made on

``docs/machines.md`` says what each key means.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from toast_lab.cost.machine_model import Link, Machine
from toast_lab.errors import InvalidProblem, did_you_mean, join_offenders
from toast_lab.files import write_whole

_NUMBERS = {
    "memory_bytes": True,
    "memory_bytes_per_s": True,
    "op_overhead_s": True,
    "overlap": False,
    "tile": False,
}  # needed?
_TABLES = {"flops": True, "sources": False, "provenance": False}
_LINK_KEYS = {
    "name": (True, "a text"), "topology": (True, "a text"), "bytes_per_s": (True, "a number"),
    "latency_s": (True, "a number"), "devices": (False, "a whole number"), "extents": (False, "whole numbers"),
    "wrap_multiple": (False, "a whole number"), "wrap_all": (False, "true or false"), "source": (False, "a text"),
}  # fmt: skip
LARGEST_BYTES = 4 * 2**20  #: a machine file is a page; anything larger is something else


def read(path: str | Path) -> Machine:
    """Read a machine file.

    Raises:
        InvalidProblem: it is not there, no TOML, or wrong; every offending key is listed with the file's name.
    """
    file = Path(path)
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise InvalidProblem(f"{file}: {file.stat().st_size} bytes are too many for a machine file")
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidProblem(f"{file}: cannot read the machine file: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidProblem(f"{file}: this is no TOML: {error}") from None
    return parse(data, str(file))


def parse(data: dict[str, Any], file: str) -> Machine:
    """A machine from a file's data; ``file`` is its name in messages.  Raises InvalidProblem as ``read`` does."""
    wrong: list[str] = []
    known = ["name", "compiler", "links", *_NUMBERS, *_TABLES]
    wrong += [f"{key}: no such key{did_you_mean(key, known)}" for key in data if key not in known]
    name = data.get("name", Path(file).stem)
    if not isinstance(name, str) or not name.strip():
        wrong.append(f"name = {name!r} is not a text")
    numbers: dict[str, float] = {}
    for key, needed in _NUMBERS.items():
        _number(data, key, needed, key, numbers, wrong)
    tables: dict[str, dict[str, Any]] = {}
    for key, needed in _TABLES.items():
        tables[key] = data.get(key, {})
        if not isinstance(tables[key], dict):
            wrong.append(f"{key} = {tables[key]!r} is not a table")
            tables[key] = {}
        elif needed and key not in data:
            wrong.append(f"[{key}] is missing")
    flops: dict[str, float] = {}
    for key in tables["flops"]:
        _number(tables["flops"], key, True, f"flops.{key}", flops, wrong)
    texts = {k: {n: str(t) for n, t in tables[k].items()} for k in ("sources", "provenance")}
    links = _links(data.get("links"), wrong)
    fields = {
        "name": name, "flops": flops, "memory_bytes": 1.0, "memory_bytes_per_s": 1.0, "op_overhead_s": 0.0,
        "links": links, **numbers, **texts, **({"compiler": data["compiler"]} if "compiler" in data else {}),
    }  # fmt: skip
    # The machine's own checks come on top of what could be read, so that all is said in one round.
    trial = object.__new__(Machine)  # what is left out has its default from the class
    for key, value in fields.items():
        object.__setattr__(trial, key, value)
    f32_unreadable = "f32" in tables["flops"] and "f32" not in flops
    for key, text in trial.problems():
        if (key == "flops" and (f32_unreadable or "flops" not in data)) or (key == "links" and not links):
            continue  # said already
        wrong.append(f"{key}.{text}" if key.startswith("links[") else text)
    if wrong:
        raise InvalidProblem(f"{file}: {len(wrong)} mistakes in this machine file:\n{join_offenders(wrong)}")
    return Machine(**fields)


def _number(
    data: dict[str, Any], key: str, needed: bool, label: str, found: dict[str, float], wrong: list[str]
) -> None:
    if key not in data:
        wrong += [f"{label} is missing"] if needed else []
    elif isinstance(data[key], bool) or not isinstance(data[key], int | float):
        wrong.append(f"{label} = {data[key]!r} is not a number")
    else:
        found[key] = _float(data[key])


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits; "inf" is refused as impossible later
        return float("inf")


def _links(data: Any, wrong: list[str]) -> tuple[Link, ...]:
    if not isinstance(data, list) or not data or not all(isinstance(link, dict) for link in data):
        wrong.append("[[links]] is missing; give at least one level of links")
        return ()
    found = []
    for i, link in enumerate(data):
        wrong += [f"links[{i}].{k}: no such key{did_you_mean(k, _LINK_KEYS)}" for k in link if k not in _LINK_KEYS]
        fields: dict[str, Any] = {"name": f"links[{i}]", "topology": "switch", "bytes_per_s": 1.0, "latency_s": 0.0}
        for key, (needed, kind) in _LINK_KEYS.items():
            if key not in link:
                wrong += [f"links[{i}].{key} is missing"] if needed else []
            elif not _is(link[key], kind):
                wrong.append(f"links[{i}].{key} = {link[key]!r} is not {kind}")
                if key == "extents":
                    fields["extents"] = (1,)  # so that a torus is not called one without dims as well
            else:
                fields[key] = tuple(link[key]) if key == "extents" else link[key]
        fields["bytes_per_s"], fields["latency_s"] = _float(fields["bytes_per_s"]), _float(fields["latency_s"])
        found.append(Link(**fields))
    return tuple(found)


def _is(value: Any, kind: str) -> bool:
    if kind == "a text":
        return isinstance(value, str)
    if kind == "true or false":
        return isinstance(value, bool)
    if kind == "whole numbers":
        return isinstance(value, list) and all(_is(v, "a whole number") for v in value)
    allowed = int if kind == "a whole number" else int | float
    return isinstance(value, allowed) and not isinstance(value, bool)


def write(machine: Machine, path: str | Path, comment: str = "") -> None:
    """Write ``machine`` so that ``read`` gives it back; ``comment`` goes to the end, line by line.

    Raises:
        NotSaved: it cannot be written; the file is as it was.
    """
    write_whole(path, text(machine, comment), "the machine file")


def text(machine: Machine, comment: str = "") -> str:
    """``machine`` as TOML."""
    lines = [f"name = {_quoted(machine.name)}", f"compiler = {_quoted(machine.compiler)}"]
    for key in _NUMBERS:
        lines.append(f"{key} = {_plain(getattr(machine, key))}")
    for key in _TABLES:
        if table := getattr(machine, key):
            lines += ["", f"[{key}]"]
            lines += [f"{_quoted(k)} = {_plain(v)}" for k, v in table.items()]
    for link in machine.links:
        lines += ["", "[[links]]"]
        for key in _LINK_KEYS:
            value = getattr(link, key)
            if value is not None and value != Link.__dataclass_fields__[key].default:
                lines.append(f"{key} = {_plain(value)}")
    if comment:
        lines += ["", *(f"# {line}".rstrip() for line in comment.splitlines())]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_plain(v) for v in value) + "]"
    return repr(value)


def _quoted(value: str) -> str:
    """A basic TOML string; control characters, which it may not hold, and quotes as escapes."""
    escaped = "".join(
        f"\\{c}" if c in '"\\' else f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c for c in value
    )
    return f'"{escaped}"'
