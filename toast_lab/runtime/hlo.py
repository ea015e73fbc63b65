"""Collectives of a compiled program, read from its optimised HLO text.

They are compared with those that the plan asks for. However the text writes a collective, it counts
once, with the number of times that the loops around it run it:

* the start and the done of an asynchronous collective (``-start``, ``-done``) are one collective;
  the type of the start has both operand and result. On GPUs the start may have lost its op
  name, which is then taken from the instruction that computes its operand;
* TPU programs spread a gather over the matrix products that it overlaps with; its pieces, each in
  a fusion, share one channel;
* TPU programs write a reduce_scatter as a fusion of an all-reduce and a slice;
* a collective that was merged from several has a ``CollectivePart`` for each of them.

Example: ``%ag = f32[2,16]{0,1} all-gather(%w), replica_groups=[4,2]<=[2,4]T(1,0), ...`` on a mesh
d=2, m=4 is ``Collective("all_gather", 128, 2, ("d",), "jit(f)/dot_general", "model.py:3", ...)``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from toast_lab.lowering.annotate import split_name
from toast_lab.runtime import hlo_text
from toast_lab.runtime.hlo_text import Computation, ExecutedComputation, Instruction

_OPCODE = re.compile(
    r"(?P<kind>all-gather|all-reduce|reduce-scatter|ragged-all-to-all|all-to-all"
    r"|collective-permute|collective-broadcast)"
    r"(?P<start>-start)?"
)
_ARRAY = re.compile(r"\b([a-z]+[0-9a-z]*)\[([0-9,]*)\]")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_SOURCE = re.compile(r'source_file="([^"]*)"(?:\s+source_line=(\d+))?')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_IOTA = re.compile(r"replica_groups=\[([0-9,]+)\]<=\[([0-9,]+)\](?:T\(([0-9,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:\s*,\s*device_ids=\((.*?)\))?\s*\{([^}]*)\}")
_TRANSPOSED = re.compile(r"\[([0-9,]*)\](?:T\(([0-9,]+)\))?")
_LISTED = re.compile(r"replica_groups=\{((?:\{[0-9, ]*\},?\s*)*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{[0-9, ]*\},?\s*)*)\}")
_ROW = re.compile(r"\{([0-9, ]*)\}")
_WIDTH = re.compile(r"[a-z]+(\d+)")
_CHANNEL = re.compile(r"channel_id=(\d+)")
#: libtpu writes the largest integer where it has no estimate: no step takes a century.
_MOST_CYCLES = 1 << 62


class CollectivePart(NamedTuple):
    """One array of a collective."""

    op: int  #: index of the op that it belongs to, -1 if unknown
    bytes: int  #: the larger of operand and result on one device
    dtype: str  #: element type as sent, "bf16"


class Collective(NamedTuple):
    """One collective of a compiled program."""

    kind: str  #: "all_gather", "collective_permute"
    bytes: int  #: the larger of operand and result on one device
    group_size: int  #: number of devices that communicate with each other
    #: mesh axes that it runs over, None if its groups are not those of whole axes
    axes: tuple[str, ...] | None
    op_name: str  #: name of the op that it was compiled from, "jit(f)/dot_general"
    source: str  #: "model.py:12", empty if unknown
    op: int = -1  #: index of the op that it was compiled from, -1 if the text does not say
    times: float = 1.0  #: how often one step runs it
    parts: tuple[CollectivePart, ...] = ()  #: collectives it was merged from, else one part

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data; parts stay tuples."""
        return {**self._asdict(), "axes": None if self.axes is None else list(self.axes)}


def counts_text(counts: Mapping[str, float]) -> str:
    """Counts of collectives by kind as a phrase, "" if there are none."""
    return ", ".join(f"{count:g} {kind}" for kind, count in sorted(counts.items()))


def collectives(
    hlo_source: str,
    mesh: Mapping[str, int],
    rounds: hlo_text.Rounds = hlo_text.unknown,
) -> list[Collective]:
    """Collectives of optimised HLO, in text order.

    Args:
        hlo_source: the optimised HLO of a program.
        mesh: axis sizes, in mesh order, of the mesh that it was compiled for.
        rounds: gives a loop's number of rounds where the text does not state it.
    """
    return collectives_of(hlo_text.parse(hlo_source), source_lines(hlo_source), mesh, rounds)


