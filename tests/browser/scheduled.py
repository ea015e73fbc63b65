"""The explorer with a fake compiler that returns the kept result in ``attention_h100.json``.

The tests of the timeline serve it by ``python -m tests.browser.scheduled PORT``; no compiler has to
be installed.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from toast_lab.app import app_server
from toast_lab.app.plan_store import PlanStore
from toast_lab.runtime.compile import located
from toast_lab.runtime.compiled import Compiled

KEPT = Path(__file__).parent / "attention_h100.json"


def compiled_for(plan: Any) -> Compiled:
    """The kept result, with the current source lines of a plan's program."""
    kept = dataclasses.replace(Compiled.load(KEPT), plan_key=plan.key)
    return located(kept, plan.program)


def start_compile(self: PlanStore, name: str, topology: str = "") -> None:
    """Replaces ``PlanStore.start_compile``: attach the kept result to a plan at once."""
    self.items = [
        item._replace(compiled=compiled_for(item.plan)) if item.name == name else item
        for item in self.items
    ]
    self._notices.say(f"{name}: compiled, as it was once", "good")


if __name__ == "__main__":
    PlanStore.start_compile = start_compile  # type: ignore[method-assign]
    app_server.serve(port=int(sys.argv[1]), model="attention")
