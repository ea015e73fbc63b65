"""Tables of the listing, conflicts, search curves, comparison and summary show the results."""

from __future__ import annotations

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.plan_verbs import Plan
from toast_lab.views import (
    compare_table,
    program_table,
    search_curves,
    selection_facts,
    summary,
)
from toast_lab.views.graph_layout import lane_styles
from toast_lab.views.palette import style
from toast_lab.views.search_chart import MOST_DRAWN, SearchCurves
from toast_lab.views.search_curves import SearchScales


@pytest.fixture(scope="module")
def attention() -> Analysis:
    model = tl.load("attention")
    return analyse(model)


def test_the_listing_is_the_papers(attention: Analysis) -> None:
    lines = program_table.program_lines(attention)
    assert [line.text for line in lines][8:10] == [
        "a : [S ●, S ●] = matmul(k, qt)",
        "b : [S ●] = reduce_{0,add}(a)",
    ]
    assert lines[8].where == "attention.py:24"
    hues = {s.text.split()[0]: s.hue for line in lines for s in line.segments if s.hue}
    assert hues == {attention.group_name[g]: s.hue for g, s in lane_styles(attention).items()}


def test_styles_never_rest_on_hue_alone() -> None:
    styles = [style(i) for i in range(10)]
    assert (
        len({s.hue for s in styles})
        == len({s.marker for s in styles})
        == len({s.symbol for s in styles})
        == 10
    )


@pytest.mark.parametrize("background", [(255, 255, 255), (0x14, 0x18, 0x1D)])
def test_hues_can_be_told_from_light_and_dark(background: tuple[int, int, int]) -> None:
    def luminance(rgb: tuple[int, ...]) -> float:
        c = [
            v / 255 / 12.92 if v / 255 <= 0.03928 else ((v / 255 + 0.055) / 1.055) ** 2.4
            for v in rgb
        ]
        return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]

    for i in range(10):
        hue = style(i).hue
        a, b = sorted(
            [luminance(tuple(int(hue[j : j + 2], 16) for j in (1, 3, 5))), luminance(background)]
        )
        assert (b + 0.05) / (a + 0.05) >= 3, hue


def test_program_frame_has_a_row_for_each_result(attention: Analysis) -> None:
    frame = program_table.program_frame(attention)
    assert frame["result"].tolist() == [
        "x",
        "wq",
        "wk",
        "wv",
        "k",
        "v",
        "q",
        "qt",
        "a",
        "b",
        "c",
        "d",
        "z",
    ]
    assert frame.set_index("result").loc["a", "flops"] == 2 * 64 * 64 * 16


def test_conflicts_frame(attention: Analysis) -> None:
    frame = selection_facts.conflicts_frame(attention)
    assert frame["tensor"].tolist() == ["a", "a in reduce", "c", "d", "d in dot_general"]
    assert frame["line"].tolist() == [f"attention.py:{n}" for n in (24, 25, 26, 27, 28)]


def test_the_chain_of_a_conflict_is_a_path(attention: Analysis) -> None:
    pairs = {
        frozenset(p)
        for p in zip(attention.names.source.tolist(), attention.names.target.tolist(), strict=True)
    }
    assert len(attention.conflicts) == 5
    for c in attention.conflicts:
        path = selection_facts.chain(attention, c.index)
        assert (path[0], path[-1]) == c.sides
        assert all(frozenset(p) in pairs for p in itertools.pairwise(path))


def test_facts_of_a_name_and_of_a_conflict(attention: Analysis) -> None:
    facts = dict(selection_facts.conflict_facts(attention, 0))
    assert facts["meets on"].startswith("a [64, 64], dims 0 and 1")
    assert facts["source"] == "a = k @ qt"
    assert "1 (a in reduce)" in facts["boxed with"]
    name = dict(selection_facts.name_facts(attention, attention.conflicts[0].sides[0]))
    assert name["splits"] == "a = matmul(k, qt)"
    assert name["conflicts"] == "0"


def simulation(index: int, best: float, improved: bool) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        index=index,
        elapsed_s=index / 10,
        best_time_s=best,
        best_peak_bytes=2e6,
        time_s=best * 2,
        peak_bytes=3e6,
        fits=True,
        improved=improved,
        best_score=best * 1e6,
        score=best * 2e6,
    )


def test_curves_keep_every_simulation_in_order_and_scale_the_axes() -> None:
    points = [search_curves.point(simulation(i, 2e-6 / i, i != 2)) for i in (1, 2, 3)]
    assert search_curves.curve_frame(points)["simulation"].tolist() == [1, 2, 3]
    assert search_curves.improvements_frame(points)["simulation"].tolist() == [1, 3]
    assert search_curves.shown_frame(points)["best step, estimated"].tolist() == ["667 ns", "2 µs"]
    assert [p.best_score for p in points] == [2, 1, 2 / 3]
    scales = SearchScales(memory_limit_bytes=2**24, unsharded_s=5e-6, unsharded_bytes=4e6)
    curves = SearchCurves(scales)
    curves.append(points[:1])
    curves.append(points[1:])
    cost, time, memory = curves.figures
    assert time.title.text == "step (µs), estimated; unsharded 5"
    assert np.allclose(curves.source.data["best_s"], [2, 1, 2 / 3])
    assert memory.x_range is time.x_range is cost.x_range
    line = next(one for one in time.renderers if one.name == "best so far")
    assert line.data_source is curves.source
    assert line.glyph.mode == "after", "level until a better plan comes"
    curves.restart(points[2:])
    assert curves.source.data["simulation"] == [3]


