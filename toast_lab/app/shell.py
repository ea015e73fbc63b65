"""What surrounds the five pages: theme, keys, the address bar, and how often Bokeh lays them out.

The browser's half is ``static/shell.js`` and ``static/layout_once.js``.
"""

from __future__ import annotations

from typing import Any

import param
from panel.custom import JSComponent

from toast_lab.app import assets, theme


class Shell(JSComponent):
    """Copy link, keys, theme, the title of the tab."""

    commands = param.List(default=[], doc="[id, [key, ...], words, group]")
    query = param.List(default=[], doc="[query text, whether it is a step that back undoes]")
    title = param.String(default="", doc="what the tab of the browser names beside TOAST Lab")
    framed = param.Boolean(
        default=False, doc="inside a page that is not ours: keys are taken inside the explorer only"
    )
    command = param.List(default=[], doc="[id, counter] of the last key")
    arrived = param.List(default=[], doc="[query text, counter] after back or forward")

    _esm = "\n".join((theme.DECIDE_ONCE, assets.script("layout_once"), assets.script("shell")))
    _stylesheets = [assets.sheet("shell")]  # noqa: RUF012

    def __init__(self, **params: Any) -> None:
        params = {
            "width": 102,
            "height": 32,
            "sizing_mode": "fixed",
            "margin": (2, 0, 0, 8),
            **params,
        }
        super().__init__(**params)
