"""A plan on one screen: what it is, its rules and constraints, and its path.

``written_text`` shows a written plan, ``plan_text`` one that nobody has written yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan
from toast_lab.ir.program import Program
from toast_lab.lowering.specs import partition_text
from toast_lab.search.action_path import PathStep
from toast_lab.search.usual_plans import data_parallel
from toast_lab.sharding.plan import ShardingPlan, Spec, is_action
from toast_lab.sharding.state import State
from toast_lab.text import bounded, bytes_text, counted, line_text
from toast_lab.written.parts import program_parts
from toast_lab.written.sharding_rules import rules_of, trimmed
from toast_lab.written.traits import plan_paragraph, plan_words
from toast_lab.written.written_plan import ShardingRule, WrittenPlan

LINES = 40  #: most lines of the text
_LEAST_ROWS = 4  #: rows that each table gets at least, if it has as many
_WORDS_LINES = 8
_WHERE = 32  #: columns of a constraint's file and line
_GAP = "  "


class _Table(NamedTuple):
    title: str
    rows: Sequence[Sequence[str]]  #: first cells are shortened where a row is too long
    weights: Sequence[float]  #: rows of less weight are left out first
    rest: str  #: where the rows are that are left out


def written_text(written: WrittenPlan, width: int = 80) -> str:
    """A plan in at most 40 lines, whatever the model.

    Args:
        written: rules and constraints, and what they lead to.
        width: columns, at least 60.
    """
    traits = plan_words(written.problem, written.plan, written.cost)
    words = plan_paragraph(traits, width, _WORDS_LINES).split("\n")
    words += _recomputed(written.problem.analysis)
    tables = (
        _rule_table(written.problem.analysis, written.rules, "rules of arguments"),
        _constraint_table(written),
        _path_table(written.path),
    )
    return "\n".join(_screen([*_head(written, width), *words], tables, width, LINES))


def plan_text(plan: ShardingPlan, line_count: int | None = LINES, width: int = 80) -> str:
    """A plan whose every op is sharded, which nobody has written yet, in the same form.

    Args:
        plan: any plan; only its rules and actions are shown if it came without its analysis.
        line_count: most lines; None: as many as it takes for the sharding of every value too.
        width: columns, at least 60.
    """
    program, analysis = plan.program, plan.analysis
    rules = rules_of(program, list(plan.argument_specs().values()))
    lines = [f"{program.name} on {plan.mesh}"]
    if not (plan.sharding.value_dim >= 0).any() and not (plan.sharding.op_factor >= 0).any():
        return f"{lines[0]}: every device holds and computes everything"
    lines[0] += ", not written yet: plan.written() finds its rules and constraints"
    if analysis is not None:
        lines += plan_paragraph(plan_words(analysis, plan), width, _WORDS_LINES).split("\n")
        lines += _recomputed(analysis)
    actions = [(text,) for text in plan.history]
    tables = (
        _rule_table(analysis or program, rules, "arguments"),
        _Table("actions", actions, [1.0] * len(actions), "plan.history has all"),
    )
    if line_count is not None:
        shown = _screen(lines, tables, width, line_count - 1)
        return bounded([*shown, "plan.describe(None) has every value"], line_count, " lines")
    return "\n".join([*_screen(lines, tables, width, 10**9), *_value_lines(plan, width)])


def _value_lines(plan: ShardingPlan, width: int) -> list[str]:
    """The sharding of every value, and of reads that differ; those of a line alike are one."""
    program, kept, used = plan.program, plan.lowered.kept, plan.lowered.used
    counts: Counter[tuple[str, str, str]] = Counter()

    def add(op: int, value: int, spec: Spec, how: str) -> None:
        name = program.value_name[value]
        if name.startswith("%"):
            name = program.kind[int(program.value_op[value])]
        counts[line_text(program.where(op)), f"{name}{how}", spec_code(spec)] += 1

    for op in program.ops():
        for use in program.uses(op):
            value = int(program.use_value[use])
            if used[use] != kept[value] and not program.value_is_constant[value]:
                add(op, value, used[use], ", read as")
        for value in program.results(op) if op >= program.n_arguments else ():
            if not program.value_is_constant[value]:
                add(op, value, kept[value], "")
    rows = [
        (f"{where} {name}", spec, f"{times} times" if times > 1 else "")
        for (where, name, spec), times in counts.items()
    ]
    if not rows:
        return []
    return ["values, by line", *_rows(_Table("", rows, [1.0] * len(rows), ""), len(rows), width)]


def _screen(
    head: Sequence[str], tables: Sequence[_Table], width: int, line_count: int
) -> list[str]:
    """The head and the tables that have rows, in a number of lines."""
    tables = [table for table in tables if table.rows]
    lines = list(head)
    room = line_count - len(lines) - len(tables)
    for table, row_count in zip(tables, _row_counts(tables, room), strict=True):
        lines += [shortened(table.title, width), *_rows(table, row_count, width)]
    return [line.rstrip() for line in lines]


def spec_code(spec: Spec) -> str:
    """A spec as it is written in a program.

    >>> spec_code((("a",), (), ("b", "c"), ()))
    "P('a', None, ('b', 'c'))"
    """
    return partition_text(trimmed(spec))


# -- head ------------------------------------------------------------------------------------------
def _head(written: WrittenPlan, width: int) -> list[str]:
    problem, cost = written.problem, written.cost
    title = f"{problem.analysis.program.name} on {problem.mesh}: {written.size}"
    fits = "" if cost.fits else f", over the limit of {bytes_text(cost.memory_limit_bytes)}"
    parts = [f"{_price(cost.time_s, cost.peak_bytes)} a device{fits}"]
    parts.append(f"unsharded {_price(*problem.baseline)}")
    rival = _data_parallel_price(problem)
    if rival is not None:
        parts.append(f"data parallel {_price(*rival)}")
    lines = [title]
    for part in parts:
        if len(lines) > 1 and len(lines[-1]) + len(part) + 2 <= width:
            lines[-1] += f"; {part}"
        else:
            lines.append(part)
    return [shortened(line, width) for line in lines]


def _data_parallel_price(problem: Problem) -> tuple[float, float] | None:
    try:
        actions = data_parallel(problem)
    except InvalidPlan:
        return None
    state = State(problem.space)
    for action in actions:
        state.apply(action)
    figures = problem.pricer().quick(state)
    return figures.time_s, figures.peak_bytes


def _price(time_s: float, peak_bytes: float) -> str:
    return f"{time_text(time_s)}, {bytes_text(peak_bytes)}"


def time_text(time_s: float) -> str:
    """``1.04 ms``, ``12 us``, ``2.5 s``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(time_s) >= scale:
            return f"{time_s / scale:.3g} {unit}"
    return f"{time_s / 1e-6:.3g} us"


