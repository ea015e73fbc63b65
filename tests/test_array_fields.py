"""Arrays of the package's records have the shapes and dtypes that their comments say."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

import toast_lab as tl
from tests import documented_arrays
from tests.documented_arrays import Field, Record, Recorder, faults, records, writeable
from tests.helpers import SMALL
from toast_lab.conflicts.coverage import coverage
from toast_lab.ir.program import Program
from toast_lab.lowering.listing import listing

SMALL_GNS = {"steps": 2, "nodes": 16, "edges": 32, "latent": 16, "hidden": 16, "features": 8}
MODELS = {
    "mlp": ("mlp", {}),
    "attention": ("attention", {}),
    "training step": ("transformer", {**SMALL, "layers": 2}),
    "scanned training step": ("transformer", {**SMALL, "layers": 2, "scan": True}),
    "graph network": ("gns", SMALL_GNS),
}
MESH = {"data": 2, "model": 2}
METHODS = ("mcts", "alpa", "automap", "exhaustive", "beam", "random")


def walk_the_method(name: str, sizes: dict[str, Any]) -> None:
    """Trace, analyse, pin, price, search and lower a model, so that every record is made."""
    model = tl.load(name, **sizes)
    problem = tl.Problem(tl.analyse(model), MESH, "tpu-v3")
    str(problem.divisibility())
    str(coverage(problem.analysis))
    budget = tl.Budget(seconds=None, evaluations=120)
    for method in METHODS:
        result = tl.search(problem, method, seed=0, budget=budget)
    path, spec = next(iter(result.plan.argument_specs().items()))
    pinned = problem.pin(path, (None,) * len(spec))
    tl.search(pinned, seed=0, budget=budget)
    tl.price(problem, result.plan)
    str(listing(problem, result.plan))


@pytest.fixture(scope="module", params=MODELS)
def recorded(request: pytest.FixtureRequest) -> Recorder:
    with Recorder() as recorder:
        walk_the_method(*MODELS[request.param])
    return recorder


def programs(recorder: Recorder) -> list[Program]:
    return [value for values in recorder.kept.values() for value in values if is_program(value)]


def is_program(value: Any) -> bool:
    return isinstance(value, Program)


@pytest.mark.sampled(2)
def test_arrays_are_as_documented(recorded: Recorder) -> None:
    recorded_programs = programs(recorded)
    assert recorded_programs
    fault_texts = {
        fault
        for record, values in recorded.kept.items()
        for value in values
        for fault in faults(record, value, recorded_programs, len(MESH))
    }
    assert not fault_texts, "\n".join(sorted(fault_texts))


def test_who_promises_read_only_arrays_has_them(recorded: Recorder) -> None:
    promising = [
        (record, value)
        for record, values in recorded.kept.items()
        for value in values
        if "read-only" in (record.type.__doc__ or "") and dataclasses.is_dataclass(value)
    ]
    assert Program in {type(value) for _, value in promising}
    assert not [f"{record}: {writeable(value)}" for record, value in promising if writeable(value)]


def test_most_of_the_records_with_arrays_are_seen(recorded: Recorder) -> None:
    stages = ("ir", "nda", "conflicts", "sharding", "cost", "machines", "search", "hashing")
    of_stages = [r for r in recorded.kept if r.module.split(".")[1] in stages]
    seen = [record for record in of_stages if recorded.kept[record]]
    assert len(seen) >= 0.6 * len(of_stages), sorted(str(r) for r in set(of_stages) - set(seen))


# -- the checker itself ----------------------------------------------------------------------------


class Sample(NamedTuple):
    ptr: Any
    rows: Any
    parts: Any


def field(name: str, *dims: str, count: str = "", dtype: str = "") -> Field:
    return Field(name, True, True, count, dims, dtype)


SAMPLE = Record(
    __name__,
    "Sample",
    (field("ptr", "K+1"), field("rows", "K", "2", dtype="int8"), field("parts", "S", count="K")),
)
GOOD = Sample(np.zeros(4), np.zeros((3, 2), np.int8), [np.zeros(1), np.zeros(5), np.zeros(2)])


def test_a_sample_as_documented_has_no_faults() -> None:
    assert list(faults(SAMPLE, GOOD, [])) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"ptr": np.zeros(3)}, "rows: K is 3, and 2"),
        ({"rows": np.zeros((3, 3), np.int8)}, "has 3 where 2 is documented"),
        ({"rows": np.zeros((3, 2))}, "documented as int8, is float64"),
        ({"rows": np.zeros(3, np.int8)}, r"has the shape \(3,\)"),
        ({"parts": [np.zeros(1)]}, "its number: K is 1, and 3"),
    ],
)
def test_what_is_not_as_documented_is_a_fault(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        assert not list(faults(SAMPLE, GOOD._replace(**change), []))


def test_comments_are_read_from_the_line_and_from_the_block_above() -> None:
    (program,) = [record for record in records() if record.type is Program]
    documented = {f.name: (f.dims, f.dtype) for f in program.fields if f.documented}
    assert documented["shape_ptr"] == (("V+1",), "")
    assert documented["flops"] == (("O",), "float64")
    assert documented["hidden"] == (("sum of ranks",), "bool")


def test_sizes_of_another_program_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documented_arrays, "SHARED", {"K": lambda program: program})
    assert list(faults(SAMPLE, GOOD, [3])) == []
    assert "the sizes of no program" in next(faults(SAMPLE, GOOD, [4]))
