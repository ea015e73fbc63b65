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

import dataclasses
import math
import re
from typing import Any, NamedTuple

from toast_lab.lowering.annotate import split_name
from toast_lab.runtime.schedule_collectives import is_collective

_FIELD = re.compile(r'(\w+): (?:"((?:[^"\\]|\\.)*)"|(\S+))$')
_MODULE = ("hlo_module",)
_COMPUTATION = (*_MODULE, "computations")
_INSTRUCTION = (*_COMPUTATION, "instructions")
_SCHEDULES = ("computation_schedules",)
_SCHEDULED = (*_SCHEDULES, "instructions")
_SEQUENCE = (*_MODULE, "schedule", "sequences")
#: The messages that are read, at least in part. All others are skipped in one step: literals and
#: stack frames make up nearly all of two million lines.
_READ = {
    path[:depth]
    for path in ((*_INSTRUCTION, "metadata"), _SCHEDULED, (*_SEQUENCE, "value"))
    for depth in range(1, len(path) + 1)
}


@dataclasses.dataclass
class TextInstruction:
    """An instruction of the scheduled program."""

    name: str = ""
    opcode: str = ""
    op: int = -1  #: index of the op that it was compiled from, -1 if it does not say
    operand_ids: list[int] = dataclasses.field(default_factory=list)
    called_ids: list[int] = dataclasses.field(default_factory=list)  #: computations
    #: of a collective: all its fields in the text, see ``schedule_collectives``
    block: dict[str, list[Any]] = dataclasses.field(default_factory=dict)


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
    reader = _Reader()
    line_number, position = 0, 0
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        indented_line = text[position:end]
        position, line_number = end + 1, line_number + 1
        line = indented_line.strip()
        if line.endswith(" {"):
            if reader.is_read(line[:-2]):
                reader.begin(line[:-2])
            else:
                message_end = _skip_message(text, indented_line, end)
                line_number += text.count("\n", position, message_end)
                position = message_end
        elif line == "}":
            reader.end(line_number)
        elif field := _FIELD.match(line):
            reader.take(field[1], field[2] if field[3] is None else field[3], line_number)
        elif line:
            raise _Unreadable(f"line {line_number} is not a field: {line[:60]!r}")
    return reader.schedule()


