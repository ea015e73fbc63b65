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
from toast_lab.views.page_colours import DARK, LIGHT, properties

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
#: what views of libraries are taught on our pages
VIEWS = assets.script("table_wait")
DECIDE_ONCE = f"if (!window.tlTheme) {DECIDE}"  #: where the head is not ours


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
<script>{VIEWS}</script>
{{% endblock %}}"""

#: For the page's root inside a notebook, whose head is not ours; the script puts the attribute
#: there.
HOST = sheet(":host", ":host([data-tl-theme=dark])")


def dress(document: Any) -> None:
    """Give a Bokeh document the head that knows both themes and how tables wait."""
    document.template = HEAD
