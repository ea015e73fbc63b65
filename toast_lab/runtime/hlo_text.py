"""The structure of an HLO text: computations, their instructions, and how often each of them runs.

It has only what judging a compiled program needs: names, types, operands, called computations and
the attributes as text.

The number of rounds (trip count) of a loop is in ``known_trip_count`` on CPU and GPU, and nowhere
on TPU. There it is derived from the loop itself: a counter that is compared with a constant and
increased by a constant in each round. Start reading at ``parse`` and ``executed``.
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
# Instructions that run the computations they call; any other ``to_apply`` is a reducer.
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
    type: str  #: "f32[8,16]{1,0}", or a tuple of several in parentheses
    opcode: str
    #: names; for a constant its literal, for a parameter its number, as text
    operands: tuple[str, ...]
    attributes: str  #: everything after the operands
    line: str
    root: bool

    def called(self, key: str) -> str:
        """The computation that attribute ``key`` names, "" if there is none."""
        match = re.search(rf"\b{key}=%?([\w.\-]+)", self.attributes)
        return match.group(1) if match else ""

    def number(self, key: str) -> int | None:
        """The attribute ``key`` as an integer, None if there is none."""
        match = re.search(rf"\b{key}=(\d+)", self.attributes)
        return int(match[1]) if match else None

    def field(self, key: str) -> str:
        """The string value of attribute ``key``, "" if there is none.

        It is written ``"key":"value"`` or ``key="value"``.
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
        """For each name, the instructions that read it."""
        users_of: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in instruction.operands:
                users_of.setdefault(operand, []).append(instruction)
        return users_of

    @property
    def root(self) -> Instruction:
        """The instruction whose value is the computation's result."""
        return next(
            (instruction for instruction in self.instructions if instruction.root),
            self.instructions[-1],
        )


class Module(NamedTuple):
    """A parsed HLO text."""

    computations: dict[str, Computation]
    entry: str  #: name of the entry computation


class ExecutedComputation(NamedTuple):
    """A computation at one place where it runs."""

    computation: Computation
    times: float  #: how often it runs in one step of the program
    via: tuple[Instruction, ...]  #: the chain of calls to it, outermost first
    fused: bool  #: it is inside a fusion: its instructions do not run one by one
    loops: tuple[float, ...]  #: rounds of the loops around it, outermost first


#: Gives a loop's number of rounds where the text does not state it; None if unknown.
Rounds = Callable[[Instruction], float | None]


def unknown(_: Instruction) -> None:
    """The default ``Rounds``: no loop's number of rounds is known."""


def parse(hlo_source: str) -> Module:
    """Parse an HLO text.

    If the text has no computations, its instructions form a single one.
    """
    computations: dict[str, Computation] = {}
    entry, name = "", ""
    instructions: list[Instruction] = []
    loose_instructions: list[Instruction] = []
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
                (instructions if name else loose_instructions).append(instruction)
    if not computations:
        computations[""] = Computation("", tuple(loose_instructions))
    return Module(computations, entry or next(reversed(computations)))


def executed(module: Module, rounds: Rounds = unknown) -> Iterator[ExecutedComputation]:
    """Every computation that runs, with its calls; a computation called twice comes twice.

    Which branch of a conditional runs is unknown: all count equally often, as in a price.

    Args:
        module: the parsed text.
        rounds: gives a loop's number of rounds where the text does not state it; unknown ones
            count as 1.
    """
    entry = module.computations[module.entry]
    pending = [ExecutedComputation(entry, times=1.0, via=(), fused=False, loops=())]
    while pending:
        caller = pending.pop()
        yield caller
        for instruction in caller.computation.instructions:
            for name, times in _calls(module, caller.computation, instruction, rounds):
                if name not in module.computations:
                    continue
                is_loop = instruction.opcode == "while"
                callee = ExecutedComputation(
                    module.computations[name],
                    times=caller.times * times,
                    via=(*caller.via, instruction),
                    fused=caller.fused or instruction.opcode == "fusion",
                    loops=(*caller.loops, times) if is_loop else caller.loops,
                )
                pending.append(callee)


