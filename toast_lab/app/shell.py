"""What surrounds the five pages: theme, keys, the address bar.

The browser's half is ``shell.js``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import param
from panel.custom import JSComponent

from toast_lab.app import theme
from toast_lab.app.look import FONT, MONO

HERE = Path(__file__).parent


class Shell(JSComponent):
    """Copy link, keys, theme.  No text of the user's reaches it."""

    commands = param.List(default=[], doc="[id, [key, ...], words, group]")
    query = param.List(default=[], doc="[query text, whether it is a step that back undoes]")
    framed = param.Boolean(
        default=False, doc="inside a page that is not ours: keys are taken inside the explorer only"
    )
    command = param.List(default=[], doc="[id, counter] of the last key")
    arrived = param.List(default=[], doc="[query text, counter] after back or forward")

    _esm = f"{theme.DECIDE_ONCE}\n{(HERE / 'shell.js').read_text(encoding='utf-8')}"
    _stylesheets = [  # noqa: RUF012
        f"""
:host {{ font-family: {FONT}; font-size: 13px; color: var(--tl-ink, #1c2430); }}
.bar {{ display: flex; gap: 4px; justify-content: flex-end; align-items: center;\
 position: relative; }}
button {{ font: inherit; color: var(--tl-ink, #1c2430); background: var(--tl-card, #fff);\
 cursor: pointer;
  border: 1px solid var(--tl-edge, #c6cfda); border-radius: 6px; min-width: 30px; height: 30px;\
 padding: 0 6px; }}
button:hover {{ background: var(--tl-soft, #eef3f9); }}
button:focus-visible {{ outline: 2px solid var(--tl-accent, #1f6feb); outline-offset: 1px; }}
.note {{ position: absolute; right: 0; top: 34px; z-index: 40; white-space: nowrap;\
 padding: 0 8px; border-radius: 6px;
  background: var(--tl-good-soft, #e7f4ec); color: var(--tl-good, #125c36); }}
dialog {{ color: inherit; background: var(--tl-card, #fff);\
 border: 1px solid var(--tl-edge, #c6cfda);
  border-radius: 10px; padding: 16px 20px; width: min(640px, 86vw); max-height: 86vh;
  box-shadow: 0 12px 40px rgb(0 0 0 / 30%); }}
dialog::backdrop {{ background: rgb(10 14 20 / 45%); }}
h2 {{ margin: 0 0 6px; font-size: 15px; }}
h3 {{ margin: 10px 0 3px; font-size: 11px; letter-spacing: .06em; text-transform: uppercase;\
 break-after: avoid;
  color: var(--tl-quiet, #5b6675); }}
.keys {{ columns: 2; column-gap: 28px; margin-bottom: 12px; }}
.row {{ display: flex; justify-content: space-between; gap: 10px; padding: 2px 0;\
 break-inside: avoid; }}
.row span:last-child {{ white-space: nowrap; }}
kbd {{ font-family: {MONO}; font-size: 11.5px; border: 1px solid var(--tl-edge, #c6cfda);\
 border-bottom-width: 2px;
  border-radius: 4px; padding: 0 5px; margin-left: 4px; background: var(--tl-soft, #eef3f9); }}
"""
    ]

    def __init__(self, **params: Any) -> None:
        params = {
            "width": 102,
            "height": 32,
            "sizing_mode": "fixed",
            "margin": (2, 0, 0, 8),
            **params,
        }
        super().__init__(**params)
