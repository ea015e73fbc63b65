"""A program whose every name, file and source line tries to run a script, and its report."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import toast_lab as tl
from toast_lab.report.report import Report

EVIL = "<img src=x onerror=\"document.title='pwned';console.error('pwned')\">"
ENDING = "</script><script>document.title='pwned'</script>"
SOURCE = f"""
import jax.numpy as jnp

def step(arguments):
    x, w = arguments[{EVIL!r}], arguments[{ENDING!r}]
    scores = x @ x.T  # {EVIL}{ENDING}
    return {{{EVIL!r}: jnp.tanh(scores @ x @ w)}}
"""


def evil_report(folder: Path) -> Report:
    """Trace and price the program, and report on it; its file is written to ``folder``."""
    import jax

    path = folder / "<img src=x onerror=alert(1)>.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("evil_program", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shape = jax.ShapeDtypeStruct((32, 32), "float32")
    model = tl.from_jax(
        module.step, {EVIL: shape, ENDING: shape}, dim_names={ENDING: (EVIL, EVIL + "2")}
    )
    problem = tl.Problem(tl.analyse(model), {"data": 4})
    group = next(group for group in problem.analysis.groups if group.resolutions)
    plan = tl.Plan.from_actions(problem, [(group.name, "data", 0)])
    return tl.report(
        problem,
        {EVIL: plan, ENDING: tl.replicated(problem)},
        kept=False,
        command=f"toast-lab report {EVIL}{ENDING}",
    )
