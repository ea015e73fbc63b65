"""The light and the dark theme.

They are the colours of the page as CSS custom properties; a script decides which one a page gets.

Style sheets name a property with its light value as fallback, ``var(--tl-ink, #1c2430)``, so that a
view that stands alone in a notebook looks right too. The browser decides: the theme chosen last
(kept in its local storage), else the one that the system prefers. A served page decides in its
head, before anything is drawn.
"""

from __future__ import annotations

from typing import Any

from toast_lab.app import assets
from toast_lab.views.page_colours import DARK, LIGHT, properties

# Properties that the sheets of Bokeh and Panel use where ours set nothing.
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
# Tooltips of Bokeh are children of the body or of their figure, and bring their own colours along
# unless these rules are stronger. One that covers the next button must not take its click.
TOOLTIP = assets.sheet("tooltip")
DECIDE = assets.script("theme")
#: script that changes views of libraries on our pages
VIEWS = assets.script("table_wait")
DECIDE_ONCE = f"if (!window.tlTheme) {DECIDE}"  #: for pages whose head is not ours


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
    """Give a Bokeh document the head with both themes and the script that makes tables wait."""
    document.template = HEAD
