"""Fitting a machine to measured points.

Points made from a known machine give it back, also with noise, gaps and wrong points.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toast_lab.machines import calibrate_fit as cf
from toast_lab.machines.calibrate_fit import CalibrationPoint
from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.links import Link
from toast_lab.machines.machine_model import Machine
from toast_lab.runtime.calibrate_child import COLLECTIVES

SIDES = (64, 128, 256, 512, 1024, 2048)
SIZES = [2.0**k for k in range(10, 29, 3)]


def points_of(machine: Machine, noise: float = 0.0, devices=(2, 4, 8)):
    """Return the points of a nearly perfect measurement of ``machine``.

    Times have log-normal errors with standard deviation ``noise``.
    """
    rng = np.random.default_rng(1)
    points = []
    for dtype, peak in machine.flops.items():
        for side in SIDES:
            flops = 2.0 * side**3
            points.append(
                CalibrationPoint(
                    "dot", dtype, 8, 12.0 * side**2, flops, flops / peak + machine.op_overhead_s
                )
            )
    for size in SIZES:
        points.append(
            CalibrationPoint("memory", "f32", 8, size, 0.0, size / machine.memory_bytes_per_s)
        )
    for kind in COLLECTIVES:
        for n in devices:
            for size in SIZES:
                point = CalibrationPoint(kind, "f32", n, size, 0.0, 1.0)
                points.append(point._replace(time_s=cf.collective_of(machine, point)))
    points.append(CalibrationPoint("overhead", "f32", 8, 0.0, 0.0, machine.op_overhead_s))
    points.append(CalibrationPoint("overlap", "f32", 8, 0.0, 0.0, machine.overlap))
    return [p._replace(time_s=p.time_s * math.exp(noise * rng.standard_normal())) for p in points]


def machine_of(rate, latency, **changes):
    links = (Link("links", "switch", rate, latency),)
    known = Machine("known", {"f32": 2e12, "bf16": 8e12}, 16e9, 5e11, links, 1e-6, 0.25)
    return dataclasses.replace(known, **changes)


def fitted(points, base="a100"):
    return cf.fit(points, "found", MACHINES[base], 16e9, {"date": "today"})


@settings(max_examples=15, deadline=None)
@given(st.floats(8, 12), st.floats(-6.5, -3.5))
def test_a_known_machine_comes_back(rate, latency):
    known = machine_of(10**rate, 10**latency)
    fitted_machine = fitted(points_of(known)).machine
    assert fitted_machine.links[0].bytes_per_s == pytest.approx(
        known.links[0].bytes_per_s, rel=0.01
    )
    assert fitted_machine.links[0].latency_s == pytest.approx(known.links[0].latency_s, rel=0.01)
    assert fitted_machine.memory_bytes_per_s == pytest.approx(known.memory_bytes_per_s)
    assert fitted_machine.overlap == known.overlap
    assert fitted_machine.op_overhead_s == known.op_overhead_s


def test_peaks_are_those_of_the_largest_dots():
    known = machine_of(1e10, 1e-5)
    fitted_machine = fitted(points_of(known)).machine
    assert known.flops
    assert set(known.flops) <= set(fitted_machine.flops)
    for dtype, peak in known.flops.items():
        assert 0.99 * peak < fitted_machine.flops[dtype] <= peak


def test_noise_and_outliers_move_the_fit_little():
    known = machine_of(1e10, 1e-5)
    points = points_of(known, noise=0.1)
    # every tenth collective takes ten times as long, as on a shared machine
    outliers = [
        p._replace(time_s=p.time_s * 10) if p.what in COLLECTIVES and i % 10 == 0 else p
        for i, p in enumerate(points)
    ]
    fit = fitted(outliers)
    assert fit.machine.links[0].bytes_per_s == pytest.approx(1e10, rel=0.25)
    assert fit.machine.links[0].latency_s == pytest.approx(1e-5, rel=0.25)
    worst = max(r.worst_ratio for r in fit.residuals if "over" in r.what)
    assert worst > 3  # the residuals show it


def test_a_collective_that_the_formulas_cannot_tell_shows_in_its_residual():
    points = [
        p._replace(time_s=p.time_s * 3) if p.what == "all_to_all" else p
        for p in points_of(machine_of(1e10, 1e-5))
    ]
    ratios = {r.what: r.median_ratio for r in fitted(points).residuals}
    assert all(
        ratios[f"all_to_all over {n}"] > 2 * ratios[f"all_gather over {n}"] for n in (2, 4, 8)
    )


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(1, 1e9), st.floats(1e-9, 1e3)),
        min_size=1,
        max_size=12,
        unique_by=lambda p: p[0],
    )
)
def test_fits_are_monotone_in_the_size(pairs):
    points = [
        CalibrationPoint("all_reduce", "f32", 4, size, 0.0, seconds) for size, seconds in pairs
    ]
    smooth = cf.monotone(points)
    times = [p.time_s for p in sorted(smooth, key=lambda p: p.size_bytes)]
    assert all(b >= a * (1 - 1e-9) for a, b in itertools.pairwise(times))
    assert sum(math.log(p.time_s) for p in smooth) == pytest.approx(
        sum(math.log(t) for _, t in pairs), abs=1e-6
    )


def test_a_slow_large_dot_does_not_lower_the_peak_alone():
    """Isotonic regression pools it with its neighbour, weighted by their times."""
    fast = [CalibrationPoint("dot", "f32", 1, 0.0, 10.0**k, 10.0**k / 1e12) for k in range(6, 10)]
    slowed = [*fast[:-1], fast[-1]._replace(time_s=fast[-1].time_s * 2)]
    assert cf.peak_flops(fast) == pytest.approx(1e12)
    assert 0.5e12 < cf.peak_flops(slowed) < 0.6e12


def test_caches_do_not_count_as_memory():
    points = [
        CalibrationPoint("memory", "f32", 1, 2.0**k, 0.0, 2.0**k / (1e12 if k < 20 else 1e10))
        for k in range(12, 28, 2)
    ]
    assert cf.memory_bytes_per_s(points) == pytest.approx(1e10)


@pytest.mark.parametrize("missing", ["dot", "memory", "collectives", "overhead", "overlap"])
def test_what_was_not_measured_is_the_tables_and_says_so(missing, tmp_path):
    known = machine_of(1e10, 1e-5)
    kept = [
        p
        for p in points_of(known)
        if p.what != missing and not (missing == "collectives" and p.what in COLLECTIVES)
    ]
    fit = fitted(kept)
    key = {
        "dot": "flops.f32",
        "memory": "memory_bytes_per_s",
        "collectives": "links",
        "overhead": "op_overhead_s",
        "overlap": "overlap",
    }[missing]
    assert fit.not_measured == (key,)
    assert "a100" in fit.machine.sources[key]
    fit.machine.to_toml(tmp_path / "m.toml")
    assert Machine.from_toml(tmp_path / "m.toml") == fit.machine
    assert (fit.machine.links == MACHINES["a100"].links) == (missing == "collectives")


@pytest.mark.parametrize("base", ["cpu", "a100", "tpu-v5e"])
def test_a_measured_machine_is_compiled_for_as_the_one_it_is_like(base):
    assert fitted(points_of(MACHINES["a100"]), base).machine.compiler == MACHINES[base].compiler


def test_times_that_cannot_be_are_left_out():
    bad = [CalibrationPoint("dot", "f32", 1, 1.0, 1e9, t) for t in (0.0, -1.0, math.nan, math.inf)]
    assert fitted([*points_of(machine_of(1e10, 1e-5)), *bad]).machine.flops["f32"] > 1.9e12


@pytest.mark.parametrize(
    ("platform", "kind", "name"),
    [
        ("cpu", "cpu", "cpu"),
        ("gpu", "NVIDIA H100 80GB HBM3", "h100"),
        ("gpu", "NVIDIA A100-SXM4-80GB", "a100"),
        ("gpu", "Tesla P100-SXM2-16GB", "p100"),
        ("tpu", "TPU v5 lite", "tpu-v5e"),
        ("tpu", "TPU v5p", "tpu-v5p"),
        ("tpu", "TPU v4", "tpu-v4"),
        ("tpu", "TPU v6 lite", "tpu-v6e"),
        ("tpu", "TPU v3", "tpu-v3"),
    ],
)
def test_the_nearest_machine_of_the_table(platform, kind, name):
    assert cf.nearest(platform, kind) is MACHINES[name]


def test_full_waves_reach_a_measured_rate_in_every_type():
    base = MACHINES["h100"]
    assert base.products.share_of("f32") < base.products.share_of("bf16") < 1
    fitted = cf.fit(points_of(machine_of(1e11, 1e-5)), "mine", base, 80e9, {}).machine
    assert fitted.products.share_of("f32") == fitted.products.share_of("bf16") == 1
