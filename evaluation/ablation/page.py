"""The page of what each rule is good for, made from ``ablation.jsonl``."""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from evaluation import pages
from evaluation.ablation.rows import ALL_RULES, ROWS, SETS
from evaluation.accuracy.judge import spearman
from evaluation.compiled_rows import has_peak, key
from evaluation.corpus import compiled, programs
from evaluation.corpus.judged_plans import FEWEST
from evaluation.corpus.targets import CLOCKED
from evaluation.row_files import Row, read_rows
from toast_lab.files import write_whole

PAGE = pages.DOCS / "ablation.md"
CHANGED = 0.01  #: least share by which a price has to change to count


class Priced(NamedTuple):
    """The compiled plans of one program on one target, priced with and without a rule."""

    program: str
    topology: str
    compiled: tuple[Row, ...]
    told_unclocked_s: tuple[float, ...]
    before: Row  #: prices with all rules
    after: Row  #: prices without the rule

    @property
    def is_held_out(self) -> bool:
        """Was no rule read off the program?"""
        family = programs.PROGRAMS[self.program].family
        return family in programs.HELD_OUT or self.program in programs.JUDGED_LATE

    def rank(self, prices: Row) -> float:
        """Spearman's correlation of priced with compiled times; nan for few plans."""
        pairs = list(self._times(prices))
        ours, theirs = zip(*pairs, strict=True) if pairs else ((), ())
        return spearman(ours, theirs, FEWEST)

    def time_errors(self, prices: Row) -> list[float]:
        """Share by which each priced time is off."""
        return [abs(ours / theirs - 1.0) for ours, theirs in self._times(prices)]

    def peak_errors(self, prices: Row) -> list[float]:
        """Share by which each priced peak is off."""
        return [
            abs(ours / row["peak_bytes"] - 1.0)
            for ours, row in zip(prices["peak_bytes"], self.compiled, strict=True)
            if row.get("peak_bytes") and has_peak(self.topology, row.get("reading"))
        ]

    def regret(self, prices: Row) -> float:
        """Share by which the plan of the least price is slower than the best; nan for one plan."""
        timed = [
            (ours, row["time_s"])
            for ours, row in zip(prices["time_s"], self.compiled, strict=True)
            if row.get("time_s") and row.get("fits")
        ]
        if len(timed) < 2:
            return math.nan
        return min(timed)[1] / min(theirs for _, theirs in timed) - 1.0

    def changed(self, quantity: str) -> int:
        """Number of plans whose time or peak is another one without the rule."""
        return sum(
            abs(after / before - 1.0) > CHANGED
            for before, after in zip(self.before[quantity], self.after[quantity], strict=True)
            if before > 0.0
        )

    def _times(self, prices: Row) -> Iterable[tuple[float, float]]:
        """Priced and compiled seconds, without the ops for which the compiler gives no time."""
        for time_s, unclocked_s, told_s, row in zip(
            prices["time_s"],
            prices["unclocked_s"],
            self.told_unclocked_s,
            self.compiled,
            strict=True,
        ):
            if row.get("time_s") and row["time_s"] > told_s:
                yield time_s - unclocked_s, row["time_s"] - told_s


def priced() -> dict[tuple[str, str], list[Priced]]:
    """What was priced without each rule, by topology and rule.

    Of several states of the code the last one counts in which the rule was priced.
    """
    by_key = {key(row): row for row in compiled.rows()}
    every = read_rows(ROWS)
    base = {_problem(row): row for row in every if row["rule"] == ALL_RULES}
    last = {(row["topology"], row["rule"]): row["state"] for row in every}
    groups = collections.defaultdict(list)
    for row in every:
        before = base.get(_problem(row))
        if before is None or last[row["topology"], row["rule"]] != row["state"]:
            continue
        head = tuple(row[name] for name in ("program", "digest", "topology"))
        members = [by_key.get((*head, plan)) for plan in before["plans"]]
        kept = [index for index, member in enumerate(members) if member is not None]

        def prices(
            of: Row, before: Row = before, kept: Sequence[int] = tuple(kept)
        ) -> dict[str, list[float]]:
            return {
                name: [of.get(name, before[name])[index] for index in kept]
                for name in ("time_s", "unclocked_s", "peak_bytes")
            }

        groups[row["topology"], row["rule"]].append(
            Priced(
                program=row["program"],
                topology=row["topology"],
                compiled=tuple(member for member in members if member is not None),
                told_unclocked_s=tuple(before["told_unclocked_s"][index] for index in kept),
                before=prices(before),
                after=prices(row),
            )
        )
    return groups


