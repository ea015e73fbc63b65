"""The frame around the four pages: theme, keys, the address bar, when Bokeh lays them out.

It also stands between server and browser: messages wait while the browser builds something, and the
browser reports when its user is idle. The browser's half is ``static/shell.js``,
``layout_once.js``, ``known_models.js``, ``hold_messages.js``, ``rest.js``, ``connection.js``,
``working.js`` and ``checkbox_words.js``.
"""

from __future__ import annotations

from typing import Any

import param
from panel.custom import JSComponent

from toast_lab.app import assets, theme


class Shell(JSComponent):
    """The component for links, keys, the theme and the title of the tab."""

    commands = param.List(default=[], doc="[id, [key, ...], words, group]")
    query = param.List(default=[], doc="[query text, whether it is a step that back undoes]")
    title = param.String(default="", doc="what the tab of the browser names beside TOAST Lab")
    framed = param.Boolean(
        default=False, doc="inside a page that is not ours: keys are taken inside the explorer only"
    )
    command = param.List(default=[], doc="[id, counter] of the last key")
    arrived = param.List(default=[], doc="[query text, counter] after back or forward")
    awaited_rest = param.Integer(default=0, doc="grows to be told once the visitor rests")
    rested = param.Integer(default=0, doc="the last awaited rest that came")

    _scripts = (
        "checkbox_words",
        "layout_once",
        "known_models",
        "hold_messages",
        "rest",
        "connection",
        "working",
        "shell",
    )
    _esm = "\n".join((theme.DECIDE_ONCE, *map(assets.script, _scripts)))
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
