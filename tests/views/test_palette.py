"""The palette works for normal and for colour-blind eyes.

The tests check contrast on both themes, and distances as people with dichromacy see them.

Dichromacy is simulated as in Machado, Oliveira and Fernandes, "A physiologically-based model for
simulation of color vision deficiency", 2009, severity 1; distances are CIEDE2000 (Sharma, Wu and
Dalal, 2005), where about 2.3 is just noticeable side by side. Markers, dashes and names are the
second cue.
"""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

from toast_lab.app import assets
from toast_lab.views.page_colours import DARK, LIGHT
from toast_lab.views.palette import CONFLICT, MARKER_TEXT, NEUTRAL, style

HUES = [style(i).hue for i in range(10)]
DARK_CARD = "#151b23"  # toast_lab.app.theme
SEEN = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def linear(hue: str) -> np.ndarray:
    c = np.array([int(hue[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    high, low = sorted((float(XYZ[1] @ linear(h)) for h in (a, b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lab(hue: str, seen: str) -> tuple[float, float, float]:
    x = XYZ @ np.clip(SEEN[seen] @ linear(hue), 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(x > 216 / 24389, np.cbrt(x), (24389 / 27 * x + 16) / 116)
    return float(116 * f[1] - 16), float(500 * (f[0] - f[1])), float(200 * (f[1] - f[2]))


def ciede2000(first: tuple[float, float, float], second: tuple[float, float, float]) -> float:
    (l1, a1, b1), (l2, a2, b2) = first, second
    mean = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    g = 0.5 * (1 - math.sqrt(mean**7 / (mean**7 + 25**7)))
    a1, a2 = (1 + g) * a1, (1 + g) * a2
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = math.degrees(math.atan2(b1, a1)) % 360, math.degrees(math.atan2(b2, a2)) % 360
    turn = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    dl, dc, dh = l2 - l1, c2 - c1, 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    lm, cm, hm = (l1 + l2) / 2, (c1 + c2) / 2, (h1 + turn / 2) % 360
    t = (
        1
        - 0.17 * math.cos(math.radians(hm - 30))
        + 0.24 * math.cos(math.radians(2 * hm))
        + 0.32 * math.cos(math.radians(3 * hm + 6))
        - 0.2 * math.cos(math.radians(4 * hm - 63))
    )
    sl = 1 + 0.015 * (lm - 50) ** 2 / math.sqrt(20 + (lm - 50) ** 2)
    sc, sh = 1 + 0.045 * cm, 1 + 0.015 * cm * t
    rc = 2 * math.sqrt(cm**7 / (cm**7 + 25**7))
    rt = -math.sin(math.radians(60 * math.exp(-(((hm - 275) / 25) ** 2)))) * rc
    return math.sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2 + rt * (dc / sc) * (dh / sh))


def test_the_distance_is_that_of_the_published_pairs() -> None:
    assert ciede2000((50, 2.6772, -79.7751), (50, 0, -82.7485)) == pytest.approx(2.0425, abs=1e-4)
    assert ciede2000((50, 2.49, -0.001), (50, -2.49, 0.0009)) == pytest.approx(7.1792, abs=1e-4)
    assert ciede2000((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514)) == pytest.approx(
        0.9082, abs=1e-4
    )


@pytest.mark.parametrize("hue", [*HUES, CONFLICT, NEUTRAL])
def test_every_hue_is_seen_on_both_themes(hue: str) -> None:
    least = 4.0 if hue == NEUTRAL else 3.0  # texts have this hue
    assert contrast(hue, "#ffffff") >= least
    assert contrast(hue, DARK_CARD) >= least


def mixed(hue: str, ink: str, part: float) -> str:
    pairs = [(int(hue[i : i + 2], 16), int(ink[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(part * a + (1 - part) * b):02x}" for a, b in pairs)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["soft", "on"])
def test_hues_are_read_in_selected_rows_of_a_listing(theme: dict[str, str], ground: str) -> None:
    share = re.search(r"color-mix\(in srgb, var\(--hue\) (\d+)%", assets.sheet("listing_pane"))
    assert share
    for hue in HUES:
        letters = mixed(hue, theme["ink"], int(share[1]) / 100)
        assert contrast(letters, theme[ground]) >= 3.0, (hue, letters)


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize(("n", "least"), [(4, 10.0), (10, 6.0)])
def test_hues_are_told_apart(seen: str, n: int, least: float) -> None:
    for a, b in itertools.combinations(HUES[:n], 2):
        assert ciede2000(lab(a, seen), lab(b, seen)) >= least, (a, b)


@pytest.mark.parametrize("seen", SEEN)
def test_a_conflict_is_told_from_every_colour(seen: str) -> None:
    for hue in HUES:
        assert ciede2000(lab(hue, seen), lab(CONFLICT, seen)) >= 8.0, hue


def test_the_second_cue_is_another_one_for_each() -> None:
    markers = [style(i).marker for i in range(10)]
    assert len(set(markers)) == len({MARKER_TEXT[m] for m in markers}) == 10
