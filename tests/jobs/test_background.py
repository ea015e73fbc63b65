"""Searches and races in child processes: results, orders and deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import toast_lab as tl
from tests.helpers import analysed, small_transformer
from tests.processes import workers
from toast_lab import fork_server
from toast_lab.errors import InvalidInput, InvalidProblem, RunFailed
from toast_lab.jobs.background import RunningRace
from toast_lab.jobs.job import JobState
from toast_lab.jobs.race_job import RaceEnd, RacePoint, RaceStart
from toast_lab.search.search_child import ImprovementPoint, MethodOutcome

PATIENCE_S = 400.0  # compiling kernels for the first time on a machine takes minutes


def until(condition, what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"gave up waiting for {what}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def problem() -> tl.Problem:
    return tl.Problem(small_transformer(), {"data": 2, "model": 2})


def test_the_result_is_that_of_a_search_in_the_foreground(problem: tl.Problem) -> None:
    pinned = problem.forbid(("batch", "data"))
    budget = tl.Budget(seconds=None, evaluations=600)
    run = tl.start_search(pinned, seed=3, budget=budget)
    result = run.result(PATIENCE_S)
    expected = tl.search(pinned, seed=3, budget=budget)
    assert result.plan.actions == expected.plan.actions
    assert np.array_equal(result.plan.op_factor, expected.plan.op_factor)
    assert result.cost.time_s == expected.cost.time_s
    assert (result.status, result.evaluations, result.actions) == (
        expected.status,
        expected.evaluations,
        expected.actions,
    )
    assert len(result.trace.simulations) == len(expected.trace.simulations) == run.simulations
    assert [p.simulation for p in run.points] == [s.index for s in expected.trace.improvements()]
    assert run.state == "done"
    assert f"best {result.refined.cost.time_s * 1e3:.3f} ms" in repr(run)
    more = tl.search(pinned, resume=result, budget=tl.Budget(seconds=None, evaluations=100))
    assert more.evaluations > result.evaluations


def test_pause_go_on_and_stop(problem: tl.Problem) -> None:
    run = tl.start_search(problem, "random", budget=tl.Budget(seconds=600))
    until(lambda: run.simulations > 0, "the first simulation")
    assert run.state == "searching"
    assert run.best is not None
    run.pause()
    assert run.state == "paused"
    time.sleep(0.5)
    held = run.simulations
    time.sleep(0.5)
    assert run.simulations == held
    run.go_on()
    until(lambda: run.simulations > held, "more simulations")
    with pytest.raises(TimeoutError, match="still searching"):
        run.result(0.01)
    run.stop()
    result = run.result(PATIENCE_S)
    assert result.status is tl.Status.CANCELLED
    # The curve is priced op class by op class
    assert result.refined.cost.score == pytest.approx(run.best.score)
    assert not run.running


def test_cancel_loses_the_result_but_not_the_curve(problem: tl.Problem) -> None:
    run = tl.start_search(problem, "random", budget=tl.Budget(seconds=600))
    until(lambda: run.best is not None, "a plan")
    run.cancel()
    with pytest.raises(RunFailed, match="cancelled"):
        run.result(PATIENCE_S)
    assert run.points


@pytest.mark.parametrize("method", ["random", "mcts"])
def test_a_search_whose_process_is_killed_ends_with_the_best_that_it_had_told_of(
    problem: tl.Problem, method: str, tmp_path: Path
) -> None:
    earlier = set(children(os.getpid()))
    run = tl.start_search(problem, method, budget=tl.Budget(seconds=600))
    until(lambda: run.simulations > 100, "simulations")
    known = run.best
    (child,) = set(children(os.getpid())) - earlier
    os.kill(child, signal.SIGKILL)
    result = run.result(PATIENCE_S)
    assert result.status is tl.Status.CRASHED
    assert "killed (SIGKILL)" in result.message
    assert result.cost.score <= known.score * (1 + 1e-9)
    assert result.cost.score == pytest.approx(run.points[-1].score)
    assert tl.price(problem, result.plan).time_s == result.cost.time_s
    assert len(result.trace.simulations) > 0
    assert run.result() is result
    with pytest.raises(InvalidProblem, match="its process died"):
        tl.search(problem, resume=result)
    result.plan.save(tmp_path / "plan.json")


def test_a_search_whose_process_is_killed_at_once_has_nothing(
    problem: tl.Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A forked process might have found a plan by then
    monkeypatch.setattr(fork_server, "serves", lambda environment: False)
    earlier = set(children(os.getpid()))
    run = tl.start_search(problem, "random", budget=tl.Budget(seconds=600))
    until(lambda: set(children(os.getpid())) - earlier, "the process")
    (child,) = set(children(os.getpid())) - earlier
    os.kill(child, signal.SIGKILL)
    with pytest.raises(RunFailed, match=r"killed \(SIGKILL\)"):
        run.result(PATIENCE_S)
    assert run.points == []


def children(pid: int) -> list[int]:
    return sorted(workers(pid))


def test_a_pause_does_not_use_the_budget_up(problem: tl.Problem) -> None:
    budget_s, pause_s = 4.0, 5.0
    run = tl.start_search(problem, "random", budget=tl.Budget(seconds=budget_s))
    until(lambda: run.simulations > 0, "the first simulation")
    run.pause()
    time.sleep(0.2)  # until the search has paused
    time.sleep(pause_s)
    assert run.running
    run.go_on()
    result = run.result(PATIENCE_S)
    assert result.status is tl.Status.BUDGET
    assert budget_s <= result.elapsed_s < budget_s + 0.8 * pause_s, "a pause is no searching"


def test_race(problem: tl.Problem) -> None:
    small = tl.Problem(analysed("attention"), {"s": 4})
    run = tl.start_race(
        small,
        ["mcts", "beam"],
        tl.Budget(seconds=None, evaluations=50),
        options={"beam": {"width": 4}},
    )
    result = run.result(PATIENCE_S)
    assert [r.method for r in result.rows] == ["mcts", "beam"]
    assert result.best is not None
    assert run.best is not None
    assert run.best.score == result.best.score
    assert run.points["beam"][-1].score == result.rows[1].score
    assert "2 of 2 methods done" in repr(run)


def test_a_race_says_how_far_each_method_is(problem: tl.Problem) -> None:
    point = ImprovementPoint(
        0.1, score=0.9, time_s=1e-3, peak_bytes=8.0, fits=True, simulation=1, actions=()
    )
    end = MethodOutcome("mcts", "BUDGET", "", (point,), 1, 0.1, 0.1, None, (), None)
    progress: list[tuple[list[str], str, bool]] = []

    def tell() -> None:
        shown = repr(run).split(", ")
        progress.append(
            ([row.status for row in run.rows], run.state, "0 of 2 methods done" in shown[-1])
        )

    events: list[SimpleNamespace] = []
    job = SimpleNamespace(
        state=JobState.RUNNING, title="a race", elapsed_s=0.0, since=lambda seen: events[seen:]
    )
    run = RunningRace(problem, job, ("mcts", "beam"), 0)
    tell()
    for event in (RaceStart("mcts"), RacePoint("mcts", point), RaceEnd(end), RaceStart("beam")):
        events.append(SimpleNamespace(data=event))
        tell()
    assert progress == [
        (["waits", "waits"], "preparing", True),
        (["prepares", "waits"], "preparing", True),
        (["runs", "waits"], "searching", True),
        (["BUDGET", "waits"], "searching", False),
        (["BUDGET", "prepares"], "searching", False),
    ]
    assert repr(run).endswith("1 of 2 methods done")


def test_what_cannot_be_started_is_said_at_once(problem: tl.Problem) -> None:
    with pytest.raises(InvalidInput, match="takes a Problem, not a Analysis"):
        tl.start_search(problem.analysis)
    with pytest.raises(InvalidInput, match="start_race takes a Problem, not a str"):
        tl.start_race("attention", ["mcts"])
    with pytest.raises(InvalidProblem, match="did you mean"):
        tl.start_search(problem, "mtcs")
    with pytest.raises(InvalidProblem, match="no option widht"):
        tl.start_search(problem, "beam", widht=3)
    with pytest.raises(InvalidProblem, match="2 times"):
        tl.start_race(problem, ["mcts", "mcts"])


CHILD = """
import os, sys, time
import toast_lab as tl
from tests.helpers import small_transformer
problem = tl.Problem(small_transformer(), {"data": 2, "model": 2})
run = tl.start_search(problem, "random", budget=tl.Budget(seconds=600))
while not run.simulations:
    time.sleep(0.02)
run.pause()
time.sleep(0.5)  # for it to stand still
me = str(os.getpid())
found = []
for p in filter(str.isdigit, os.listdir("/proc")):
    try:
        found += [p] if open(f"/proc/{p}/stat").read().split(") ")[1].split()[1] == me else []
    except OSError:
        pass  # it has ended meanwhile
print(*found, flush=True)
{end}
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
@pytest.mark.parametrize("end", ["sys.exit()", "time.sleep(600)"])
def test_no_process_outlives_ours(end: str, tmp_path: Path) -> None:
    """No child is left when our process exits or is killed.

    This holds even though the search is paused and reports nothing.
    """
    script = tmp_path / "child.py"
    script.write_text(CHILD.replace("{end}", end))
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
    ) as process:
        assert process.stdout is not None
        children = [int(word) for word in process.stdout.readline().split()]
        assert children
        if "sleep" in end:
            process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
    until(lambda: not any(alive(pid) for pid in children), f"the end of {children}")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
