"""Which of two plans with nearly one price is the better one, by the compiler's clock?

A search has to take one of them. Here each way to choose by what is simpler, or leaner, is counted
over all pairs of compiled plans of one program whose prices are that near.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Sequence

from evaluation import pages
from evaluation.corpus.judged_plans import Pair, by_problem
from evaluation.corpus.targets import CLOCKED
from toast_lab.runtime.diff_rows import CHANGED, EQUAL, MISSING

WITHIN = (1e-4, 3e-3, 1e-2)  #: shares by which prices of a pair may differ
TOLD_APART = 0.01  #: least share by which the compiler's times differ

#: Ways to choose: the plan with less of this
WAYS: dict[str, Callable[[Pair], float]] = {
    "fewer collectives": lambda pair: sum(
        pair.priced["collectives"].get(outcome, 0) for outcome in (EQUAL, CHANGED, MISSING)
    ),
    "fewer bytes sent": lambda pair: pair.priced["priced_bytes"],
    "fewer actions": lambda pair: len(pair.compiled.get("actions") or ()),
    "lower peak": lambda pair: pair.priced["peak_bytes"],
}


def lines(every: Iterable[Pair]) -> list[str]:
    """The table of all targets."""
    timed = [pair for pair in every if pair.compiled.get("time_s")]
    rows = list[Sequence[object]]()
    for topology in CLOCKED:
        groups = by_problem(pair for pair in timed if pair.topology == topology)
        for within in WITHIN:
            near = [couple for group in groups for couple in near_ties(group, within)]
            rows.append(
                (
                    topology,
                    f"{within:.2%}",
                    len(near),
                    *(_cell(near, amount) for amount in WAYS.values()),
                )
            )
    return pages.table(("target", ">priced within", ">pairs", *(f">{way}" for way in WAYS)), rows)


def near_ties(group: Iterable[Pair], within: float) -> list[tuple[Pair, Pair]]:
    """Pairs of plans of a program with nearly one price that a compiler tells apart.

    The compiler's faster one comes first. Both fit, or neither does.
    """
    near = list[tuple[Pair, Pair]]()
    for couple in itertools.combinations(group, 2):
        fast, slow = sorted(couple, key=lambda pair: float(pair.compiled["time_s"]))
        if (
            slow.compiled["time_s"] > fast.compiled["time_s"] * (1.0 + TOLD_APART)
            and abs(fast.priced["time_s"] / slow.priced["time_s"] - 1.0) <= within
            and fast.priced["fits"] == slow.priced["fits"]
        ):
            near.append((fast, slow))
    return near


def choices(
    near: Iterable[tuple[Pair, Pair]], amount: Callable[[Pair], float]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """(Right, wrong) choices of the plan with less of something: of programs, and of pairs.

    A program counts for what most of its pairs say.
    """
    tally = collections.Counter[tuple[str, bool]]()
    for fast, slow in near:
        # What differs by less is rounding
        if abs(amount(fast) - amount(slow)) > 1e-3 * abs(amount(fast)):
            tally[fast.program, amount(fast) < amount(slow)] += 1
    lead = [
        tally[program, True] - tally[program, False]
        for program in sorted({program for program, _ in tally})
    ]
    return (sum(each > 0 for each in lead), sum(each < 0 for each in lead)), (
        sum(count for (_, is_right), count in tally.items() if is_right),
        sum(count for (_, is_right), count in tally.items() if not is_right),
    )


def _cell(near: Sequence[tuple[Pair, Pair]], amount: Callable[[Pair], float]) -> str:
    by_program, by_pair = choices(near, amount)
    return f"{by_program[0]} : {by_program[1]} ({by_pair[0]} : {by_pair[1]})"
