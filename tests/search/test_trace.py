"""A trace gives back what was recorded."""

import numpy as np
import pytest

from toast_lab.search.trace import Trace
from toast_lab.search.trace_columns import Columns
from toast_lab.sharding.sharding import Sharding

WORDS = ("batch->data", "heads->model", "S@1->data")


def row(score, best, *, fits=True, round=1):
    return {
        "round": round,
        "elapsed_s": 0.5 * score,
        "score": score,
        "time_s": 2 * score,
        "peak_bytes": 100 * score,
        "fits": fits,
        "best": best,
    }


def made(more=0):
    """A trace of four trajectories over three nodes below the root, and ``more`` without a gain."""
    trace = Trace()
    trace.add_node(-1, "", 0, 0)
    for i, word in enumerate(WORDS):
        trace.add_node(0 if i < 2 else 1, word, 1 if i < 2 else 2, 10 + i)
    trace.node.array["score"][1], trace.node.array["visits"][1], trace.node.array["value"][1] = (
        0.75,
        2,
        0.25,
    )
    trace.add_simulation([], [0], **row(1.0, 0))
    trace.add_simulation([trace.word(WORDS[0])], [0, 1], **row(0.75, 1))
    trace.add_simulation([trace.word(WORDS[1])], [0, 2], **row(0.25, 1, fits=False, round=2))
    trace.add_simulation(
        [trace.word(w) for w in (WORDS[0], WORDS[2])], [0, 1, 3], **row(0.5, 3, round=2)
    )
    for _ in range(more):
        trace.add_simulation([trace.word(WORDS[1])], [0, 2], **row(2.0, 3, round=3))
    trace.about = {"method": "mcts", "seed": 3, "options": {"depth": 4}, "memory_limit_bytes": 16e9}
    trace.best_sharding = Sharding(
        np.asarray([[0, -1], [7, 2]], np.int32), np.asarray([[-1, 1]], np.int8)
    )
    trace.best_actions = (WORDS[0], WORDS[2])
    trace.told = [0.25, None]
    return trace


def assert_same(one, other):
    for part in ("row", "action", "passed", "node"):
        left, right = getattr(one, part), getattr(other, part)
        assert left.n == right.n
        for name in left.array:
            np.testing.assert_array_equal(left[name], right[name])
            assert left[name].dtype == right[name].dtype
    assert list(one.simulations) == list(other.simulations)
    assert list(one.nodes) == list(other.nodes)
    assert (one.vocabulary, one.about, one.best_actions) == (
        other.vocabulary,
        other.about,
        other.best_actions,
    )
    np.testing.assert_equal(one.best_sharding, other.best_sharding)
    assert one.told == other.told


def test_simulations_and_nodes_say_what_was_written():
    trace = made()
    first, _, third, last = trace.simulations
    assert (first.index, first.actions, first.nodes, first.improved) == (1, (), (0,), True)
    assert (third.score, third.fits, third.improved) == (0.25, False, False)
    assert (third.best_score, third.best_time_s, third.best_peak_bytes) == (0.75, 1.5, 75.0)
    assert (last.actions, last.nodes, last.round) == ((WORDS[0], WORDS[2]), (0, 1, 3), 2)
    assert (last.elapsed_s, last.time_s, last.peak_bytes) == (0.25, 1.0, 50.0)
    root, node, unpriced = trace.nodes[:3]
    assert (root.parent, root.action, root.depth) == (-1, "", 0)
    assert (node.parent, node.action, node.key, node.score, node.visits, node.value) == (
        0,
        WORDS[0],
        10,
        0.75,
        2,
        0.25,
    )
    assert unpriced.score is None
    assert unpriced.best_score == np.inf


def test_improvements_are_those_that_became_the_best():
    """The simulation with the lowest score is no improvement, since its plan does not fit."""
    assert [s.index for s in made(5).improvements()] == [1, 2, 4]


def test_simulations_since_a_number_stay_as_they_are_while_the_trace_grows():
    trace = made()
    recent = trace.since(2)
    trace.add_simulation([], [0], **row(3.0, 3))
    assert [s.index for s in recent] == [3, 4]
    assert [s.index for s in trace.since(2)] == [3, 4, 5]
    assert len(trace.since(5)) == 0


def test_sequences_of_simulations_and_nodes_index_like_lists():
    trace = made(3)
    for given in (trace.simulations, trace.nodes, trace.since(2)):
        every = list(given)
        assert len(given) == len(every)
        assert given[-1] == every[-1]
        assert given[1:] == every[1:]
        assert given[::-2] == every[::-2]
        with pytest.raises(IndexError):
            given[len(every)]


def test_columns_keep_their_rows_when_they_grow():
    columns = Columns(a="i8", b="f4")
    for i in range(200):
        assert columns.append(a=i, b=i / 2) == i
    columns.extend({"a": np.arange(200, 1000), "b": np.arange(200, 1000) / 2})
    assert columns["a"].tolist() == list(range(1000))
    assert columns["b"].tolist() == [i / 2 for i in range(1000)]
    assert columns["b"].dtype == np.float32


def test_a_word_has_one_number():
    trace = Trace(["x", "y"])
    assert [trace.word(w) for w in ("y", "z", "x", "z")] == [1, 2, 0, 2]
    assert trace.vocabulary == ["x", "y", "z"]


def test_a_copy_is_independent():
    trace = made(100)
    copy = trace.copy()
    assert_same(copy, trace)
    copy.add_simulation([copy.word("new")], [0], **row(9.0, 3))
    copy.node.array["visits"][1] += 1
    copy.about["seed"] = 9
    copy.told.append(1.5)
    assert_same(trace, made(100))
