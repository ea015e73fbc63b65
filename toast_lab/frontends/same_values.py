"""Which values of a program with marks are which of the same program without them.

Marks change nothing but themselves: mostly, both programs have the same ops in the same order,
constants aside, which JAX may place anywhere. Where a mark lets differentiation keep another
residual, an op more or less is skipped, and the next run of equal ops goes on. Where several marks
read one value, its cotangents are added up in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from toast_lab.frontends.site_marks import marks_in
from toast_lab.ir.op_kinds import is_control
from toast_lab.ir.program import Program

#: ops that must be equal for two programs to be in step again
_RUN = 6
#: most ops of both programs together that are skipped at a time
_MOST_SKIPPED = 400


class Matched(NamedTuple):
    """The values that two programs have in common."""

    values: dict[int, int]  #: value of the program with marks -> value of that without
    unmatched: int  #: ops of the program without marks that the other lacks
    difference: str  #: the first one, in words


def matched_values(program: Program, marked: Program) -> Matched:
    """The values of ``marked`` that are values of ``program``, which is the same without marks."""
    mine, theirs = _ops(program), _ops(marked)
    values = {argument: argument for argument in range(program.n_arguments)}
    if program.n_arguments != marked.n_arguments:
        return Matched({}, len(mine), "it has other arguments")
    pairs = list(_pairs([facts for _, facts in mine], [facts for _, facts in theirs]))
    op_of = {theirs[j][0]: mine[i][0] for i, j in pairs}
    marks = dict(marks_in(marked))
    sums = _Sums(program)
    for op in marked.ops():
        same_operands = [values.get(operand) for operand in marked.operands(op)]
        if op in marks:
            values.update(
                {marked.results(op)[0]: value for value in same_operands if value is not None}
            )
        elif _adds_cotangents(marked, op) and sums.knows(marked, op, same_operands):
            values.update(sums.like(marked, op))
        elif op in op_of and _reads(program, op_of[op], same_operands):
            values.update(zip(marked.results(op), program.results(op_of[op]), strict=True))
    matched = {i for i, _ in pairs}
    first = next((i for i in range(len(mine)) if i not in matched), len(mine))
    difference = f"it lacks {_words(program, mine[first][0])}" if first < len(mine) else ""
    return Matched(values, len(mine) - len(matched), difference)


class _Sums:
    """The sums of cotangents of ``program``, by what they add up in any order."""

    def __init__(self, program: Program) -> None:
        self.addends: dict[int, tuple[int, ...]] = {}  #: of each sum
        for op in filter(lambda op: _adds_cotangents(program, op), program.ops()):
            self.addends[int(program.results(op)[0])] = self.of(program.operands(op))
        self.sums = {addends: value for value, addends in self.addends.items()}
        self.of_marked: dict[int, tuple[int, ...]] = {}  #: of each sum of the marked program

    def of(self, values: Iterable[int]) -> tuple[int, ...]:
        """All that these values of ``program`` add up."""
        return tuple(
            sorted(addend for value in values for addend in self.addends.get(value, (value,)))
        )

    def knows(self, marked: Program, op: int, same_operands: Sequence[int | None]) -> bool:
        """Is all known that ``op`` of the marked program adds up?"""
        addends: list[int] = []
        for operand, same in zip(marked.operands(op), same_operands, strict=True):
            known = self.of_marked.get(operand) if same is None else self.of([same])
            if known is None:
                return False
            addends += known
        self.of_marked[int(marked.results(op)[0])] = tuple(sorted(addends))
        return True

    def like(self, marked: Program, op: int) -> dict[int, int]:
        """The sum of ``op``, and that of ``program`` with the same addends if it has one."""
        result = int(marked.results(op)[0])
        same = self.sums.get(self.of_marked[result])
        return {} if same is None else {result: same}


def _adds_cotangents(program: Program, op: int) -> bool:
    return program.kind[op] == "add" and program.name_stack[op].endswith("add_any")


def _reads(program: Program, op: int, operands: list[int | None]) -> bool:
    """Does ``op`` read these values, as far as they are known? Equal ops may be others."""
    own = program.operands(op)
    return is_control(program.kind[op]) or (
        len(own) == len(operands)
        and all(value in (None, mine) for value, mine in zip(operands, own, strict=True))
    )


def _words(program: Program, op: int) -> str:
    shapes = [list(program.dims(value)) for value in program.results(op)]
    return f"{program.kind[op]} {', '.join(map(str, shapes))} ({program.where(op)})"


def _ops(program: Program) -> list[tuple[int, tuple[Any, ...]]]:
    """(op, what it is) of every op that is no mark and whose results are not all constants."""
    ops, marks = [], dict(marks_in(program))
    for op in program.ops():
        results = program.results(op)
        if op in marks or (results and all(program.value_is_constant[value] for value in results)):
            continue
        types = tuple((program.dims(value), program.value_dtype[value]) for value in results)
        ops.append((op, (program.kind[op], types)))
    return ops


def _pairs(mine: list[Any], theirs: list[Any]) -> Iterator[tuple[int, int]]:
    """Positions of equal entries, in the order of both."""
    i = j = 0
    while i < len(mine) and j < len(theirs):
        if mine[i] == theirs[j]:
            yield i, j
            i, j = i + 1, j + 1
            continue
        skipped = next(_skips(mine, theirs, i, j), None)
        if skipped is None:
            return
        i, j = i + skipped[0], j + skipped[1]


def _skips(mine: list[Any], theirs: list[Any], i: int, j: int) -> Iterator[tuple[int, int]]:
    """Numbers of entries to skip in both until they are equal again, fewest first."""
    for total in range(1, _MOST_SKIPPED):
        for skipped in range(total + 1):
            a, b = i + skipped, j + total - skipped
            run = mine[a : a + _RUN]
            if run and run == theirs[b : b + _RUN]:
                yield skipped, total - skipped
