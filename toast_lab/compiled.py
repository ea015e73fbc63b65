"""Numba's cache on disk, made to notice edits of other files.

Numba keeps what it compiled until the file of the function itself changes.  What the function calls in other files is
compiled into it, so after an edit there the old code would go on running, and two readers of one plan would disagree.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def depends_on(*modules: ModuleType) -> Callable[[Any], Any]:
    """Decorator for a cached numba function: compile it anew also when one of ``modules`` was edited.

    Numba has no public way to say so; where its private one is not found, its cache is left as it is.
    """

    def apply(function: Any) -> Any:
        files = getattr(getattr(function, "_cache", None), "_cache_file", None)
        own = getattr(files, "_source_stamp", None)
        if files is not None and own is not None:
            files._source_stamp = (own, *(stamp(module) for module in modules))
        return function

    return apply


def stamp(module: ModuleType) -> tuple[float, int]:
    """When the file of a module was written, and its size."""
    assert module.__file__ is not None
    found = Path(module.__file__).stat()
    return found.st_mtime, found.st_size
