"""A trace gives back what was recorded, in memory and from a file.

A file that is not a trace is refused.
"""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from toast_lab.errors import InvalidProblem, NotSaved
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
    trace.memory = {"visits": np.arange(5), "key": np.asarray([2**64 - 1], np.uint64)}
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
    assert one.memory.keys() == other.memory.keys()
    for name, array in one.memory.items():
        np.testing.assert_array_equal(array, other.memory[name])
        assert array.dtype == other.memory[name].dtype


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
    copy.memory["visits"][0] = 99
    assert_same(trace, made(100))


def test_a_saved_trace_is_read_back_whole(tmp_path):
    trace = made(100)
    trace.save(tmp_path / "trace.npz")
    assert_same(Trace.load(tmp_path / "trace.npz"), trace)
    assert os.listdir(tmp_path) == ["trace.npz"]


def test_an_empty_trace_is_read_back(tmp_path):
    Trace().save(tmp_path / "trace.npz")
    assert_same(Trace.load(tmp_path / "trace.npz"), Trace())


def test_a_trace_that_is_read_back_goes_on_growing(tmp_path):
    made().save(tmp_path / "trace.npz")
    trace = Trace.load(tmp_path / "trace.npz")
    assert trace.add_node(0, WORDS[1], 1, 99) == 4
    trace.add_simulation([trace.word("new"), trace.word(WORDS[1])], [0, 4], **row(0.125, 4))
    assert trace.simulations[-1].actions == ("new", WORDS[1])
    assert trace.nodes[4].action == WORDS[1]
    assert [s.index for s in trace.improvements()] == [1, 2, 4, 5]


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    made().save(tmp_path / "trace.npz")

    def full(handle, **arrays):
        handle.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(
        NotSaved, match=r"trace.npz: the trace could not be written: No space left on device"
    ):
        made(50).save(tmp_path / "trace.npz")
    assert os.listdir(tmp_path) == ["trace.npz"]
    assert_same(Trace.load(tmp_path / "trace.npz"), made())


# -- files that are not traces ---------------------------------------------------------------------


def changed(path: Path, **arrays):
    """Save a trace with some of its arrays replaced (None: left out)."""
    made().save(path)
    with np.load(path) as file:
        kept = {name: file[name] for name in file.files}
    header_data = json.loads(kept["header"].tobytes())
    del header_data["checksum"]  # so that the numbers themselves are checked
    kept["header"] = np.frombuffer(json.dumps(header_data).encode(), np.uint8)
    kept |= {name.replace("__", "."): array for name, array in arrays.items()}
    np.savez(path, **{name: array for name, array in kept.items() if array is not None})
    return path


def header(**more):
    text = {"format": 1, "about": {}, "vocabulary": list(WORDS), "best_actions": [], **more}
    return np.frombuffer(json.dumps(text).encode(), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"header": None}, "cannot read this search trace"),
        ({"header": np.frombuffer(b"no json", np.uint8)}, "cannot read this search trace"),
        ({"header": header(format=2)}, "not a search trace of format 1; search again"),
        ({"header": np.frombuffer(b"[]", np.uint8)}, "not a search trace of format 1"),
        ({"header": header(vocabulary=[])}, "an action is out of range"),
        ({"row__score": None}, "damaged search trace"),
        (
            {"row__action_end": np.asarray([0, 2, 1, 4])},
            "the actions of its simulations do not add up",
        ),
        ({"row__node_end": np.asarray([1, 3, 5, 7])}, "the nodes of its simulations do not add up"),
        ({"action__word": np.asarray([0, -1, 0, 2], np.int32)}, "an action is out of range"),
        (
            {"passed__node": np.asarray([0, 0, 1, 0, 2, 0, 1, 4], np.int32)},
            "a node is out of range",
        ),
        ({"row__best": np.asarray([0, 1, 1, 4])}, "a best simulation is out of range"),
        ({"node__word": np.asarray([-1, 0, 1, 3], np.int32)}, "a node's action is out of range"),
        ({"node__parent": np.asarray([-1, 0, 0, -1], np.int32)}, "a parent is out of range"),
    ],
)
def test_a_damaged_trace_is_refused(tmp_path, arrays, message):
    path = changed(tmp_path / "trace.npz", **arrays)
    with pytest.raises(InvalidProblem, match=message) as caught:
        Trace.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 cut off", b"hello"])
def test_a_file_that_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / "trace.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidProblem, match="cannot read this search trace"):
        Trace.load(path)


def test_a_trace_cut_short_is_refused(tmp_path):
    path = tmp_path / "trace.npz"
    made(100).save(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InvalidProblem, match="cannot read this search trace"):
        Trace.load(path)