def _recomputed(analysis: Analysis) -> list[str]:
    """What layers keep for the backward pass, where that was chosen; no lines if it was not."""
    texts = list(map(str, analysis.model.recompute))
    return [f"for the backward pass {'; '.join(texts)}"] if texts else []


# -- tables ----------------------------------------------------------------------------------------
def _rule_table(source: Analysis | Program, rules: Sequence[ShardingRule], title: str) -> _Table:
    follow = False
    if isinstance(source, Analysis):
        parts, source = program_parts(source), source.program
        parameters, states = set(parts.parameters), set(parts.states)
        follow = any(
            parameters & set(rule.arguments) and states & set(rule.arguments) for rule in rules
        )
    program = source
    states_follow = "; optimizer states follow" if follow else ""

    def row(rule: ShardingRule) -> tuple[str, ...]:
        return rule.words, spec_code(rule.spec), counted(len(rule.arguments), "argument")

    return _Table(
        f"{title}: first match decides{states_follow}; rest whole",
        [row(rule) for rule in rules],
        [float(sum(map(program.nbytes, rule.arguments))) for rule in rules],
        "plan.rules has all",
    )


def _constraint_table(written: WrittenPlan) -> _Table:
    cost = written.cost
    rows, weights = [], []
    for constraint in written.constraints:
        site, spec = constraint
        where = site.where if len(site.where) <= _WHERE else f"...{site.where[3 - _WHERE :]}"
        cells: tuple[str, ...] = (f"{where} {site.target}", spec_code(spec))
        weight, quick = 1.0, written.without.get(constraint)
        if quick is not None:
            cells += (
                saved_text(quick.time_s - cost.time_s, time_text),
                saved_text(quick.peak_bytes - cost.peak_bytes, bytes_text),
            )
            weight = abs(quick.time_s / cost.time_s - 1.0)
            weight += abs(quick.peak_bytes / cost.peak_bytes - 1.0)
        rows.append(cells)
        weights.append(weight)
    bought = ", and the time and memory that each saves" if written.without else ""
    return _Table(
        f"constraints, by line and variable{bought}", rows, weights, "plan.constraints has all"
    )


