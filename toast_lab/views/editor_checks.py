"""Check a mesh or a machine while the user types it.

A check takes a few microseconds, and loads nothing.
"""

from __future__ import annotations

import functools
import math
import re
import tomllib
from typing import NamedTuple

from toast_lab.conflicts.analysis import Analysis
from toast_lab.errors import InvalidProblem, ToastError
from toast_lab.machines.machine_model import Machine
from toast_lab.machines.topology import lay_out
from toast_lab.sharding.mesh import Mesh, make_mesh
from toast_lab.text import counted, first_items_text
from toast_lab.views.compare_table import bytes_text

MAX_DEVICES = 4096
MAX_MESH_TEXT = 200
MAX_MACHINE_TEXT = 100_000


class CheckOutcome(NamedTuple):
    """Outcome of a check, with the ``mesh`` or ``machine`` if it can be used."""

    good: bool
    #: the outcome in a sentence, then remarks or remedies
    lines: tuple[str, ...]
    mesh: Mesh | None = None
    machine: Machine | None = None


def _refused(*lines: str) -> CheckOutcome:
    return CheckOutcome(False, lines)


@functools.lru_cache(maxsize=4)
def _sizes(analysis: Analysis) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(colour, its sizes above 1) of every colour that an action can shard."""
    names = analysis.names
    # Shardable names have sizes above 1
    groups = analysis.group[analysis.colour[names.shardable]].tolist()
    sizes_of: dict[int, list[int]] = {}
    for group, size in sorted({*zip(groups, names.size[names.shardable].tolist(), strict=True)}):
        sizes_of.setdefault(group, []).append(size)
    return tuple((analysis.group_name[group], tuple(sizes)) for group, sizes in sizes_of.items())


def check_mesh(mesh_text: str, analysis: Analysis | None, machine: Machine | None) -> CheckOutcome:
    """Check a mesh as the user types it.

    The outcome has the number of devices, whether the machine can connect them that way, and the
    colours whose sizes each axis divides.
    """
    if not mesh_text.strip():
        return _refused('Type axes as "data=4,model=2", or sizes as "4x2".')
    if len(mesh_text) > MAX_MESH_TEXT:
        return _refused(f"{len(mesh_text)} characters are too many for a mesh.")
    try:
        mesh = make_mesh(mesh_text)
    except (ToastError, ValueError) as error:
        return _refused(str(error))
    count = f"{mesh.n_devices:,} devices"
    if len(mesh.sizes) > 1:
        count = f"{' × '.join(map(str, mesh.sizes))} = {count}"
    if mesh.n_devices > MAX_DEVICES:
        return _refused(f"{count}; at most {MAX_DEVICES:,} are allowed here.")
    if machine is not None:
        try:
            lay_out(machine, mesh)
        except InvalidProblem as error:
            return _refused(f"{count}.", str(error))
    remarks = [f"{count}{' on ' + machine.name if machine is not None else ''}."]
    if analysis is not None:
        remarks += _divided(mesh, analysis)
    return CheckOutcome(True, tuple(remarks), mesh=mesh)


def _divided(mesh: Mesh, analysis: Analysis) -> list[str]:
    colours = _sizes(analysis)
    all_sizes = sorted({dim_size for _, sizes in colours for dim_size in sizes})
    remarks = []
    for axis, size in zip(mesh.axes, mesh.sizes, strict=True):
        if size == 1:
            remarks.append(f"{axis}=1 cuts nothing.")
            continue
        undivided = [
            colour_name
            for colour_name, sizes in colours
            if all(dim_size % size for dim_size in sizes)
        ]
        if len(undivided) == len(colours) and colours:
            divisors = sorted({math.gcd(dim_size, size) for dim_size in all_sizes} - {1})
            remedy = (
                f"{first_items_text(divisors)} would."
                if divisors
                else f"the sizes are {first_items_text(all_sizes, 6)}."
            )
            remarks.append(f"{axis}={size} divides no dim; {remedy}")
        elif undivided:
            remarks.append(
                f"{axis}={size} divides {len(colours) - len(undivided)} of {len(colours)} colours, "
                f"not {first_items_text(undivided, 4)}."
            )
        else:
            missed = [dim_size for dim_size in all_sizes if dim_size % size]
            exception = f", but no dim of size {first_items_text(missed, 4)}" if missed else ""
            remarks.append(f"{axis}={size} divides dims of every colour{exception}.")
    return remarks


def check_machine(machine_text: str) -> CheckOutcome:
    """Check a machine file as the user types it; each mistake comes with its line."""
    if not machine_text.strip():
        return _refused(
            "Type or drop a machine file (TOML). docs/machines.md says what each key means."
        )
    if len(machine_text) > MAX_MACHINE_TEXT:
        return _refused(f"{len(machine_text):,} characters are too many for a machine file.")
    try:
        tables = tomllib.loads(machine_text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return _refused(f"This is not TOML: {error}")
    try:
        machine = Machine.from_data(tables, "machine")
    except InvalidProblem as error:
        mistakes = [mistake.strip() for mistake in str(error).splitlines()[1:]] or [str(error)]
        return _refused(*(_with_line(machine_text, mistake) for mistake in mistakes))
    except (ToastError, ValueError, TypeError, OverflowError) as error:
        return _refused(str(error))
    speeds = ", ".join(
        f"{dtype} {per_second / 1e12:.3g} TFLOP/s" for dtype, per_second in machine.flops.items()
    )
    summary = (
        f"{machine.name}: {bytes_text(machine.memory_bytes)} a device, {speeds}, "
        f"{counted(len(machine.links), 'level')} of links."
    )
    return CheckOutcome(True, (summary,), machine=machine)


def _with_line(machine_text: str, mistake: str) -> str:
    """``mistake`` with the number of its line, if that can be found."""
    match = re.match(r"(?:links\[(\d+)\]\.)?\[?(?:flops\.)?([\w-]+)", mistake)
    line_number = _line_of(machine_text, *match.groups()) if match else None
    return f"line {line_number}: {mistake}" if line_number else mistake


def _line_of(machine_text: str, link: str | None, key_name: str) -> int | None:
    current_table, link_index = "", -1
    # A missing key has no line, but its table has one
    line_of_table = None
    for line_number, line in enumerate(machine_text.splitlines(), 1):
        if heading := re.match(r"\s*\[\[?\s*([\w.-]+)\s*\]\]?", line):
            current_table = heading.group(1)
            link_index += current_table == "links"
            if current_table == key_name:
                return line_number
            if current_table == "links" and str(link_index) == link:
                line_of_table = line_number
        elif re.match(rf"""\s*["']?{re.escape(key_name)}["']?\s*=""", line):
            if link is None or (current_table == "links" and str(link_index) == link):
                return line_number
    return line_of_table
