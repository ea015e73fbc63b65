"""Style sheets and small layout helpers of the explorer.

Fonts are the system's, nothing is fetched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import panel as pn
import panel.models.tabulator

FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"

TEXT = f"""
:host {{ font-family: {FONT}; font-size: 13px; line-height: 1.45; color: var(--tl-ink, #1c2430); }}
h1 {{ font-size: 15px; margin: 0; }}
h2 {{ font-size: 11px; letter-spacing: .06em; text-transform: uppercase;\
 color: var(--tl-quiet, #5b6675);
  margin: 10px 0 5px; font-weight: 650; }}
h2:first-child {{ margin-top: 0; }}
p {{ margin: 0 0 6px; }}
.quiet {{ color: var(--tl-quiet, #5b6675); }}
.one {{ white-space: nowrap; overflow: hidden; text-overflow: ellipsis; margin-bottom: 2px; }}
.big {{ font-size: 20px; font-weight: 650; font-variant-numeric: tabular-nums; }}
.mono, code {{ font-family: {MONO}; font-size: 12px; overflow-wrap: anywhere; }}
dl.facts {{ display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 3px 12px;\
 margin: 0; }}
dl.facts dt {{ color: var(--tl-quiet, #5b6675); }}
dl.facts dd {{ margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }}
ol.chain {{ margin: 0; padding-left: 20px; }}\
 ol.chain li {{ margin: 1px 0; overflow-wrap: anywhere; }}
.tag {{ display: inline-block; border: 1px solid var(--tl-edge, #c6cfda); border-radius: 9px;\
 padding: 0 7px;
  font-size: 11px; color: var(--tl-label, #465163);
  background: var(--tl-card, #fff); white-space: nowrap; }}
.tag.estimated {{ border-style: dashed; }}\
 .tag.measured {{ background: var(--tl-good-soft, #e7f4ec);
  border-color: var(--tl-good-edge, #8cc5a4);
  color: var(--tl-good, #125c36); }}
.good {{ color: var(--tl-good, #125c36); }}
.red {{ color: var(--tl-bad, #b3182a); font-weight: 600; }}
ul.log {{ list-style: none; margin: 0; padding: 0; }}
ul.log li {{ padding: 3px 8px; border-left: 3px solid var(--tl-quiet, #9aa6b5); margin-bottom: 4px;
  overflow-wrap: anywhere; white-space: pre-wrap; }}
ul.log li.error {{ border-color: var(--tl-bad-edge, #d62839);\
 background: var(--tl-bad-soft, #fdeeef);
  }} ul.log li.good {{ border-color: var(--tl-good-edge, #1a9460); }}
pre {{ margin: 0; font-family: {MONO}; font-size: 11.5px; line-height: 1.5; white-space: pre; }}
pre .c {{ color: var(--tl-code, #9a4b00); font-weight: 600; }}
pre .d {{ background: var(--tl-mark, #fff3d6); display: inline-block;
  min-width: 100%; }}
"""

HEADER = (
    TEXT
    + """
:host { display: block; }
.bar { display: flex; gap: 14px; align-items: baseline; white-space: nowrap; overflow: hidden; }
.brand { font-weight: 750; font-size: 16px; letter-spacing: -.01em; }
.bar span { overflow: hidden; text-overflow: ellipsis; }
.bar .brand { flex: none; }
.bar .model { flex: none; max-width: 150px; }  /* the mesh gives way, the model's name does not */
"""
)

STATUS = (
    TEXT
    + """
:host { position: relative; z-index: 30; overflow: visible; }
.status { position: absolute; left: 0; right: 0; top: 0; padding: 4px 10px; border-radius: 6px;
  border: 1px solid var(--tl-line, #dfe5ec); background: var(--tl-card, #fff);
  white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.status.error { border-color: var(--tl-bad-edge, #e7a2aa); background: var(--tl-bad-soft, #fdeeef);
  color: var(--tl-bad, #7d0f1d); white-space: pre-wrap;
  overflow: auto; max-height: 30vh;
  overflow-wrap: anywhere; box-shadow: 0 3px 10px rgb(20 30 50 / 14%); }
.status.good { border-color: var(--tl-good-edge, #b5dcc5);\
 background: var(--tl-good-soft, #f1faf5); }
"""
)

CARD = """
:host { background: var(--tl-card, #fff); border: 1px solid var(--tl-line, #dfe5ec);\
 border-radius: 8px; padding: 12px;
  box-sizing: border-box; overflow: auto; scrollbar-color: var(--tl-edge, #c6cfda) transparent; }
"""
CANVAS = """
:host { background: var(--tl-card, #fff); border: 1px solid var(--tl-line, #dfe5ec);\
 border-radius: 8px; padding: 8px;
  box-sizing: border-box; overflow: hidden; }
"""
FILL = """
:host { flex: 1 1 0 !important; min-height: 0 !important; overflow: hidden; }
@media (max-width: 1100px) { :host { flex: 0 0 auto !important; height: auto !important;\
 min-height: auto !important;
  overflow: visible; } }
"""
BODY = (
    ":host { flex: 1 1 0 !important; min-height: 0 !important; max-height: 100%; }"
    + """
@media (max-width: 1100px) {
  :host { flex: 0 0 auto !important; flex-direction: column !important;\
 overflow: visible !important;
    height: auto !important; min-height: auto !important; max-height: none !important; }
}
"""
)
SIDE = (
    CARD
    + """
* { flex-shrink: 0 !important; max-height: none !important; }
@media (max-width: 1100px) { :host { width: auto !important; max-height: 420px; min-height: 120px;
  flex: 0 0 auto !important; } }
"""
)
MIDDLE = (
    ":host { min-height: 0 !important; min-width: 0 !important; }"
    + """
@media (max-width: 1100px) { :host { height: 560px !important; min-height: 560px !important;
  width: auto !important; margin: 8px 0 !important;
  flex: 0 0 auto !important; } }
"""
)
ROOT = f"""
:host {{ padding: 10px 12px; box-sizing: border-box; background: var(--tl-page, #f5f7fa);\
 gap: 8px; font-family: {FONT};
  color: var(--tl-ink, #1c2430); scrollbar-color: var(--tl-edge, #c6cfda) transparent; }}
@media (max-width: 1100px) {{ :host {{ height: auto !important; min-height: 100vh; }} }}
"""
BUTTON = f"""
.bk-btn {{ font-family: {FONT}; font-size: 13px; border-radius: 6px; text-align: center;
  white-space: normal; line-height: 1.3; }}
.bk-btn:focus-visible {{ outline: 2px solid var(--tl-accent, #1f6feb); outline-offset: 1px; }}
:host(.solid) .bk-btn.bk-btn-default {{ color: var(--tl-ink, #1c2430);\
 background: var(--tl-soft, #eef3f9);
  border: 1px solid var(--tl-line, #dfe5ec); }}
:host(.solid) .bk-btn.bk-btn-default:hover {{ border-color: var(--tl-edge, #c6cfda); }}
:host(.outline) .bk-btn.bk-btn-default {{ border: 1px solid var(--tl-edge, #c6cfda); }}
:host(.outline) .bk-btn.bk-btn-default:hover {{ background: var(--tl-soft, #eef3f9); }}
:host(.outline) .bk-btn.bk-btn-primary {{ color: var(--tl-ink, #1c2430);\
 background: var(--tl-on, #e3eefc);
  border: 1px solid var(--tl-accent, #1f6feb); }}
:host(.solid) .bk-btn.bk-btn-primary,\
 :host(.solid) .bk-btn-group .bk-btn.bk-btn-default.bk-active {{ color: #fff;
  background: var(--tl-accent, #1f6feb); border-color: var(--tl-accent, #1f6feb);\
 box-shadow: none; }}
:host(.solid) .bk-btn.bk-btn-primary:hover {{ filter: brightness(1.08); }}
:host(.solid) .bk-btn.bk-btn-success {{ color: var(--tl-good, #125c36);\
 background: var(--tl-good-soft, #e7f4ec);
  border: 1px solid var(--tl-good-edge, #1a9460); }}
"""
SLIM_BUTTON = BUTTON + ".bk-btn { padding: 2px 8px; }"
LEFT_BUTTON = BUTTON + ".bk-btn { text-align: left; padding: 6px 10px; white-space: pre-line; }"
# Grey, so that it is seen on both; Bokeh's is black.
CARET = (
    "url(\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 25 20'%3E"
    "%3Cpath d='M0 0h25L12.5 20z' fill='%23727e8c'/%3E%3C/svg%3E\")"
)
INPUT = f"""
:host {{ color: var(--tl-ink, #1c2430); --color: var(--tl-ink, #1c2430); }}
.bk-input, label, .bk-slider-title {{ font-family: {FONT}; font-size: 12.5px; }}
label, .bk-slider-title {{ color: var(--tl-label, #465163); }}
.bk-input, .bk-input:not([disabled]) {{ background-color: var(--tl-card, #fff);\
 color: var(--tl-ink, #1c2430);
  border-color: var(--tl-edge, #c6cfda); }}
.bk-input[disabled] {{ background-color: var(--tl-soft, #eef3f9);\
 color: var(--tl-quiet, #5b6675); }}
.bk-input:focus {{ border-color: var(--tl-accent, #1f6feb);\
 box-shadow: 0 0 0 1px var(--tl-accent, #1f6feb); }}
.bk-input::placeholder {{ color: var(--tl-quiet, #5b6675); opacity: .8; }}
select:not([multiple]).bk-input {{ background-image: {CARET}; }}
.bk-input option {{ background: var(--tl-card, #fff); color: var(--tl-ink, #1c2430); }}
.bk-spin-btn:hover {{ background-color: var(--tl-soft, #eef3f9); }}
.noUi-target {{ background: var(--tl-soft, #eef3f9); border-color: var(--tl-edge, #c6cfda);\
 box-shadow: none; }}
.noUi-connect {{ background: var(--tl-accent, #1f6feb); }}
.noUi-handle {{ background: var(--tl-card, #fff); border-color: var(--tl-edge, #c6cfda);\
 box-shadow: none; }}
input[type=checkbox], input[type=radio] {{ accent-color: var(--tl-accent, #1f6feb); }}
input[type=file] {{ color: var(--tl-quiet, #5b6675); }}
input[type=file]::file-selector-button {{ background: var(--tl-soft, #eef3f9);\
 color: var(--tl-ink, #1c2430);
  border: 1px solid var(--tl-edge, #c6cfda); border-radius: 6px; padding: 4px 10px; }}
"""
TABS = """
:host { color: var(--tl-ink, #1c2430); }
.bk-header { border-color: var(--tl-line, #dfe5ec) !important; }
.bk-tab { font-family: system-ui, sans-serif; font-size: 12.5px; padding: 3px 12px;\
 color: var(--tl-quiet, #5b6675);
  border-width: 0 0 2px 0; }
.bk-tab:hover { background: var(--tl-soft, #eef3f9); }
.bk-tab.bk-active { color: var(--tl-ink, #1c2430); background: transparent; font-weight: 600;
  border-color: var(--tl-accent, #1f6feb); }
"""
TABLE = f"""
:host {{ font-family: {FONT}; }}
.tabulator {{ font-size: 12px !important; border: 0 !important; background: var(--tl-card, #fff);
  color: var(--tl-ink, #1c2430); }}
.tabulator .tabulator-tableholder, .tabulator .tabulator-tableholder .tabulator-table {{
  background: var(--tl-card, #fff) !important; color: var(--tl-ink, #1c2430) !important; }}
.tabulator .tabulator-header {{ border-bottom: 1px solid var(--tl-edge, #c6cfda) !important;
  background: var(--tl-card, #fff) !important; color: var(--tl-label, #465163); }}
.tabulator .tabulator-header .tabulator-col {{ background: var(--tl-card, #fff) !important;
  border-right: 0 !important; }}
.tabulator .tabulator-header .tabulator-col.tabulator-sortable.tabulator-col-sorter-element:hover {{
  background: var(--tl-soft, #eef3f9) !important; }}
.tabulator .tabulator-header .tabulator-col.tabulator-col-group .tabulator-col-group-cols {{
  border-color: var(--tl-line, #dfe5ec); }}
.tabulator .tabulator-header .tabulator-col-title {{ font-size: 12px !important; font-weight: 600;
  color: var(--tl-label, #465163); }}
.tabulator .tabulator-header .tabulator-col-content {{ padding: 3px 6px !important; }}
.tabulator .tabulator-row {{ min-height: 24px !important;\
 background: var(--tl-card, #fff) !important;
  color: var(--tl-ink, #1c2430); border-bottom: 1px solid var(--tl-line, #edf1f5) !important; }}
.tabulator-row .tabulator-cell {{ padding: 3px 6px !important; height: 24px !important;
  border-right: 0 !important; }}
.tabulator .tabulator-row.tabulator-selected {{ background: var(--tl-on, #e3eefc) !important;
  color: var(--tl-ink, #1c2430) !important; }}
.tabulator .tabulator-row.tabulator-selectable:not(.tabulator-selected):hover {{
  background: var(--tl-soft, #eef3f9) !important;
  color: var(--tl-ink, #1c2430); }}
.tabulator .tabulator-footer {{ background: var(--tl-card, #fff); color: var(--tl-quiet, #5b6675);
  border-color: var(--tl-line, #dfe5ec); }}
.tabulator .tabulator-footer .tabulator-page {{ background: var(--tl-soft, #eef3f9);\
 color: var(--tl-ink, #1c2430);
  border-color: var(--tl-edge, #c6cfda); }}
.tabulator .tabulator-footer .tabulator-page.active {{ background: var(--tl-accent, #1f6feb);\
 color: #fff; }}
.tabulator .tabulator-placeholder span {{ color: var(--tl-quiet, #5b6675) !important; }}
"""


def later(change: Callable[..., Any], *args: Any) -> None:
    """Change Bokeh models of a page that is shown already, once its document is free to be changed.

    Panel runs the events of some components outside the document's lock, where Bokeh refuses
    changes.
    """
    pn.state.execute(functools.partial(change, *args), schedule=True)


def text(content: Any = "", **kwargs: Any) -> pn.pane.HTML:
    """An HTML pane for content made by ``markup``."""
    kwargs.setdefault("sizing_mode", "stretch_width")
    kwargs.setdefault("margin", 0)
    return pn.pane.HTML(content, stylesheets=[TEXT], **kwargs)


def button(name: str, *, left: bool = False, **kwargs: Any) -> pn.widgets.Button:
    """A button; its label is plain text."""
    kwargs.setdefault("sizing_mode", "stretch_width")
    kwargs.setdefault("margin", (2, 0))
    return pn.widgets.Button(name=name, stylesheets=[LEFT_BUTTON if left else BUTTON], **kwargs)


def table(frame: Any, **kwargs: Any) -> pn.widgets.Tabulator:
    """A read-only table; cells show names as plain text."""
    kwargs.setdefault("sizing_mode", "stretch_both")
    kwargs.setdefault("selectable", 1)
    kwargs.setdefault("layout", "fit_data_stretch")
    kwargs.setdefault("configuration", {"columnDefaults": {"headerSort": False, "minWidth": 20}})
    return pn.widgets.Tabulator(
        frame,
        show_index=False,
        disabled=True,
        theme="simple",
        text_align="left",
        stylesheets=[TABLE],
        margin=0,
        formatters={c: {"type": "plaintext"} for c in frame.columns},
        **kwargs,
    )


def rows_height(n_rows: int, at_most: int) -> int:
    """Height of a table that shows all its rows, or scrolls them."""
    return min(38 + 25 * max(n_rows, 1), at_most)


def side(*objects: Any, width: int) -> pn.Column:
    """A column of controls or facts beside the canvas."""
    return pn.Column(
        *objects,
        width=width,
        sizing_mode="stretch_height",
        stylesheets=[SIDE],
        margin=0,
        scroll=False,
    )