class _Reader:
    """Collects the schedule from messages and fields, in the order of the text."""

    def __init__(self) -> None:
        self._path: tuple[str, ...] = ()
        #: Open blocks of a collective, outermost first
        self._blocks: list[dict[str, list[Any]]] = []
        self._entry, self._cycles_per_us = -1, 0.0
        self._instructions: dict[int, TextInstruction] = {}
        self._members: dict[int, list[int]] = {}
        self._rows: dict[int, list[dict[str, float]]] = {}
        self._sequences: dict[int, list[int]] = {}
        # The computation, sequence or instruction that is being read
        self._ids: list[int] = []
        self._sequence: list[int] = []
        self._instruction = TextInstruction()
        self._computation_rows: list[dict[str, float]] = []
        self._row: dict[str, float] = {}

    def is_read(self, name: str) -> bool:
        """Is any part of a message read that begins here and is called ``name``?"""
        return bool(self._blocks) or (*self._path, name) in _READ

    def begin(self, name: str) -> None:
        """Begin a message called ``name``."""
        path = self._path = (*self._path, name)
        if self._blocks:
            self._blocks.append({})
            self._blocks[-2].setdefault(name, []).append(self._blocks[-1])
        if path == _INSTRUCTION:
            self._instruction = TextInstruction()
        elif path == _COMPUTATION:
            self._ids = []
        elif path == _SEQUENCE:
            self._sequence = []
        elif path == _SCHEDULED:
            self._row = {}
            self._computation_rows.append(self._row)
        elif path == _SCHEDULES:
            self._computation_rows = []

    def end(self, line_number: int) -> None:
        """End the innermost message, on this line of the text."""
        if not self._path:
            raise _Unreadable(f"line {line_number} closes what was never opened")
        self._path = self._path[:-1]
        if self._blocks:
            self._blocks.pop()

    def take(self, key: str, literal: str, line_number: int) -> None:
        """Read a field of the innermost message, on this line of the text."""
        if self._blocks:
            self._blocks[-1].setdefault(key, []).append(literal)
        path = self._path
        if path == _INSTRUCTION:
            self._take_of_instruction(key, literal, line_number)
        elif path == _SCHEDULED:
            self._row[key] = _number(literal, line_number)
        elif (path, key) == ((*_INSTRUCTION, "metadata"), "op_name"):
            self._instruction.op = split_name(literal)[0]
        elif (path, key) == (_COMPUTATION, "id"):
            self._members[_integer(literal, line_number)] = self._ids
        elif (path, key) == (_MODULE, "entry_computation_id"):
            self._entry = _integer(literal, line_number)
        elif (path, key) == (_SEQUENCE, "key"):
            self._sequences[_integer(literal, line_number)] = self._sequence
        elif (path, key) == ((*_SEQUENCE, "value"), "instruction_ids"):
            self._sequence.append(_integer(literal, line_number))
        elif (path, key) == (_SCHEDULES, "computation_id"):
            self._rows[_integer(literal, line_number)] = self._computation_rows
        elif (path, key) == (_SCHEDULES, "cycles_per_microsecond"):
            self._cycles_per_us = _number(literal, line_number)

    def _take_of_instruction(self, key: str, literal: str, line_number: int) -> None:
        if key == "name":
            self._instruction.name = literal
        elif key == "opcode":
            self._instruction.opcode = literal
            if is_collective(literal):
                self._blocks = [self._instruction.block]
        elif key == "id":
            self._instructions[_integer(literal, line_number)] = self._instruction
            self._ids.append(_integer(literal, line_number))
        elif key == "operand_ids":
            self._instruction.operand_ids.append(_integer(literal, line_number))
        elif key == "called_computation_ids":
            self._instruction.called_ids.append(_integer(literal, line_number))

    def schedule(self) -> ScheduleText:
        """The schedule, once the text has ended."""
        if self._path:
            raise _Unreadable(f"it ends within {self._path[0]!r}")
        ordered_computations = self._rows | self._sequences
        if not self._instructions or not self._rows or self._entry not in ordered_computations:
            raise _Unreadable("it has no schedule of the program's entry computation")
        if self._cycles_per_us <= 0:
            raise _Unreadable("it does not say how long a cycle is")
        cycle_s = 1e-6 / self._cycles_per_us
        scheduled = {
            computation: _without_times(instruction_ids, self._instructions)
            for computation, instruction_ids in self._sequences.items()
        }
        scheduled |= {
            computation: _with_times(rows, self._instructions, cycle_s)
            for computation, rows in self._rows.items()
        }
        return ScheduleText(
            entry=self._entry,
            scheduled=scheduled,
            instructions=self._instructions,
            members=self._members,
            cycle_s=cycle_s,
        )


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
    instruction_ids: list[int], instructions: dict[int, TextInstruction]
) -> list[ScheduledInstruction]:
    unknown = [
        instruction_id for instruction_id in instruction_ids if instruction_id not in instructions
    ]
    if unknown:
        raise _Unreadable(f"it orders instruction {unknown[0]}, which it does not define")
    return [
        ScheduledInstruction(instructions[instruction_id], 0.0, 0.0, None)
        for instruction_id in instruction_ids
    ]


def _with_times(
    rows: list[dict[str, float]], instructions: dict[int, TextInstruction], cycle_s: float
) -> list[ScheduledInstruction]:
    scheduled = []
    for row in rows:
        instruction = instructions.get(int(row.get("id", -1)))
        if instruction is None:
            raise _Unreadable(
                f"it schedules instruction {row.get('id', 0):g}, which it does not define"
            )
        start = row.get("start_timestamp_cycles", 0.0)
        end = row.get("end_timestamp_cycles", 0.0)
        if end < start:
            raise _Unreadable(f"{instruction.name} ends before it starts")
        scheduled.append(
            ScheduledInstruction(
                instruction, start * cycle_s, end * cycle_s, row.get("memory_usage_after", 0.0)
            )
        )
    return scheduled


def _integer(literal: str, line_number: int) -> int:
    try:
        return int(literal)
    except ValueError:
        raise _Unreadable(f"line {line_number} has no whole number: {literal[:40]!r}") from None


def _number(literal: str, line_number: int) -> float:
    try:
        value = float(literal)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _Unreadable(f"line {line_number} has no number: {literal[:40]!r}")
    return value
