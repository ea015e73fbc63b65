"""Style sheets and small layout helpers of the explorer; fonts are the system's, nothing is fetched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import panel as pn
import panel.models.tabulator

FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"

PAGE = """
html, body { margin: 0; background: #f5f7fa; height: 100%; }
"""

TEXT = f"""
:host {{ font-family: {FONT}; font-size: 13px; line-height: 1.45; color: #1c2430; }}
h1 {{ font-size: 15px; margin: 0; }}
h2 {{ font-size: 11px; letter-spacing: .06em; text-transform: uppercase; color: #5b6675;
  margin: 10px 0 5px; font-weight: 650; }}
h2:first-child {{ margin-top: 0; }}
p {{ margin: 0 0 6px; }}
.quiet {{ color: #5b6675; }}
.one {{ white-space: nowrap; overflow: hidden; text-overflow: ellipsis; margin-bottom: 2px; }}
.big {{ font-size: 20px; font-weight: 650; font-variant-numeric: tabular-nums; }}
.mono, code {{ font-family: {MONO}; font-size: 12px; overflow-wrap: anywhere; }}
dl.facts {{ display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 3px 12px; margin: 0; }}
dl.facts dt {{ color: #5b6675; }}
dl.facts dd {{ margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }}
ol.chain {{ margin: 0; padding-left: 20px; }} ol.chain li {{ margin: 1px 0; overflow-wrap: anywhere; }}
.tag {{ display: inline-block; border: 1px solid #c6cfda; border-radius: 9px; padding: 0 7px;
  font-size: 11px; color: #465163;
  background: #fff; white-space: nowrap; }}
.tag.estimated {{ border-style: dashed; }} .tag.measured {{ background: #e7f4ec; border-color: #8cc5a4;
  color: #125c36; }}
.red {{ color: #b3182a; font-weight: 600; }}
ul.log {{ list-style: none; margin: 0; padding: 0; }}
ul.log li {{ padding: 3px 8px; border-left: 3px solid #9aa6b5; margin-bottom: 4px;
  overflow-wrap: anywhere; white-space: pre-wrap; }}
ul.log li.error {{ border-color: #d62839; background: #fdeeef;
  }} ul.log li.good {{ border-color: #1a9460; }}
pre {{ margin: 0; font-family: {MONO}; font-size: 11.5px; line-height: 1.5; white-space: pre; }}
pre .c {{ color: #9a4b00; font-weight: 600; }} pre .d {{ background: #fff3d6; display: inline-block;
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
.bar .quiet { flex-shrink: 20; }  /* the mesh gives way before the model's name does */
"""
)

STATUS = (
    TEXT
    + """
:host { position: relative; z-index: 30; overflow: visible; }
.status { position: absolute; left: 0; right: 0; top: 0; padding: 4px 10px; border-radius: 6px;
  border: 1px solid #dfe5ec; background: #fff;
  white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.status.error { border-color: #e7a2aa; background: #fdeeef; color: #7d0f1d; white-space: pre-wrap;
  overflow: auto; max-height: 30vh;
  overflow-wrap: anywhere; box-shadow: 0 3px 10px rgb(20 30 50 / 14%); }
.status.good { border-color: #b5dcc5; background: #f1faf5; }
"""
)

CARD = """
:host { background: #fff; border: 1px solid #dfe5ec; border-radius: 8px; padding: 12px;
  box-sizing: border-box; overflow: auto; }
"""
CANVAS = """
:host { background: #fff; border: 1px solid #dfe5ec; border-radius: 8px; padding: 8px;
  box-sizing: border-box; overflow: hidden; }
"""
FILL = """
:host { flex: 1 1 0 !important; min-height: 0 !important; overflow: hidden; }
@media (max-width: 1100px) { :host { flex: 0 0 auto !important; height: auto !important; min-height: auto !important;
  overflow: visible; } }
"""
BODY = (
    ":host { flex: 1 1 0 !important; min-height: 0 !important; max-height: 100%; }"
    + """
@media (max-width: 1100px) {
  :host { flex: 0 0 auto !important; flex-direction: column !important; overflow: visible !important;
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
:host {{ padding: 10px 12px; box-sizing: border-box; background: #f5f7fa; gap: 8px; font-family: {FONT}; }}
@media (max-width: 1100px) {{ :host {{ height: auto !important; min-height: 100vh; }} }}
"""
BUTTON = f"""
.bk-btn {{ font-family: {FONT}; font-size: 13px; border-radius: 6px; text-align: center;
  white-space: normal; line-height: 1.3; }}
.bk-btn:focus-visible {{ outline: 2px solid #1f6feb; outline-offset: 1px; }}
"""
LEFT_BUTTON = BUTTON + ".bk-btn { text-align: left; padding: 6px 10px; }"
INPUT = f"""
.bk-input, label, .bk-slider-title {{ font-family: {FONT}; font-size: 12.5px; }}
label, .bk-slider-title {{ color: #465163; }}
"""
TABS = ".bk-tab { font-family: system-ui, sans-serif; font-size: 12.5px; padding: 3px 12px; }"
TABLE = f"""
:host {{ font-family: {FONT}; }}
.tabulator {{ font-size: 12px !important; border: 0 !important; background: #fff; }}
.tabulator .tabulator-header {{ border-bottom: 1px solid #c6cfda !important; }}
.tabulator .tabulator-header .tabulator-col {{ background: #fff; border-right: 0 !important; }}
.tabulator .tabulator-header .tabulator-col-title {{ font-size: 12px !important; font-weight: 600;
  color: #465163; }}
.tabulator .tabulator-header .tabulator-col-content {{ padding: 3px 6px !important; }}
.tabulator-row {{ min-height: 24px !important; border-bottom: 1px solid #edf1f5 !important; }}
.tabulator-row .tabulator-cell {{ padding: 3px 6px !important; height: 24px !important;
  border-right: 0 !important; }}
.tabulator-row.tabulator-selected {{ background: #e3eefc !important; color: #1c2430 !important; }}
.tabulator-row.tabulator-selectable:hover {{ background: #eef3f9 !important; color: #1c2430; }}
"""


def later(change: Callable[..., Any], *args: Any) -> None:
    """Change Bokeh models of a page that is shown already, once its document is free to be changed.

    Panel runs the events of some components outside the document's lock, where Bokeh refuses changes.
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
    return pn.Column(*objects, width=width, sizing_mode="stretch_height", stylesheets=[SIDE], margin=0, scroll=False)
