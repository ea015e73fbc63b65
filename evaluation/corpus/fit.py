"""Would factors on our prices help? They are fitted to families and judged on the family left out.

Each class of ops gets one factor on the price of computing, the same for all programs on a machine.
This tests whether factors can correct the errors of the rules; as long as they do not help on
families that were left out, none is used.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import least_squares

from evaluation import pages
from evaluation.corpus.op_classes import CLASSES

if TYPE_CHECKING:
    from evaluation.corpus.judged_plans import Pair

_PRIOR = 0.05  # weight of the prior, a factor of 1, relative to one family


def factors(priced_s: np.ndarray, judged_s: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """[C] positive factors on classes that bring [P, C] priced seconds close to [P] judged seconds.

    They are fitted by robust least squares of logarithms, with a prior at 1.
    """

    def residuals(logarithms: np.ndarray) -> np.ndarray:
        error = np.log(priced_s @ np.exp(logarithms)) - np.log(judged_s)
        return np.concatenate([np.sqrt(weight) * error, np.sqrt(_PRIOR) * logarithms])

    start = np.zeros(priced_s.shape[1])
    return np.exp(least_squares(residuals, start, loss="soft_l1", f_scale=0.3).x)


def ratios(
    pairs: Sequence[Pair], classes: Callable[[Mapping[str, float]], Sequence[float]]
) -> tuple[np.ndarray, np.ndarray]:
    """Priced over judged computing of each pair, without and with factors.

    The factors of a pair are fitted to all families but its own.

    Args:
        pairs: pairs of one machine, with computing priced by class.
        classes: maps seconds by class to the seconds that get one factor each.
    """
    priced_s = np.array([classes(pair.priced["compute_s_by_class"]) for pair in pairs])
    judged_s = np.array([pair.clocked("compute_s")[1] for pair in pairs])
    family = np.array([pair.family for pair in pairs])
    count = collections.Counter(family.tolist())
    weight = np.array([1.0 / count[name] for name in family.tolist()])
    fitted = np.empty(len(pairs))
    for name in count:
        out = family == name
        found = factors(priced_s[~out], judged_s[~out], weight[~out])
        fitted[out] = priced_s[out] @ found / judged_s[out]
    return priced_s.sum(axis=1) / judged_s, fitted


def usable(every: Sequence[Pair]) -> dict[str, list[Pair]]:
    """By target, the pairs that a fit may use, from which held-out families are excluded."""
    groups: dict[str, list[Pair]] = collections.defaultdict(list)
    for pair in every:
        known: Any = pair.priced.get("compute_s_by_class")
        if known and pair.compiled.get("compute_s") and not pair.is_held_out:
            groups[pair.topology].append(pair)
    return {
        topology: members
        for topology, members in groups.items()
        if len({pair.family for pair in members}) >= 4
    }


def table(every: Sequence[Pair]) -> list[str]:
    """A Markdown table of errors of computing, median and 90th percentile."""
    rows = []
    for topology, members in usable(every).items():
        rules, one = ratios(members, lambda by_class: [sum(by_class.values())])
        _, each = ratios(members, lambda by_class: [by_class.get(name, 0.0) for name in CLASSES])
        cells = [_errors(ratio) for ratio in (rules, one, each)]
        families = len({pair.family for pair in members})
        rows.append((topology, len(members), families, *cells))
    columns = ("target", ">plans", ">families", ">rules", ">one factor", ">a factor for each class")
    return pages.table(columns, rows)


def _errors(ratio: np.ndarray) -> str:
    error = np.abs(ratio - 1.0)
    return f"{100 * np.median(error):.0f}%, {100 * np.quantile(error, 0.9):.0f}%"
