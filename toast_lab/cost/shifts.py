"""Values that are read at several offsets, as steps of a stencil read them.

Compilers write such a value, as ``docs/machines.md`` explains ("Stencils"). Parts that do not
overlap, such as the halves of a rotary embedding, are not computed twice and stay fused.
"""

from __future__ import annotations

from collections.abc import Sequence

from toast_lab.ir import program as p
from toast_lab.ir.op_kinds import op_kind

#: Readings from here on are those of a stencil: the halves of a value beside the whole, as a rotary
#: embedding reads them, or a value and its neighbour on one side, are two.
OVERLAPPING = 2.5
#: Most elementwise ops that are computed again for each element of a value that is not written.
MOST_REPEATED = 4.0


def readings(
    program: p.Program,
    *,
    root: Sequence[int],
    consumers: Sequence[set[int]],
    elements: Sequence[float],
) -> list[float]:
    """[V] how often an element of each value is read, at different offsets.

    All readers at the element's own place count as one. Readers that shift count as often as what
    they make of it is read, so that six slices of a padded value are six readings of the value.

    Args:
        program: the program.
        root: [V] the value in whose memory a view is; itself for all others.
        consumers: [V] ops that read each value, views looked through; ``n_ops``: a result.
        elements: [V] how many numbers a value has.
    """
    read = [0.0] * program.n_values
    for op in range(program.n_ops - 1, -1, -1):
        for value in program.results(op):
            in_place, shifted = 0.0, 0.0
            for consumer in consumers[value]:
                if consumer == program.n_ops or not shifts(program, consumer):
                    in_place = 1.0
                    continue
                (result,) = program.results(consumer)
                share = 1.0
                if program.kind[consumer] == "slice":
                    share = elements[result] / max(1.0, elements[value])
                uses = sum(root[operand] == value for operand in program.operands(consumer))
                shifted += uses * share * max(1.0, read[root[result]])
            read[value] = in_place + shifted
    return read


def shifts(program: p.Program, op: int) -> bool:
    """Does an op read its operand at another place than it writes it?"""
    return op_kind(program.kind[op]).shifts and len(program.results(op)) == 1
