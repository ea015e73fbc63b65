"""The analysis written out as in the paper's figure 4.

First with a fresh name for every dim, then with the names after applying the identities I.

A fresh name says where it is: ``x.0`` is dim 0 of the definition of x, ``x.0'`` dim 0 of its first
use, ``x.0''`` of its second. Reference: TOAST section 3.1.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.annotated_listing import op_text, shown_ops, value_text


def fresh_lines(analysis: Analysis, only: str = "") -> str:
    """Every op with fresh names, followed by the entries of M and of I that it adds.

    With ``only``, the name of a value, just the op that computes that value.
    """
    program, uses = analysis.program, Counter[int]()

    def defined(value: int) -> list[str]:
        return [f"{program.value_name[value]}.{dim}" for dim in range(len(program.dims(value)))]

    def used(_: int, value: int) -> list[str]:
        uses[value] += 1
        return [f"{text}{chr(39) * uses[value]}" for text in defined(value)]

    return _lines(analysis, defined, used, only=only, with_identities=True)


def identified_lines(analysis: Analysis) -> str:
    """Every op with its names after I and the entries of M, the names written as in the graph."""
    program, name_text = analysis.program, analysis.name_text
    return _lines(
        analysis,
        lambda value: [name_text[name] for name in program.def_names(value)],
        lambda use, _: [name_text[name] for name in program.use_names(use)],
    )


def _lines(
    analysis: Analysis,
    defined: Callable[[int], list[str]],
    used: Callable[[int, int], list[str]],
    *,
    only: str = "",
    with_identities: bool = False,
) -> str:
    """Ops and entries of M; texts of dims are given by the value, and by the use and the value."""
    program, lines = analysis.program, []
    for op in shown_ops(program):
        operands, results = [], []
        map_entries: list[str] = []
        identified: dict[int, list[str]] = defaultdict(list)
        for value in program.results(op):
            texts = defined(value)
            results.append(f"{program.value_name[value]} : [{', '.join(texts)}]")
            for text, name in zip(texts, program.def_names(value), strict=True):
                identified[name].append(text)
        for use in program.uses(op):
            value = int(program.use_value[use])
            if program.value_is_constant[value]:
                operands.append(value_text(program, value))
                continue
            texts = used(use, value)
            operands.append(f"{program.value_name[value]} : [{', '.join(texts)}]")
            map_entries += map(" → ".join, zip(defined(value), texts, strict=True))
            for text, name in zip(texts, program.use_names(use), strict=True):
                identified[name].append(text)
        if only and only not in [program.value_name[value] for value in program.results(op)]:
            continue
        identities = [
            f"{texts[0]} ≐ {other}" for texts in identified.values() for other in texts[1:]
        ]
        lines.append(f"{', '.join(results)} = {op_text(program, op, operands)}")
        lines += [f"  M: {', '.join(map_entries)}"] if map_entries else []
        lines += [f"  I: {', '.join(identities)}"] if with_identities and identities else []
    return "\n".join(lines)
