"""Try the installed package; ``scripts/package.sh`` runs this in an empty environment."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys

import jax
import jax.numpy as jnp

import toast_lab as tl

#: module that needs the extra, by extra
LOADS = {"app": "toast_lab.app.explorer", "models": "toast_lab.models.transformer"}


def core() -> None:
    """Run five lines as a user would, and check that no package of an extra is installed."""
    shape = jax.ShapeDtypeStruct((512, 512), "float32")
    model = tl.from_jax(lambda x, w: jnp.tanh(x @ w), shape, shape)
    problem = tl.Problem(tl.analyse(model), mesh={"data": 4}, machine="tpu-v5e")
    result = tl.search(problem, budget=tl.Budget(seconds=None, evaluations=100))
    print(result, *result.plan.actions, tl.listing(problem, result.plan), sep="\n")
    extras = [name for name in ("optax", "panel", "pandas") if importlib.util.find_spec(name)]
    assert not extras, f"the core brought {extras} along"


assert importlib.metadata.version("toast-lab") == tl.__version__
assert "site-packages" in (tl.__file__ or ""), tl.__file__
if extra := sys.argv[1]:
    print(importlib.import_module(LOADS[extra]).__name__, "loads")
else:
    core()
print(f"toast-lab {tl.__version__} with jax {jax.__version__}, Python {sys.version.split()[0]}")