def _calls(
    module: Module, computation: Computation, instruction: Instruction, rounds: Rounds
) -> list[tuple[str, float]]:
    """Names of the computations that an instruction runs, and how often it runs each.

    The condition of a loop runs once more than its body.
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
    """Rounds of a ``while`` instruction, 1 if unknown."""
    count = trip_count(module, computation, loop)
    return (rounds(loop) if count is None else count) or 1.0


def trip_count(module: Module, computation: Computation, loop: Instruction) -> float | None:
    """Rounds of a ``while`` instruction, None if they cannot be told from the text."""
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
    if start is None or step is None or step <= 0:
        return None
    span = limit - start + (1 if or_equal else 0)
    return float(max(0, -(-span // step)))


def chain_up(computation: Computation, name: str) -> Instruction | None:
    """The instruction that computes ``name``, before copies, casts, permutes and tuple elements."""
    instruction = computation.by_name.get(name)
    while instruction is not None and instruction.opcode in _CHAINS and instruction.operands:
        producer = computation.by_name.get(instruction.operands[0])
        if producer is None or producer.opcode in ("parameter", "tuple"):
            break
        instruction = producer
    return instruction


def element_of(module: Module, computation: Computation, name: str) -> Instruction | None:
    """The instruction that computes ``name`` inside a fusion with several results.

    None if ``name`` comes from no such fusion.
    """
    index = None
    instruction = computation.by_name.get(name)
    while instruction is not None and instruction.opcode in _CHAINS and instruction.operands:
        if instruction.opcode == "get-tuple-element":
            index = instruction.number("index")
        instruction = computation.by_name.get(instruction.operands[0])
    if instruction is None or instruction.opcode != "fusion" or index is None:
        return None
    body = module.computations.get(instruction.called("calls"))
    if body is None:
        return None
    return chain_up(body, _element(body, body.root, index, is_tuple=True))


# -- one line --------------------------------------------------------------------------------------


def _instruction(line: str) -> Instruction | None:
    head, separator, definition = line.strip().partition(" = ")
    if not separator or " " in head.removeprefix("ROOT "):
        return None
    root = head.startswith("ROOT ")
    name = head.removeprefix("ROOT ").lstrip("%")
    end = _balanced(definition, 0) if definition.startswith("(") else definition.find(" ")
    if end <= 0:
        return None
    result_type, after_type = definition[:end], definition[end:].lstrip()
    opcode, separator, _ = after_type.partition("(")
    if not separator or not re.fullmatch(r"[a-z][\w\-]*", opcode):
        return None
    close = _balanced(after_type, len(opcode))
    operand_text = after_type[len(opcode) + 1 : close - 1]
    if "%" in operand_text:
        operands = _OPERAND.findall(operand_text)
    else:  # names without percent signs, or the literal of a constant
        operands = [part.split()[-1] for part in operand_text.split(",") if part.strip()]
    return Instruction(
        name=name,
        type=result_type,
        opcode=opcode,
        operands=tuple(operands),
        attributes=after_type[close:],
        line=line,
        root=root,
    )


def _balanced(line: str, start: int) -> int:
    """Position after the parenthesis that closes the first one from ``start`` on."""
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
        return [name.strip().lstrip("%") for name in branches.group(1).split(",")]
    return _CALLED.findall(instruction.attributes)


# -- loops -----------------------------------------------------------------------------------------


def _counter_bound(condition: Computation) -> tuple[int, int, bool] | None:
    """(tuple index of the counter, limit, is the limit included) of ``counter < limit``."""
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
    """The constant that each round adds to the counter; None if it adds no constant."""
    addition, computation = chain_up(body, _element(body, body.root, index, is_tuple=True)), body
    if addition is not None and addition.opcode == "fusion":
        body_of_fusion = module.computations.get(addition.called("calls"))
        if body_of_fusion is not None:
            addition, computation = body_of_fusion.root, body_of_fusion
    if addition is None or addition.opcode != "add":
        return None
    steps = [_constant(computation, operand) for operand in addition.operands]
    return next((step for step in steps if step is not None), None)


def _element(
    computation: Computation, instruction: Instruction, index: int, is_tuple: bool = False
) -> str:
    """Name of element ``index`` of the tuple ``instruction``, or of its tuple operand."""
    source = instruction if is_tuple else computation.by_name.get((*instruction.operands, "")[0])
    if source is None or source.opcode != "tuple" or index >= len(source.operands):
        return ""
    return source.operands[index]


def _constant(computation: Computation, name: str) -> int | None:
    constant = chain_up(computation, name)
    if constant is None or constant.opcode != "constant":
        return None
    literal = constant.line.partition(" constant(")[2].partition(")")[0]
    return int(literal) if _NUMBER.fullmatch(literal) else None
