"""Pictures as SVG: well-formed, escaped, and as many marks as there are data."""

from __future__ import annotations

import doctest
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

pytest.importorskip("bokeh")

from tests.helpers import analysed
from toast_lab.sharding.mesh import make_mesh
from toast_lab.views import svg
from toast_lab.views.graph_layout import graph_layout
from toast_lab.views.icicle import IcicleScene
from toast_lab.views.icicle_layout import icicle
from toast_lab.views.tiles import tile_columns

NS = "{http://www.w3.org/2000/svg}"


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)


def texts(picture: ET.Element) -> list[str]:
    return [e.text or "" for e in picture.iter(f"{NS}text")]


def test_examples_in_docstrings() -> None:
    result = doctest.testmod(svg)
    assert result.attempted > 0
    assert result.failed == 0


def test_graph() -> None:
    layout = graph_layout(analysed("attention"))
    picture = parsed(svg.graph_svg(layout))
    assert len(list(picture.iter(f"{NS}title"))) == len(layout.nodes)
    lines = list(picture.iter(f"{NS}polyline"))
    assert len(lines) == len(layout.edges) + len(layout.conflicts) + len(layout.outlines)
    assert svg.graph_svg(layout) == svg.graph_svg(layout)


def test_curves_hold_their_value_until_the_next_point() -> None:
    curve = svg.Curve("<b>", [(0.0, 4.0), (10.0, 2.0)], "#123456")
    text = svg.curves_svg(
        [curve, svg.Curve("other", [(0.0, 1.0)], "#654321")],
        "seconds",
        "C(s)",
        {"limit": (4.0, "red")},
    )
    picture = parsed(text)
    assert "<b>" in texts(picture)  # the name as text, not as an element
    stepped = next(
        e
        for e in picture.iter(f"{NS}polyline")
        if e.get("stroke") == "#123456" and e.get("points").count(",") == 3
    )
    (x0, y0), (x1, y1), (x2, y2) = [
        tuple(map(float, p.split(","))) for p in stepped.get("points").split()
    ]
    assert y0 == y1 < y2  # y grows downwards
    assert x0 < x1 == x2
    limit = next(e for e in picture.iter(f"{NS}polyline") if e.get("stroke") == "red")
    assert limit.get("points").split()[0].endswith(f",{y0:.1f}")


def test_no_data_is_a_picture_all_the_same() -> None:
    curves, bars = parsed(svg.curves_svg([], "x", "y")), parsed(svg.bars_svg([], "time"))
    assert {"x", "y", "0", "1"} <= set(texts(curves))  # its axes go from 0 to 1
    # Only level lines: nothing was measured.
    for line in curves.iter(f"{NS}polyline"):
        (_, left), (_, right) = (at.split(",") for at in line.get("points").split())
        assert left == right
    assert texts(bars) == ["time"]
    assert list(bars.iter(f"{NS}rect")) == []


def test_blocks_of_a_tree_are_as_wide_as_their_visits() -> None:
    parent, visits = np.array([-1, 0, 0]), np.array([10, 6, 4])
    blocks = icicle(parent, visits)
    scene = IcicleScene(
        blocks, ["root", "a->b", "<i>"], np.array([0.1, 0.2, np.nan]), 0, "best_score"
    )
    picture = parsed(svg.icicle_svg(scene, 100.0))
    assert [round(float(r.get("width")) + 1) for r in picture.iter(f"{NS}rect")] == [100, 60, 40]
    assert "<i>: 4 visits, folded" in [t.text for t in picture.iter(f"{NS}title")]


def test_tiles_are_filled_where_a_device_holds_something() -> None:
    columns = tile_columns(make_mesh({"a": 2, "b": 1}), (8, 4), (("a",), ()), (0, 1))
    picture = parsed(svg.tiles_svg(columns, (100.0, 100.0)))
    heights = [float(r.get("height")) for r in picture.iter(f"{NS}rect")]
    assert heights[0] * 2 == heights[1]  # half of the dim, then the outline
    assert [re.sub(r":.*", "", t.text) for t in picture.iter(f"{NS}title")] == [
        "a 0, b 0",
        "a 1, b 0",
    ]


def test_bars_add_up() -> None:
    picture = parsed(
        svg.bars_svg(
            [("one", [("compute", 3.0), ("all_reduce", 1.0)]), ("two", [("compute", 2.0)])], "ms"
        )
    )
    bars = [float(r.get("width")) for r in picture.iter(f"{NS}rect") if float(r.get("height")) > 10]
    assert bars[0] == 3 * bars[1]
    assert bars[2] == 2 * bars[1]
    assert {"compute", "all_reduce", "one", "two", "4", "2"} <= set(texts(picture))
