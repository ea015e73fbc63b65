"""A damaged trace is either refused or still one that a search can resume.

A refusal names the field, the numbers and a remedy.
"""

from __future__ import annotations

import collections
import io
import json
import re
import tracemalloc
import zipfile

import numpy as np
import pytest

import toast_lab as tl
from tests.search import mutations
from toast_lab import isolate
from toast_lab.errors import InvalidProblem
from toast_lab.search.trace import Trace

SHORT, FULL = 24, 500
GIB = 2**30


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Returns the trace file of a case, made on first use."""
    files: dict[str, bytes] = {}

    def trace_of(name: str) -> bytes:
        if name not in files:
            path = tmp_path_factory.mktemp("traces") / "trace.npz"
            mutations.searched(name).trace.save(path)
            files[name] = path.read_bytes()
        return files[name]

    return trace_of


def outcomes_of(name: str, data: bytes, n: int) -> collections.Counter[str]:
    """Count the outcomes of ``n`` mutations of a trace; fail with the messages of bad ones."""
    events: list[object] = []
    isolate.run_in_child(
        "tests.search.mutations:try_all",
        name,
        data,
        list(range(n)),
        time_limit_s=120 + n,
        on_event=events.append,
        memory_limit_bytes=8 * GIB,
        env={"JAX_PLATFORMS": "cpu"},
        activity=f"mutations of the trace of {name}",
    )
    outcomes = [e for e in events if isinstance(e, mutations.Outcome)]
    assert len(outcomes) == n
    failures = [o for o in outcomes if o.kind not in ("refused", "works")]
    assert not failures, "\n".join(f"{o.number}: {o.kind}: {o.message}" for o in failures[:10])
    return collections.Counter(o.kind for o in outcomes)


@pytest.mark.parametrize("name", mutations.CASES)
def test_a_damaged_trace_is_refused_or_gone_on_from(name, traces):
    outcomes = outcomes_of(name, traces(name), SHORT)
    assert outcomes["refused"] >= SHORT // 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", mutations.CASES)
def test_five_hundred_damaged_traces_are_refused_or_gone_on_from(name, traces):
    outcomes = outcomes_of(name, traces(name), FULL)
    print(f"{name}: {dict(outcomes)}")
    assert outcomes["refused"] >= FULL // 3


def saved(tmp_path, data: bytes) -> str:
    path = tmp_path / "trace.npz"
    path.write_bytes(data)
    return str(path)


def changed(data: bytes, **arrays: np.ndarray) -> bytes:
    """Return a trace with arrays replaced and a correct checksum; ``__`` stands for a dot."""
    with np.load(io.BytesIO(data)) as file:
        old_arrays = {name: file[name] for name in file.files}
    header = json.loads(old_arrays.pop("header").tobytes())
    del header["checksum"]
    return mutations.written(
        header, old_arrays | {k.replace("__", "."): a for k, a in arrays.items()}
    )


def test_a_plan_of_another_length_is_refused_and_does_not_end_the_process(traces, tmp_path):
    data = traces("mcts")
    with np.load(io.BytesIO(data)) as file:
        short = file["best.op_axis"][:7]
    path = saved(tmp_path, changed(data, best__op_axis=short))
    wanted = r"best.op_axis has shape \(7, 2\), but the program has 14 ops and the mesh 2 axes"
    with pytest.raises(InvalidProblem, match=wanted):
        isolate.run_in_child(
            "tests.search.mutations:go_on", "mcts", path, env={"JAX_PLATFORMS": "cpu"}
        )


def test_a_trace_in_memory_is_looked_at_as_one_in_a_file_is(traces, tmp_path):
    problem = mutations.make_problem(())
    trace = Trace.load(saved(tmp_path, traces("random")))
    assert tl.search(problem, resume=trace, budget=mutations.BUDGET).plan is not None
    trace.node.array["parent"][3] = 10**6
    with pytest.raises(
        InvalidProblem,
        match=r"this trace: .*\n.*node.parent: a parent is out of range, at 2: 1000000",
    ):
        tl.search(problem, resume=trace, budget=mutations.BUDGET)


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("beam", "row.score", "row.score of row 0 is 0, but its time and memory give 1"),
        ("beam", "row.time_s", "row.score of row 0 is 1, but its time and memory give 0"),
        ("mcts", "memory.tree.reward", ""),
        ("mcts", "memory.tree.seen", ""),
        ("mcts refining", "memory.tree.closed", "is open without any choice"),
        (
            "mcts refining",
            "memory.chain.best",
            "memory.chain.best of state 0 is 0 s and 0 bytes, the state has",
        ),
        (
            "mcts refining",
            "memory.refine",
            "memory.refine says chains=0, solving=0 and arrived=0, with 4 states",
        ),
    ],
)
def test_numbers_that_are_not_so_are_refused_and_those_that_only_steer_are_not(
    traces, tmp_path, name, column, message
):
    data = traces(name)
    with np.load(io.BytesIO(data)) as file:
        zero = np.zeros_like(file[column])
    path = saved(tmp_path, changed(data, **{column: zero}))
    if message:
        with pytest.raises(InvalidProblem, match=re.escape(message)) as caught:
            tl.search(mutations.make_problem(()), resume=path, budget=mutations.BUDGET)
        assert path in str(caught.value)
    else:
        result = tl.search(mutations.make_problem(()), resume=path, budget=mutations.BUDGET)
        assert result.trace.simulations[-1].best_score == pytest.approx(result.refined.cost.score)


def test_prices_of_another_version_are_refused_with_both(traces, tmp_path, monkeypatch):
    problem = mutations.make_problem(())
    path = saved(tmp_path, traces("beam"))
    totals = type(problem.pricer()).totals
    slower = lambda self, *arrays: (t := totals(self, *arrays))._replace(time_s=2 * t.time_s)  # noqa: E731
    _ = problem.baseline
    monkeypatch.setattr(type(problem.pricer()), "totals", slower)
    with pytest.raises(
        InvalidProblem,
        match=r"row.time_s of the best simulation, .* is .*, but its plan has .* here",
    ):
        tl.search(problem, resume=path, budget=mutations.BUDGET)


def test_a_small_file_that_unpacks_to_much_is_refused_before_it_is_unpacked(traces, tmp_path):
    path = saved(tmp_path, mutations.bomb(traces("random"), 512 * 2**20))
    tracemalloc.start()
    try:
        with pytest.raises(
            InvalidProblem,
            match="it unpacks to 512 MiB, but at most 64 MiB are read from a file of",
        ):
            Trace.load(path)
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()


def test_an_array_that_says_it_is_longer_than_it_is_takes_no_memory(traces, tmp_path):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file, zipfile.ZipFile(io.BytesIO(traces("random"))) as old:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == "row.score.npy":
                start = io.BytesIO()
                shape = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
                np.lib.format.write_array_header_1_0(start, shape)
                data = start.getvalue() + data[-80:]
            file.writestr(info.filename, data)
    path = saved(tmp_path, target.getvalue())
    wanted = (
        r"row.score says that it has shape \(1000000000000,\) of float64, "
        r"8000000000000 bytes, but holds 80"
    )
    with pytest.raises(InvalidProblem, match=wanted):
        Trace.load(path)


def test_a_changed_number_is_told_by_the_checksum_alone(traces, tmp_path):
    """Any number of visits is plausible for a node; only the checksum shows that it was changed."""
    data = traces("random")
    with np.load(io.BytesIO(data)) as file:
        kept = {name: file[name] for name in file.files}
    kept["node.visits"] = kept["node.visits"] + 1
    target = io.BytesIO()
    np.savez_compressed(target, **kept)
    with pytest.raises(
        InvalidProblem,
        match=r"it says checksum [0-9a-f]{32}, but its contents have checksum [0-9a-f]{32}",
    ):
        Trace.load(saved(tmp_path, target.getvalue()))
    Trace.load(saved(tmp_path, changed(data, node__visits=kept["node.visits"])))


def test_options_of_a_trace_are_refused_where_they_are_none(traces, tmp_path):
    with np.load(io.BytesIO(traces("beam"))) as file:
        kept = {name: file[name] for name in file.files}
    header = json.loads(kept.pop("header").tobytes())
    header["about"]["options"] = {"depth": "deep", "depht": 1, "patience": 1.5}
    del header["checksum"]
    path = saved(tmp_path, mutations.written(header, kept))
    with pytest.raises(InvalidProblem) as caught:
        tl.search(mutations.make_problem(()), resume=path, budget=mutations.BUDGET)
    for text in (
        path,
        "beam has no option depht",
        "option depth must be a whole number, got 'deep'",
        "patience",
    ):
        assert text in str(caught.value)
