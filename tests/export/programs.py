"""Functions that the tests of ``export`` run on 8 virtual devices.

Each runs in its own process and returns plain data.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import toast_lab as tl


def imported(text: str, name: str = "exported") -> Any:
    """Import exported Python as a module."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module


def drift(folder: str) -> dict[str, Any]:
    """Run the exported test of a plan by pytest, in three variants.

    As exported, with a different record, and with a model that has changed.
    """
    model = tl.load("mlp")
    problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2}, "cpu")
    plan = tl.Plan.from_specs(problem, {"x": ("data", None), "w1": (None, "model")})
    plan.save(Path(folder) / "plan.json")
    text = plan.to_test("mlp", "plan.json")
    outcomes = {"text": text}
    for name, written in (
        ("same", text),
        ("record", text.replace('"count": 1.0', '"count": 2.0', 1)),
        ("model", text.replace("**{}", "**{'batch': 6}")),
    ):
        path = Path(folder) / f"test_{name}.py"
        path.write_text(written)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=folder,
            check=False,
            # It needs no plugins, and loading ours takes longer than its test
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
        outcomes[name] = f"{done.returncode} {done.stdout}"
    return outcomes
