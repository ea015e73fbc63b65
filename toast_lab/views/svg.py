"""The pictures as SVG text, from the same layouts and rows as the Bokeh ones.

They are what a saved notebook shows.

No date, no random names: equal data give equal text.  Texts are escaped; lines and letters have mid
tones, so that they are seen on white and on near-black.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from bokeh.palettes import Cividis256

from toast_lab.views.graph_layout import GraphLayout
from toast_lab.views.icicle import FOLD, Scene, fitted, tint_range
from toast_lab.views.palette import CONFLICT, NEUTRAL, style

MAX_NODES = 400  #: of a graph; more say nothing at this size
FONT = "font-family='system-ui, sans-serif'"
DASHES = ("", "7 3", "2 3", "7 3 2 3", "12 4", "2 6", "10 3 2 3", "4 4")
Pair = tuple[float, float]


def _text(
    x: float, y: float, words: object, anchor: str = "start", size: float = 11, fill: str = NEUTRAL
) -> str:
    said = html.escape(str(words))
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size:g}' "
        f"fill='{fill}'>{said}</text>"
    )


def _path(
    points: Iterable[Pair], hue: str, width: float = 1.0, dash: str = "", opacity: float = 1.0
) -> str:
    at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    broken = f" stroke-dasharray='{dash}'" if dash else ""
    return (
        f"<polyline points='{at}' fill='none' stroke='{hue}' stroke-width='{width:g}' "
        f"opacity='{opacity:g}'{broken}/>"
    )


def _rect(x: float, y: float, wide: float, high: float, fill: str, more: str = "") -> str:
    return (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{max(wide, 0):.1f}' height='{max(high, 0):.1f}' "
        f"fill='{fill}' {more}/>"
    )


def _drawing(wide: float, high: float, parts: Iterable[str], title: str) -> str:
    size = f"viewBox='0 0 {wide:g} {high:g}' width='{wide:g}' style='max-width: 100%; height: auto'"
    named = f"role='img' aria-label='{html.escape(title, quote=True)}'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT} {named}>{''.join(parts)}</svg>"


# -- dimension graph -------------------------------------------------------------------------------
def graph_svg(layout: GraphLayout) -> str:
    """The lanes of a ``GraphLayout``.

    M as lines, names as markers, conflicts red and dashed, sets outlined.
    """
    left, top, across = 190.0, 46.0, 84.0
    down = 52.0 if len(layout.rows) < 8 else 26.0 if len(layout.rows) < 30 else 17.0

    def at(x: float, y: float) -> Pair:
        return left + across * x, top + down * (y + 0.5)

    def line(xs: Sequence[float], ys: Sequence[float]) -> list[Pair]:
        return [at(x, y) for x, y in zip(xs, ys, strict=True)]

    wide = left + across * max((lane.x + lane.width / 2 for lane in layout.lanes), default=1.0) + 12
    high = top + down * max(len(layout.rows), 1) + 12
    parts = []
    for lane in layout.lanes:
        x, _ = at(lane.x - lane.width / 2, 0)
        parts.append(
            _rect(
                x + 3,
                top,
                across * lane.width - 6,
                high - top - 8,
                lane.style.hue,
                "fill-opacity='0.07'",
            )
        )
        middle = at(lane.x, 0)[0]
        parts.append(
            _text(
                middle, top - 10, f"{lane.style.symbol} {lane.label}", "middle", fill=lane.style.hue
            )
        )
    for number, row in enumerate(layout.rows):
        label = row.label + (f" ×{row.repeats}" if row.repeats > 1 else "")
        parts.append(
            _text(
                left - 14,
                at(0, number)[1] + 4,
                label if len(label) < 30 else label[:28] + "…",
                "end",
                10.5,
            )
        )
    for outline in layout.outlines:
        points = line(outline.xs, outline.ys)
        parts.append(_path([*points, points[0]], CONFLICT, 1.0, "2 3", 0.6))
        corner = (min(x for x, _ in points), min(y for _, y in points))
        parts.append(_text(corner[0], corner[1] - 2, outline.label, size=10, fill=CONFLICT))
    for edge in layout.edges:
        hue = layout.lanes[layout.nodes[edge.source].lane].style.hue
        parts.append(
            _path(line(edge.xs, edge.ys), hue, 1.0 + 0.7 * math.log2(edge.weight), opacity=0.5)
        )
    for red in layout.conflicts:
        parts.append(_path(line(red.xs, red.ys), CONFLICT, 2.2, "6 3"))
    for node in layout.nodes:
        x, y = at(node.x, node.y)
        found = layout.lanes[node.lane].style
        title = html.escape(f"{node.title} ({node.sizes})")
        parts.append(f"<g><title>{title}</title>{_marker(found.marker, x, y, 5.0, found.hue)}</g>")
        if layout.level == "names" or len(node.names) > 1:
            parts.append(_text(x + 8, y - 4, node.label, size=9.5))
    return _drawing(wide, high, parts, "dimension graph")


def _marker(marker: str, x: float, y: float, r: float, hue: str) -> str:
    shapes: dict[str, list[Pair]] = {
        "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
        "triangle": [(0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
        "diamond": [(0, -1.4), (1.1, 0), (0, 1.4), (-1.1, 0)],
        "inverted_triangle": [(0, 1.2), (1.1, -0.9), (-1.1, -0.9)],
        "hex": [(1.1, 0), (0.55, 1), (-0.55, 1), (-1.1, 0), (-0.55, -1), (0.55, -1)],
    }
    if marker not in shapes:
        return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{r:g}' fill='{hue}'/>"
    at = " ".join(f"{x + r * a:.1f},{y + r * b:.1f}" for a, b in shapes[marker])
    return f"<polygon points='{at}' fill='{hue}'/>"


# -- curves ----------------------------------------------------------------------------------------
class Curve(NamedTuple):
    """A line of a chart."""

    name: str
    points: Sequence[Pair]
    hue: str
    dash: str = ""
    steps: bool = True  #: hold each value until the next point
    dots: bool = False  #: no line


def curves_svg(
    curves: Sequence[Curve],
    x_label: str,
    y_label: str,
    limits: Mapping[str, tuple[float, str]] | None = None,
    size: Pair = (520.0, 220.0),
) -> str:
    """Curves over one x.

    ``limits`` are level lines by name, each with a value and a hue.  y begins at 0.
    """
    wide, high = size
    left, right, top, bottom = 62.0, 12.0, 30.0, 38.0
    xs = [x for c in curves for x, _ in c.points]
    ys = [y for c in curves for _, y in c.points] + [v for v, _ in (limits or {}).values()]
    x_max, y_max = max(xs, default=1.0) or 1.0, 1.08 * max(ys, default=1.0) or 1.0

    def at(x: float, y: float) -> Pair:
        return left + (wide - left - right) * x / x_max, high - bottom - (
            high - top - bottom
        ) * y / y_max

    parts = [_text(left, 14, y_label, size=11.5)]
    for tick in ticks(y_max):
        y = at(0, tick)[1]
        parts += [
            _path([(left, y), (wide - right, y)], NEUTRAL, 0.5, opacity=0.35),
            _text(left - 6, y + 4, f"{tick:g}", "end", 10),
        ]
    for tick in ticks(x_max):
        parts.append(_text(at(tick, 0)[0], high - bottom + 14, f"{tick:g}", "middle", 10))
    parts.append(_text((left + wide - right) / 2, high - 6, x_label, "middle", 10.5))
    for name, (value, hue) in (limits or {}).items():
        y = at(0, value)[1]
        parts += [
            _path([(left, y), (wide - right, y)], hue, 1.3, "5 4"),
            _text(left + 5, y - 3, name, size=10, fill=hue),
        ]
    for curve in curves:
        points = [at(x, y) for x, y in curve.points]
        if curve.dots:
            parts += [
                f"<circle cx='{x:.1f}' cy='{y:.1f}' r='1.6' fill='{curve.hue}' opacity='0.4'/>"
                for x, y in points
            ]
        elif points:
            parts.append(
                _path(_stepped(points) if curve.steps else points, curve.hue, 2.2, curve.dash)
            )
    x = left + 4.0
    for curve in curves if len(curves) > 1 else ():
        parts += [
            _path([(x, 24), (x + 22, 24)], curve.hue, 2.2, curve.dash),
            _text(x + 26, 28, curve.name, size=10.5),
        ]
        x += 36 + 6.3 * len(curve.name)
    return _drawing(wide, high, parts, y_label)


def ticks(top: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 to ``top``.

    >>> ticks(10.0), ticks(0.7)
    ([0.0, 2.5, 5.0, 7.5, 10.0], [0.0, 0.2, 0.4, 0.6])
    """
    scale = 10.0 ** math.floor(math.log10(top / wanted)) if top > 0 else 1.0
    step = next(scale * k for k in (1, 2, 2.5, 5, 10) if scale * k * (wanted + 1) > top)
    return [round(k * step, 12) for k in range(int(top / step + 1e-9) + 1)]


