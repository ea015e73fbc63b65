"""Which models are loaded without a child process, and which files may be read at all."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from toast_lab.errors import FrontendError
from toast_lab.jobs.load_job import LoadedModel, load_model

MAX_UPLOAD_BYTES = 64 * 2**20  #: of a file dropped on the page
READ_LIMIT_S = 120.0
QUICK_MODELS = ("mlp", "xxt", "crossed", "attention")


@functools.lru_cache(maxsize=16)
def _load_cached(which: str, sizes: tuple[tuple[str, Any], ...]) -> LoadedModel:
    return load_model(which, dict(sizes))


def load_at_once(which: str, sizes: Mapping[str, Any]) -> LoadedModel:
    """Load a built-in model without a child; one that was loaded before costs nothing."""
    return _load_cached(which, tuple(sorted(sizes.items())))


def loads_at_once(which: str, sizes: Mapping[str, Any]) -> bool:
    """Is a built-in model small enough to be traced without a child?

    A child takes seconds to start.
    """
    if which == "transformer":
        layers = sizes.get("layers", 2)
        return isinstance(layers, int) and layers <= 2
    return which in QUICK_MODELS


def refuse_file(name: str, nbytes: int) -> None:
    """Refuse a file that is evidently wrong before it is read. Raises FrontendError."""
    if name.casefold().endswith((".py", ".ipynb", ".pyc", ".so")):
        raise FrontendError(
            f"{name} is code, and a file dropped here is never run. Start the server with your own "
            "model: toast-lab serve my.module:make. Or export it first, with "
            "jax.export.export(f)(*args).serialize()"
        )
    if nbytes > MAX_UPLOAD_BYTES:
        raise FrontendError(
            f"{name} has {nbytes / 2**20:.1f} MiB; at most {MAX_UPLOAD_BYTES / 2**20:.0f} MiB are "
            "allowed here. Such a file usually holds weights as constants: export the program with "
            "its parameters as arguments, or read it with tl.from_stablehlo(path) and "
            "tl.explore(model)."
        )
    if not nbytes:
        raise FrontendError(f"{name} is empty")
