"""A written plan on one screen: its price, what it is, its rules and constraints, and its path.

Start reading at ``written_text``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan
from toast_lab.search.action_path import PathStep
from toast_lab.search.usual_plans import data_parallel
from toast_lab.sharding.plan import Spec, is_action
from toast_lab.sharding.state import State
from toast_lab.text import bytes_text, counted
from toast_lab.written.parts import program_parts
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
    head = _head(written, width)
    tables = [
        table
        for table in (
            _rule_table(written),
            _constraint_table(written),
            _path_table(written.path),
        )
        if table.rows
    ]
    room = LINES - len(head) - len(words) - len(tables)
    lines = [*head, *words]
    for table, row_count in zip(tables, _row_counts(tables, room), strict=True):
        lines += [_shortened(table.title, width), *_rows(table, row_count, width)]
    return "\n".join(line.rstrip() for line in lines)


def spec_code(spec: Spec) -> str:
    """A spec as it is written in a program.

    >>> spec_code((("a",), (), ("b", "c"), ()))
    "P('a', None, ('b', 'c'))"
    """
    cut = [dim for dim, axes in enumerate(spec) if axes]
    shown = spec[: cut[-1] + 1] if cut else ()
    texts = [
        repr(axes[0]) if len(axes) == 1 else repr(tuple(axes)) if axes else "None" for axes in shown
    ]
    return f"P({', '.join(texts)})"


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
    return [_shortened(line, width) for line in lines]


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
    return f"{_time(time_s)}, {bytes_text(peak_bytes)}"


def _time(time_s: float) -> str:
    """``1.04 ms``, ``12 us``, ``2.5 s``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(time_s) >= scale:
            return f"{time_s / scale:.3g} {unit}"
    return f"{time_s / 1e-6:.3g} us"


# -- tables ----------------------------------------------------------------------------------------
def _rule_table(written: WrittenPlan) -> _Table:
    program = written.problem.analysis.program
    parts = program_parts(written.problem.analysis)
    parameters, states = set(parts.parameters), set(parts.states)
    follow = any(
        parameters & set(rule.arguments) and states & set(rule.arguments) for rule in written.rules
    )
    states_follow = "; optimizer states follow" if follow else ""

    def row(rule: ShardingRule) -> tuple[str, ...]:
        return rule.words, spec_code(rule.spec), counted(len(rule.arguments), "argument")

    return _Table(
        f"rules of arguments: first match decides{states_follow}; rest whole",
        [row(rule) for rule in written.rules],
        [float(sum(map(program.nbytes, rule.arguments))) for rule in written.rules],
        "plan.rules has all",
    )


def _constraint_table(written: WrittenPlan) -> _Table:
    cost = written.cost
    rows, weights = [], []
    for number, (site, spec) in enumerate(written.constraints):
        where = site.where if len(site.where) <= _WHERE else f"...{site.where[3 - _WHERE :]}"
        cells: tuple[str, ...] = (f"{where} {site.name or 'return'}", spec_code(spec))
        weight, quick = 1.0, written.without.get(number)
        if quick is not None:
            cells += (
                _bought(quick.time_s - cost.time_s, _time),
                _bought(quick.peak_bytes - cost.peak_bytes, bytes_text),
            )
            weight = abs(quick.time_s / cost.time_s - 1.0)
            weight += abs(quick.peak_bytes / cost.peak_bytes - 1.0)
        rows.append(cells)
        weights.append(weight)
    bought = ", and the time and memory that each saves" if written.without else ""
    return _Table(
        f"constraints, by line and variable{bought}", rows, weights, "plan.constraints has all"
    )


def _bought(saving: float, text: Callable[[float], str]) -> str:
    """``-1.2 ms`` for a saving, ``+3 MiB`` for a loss, ``=`` for next to nothing."""
    if not saving:
        return "="
    return f"{'-' if saving > 0 else '+'}{text(abs(saving))}"


def _path_table(path: Sequence[PathStep]) -> _Table:
    """The actions of the plan that it was written for, with the price after each."""
    rows = []
    for number, step in enumerate(path):
        text = step.action or "unsharded"
        if number and not is_action(step.action):
            gain = 1.0 - step.time_s / path[number - 1].time_s
            text = f"then single ops ({step.action}), {gain:.1%} less time"
        rows.append((text, _time(step.time_s), bytes_text(step.peak_bytes)))
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
        cells = [_shortened(row[0], max(first_width, 12)).ljust(first_width)]
        cells += [
            cell.ljust(own_width) if column == 0 else cell.rjust(own_width)
            for column, (cell, own_width) in enumerate(zip(row[1:], widths, strict=True))
        ]
        lines.append(_shortened(_GAP + _GAP.join(cells), width))
    if len(shown) < len(table.rows):
        lines.append(f"{_GAP}... and {len(table.rows) - len(shown)} more: {table.rest}")
    return lines


def _shortened(text: str, width: int) -> str:
    text = text.rstrip()
    return text if len(text) <= width else f"{text[: width - 3]}..."
