"""What workers do with tasks in tests; workers import it by name."""

from __future__ import annotations

import os
from typing import Any

from toast_lab.sweep import sweep_worker
from toast_lab.sweep.task import SweepTask


def kills_its_worker(given: SweepTask, *args: Any) -> dict[str, Any]:
    """Ends the process on one seed, and notes that it did."""
    if given.seed == 666:
        with open(os.environ["DEATHS"], "a") as file:
            file.write("x")
        os._exit(1)
    return sweep_worker.run_task(given, *args)


def raises(given: SweepTask, *args: Any) -> dict[str, Any]:
    """What a defect does."""
    raise ZeroDivisionError("a defect")


def never_ready() -> None:
    """A worker that dies before it can take anything."""
    os._exit(9)
