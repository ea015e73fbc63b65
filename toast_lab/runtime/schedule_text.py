"""A parser for the schedule that XLA's latency-hiding scheduler dumps.

``--xla_dump_latency_hiding_schedule=true`` makes XLA write a ``*.schedule.txt``: the text form of a
``ScheduleProto``. It has the program as scheduled (``hlo_module``, without the attributes of an HLO
text) and, for every scheduled computation, the start and end of each instruction, counted in cycles
(``cycles_per_microsecond``), with the bytes in use after it:

    hlo_module { name: "jit_step"  entry_computation_id: 97  computations { id: 97 ... } ... }
    computation_schedules {
      computation_id: 97
      instructions { id: 4166  start_timestamp_cycles: 3  end_timestamp_cycles: 1804.5
                     memory_usage_after: 131584 }
      cycles_per_microsecond: 1500
    }

Numbers that are 0 are left out. A computation in which nothing is asynchronous has no schedule; its
instructions are in the order of the program (``hlo_module.schedule``), without times.

Times are those of the text and not a timeline yet: the scheduler gives every instruction, even one
that does nothing, at least one cycle, and on GPUs a cycle of this text is a microsecond
(``schedule_steps`` makes the timeline).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from toast_lab.lowering.annotate import split_name
from toast_lab.runtime.schedule_collectives import Block, is_collective

_FIELD = re.compile(r'(\w+): (?:"((?:[^"\\]|\\.)*)"|(\S+))$')
_INSTRUCTION = ("hlo_module", "computations", "instructions")
#: The messages that are read, and all that those of a collective have in them. All others are
#: skipped in one step: literals and stack frames make up nearly all of two million lines.
_READ = {
    path[:depth]
    for path in (
        (*_INSTRUCTION, "metadata"),
        ("hlo_module", "schedule", "sequences", "value"),
        ("computation_schedules", "instructions"),
    )
    for depth in range(1, len(path) + 1)
}
#: The fields that are read of them, with their types.
_FIELDS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("name", "opcode", "op_name"), str),
    **dict.fromkeys(("id", "entry_computation_id", "computation_id", "key"), int),
    **dict.fromkeys(("operand_ids", "called_computation_ids", "instruction_ids"), int),
    **dict.fromkeys(("start_timestamp_cycles", "end_timestamp_cycles"), float),
    **dict.fromkeys(("memory_usage_after", "cycles_per_microsecond"), float),
}


class TextInstruction(NamedTuple):
    """An instruction of the scheduled program."""

    name: str
    opcode: str
    op: int  #: index of the op that it was compiled from, -1 if it does not say
    operand_ids: Sequence[int]
    called_ids: Sequence[int]  #: computations
    block: Block  #: of a collective: all its fields in the text, see ``schedule_collectives``


class ScheduledInstruction(NamedTuple):
    """A scheduled instruction; times are those of the text, in seconds."""

    instruction: TextInstruction
    start_s: float
    end_s: float
    memory_bytes: float | None  #: in use after it; None if only the order is known


class ScheduleText(NamedTuple):
    """A schedule as XLA wrote it."""

    entry: int  #: id of the entry computation
    #: instructions in the order in which they run, by the id of their computation
    scheduled: dict[int, list[ScheduledInstruction]]
    instructions: dict[int, TextInstruction]  #: by id
    members: dict[int, list[int]]  #: ids of instructions by the id of their computation
    cycle_s: float


def parse(text: str) -> tuple[ScheduleText | None, str]:
    """Parse the text of a schedule; gives (None, reason) if it cannot be read."""
    try:
        return _parse(text), ""
    except _Unreadable as error:
        return None, f"the compiler's schedule cannot be read: {error}"


class _Unreadable(Exception):
    """The text cannot be read as a schedule; raised and caught only in this module."""


def _parse(text: str) -> ScheduleText:
    blocks = [dict[str, list[Any]]()]  # the whole text, and the messages that are open
    path: tuple[str, ...] = ()  # their names
    line_number, position, in_collective = 0, 0, False
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        indented_line = text[position:end]
        position, line_number = end + 1, line_number + 1
        line = indented_line.strip()
        if line.endswith(" {"):
            name = line[:-2]
            if in_collective or (*path, name) in _READ:
                path = (*path, name)
                blocks.append({})
                blocks[-2].setdefault(name, []).append(blocks[-1])
            else:
                message_end = _skip_message(text, indented_line, end)
                line_number += text.count("\n", position, message_end)
                position = message_end
        elif line == "}":
            if not path:
                raise _Unreadable(f"line {line_number} closes what was never opened")
            in_collective = in_collective and path != _INSTRUCTION
            path = path[:-1]
            blocks.pop()
        elif field := _FIELD.match(line):
            key, literal = field[1], field[3] if field[2] is None else field[2]
            if path in _READ and key in _FIELDS:
                blocks[-1].setdefault(key, []).append(_value(key, literal, line_number))
            elif in_collective:
                blocks[-1].setdefault(key, []).append(literal)
            if key == "opcode" and path == _INSTRUCTION:
                in_collective = is_collective(literal)
        elif line:
            raise _Unreadable(f"line {line_number} is not a field: {line[:60]!r}")
    if path:
        raise _Unreadable(f"it ends within {path[0]!r}")
    return _schedule(blocks[0])


def _value(key: str, literal: str, line_number: int) -> Any:
    """The value of a field, on this line of the text."""
    try:
        value = _FIELDS[key](literal)
    except ValueError:
        value = math.nan
    if isinstance(value, float) and not math.isfinite(value):
        kind = "whole number" if _FIELDS[key] is int else "number"
        raise _Unreadable(f"line {line_number} has no {kind}: {literal[:40]!r}")
    return value


def _schedule(root: Block) -> ScheduleText:
    """The schedule that the messages of a whole text are."""
    module = _last(root, "hlo_module", {})
    instructions: dict[int, TextInstruction] = {}
    members: dict[int, list[int]] = {}
    for computation in module.get("computations", ()):
        own = members[_last(computation, "id", -1)] = []
        for block in computation.get("instructions", ()):
            opcode = _last(block, "opcode", "")
            op_name = _last(_last(block, "metadata", {}), "op_name", None)
            instruction = TextInstruction(
                name=_last(block, "name", ""),
                opcode=opcode,
                op=-1 if op_name is None else split_name(op_name)[0],
                operand_ids=block.get("operand_ids", ()),
                called_ids=block.get("called_computation_ids", ()),
                block=block if is_collective(opcode) else {},
            )
            for number in block.get("id", ()):
                instructions[number] = instruction
                own.append(number)
    sequences = {
        _last(sequence, "key", -1): _last(sequence, "value", {}).get("instruction_ids", ())
        for sequence in _last(module, "schedule", {}).get("sequences", ())
    }
    schedules = root.get("computation_schedules", ())
    cycles_per_us = [0.0, *(_last(own, "cycles_per_microsecond", 0.0) for own in schedules)][-1]
    entry = _last(module, "entry_computation_id", -1)
    rows = {_last(own, "computation_id", -1): own.get("instructions", ()) for own in schedules}
    if not instructions or not rows or entry not in rows | sequences:
        raise _Unreadable("it has no schedule of the program's entry computation")
    if cycles_per_us <= 0:
        raise _Unreadable("it does not say how long a cycle is")
    cycle_s = 1e-6 / cycles_per_us
    scheduled = {
        computation: _without_times(instruction_ids, instructions)
        for computation, instruction_ids in sequences.items()
    } | {computation: _with_times(own, instructions, cycle_s) for computation, own in rows.items()}
    return ScheduleText(entry, scheduled, instructions, members, cycle_s=cycle_s)


def _last(block: Block, key: str, default: Any) -> Any:
    """The last value of a field."""
    return block[key][-1] if key in block else default


def _skip_message(text: str, opened: str, end: int) -> int:
    """Position after the message whose first line is ``opened``, which ends at ``end``.

    The last line of a message is indented like its first.
    """
    indent = opened[: len(opened) - len(opened.lstrip())]
    closed = text.find(f"\n{indent}}}", end)
    if closed < 0:
        raise _Unreadable(f"it ends within {opened.strip()[:-2]!r}")
    line_end = text.find("\n", closed + 1)
    return len(text) if line_end < 0 else line_end + 1


def _without_times(
    instruction_ids: Sequence[int], instructions: dict[int, TextInstruction]
) -> list[ScheduledInstruction]:
    for number in instruction_ids:
        if number not in instructions:
            raise _Unreadable(f"it orders instruction {number}, which it does not define")
    return [
        ScheduledInstruction(instructions[number], 0.0, 0.0, None) for number in instruction_ids
    ]


def _with_times(
    rows: Sequence[Block], instructions: dict[int, TextInstruction], cycle_s: float
) -> list[ScheduledInstruction]:
    scheduled = []
    for row in rows:
        number = _last(row, "id", 0)
        if number not in instructions:
            raise _Unreadable(f"it schedules instruction {number}, which it does not define")
        start = _last(row, "start_timestamp_cycles", 0.0)
        end = _last(row, "end_timestamp_cycles", 0.0)
        if end < start:
            raise _Unreadable(f"{instructions[number].name} ends before it starts")
        memory_bytes = _last(row, "memory_usage_after", 0.0)
        times_s = start * cycle_s, end * cycle_s
        scheduled.append(ScheduledInstruction(instructions[number], *times_s, memory_bytes))
    return scheduled
