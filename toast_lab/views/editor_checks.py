"""What is right and wrong about a mesh or a machine while it is typed.

It takes a few microseconds, and nothing is loaded.
"""

from __future__ import annotations

import functools
import math
import re
import tomllib
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.errors import InvalidProblem, ToastError
from toast_lab.machines.machine_model import Machine
from toast_lab.machines.topology import lay_out
from toast_lab.sharding.mesh import Mesh, make_mesh
from toast_lab.text import few
from toast_lab.views.compare_table import bytes_text

MAX_DEVICES = 4096
MAX_MESH_TEXT = 200
MAX_MACHINE_TEXT = 100_000


class Checked(NamedTuple):
    """Outcome of a check; ``mesh`` or ``machine`` is there if it can be used."""

    good: bool
    lines: tuple[str, ...]  #: the verdict, then what to know or to do
    mesh: Mesh | None = None
    machine: Machine | None = None


@functools.lru_cache(maxsize=4)
def _sizes(analysis: Analysis) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(colour, its sizes above 1) of every colour that an action can shard."""
    names = analysis.names
    group = analysis.group[analysis.colour].astype(np.int64)
    on = names.shardable & (names.size > 1)
    found: dict[int, set[int]] = {}
    for g, size in np.unique(np.stack([group[on], names.size[on]], axis=1), axis=0).tolist():
        found.setdefault(g, set()).add(size)
    return tuple((analysis.group_name[g], tuple(sorted(s))) for g, s in found.items())


def check_mesh(
    text: str, analysis: Analysis | None = None, machine: Machine | None = None
) -> Checked:
    """A mesh as it is typed.

    How many devices, whether the machine joins them, and what each axis divides.
    """
    if not text.strip():
        return Checked(False, ('Type axes as "data=4,model=2", or sizes as "4x2".',))
    if len(text) > MAX_MESH_TEXT:
        return Checked(False, (f"{len(text)} characters are no mesh.",))
    try:
        mesh = make_mesh(text)
    except (ToastError, ValueError) as error:
        return Checked(False, (str(error),))
    product = " × ".join(map(str, mesh.sizes))
    count = (
        f"{product} = {mesh.n_devices:,} devices"
        if len(mesh.sizes) > 1
        else (f"{mesh.n_devices:,} devices")
    )
    if mesh.n_devices > MAX_DEVICES:
        return Checked(False, (f"{count}; at most {MAX_DEVICES:,} are taken here.",))
    if machine is not None:
        try:
            lay_out(machine, mesh)
        except InvalidProblem as error:
            return Checked(False, (f"{count}.", str(error)))
    lines = [f"{count}{' on ' + machine.name if machine is not None else ''}."]
    if analysis is not None:
        lines += _divided(mesh, analysis)
    return Checked(True, tuple(lines), mesh=mesh)


def _divided(mesh: Mesh, analysis: Analysis) -> list[str]:
    colours = _sizes(analysis)
    lines = []
    for axis, size in zip(mesh.axes, mesh.sizes, strict=True):
        if size == 1:
            lines.append(f"{axis}=1 cuts nothing.")
            continue
        whole = [name for name, sizes in colours if not any(s % size == 0 for s in sizes)]
        if len(whole) == len(colours) and colours:
            near = sorted({math.gcd(s, size) for _, sizes in colours for s in sizes} - {1})
            others = sorted({s for _, sizes in colours for s in sizes})
            would = f"{few(near, 3)} would." if near else f"sizes are {few(others, 6)}."
            lines.append(f"No dim divides by {axis}={size}; {would}")
        elif whole:
            lines.append(
                f"{axis}={size} divides {len(colours) - len(whole)} of {len(colours)} colours, "
                f"not {few(whole, 4)}."
            )
        else:
            lines.append(f"{axis}={size} divides every colour.")
    return lines


def check_machine(text: str) -> Checked:
    """A machine file as it is typed; every mistake with its line."""
    if not text.strip():
        return Checked(
            False,
            ("Type or drop a machine file (TOML). docs/machines.md says what each key means.",),
        )
    if len(text) > MAX_MACHINE_TEXT:
        return Checked(False, (f"{len(text):,} characters are too many for a machine file.",))
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return Checked(False, (f"This is no TOML: {error}",))
    try:
        machine = Machine.from_data(data, "machine")
    except InvalidProblem as error:
        found = [line.strip() for line in str(error).splitlines()[1:]] or [str(error)]
        return Checked(False, tuple(_with_line(text, line) for line in found))
    except (ToastError, ValueError, TypeError, OverflowError) as error:
        return Checked(False, (str(error),))
    speeds = ", ".join(f"{k} {v / 1e12:.3g} TFLOP/s" for k, v in machine.flops.items())
    return Checked(
        True,
        (
            f"{machine.name}: {bytes_text(machine.memory_bytes)} a device, {speeds}, "
            f"{len(machine.links)} level{'s' if len(machine.links) > 1 else ''} of links.",
        ),
        machine=machine,
    )


def _with_line(text: str, mistake: str) -> str:
    """``mistake`` with the line that it is about, where one can be found."""
    match = re.match(r"(?:links\[(\d+)\]\.)?\[?(?:(flops)\.)?([\w-]+)", mistake)
    line = _line_of(text, match.group(1), match.group(3)) if match else None
    return f"line {line}: {mistake}" if line else mistake


def _line_of(text: str, link: str | None, key: str) -> int | None:
    table, links = "", -1
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[\[?\s*([\w.-]+)\s*\]\]?", line):
            table = head.group(1)
            links += table == "links"
            if table == key:
                return number
        elif re.match(rf"""\s*["']?{re.escape(key)}["']?\s*=""", line):
            if link is None or (table == "links" and links == int(link)):
                return number
    if link is not None:  # what is missing has no line of its own; its table has
        return next(
            (
                n
                for i, n in enumerate(
                    n for n, line in enumerate(text.splitlines(), 1) if "[[links]]" in line
                )
                if i == int(link)
            ),
            None,
        )
    return None
