"""Plans that were both compiled and priced, and how far apart compiler and price are."""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from evaluation.accuracy.judge import spearman
from evaluation.compiled_rows import has_needed_constraints, has_peak, key
from evaluation.corpus import compiled, plans, priced, programs
from evaluation.row_files import Row

FEWEST = 5  #: least number of plans that are ranked

#: Quantities that are compared without the ops for which the compiler gives no time
_WITH_UNCLOCKED = ("time_s", "compute_s")
_TOLD_AS = {"comm_s": "collective_s"}  # names of priced quantities in compiled rows


class Pair(NamedTuple):
    """One plan, compiled and priced."""

    program: str
    topology: str
    plan: str
    compiled: Row
    priced: Row
    other_names: tuple[str, ...] = ()  # names of other plans with the same sharding

    @property
    def family(self) -> str:
        """The family of the program."""
        return programs.PROGRAMS[self.program].family

    @property
    def is_unseen(self) -> bool:
        """Was no rule read off the program?"""
        return self.is_held_out or self.program in programs.JUDGED_LATE

    @property
    def has_needed_constraints(self) -> bool:
        """Was the plan compiled with the constraints that it needs, and no others?"""
        return has_needed_constraints(self.topology, self.compiled.get("reading"))

    @property
    def is_held_out(self) -> bool:
        """Is the program's family held out, so that no rule was read off it?"""
        return self.family in programs.HELD_OUT

    def ratio(self, name: str) -> float | None:
        """Priced over compiled value of one quantity; None if the compiler does not report it."""
        told = self.compiled.get(_TOLD_AS.get(name, name))
        if name == "peak_bytes" and not has_peak(self.topology, self.compiled.get("reading")):
            return None
        if not told:
            return None
        if name not in _WITH_UNCLOCKED:
            return self.priced[name] / told
        priced_s, told_s = self.clocked(name)
        return priced_s / told_s if told_s > 0.0 else None

    def clocked(self, name: str) -> tuple[float, float]:
        """Priced and compiled seconds, without the ops for which the compiler gives no time."""
        priced_s, told_s = self.priced.get("unclocked_s", (0.0, 0.0))
        return self.priced[name] - priced_s, self.compiled[name] - told_s


def pairs() -> list[Pair]:
    """Every plan that was compiled and priced."""
    by_key = {key(row): row for row in priced.rows()}
    others = collections.defaultdict(list)
    for (*head, name), same in compiled.same_plans().items():
        others[(*head, same)].append(name)
    return [
        Pair(
            row["program"],
            row["topology"],
            row["plan"],
            row,
            by_key[key(row)],
            tuple(others[key(row)]),
        )
        for row in compiled.rows()
        if key(row) in by_key and "error" not in row
    ]


def by_family(members: Iterable[Pair]) -> dict[str, list[Pair]]:
    groups = collections.defaultdict(list)
    for pair in members:
        groups[pair.family].append(pair)
    return groups


def by_problem(members: Iterable[Pair]) -> list[list[Pair]]:
    groups = collections.defaultdict(list)
    for pair in members:
        groups[pair.program, pair.topology].append(pair)
    return list(groups.values())


def ranks(members: Iterable[Pair]) -> list[float]:
    """Spearman's rank correlation of time for each program and target with enough plans to rank."""
    found = []
    for group in by_problem(members):
        timed = [pair for pair in group if pair.compiled.get("time_s")]
        ours, theirs = (
            zip(*(pair.clocked("time_s") for pair in timed), strict=True) if timed else ((), ())
        )
        found.append(spearman(ours, theirs, FEWEST))
    return [rank for rank in found if not math.isnan(rank)]


def regrets(members: Iterable[Pair]) -> list[float]:
    """Regret of our search for each program and target.

    It is the share by which our search's plan is slower than the best judged one.
    """
    found = []
    for group in by_problem(members):
        times = fitting_times(group)
        if len(times) > 1 and plans.OURS in times:
            found.append(times[plans.OURS] / min(times.values()) - 1.0)
    return found


def fitting_times(group: Iterable[Pair]) -> dict[str, float]:
    """Compiler's seconds of one program's plans that fit in memory, under each of their names."""
    return {
        name: pair.compiled["time_s"]
        for pair in group
        if pair.compiled.get("time_s") and pair.compiled.get("fits")
        for name in (pair.plan, *pair.other_names)
    }


def collectives(members: Iterable[Pair]) -> tuple[int, int, int]:
    """Numbers of collectives that are equal, that differ for a known reason, and of all others."""
    counts: collections.Counter[str] = collections.Counter()
    n_unexplained = 0
    for pair in members:
        counts.update(pair.priced.get("collectives", {}))
        n_unexplained += pair.priced.get("unexplained", 0)
    n_explained = counts.total() - counts["equal"] - n_unexplained
    return counts["equal"], n_explained, n_unexplained


def errors(ratios: Iterable[float | None]) -> list[float]:
    return [abs(ratio - 1.0) for ratio in ratios if ratio is not None]


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