def _problem(row: Row) -> tuple[str, ...]:
    return row["state"], row["program"], row["digest"], row["topology"]


class Figures(NamedTuple):
    """How good prices are over some programs."""

    rank: float  #: mean over programs
    regret: float  #: mean over programs
    peak_error: float  #: median over plans
    time_error: float  #: median over plans


def figures(every: Sequence[Priced], *, without: bool) -> Figures:
    """Figures over programs, with all rules or without one."""
    prices = [(each, each.after if without else each.before) for each in every]
    ranks = [each.rank(row) for each, row in prices]
    regrets = [each.regret(row) for each, row in prices]
    return Figures(
        rank=_mean(ranks),
        regret=_mean(regrets),
        peak_error=_median(error for each, row in prices for error in each.peak_errors(row)),
        time_error=_median(error for each, row in prices for error in each.time_errors(row)),
    )


def choices(every: Sequence[Priced]) -> tuple[int, int]:
    """Numbers of programs for which the rule lets prices choose a better plan, and a worse one."""
    pairs = [(each.regret(each.before), each.regret(each.after)) for each in every]
    return sum(before < after for before, after in pairs), sum(
        before > after for before, after in pairs
    )


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.fmean(known) if known else math.nan


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.median(known) if known else math.nan


def write() -> None:
    """Write the part of the page that rows decide."""
    text = PAGE.read_text(encoding="utf-8")
    write_whole(PAGE, pages.with_part(text, "ablation", lines()))


_HEAD = (">rank", ">regret", ">peak", ">time", ">choices")


def lines() -> list[str]:
    """A table for each target."""
    groups, text = priced(), list[str]()
    for topology in CLOCKED:
        by_rule = {rule: every for (place, rule), every in groups.items() if place == topology}
        if ALL_RULES not in by_rule:
            continue
        every = by_rule.pop(ALL_RULES)
        plans = sum(len(each.compiled) for each in every)
        held_out = sum(each.is_held_out for each in every)
        columns = (
            "left out",
            *(f"{name}, held out" for name in _HEAD),
            *_HEAD,
            ">times changed",
            ">peaks changed",
        )
        named = {rule: f"`{rule}`" if rule not in SETS else rule for rule in by_rule}
        rows = [
            ("nothing", *_cells(every)),
            *((named[rule], *_cells(part)) for rule, part in by_rule.items()),
        ]
        text += [
            f"### {topology}",
            "",
            f"{len(every)} programs with {plans} plans; {held_out} programs are held out.",
            "",
            *pages.table(columns, rows),
            "",
        ]
    return text[:-1]


def _cells(every: Sequence[Priced]) -> list[str]:
    cells = list[str]()
    for part in ([each for each in every if each.is_held_out], every):
        off = figures(part, without=True)
        better, worse = choices(part)
        cells += [
            f"{off.rank:.3f}",
            f"{off.regret:.1%}",
            f"{off.peak_error:.1%}",
            f"{off.time_error:.1%}",
            f"{better} : {worse}",
        ]
    for quantity in ("time_s", "peak_bytes"):
        plans = [each.changed(quantity) for each in every]
        cells.append(f"{sum(plans)} in {sum(map(bool, plans))}")
    return cells
