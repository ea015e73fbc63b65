"""How good prices are with and without a rule, over programs whose plans were compiled."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evaluation.ablation.rows import ALL_RULES
from evaluation.accuracy.judge import spearman
from evaluation.compiled_rows import has_peak, key
from evaluation.corpus import programs
from evaluation.corpus.judged_plans import FEWEST
from evaluation.row_files import Row

CHANGED = 0.01  #: least share by which a price has to change to count
RESAMPLES = 100  #: draws of programs, with repetition, by which noise is judged


class Plan(NamedTuple):
    """One price of a compiled plan, beside what the compiler says."""

    time_s: float
    clocked_s: float  #: without the ops for which the compiler gives no time
    peak_bytes: float
    told_s: float  #: by the compiler; 0: it has no time
    told_clocked_s: float
    told_bytes: float  #: 0: not known
    fits: bool


class Judged(NamedTuple):
    """The figures of one program on one target."""

    rank: float  #: Spearman's correlation of priced with compiled times; nan for few plans
    #: Share by which the plan of the least price is slower than the best; nan for one plan
    regret: float
    peak_errors: np.ndarray  #: share by which each priced peak is off
    time_errors: np.ndarray  #: share by which each priced time is off


class Subject(NamedTuple):
    """A program on a target, priced with all rules and without some."""

    program: str
    before: tuple[Plan, ...]
    after: tuple[Plan, ...]

    @property
    def is_held_out(self) -> bool:
        """Was no rule read off the program?"""
        family = programs.PROGRAMS[self.program].family
        return family in programs.HELD_OUT or self.program in programs.JUDGED_LATE

    def changed(self, quantity: str) -> int:
        """Number of plans with another "time_s" or "peak_bytes" without the rules."""
        pairs = zip(self.before, self.after, strict=True)
        prices = [(getattr(plan, quantity), getattr(other, quantity)) for plan, other in pairs]
        return sum(abs(after / before - 1.0) > CHANGED for before, after in prices if before > 0.0)


@functools.lru_cache(maxsize=8192)
def judged(plans: tuple[Plan, ...], /) -> Judged:
    """Judge the prices of one program's plans."""
    clocked = [(plan.clocked_s, plan.told_clocked_s) for plan in plans if plan.told_clocked_s > 0.0]
    ours, theirs = zip(*clocked, strict=True) if clocked else ((), ())
    fitting = [(plan.time_s, plan.told_s) for plan in plans if plan.told_s > 0.0 and plan.fits]
    chosen, best = (
        min(fitting, default=(0.0, 0.0))[1],
        min((told_s for _, told_s in fitting), default=0.0),
    )
    return Judged(
        rank=spearman(ours, theirs, FEWEST),
        regret=chosen / best - 1.0 if len(fitting) > 1 else math.nan,
        peak_errors=np.asarray(
            [abs(plan.peak_bytes / plan.told_bytes - 1.0) for plan in plans if plan.told_bytes]
        ),
        time_errors=np.asarray([abs(price / told_s - 1.0) for price, told_s in clocked]),
    )


class Figures(NamedTuple):
    """How good prices are over some programs."""

    rank: float  #: mean over programs
    regret: float  #: mean over programs
    peak_error: float  #: median over plans
    time_error: float  #: median over plans


def figures(every: Sequence[Judged]) -> Figures:
    """Figures over programs; nan where none has any."""
    ranks = [each.rank for each in every if not math.isnan(each.rank)]
    regrets = [each.regret for each in every if not math.isnan(each.regret)]
    peak_errors = np.concatenate([np.zeros(0), *(each.peak_errors for each in every)])
    time_errors = np.concatenate([np.zeros(0), *(each.time_errors for each in every)])
    return Figures(
        rank=float(np.mean(ranks)) if ranks else math.nan,
        regret=float(np.mean(regrets)) if regrets else math.nan,
        peak_error=float(np.median(peak_errors)) if len(peak_errors) else math.nan,
        time_error=float(np.median(time_errors)) if len(time_errors) else math.nan,
    )


def worse_without(every: Sequence[Subject]) -> Figures:
    """For each figure, in what share of the draws of programs it is worse without the rules.

    A draw in which it is the same counts as half of one.
    """
    before = [judged(each.before) for each in every]
    after = [judged(each.after) for each in every]
    draws = np.random.default_rng(0).integers(len(every), size=(RESAMPLES, len(every)))
    worse = np.zeros(len(Figures._fields))
    for draw in draws.tolist():
        change = np.subtract(
            figures([after[index] for index in draw]), figures([before[index] for index in draw])
        )
        change[0] *= -1.0  # a higher rank is better
        worse += (change > 0.0) + 0.5 * (change == 0.0)
    return Figures(*(worse / RESAMPLES).tolist())


def choices(every: Sequence[Subject]) -> tuple[int, int]:
    """Numbers of programs for which the rules let prices choose a better plan, and a worse one."""
    pairs = [(judged(each.before).regret, judged(each.after).regret) for each in every]
    return sum(before < after for before, after in pairs), sum(
        before > after for before, after in pairs
    )


def subjects(
    rows: Sequence[Row], compiled: Sequence[Row]
) -> dict[tuple[str, str], dict[str, list[Subject]]]:
    """Programs by (topology, state of the code) and what was left out, in the order of the rows."""
    told = {key(row): row for row in compiled}
    base = {_problem(row): row for row in rows if row["rule"] == ALL_RULES}
    groups: dict[tuple[str, str], dict[str, list[Subject]]] = collections.defaultdict(dict)
    for row in rows:
        before = base.get(_problem(row))
        if before is not None:
            plans = [
                Subject(row["program"], _plans(before, before, told), _plans(row, before, told))
            ]
            by_rule = groups[row["topology"], row["state"]]
            by_rule.setdefault(row["rule"], []).extend(plans)
    return groups


def _plans(row: Row, base: Row, told: Mapping[tuple[str, str, str, str], Row]) -> tuple[Plan, ...]:
    """The plans of a row, as far as their compiled rows are still there."""
    priced = {**base, **row}  # a row that changes no price has none of its own
    plans = list[Plan]()
    for name, time_s, unclocked_s, peak_bytes, told_unclocked_s in zip(
        base["plans"],
        priced["time_s"],
        priced["unclocked_s"],
        priced["peak_bytes"],
        base["told_unclocked_s"],
        strict=True,
    ):
        topology = base["topology"]
        verdict = told.get((base["program"], base["digest"], topology, name))
        if verdict is None:
            continue
        told_s = float(verdict.get("time_s") or 0.0)
        known = has_peak(topology, verdict.get("reading"))
        plans.append(
            Plan(
                time_s=time_s,
                clocked_s=time_s - unclocked_s,
                peak_bytes=peak_bytes,
                told_s=told_s,
                told_clocked_s=max(told_s - told_unclocked_s, 0.0),
                told_bytes=float((verdict.get("peak_bytes") or 0.0) if known else 0.0),
                fits=bool(verdict.get("fits")),
            )
        )
    return tuple(plans)


def _problem(row: Row) -> tuple[str, ...]:
    return row["state"], row["program"], row["digest"], row["topology"]
