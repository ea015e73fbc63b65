"""The explorer's components as views for notebooks, such as ``toast_lab.views.graph(analysis)``.

Takes: results of the public functions. Gives: a ``CellView`` that a notebook cell shows. Modules
are imported when a view is first used. Start reading at ``view.py``.

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
