"""Changes of models that a page no longer has are not sent to it.

Panel 1.10 and Bokeh 3.10 write down what a callback changed once that has ended, and not change by
change as Panel 1.9 and Bokeh 3.9 do.  A model that came and went within one callback is then in
none of what is sent, but for its own changes: a browser cannot find it and reports an error for
each of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def leave_out() -> None:
    """Leave such changes out, for all sessions of this process.

    Nothing is done to versions that write down each change by itself.
    """
    from bokeh.server import session
    from panel.io import document

    if hasattr(session, "_serialize_patches"):
        _filter(session, "_serialize_patches", 0, lambda patch: is_known(patch.event))
    if hasattr(document, "schedule_write_events"):
        _filter(document, "write_events", 2, is_known)


def is_known(event: Any) -> bool:
    """Is the model that changed, if it is a model's change, still in its document?"""
    model = getattr(event, "model", None)
    return model is None or model.document is event.document


def _filter(module: Any, name: str, place: int, is_kept: Callable[[Any], bool]) -> None:
    """Let a function of a module have only some items of its list argument at ``place``."""
    whole = getattr(module, name)
    if hasattr(whole, "__wrapped__"):
        return  # done before

    @functools.wraps(whole)
    def filtered(*arguments: Any, **options: Any) -> Any:
        given = [*arguments]
        given[place] = [*filter(is_kept, given[place])]
        return whole(*given, **options)

    setattr(module, name, filtered)
