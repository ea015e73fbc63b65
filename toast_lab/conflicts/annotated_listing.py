"""The paper's annotated listings: every dim shows its colour (I and M) or its name (I only)."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable

from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.program import Program


def control_text(program: Program, op: int, operand_texts: list[str]) -> str:
    """Text of a pseudo-op of a loop or a conditional: ``carry(x)``, ``next h = %19``."""
    kind, owner = program.kind[op], int(program.owner[op])
    result = value_text(program, program.results(owner)[0]) if program.results(owner) else ""
    yielded = ", ".join(value_text(program, value) for value in _yielded(program).get(op, ()))
    return op_kind(kind).line.format(*operand_texts, own=result, yielded=yielded)


@functools.lru_cache(maxsize=8)
def _yielded(program: Program) -> dict[int, list[int]]:
    """The values that the branches of a conditional yield, by ``case.result``."""
    by_result: dict[int, list[int]] = {}
    for op in program.ops():
        if program.kind[op] == "case.yield":
            by_result.setdefault(int(program.owner[op]), []).append(program.operands(op)[0])
    return by_result


def outline(program: Program) -> tuple[list[int], dict[int, list[tuple[int, str]]]]:
    """Compute the indentation and the headings of a listing.

    Returns:
        ``(depth, headings)``: the depth of every op, and for some ops lines to print before them,
            each with its depth.
    """
    depth = [0] * program.n_ops
    headings: dict[int, list[tuple[int, str]]] = {}
    region_depth: list[int] = []
    branch_counts: dict[tuple[int, int], int] = {}
    for i, region in enumerate(program.regions):
        outer = region_depth[region.parent] if region.parent >= 0 else 0
        region_depth.append(outer + 1)
        heading = {"cond": "condition:", "body": "body:"}.get(region.kind, "")
        if region.kind == "loop":
            body = next(
                inner
                for inner in program.regions[i + 1 :]
                if inner.parent == i and inner.kind == "body"
            )
            assumed = "" if body.known else "number of rounds unknown, counted as "
            heading = f"loop, {assumed}{body.times:g}{' rounds' if body.known else ''}:"
        elif region.kind == "branch":
            # Branches of one conditional follow each other directly.
            count = branch_counts.get((region.parent, region.begin), 0)
            branch_counts[region.parent, region.end] = count + 1
            heading = f"branch {count}:"
        headings.setdefault(region.begin, []).append((outer, heading))
        depth[region.begin : region.end] = [outer + 1] * (region.end - region.begin)
    return depth, headings


def op_text(program: Program, op: int, operand_texts: list[str]) -> str:
    """Text of an op with its operands as given: ``matmul(x, w1)``, ``reduce_{1,add}(a)``."""
    facts = op_kind(program.kind[op])
    if facts.line:
        return control_text(program, op, operand_texts)
    kind = facts.paper_name or program.kind[op]
    kind = kind.removeprefix("chlo.")
    detail = program.detail[op].replace(" ", "")
    if facts.initial_values:
        operand_texts = operand_texts[: (len(operand_texts) + 1) // 2]
    if facts.detail_is_kept_dims:
        kept = {int(dim) for dim in detail.split(",") if dim}
        rank = len(program.dims(program.results(op)[0]))
        detail = ",".join(str(dim) for dim in range(rank) if dim not in kept)
    if detail == facts.plain_detail:
        detail = ""
    suffix = f"_{{{detail}}}" if detail else ""
    return f"{kind}{suffix}({', '.join(operand_texts)})"


def literal(program: Program, value: int) -> str:
    """The number that every element of a constant value equals; empty for other values."""
    if not program.value_is_constant[value]:
        return ""
    op = int(program.value_op[value])
    if program.kind[op] == "constant":
        return program.detail[op] or ("const" if program.dims(value) == () else "")
    if op_kind(program.kind[op]).keeps_number:
        return literal(program, program.operands(op)[0])
    return ""


def shown_ops(program: Program) -> list[int]:
    """Ops that get a line of their own; constants of one number are written where they are used."""
    return [
        op
        for op in program.ops()
        if not all(literal(program, value) for value in program.results(op))
        or not program.results(op)
    ]


def value_text(program: Program, value: int) -> str:
    """Name of a value in a listing, or the number it holds."""
    return literal(program, value) or program.value_name[value]


def listing(
    program: Program,
    def_text: Callable[[int], str],
    use_text: Callable[[int], str] | None = None,
) -> str:
    """A program as text; ``def_text(value)`` and ``use_text(use)`` give the bracketed dims."""
    arguments = [
        f"{program.value_name[argument]} : {def_text(argument)}"
        for argument in range(program.n_arguments)
    ]
    indent = " " * (len(program.name) + 5)
    lines = [f"def {program.name}(" + f",\n{indent}".join(arguments) + ") {"]
    shown = shown_ops(program)
    depth, headings = outline(program)
    pending = collections.deque(sorted(headings))
    width = max(
        (len(program.value_name[value]) for op in shown for value in program.results(op)), default=0
    )
    for op in shown:
        operands = []
        for use in program.uses(op):
            text = value_text(program, int(program.use_value[use]))
            is_number = bool(literal(program, int(program.use_value[use])))
            operands.append(f"{text} : {use_text(use)}" if use_text and not is_number else text)
        results = list(program.results(op))
        definitions = ", ".join(
            f"{program.value_name[value]:<{width if len(results) == 1 else 0}} : {def_text(value)}"
            for value in results
        )
        # The op that opens a region may be a constant without a line
        while pending and pending[0] <= op:
            lines.extend("  " * (level + 1) + text for level, text in headings[pending.popleft()])
        assigned = f"{definitions} = " if results else ""
        lines.append("  " * (depth[op] + 1) + assigned + op_text(program, op, operands))
    lines.append(
        "  return " + ", ".join(value_text(program, int(value)) for value in program.outputs)
    )
    return "\n".join([*lines, "}"])
