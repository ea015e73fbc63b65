"""The analysis written out as the paper's figure 4 does.

Every name fresh, and after the identities of the ops.

Fresh names say where they are: ``x.0`` is dim 0 of the definition of x, ``x.0'`` that of its first
use, ``x.0''`` of its second.  Reference: TOAST section 3.1.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.annotated_listing import op_text, shown_ops, value_text


def fresh_lines(analysis: Analysis, only: str = "") -> str:
    """Every op with fresh names, then the entries of M and of I that it adds.

    With ``only``, it is that op alone.
    """
    program, lines = analysis.program, []
    uses: Counter[int] = Counter()
    for op in shown_ops(program):
        operands, maps = [], []
        identified: dict[int, list[str]] = defaultdict(list)
        results = []
        for v in program.results(op):
            dim_texts = [f"{program.value_name[v]}.{dim}" for dim in range(len(program.dims(v)))]
            results.append(f"{program.value_name[v]} : [{', '.join(dim_texts)}]")
            for text, name in zip(dim_texts, program.def_names(v), strict=True):
                identified[name].append(text)
        for use, v in _uses(analysis, op):
            if program.value_is_constant[v]:
                operands.append(value_text(program, v))
                continue
            uses[v] += 1
            dims = [f"{program.value_name[v]}.{dim}" for dim in range(len(program.dims(v)))]
            dim_texts = [f"{text}{chr(39) * uses[v]}" for text in dims]
            operands.append(f"{program.value_name[v]} : [{', '.join(dim_texts)}]")
            maps += [
                f"{definition_dim} → {use_dim}"
                for definition_dim, use_dim in zip(dims, dim_texts, strict=True)
            ]
            for text, name in zip(dim_texts, program.use_names(use), strict=True):
                identified[name].append(text)
        if only and only not in [program.value_name[value] for value in program.results(op)]:
            continue
        same = [f"{texts[0]} ≐ {other}" for texts in identified.values() for other in texts[1:]]
        lines.append(f"{', '.join(results)} = {op_text(program, op, operands)}")
        lines += [f"  M: {', '.join(maps)}"] if maps else []
        lines += [f"  I: {', '.join(same)}"] if same else []
    return "\n".join(lines)


def identified_lines(analysis: Analysis) -> str:
    """Every op with its names after I, and the entries of M; names are called as in the graph."""
    program, text, lines = analysis.program, analysis.name_text, []
    for op in shown_ops(program):
        operands, maps = [], []
        for use, v in _uses(analysis, op):
            if program.value_is_constant[v]:
                operands.append(value_text(program, v))
                continue
            names = program.use_names(use)
            operands.append(
                f"{program.value_name[v]} : [{', '.join(text[name] for name in names)}]"
            )
            maps += [
                f"{text[definition_name]} → {text[use_name]}"
                for definition_name, use_name in zip(program.def_names(v), names, strict=True)
            ]
        results = []
        for value in program.results(op):
            own_names = [text[name] for name in program.def_names(value)]
            results.append(f"{program.value_name[value]} : [{', '.join(own_names)}]")
        lines.append(f"{', '.join(results)} = {op_text(program, op, operands)}")
        lines += [f"  M: {', '.join(maps)}"] if maps else []
    return "\n".join(lines)


def _uses(analysis: Analysis, op: int) -> list[tuple[int, int]]:
    program = analysis.program
    return [(use, int(program.use_value[use])) for use in program.uses(op)]
