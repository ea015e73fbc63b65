"""The confidence bound by which the tree search chooses, for views of a search.

The search itself computes the same formula in a kernel (``selection._choose``). Reference: TOAST
section 4.2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toast_lab.search.methods import Mcts
from toast_lab.search.trace import Trace

#: warmths that walks take in turn: widths of the window below the best reward that counts as good
WARMTHS = tuple(0.03 * 4.0**k for k in range(4))
OVER_LIMIT_PENALTY = 0.5  #: reward lost by a plan that does not fit, as in ``rollout``


class Steering(NamedTuple):
    """Options of ``mcts`` that the confidence bound depends on, with their defaults."""

    exploration: float = Mcts.exploration
    length_penalty: float = Mcts.length_penalty
    prior_visits: float = Mcts.prior_visits


DEFAULTS = Steering()


def rewards(trace: Trace, row_count: int, length_penalty: float) -> np.ndarray:
    """[n] rewards of the first ``row_count`` simulations.

    A reward is -log C(s), less ``length_penalty`` per action, less ``OVER_LIMIT_PENALTY`` if the
    plan does not fit.
    """
    row = trace.row
    length = np.diff(row["action_end"][:row_count], prepend=0)
    reward: np.ndarray = (
        -np.log(np.maximum(row["score"][:row_count], 1e-12)) - length_penalty * length
    )
    return reward - OVER_LIMIT_PENALTY * ~row["fits"][:row_count]


def priors(mean_reward: np.ndarray) -> np.ndarray:
    """Prior weights, 0 to 1, of actions not yet tried in a place; 1 where nothing is known.

    Args:
        mean_reward: [words] mean reward of the simulations that took the action anywhere; NaN: none
            did.
    """
    is_known = np.isfinite(mean_reward)
    highest = mean_reward[is_known].max() if is_known.any() else 0.0
    return np.where(
        is_known, np.exp(np.minimum(0.0, np.where(is_known, mean_reward, highest) - highest)), 1.0
    )


def upper_bounds(
    visits: np.ndarray,
    mean_reward: np.ndarray,
    best_reward: np.ndarray,
    prior: np.ndarray,
    top: float,
    steering: Steering = DEFAULTS,
    warmths: tuple[float, ...] = WARMTHS,
) -> np.ndarray:
    """Upper confidence bounds of the actions at one place; the search takes the largest next.

    The bounds are means over ``warmths``.

    Args:
        visits: [C] trajectories that took the action at this place.
        mean_reward: [C] mean reward of these trajectories; any number where there are none.
        best_reward: [C] best reward of these trajectories.
        prior: [C] as from ``priors``.
        top: best reward of the whole search.
        steering: the options that weigh the terms.
        warmths: a reward has the value ``exp((reward - top) / warmth)``.
    """
    counts = np.asarray(visits, float)
    tried = counts > 0
    mean, best = np.where(tried, mean_reward, top), np.where(tried, best_reward, top)
    bonus = steering.exploration * np.sqrt(np.log(counts.sum() + 1.0) / (counts + 1.0))
    bounds = np.zeros(len(counts))
    for warmth in warmths:
        value = 0.5 * (np.exp((mean - top) / warmth) + np.exp((best - top) / warmth))
        bounds += (steering.prior_visits * prior + counts * value) / (
            counts + steering.prior_visits
        ) + bonus
    return bounds / len(warmths)