def collectives_of(
    module: hlo_text.Module,
    frames: Mapping[int, str],
    mesh: Mapping[str, int],
    rounds: hlo_text.Rounds = hlo_text.unknown,
) -> list[Collective]:
    """``collectives`` of a parsed text; ``frames`` is its ``source_lines``."""
    position = {name: i for i, name in enumerate(module.computations)}
    placed: list[tuple[tuple[int, int], Collective]] = []
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for place in hlo_text.executed(module, rounds):
        for row, instruction in enumerate(place.computation.instructions):
            if not kind_of(instruction):
                continue
            channel = _CHANNEL.search(instruction.attributes)
            # Count once a gather that is spread over several fusions of one body
            if place.fused and channel:
                calls = [call.name for call in place.via]
                depth = next(i for i, call in enumerate(place.via) if call.opcode == "fusion")
                key = channel.group(1), tuple(calls[:depth])
                if key in seen:
                    continue
                seen.add(key)
            collective = _collective(
                module,
                place,
                instruction,
                mesh=mesh,
                frames=frames,
            )
            placed.append(((position[place.computation.name], row), collective))
    return [collective for _, collective in sorted(placed, key=lambda pair: pair[0])]


def estimated_cycles(instruction: Instruction) -> int:
    """Cycles that libtpu expects an instruction to take; 0 if it has no estimate."""
    cycles = int(instruction.field("estimated_cycles") or 0)
    return cycles if 0 < cycles < _MOST_CYCLES else 0


def op_of(instruction: Instruction | None) -> int:
    """Index of the op that an instruction was compiled from, -1 if it does not say."""
    name = _OP_NAME.search(instruction.attributes) if instruction is not None else None
    return split_name(name.group(1))[0] if name else -1


def op_inside(module: hlo_text.Module, fusion: Instruction) -> int:
    """Index of the op that most instructions of a fusion belong to; -1 if none names an op."""
    body = module.computations.get(fusion.called("calls"))
    instructions = body.instructions if body else ()
    ops = [op for instruction in instructions if (op := op_of(instruction)) >= 0]
    return max(ops, key=lambda op: (ops.count(op), op)) if ops else -1


def op_or_inside(module: hlo_text.Module, instruction: Instruction) -> int:
    """``op_of`` an instruction, or ``op_inside`` a fusion that does not say."""
    op = op_of(instruction)
    return op_inside(module, instruction) if op < 0 and instruction.opcode == "fusion" else op


def kind_of(instruction: Instruction) -> str:
    """Kind of a collective instruction, "" for others, including the done of a collective."""
    return kind_of_opcode(instruction.opcode)


def kind_of_opcode(opcode: str) -> str:
    """Kind of the collective that an opcode runs or starts, "" if none."""
    match = _OPCODE.fullmatch(opcode)
    return match["kind"].replace("-", "_").removeprefix("ragged_") if match else ""


def device_groups(instruction: Instruction, n_devices: int) -> list[list[int]]:
    """Groups of devices that communicate in a collective; for a permute its pairs."""
    if kind_of(instruction) == "collective_permute":
        return _rows(_PAIRS.search(instruction.line))
    return replica_groups(instruction.line, n_devices)


def local_bytes(instruction: Instruction, group_size: int) -> int:
    """The larger of a collective's operand and result on one device, in bytes."""
    operand_arrays, result_arrays = _operand_and_result_arrays(instruction)
    sizes = [
        sum(_array_bytes(*array) for array in arrays) for arrays in (operand_arrays, result_arrays)
    ]
    if kind_of(instruction) == "reduce_scatter" and not operand_arrays:
        return sizes[1] * group_size
    return max(sizes)


def type_bytes(result_type: str) -> int:
    """Bytes of all arrays in an instruction's type."""
    return sum(_array_bytes(*array) for array in _ARRAY.findall(result_type))


