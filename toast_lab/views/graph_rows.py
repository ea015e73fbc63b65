"""Rows of the dimension graph: parts of the program, functions, source lines or ops.

Code that ran several times, such as the layers of a network, is one row that says how often
(``×18``). Such a row can be unfolded into one row per run. The ops of a line belong to its first
run, its second, and so on, in program order, and in reverse in a backward pass, so that a number
means the same layer everywhere.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.annotated_listing import op_text, value_text
from toast_lab.ir import source_lines

LEVELS = {
    "colours": "colours by part of the program",
    "functions": "functions, layers folded",
    "lines": "source lines, layers folded",
    "names": "dimension names",
}
# a program with more names than this starts at the level of colours
NAMES_AT_ONCE = 120
#: levels at which rows can be unfolded
FOLDED_LEVELS = ("functions", "lines")


class GraphRow(NamedTuple):
    """One row of the picture."""

    label: str
    where: str
    ops: tuple[int, ...]
    #: how often its code ran; 1 for a single unfolded run
    repeats: int = 1
    #: its key in ``unfolded``; empty if there is nothing to unfold
    key: str = ""
    #: index of the run, for a row of an unfolded one
    run: int = -1


def start_level(analysis: Analysis) -> str:
    """The level at which a program is first shown: names if it is small, else colours."""
    return "names" if analysis.names.n <= NAMES_AT_ONCE else "colours"


def phases(analysis: Analysis) -> tuple[str, ...]:
    """The part of the program that each op belongs to."""
    program = analysis.program
    backward = ["transpose(" in name_stack for name_stack in program.name_stack]
    last_backward = max((op for op, is_backward in enumerate(backward) if is_backward), default=-1)
    phase_of_op = ["arguments"] * program.n_arguments
    for op in program.ops():
        if last_backward < 0:
            phase_of_op.append("program")
        elif backward[op]:
            phase_of_op.append("backward")
        else:
            phase_of_op.append("forward" if op < last_backward else "update")
    return tuple(phase_of_op)


def op_scopes(analysis: Analysis) -> list[str]:
    """The function that each op was written in, else its file and line, else its kind.

    Arguments have ``arguments``.
    """
    program = analysis.program
    scope_at: dict[int, str] = {}
    scope_of_op = ["arguments"] * program.n_arguments
    for op in program.ops():
        location = int(program.location[op])
        if location not in scope_at:
            user_frame = source_lines.op_frame(program, op)
            scope_at[location] = source_lines.function_of(user_frame) if user_frame.file else ""
        scope_of_op.append(scope_at[location] or program.kind[op])
    return scope_of_op


def scopes(analysis: Analysis) -> list[str]:
    """All scopes that ops with names are in, in program order."""
    scope, ops = op_scopes(analysis), np.unique(analysis.names.op[analysis.names.size > 1])
    return list(dict.fromkeys(scope[op] for op in ops))


def op_label(analysis: Analysis, op: int) -> str:
    """``a = matmul(k, qt)``; for an argument only its name, ``x``."""
    program = analysis.program
    results = ", ".join(program.value_name[value] for value in program.results(op))
    if op < program.n_arguments:
        return results
    right = op_text(program, op, [value_text(program, value) for value in program.operands(op)])
    return f"{results} = {right}" if results else right


def where(analysis: Analysis, op: int) -> str:
    """The line of the user's code that made an op."""
    return source_lines.op_frame(analysis.program, op).short


def rows(
    analysis: Analysis, level: str, ops: list[int], unfolded: Collection[str] = ()
) -> tuple[tuple[GraphRow, ...], dict[int, int]]:
    """(rows, the row of each op).

    Args:
        analysis: the analysed program.
        level: a key of ``LEVELS``.
        ops: ops that need a row, in program order.
        unfolded: keys of rows to unfold; ``*`` unfolds all.
    """
    if level == "names":
        op_rows = [GraphRow(op_label(analysis, op), where(analysis, op), (op,)) for op in ops]
        return tuple(op_rows), {op: index for index, op in enumerate(ops)}
    key = _row_key(analysis, level)
    members: dict[str, list[int]] = defaultdict(list)
    source_lines_of: dict[str, str] = {}
    for op in ops:
        label, source_line = key(op)
        members[label].append(op)
        source_lines_of.setdefault(label, source_line)
    table_rows: list[GraphRow] = []
    for label, row_ops in members.items():
        source_line = source_lines_of[label]
        repeats = _repeats(analysis, row_ops) if source_line else 1
        fold_key = label if repeats > 1 and level in FOLDED_LEVELS else ""
        folded = GraphRow(label, source_line, tuple(row_ops), repeats=repeats, key=fold_key)
        if fold_key and (fold_key in unfolded or "*" in unfolded):
            table_rows += [
                folded._replace(
                    label=f"{label} {run + 1}/{repeats}", ops=tuple(run_ops), repeats=1, run=run
                )
                for run, run_ops in _runs(analysis, row_ops, repeats).items()
            ]
        else:
            table_rows.append(folded)
    if unfolded:
        table_rows.sort(key=lambda row: row.ops[0])
    return tuple(table_rows), {op: index for index, row in enumerate(table_rows) for op in row.ops}


def _row_key(analysis: Analysis, level: str) -> Callable[[int], tuple[str, str]]:
    program, phase = analysis.program, phases(analysis)
    scope = op_scopes(analysis) if level == "functions" else []

    def key(op: int) -> tuple[str, str]:
        if level == "colours" or phase[op] == "arguments":
            return phase[op], ""
        user_frame = source_lines.op_frame(program, op)
        if not user_frame.file:
            return program.kind[op], ""
        row_label = scope[op] if level == "functions" else user_frame.short
        if phase[op] in ("backward", "update"):
            row_label += f" · {phase[op]}"
        return row_label, user_frame.short

    return key


def _repeats(analysis: Analysis, ops: list[int]) -> int:
    """How often the same code ran: the commonest gcd, over locations, of the op counts by kind."""
    program = analysis.program
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for op in ops:
        counts[int(program.location[op])][program.kind[op]] += 1
    return Counter(math.gcd(*kinds.values()) for kinds in counts.values()).most_common(1)[0][0]


def _runs(analysis: Analysis, ops: list[int], repeats: int) -> dict[int, list[int]]:
    """Ops by run: the k-th run has the k-th part of the ops of each location and kind."""
    program = analysis.program
    alike: dict[tuple[int, str], list[int]] = defaultdict(list)
    for op in ops:
        alike[int(program.location[op]), program.kind[op]].append(op)
    ops_of_run: dict[int, list[int]] = defaultdict(list)
    for same_ops in alike.values():
        for index, op in enumerate(same_ops):
            run = index * repeats // len(same_ops)
            if "transpose(" in program.name_stack[op]:
                run = repeats - 1 - run
            ops_of_run[run].append(op)
    return {run: sorted(run_ops) for run, run_ops in sorted(ops_of_run.items())}
