"""The analysis written out as in the paper's figure 4.

First with a fresh name for every dim, then with the names after applying the identities I.

A fresh name says where it is: ``x.0`` is dim 0 of the definition of x, ``x.0'`` dim 0 of its first
use, ``x.0''`` of its second. Reference: TOAST section 3.1.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.annotated_listing import op_text, shown_ops, value_text


def fresh_lines(analysis: Analysis, only: str = "") -> str:
    """Every op with fresh names, followed by the entries of M and of I that it adds.

    With ``only``, the name of a value, just the op that computes that value.
    """
    program, lines = analysis.program, []
    uses: Counter[int] = Counter()
    for op in shown_ops(program):
        operands, map_entries = [], []
        identified: dict[int, list[str]] = defaultdict(list)
        results = []
        for value in program.results(op):
            dim_texts = [
                f"{program.value_name[value]}.{dim}" for dim in range(len(program.dims(value)))
            ]
            results.append(f"{program.value_name[value]} : [{', '.join(dim_texts)}]")
            for text, name in zip(dim_texts, program.def_names(value), strict=True):
                identified[name].append(text)
        for use, value in _uses(analysis, op):
            if program.value_is_constant[value]:
                operands.append(value_text(program, value))
                continue
            uses[value] += 1
            dims = [f"{program.value_name[value]}.{dim}" for dim in range(len(program.dims(value)))]
            dim_texts = [f"{text}{chr(39) * uses[value]}" for text in dims]
            operands.append(f"{program.value_name[value]} : [{', '.join(dim_texts)}]")
            map_entries += [
                f"{definition_dim} → {use_dim}"
                for definition_dim, use_dim in zip(dims, dim_texts, strict=True)
            ]
            for text, name in zip(dim_texts, program.use_names(use), strict=True):
                identified[name].append(text)
        if only and only not in [program.value_name[value] for value in program.results(op)]:
            continue
        identities = [
            f"{texts[0]} ≐ {other}" for texts in identified.values() for other in texts[1:]
        ]
        lines.append(f"{', '.join(results)} = {op_text(program, op, operands)}")
        lines += [f"  M: {', '.join(map_entries)}"] if map_entries else []
        lines += [f"  I: {', '.join(identities)}"] if identities else []
    return "\n".join(lines)


def identified_lines(analysis: Analysis) -> str:
    """Every op with its names after I and the entries of M, the names written as in the graph."""
    program, name_text, lines = analysis.program, analysis.name_text, []
    for op in shown_ops(program):
        operands, map_entries = [], []
        for use, operand in _uses(analysis, op):
            if program.value_is_constant[operand]:
                operands.append(value_text(program, operand))
                continue
            names = program.use_names(use)
            operands.append(
                f"{program.value_name[operand]} : [{', '.join(name_text[name] for name in names)}]"
            )
            map_entries += [
                f"{name_text[definition_name]} → {name_text[use_name]}"
                for definition_name, use_name in zip(program.def_names(operand), names, strict=True)
            ]
        results = []
        for value in program.results(op):
            own_names = [name_text[name] for name in program.def_names(value)]
            results.append(f"{program.value_name[value]} : [{', '.join(own_names)}]")
        lines.append(f"{', '.join(results)} = {op_text(program, op, operands)}")
        lines += [f"  M: {', '.join(map_entries)}"] if map_entries else []
    return "\n".join(lines)


def _uses(analysis: Analysis, op: int) -> list[tuple[int, int]]:
    program = analysis.program
    return [(use, int(program.use_value[use])) for use in program.uses(op)]