def served_op(
    module: hlo_text.Module, place: ExecutedComputation, instruction: Instruction
) -> tuple[int, str, Instruction]:
    """The op that a collective serves: its index, its name and the instruction that names it.

    The index is -1 if no instruction names an op.
    """
    match = _match_outwards(place, instruction, _OP_NAME)
    op, op_name = split_name(match.group(1)) if match else (-1, "")
    neighbour = None
    if op < 0 and place.via and place.via[-1].opcode == "async-start":
        # Its operand is a parameter: the summed value is computed outside, before the call
        call = place.via[-1]
        callers = (caller for caller in module.computations.values() if call.name in caller.by_name)
        for computation in callers:
            neighbour = _summed(module, computation, call)
    elif op < 0:
        neighbour = _neighbour(module, place.computation, instruction)
    if neighbour is None:
        return op, op_name, instruction
    op, naming_instruction = neighbour
    match = _OP_NAME.search(naming_instruction.attributes)
    return op, split_name(match.group(1))[1] if match else "", naming_instruction


def _neighbour(
    module: hlo_text.Module, computation: Computation, instruction: Instruction
) -> tuple[int, Instruction] | None:
    """The op next to a collective that names none, and the instruction that names the op."""
    if kind_of(instruction) in ("all_reduce", "reduce_scatter") and instruction.operands:
        summed = _summed(module, computation, instruction)
        if summed is not None:
            return summed
    # Newer compilers name it after the argument it moves: it serves the op that reads the copy
    reader = _reader(computation, instruction, 0)
    return (op_of(reader), reader) if reader is not None else None


def _summed(
    module: hlo_text.Module, computation: Computation, instruction: Instruction
) -> tuple[int, Instruction] | None:
    """The op that computes the operand of an unnamed sum, and the instruction that names it."""
    producer = hlo_text.chain_up(computation, (*instruction.operands, "")[0])
    op = -1 if producer is None else op_or_inside(module, producer)
    return (op, producer) if producer is not None and op >= 0 else None


def _collective(
    module: hlo_text.Module,
    place: ExecutedComputation,
    instruction: Instruction,
    *,
    mesh: Mapping[str, int],
    frames: Mapping[int, str],
) -> Collective:
    kind = kind_of(instruction)
    groups = device_groups(instruction, math.prod(mesh.values()))
    if kind == "collective_permute":
        axes, group_size = permute_axes(groups, mesh), 2
    else:
        axes, group_size = group_axes(groups, mesh), max(map(len, groups), default=1)
    size = local_bytes(instruction, group_size)
    op, op_name, naming_instruction = served_op(module, place, instruction)
    if kind == "all_reduce" and place.fused and _only_sliced(place.computation, instruction):
        kind = "reduce_scatter"  # the sum is as large as a device's operand
    return Collective(
        kind=kind,
        bytes=size,
        group_size=group_size,
        axes=axes,
        op_name=op_name,
        source=_source(place, naming_instruction, frames),
        op=op,
        times=place.times,
        parts=_parts(module, place, instruction, CollectivePart(op, size, dtype=""), kind=kind),
    )


def _only_sliced(computation: Computation, instruction: Instruction) -> bool:
    users = computation.users.get(instruction.name, [])
    return bool(users) and all(user.opcode == "dynamic-slice" for user in users)


def _match_outwards(
    place: ExecutedComputation, instruction: Instruction, pattern: re.Pattern[str]
) -> re.Match[str] | None:
    """Match ``pattern`` on an instruction or else on the fusions around it, innermost first."""
    match = pattern.search(instruction.attributes)
    for call in reversed(place.via):
        if match or call.opcode not in ("fusion", "async-start"):
            break
        match = pattern.search(call.attributes)
    return match


def _parts(
    module: hlo_text.Module,
    place: ExecutedComputation,
    instruction: Instruction,
    whole: CollectivePart,
    *,
    kind: str,
) -> tuple[CollectivePart, ...]:
    """The arrays that a collective was merged from; ``whole`` is all of them as one part.

    A merged collective carries the name of only one of them. Gathers belong to the op that reads
    the copy, all others to the op that computes the value.
    """
    _, arrays = _operand_and_result_arrays(instruction)
    n_arrays = len(instruction.operands)
    # Without ``dimensions``, an all-to-all has one array, with an operand for each device's piece
    is_cut = kind == "all_to_all" and "dimensions=" not in instruction.attributes
    if n_arrays <= 1 or len(arrays) != n_arrays or is_cut:
        return (whole._replace(dtype=arrays[0][0] if arrays else ""),)
    total = sum(_array_bytes(*array) for array in arrays) or 1
    parts = []
    for i, (array, operand) in enumerate(zip(arrays, instruction.operands, strict=True)):
        reader = _reader(place.computation, instruction, i) if kind == "all_gather" else None
        op = op_of(reader or hlo_text.chain_up(place.computation, operand))
        if op < 0:
            op = op_of(hlo_text.element_of(module, place.computation, operand))
        size = whole.bytes * _array_bytes(*array) // total
        parts.append(CollectivePart(op if op >= 0 else whole.op, size, dtype=array[0]))
    return tuple(parts)


