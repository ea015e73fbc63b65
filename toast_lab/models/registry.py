"""The built-in models by name.  Each module has ``make(**sizes) -> Example`` and is imported on demand."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from toast_lab.errors import FrontendError, did_you_mean


class Example(NamedTuple):
    """A model ready to trace."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()
    dim_names: Mapping[str, tuple[str, ...]] = {}


MODELS: dict[str, tuple[str, str]] = {
    "mlp": ("toast_lab.models.mlp:make", "two linear layers, the paper's first example"),
    "xxt": ("toast_lab.models.xxt:make", "x @ x.T, the smallest sharding conflict"),
    "attention": ("toast_lab.models.attention:make", "the paper's simplified attention, five conflicts"),
    "transformer": (
        "toast_lab.models.transformer:make",
        "Gemma-style Transformer: forward, gradient or Adam training step",
    ),
}


def maker(name: str) -> Callable[..., Example]:
    """The ``make`` function of a built-in model.  Raises FrontendError with close names."""
    if name not in MODELS:
        raise FrontendError(
            f"no built-in model is called {name!r}{did_you_mean(name, MODELS)}; built in: {', '.join(MODELS)}. "
            'Your own model is loaded as "package.module:make".'
        )
    module, _, function = MODELS[name][0].partition(":")
    return getattr(importlib.import_module(module), function)


def sizes(name: str) -> dict[str, Any]:
    """Parameters of a built-in model with their defaults."""
    return {k: p.default for k, p in inspect.signature(maker(name)).parameters.items()}


def make(name: str, **kwargs: Any) -> Example:
    """Build a built-in model; unknown sizes are refused by name."""
    known = sizes(name)
    unknown = [k for k in kwargs if k not in known]
    if unknown:
        raise FrontendError(
            f"{name} has no parameter {', '.join(unknown)}; it has {', '.join(f'{k}={v}' for k, v in known.items())}"
        )
    try:
        return maker(name)(**kwargs)
    except (ValueError, TypeError) as error:
        raise FrontendError(str(error)) from None