def test_a_long_search_is_thinned_and_keeps_its_improvements() -> None:
    curves = SearchCurves(SearchScales())
    for begin in range(0, 4 * MOST_DRAWN, 100):
        curves.append(
            [
                search_curves.point(simulation(i, 1 / i, i % 1000 == 0))._replace(
                    improved=i % 1000 == 0, best_s=1.0 / (1 + i // 1000)
                )
                for i in range(begin + 1, begin + 101)
            ]
        )
    drawn = list(curves.source.data["simulation"])
    assert len(drawn) <= MOST_DRAWN
    assert drawn == sorted(drawn)
    assert {1000, 2000, 3000, 4 * MOST_DRAWN} <= set(drawn)
    line = curves.source.data
    # The line falls only at improvements
    falls = [
        line["simulation"][i + 1]
        for i, (a, b) in enumerate(itertools.pairwise(line["best_s"]))
        if b < a
    ]
    assert falls == [1000, 2000, 3000]


def plan_entry(
    attention: Analysis, actions: list[tuple[str, str]], run: object = None
) -> compare_table.PlanEntry:
    problem = tl.Problem(attention, "4x2", "tpu-v5e")
    plan = Plan.from_actions(problem, actions)
    return compare_table.PlanEntry("p", plan.actions, tl.price(problem, plan), run)


def test_what_was_not_executed_is_missing_and_not_zero(attention: Analysis) -> None:
    frame = compare_table.compare_frame([plan_entry(attention, [("S", "data")])])
    assert frame["measured_s"].isna().all()
    assert frame["ratio"].isna().all()
    shown = compare_table.shown_frame([plan_entry(attention, [("S", "data")])])
    assert shown[["measured", "compiled", "ratio", "error"]].iloc[0].tolist() == ["–"] * 4


def test_executed_figures_stand_beside_the_estimate(attention: Analysis) -> None:
    run = types.SimpleNamespace(
        median_s=1e-3,
        spread_s=2e-4,
        peak_bytes=2**20,
        max_relative_error=2e-8,
        devices="cpu:8",
    )
    entry = plan_entry(attention, [("S", "data")], run)
    row = compare_table.compare_frame([entry]).iloc[0]
    assert row["ratio"] == pytest.approx(1e-3 / entry.cost.time_s)
    for machine, compared in (("cpu", True), ("tpu-v5e", False), ("h100", False), ("", True)):
        other = compare_table.compare_frame([entry._replace(machine=machine)]).iloc[0]
        assert (other["ratio"] is not None) == compared, "no ratio between different machines"
    assert "all_gather" in row["collectives"]
    shown = compare_table.shown_frame([entry]).iloc[0]
    assert (shown["measured"], shown["compiled"], shown["error"], shown["on"]) == (
        "1 ms",
        "1.00 MiB",
        "2.0e-08",
        "cpu:8",
    )
    assert (shown["spread"], shown["size"]) == ("± 100 µs", "-")
    assert compare_table.shown_frame([entry._replace(size=5)])["size"].tolist() == ["5"]
    assert set(compare_table.shown_frame([entry]).columns) == {
        "show",
        "plan",
        *(c for g in compare_table.GROUPS.values() for c in g),
    }


def test_summary(attention: Analysis) -> None:
    facts = dict(summary.program_facts(attention, "here"))
    assert (facts["ops"], facts["conflicts"], facts["from"]) == ("10", "5", "here")
    assert facts["arguments"].startswith("4 tensors")
    assert summary.arguments_frame(attention)["colours"].tolist() == [
        "S, D",
        "D, H1",
        "D, H1",
        "D, H2",
    ]


def test_the_listing_shows_loops_and_branches() -> None:
    def fn(ws: jax.Array, x: jax.Array, c: jax.Array) -> jax.Array:
        y = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]
        return jax.lax.cond(c, jnp.sin, jnp.cos, y)

    s = jax.ShapeDtypeStruct
    model = tl.from_jax(fn, s((3, 4, 4), "float32"), s((8, 4), "float32"), s((), "bool"))
    lines = program_table.program_lines(analyse(model))
    texts = [line.text for line in lines]
    for label in ("loop, 3 rounds:", "  condition:", "  body:", "branch 0:", "branch 1:"):
        assert texts.count(label) == 1, label
    body = texts.index("  body:")
    assert next(t for t in texts[body:] if "matmul" in t).startswith("    %")
    assert next(t for t in texts[body:] if "next " in t).startswith("    next ")
    assert next(t for t in texts if "sine(" in t).startswith("  %")
    ops = [line.op for line in lines]
    assert ops == sorted(ops)
