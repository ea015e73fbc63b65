"""Compiling ahead of time leaves nothing to compile: the first search by every method is as quick as the second."""

import os
import subprocess
import sys

import pytest

CHILD = """
import numba
from numba.core import event

from toast_lab import warm

compiled = []


class Listener(event.Listener):
    def on_start(self, e):
        compiled.append(e.data["dispatcher"].py_func.__qualname__)

    def on_end(self, e):
        pass


event.register("numba:compile", Listener())
warm.main()
print("warm", len(compiled))
compiled.clear()

from tests.helpers import analysed, small_transformer
from toast_lab.cost.problem import Problem
from toast_lab.search.contract import Budget, search
from toast_lab.search.methods import METHODS

sizes = {"steps": 1, "nodes": 64, "edges": 256, "latent": 32, "hidden": 64, "hidden_layers": 2}
for mesh, analysis in (("4x2", small_transformer(mode="train")), ("8", analysed("gns", **sizes))):
    problem = Problem(analysis, mesh)
    for method in METHODS:
        search(problem, method, budget=Budget(seconds=20, evaluations=60))
        print(mesh, method, compiled)
print("first", len(compiled))
"""


@pytest.mark.slow
def test_the_first_search_by_every_method_compiles_nothing(tmp_path):
    """In an empty cache: what other tests have compiled must not stand in."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=580,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    lines = child.stdout.splitlines()
    assert any(line.startswith("kernels compiled in") for line in lines)
    assert int(next(line for line in lines if line.startswith("warm ")).split()[1]) > 50  # the listener hears
    assert lines[-1] == "first 0", child.stdout
