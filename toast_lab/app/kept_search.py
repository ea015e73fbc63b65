"""A search in a child that leaves its trace behind, and one that goes on from a trace."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.app.worker import Batch, Control, Found, search_problem
from toast_lab.conflicts.analysis import Analysis
from toast_lab.errors import InvalidProblem
from toast_lab.machines.machine_model import Machine
from toast_lab.search import resumable
from toast_lab.search.trace import Trace

RECALLED = 3000  #: of the search that goes on, so many simulations stand in the curves


class Kept(NamedTuple):
    """Outcome of a search, with the method and seed that were in force: a trace brings its own."""

    found: Found
    method: str
    seed: int


def search(
    analysis: Analysis,
    mesh: str,
    machine: Machine | str,
    method: str,
    seed: int,
    seconds: float | None,
    evaluations: int | None,
    options: dict[str, Any],
    control: str,
    keep: str,
    limit_bytes: float | None = None,
    resume: str | None = None,
    brought: Mapping[str, str] = types.MappingProxyType({}),
) -> Kept:
    """Search for a plan, under the control of a file.

    Args:
        analysis: of the program.
        mesh: as text.
        machine: one, or its name.
        method: name of the search; not looked at with ``resume``, nor are ``seed`` and ``options``.
        seed: of the search.
        seconds: budget; time spent paused does not count.
        evaluations: budget of distinct shardings.
        options: of the method.
        control: file that orders are read from.
        keep: file that the trace is written to.
        limit_bytes: memory of a device, if not the machine's.
        resume: file of a trace to go on from.
        brought: methods that the parent process has beside ours, see ``methods.brought``.

    Raises:
        InvalidProblem: a wrong option, or the trace is of another problem.
    """
    from toast_lab.cost.problem import Problem
    from toast_lab.search.methods import ensure

    for name, reference in brought.items():
        ensure(name, reference)
    isolate.report("preparing")
    problem = Problem(analysis, mesh, machine, memory_limit_bytes=limit_bytes)
    earlier, begin = None, _nothing
    if resume is not None:
        earlier = resumable.reopened(problem, read_trace(resume))
        method, seed, options = str(earlier.about["method"]), int(earlier.about["seed"]), {}
        begin = functools.partial(recall, trace=earlier)
    found = search_problem(
        problem,
        method,
        seed,
        seconds,
        evaluations,
        options,
        control,
        resume=earlier,
        keep=keep,
        begin=begin,
    )
    return Kept(found, method, seed)


def _nothing(orders: Control) -> None:
    pass


def recall(orders: Control, trace: Trace) -> None:
    """Send what an earlier search did, thinned to what a page can show, before it goes on."""
    orders.done = trace.row.n
    orders.sender.trace(trace)
    if trace.row.n:
        sample = trace.simulations.sample(max(1, trace.row.n // RECALLED))
        orders.send(Batch(tuple(sample), trace.row.n))


def read_trace(path: str) -> Trace:
    """The trace in a file that somebody gave.

    Raises:
        InvalidProblem: it is none, is damaged or unpacks to too much; where it was put here is not
            said.
    """
    try:
        return Trace.load(path)
    except InvalidProblem as error:
        text = str(error).removeprefix(f"{path}: ")
        raise InvalidProblem(f"{text}\nChoose a file that a search has saved.") from None
