"""Calibration measures virtual devices, keeps the points and writes a machine file."""

from __future__ import annotations

import math
import tomllib

import pytest

from toast_lab import isolate
from toast_lab.errors import InvalidProblem, RunFailed
from toast_lab.machines.calibrate_fit import CalibrationPoint
from toast_lab.machines.catalogue import machine
from toast_lab.machines.machine_model import Machine
from toast_lab.runtime import calibrate as c
from toast_lab.runtime.calibrate_child import COLLECTIVES, Hardware
from toast_lab.runtime.child import RunProgress


@pytest.fixture(scope="module")
def measured():
    events: list[RunProgress] = []
    done = c.calibrate("cpu:4", name="here", quick=True, on_event=events.append, time_limit_s=300)
    return done, events


def test_everything_is_measured(measured):
    done, events = measured
    assert {p.what for p in done.points} == {"dot", "memory", "overhead", "overlap", *COLLECTIVES}
    assert {(p.what, p.devices) for p in done.points if p.what in COLLECTIVES} == {
        (kind, n) for kind in COLLECTIVES for n in (2, 4)
    }
    assert all(
        math.isfinite(p.time_s) and (p.time_s > 0 or p.what == "overlap") for p in done.points
    )
    assert done.fit.not_measured == ()
    assert done.note == ""
    assert [e.fraction for e in events] == sorted(e.fraction for e in events)
    assert len(events) > 20


def test_the_numbers_are_those_of_a_computer(measured):
    m = measured[0].fit.machine
    assert 1e7 < m.flops["f32"] < 1e13
    assert 1e7 < m.memory_bytes_per_s < 1e13
    assert 1e6 < m.links[0].bytes_per_s < 1e12
    assert 1e-8 < m.links[0].latency_s < 1e-2
    assert m.memory_bytes > 1e8


def test_the_file_loads_again_with_its_points(measured, tmp_path):
    done, _ = measured
    path = tmp_path / "here.toml"
    done.save(str(path))
    assert machine(path) == done.fit.machine
    text = path.read_text()
    assert tomllib.loads(text)["provenance"]["devices"] == "4 x cpu (cpu)"
    assert (
        sum(line.startswith(f"# {kind},f32,") for kind in COLLECTIVES for line in text.splitlines())
        == 20
    )
    assert "all_to_all over 4" in text


def test_a_cancel_keeps_what_there_is(tmp_path):
    seen: list[RunProgress] = []
    done = c.calibrate(
        "cpu:2", quick=True, on_event=seen.append, cancel=lambda: len(seen) > 4, time_limit_s=300
    )
    assert "cancelled" in done.note
    assert 0 < len(done.points) < 10
    assert "overlap" in done.fit.not_measured
    done.save(str(tmp_path / "part.toml"))
    assert Machine.from_toml(tmp_path / "part.toml") == done.fit.machine
    assert "cancelled" in (tmp_path / "part.toml").read_text()


def test_a_cancel_before_the_first_point_is_a_cancel():
    with pytest.raises(isolate.Cancelled):
        c.calibrate("cpu:2", quick=True, cancel=lambda: True)


def test_a_time_limit_too_short_for_anything_is_an_error():
    with pytest.raises(RunFailed, match=r"nothing was measured.*time limit of 0\.001 s"):
        c.calibrate("cpu:2", quick=True, time_limit_s=0.001)


def test_a_child_that_crashes_keeps_what_there_was(monkeypatch):
    """Points that a child sent before it crashed still give a machine.

    Only the parent runs here; the child is simulated.
    """

    def crashing(*_, on_event, **__):
        on_event(Hardware("gpu", "NVIDIA H100", 1, 8e10, {"jax": "0"}))
        on_event(CalibrationPoint("dot", "f32", 1, 1.0, 1e9, 1e-3))
        raise RunFailed("its process crashed (SIGSEGV)")

    monkeypatch.setattr(isolate, "run_in_child", crashing)
    done = c.calibrate("gpu")
    assert done.fit.machine.flops["f32"] == pytest.approx(1e12)
    assert "SIGSEGV" in done.note
    assert "h100" in done.fit.machine.sources["links"]


@pytest.mark.parametrize("devices", ["cpu:0", "cpu:1000", "cup:8", "gpu:x", "auto:3"])
def test_devices_that_cannot_be(devices):
    with pytest.raises(InvalidProblem):
        c.calibrate(devices)


def test_devices_that_are_not_there():
    with pytest.raises((InvalidProblem, RunFailed), match="gpu"):
        c.calibrate("gpu:2", quick=True)
