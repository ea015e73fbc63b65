"""Which values are views of another one's memory, as far as that is known without a plan."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.cost.compiler_styles import CompilerStyle
from toast_lab.cost.read_as_is import free_casts, free_transposes
from toast_lab.ir import program as p
from toast_lab.sharding.steps import Tables


class Roots(NamedTuple):
    """Views, and ops that cost nothing."""

    root: np.ndarray  #: [V] value in whose memory each is; itself, if it is no view
    view: np.ndarray  #: [O] bool: its results are in the memory of its operands
    free: np.ndarray  #: [O] bool: it costs nothing


def value_roots(
    program: p.Program, tables: Tables, style: CompilerStyle, *, has_bfloat16: bool = True
) -> Roots:
    """Find the value in whose memory each value is.

    Args:
        program: the program.
        tables: its tables.
        style: what the compiler does; which ops are views differs.
        has_bfloat16: has the device bfloat16 arithmetic?
    """
    classes = program.op_class
    view = classes == p.VIEW
    if style.reads_turned:
        view |= free_transposes(program, tables)
    if style.reads_cast:
        view |= free_casts(program, tables, has_bfloat16=has_bfloat16)
    free = _is_constant(program) | view | _counts(program)
    free |= np.isin(classes, (p.ARGUMENT, p.CONSTANT, p.CONTROL))
    unchanged = _handed_on_unchanged(program)
    root = np.arange(program.n_values)
    first_casts: dict[tuple[int, str, int], int] = {}
    for op in range(program.n_arguments, program.n_ops):
        if view[op] and len(program.results(op)) == len(program.operands(op)):
            for result, operand in zip(program.results(op), program.operands(op), strict=True):
                root[result] = root[operand]
        elif int(program.owner[op]) in unchanged:
            for result in program.results(op):
                root[result] = root[unchanged[int(program.owner[op])]]
        elif style.reads_cast and program.kind[op] == "convert":
            # A value may be cast in front of each of its readers, such as a table that is both
            # looked up and multiplied with. A TPU's products cast while they read, without a copy.
            (operand,), (result,) = program.operands(op), program.results(op)
            cast = (int(root[operand]), program.value_dtype[result], int(program.region[op]))
            first = first_casts.setdefault(cast, result)
            if first != result:
                view[op] = free[op] = True
                root[result] = root[first]
    return Roots(root, view, free)


def _is_constant(program: p.Program) -> np.ndarray:
    """[O] bool: all its results are constants."""
    return np.asarray(
        [
            all(program.value_is_constant[result] for result in program.results(op))
            and len(program.results(op)) > 0
            for op in range(program.n_ops)
        ]
    )


def _counts(program: p.Program) -> np.ndarray:
    """[O] bool: arithmetic on scalars, such as loop counters, which never reach memory."""
    return np.asarray(
        [
            program.op_class[op] == p.ELEMENTWISE
            and all(
                len(program.dims(value)) == 0
                for value in (*program.operands(op), *program.results(op))
            )
            for op in range(program.n_ops)
        ]
    )


def _handed_on_unchanged(program: p.Program) -> dict[int, int]:
    """Loop values that every round returns as it got them.

    ``while.enter`` op -> value that entered.
    """
    return {
        int(program.owner[op]): program.operands(int(program.owner[op]))[0]
        for op in program.ops()
        if program.kind[op] == "while.next"
        and program.operands(op)[0] in program.results(int(program.owner[op]))
    }
