"""What workers do with tasks in tests; workers import it by name."""

from __future__ import annotations

import os
from typing import Any

from toast_lab.sweep import worker
from toast_lab.sweep.task import Task


def kills_its_worker(given: Task, *args: Any) -> dict[str, Any]:
    """Ends the process on one seed, and notes that it did."""
    if given.seed == 666:
        with open(os.environ["DEATHS"], "a") as file:
            file.write("x")
        os._exit(1)
    return worker.run_task(given, *args)


def raises(given: Task, *args: Any) -> dict[str, Any]:
    """What a defect does."""
    raise ZeroDivisionError("a defect")


def never_ready() -> None:
    """A worker that dies before it can take anything."""
    os._exit(9)
