"""SVG diagrams are well-formed and escaped, and have one mark for each datum."""

from __future__ import annotations

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


def test_graph() -> None:
    layout = graph_layout(analysed("attention"))
    picture = parsed(svg.graph_svg(layout))
    assert len(list(picture.iter(f"{NS}title"))) == len(layout.nodes)
    lines = list(picture.iter(f"{NS}polyline"))
    assert len(lines) == len(layout.edges) + len(layout.conflicts) + len(layout.outlines)
    assert svg.graph_svg(layout) == svg.graph_svg(layout)


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
