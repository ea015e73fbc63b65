"""Style sheets and scripts of the explorer: the files of ``static/``, each read once."""

from __future__ import annotations

import functools
from importlib.resources import files


@functools.cache
def sheet(name: str) -> str:
    """The style sheet ``static/NAME.css``."""
    return _read(f"{name}.css")


@functools.cache
def script(name: str) -> str:
    """The script ``static/NAME.js``."""
    return _read(f"{name}.js")


def _read(file: str) -> str:
    return (files("toast_lab.app") / "static" / file).read_text(encoding="utf-8")
