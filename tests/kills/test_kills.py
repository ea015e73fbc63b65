"""A command that loses a process to a kill still ends, and says what happened.

Any process of a sweep, race, comparison or search may be killed, at any time.

The moments are drawn from a seed (``TOAST_LAB_KILL_SEED``, 0 by default) over the time that the
same command takes when nothing is killed. ``pytest tests/kills -s`` prints what was killed;
``-m slow`` runs fifty such trials.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import toast_lab as tl
from tests.helpers import analysed
from tests.kills import harness
from tests.kills.harness import Trial, told, trial
from tests.processes import descendants, workers
from toast_lab.errors import RunFailed
from toast_lab.prepare import prepare

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
SEED = int(os.environ.get("TOAST_LAB_KILL_SEED", "0"))
SEEDS = 3
MOST = 0.8  #: share of a command's time; at its very end nothing is left to kill
SWEEP = [
    "sweep",
    "--models",
    "mlp",
    "--meshes",
    "a=2,b=4",
    "--methods",
    "random",
    "--seeds",
    f"0-{SEEDS - 1}",
    "--seconds",
    "0.3",
    "--json",
]
RACE = [
    "race",
    "mlp",
    "--mesh",
    "a=2,b=4",
    "--methods",
    "random,beam",
    "--seconds",
    "0.5",
    "--json",
]
FINE = {"BUDGET", "CONVERGED", "COMPLETE"}

FOLDER = "{folder}"  #: stands for a new temporary folder


def rng(kind: str, number: int) -> random.Random:
    return random.Random(f"{SEED} {kind} {number}")


@functools.cache
def span_s(*argv: str) -> float:
    """How many seconds a command takes from its first child on if nothing is killed."""
    prepare("price", "random", "beam")  # otherwise only the first command would compile
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = trial([word.replace(FOLDER, folder) for word in argv], None)
    assert undisturbed.status == 0, undisturbed.err
    return undisturbed.seconds


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rows.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def sweep_once(tmp_path: Path, number: int) -> str:
    """Kill one process of a sweep with one or two workers."""
    folder = tmp_path / f"sweep {number}"
    argv = [*SWEEP, "--workers", str(1 + number % 2), "--out", str(folder)]
    outcome = trial(argv, rng("sweep", number), MOST * span_s(*SWEEP, "--out", FOLDER))
    rows = lines(folder)
    note = str(dict(Counter(r["status"] for r in rows)))
    assert outcome.status == 0, told("sweep", number, outcome) + outcome.err
    assert len(rows) == SEEDS, "each search has a row, and none has two"
    assert sorted(r["seed"] for r in rows) == list(range(SEEDS))
    for row in rows:
        assert row["status"] in FINE or (
            row["status"] == "CRASHED" and "process" in row["message"]
        ), row
        assert row["status"] == "CRASHED" or row["score"] <= 1.0
    assert sum(r["status"] == "CRASHED" for r in rows) == 0, "one death is made good by another try"
    return told("sweep", number, outcome, note)


def killed_sweep_once(tmp_path: Path, number: int) -> str:
    """Kill a sweep itself, and then run it again."""
    folder = tmp_path / f"killed {number}"
    argv = [*SWEEP, "--out", str(folder)]
    draw = rng("killed sweep", number)
    # Rows come late, since workers load the model first: every other trial draws its moment after
    # the first rows.
    first_rows = draw.randrange(1, SEEDS) if number % 2 else 0
    wait_s = draw.uniform(0.0, 1.0 if first_rows else span_s(*SWEEP, "--out", FOLDER))
    process = harness.start(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and (
        not descendants(process.pid) or len(lines_that_are_whole(folder)) < first_rows
    ):
        time.sleep(harness.LOOK_S)
    end = time.monotonic() + wait_s
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    before_kill = lines_that_are_whole(folder)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = lines_that_are_whole(folder)
    assert len(before) >= len(before_kill)
    second = trial(argv, None)
    assert second.status == 0, second.err
    rows = lines(folder)
    assert rows[: len(before)] == before, "what was there stays"
    assert sorted(r["seed"] for r in rows) == list(range(SEEDS)), "and nothing is done twice"
    assert json.loads(second.out)["made"] == SEEDS - len(before)
    after = f"{wait_s:.2f} s after " + (f"row {first_rows}" if first_rows else "its first child")
    return f"killed sweep {number}: the sweep itself {after}, with {len(before)} of {SEEDS} rows"


def lines_that_are_whole(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rows.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def race_once(tmp_path: Path, number: int) -> str:
    outcome = trial(RACE, rng("race", number), MOST * span_s(*RACE))
    assert outcome.status == 0, told("race", number, outcome) + outcome.err
    rows = json.loads(outcome.out)["race"]["rows"]
    assert [r["method"] for r in rows] == ["random", "beam"]
    crashed = [r for r in rows if r["status"] == "CRASHED"]
    assert all(
        r["status"] in FINE or "its process was killed (SIGKILL)" in r["message"] for r in rows
    ), rows
    assert len(crashed) <= 1, "a method that was killed costs its own row"
    for row in rows:
        assert row["score"] is not None or row["status"] == "CRASHED"
    return told("race", number, outcome, str([r["status"] for r in rows]))


def compare_once(tmp_path: Path, number: int) -> str:
    argv = compare_command(tmp_path)
    outcome = trial(argv, rng("compare", number), MOST * span_s(*argv))
    line = told("compare", number, outcome)
    assert outcome.status in (0, 1), line + outcome.err
    # The child that computes the gradients of all plans died before any plan was measured
    if not outcome.out:
        assert outcome.status == 1, line
        assert "killed (SIGKILL)" in outcome.err, outcome.err
        assert "Traceback" not in outcome.err
        return f"{line}: {outcome.err.strip()[:120]}"
    done = json.loads(outcome.out)["comparison"]
    rows = [*done["rows"], *([done["reference"]] if done["reference"] else [])]
    assert len(rows) == 3
    for row in rows:
        assert row["status"] == "ok" or "killed (SIGKILL)" in row["message"], row
    # A server of which plans were forked takes those with it that still run
    most = 1 if outcome.victim is None else max(1, outcome.victim.children)
    assert sum(row["status"] != "ok" for row in rows) <= most, (
        f"a plan that was killed costs its own row: {line}"
    )
    return f"{line} {[row['status'] for row in rows]}"


def compare_command(tmp_path: Path) -> list[str]:
    problem = tl.Problem(analysed("mlp"), {"a": 2})
    paths = []
    for name, actions in (("rows", ["B->a"]), ("columns", ["U->a"])):
        path = tmp_path / f"{name}.json"
        if not path.exists():
            tl.Plan.from_actions(problem, actions).save(path)
        paths.append(str(path))
    return [
        "compare",
        "mlp",
        *paths,
        "--devices",
        "cpu:2",
        "--repeats",
        "2",
        "--store",
        "none",
        "--json",
    ]


def search_once(tmp_path: Path, number: int) -> str:
    """Kill the process of a background search."""
    problem = tl.Problem(analysed("mlp"), {"a": 2, "b": 4})
    earlier = workers(os.getpid())
    method = ("mcts", "random")[number % 2]
    run = tl.start_search(problem, method, seed=number, budget=tl.Budget(seconds=3.0))
    draw, began = rng("search", number), time.monotonic()
    while not (pids := sorted(workers(os.getpid()) - earlier)):
        assert time.monotonic() - began < harness.PATIENCE_S
        time.sleep(0.02)
    # Half of the trials kill after the first report, the interesting case; the others at any time
    if number % 4 < 2:
        while run.best is None and run.running:
            time.sleep(0.02)
    time.sleep(draw.uniform(0.0, 2.5))
    known = run.best
    with contextlib.suppress(ProcessLookupError):  # it has already ended
        os.kill(pids[0], signal.SIGKILL)
    at_s = time.monotonic() - began
    assert run.job.finished.wait(harness.PATIENCE_S), "it ends"
    if not run.points and isinstance(run.job.error, RunFailed):
        assert known is None, "what had been reported is there"
        with pytest.raises(RunFailed, match=r"killed \(SIGKILL\)"):
            run.result()
        return f"search {number}: killed {method} at {at_s:.2f} s, before its first report"
    result = run.result()
    if result.status is not tl.Status.CRASHED:
        return f"search {number}: {method} had ended with {result.status.name} before {at_s:.2f} s"
    assert "killed (SIGKILL)" in result.message
    assert known is None or result.cost.score <= known.score * (1 + 1e-9), (
        "at least the best that was known"
    )
    assert result.cost.score == pytest.approx(run.points[-1].score)
    result.plan.check()
    assert result.trace.simulations
    return (
        f"search {number}: killed {method} at {at_s:.2f} s, C(s) {result.cost.score:.4f} of "
        f"{result.evaluations}"
    )


KINDS = {
    "sweep": sweep_once,
    "killed sweep": killed_sweep_once,
    "race": race_once,
    "compare": compare_once,
    "search": search_once,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all trials, so that the time of an undisturbed command is measured once."""
    return tmp_path_factory.mktemp("kills")


# Sweeps have two numbers: they decide how many workers there are, and whether there are rows yet.
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "number"),
    [(kind, n) for kind in KINDS for n in ((0, 1) if "sweep" in kind else (0,))],
)
def test_a_kill_costs_what_was_killed_and_nothing_else(
    kind: str, number: int, folder: Path
) -> None:
    print("\n" + KINDS[kind](folder, number))


# The number of a search also decides its method, and whether it may be killed while preparing.
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["race", "compare", "search"])
def test_another_kill(kind: str, folder: Path) -> None:
    print("\n" + KINDS[kind](folder, 1))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10, 20))
@pytest.mark.parametrize("kind", KINDS)
def test_ten_kills_of_each_kind(kind: str, number: int, folder: Path) -> None:
    print("\n" + KINDS[kind](folder, number))


def test_the_moments_follow_from_the_seed() -> None:
    assert rng("sweep", 1).random() == rng("sweep", 1).random() != rng("sweep", 2).random()
    assert isinstance(Trial(None, 0, "", "", 0.0), tuple)
