"""Random plans from the space for which a bound is proven."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from toast_lab.cost.problem import Problem
from toast_lab.search.gap.relaxation import Relaxation

CLOSE = 1.0 + 1e-9  # for sums that are rounded in another order
Arrays = tuple[np.ndarray, np.ndarray]


def random_states(
    problem: Problem, relaxation: Relaxation, count: int, seed: int = 0
) -> Iterator[Arrays]:
    """Plans with each row of ops and values drawn independently, from few cuts to many."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        often = (number + 1) / count

        def rows(menus: list[np.ndarray], often: float = often) -> np.ndarray:
            return np.stack(
                [menu[rng.integers(len(menu)) if rng.random() < often else 0] for menu in menus]
            )

        ops, values = rows(relaxation.menus), rows(relaxation.value_menus)
        yield relaxation.alike.whole(
            problem.analysis.program, ops.astype(np.int32), values.astype(np.int8)
        )
