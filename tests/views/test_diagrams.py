"""The figures of graphs, trees and tiles as files: escaped, and with one mark for each datum."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from tests.helpers import analysed
from tests.views.test_saved_chart import NS, marks, parsed, paths, texts
from toast_lab.sharding.mesh import make_mesh
from toast_lab.views.graph_layout import graph_layout
from toast_lab.views.graph_plot import GraphPlot
from toast_lab.views.icicle import IciclePlot, IcicleScene
from toast_lab.views.icicle_layout import icicle
from toast_lab.views.palette import CONFLICT
from toast_lab.views.saved_chart import chart_svg
from toast_lab.views.tiles import TilesPlot


def strokes(root: ET.Element, hue: str) -> int:
    """How many lines of a hue there are; those that look alike are one path."""
    drawn = [path for path in root.iter(f"{NS}path") if f"stroke: {hue}" in path.get("style", "")]
    return sum(path.get("d", "").count("M") for path in drawn if "fill: none" in path.get("style"))


def widths(root: ET.Element, style: str) -> list[float]:
    return [corners[1][0] - corners[0][0] for path in [paths(root, style)] for corners in path]


def test_a_graph_has_all_its_names_edges_conflicts_and_rows() -> None:
    layout = graph_layout(analysed("attention"))
    plot = GraphPlot(layout)
    text = chart_svg(plot.figure, size_px=plot.size_px)
    root = parsed(text)
    hues = {lane.style.hue for lane in layout.lanes}
    assert sum(len(marks(root, f"fill: {hue}")) for hue in hues) == len(layout.nodes)
    assert sum(strokes(root, hue) for hue in hues) == len(layout.edges)
    assert strokes(root, CONFLICT) == len(layout.conflicts)
    assert {row.label for row in layout.rows} <= set(texts(root))
    assert root.get("aria-label") == "dimension graph"
    assert chart_svg(plot.figure, size_px=plot.size_px) == text


def test_blocks_of_a_tree_are_as_wide_as_their_visits() -> None:
    blocks = icicle(np.array([-1, 0, 0]), np.array([10, 6, 4]))
    tints = np.array([0.1, 0.2, np.nan])
    plot = IciclePlot()
    plot.show(IcicleScene(blocks, ["root", "a->b", "<i> & more"], tints, 0, "best_score"))
    root = parsed(plot.figure, size_px=(800, 200))
    (whole,) = widths(root, f"stroke: {CONFLICT}")
    assert sorted(widths(root, "stroke: #727e8c")) == pytest.approx(
        [0.4 * whole, 0.6 * whole], 0.01
    )
    assert {"root", "a->b", "<i> & more"} <= set(texts(root))
    assert {"0", "3"} <= set(texts(root)), "no rows below the first four"
    assert "4" not in texts(root)


def test_tiles_are_filled_where_a_device_holds_something() -> None:
    plot = TilesPlot(make_mesh({"a": 2, "b": 1}))
    plot.show((8, 4), (("a",), ()), (0, 1))
    root = parsed(plot.figure, size_px=plot.size_px)

    def heights(style: str) -> list[float]:
        return [abs(corners[2][1] - corners[1][1]) for corners in paths(root, style)]

    (held, *_), (whole, *_) = heights("fill: #1f77d0"), heights("fill: none; stroke: #727e8c")
    assert held * 2 == pytest.approx(whole, 0.01)
    assert {"a 0", "a 1"} <= set(texts(root))
