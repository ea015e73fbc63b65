"""Exported Python runs without TOAST Lab and computes what the function computes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import toast_lab as tl
from tests.export import library_steps, run_exported
from tests.export.written_by_hand import site_at, written_plan
from toast_lab.export.written_patch import to_patch
from toast_lab.export.written_python import to_python
from toast_lab.runtime.devices import Devices, environment

X_AND_Y = {r"^[xy]$": (("data",), ())}
COLUMNS, ROWS = ((), ("model",)), (("model",), ())
RULES: dict[str, dict[str, Any]] = {
    "plain": {r"\['(up|bias)'\]$": (("model",),), r"\['down'\]$": ROWS, **X_AND_Y},
    "linen": {r"'up'\]\['kernel'\]$": COLUMNS, r"'down'\]\['kernel'\]$": ROWS, **X_AND_Y},
    "nnx": {r"\blayers\[0\]\.kernel$": COLUMNS, r"\blayers\[1\]\.kernel$": ROWS, **X_AND_Y},
    "equinox": {r"layers\[0\]\.weight$": ROWS, r"layers\[1\]\.weight$": COLUMNS, **X_AND_Y},
    "haiku": {r"'linear'\]\['w'\]$": COLUMNS, r"'linear_1'\]\['w'\]$": ROWS, **X_AND_Y},
}
PACKAGES = {
    "plain": "optax",
    "linen": "flax",
    "nnx": "flax",
    "equinox": "equinox",
    "haiku": "haiku",
}
INSTALLED = [name for name in RULES if importlib.util.find_spec(PACKAGES[name]) is not None]


def run(folder: Path, jobs: list[tuple[str, dict[str, int], str]]) -> list[dict[str, Any]]:
    """Run exported files in a child process that has eight devices and no TOAST Lab."""
    done = subprocess.run(
        [sys.executable, run_exported.__file__, str(folder), json.dumps(jobs)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, **environment(Devices("cpu", 8)), "PYTHONPATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


def model_of(case: library_steps.Case, name: str) -> tl.Model:
    return tl.from_jax(case.step, *case.fresh(), donate_argnums=case.donated, name=name)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the files of all libraries compute; the plain one also with other sizes and patched."""
    folder = tmp_path_factory.mktemp("exported")
    source = folder / "library_steps.py"
    for name in ("library_steps", "original_steps"):
        (folder / f"{name}.py").write_text(Path(library_steps.__file__).read_text())
    texts = {}
    for name in INSTALLED:
        case = getattr(library_steps, name)()
        site = site_at(source, HIDDEN[name], "hidden")
        constraint = (site, (("data",), ("model",)))
        written = written_plan(model_of(case, name), RULES[name], [constraint])
        texts[name] = to_python(written)
        (folder / f"{name}_sharding.py").write_text(texts[name])
        source.write_text(to_patch(written, folder).sources[str(source)])
    jobs = [(name, dict[str, int](), f"{name}_sharding") for name in INSTALLED]
    jobs.append(("plain", {"layers": 3, "width": 32}, "plain_sharding"))
    results = run(folder, jobs)
    keys = [*INSTALLED, "deeper"]
    return {key: {**result, "text": texts.get(key)} for key, result in zip(keys, results)}


HIDDEN = {
    "plain": "hidden = jnp.tanh(",
    "linen": "hidden = nn.Dense(",
    "nnx": "hidden = nnx.relu(",
    "equinox": "hidden = jax.vmap(",
    "haiku": "hidden = jax.nn.relu(",
}


@pytest.mark.parametrize("name", RULES)
def test_exported_files_train_as_the_function_does(name: str, outcomes: dict[str, Any]) -> None:
    if name not in INSTALLED:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    outcome = outcomes[name]
    assert outcome["losses"] == pytest.approx(outcome["unsharded"], rel=1e-5)
    assert outcome["losses"] == pytest.approx(outcome["unplaced"], rel=1e-5)
    assert outcome["losses"][2] < outcome["losses"][0]
    assert outcome["text"].count("\n") <= 80
    assert outcome.get("constraints", 2) >= 2  # the value's and its cotangent's
