"""Check whether a search of a problem can go on from a trace; nothing in a trace is trusted.

``reopened`` gives the trace to go on from, or lists every reason against it. ``trace_check`` tests
whether a trace is consistent in itself; this module compares it with the problem: the best plan is
valid, keeps to the pins and has the price in the trace, and the score of every simulation follows
from its time and memory. Each method checks its own part of the trace
(``Method.memory_offenders``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem, ToastError, join_offenders
from toast_lab.files import PathLike
from toast_lab.search import trace_check
from toast_lab.search.limits import Status
from toast_lab.search.methods import METHODS, Method, method_named
from toast_lab.search.plan_arrays import array_offenders
from toast_lab.search.trace import Trace
from toast_lab.sharding.plan import pinned_texts
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.space import parse_action
from toast_lab.sharding.state import State

Source = Trace | PathLike  #: a trace, or the path of a saved one

_NEEDED = (
    "program",
    "mesh",
    "machine",
    "method",
    "seed",
    "options",
    "elapsed_s",
    "evaluations",
    "key",
)


def about_problem(problem: Problem) -> dict[str, Any]:
    """The facts of a problem that a trace keeps to identify it."""
    return {
        "program": problem.analysis.program.digest(),
        "mesh": str(problem.mesh),
        "machine": problem.machine.name,
        "memory_limit_bytes": problem.memory_limit_bytes,
        "memory_weight": problem.memory_weight,
        "paper_mode": problem.paper_mode,
        "pins": [] if problem.pins is None else problem.pins.texts,
    }


def reopened(
    problem: Problem,
    resume: Source,
    method: str | None = None,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Trace:
    """A checked copy of a trace, from which a search of ``problem`` can go on.

    Args:
        problem: the problem to search.
        resume: the trace, or the path of its file.
        method: the method that the trace must be of; None: any.
        seed: the seed that the trace must be of; None: any.
        options: options that must not contradict those of the trace.

    Raises:
        InvalidProblem: the file is not a trace, or the trace is damaged or is one of another
            problem, method, seed or options, or of a search whose process died.
    """
    options = options or {}
    trace = resume.copy() if isinstance(resume, Trace) else Trace.load(resume)
    if trace.about.get("status") == Status.CRASHED.name:
        raise InvalidProblem(
            "this search cannot be resumed: its process died, so its trace lacks the state that "
            "the method needs to go on. Start a new search"
        )
    title = "this trace" if isinstance(resume, Trace) else os.fspath(resume)
    if isinstance(resume, Trace):  # a trace from a file was checked when it was read
        about_offences = trace_check.about_offenders(trace.about)
        _refuse(title, [*about_offences, *trace_check.offenders(trace)])
    _refuse(title, about_offenders(trace))
    trace.about.setdefault("pins", [])  # traces of versions without pins
    if differences := _differences(
        problem=problem, trace=trace, method=method, seed=seed, options=options
    ):
        raise InvalidProblem(
            f"this search cannot be resumed here: its trace has {'; '.join(differences)}. "
            "Start a new search"
        )
    try:
        resumed_method = method_named(trace.about["method"]).of(
            {**trace.about["options"], **options}
        )
    except InvalidProblem as error:
        _refuse(title, [str(error)])
        raise
    _refuse(title, offenders(problem, trace, resumed_method))
    return trace


def _differences(
    problem: Problem,
    trace: Trace,
    method: str | None,
    seed: int | None,
    options: Mapping[str, Any],
) -> list[str]:
    """The facts in which a trace differs from the search that is asked for."""
    request: dict[str, Any] = about_problem(problem)
    request |= {"method": method} if method else {}
    request |= {"seed": seed} if seed is not None else {}
    about, known_options = trace.about, trace.about.get("options", {})
    return [
        *(
            f"{name} {about.get(name)!r}, not {value!r}"
            for name, value in request.items()
            if about.get(name) != value
        ),
        *(
            f"option {name}={known_options[name]!r}, not {value!r}"
            for name, value in options.items()
            if name in known_options and known_options[name] != value
        ),
    ]


def _refuse(title: str, offences: Iterable[str]) -> None:
    """Raise InvalidProblem if there are offences."""
    if listed := list(offences):
        raise InvalidProblem(
            f"{title}: this trace cannot be resumed; give another copy of it, or start a new "
            f"search:\n{join_offenders(listed)}"
        )


def about_offenders(trace: Trace) -> Iterator[str]:
    """Facts that ``trace.about`` lacks, or a method in it that is unknown."""
    if missing := [name for name in _NEEDED if name not in trace.about]:
        yield f"it lacks about.{', about.'.join(missing)}"
    elif trace.about["method"] not in METHODS:
        yield f"about.method is {trace.about['method']!r:.60}, methods: {', '.join(METHODS)}"


def offenders(problem: Problem, trace: Trace, method: Method) -> Iterator[str]:
    """Reasons why a search cannot go on from a trace that is consistent, a sentence each.

    Args:
        problem: the problem to search.
        trace: the trace of an earlier search of this problem, according to ``about``.
        method: the method, with the options of the resumed search.
    """
    if not trace.row.n or not trace.node.n:
        yield (
            f"it has {trace.row.n} simulations and {trace.node.n} nodes, but it must hold at least "
            "the unsharded program"
        )
        return
    offences = [*_best_plan(problem, trace), *_prices(problem, trace)]
    # A plan given by hand is the result whatever its price.
    if not offences and not method.by_hand:
        offences += _best_price(problem, trace)
    if not offences:
        offences += method.memory_offenders(problem, trace)
    yield from offences


def _best_plan(problem: Problem, trace: Trace) -> Iterator[str]:
    sharding = trace.best_sharding
    if sharding is None:
        yield "it lacks best.op_axis and best.value_axis, the plan to go on from"
        return
    if offences := list(array_offenders(problem, "best.", *sharding)):
        yield from offences
        return
    state = State.from_arrays(problem.space, *sharding)
    keys = {sharding.key(), sharding.key() if state is None else state.plan_key}
    if trace.about["key"] not in keys:
        yield f"about.key is {trace.about['key']:016x}, but the best plan has {min(keys):016x}"
    yield from _actions(problem, trace, sharding)


def _actions(problem: Problem, trace: Trace, sharding: Sharding) -> Iterator[str]:
    """Check that the actions of the best plan lead to it, unless they are only labels."""
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
    if not state.sharding.same_as(sharding):
        yield (
            f"best_actions ({', '.join(trace.best_actions)[:200]}) do not lead to the plan of "
            "best.op_axis"
        )


def _prices(problem: Problem, trace: Trace) -> Iterator[str]:
    """Check that scores follow from time and memory, by this problem's limit and weight."""
    row, limit = trace.row, problem.memory_limit_bytes
    base_time_s, base_peak_bytes = problem.baseline
    score = row["time_s"] / base_time_s if base_time_s > 0 else np.ones(row.n)
    if base_peak_bytes > 0:
        excess_bytes = np.maximum(row["peak_bytes"] - limit, 0.0)
        score = score + problem.memory_weight * excess_bytes / base_peak_bytes
    with np.errstate(over="ignore"):
        is_off = np.abs(score - row["score"]) > trace_check.FORMULA_TOLERANCE * np.maximum(
            score, 1.0
        )
    if is_off.any():
        row_number = int(np.argmax(is_off))
        yield (
            f"row.score of row {row_number} is {row['score'][row_number]:g}, but its time and "
            f"memory give {score[row_number]:g}"
            f"{_more(is_off)}: prices of another version or machine file, or damaged numbers"
        )
    differs = row["fits"] != (row["peak_bytes"] <= limit)
    if differs.any():
        row_number = int(np.argmax(differs))
        memory_text = f"{row['peak_bytes'][row_number]:g} of {limit:g} bytes"
        fits = row["fits"][row_number]
        yield f"row.fits of row {row_number} is {fits} at {memory_text}{_more(differs)}"


def _best_price(problem: Problem, trace: Trace) -> Iterator[str]:
    """Check that the best plan has the time and memory that the trace says."""
    assert trace.best_sharding is not None
    row, best_row = trace.row, int(trace.row["best"][-1])
    totals = problem.pricer().totals(*trace.best_sharding)
    for column, priced in (("time_s", totals.time_s), ("peak_bytes", totals.peak_bytes)):
        traced = float(row[column][best_row])
        if abs(priced - traced) > trace_check.PRICE_TOLERANCE * abs(priced):
            yield (
                f"row.{column} of the best simulation, {best_row}, is {traced:g}, but its plan has "
                f"{priced:g} here: prices of another version or machine file, or damaged numbers"
            )


def _more(is_wrong: np.ndarray) -> str:
    count = int(is_wrong.sum()) - 1
    return f" (and {count} more)" if count else ""