def _stepped(points: Sequence[Pair]) -> list[Pair]:
    out = list(points[:1])
    for (_, before), (x, y) in itertools.pairwise(points):
        out += [(x, before), (x, y)]
    return out


# -- search tree -----------------------------------------------------------------------------------
def icicle_svg(scene: Scene, wide: float = 760.0) -> str:
    """The blocks of a search tree, as wide as their visits, dark where C(s) at or below is low."""
    b, row = scene.blocks, 30.0
    low, high = tint_range(scene.tint)
    parts = []
    for i in range(len(b.place)):
        x, width = float(b.left[i]) * wide, float(b.right[i] - b.left[i]) * wide
        tint = float(scene.tint[i])
        part = 1.0 if not np.isfinite(tint) else min(max((tint - low) / (high - low), 0.0), 1.0)
        hue = Cividis256[int(255 * part)] if np.isfinite(tint) else FOLD
        y, label = float(b.level[i]) * row, scene.labels[i]
        found = f"C(s) {tint:.4f}" if np.isfinite(tint) else "folded"
        title = html.escape(f"{label}: {int(b.visits[i]):,} visits, {found}")
        ink = "#ffffff" if part < 0.55 else "#10151c"
        words = _text(x + 4, y + 18, fitted(label, width), size=10.5, fill=ink)
        parts.append(f"<g><title>{title}</title>{_rect(x, y, width - 1, row - 2, hue)}{words}</g>")
    return _drawing(wide, row * (int(b.level.max()) + 1), parts, "search tree")


