"""Light and dark.

The colours of the page as CSS custom properties, and how a page comes to have one of the two.

Style sheets name a property with its light value as fallback, ``var(--tl-ink, #1c2430)``, so that a
view that stands alone in a notebook looks right too.  The browser decides: what was chosen last
(kept in its local storage), else what the system prefers.  A served page does so in its head,
before anything is drawn.
"""

from __future__ import annotations

from typing import Any

from toast_lab.app import assets

LIGHT = {
    "ink": "#1c2430",
    "quiet": "#5b6675",
    "label": "#465163",  #: captions of fields and of table columns
    "page": "#f5f7fa",
    "card": "#ffffff",
    "line": "#dfe5ec",
    "edge": "#c6cfda",  #: borders of what can be pressed or typed into
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

# What Bokeh's and Panel's own sheets ask for where ours say nothing.
_BORROWED = " ".join(
    (
        "--design-background-color: var(--tl-card);",
        "--design-background-text-color: var(--tl-ink);",
        "--design-surface-color: var(--tl-soft);",
        "--design-surface-text-color: var(--tl-ink);",
        "--design-primary-color: var(--tl-accent);",
        "--design-primary-text-color: #fff;",
        "--bokeh-icon-color: var(--tl-quiet);",
    )
)
# Tooltips of Bokeh hang on the body or on their figure, and bring their own colours along unless
# these are stronger.  One that covers the next button must not take its click.
TOOLTIP = assets.sheet("tooltip")
DECIDE = assets.script("theme")
TABLE_WAIT = assets.script("table_wait")
DECIDE_ONCE = f"if (!window.tlTheme) {DECIDE}"  #: where the head is not ours


def properties(colours: dict[str, str]) -> str:
    """``--tl-ink: #1c2430; ...``."""
    return " ".join(f"--tl-{name}: {value};" for name, value in colours.items())


def sheet(light: str, dark: str) -> str:
    """Both themes for an element: ``light`` and ``dark`` are its selectors."""
    return (
        f"{light} {{ color-scheme: light; {properties(LIGHT)} {_BORROWED} }}\n"
        f"{dark} {{ color-scheme: dark; {properties(DARK)} {_BORROWED} }}"
    )


HEAD = f"""{{% block preamble %}}{{{{ super() }}}}
<style>
{sheet(":root", ":root[data-tl-theme=dark]")}
html, body {{ margin: 0; background: var(--tl-page); color: var(--tl-ink); height: 100%; }}
{TOOLTIP}
</style>
<script>{DECIDE}</script>
<script>{TABLE_WAIT}</script>
{{% endblock %}}"""

#: For the page's root inside a notebook, whose head is not ours; the script puts the attribute
#: there.
HOST = sheet(":host", ":host([data-tl-theme=dark])")


def dress(document: Any) -> None:
    """Give a Bokeh document the head that knows both themes and how tables wait."""
    document.template = HEAD
