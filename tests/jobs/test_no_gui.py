"""Background searches and races need none of the explorer's libraries."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys

for name in ("panel", "holoviews", "bokeh", "param", "pandas"):
    sys.modules[name] = None  # an import of it raises ImportError

import pkgutil
import toast_lab as tl
import toast_lab.jobs
from tests.helpers import analysed

for module in pkgutil.iter_modules(toast_lab.jobs.__path__, "toast_lab.jobs."):
    __import__(module.name)

problem = tl.Problem(analysed("mlp"), {"a": 2})
budget = tl.Budget(seconds=None, evaluations=20)
result = tl.start_search(problem, "beam", budget=budget).result(300.0)
race = tl.start_race(problem, ["beam"], budget).result(300.0)
print(result.plan.actions == race.best.actions, result.evaluations)
"""


def test_searches_and_races_run_where_no_gui_is_installed() -> None:
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("True ")
