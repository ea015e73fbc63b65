"""Targets that were set for prices and plans, and the figures that were reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from evaluation import pages
from evaluation.corpus.cells import number, percent
from evaluation.corpus.judged_plans import (
    Pair,
    by_family,
    by_problem,
    errors,
    median,
    ranks,
    regrets,
)
from evaluation.corpus.reasons import ORDERS, PEAKS, TIMES, reason
from evaluation.corpus.targets import JUDGED_ON

MOST_NAMED = 5  #: programs named as the reason for a missed target


def targets(every: Sequence[Pair]) -> list[str]:
    """A Markdown table of targets, figures reached, and the reasons for missed targets."""
    clocked = [pair for pair in every if pair.compiled.get("time_s")]
    unseen = [pair for pair in clocked if pair.is_unseen and pair.topology == JUDGED_ON]
    rows = []
    for goal in _GOALS:
        reached, of_all = goal.figure(unseen), goal.figure(clocked)
        if reached is None:
            continue
        is_met = goal.is_met(reached)
        shown = (goal.shown(reached), "" if of_all is None else goal.shown(of_all))
        verdict = ("met", "") if is_met else ("missed", goal.behind(unseen))
        rows.append((goal.text, *shown, *verdict))
    return pages.table(("target", ">no rule was read off", ">all", "", "behind it"), rows)


def _family_ranks(members: Sequence[Pair]) -> dict[str, float]:
    """The median rank correlation of each family that can be ranked."""
    medians = {family: median(ranks(group)) for family, group in by_family(members).items()}
    return {family: median for family, median in medians.items() if median is not None}


def _reasons_of(family: str, members: Sequence[Pair]) -> str:
    """Known reasons why a family's plans are ranked in the wrong order."""
    names = sorted({pair.program for pair in members if pair.family == family})
    return "; ".join(dict.fromkeys(ORDERS[name] for name in names if name in ORDERS))


def _with_reason(figure: str, why: str) -> str:
    return f"{figure} ({why})" if why else figure


def _worst_programs(
    members: Sequence[Pair],
    figure: Callable[[Sequence[Pair]], float | None],
    bound: float,
    known: Mapping[str, str] = TIMES,
) -> str:
    """The programs beyond a bound, worst first, with known reasons."""
    beyond = [
        (value, group[0].program)
        for group in by_problem(members)
        if (value := figure(group)) is not None and value > bound
    ]
    named = sorted(beyond, reverse=True)[:MOST_NAMED]
    return "; ".join(
        _with_reason(f"{program} {percent(value)}", reason(program, known))
        for value, program in named
    )


def _median_error(name: str) -> Callable[[Sequence[Pair]], float | None]:
    return lambda members: median(errors(pair.ratio(name) for pair in members))


def _refused(members: Sequence[Pair]) -> float:
    """Number of plans that fit by our price but not by the compiler."""
    return sum(bool(pair.priced["fits"]) and not pair.compiled["fits"] for pair in members)


class Goal(NamedTuple):
    """A bound that was set for a figure."""

    text: str
    figure: Callable[[Sequence[Pair]], float | None]
    shown: Callable[[float], str]
    is_met: Callable[[float], bool]
    behind: Callable[[Sequence[Pair]], str]  #: explains why the goal was missed


_GOALS = (
    Goal(
        "order at least 0.9 in every family",
        lambda members: min(_family_ranks(members).values(), default=None),
        lambda value: f"{value:.2f} at least",
        lambda value: value >= 0.9,
        lambda members: "; ".join(
            _with_reason(f"{family} {value:.2f}", _reasons_of(family, members))
            for family, value in sorted(_family_ranks(members).items(), key=lambda item: item[1])
            if value < 0.9
        ),
    ),
    Goal(
        "order 0.95 in the median",
        lambda members: median(list(_family_ranks(members).values())),
        number,
        lambda value: value >= 0.95,
        lambda members: "",
    ),
    Goal(
        "time off by at most 15% in the median",
        _median_error("time_s"),
        percent,
        lambda value: value <= 0.15,
        lambda members: _worst_programs(members, _median_error("time_s"), 0.15),
    ),
    Goal(
        "peak off by at most 10% in the median",
        _median_error("peak_bytes"),
        percent,
        lambda value: value <= 0.1,
        lambda members: _worst_programs(members, _median_error("peak_bytes"), 0.1, PEAKS),
    ),
    Goal(
        "no plan called fitting that the compiler refuses",
        _refused,
        lambda value: f"{value:.0f} plans",
        lambda value: value == 0,
        lambda members: "",
    ),
    Goal(
        "regret at most 5% in the median",
        lambda members: median(regrets(members)),
        percent,
        lambda value: value <= 0.05,
        lambda members: _worst_programs(members, lambda group: median(regrets(group)), 0.05),
    ),
    Goal(
        "regret at most 15% at worst",
        lambda members: max(regrets(members), default=None),
        percent,
        lambda value: value <= 0.15,
        lambda members: _worst_programs(members, lambda group: median(regrets(group)), 0.15),
    ),
)
