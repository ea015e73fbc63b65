"""The explorer's components one by one, for notebooks.

``toast_lab.views.graph(analysis)`` and so on.

Takes what the public functions give, gives a ``View`` that a cell shows.  The views are imported on
first use.  Start reading at ``view``.

Examples:
    >>> import toast_lab as tl
    >>> tl.views.graph(tl.analyse(tl.load("attention")))
    toast_lab.views.graph: attn, 31 names, 5 conflicts in 1 compatibility set
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toast_lab.app.cells.plans import compare, memory, tiles
    from toast_lab.app.cells.program_views import colours, conflicts, graph, listing
    from toast_lab.app.cells.searching import race, search, tree

_MODULES = {
    "colours": "program_views",
    "compare": "plans",
    "conflicts": "program_views",
    "graph": "program_views",
    "listing": "program_views",
    "memory": "plans",
    "race": "searching",
    "search": "searching",
    "tiles": "plans",
    "tree": "searching",
}

__all__ = [
    "colours",
    "compare",
    "conflicts",
    "graph",
    "listing",
    "memory",
    "race",
    "search",
    "tiles",
    "tree",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
