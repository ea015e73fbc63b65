"""Functions for workers in tests, which import them by name in place of the usual ones."""

from __future__ import annotations

import os
from typing import Any

from toast_lab.sweep import sweep_worker
from toast_lab.sweep.task import SweepTask


def kills_its_worker(given: SweepTask, *args: Any) -> dict[str, Any]:
    """Run a task, but record seed 666 as a death and end the process."""
    if given.seed == 666:
        with open(os.environ["DEATHS"], "a") as file:
            file.write("x")
        os._exit(1)
    return sweep_worker.run_task(given, *args)


def raises(given: SweepTask, *args: Any) -> dict[str, Any]:
    """Raise an error that only a defect would raise."""
    raise ZeroDivisionError("a defect")


def never_ready() -> None:
    """Die before the worker can take a task."""
    os._exit(9)
