"""Scatter plots on logarithmic axes as SVG text, without a plotting library."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SIZE, MARGIN = 360, 60


class Panel(NamedTuple):
    """One plot: (group, x, y, title) of each point, all above 0; x is compiled, y priced."""

    title: str
    points: Sequence[tuple[str, float, float, str]]


def svg(panels: Sequence[Panel]) -> str:
    """All panels side by side, with one legend."""
    groups = sorted({group for panel in panels for group, *_ in panel.points})
    colours = {group: COLOURS[i % len(COLOURS)] for i, group in enumerate(groups)}
    width, height = len(panels) * (SIZE + 2 * MARGIN), SIZE + 2 * MARGIN + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, panel in enumerate(panels):
        parts += _panel(panel, i * (SIZE + 2 * MARGIN) + MARGIN, MARGIN / 2, colours)
    for i, group in enumerate(groups):
        x = MARGIN + i * 110
        parts.append(f'<circle cx="{x}" cy="{height - 12}" r="5" fill="{colours[group]}"/>')
        parts.append(f'<text x="{x + 10}" y="{height - 8}">{html.escape(group)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, left: float, top: float, colours: dict[str, str]) -> list[str]:
    values = [v for _, x, y, _ in panel.points for v in (x, y)] or [1.0, 10.0]
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1

    def across(value: float) -> float:
        return left + SIZE * (math.log10(value) - low) / (high - low)

    def down(value: float) -> float:
        return top + SIZE - SIZE * (math.log10(value) - low) / (high - low)

    bottom = top + SIZE
    parts = [
        f'<rect x="{left}" y="{top}" width="{SIZE}" height="{SIZE}" fill="none" stroke="#888"/>',
        f'<line x1="{left}" y1="{bottom}" x2="{left + SIZE}" y2="{top}" stroke="#888" '
        'stroke-dasharray="4 3"/>',
        f'<text x="{left + SIZE / 2}" y="{top - 8}" '
        f'text-anchor="middle">{html.escape(panel.title)}</text>',
        f'<text x="{left + SIZE / 2}" y="{bottom + 36}" text-anchor="middle">compiled</text>',
        f'<text x="{left - 40}" y="{top + SIZE / 2}" text-anchor="middle" '
        f'transform="rotate(-90 {left - 40} {top + SIZE / 2})">priced</text>',
    ]
    for tick in _ticks(low, high):
        parts.append(
            f'<text x="{across(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>'
        )
        parts.append(
            f'<text x="{left - 6}" y="{down(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
        parts.append(
            f'<path d="M{across(tick):.1f} {top}V{bottom}M{left} {down(tick):.1f}H{left + SIZE}" '
            'stroke="#ddd"/>'
        )
    for group, x, y, title in panel.points:
        parts.append(
            f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="4" fill="{colours[group]}" '
            'fill-opacity="0.7">'
            f"<title>{html.escape(title)}</title></circle>"
        )
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten within the range; for a short one their halves and fifths too."""
    whole = [10.0**n for n in range(math.ceil(low), math.floor(high) + 1)]
    if len(whole) > 2:
        return whole
    exponents = range(math.floor(low), math.ceil(high) + 1)
    return [
        m * 10.0**n for n in exponents for m in (1, 2, 5) if low <= math.log10(m * 10.0**n) <= high
    ]
