"""A saved search is replayed exactly and goes on; one that cannot be replayed is refused.

A refusal names the field, the numbers and a remedy, and the best plan stays in the file.
"""

import dataclasses
import json
import math
import random
import time

import numpy as np
import pytest

import toast_lab as tl
from tests.helpers import analysed
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem, NotSaved
from toast_lab.search import resumable, saved_search
from toast_lab.search.contract import Budget, Status, search
from toast_lab.search.saved_search import SavedSearch
from toast_lab.sharding import plan_file, portable

NOTHING_MORE = Budget(seconds=0)


@pytest.fixture(scope="module")
def problem():
    return Problem(analysed("itx"), {"data": 4, "model": 2})


@pytest.fixture(scope="module")
def timed(problem):
    """A search of all that ``mcts`` does, whose way depends on the clock."""
    seen = []

    def is_enough():
        return len([s for s in seen if s.improved and "refined in" in s.actions[-1]]) > 2

    return search(
        problem,
        seed=3,
        budget=Budget(seconds=60),
        on_progress=lambda simulations: seen.extend(s for s in simulations if s.actions),
        cancel=is_enough,
        trajectories=64,
        patience=1,
    )


def rows(result):
    return [s._replace(elapsed_s=0.0) for s in result.trace.simulations]


def changed(result, path, **facts):
    """The file of a result, with other facts in ``search`` and a checksum that fits."""
    data = json.loads(result.saved.text())
    data["search"] |= facts
    path.write_text(portable.file_text({k: v for k, v in data.items() if k != portable.CHECKSUM}))
    return path


# -- replayed --------------------------------------------------------------------------------------


def test_a_search_by_the_clock_is_replayed_step_by_step(problem, timed, tmp_path):
    assert timed.status is Status.CANCELLED
    assert any(s.actions and s.actions[-1].startswith("refined in ") for s in rows(timed))
    assert len(timed.trace.told) > 10
    timed.save(tmp_path / "search.json")
    began_s = time.monotonic()
    again = search(problem, resume=tmp_path / "search.json", budget=NOTHING_MORE)
    took_s = time.monotonic() - began_s
    assert rows(again) == rows(timed)
    assert again.trace.told == timed.trace.told
    assert again.evaluations == timed.evaluations
    assert again.refined.plan.sharding.same_as(timed.refined.plan.sharding)
    assert took_s < 3 * timed.elapsed_s  # other processes may share the cores
    # Improvements keep their times, within those of one report to the next
    ours, theirs = (np.array([s.elapsed_s for s in r.trace.improvements()]) for r in (again, timed))
    assert np.abs(ours - theirs).max() < 1.0
    assert again.elapsed_s == pytest.approx(timed.elapsed_s, abs=0.5)


def test_what_goes_on_can_be_saved_and_goes_on_again(problem, timed):
    longer = search(problem, resume=timed, budget=Budget(seconds=1))
    assert longer.elapsed_s > timed.elapsed_s
    assert longer.refined.cost.score <= timed.refined.cost.score
    assert rows(longer)[: len(rows(timed))] == rows(timed)
    assert rows(search(problem, resume=longer, budget=NOTHING_MORE)) == rows(longer)


def test_integer_programs_are_not_solved_again(problem, monkeypatch):
    first = search(problem, "alpa", budget=Budget(seconds=20))
    monkeypatch.setattr("toast_lab.search.integer_program.integer_program.solve", None)
    monkeypatch.setattr("toast_lab.search.integer_program.solver.run_in_child", None)
    assert rows(search(problem, resume=first, budget=NOTHING_MORE)) == rows(first)


def test_a_replay_that_is_stopped_leaves_the_search_as_it_was(problem, timed):
    seen = []
    stopped = search(problem, resume=timed, on_progress=seen.extend, cancel=lambda: len(seen) > 9)
    assert stopped.status is Status.CANCELLED
    assert len(stopped.trace.simulations) < len(timed.trace.simulations)
    assert stopped.refined.plan.sharding.same_as(timed.refined.plan.sharding)
    assert "stopped while its earlier part was replayed" in stopped.message
    assert stopped.saved.facts == timed.saved.facts
    assert rows(search(problem, resume=stopped, budget=NOTHING_MORE)) == rows(timed)


def test_the_file_is_one_of_the_best_plan(problem, timed, tmp_path):
    timed.save(tmp_path / "search.json")
    plan = tl.Plan.load(tmp_path / "search.json", problem)
    assert plan.sharding.same_as(timed.refined.plan.sharding)


def test_threads_may_differ(problem, timed):
    assert rows(search(problem, resume=timed, budget=NOTHING_MORE, threads=1)) == rows(timed)


def test_a_search_is_saved_whole_or_not_at_all(timed, tmp_path):
    (tmp_path / "folder").write_text("")
    with pytest.raises(NotSaved, match="the search could not be written"):
        timed.save(tmp_path / "folder" / "search.json")


