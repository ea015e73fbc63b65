"""Frontends: a JAX function, a torch module or a StableHLO file becomes a ``Model``.

Takes: functions and pytrees, modules, files or bytes; ``module:make`` names a function that makes
the model. Gives: a ``Model``, which is the Program with argument paths, source lines and donated
arguments, and its StableHLO text. Nothing is materialised: arrays become shapes. The paper's own
input is JAX programs (section 4).
Start reading at ``tracing.from_jax``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {
    "from_jax": "tracing",
    "from_stablehlo": "stablehlo_files",
    "from_torch": "pytorch",
    "kernel_rule": "wrapped_kernels",
    "load": "loading",
}

__all__ = ["from_jax", "from_stablehlo", "from_torch", "kernel_rule", "load"]

if TYPE_CHECKING:
    from toast_lab.frontends.loading import load
    from toast_lab.frontends.pytorch import from_torch
    from toast_lab.frontends.stablehlo_files import from_stablehlo
    from toast_lab.frontends.tracing import from_jax
    from toast_lab.frontends.wrapped_kernels import kernel_rule


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'toast_lab.frontends' has no attribute {name!r}")
    return getattr(importlib.import_module(f"toast_lab.frontends.{_NAMES[name]}"), name)
