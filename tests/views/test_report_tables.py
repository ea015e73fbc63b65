"""The coverage and divisibility reports as data frames and notes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from tests.helpers import analysed, small_transformer, traced
from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.coverage import UnsplitReason, coverage
from toast_lab.cost.problem import Problem
from toast_lab.views import report_tables as r


@pytest.fixture(scope="module")
def awkward() -> Analysis:
    def f(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jnp.sort(x @ w, axis=1)
        return y, jnp.fft.fft(y.reshape(-1)).real

    return traced(
        f, jax.ShapeDtypeStruct((64, 30), jnp.float32), jax.ShapeDtypeStruct((30, 15), jnp.float32)
    )


def test_every_reason_has_a_short_name() -> None:
    assert set(r.FINDINGS) == set(UnsplitReason)


def test_coverage_frame(awkward: Analysis) -> None:
    frame = r.coverage_frame(coverage(awkward)).set_index("op")
    assert list(r.coverage_frame(coverage(awkward))) == r.COVERAGE_COLUMNS
    assert frame.loc["fft", ["count", "finding", "colours"]].tolist() == [
        1,
        "computed whole",
        "all",
    ]
    assert frame.loc["sort", ["count", "finding", "colours"]].tolist() == [
        1,
        "some dims whole",
        "outputs",
    ]
    assert frame.loc["fft", "source"].startswith("test_report_tables.py:")
    assert frame.index[0] == "fft", "what is held whole comes first"
    assert r.coverage_frame(coverage(analysed("mlp"))).empty


def test_sizes_frame(awkward: Analysis) -> None:
    frame = r.sizes_frame(Problem(awkward, {"a": 4, "b": 5}).divisibility())
    assert list(frame) == r.DIMS_COLUMNS
    row = frame.set_index("colour").loc["features"]
    assert (row["size"], row["divided by"], row["remedy"]) == (
        30,
        "b",
        "a=4: pad to 32, or an axis of 2",
    )
    assert row["arguments"] == "x, w"
    assert r.sizes_frame(Problem(awkward, {"a": 1}).divisibility()).empty


def test_whole_arguments_frame(awkward: Analysis) -> None:
    frame = r.whole_arguments_frame(Problem(awkward, {"a": 4}).divisibility())
    assert frame.values.tolist() == [
        [
            "w",
            "f32[30, 15]",
            "1.76 KiB",
            "19.0%",
            "dim 0 (features) = 30, a=4: pad to 32, or an axis of 2. "
            "dim 1 (outputs) = 15, a=4: pad to 16",
        ],
    ]


def test_notes(awkward: Analysis) -> None:
    notes = r.notes(coverage(awkward), Problem(awkward, {"a": 4}).divisibility())
    assert [note.level for note in notes] == ["error", "info", "info", "info", "info"]
    assert notes[1].text.startswith("fft (test_report_tables.py:")
    assert notes[1].text.endswith("): computed whole")
    assert {note.text for note in notes[3:]} == {
        "outputs = 15 on a=4: pad to 16",
        "features = 30 on a=4: pad to 32, or an axis of 2",
    }
    fine = small_transformer()
    fine_notes = r.notes(coverage(fine), Problem(fine, "4x2").divisibility())
    assert [note.level for note in fine_notes] == ["good", "good"]
    assert len(r.notes(coverage(fine), None)) == 1
