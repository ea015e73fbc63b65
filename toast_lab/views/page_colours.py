"""The colours of pages, light and dark, as CSS custom properties (``--tl-ink``).

The explorer and the reports share them.
"""

from __future__ import annotations

LIGHT = {
    "ink": "#1c2430",
    "quiet": "#5b6675",
    "label": "#465163",  #: captions of fields and of table columns
    "page": "#f5f7fa",
    "card": "#ffffff",
    "line": "#dfe5ec",
    "edge": "#c6cfda",  #: borders of buttons and input fields
    "soft": "#eef3f9",
    "on": "#e3eefc",
    "accent": "#1f6feb",
    "bad": "#b3182a",
    "bad-soft": "#fdeeef",
    "bad-edge": "#d62839",
    "good": "#125c36",
    "good-soft": "#e7f4ec",
    "good-edge": "#1a9460",
    "code": "#9a4b00",  #: collectives in listings
    "mark": "#fff3d6",  #: lines that differ
}
DARK = {
    "ink": "#e4e9f0",
    "quiet": "#9aa8ba",
    "label": "#b4c0cf",
    "page": "#0d1117",
    "card": "#151b23",
    "line": "#2b3541",
    "edge": "#43505f",
    "soft": "#212a35",
    "on": "#173962",
    "accent": "#2f74dc",
    "bad": "#ff9aa3",
    "bad-soft": "#43171d",
    "bad-edge": "#d62839",
    "good": "#86dcaa",
    "good-soft": "#12301f",
    "good-edge": "#1a9460",
    "code": "#f0a45c",
    "mark": "#41350f",
}


def properties(colours: dict[str, str]) -> str:
    """Colours as CSS: ``--tl-ink: #1c2430; ...``."""
    return " ".join(f"--tl-{name}: {value};" for name, value in colours.items())
