"""A command whose processes are killed ends, and says what happened.

Any process of a sweep, race, comparison or search is killed, at any time.

The moments are drawn from a seed (``TOAST_LAB_KILL_SEED``, 0 by default) over the time that the
same command takes when nothing is killed.  ``pytest tests/kills -s`` prints what was killed;
``-m slow`` does fifty.
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
MOST = 0.8  #: of the time that a command takes: at its very end nothing is left to be killed
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

FOLDER = "{folder}"  #: stands for one that is not given again


def rng(kind: str, number: int) -> random.Random:
    return random.Random(f"{SEED} {kind} {number}")


@functools.cache
def span_s(*argv: str) -> float:
    """How long a command takes that loses nothing, from its first child on."""
    prepare("price", "random", "beam")  # else the first command compiles, and the next ones do not
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = trial([word.replace(FOLDER, folder) for word in argv], None)
    assert undisturbed.status == 0, undisturbed.err
    return undisturbed.seconds


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rows.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def sweep_once(tmp_path: Path, number: int) -> str:
    """A sweep of two workers that loses one of its processes."""
    folder = tmp_path / f"sweep {number}"
    argv = [*SWEEP, "--workers", str(1 + number % 2), "--out", str(folder)]
    found = trial(argv, rng("sweep", number), MOST * span_s(*SWEEP, "--out", FOLDER))
    rows = lines(folder)
    note = str(dict(Counter(r["status"] for r in rows)))
    assert found.status == 0, told("sweep", number, found) + found.err
    assert len(rows) == SEEDS, "each search has a row, and none has two"
    assert sorted(r["seed"] for r in rows) == list(range(SEEDS))
    for row in rows:
        assert row["status"] in FINE or (
            row["status"] == "CRASHED" and "process" in row["message"]
        ), row
        assert row["status"] == "CRASHED" or row["score"] <= 1.0
    assert sum(r["status"] == "CRASHED" for r in rows) == 0, "one death is made good by another try"
    return told("sweep", number, found, note)


def killed_sweep_once(tmp_path: Path, number: int) -> str:
    """A sweep that is killed itself, and then run again."""
    folder = tmp_path / f"killed {number}"
    argv = [*SWEEP, "--out", str(folder)]
    draw = rng("killed sweep", number)
    # Rows come late, since workers load the model first: every other time the moment is drawn among
    # them.
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
    again = trial(argv, None)
    assert again.status == 0, again.err
    rows = lines(folder)
    assert rows[: len(before)] == before, "what was there stays"
    assert sorted(r["seed"] for r in rows) == list(range(SEEDS)), "and nothing is done twice"
    assert json.loads(again.out)["made"] == SEEDS - len(before)
    after = f"{wait_s:.2f} s after " + (f"row {first_rows}" if first_rows else "its first child")
    return f"killed sweep {number}: the sweep itself {after}, with {len(before)} of {SEEDS} rows"


def lines_that_are_whole(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rows.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def race_once(tmp_path: Path, number: int) -> str:
    found = trial(RACE, rng("race", number), MOST * span_s(*RACE))
    assert found.status == 0, told("race", number, found) + found.err
    rows = json.loads(found.out)["race"]["rows"]
    assert [r["method"] for r in rows] == ["random", "beam"]
    crashed = [r for r in rows if r["status"] == "CRASHED"]
    assert all(
        r["status"] in FINE or "its process was killed (SIGKILL)" in r["message"] for r in rows
    ), rows
    assert len(crashed) <= 1, "a method that was killed costs its own row"
    for row in rows:
        assert row["score"] is not None or row["status"] == "CRASHED"
    return told("race", number, found, str([r["status"] for r in rows]))


def compare_once(tmp_path: Path, number: int) -> str:
    argv = compare_command(tmp_path)
    found = trial(argv, rng("compare", number), MOST * span_s(*argv))
    said = told("compare", number, found)
    assert found.status in (0, 1), said + found.err
    # The child that looks at the gradients of all plans died before any was measured
    if not found.out:
        assert found.status == 1, said
        assert "killed (SIGKILL)" in found.err, found.err
        assert "Traceback" not in found.err
        return f"{said}: {found.err.strip()[:120]}"
    done = json.loads(found.out)["comparison"]
    rows = [*done["rows"], *([done["reference"]] if done["reference"] else [])]
    assert len(rows) == 3
    for row in rows:
        assert row["status"] == "ok" or "killed (SIGKILL)" in row["message"], row
    assert sum(row["status"] != "ok" for row in rows) <= 1, (
        "a plan that was killed costs its own row"
    )
    return f"{said} {[row['status'] for row in rows]}"


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
    """A search in the background whose process is killed."""
    problem = tl.Problem(analysed("mlp"), {"a": 2, "b": 4})
    mine = workers(os.getpid())
    method = ("mcts", "random")[number % 2]
    run = tl.start_search(problem, method, seed=number, budget=tl.Budget(seconds=3.0))
    draw, began = rng("search", number), time.monotonic()
    while not (pids := sorted(workers(os.getpid()) - mine)):
        assert time.monotonic() - began < harness.PATIENCE_S
        time.sleep(0.02)
    # What had been told is the interesting part; the others die while they prepare
    if number % 4 < 2:
        while run.best is None and run.running:
            time.sleep(0.02)
    time.sleep(draw.uniform(0.0, 2.5))
    known = run.best
    with contextlib.suppress(ProcessLookupError):  # it has ended
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
    """One for all trials, so that the time of an undisturbed command is taken once."""
    return tmp_path_factory.mktemp("kills")


# Of sweeps both: the number says how many workers there are, and whether there are rows yet.
@pytest.mark.parametrize(
    ("kind", "number"),
    [(kind, n) for kind in KINDS for n in ((0, 1) if "sweep" in kind else (0,))],
)
def test_a_kill_costs_what_was_killed_and_nothing_else(
    kind: str, number: int, folder: Path
) -> None:
    print("\n" + KINDS[kind](folder, number))


# The number says of a search, too, which method it is, and whether it is killed while it prepares.
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
