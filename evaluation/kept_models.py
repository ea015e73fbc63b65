"""Programs that several test files need, traced once in a test run.

The workers of a run share them as files in the run's own folder; the next run traces them again, so
that none is older than the code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path

from toast_lab.ir.model import Model, Recipe
from toast_lab.ir.platforms import ALL_PLATFORMS


def kept(key: str, make: Callable[[], Model], function: Recipe | None = None) -> Model:
    """The model that ``make`` traces, which the first caller in a run makes for all.

    It is for tests of what happens to a program: the user's own function, which a trace also
    gives, is missing for every caller, including the first.

    Args:
        key: identifies the program.
        make: traces the program.
        function: the recipe by which others make its function.
    """
    folder = os.environ.get("TOAST_LAB_TESTS_DATA")
    if folder is None:  # not in pytest but, say, in a command of evaluation.certification
        return make()
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    path = Path(folder) / "models" / f"{name}.pickle"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(pickle.dumps(make(), pickle.HIGHEST_PROTOCOL))
        partial.replace(path)  # if two processes made it, both are the same
    model: Model = pickle.loads(path.read_bytes())
    # Like that of a file, it stands for every platform
    return dataclasses.replace(model, function=function, platforms=ALL_PLATFORMS)
