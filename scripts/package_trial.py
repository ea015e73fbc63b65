"""What the installed package can do: run by ``scripts/package.sh`` in an empty environment."""

import importlib.metadata
import importlib.util
import sys

import jax
import jax.numpy as jnp

import toast_lab as tl

model = tl.from_jax(lambda x, w: jnp.tanh(x @ w), *[jax.ShapeDtypeStruct((512, 512), "float32")] * 2)
problem = tl.Problem(tl.analyse(model), mesh={"data": 4}, machine="tpu-v5e")
result = tl.search(problem, budget=tl.Budget(seconds=None, evaluations=100))
print(result, *result.plan.actions, sep="\n")
print(tl.listing(problem, result.plan))

assert importlib.metadata.version("toast-lab") == tl.__version__
assert "site-packages" in (tl.__file__ or ""), tl.__file__
if "app" in sys.argv[1:]:
    import toast_lab.app.explorer

    print(toast_lab.app.explorer.__name__, "imports")
else:
    extras = [name for name in ("optax", "panel", "pandas") if importlib.util.find_spec(name)]
    assert not extras, f"the core brought {extras} along"
print(f"toast-lab {tl.__version__} with jax {jax.__version__}, Python {sys.version.split()[0]}")
