"""The explorer's components as views for notebooks, such as ``toast_lab.views.graph(analysis)``.

Takes: results of the public functions. Gives: a ``CellView`` that a notebook cell shows. Modules
are imported when a view is first used. Start reading at ``view.py``.

Examples:
    >>> import toast_lab as tl
    >>> tl.views.graph(tl.analyse(tl.load("attention")))
    toast_lab.views.graph: attn, 31 names, 5 conflicts in 1 compatibility set
"""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toast_lab.errors import InvalidInput

if TYPE_CHECKING:
    from toast_lab.app.cells.plans import compare, memory, plan, tiles
    from toast_lab.app.cells.program_views import colours, conflicts, graph, listing
    from toast_lab.app.cells.searching import race, search, tree

_MODULES = {
    **dict.fromkeys(("compare", "memory", "plan", "tiles"), "plans"),
    **dict.fromkeys(("colours", "conflicts", "graph", "listing"), "program_views"),
    **dict.fromkeys(("race", "search", "tree"), "searching"),
}

__all__ = [
    "colours",
    "compare",
    "conflicts",
    "graph",
    "listing",
    "memory",
    "plan",
    "race",
    "search",
    "tiles",
    "tree",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _explained(getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name))


@functools.cache
def _explained(view: Callable[..., Any]) -> Callable[..., Any]:
    """A view that says how it is called, if it is called in another way."""
    signature = inspect.signature(view)

    @functools.wraps(view)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            signature.bind(*args, **keywords)
        except TypeError as error:
            names = ", ".join(signature.parameters)
            raise InvalidInput(
                f"views.{view.__name__} takes ({names}): {error}. It shows: "
                f"{(view.__doc__ or '').splitlines()[0]} help(tl.views.{view.__name__}) says more."
            ) from None
        return view(*args, **keywords)

    return call
