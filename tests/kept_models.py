"""Programs that several test files need, traced once in a run.

The workers of a run share them as files in its own folder; the next run traces them anew, so that
none is older than the code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path

from toast_lab.ir.model import Model, Recipe


def kept(key: str, make: Callable[[], Model], function: Recipe | None = None) -> Model:
    """What ``make`` gives, made by whoever asks first.

    It is for tests of what becomes of a program: what a trace gives beside that, the user's own
    function, is not there, whoever made it.

    Args:
        key: tells programs apart.
        make: traces the program.
        function: how others make its function.
    """
    folder = os.environ.get("TOAST_LAB_TESTS_DATA")
    if folder is None:  # not in pytest: a command of tests.certification, say
        return make()
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    path = Path(folder) / "models" / f"{name}.pickle"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(pickle.dumps(make(), pickle.HIGHEST_PROTOCOL))
        partial.replace(path)  # two may have made it: it is the same
    model: Model = pickle.loads(path.read_bytes())
    return dataclasses.replace(model, function=function)
