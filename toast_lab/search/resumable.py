"""Can a search of a problem go on from a trace?  Nothing that a trace says is used before it was compared.

``trace_check`` has told that the trace holds together.  Here it is compared with the problem: the best plan can be
carried out, keeps to the pins and costs what the trace says, and so does every simulation by its own numbers.  What a
method keeps besides is looked at by the method's own module (``MEMORY``); methods that are not there keep nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from toast_lab.cost.problem import Problem
from toast_lab.errors import ToastError
from toast_lab.hashing import digest
from toast_lab.search import trace_check
from toast_lab.search.methods import METHODS
from toast_lab.sharding import validity
from toast_lab.sharding.plan import pinned_texts
from toast_lab.sharding.space import parse_action
from toast_lab.sharding.state import State

if TYPE_CHECKING:
    from toast_lab.search.trace import Trace

MEMORY = {"mcts": "toast_lab.search.mcts.memory_check:offenders"}
CLOSE = 1e-9  #: relative; the same formula on the same numbers
NEAR = 1e-6  #: relative; the same price, added up in another order
_NEEDED = ("program", "mesh", "machine", "method", "seed", "options", "elapsed_s", "evaluations", "key")


def about_offenders(trace: Trace) -> Iterator[str]:
    """What a trace would have to say of its search and does not."""
    if missing := [k for k in _NEEDED if k not in trace.about]:
        yield f"it lacks about.{', about.'.join(missing)}"
    elif trace.about["method"] not in METHODS:
        yield f"about.method is {trace.about['method']!r:.60}, methods: {', '.join(METHODS)}"


def offenders(problem: Problem, trace: Trace, options: Mapping[str, Any]) -> Iterator[str]:
    """Why a search cannot go on from a trace that holds together and is of this problem, a sentence each.

    Args:
        problem: to search on.
        trace: of an earlier search of it, by ``about``.
        options: of the method, the default ones included.
    """
    if not trace.row.n or not trace.node.n:
        yield f"it has {trace.row.n} simulations and {trace.node.n} nodes, at least the unsharded program must be there"
        return
    found = [*_best_plan(problem, trace), *_prices(problem, trace)]
    if not found:
        found += _best_price(problem, trace)
    if not found:
        found += _memory(problem, trace, options)
    yield from found


def plan_offenders(problem: Problem, what: str, op_axis: np.ndarray, value_axis: np.ndarray) -> Iterator[str]:
    """Why arrays are no plan of a problem: their shape, names and dims that are not there, pins."""
    program, n_axes = problem.analysis.program, len(problem.mesh.axes)
    wrong = False
    for name, array, n in (("op_axis", op_axis, program.n_ops), ("value_axis", value_axis, program.n_values)):
        if array.shape != (n, n_axes):
            wrong = True
            yield (
                f"{what}{name} has shape {array.shape}, the program has {n} {'ops' if name == 'op_axis' else 'values'} "
                f"and the mesh {n_axes} axes"
            )
        elif bad := trace_check.outside(array, -1, np.iinfo(array.dtype).max):
            wrong = True
            yield f"{what}{name} is out of range, {bad}"
    if wrong:
        return
    yield from (
        f"{what}op_axis and {what}value_axis: {text}"
        for text in validity.offenders(program, problem.mesh, op_axis, value_axis)
    )
    if problem.pins is not None and (broken := problem.pins.broken(op_axis, value_axis)):
        yield f"{what}op_axis and {what}value_axis do not keep to what is pinned: {'; '.join(map(str, broken[:5]))}"


def _best_plan(problem: Problem, trace: Trace) -> Iterator[str]:
    op_axis, value_axis = trace.best_op_axis, trace.best_value_axis
    if op_axis is None or value_axis is None:
        yield "it lacks best.op_axis and best.value_axis, the plan to go on from"
        return
    if wrong := list(plan_offenders(problem, "best.", op_axis, value_axis)):
        yield from wrong
        return
    state = State.from_arrays(problem.space, op_axis, value_axis)
    keys = {int.from_bytes(digest(op_axis, value_axis), "little")} | (set() if state is None else {state.plan_key})
    if trace.about["key"] not in keys:
        yield f"about.key is {trace.about['key']:016x}, the best plan's is {min(keys):016x}"
    yield from _actions(problem, trace, op_axis, value_axis)


def _actions(problem: Problem, trace: Trace, op_axis: np.ndarray, value_axis: np.ndarray) -> Iterator[str]:
    """The actions of the best plan lead to it, if they are actions and not words on how it came about."""
    pinned = pinned_texts(problem.space)
    if trace.best_actions[: len(pinned)] != pinned:
        yield f"best_actions must begin with what is pinned, {', '.join(pinned)}"
        return
    state = State(problem.space)
    for text in trace.best_actions[len(pinned) :]:
        try:
            state.apply(parse_action(problem.analysis, problem.mesh, text))
        except ToastError:
            return
    if not (np.array_equal(state.op_axis, op_axis) and np.array_equal(state.value_axis, value_axis)):
        yield f"best_actions ({', '.join(trace.best_actions)[:200]}) do not lead to the plan of best.op_axis"


def _prices(problem: Problem, trace: Trace) -> Iterator[str]:
    """Scores follow from times and memory, by this problem's limit and weight."""
    row, limit = trace.row, problem.memory_limit_bytes
    base_time_s, base_peak_bytes = problem.baseline
    score = row["time_s"] / base_time_s if base_time_s > 0 else np.ones(row.n)
    if base_peak_bytes > 0:
        over = np.maximum(row["peak_bytes"] - limit, 0.0)
        score = score + problem.memory_weight * over / base_peak_bytes
    with np.errstate(over="ignore"):
        far = np.abs(score - row["score"]) > CLOSE * np.maximum(score, 1.0)
    if far.any():
        at = int(np.argmax(far))
        yield (
            f"row.score of row {at} is {row['score'][at]:g}, its time and memory give {score[at]:g}"
            f"{_more(far)}: prices of another version or machine file, or damaged numbers"
        )
    unlike = row["fits"] != (row["peak_bytes"] <= limit)
    if unlike.any():
        at = int(np.argmax(unlike))
        held = f"{row['peak_bytes'][at]:g} of {limit:g} bytes"
        yield f"row.fits of row {at} is {row['fits'][at]} at {held}{_more(unlike)}"


