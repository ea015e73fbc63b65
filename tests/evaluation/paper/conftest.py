"""Made-up rows of an evaluation, for tests of the tables and pages computed from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evaluation.paper.tables import CaseResult


@pytest.fixture
def found() -> Callable[..., CaseResult]:
    """Return a function that makes one search of the evaluation, with its row.

    The search finds its best plan after ``own`` seconds.
    """

    def make(
        case: str, machine: str, method: str, score: float | None = 0.5, **more: Any
    ) -> CaseResult:
        values: dict[str, Any] = {
            "own": 1.0,
            "fits": True,
            "part": "models",
            "x": 0.0,
            "seed": 0,
            "status": "BUDGET",
        }
        values |= more
        own, fits = values["own"], values["fits"]
        time_s = None if score is None else score * 10
        row = {
            "model": "m",
            "sizes": {"layers": 2},
            "mesh": "data=8,model=4",
            "machine": machine,
            "method": method,
            "seed": values["seed"],
            "seconds": 20.0,
            "status": values["status"],
            "message": "",
            "score": score,
            "time_s": time_s,
            "peak_bytes": 2.0**30,
            "memory_limit_bytes": 2.0**34,
            "fits": None if score is None else fits,
            "evaluations": 9,
            "elapsed_s": own * 2,
            "own_best_s": None if score is None else own,
            "prepare_s": 0.25,
            "load_s": 1.0,
            "analyse_s": 0.5,
            "ops": 7,
            "unsharded_time_s": 10.0,
            "unsharded_peak_bytes": 2.0**36,
            "actions": ["a->data"],
            "cpu": "some processor",
            "cores": 2,
            "python": "3.11",
            "code": "c0de",
            "versions": {"jax": "0.10.2"},
            "date": "2026-11-20",
            "curve": []
            if score is None
            else [[0.0, 1.0, 10.0, 1.0, fits, 1], [own, score, time_s, 1.0, fits, 2]],
        }
        return CaseResult(values["part"], case, values["x"], machine, method, values["seed"], row)

    return make
