"""The colours of pages, light and dark, as CSS custom properties (``--tl-ink``).

The explorer and the reports share them.
"""

from __future__ import annotations

#: (light, dark)
_COLOURS = {
    "ink": ("#1c2430", "#e4e9f0"),
    "quiet": ("#5b6675", "#9aa8ba"),
    "label": ("#465163", "#b4c0cf"),  #: captions of fields and of table columns
    "page": ("#f5f7fa", "#0d1117"),
    "card": ("#ffffff", "#151b23"),
    "line": ("#dfe5ec", "#2b3541"),
    "edge": ("#c6cfda", "#43505f"),  #: borders of buttons and input fields
    "soft": ("#eef3f9", "#212a35"),
    "on": ("#e3eefc", "#173962"),
    "accent": ("#1f6feb", "#2f74dc"),
    "bad": ("#b3182a", "#ff9aa3"),
    "bad-soft": ("#fdeeef", "#43171d"),
    "bad-edge": ("#d62839", "#d62839"),
    "good": ("#125c36", "#86dcaa"),
    "good-soft": ("#e7f4ec", "#12301f"),
    "good-edge": ("#1a9460", "#1a9460"),
    "code": ("#9a4b00", "#f0a45c"),  #: collectives in listings
    "mark": ("#fff3d6", "#41350f"),  #: lines that differ
}
LIGHT, DARK = ({name: pair[theme] for name, pair in _COLOURS.items()} for theme in (0, 1))


def properties(colours: dict[str, str]) -> str:
    """Colours as CSS: ``--tl-ink: #1c2430; ...``."""
    return " ".join(f"--tl-{name}: {value};" for name, value in colours.items())