def _best_price(problem: Problem, trace: Trace) -> Iterator[str]:
    """The best plan costs what the trace says; of ``manual`` it is the plan asked for, whatever its price."""
    if trace.about["method"] == "manual":
        return
    assert trace.best_op_axis is not None
    assert trace.best_value_axis is not None
    row, at = trace.row, int(trace.row["best"][-1])
    found = problem.pricer().totals(trace.best_op_axis, trace.best_value_axis)
    for column, here in (("time_s", found.time_s), ("peak_bytes", found.peak_bytes)):
        there = float(row[column][at])
        if abs(here - there) > NEAR * abs(here):
            yield (
                f"row.{column} of the best simulation, {at}, is {there:g}, its plan has {here:g} here: prices of "
                "another version or machine file, or damaged numbers"
            )


def _memory(problem: Problem, trace: Trace, options: Mapping[str, Any]) -> Iterator[str]:
    method = trace.about["method"]
    if method not in MEMORY:
        if trace.memory:
            yield f"{method} keeps nothing beside the trace, this one has {_named(trace.memory)}"
        return
    module, _, function = MEMORY[method].partition(":")
    yield from getattr(importlib.import_module(module), function)(problem, trace, options)


def _named(memory: Mapping[str, object]) -> str:
    names = [f"memory.{name}"[:60] for name in sorted(memory)]
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _more(bad: np.ndarray) -> str:
    n = int(bad.sum()) - 1
    return f" (and {n} more)" if n else ""
