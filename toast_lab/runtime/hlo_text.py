"""The structure of an HLO text: computations, their instructions, and how often each of them runs.

Only what judging a compiled program needs: names, types, operands, called computations and the
attributes as text.

Loops: XLA leaves a loop's number of rounds in ``known_trip_count`` on CPU and GPU, and nowhere on
TPU; there it is worked out from the loop itself, a counter that is compared with a constant and
increased by a constant in each round.  Start reading at ``parse`` and ``executed``.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_NUMBER = re.compile(r"-?\d+")
# Calls that run their computation where they stand; other ``to_apply``s are reducers.
_RUNS = ("fusion", "call", "conditional", "async-start")
_PERMUTES = ("collective-permute", "collective-permute-start", "collective-permute-done")
_CHAINS = (
    *_PERMUTES,
    "get-tuple-element",
    "bitcast",
    "copy",
    "copy-start",
    "copy-done",
    "convert",
    "reshape",
    "transpose",
)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    type: str  #: "f32[8,16]{1,0}", or several in brackets
    opcode: str
    #: names; a literal of a constant or a parameter's number stand here as text
    operands: tuple[str, ...]
    attributes: str  #: all behind the operands
    line: str
    root: bool

    def called(self, key: str) -> str:
        """Name of the computation that attribute ``key`` names, "" if none."""
        match = re.search(rf"\b{key}=%?([\w.\-]+)", self.attributes)
        return match.group(1) if match else ""

    def number(self, key: str) -> int | None:
        """The attribute ``key`` as a whole number, None if there is none."""
        match = re.search(rf"\b{key}=(\d+)", self.attributes)
        return int(match[1]) if match else None

    def field(self, key: str) -> str:
        """The value of an attribute by its key, "" if there is none.

        It is the quoted value of ``"key":"value"`` or ``key="value"``.
        """
        match = re.search(rf'"?\b{key}"?[:=]"((?:[^"\\]|\\.)*)"', self.attributes)
        return match.group(1) if match else ""


@dataclasses.dataclass(frozen=True, eq=False)
class Computation:
    """A named list of instructions."""

    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Instructions that read each name."""
        users_of: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in instruction.operands:
                users_of.setdefault(operand, []).append(instruction)
        return users_of

    @property
    def root(self) -> Instruction:
        """The instruction whose value is the computation's."""
        return next(
            (instruction for instruction in self.instructions if instruction.root),
            self.instructions[-1],
        )


class Module(NamedTuple):
    """A parsed HLO text."""

    computations: dict[str, Computation]
    entry: str  #: name of the entry computation


class Executed(NamedTuple):
    """A computation where it runs."""

    computation: Computation
    times: float  #: how often in one step of the program
    via: tuple[Instruction, ...]  #: the calls that lead here, outermost first
    fused: bool  #: inside a fusion: its instructions are not run one by one
    loops: tuple[float, ...]  #: rounds of the loops around it, outermost first


#: Asked for a loop's number of rounds where the text does not tell; None: unknown.
Rounds = Callable[[Instruction], float | None]


def unknown(_: Instruction) -> None:
    """Nobody knows a loop's number of rounds."""


def parse(hlo_source: str) -> Module:
    """Take HLO ``text`` apart.

    A text without any computation gives one of all its instructions.
    """
    computations: dict[str, Computation] = {}
    entry, name = "", ""
    instructions: list[Instruction] = []
    outside: list[Instruction] = []
    for line in hlo_source.splitlines():
        header = None if line[:1].isspace() else _HEADER.match(line)
        if header:
            name, instructions = header.group(2), []
            entry = name if header.group(1) else entry
        elif line.startswith("}"):
            if name:
                computations[name] = Computation(name, tuple(instructions))
            name = ""
        else:
            instruction = _instruction(line)
            if instruction is not None:
                (instructions if name else outside).append(instruction)
    if not computations:
        computations[""] = Computation("", tuple(outside))
    return Module(computations, entry or next(reversed(computations)))


def executed(module: Module, rounds: Rounds = unknown) -> Iterator[Executed]:
    """Every computation that runs, with its calls: a computation called twice comes twice.

    Which branch of a condition runs is not known: each counts as often, as in a price.

    Args:
        module: the parsed text.
        rounds: of loops of which the text does not tell; 1 where it is unknown.
    """
    entry = module.computations[module.entry]
    todo = [Executed(entry, times=1.0, via=(), fused=False, loops=())]
    while todo:
        caller = todo.pop()
        yield caller
        for instruction in caller.computation.instructions:
            for name, times in _calls(module, caller.computation, instruction, rounds):
                if name not in module.computations:
                    continue
                is_loop = instruction.opcode == "while"
                callee = Executed(
                    module.computations[name],
                    times=caller.times * times,
                    via=(*caller.via, instruction),
                    fused=caller.fused or instruction.opcode == "fusion",
                    loops=(*caller.loops, times) if is_loop else caller.loops,
                )
                todo.append(callee)


def _calls(
    module: Module, computation: Computation, instruction: Instruction, rounds: Rounds
) -> list[tuple[str, float]]:
    """Names of computations that an instruction runs, and how often it runs each.

    A loop's condition runs once more than its body.
    """
    if instruction.opcode == "while":
        times = loop_rounds(module, computation, instruction, rounds)
        return [
            (instruction.called("condition"), times + 1),
            (instruction.called("body"), times),
        ]
    if instruction.opcode not in _RUNS:
        return []
    names = called_by(instruction)
    share = 1.0 / len(names) if instruction.opcode == "conditional" and names else 1.0
    return [(name, share) for name in names]


