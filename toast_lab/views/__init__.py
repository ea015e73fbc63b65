"""Show results: tidy tables first, then pictures drawn from them (the figures of paper sections 3 and 5).

Takes: what the earlier stages return. Gives: data frames, which the tests check, and HoloViews or Bokeh
elements or SVG drawn from them. Nothing here traces, searches or compiles. Start reading at `graph_layout.py`,
then `graph_plot.py`.

The explorer's components for notebooks are reached through this package, too: `toast_lab.views.graph(analysis)`,
`listing`, `conflicts`, `colours`, `search`, `tree`, `race`, `compare`, `memory` and `tiles`. They live in
`toast_lab.app.cells` and are imported on first use.
"""

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toast_lab.app.cells.plans import compare, memory, tiles
    from toast_lab.app.cells.program import colours, conflicts, graph, listing
    from toast_lab.app.cells.searching import race, search, tree

_VIEWS = {
    "colours": "program",
    "compare": "plans",
    "conflicts": "program",
    "graph": "program",
    "listing": "program",
    "memory": "plans",
    "race": "searching",
    "search": "searching",
    "tiles": "plans",
    "tree": "searching",
}

__all__ = ["colours", "compare", "conflicts", "graph", "listing", "memory", "race", "search", "tiles", "tree"]


def _view(name: str) -> Any:
    return getattr(importlib.import_module(f"toast_lab.app.cells.{_VIEWS[name]}"), name)


class _Module(types.ModuleType):
    """A module of pictures such as ``views.tiles``, which is also the view of that name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _view(self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Package(types.ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # Importing a module of pictures binds it here, over the view called like it.
        if name in _VIEWS and isinstance(value, types.ModuleType):
            value.__class__ = _Module
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _VIEWS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _view(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_VIEWS})
