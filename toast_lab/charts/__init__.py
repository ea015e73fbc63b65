"""Charts of results, as HoloViews elements: ``toast_lab.charts.search(result)`` and so on.

Takes results of the public functions. Gives the elements that the explorer and reports show: put
them side by side with ``+``, on top of each other with ``*``, change them with ``.opts`` and link
them with ``holoviews.link_selections.instance(index_cols=["plan"])``. ``save`` writes one to a
file, SVG or PNG. ``tl.views`` has the explorer's components, with their tables and buttons. Start
reading at ``of_results``.

Examples:
    >>> import toast_lab as tl
    >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
    >>> result = tl.search(problem, budget=tl.Budget(None, 200))
    >>> curves = tl.charts.search(result)
    >>> rows = tl.charts.time_memory({"found": result}, problem)
    >>> type(rows).__name__
    'Overlay'
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toast_lab.charts.of_results import (
        breakdown,
        choices,
        confirm,
        memory,
        race,
        save,
        search,
        step,
        time_memory,
    )

__all__ = [
    "breakdown",
    "choices",
    "confirm",
    "memory",
    "race",
    "save",
    "search",
    "step",
    "time_memory",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.of_results"), name)


def __dir__() -> list[str]:
    return list(__all__)