# -- device tiles ----------------------------------------------------------------------------------
def tiles_svg(columns: Mapping[str, Sequence[Any]], cell: Pair = (120.0, 76.0)) -> str:
    """``views.tiles.tile_columns`` as a picture: a cell a device, what it holds filled."""
    wide, high = cell
    n = len(columns["left"])
    parts = []
    for i in range(n):

        def rect(names: Sequence[str], fill: str, more: str, i: int = i) -> str:
            left, right, top, bottom = (float(columns[k][i]) for k in names)
            return _rect(
                left * wide, top * high, (right - left) * wide, (bottom - top) * high, fill, more
            )

        held = rect(
            ("held_left", "held_right", "held_top", "held_bottom"),
            columns["hue"][i],
            f"fill-opacity='0.4' stroke='{columns['hue'][i]}'",
        )
        outline = rect(("left", "right", "top", "bottom"), "none", f"stroke='{NEUTRAL}'")
        title = html.escape(f"{columns['at'][i]}: {columns['part'][i]}")
        words = _text(
            float(columns["left"][i]) * wide + 4,
            float(columns["top"][i]) * high + 13,
            columns["text"][i],
            size=10.5,
        )
        parts.append(f"<g><title>{title}</title>{held}{outline}{words}</g>")
    across = max((float(v) for v in columns["right"]), default=1.0)
    down = max((float(v) for v in columns["bottom"]), default=1.0)
    return _drawing(wide * (across + 0.06), high * (down + 0.08), parts, "device tiles")


def hue(index: int) -> str:
    """Hue of the ``index``-th curve."""
    return style(index).hue


def dash(index: int) -> str:
    """Dash of the ``index``-th curve."""
    return DASHES[index % len(DASHES)]


# -- bars ------------------------------------------------------------------------------------------
def bars_svg(
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], label: str, wide: float = 640.0
) -> str:
    """One bar a row, made of named parts that have one hue in all rows.

    ``label`` says what its length is.
    """
    left, top, row = 130.0, 40.0, 28.0
    names = list(dict.fromkeys(name for _, parts in rows for name, _ in parts))
    longest = max((sum(v for _, v in parts) for _, parts in rows), default=1.0) or 1.0
    scale = (wide - left - 80) / longest
    parts_drawn, x = [_text(0, 13, label, size=11.5)], 0.0
    for i, name in enumerate(names):
        parts_drawn += [
            _rect(x, 20, 10, 10, hue(i), "fill-opacity='0.75'"),
            _text(x + 14, 29, name, size=10.5),
        ]
        x += 26 + 6.4 * len(name)
    for k, (name, parts) in enumerate(rows):
        x, y = left, top + row * k
        parts_drawn.append(
            _text(left - 8, y + 16, name if len(name) < 19 else name[:17] + "…", "end", 10.5)
        )
        for part, v in parts:
            i = names.index(part)
            title = html.escape(f"{name}, {part}: {v:.4g}")
            parts_drawn.append(
                f"<g><title>{title}</title>{_rect(x, y, scale * v, row - 6, hue(i), _STROKE)}</g>"
            )
            x += scale * v
        parts_drawn.append(_text(x + 5, y + 16, f"{sum(v for _, v in parts):.4g}", size=10.5))
    return _drawing(wide, top + row * len(rows) + 6, parts_drawn, label)


_STROKE = "fill-opacity='0.75' stroke='white' stroke-width='0.7'"