def loop_rounds(
    module: Module, computation: Computation, loop: Instruction, rounds: Rounds
) -> float:
    """Rounds of a ``while`` instruction, 1 where nobody knows."""
    count = trip_count(module, computation, loop)
    return (rounds(loop) if count is None else count) or 1.0


def trip_count(module: Module, computation: Computation, loop: Instruction) -> float | None:
    """Rounds of a ``while`` instruction, None if the text does not tell."""
    match = _TRIPS.search(loop.attributes)
    if match:
        return float(match.group(1))
    condition = module.computations.get(loop.called("condition"))
    body = module.computations.get(loop.called("body"))
    if condition is None or body is None:
        return None
    bound = _counter_bound(condition)
    if bound is None:
        return None
    index, limit, or_equal = bound
    step = _counter_step(module, body, index)
    start = _constant(computation, _element(computation, loop, index))
    if step is None or step <= 0:
        return None
    span = limit - (start or 0) + (1 if or_equal else 0)
    return float(max(0, -(-span // step)))


def chain_up(computation: Computation, name: str) -> Instruction | None:
    """The instruction that makes ``name``, behind copies, casts, permutes and tuple elements."""
    instruction = computation.by_name.get(name)
    while instruction is not None and instruction.opcode in _CHAINS and instruction.operands:
        above = computation.by_name.get(instruction.operands[0])
        if above is None or above.opcode in ("parameter", "tuple"):
            break
        instruction = above
    return instruction


def element_of(module: Module, computation: Computation, name: str) -> Instruction | None:
    """The instruction that makes ``name`` inside of a fusion of several results.

    None: ``name`` comes from no such fusion.
    """
    index = None
    instruction = computation.by_name.get(name)
    while instruction is not None and instruction.opcode in _CHAINS and instruction.operands:
        if instruction.opcode == "get-tuple-element":
            index = instruction.number("index")
        instruction = computation.by_name.get(instruction.operands[0])
    if instruction is None or instruction.opcode != "fusion" or index is None:
        return None
    inside = module.computations.get(instruction.called("calls"))
    if inside is None:
        return None
    return chain_up(inside, _element(inside, inside.root, index, own=True))


# -- one line --------------------------------------------------------------------------------------


def _instruction(line: str) -> Instruction | None:
    head, separator, rest = line.strip().partition(" = ")
    if not separator or " " in head.removeprefix("ROOT "):
        return None
    root = head.startswith("ROOT ")
    name = head.removeprefix("ROOT ").lstrip("%")
    end = _balanced(rest, 0) if rest.startswith("(") else rest.find(" ")
    if end <= 0:
        return None
    kind, behind = rest[:end], rest[end:].lstrip()
    opcode, separator, _ = behind.partition("(")
    if not separator or not re.fullmatch(r"[a-z][\w\-]*", opcode):
        return None
    close = _balanced(behind, len(opcode))
    inside = behind[len(opcode) + 1 : close - 1]
    operands = tuple(_OPERAND.findall(inside)) if "%" in inside else _plain_operands(inside)
    return Instruction(
        name=name,
        type=kind,
        opcode=opcode,
        operands=operands,
        attributes=behind[close:],
        line=line,
        root=root,
    )


def _plain_operands(inside: str) -> tuple[str, ...]:
    """Operands of a text written without percent signs, or a constant's literal."""
    return tuple(part.split()[-1] for part in inside.split(",") if part.strip())


def _balanced(line: str, start: int) -> int:
    """Position behind the bracket that closes the one at ``start``."""
    depth = 0
    for match in re.finditer(r"[()]", line[start:]):
        depth += 1 if match.group() == "(" else -1
        if depth == 0:
            return start + match.end()
    return len(line)


def called_by(instruction: Instruction) -> list[str]:
    """Computations that an instruction runs."""
    branches = _BRANCHES.search(instruction.attributes)
    if branches:
        return [part.strip().lstrip("%") for part in branches.group(1).split(",")]
    return _CALLED.findall(instruction.attributes)


# -- loops -----------------------------------------------------------------------------------------


def _counter_bound(condition: Computation) -> tuple[int, int, bool] | None:
    """(index of the counter, limit, limit included) of a condition ``counter < limit``."""
    root = condition.root
    if root.opcode != "compare" or len(root.operands) != 2:
        return None
    direction = re.search(r"direction=(\w+)", root.attributes)
    limit = _constant(condition, root.operands[1])
    counter = chain_up(condition, root.operands[0])
    index = None if counter is None else counter.number("index")
    if direction is None or direction[1] not in ("LT", "LE") or limit is None or index is None:
        return None
    return index, limit, direction[1] == "LE"


def _counter_step(module: Module, body: Computation, index: int) -> int | None:
    """By how much a round increases the counter; None if not by a constant."""
    addition, computation = chain_up(body, _element(body, body.root, index, own=True)), body
    if addition is not None and addition.opcode == "fusion":
        inside = module.computations.get(addition.called("calls"))
        if inside is not None:
            addition, computation = inside.root, inside
    if addition is None or addition.opcode != "add":
        return None
    steps = [_constant(computation, operand) for operand in addition.operands]
    return next((step for step in steps if step is not None), None)


def _element(
    computation: Computation, instruction: Instruction, index: int, own: bool = False
) -> str:
    """Name of element ``index`` of the tuple that is ``instruction`` (own) or its operand."""
    source = instruction if own else computation.by_name.get((*instruction.operands, "")[0])
    if source is None or source.opcode != "tuple" or index >= len(source.operands):
        return ""
    return source.operands[index]


def _constant(computation: Computation, name: str) -> int | None:
    constant = chain_up(computation, name)
    if constant is None or constant.opcode != "constant":
        return None
    literal = constant.line.partition(" constant(")[2].partition(")")[0]
    return int(literal) if _NUMBER.fullmatch(literal) else None
