"""Which actions a search takes up.  Reference: TOAST section 4.2, where those on fewer than 10 names are discarded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from toast_lab.cost.problem import Problem

if TYPE_CHECKING:
    from toast_lab.search.contract import Recorder


def pruning_threshold(problem: Problem, limit: int = 10) -> int:
    """Fewest names that a colour group must have to be acted on; fewer for programs of under 500 names."""
    total = int((problem.analysis.dims.size > 1).sum())
    return limit if total >= 500 else max(1, limit * total // 500)


def generator(recorder: Recorder, seed: int) -> np.random.Generator:
    """Random numbers of a search; one that is resumed does not draw those again that it drew before."""
    return np.random.default_rng([seed, recorder.trace.row.n] if recorder.resumed else seed)
