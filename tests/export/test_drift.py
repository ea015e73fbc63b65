"""Exported tests notice when a compiled program drifts from its plan."""

from __future__ import annotations

from pathlib import Path

import toast_lab as tl
from tests import eight_devices
from toast_lab.export.drift import drifted, recorded

MESH = {"data": 2, "model": 2}


def test_the_exported_test_fails_on_drift(tmp_path: Path) -> None:
    outcome = eight_devices.call("tests.export.programs:drift", str(tmp_path))
    assert outcome["same"].startswith("0 ")
    assert outcome["record"].startswith("1 ")
    assert "recorded" in outcome["record"]
    assert outcome["model"].startswith("1 ")


def test_drift_is_told_by_kind_axes_and_bytes() -> None:
    model = tl.load("mlp")
    plan = tl.Plan.from_specs(
        tl.Problem(tl.analyse(model), MESH, "cpu"), {"x": ("data", None), "w1": (None, "model")}
    )
    compiled = tl.compile(model, plan, "cpu:4", store=False)
    record = recorded(compiled)
    assert drifted(record, compiled) == []
    assert list(record["collectives"]) == ["all_reduce over model"]
    more = {
        **record,
        "collectives": {"all_gather over data": {"count": 1.0, "bytes": 64.0}},
        "peak_bytes": 10**9,
    }
    (text,) = drifted(more, compiled)
    assert "all_gather over data: 1 of 64 bytes recorded, 0 of 0 bytes now" in text
    assert "all_reduce over model: 0 of 0 bytes recorded" in text
    assert "peak memory" in text
