"""Seconds until a child process has done little work: forked from a warm process, or started anew.

The warm process has loaded what children need. The work hardly takes time: a search of 50 plans,
and a compile of a small program for two virtual CPU devices. Both ways take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from unittest import mock

import toast_lab as tl
from toast_lab import fork_server
from toast_lab.prepare import FIRST_SEARCH_NEEDS, prepare

TURNS = 5
LARGEST_RATIO = 0.5  #: target: time of a forked child over that of a started one


def _search(problem: tl.Problem) -> None:
    tl.start_search(problem, budget=tl.Budget(seconds=None, evaluations=50)).result()


def _compile(problem: tl.Problem) -> None:
    tl.compile(problem.analysis.model, tl.replicated(problem), "cpu:2", store=False)


def seconds(work: Callable[[tl.Problem], None], problem: tl.Problem) -> tuple[float, float, float]:
    """Seconds of the first forked child, and medians of later forked ones and of started ones."""
    forked, started = [], []
    for _ in range(TURNS + 1):
        began = time.monotonic()
        work(problem)
        forked.append(time.monotonic() - began)
        with mock.patch.object(fork_server, "serves", return_value=False):
            began = time.monotonic()
            work(problem)
            started.append(time.monotonic() - began)
    return forked[0], statistics.median(forked[1:]), statistics.median(started[1:])


def run() -> list[str]:
    """Print the table; gives the missed targets."""
    if not fork_server.serves({"JAX_PLATFORMS": "cpu"}):
        print("\nChildren are forked on Linux only.")
        return []
    prepare(*FIRST_SEARCH_NEEDS)
    problem = tl.Problem(tl.analyse(tl.load("mlp")), {"data": 2}, "cpu")
    print("\nSeconds until a child is through with next to nothing")
    print(f"{'':>8} {'first forked':>13} {'forked':>7} {'started':>8} {'ratio':>6}")
    missed = []
    for name, work in (("search", _search), ("compile", _compile)):
        first_s, forked_s, started_s = seconds(work, problem)
        ratio = forked_s / started_s
        print(f"{name:>8} {first_s:13.2f} {forked_s:7.2f} {started_s:8.2f} {ratio:6.2f}")
        if ratio > LARGEST_RATIO:
            missed.append(
                f"a forked child takes {ratio:.2f} of the time of a started one to {name} (target "
                f"{LARGEST_RATIO:g})"
            )
    return missed