def _reader(computation: Computation, instruction: Instruction, index: int) -> Instruction | None:
    """The first instruction with an op index that reads element ``index`` of a collective."""
    name, steps = instruction.name, 0
    while steps < 8:
        users = computation.users.get(name, [])
        if steps == 0:
            users = [
                user for user in users if f"index={index}" in user.attributes.split(", ")
            ] or users
        if not users:
            return None
        if op_of(users[0]) >= 0 and users[0].opcode != "get-tuple-element":
            return users[0]
        name, steps = users[0].name, steps + 1
    return None


# -- sizes -----------------------------------------------------------------------------------------


def first_bytes(result_type: str) -> int:
    """Bytes of the first array of a type, 0 if it has none."""
    match = _ARRAY.search(result_type)
    return _array_bytes(*match.groups()) if match else 0


def first_dtype(result_type: str) -> str:
    """Element type of the first array of a type, "" if it has none."""
    match = _ARRAY.search(result_type)
    return match.group(1) if match else ""


def _operand_and_result_arrays(
    instruction: Instruction,
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Arrays of a collective's operands and of its results, as far as its type has them.

    The start of an asynchronous collective has both in its type, ``(operand, result)``, perhaps
    followed by context words. Several operands are a tuple, and for some kinds a single one is too:
    ``((operand), result)``. An all_reduce has results of its operands' shapes, so its type has the
    results alone, as does that of every collective that is not asynchronous.
    """
    elements = _elements(instruction.type)
    if instruction.opcode.endswith("-start") and len(elements) > 1:
        if kind_of(instruction) != "all_reduce":
            return _ARRAY.findall(elements[0]), _ARRAY.findall(elements[1])
    return [], _ARRAY.findall(instruction.type)


def _elements(result_type: str) -> list[str]:
    """The elements of a tuple type; any other type is its own single element."""
    if not result_type.startswith("("):
        return [result_type]
    elements, depth, start = [], 0, 1
    for i, character in enumerate(result_type):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 or (depth == 1 and character == ","):
            elements.append(result_type[start:i].strip())
            start = i + 1
        if depth == 0:
            break
    return elements


def _array_bytes(element: str, dims: str) -> int:
    if element == "pred":
        bits = 8
    else:
        width = _WIDTH.match(element)
        bits = int(width.group(1)) if width else 0  # tokens have no data
    return math.prod(int(extent) for extent in dims.split(",") if extent) * bits // 8


# -- groups of devices -----------------------------------------------------------------------------


def replica_groups(line: str, n_devices: int) -> list[list[int]]:
    """Groups of devices that communicate in an HLO collective.

    There are three notations: explicit lists ``{{0,1},{2,3}}``, a transposed iota
    ``[2,2]<=[4]``, and axes of the compiler's own mesh, ``mesh['a'=2,'b'=2] {'b'}``.
    """
    mesh = _MESH.search(line)
    # Parts of an axis are written 'a':(1)2; they are not supported
    if mesh and "(" not in mesh.group(3):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", mesh.group(1))}
        joined = _product_groups(re.findall(r"'([^']*)'", mesh.group(3)), sizes)
        order = _device_order(mesh.group(2) or "") or list(range(math.prod(sizes.values())))
        return [[order[i] for i in sorted(group)] for group in joined]
    iota = _IOTA.search(line)
    if iota:
        size = _ints(iota.group(1))[-1]
        flat = _transposed_iota(iota.group(2), iota.group(3))
        return [flat[i : i + size] for i in range(0, len(flat), size)]
    groups = _rows(_LISTED.search(line))
    return groups or [list(range(n_devices))]  # no groups means all devices


def _device_order(order: str) -> list[int]:
    """Device order of a compiler's mesh, written ``3,2,1,0`` or ``[2,4]T(1,0)``."""
    iota = _TRANSPOSED.fullmatch(order)
    return _transposed_iota(iota.group(1), iota.group(2)) if iota else _ints(order)


def _transposed_iota(shape: str, permutation: str | None) -> list[int]:
    """0, 1, 2, ... as an array of ``shape``, transposed and flattened."""
    dims = _ints(shape)
    order = _ints(permutation) if permutation else list(range(len(dims)))
    return np.arange(math.prod(dims)).reshape(dims).transpose(order).ravel().tolist()


def group_axes(groups: Sequence[Sequence[int]], mesh: Mapping[str, int]) -> tuple[str, ...] | None:
    """Mesh axes along which devices form these groups.

    They are () for groups of one device, None if there are no such axes.
    """
    group_sets = {frozenset(group) for group in groups}
    axes = list(mesh)
    size = max(map(len, groups), default=1)
    for count in range(len(axes) + 1):
        for chosen in itertools.combinations(axes, count):
            if math.prod(mesh[axis] for axis in chosen) != size or any(
                mesh[axis] == 1 for axis in chosen
            ):
                continue
            if group_sets == _product_groups(chosen, mesh):
                return chosen
    return None


def permute_axes(pairs: Iterable[Sequence[int]], mesh: Mapping[str, int]) -> tuple[str, ...] | None:
    """Mesh axes along which any (source, target) pair moves; None for devices outside the mesh."""
    n_devices = math.prod(mesh.values())
    moved = set()
    for source, target in pairs:
        if not (0 <= source < n_devices and 0 <= target < n_devices):
            return None
        start, end = _coordinates(source, mesh), _coordinates(target, mesh)
        moved |= {axis for axis in mesh if start[axis] != end[axis]}
    return tuple(axis for axis in mesh if axis in moved)


def _product_groups(axes: Sequence[str], mesh: Mapping[str, int]) -> set[frozenset[int]]:
    groups: dict[tuple[int, ...], set[int]] = {}
    for device in range(math.prod(mesh.values())):
        position = _coordinates(device, mesh)
        other_coordinates = tuple(position[axis] for axis in mesh if axis not in axes)
        groups.setdefault(other_coordinates, set()).add(device)
    return {frozenset(group) for group in groups.values()}


def _coordinates(device: int, mesh: Mapping[str, int]) -> dict[str, int]:
    position = np.unravel_index(device, tuple(mesh.values()))
    return dict(zip(mesh, map(int, position), strict=True))


def _rows(match: re.Match[str] | None) -> list[list[int]]:
    return [_ints(row) for row in _ROW.findall(match.group(1))] if match else []


def _ints(numbers: str) -> list[int]:
    return [int(digits) for digits in numbers.split(",") if digits.strip()]


# -- source lines ----------------------------------------------------------------------------------


def _source(place: ExecutedComputation, instruction: Instruction, frames: Mapping[int, str]) -> str:
    """Source line of an instruction ("file.py:12"), "" if unknown."""
    location = _match_outwards(place, instruction, _SOURCE)
    if location:
        return ":".join(filter(None, location.groups()))
    frame = _match_outwards(place, instruction, _FRAME)
    return frames.get(int(frame.group(1)), "") if frame else ""


def source_lines(hlo_source: str) -> dict[int, str]:
    """Source lines ("file.py:12") by stack frame id.

    They come from the tables at the top of newer HLO texts.
    """
    tables: dict[str, dict[int, str]] = {}
    current: dict[int, str] | None = None
    for line in hlo_source.splitlines():
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            current = tables.setdefault(line, {})
        elif not line.strip():
            current = None
        elif current is not None:
            row_id, _, row = line.partition(" ")
            if row_id.isdigit():
                current[int(row_id)] = row
    files = {i: name.strip('"') for i, name in tables.get("FileNames", {}).items()}
    source_of = {}
    for frame, entry in tables.get("StackFrames", {}).items():
        location = tables.get("FileLocations", {}).get(_field(entry, "file_location_id"), "")
        name = files.get(_field(location, "file_name_id"), "")
        if name:
            source_of[frame] = f"{name}:{_field(location, 'line')}"
    return source_of


def _field(entry: str, key: str) -> int:
    match = re.search(rf"\b{key}=(\d+)", entry)
    return int(match.group(1)) if match else 0