# -- not replayed ----------------------------------------------------------------------------------


def test_another_version_is_refused_and_the_plan_stays(problem, timed, tmp_path, monkeypatch):
    timed.save(tmp_path / "search.json")
    monkeypatch.setattr(resumable, "__version__", "99.0")
    with pytest.raises(InvalidProblem, match=r"made it, and 99\.0 may search otherwise\. Nothing"):
        search(problem, resume=tmp_path / "search.json")


def test_other_prices_are_refused_with_both(problem, timed):
    bytes_per_s = 0.9 * problem.machine.memory_bytes_per_s
    machine = dataclasses.replace(problem.machine, memory_bytes_per_s=bytes_per_s)
    slower = Problem(problem.analysis, problem.mesh, machine)
    with pytest.raises(InvalidProblem, match=r"(?s)its replay went another way.*Nothing is lost"):
        search(slower, resume=timed, budget=NOTHING_MORE)


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"best_time_s": 1.0}, r"found best_time_s .*, not 1\."),
        ({"best_peak_bytes": 1.0}, r"found best_peak_bytes .*, not 1\."),
        ({"evaluations": 0}, "distinct shardings, not 0"),
        ({"evaluations": 10**9}, "a question that was not asked|simulations"),
        ({"simulations": 33}, "simulations its replay went another way"),
        ({"improvements": [0], "improved_s": [0.0]}, "improvements, not those 1 of before"),
        ({"told": ["x"] * 1000}, "an answer that cannot be one, 'x'"),
        ({"told": []}, "a question that was not asked"),
        ({"told": [math.nan]}, "an answer that cannot be one, nan"),
        ({"told": [{"a": []}] * 9}, "an answer that cannot be one, {'a'"),
        ({"seed": 4}, "its replay went another way"),
    ],
)
def test_a_replay_that_goes_another_way_says_where(problem, timed, tmp_path, facts, found):
    path = changed(timed, tmp_path / "search.json", **facts)
    with pytest.raises(InvalidProblem, match=found) as caught:
        search(problem, resume=path, budget=NOTHING_MORE)
    assert "--plan and tl.Plan.load read as a plan" in str(caught.value)


def test_an_end_before_that_of_the_search_is_another_way():
    problem = Problem(analysed("mlp"), {"data": 2})
    first = search(problem, "random", budget=Budget(None, 5), patience=50)
    first.trace.about["simulations"] = first.trace.about["evaluations"] = 10**6
    with pytest.raises(InvalidProblem, match=r"found its end \(CONVERGED\)"):
        search(problem, resume=first, budget=NOTHING_MORE)


# -- damaged files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"format": 2}, "no saved search of format 1; give a file"),
        ({"elapsed_s": -1}, "search.elapsed_s must not be negative|search.elapsed_s"),
        ({"simulations": 1.5}, "search.simulations must be a whole number"),
        ({"seed": -1}, "search.seed"),
        ({"method": None}, "search.method must be a text, got None"),
        ({"options": []}, "search.options must be an object"),
        ({"paper_mode": 1}, "search.paper_mode must be true or false"),
        ({"pins": [3]}, "search.pins must be a text, got 3"),
        ({"improvements": 3}, "search.improvements must be a list"),
        ({"improvements": [1, 2]}, r"search has 2 improvements, but the times of \d+"),
        ({"told": {}}, "search.told must be a list"),
    ],
)
def test_a_damaged_file_is_refused(timed, tmp_path, facts, message):
    path = changed(timed, tmp_path / "search.json", **facts)
    with pytest.raises(InvalidProblem, match=message) as caught:
        SavedSearch.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"\xff\x00", b"[" * 100_000, b"[]", b"{}", b"3"])
def test_a_file_that_is_no_saved_search_is_refused(tmp_path, content):
    path = tmp_path / "search.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidProblem, match=r"search\.json: (cannot read this|no) saved search"):
        SavedSearch.load(path)


def test_a_plan_without_its_search_is_refused(timed, tmp_path):
    plan_file.save(timed.plan, tmp_path / "plan.json")
    with pytest.raises(InvalidProblem, match=r"no saved search of format 1; give a file"):
        SavedSearch.load(tmp_path / "plan.json")


def test_a_large_file_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_search, "MOST_BYTES", 1000)
    (tmp_path / "search.json").write_bytes(b" " * 1001)
    with pytest.raises(InvalidProblem, match="has at most 1000 B, but this file has more"):
        SavedSearch.load(tmp_path / "search.json")


def test_a_file_with_any_byte_changed_is_refused_or_read_as_it_was(timed):
    content, draws = timed.saved.text().encode(), random.Random(0)
    for _ in range(200):
        changed_content = bytearray(content)
        changed_content[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
        try:
            read = SavedSearch.from_bytes(bytes(changed_content), "file")
        except InvalidProblem:
            continue
        assert read.facts == timed.saved.facts  # white space
        assert (read.told, read.plan) == (timed.saved.told, timed.saved.plan)
