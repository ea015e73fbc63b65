"""Diagrams as SVG text: the dimension graph, the search tree and device tiles.

Saved notebooks show them. They are laid out box by box, by the same code as the Bokeh ones, and
have no axes; charts of data come from ``saved_chart``.

They have no dates and no random names, so that equal data give equal text. Texts are escaped;
lines and letters have mid tones, so that they are visible on white and on near-black.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.palettes import Cividis256

from toast_lab.views.graph_layout import GraphLayout
from toast_lab.views.icicle import FOLD_COLOUR, IcicleScene, tint_range
from toast_lab.views.palette import CONFLICT, NEUTRAL
from toast_lab.views.text_width import fitted

#: most nodes of a graph; more would be unreadable at this size
MAX_NODES = 400
FONT = "font-family='system-ui, sans-serif'"
Pair = tuple[float, float]


def _text(
    x: float,
    y: float,
    content: object,
    *,
    anchor: str = "start",
    size: float = 11,
    fill: str = NEUTRAL,
) -> str:
    escaped = html.escape(str(content))
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size:g}' "
        f"fill='{fill}'>{escaped}</text>"
    )


def _path(
    points: Iterable[Pair],
    hue: str,
    *,
    width: float = 1.0,
    dash: str = "",
    opacity: float = 1.0,
) -> str:
    coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash_attribute = f" stroke-dasharray='{dash}'" if dash else ""
    return (
        f"<polyline points='{coordinates}' fill='none' stroke='{hue}' stroke-width='{width:g}' "
        f"opacity='{opacity:g}'{dash_attribute}/>"
    )


def _rect(
    x: float, y: float, width: float, height: float, *, fill: str, attributes: str = ""
) -> str:
    return (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{max(width, 0):.1f}' height='{max(height, 0):.1f}' "
        f"fill='{fill}' {attributes}/>"
    )


def _drawing(width: float, height: float, parts: Iterable[str], title: str) -> str:
    view_box = f"viewBox='0 0 {width:g} {height:g}' width='{width:g}'"
    size = f"{view_box} style='max-width: 100%; height: auto'"
    aria = f"role='img' aria-label='{html.escape(title, quote=True)}'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT} {aria}>{''.join(parts)}</svg>"


# -- dimension graph -------------------------------------------------------------------------------
def graph_svg(layout: GraphLayout) -> str:
    """The lanes of a ``GraphLayout``.

    M as lines, names as markers, conflicts red and dashed, sets outlined.
    """
    left_margin, top_margin, lane_width = 190.0, 46.0, 84.0
    row_height = 52.0 if len(layout.rows) < 8 else 26.0 if len(layout.rows) < 30 else 17.0

    def to_pixels(x: float, y: float) -> Pair:
        return left_margin + lane_width * x, top_margin + row_height * (y + 0.5)

    def polyline(xs: Sequence[float], ys: Sequence[float]) -> list[Pair]:
        return [to_pixels(x, y) for x, y in zip(xs, ys, strict=True)]

    width = (
        left_margin
        + lane_width * max((lane.x + lane.width / 2 for lane in layout.lanes), default=1.0)
        + 12
    )
    height = top_margin + row_height * max(len(layout.rows), 1) + 12
    elements = []
    for lane in layout.lanes:
        x, _ = to_pixels(lane.x - lane.width / 2, 0)
        middle, _ = to_pixels(lane.x, 0)
        caption = f"{lane.style.symbol} {lane.label}"
        elements += [
            _rect(
                x + 3,
                top_margin,
                lane_width * lane.width - 6,
                height - top_margin - 8,
                fill=lane.style.hue,
                attributes="fill-opacity='0.07'",
            ),
            _text(middle, top_margin - 10, caption, anchor="middle", fill=lane.style.hue),
        ]
    for row_index, layout_row in enumerate(layout.rows):
        row_label = layout_row.label + (f" ×{layout_row.repeats}" if layout_row.repeats > 1 else "")
        caption = row_label if len(row_label) < 30 else row_label[:28] + "…"
        y = to_pixels(0, row_index)[1] + 4
        elements.append(_text(left_margin - 14, y, caption, anchor="end", size=10.5))
    for outline in layout.outlines:
        points = polyline(outline.xs, outline.ys)
        elements.append(_path([*points, points[0]], CONFLICT, dash="2 3", opacity=0.6))
        label_x, label_y = to_pixels(*outline.label_place)
        label_y += 11 if outline.label_is_below else -2
        elements.append(_text(label_x, label_y, outline.label, size=10, fill=CONFLICT))
    for edge in layout.edges:
        lane_hue = layout.lanes[layout.nodes[edge.source].lane].style.hue
        elements.append(
            _path(
                polyline(edge.xs, edge.ys),
                lane_hue,
                width=1.0 + 0.7 * math.log2(edge.weight),
                opacity=0.5,
            )
        )
    for conflict in layout.conflicts:
        elements.append(_path(polyline(conflict.xs, conflict.ys), CONFLICT, width=2.2, dash="6 3"))
    for node in layout.nodes:
        x, y = to_pixels(node.x, node.y)
        lane_style = layout.lanes[node.lane].style
        node_title = html.escape(f"{node.title} ({node.sizes})")
        marker = _marker(lane_style.marker, (x, y), lane_style.hue)
        elements.append(f"<g><title>{node_title}</title>{marker}</g>")
        if layout.level == "names" or len(node.names) > 1:
            elements.append(_text(x + 8, y - 4, node.label, size=9.5))
    return _drawing(width, height, elements, "dimension graph")


def _marker(marker: str, centre: Pair, hue: str) -> str:
    radius, (x, y) = 5.0, centre
    shapes: dict[str, list[Pair]] = {
        "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
        "triangle": [(0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
        "diamond": [(0, -1.4), (1.1, 0), (0, 1.4), (-1.1, 0)],
        "inverted_triangle": [(0, 1.2), (1.1, -0.9), (-1.1, -0.9)],
        "hex": [(1.1, 0), (0.55, 1), (-0.55, 1), (-1.1, 0), (-0.55, -1), (0.55, -1)],
    }
    if marker not in shapes:
        return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius:g}' fill='{hue}'/>"
    corners = " ".join(
        f"{x + radius * across:.1f},{y + radius * down:.1f}" for across, down in shapes[marker]
    )
    return f"<polygon points='{corners}' fill='{hue}'/>"


# -- search tree -----------------------------------------------------------------------------------
def icicle_svg(scene: IcicleScene, width_px: float = 760.0) -> str:
    """The blocks of a search tree, as wide as their visits, dark where C(s) at or below is low."""
    blocks, row_height = scene.blocks, 30.0
    lowest, highest = tint_range(scene.tint)
    elements = []
    for block_index in range(len(blocks.place)):
        x, right = blocks.left[block_index] * width_px, blocks.right[block_index] * width_px
        y, block_label = blocks.level[block_index] * row_height, scene.labels[block_index]
        width, block_tint = right - x, scene.tint[block_index]
        shade, block_hue, score = 1.0, FOLD_COLOUR, "folded"
        if np.isfinite(block_tint):
            shade = min(max((block_tint - lowest) / (highest - lowest), 0.0), 1.0)
            block_hue, score = Cividis256[int(255 * shade)], f"C(s) {block_tint:.4f}"
        block_title = html.escape(f"{block_label}: {blocks.visits[block_index]:,} visits, {score}")
        ink = "#ffffff" if shade < 0.55 else "#10151c"
        caption = _text(x + 4, y + 18, fitted(block_label, width - 8, 10.5), size=10.5, fill=ink)
        rectangle = _rect(x, y, width - 1, row_height - 2, fill=block_hue)
        elements.append(f"<g><title>{block_title}</title>{rectangle}{caption}</g>")
    return _drawing(width_px, row_height * (int(blocks.level.max()) + 1), elements, "search tree")


# -- device tiles ----------------------------------------------------------------------------------
def tiles_svg(columns: Mapping[str, Sequence[Any]], cell: Pair = (120.0, 76.0)) -> str:
    """``tile_columns`` as a picture: a cell per device, filled by the part that it holds."""
    cell_width, cell_height = cell
    elements = []
    for tile_index in range(len(columns["left"])):

        def rect(
            edge_names: Sequence[str], fill: str, attributes: str, tile_index: int = tile_index
        ) -> str:
            left, right, top, bottom = (float(columns[name][tile_index]) for name in edge_names)
            return _rect(
                left * cell_width,
                top * cell_height,
                (right - left) * cell_width,
                (bottom - top) * cell_height,
                fill=fill,
                attributes=attributes,
            )

        tile_hue = columns["hue"][tile_index]
        held = rect(
            ("held_left", "held_right", "held_top", "held_bottom"),
            tile_hue,
            f"fill-opacity='0.4' stroke='{tile_hue}'",
        )
        outline = rect(("left", "right", "top", "bottom"), "none", f"stroke='{NEUTRAL}'")
        tile_title = html.escape(f"{columns['at'][tile_index]}: {columns['part'][tile_index]}")
        caption = _text(
            float(columns["left"][tile_index]) * cell_width + 4,
            float(columns["top"][tile_index]) * cell_height + 13,
            columns["text"][tile_index],
            size=10.5,
        )
        elements.append(f"<g><title>{tile_title}</title>{held}{outline}{caption}</g>")
    width = cell_width * (max(columns["right"], default=1.0) + 0.06)
    height = cell_height * (max(columns["bottom"], default=1.0) + 0.08)
    return _drawing(width, height, elements, "device tiles")