def saved_text(saving: float, text: Callable[[float], str]) -> str:
    """``1.2 ms`` for a saving, ``-3 MiB`` for a loss, ``=`` for nothing."""
    return f"{'-' if saving < 0 else ''}{text(abs(saving))}" if saving else "="


def _path_table(path: Sequence[PathStep]) -> _Table:
    """The actions of the plan that it was written for, with the price after each."""
    rows = []
    for number, step in enumerate(path):
        text = step.action or "unsharded"
        if number and not is_action(step.action):
            gain = 1.0 - step.time_s / path[number - 1].time_s
            text = f"then single ops ({step.action}), {gain:.1%} less time"
        rows.append((text, time_text(step.time_s), bytes_text(step.peak_bytes)))
    # The last step has the price of the whole plan
    weights = [float(len(path) - index) for index in range(len(path) - 1)] + [float("inf")]
    return _Table(
        "written for the plan of these actions, with its price after each",
        rows,
        weights[: len(path)],
        "result.path has all",
    )


def _row_counts(tables: Sequence[_Table], room: int) -> list[int]:
    """Rows of each table, a line for the rest included, that fit into the room.

    Small tables are shown whole; what they leave is for the others, the first ones first.
    """
    wanted = [len(table.rows) for table in tables]
    counts = [min(count, _LEAST_ROWS) for count in wanted]
    for index, count in enumerate(wanted):
        counts[index] += min(count - counts[index], max(room - sum(counts), 0))
    return counts


def _rows(table: _Table, row_count: int, width: int) -> list[str]:
    """The rows of most weight in their order, and the number of those left out."""
    shown = list(range(len(table.rows)))
    if row_count < len(shown):
        heaviest = sorted(shown, key=lambda index: -table.weights[index])[: row_count - 1]
        shown = sorted(heaviest)
    column_count = max(len(row) for row in table.rows)
    rows = [
        (*table.rows[index], *[""] * (column_count - len(table.rows[index]))) for index in shown
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(1, column_count)]
    first_width = min(
        max(len(row[0]) for row in rows), width - sum(widths) - len(_GAP) * column_count
    )
    lines = []
    for row in rows:
        cells = [shortened(row[0], max(first_width, 12)).ljust(first_width)]
        cells += [
            cell.ljust(own_width) if column == 0 else cell.rjust(own_width)
            for column, (cell, own_width) in enumerate(zip(row[1:], widths, strict=True))
        ]
        lines.append(shortened(_GAP + _GAP.join(cells), width))
    if len(shown) < len(table.rows):
        lines.append(f"{_GAP}... and {len(table.rows) - len(shown)} more: {table.rest}")
    return lines


def shortened(text: str, width: int) -> str:
    """A text in at most so many columns."""
    text = text.rstrip()
    return text if len(text) <= width else f"{text[: width - 3]}..."
