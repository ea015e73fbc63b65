"""Tables of plans grouped by target, by family and by class of op."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Callable, Iterable, Sequence

from evaluation import pages
from evaluation.corpus import plans
from evaluation.corpus.cells import number, percent
from evaluation.corpus.judged_plans import (
    FEWEST,
    Pair,
    by_problem,
    collectives,
    errors,
    median,
    ranks,
    regrets,
)
from evaluation.corpus.op_classes import CLASSES
from evaluation.corpus.reasons import reason
from evaluation.corpus.targets import CLOCKED, FEW_PROGRAMS, TARGETS
from toast_lab.text import csv_text

FEWEST_FOR_EVERY_TARGET = 6  #: plans per target that a program must have
WORST = 10
HEAVY = 0.25  #: least share of the computing at which a class of ops is reported


_HEAD = (
    "plans",
    "order",
    "error of time",
    "90th percentile",
    "of computing",
    "of sending",
    "of peak",
    "collectives equal",
    "explained",
    "unexplained",
    "regret",
)


def grouped(groups_of: str, every: Sequence[Pair], group: Callable[[Pair], str]) -> list[str]:
    groups = collections.defaultdict(list)
    for pair in every:
        groups[group(pair)].append(pair)
    columns = (groups_of, *(f">{name}" for name in _HEAD))
    return pages.table(columns, ((name, *_row(members)) for name, members in groups.items()))


def for_every_target(every: Sequence[Pair]) -> list[str]:
    """A table of collectives and peaks, for programs that have enough plans for each target.

    The rival's plans are left out, since only TPUs have them.
    """
    members = [pair for pair in every if pair.plan != plans.RIVAL]
    n_plans = collections.Counter((pair.program, pair.topology) for pair in members)
    topologies = [target.topology for target in TARGETS if target.topology not in FEW_PROGRAMS]
    everywhere = [
        program
        for program in dict.fromkeys(pair.program for pair in members)
        if all(n_plans[program, topology] >= FEWEST_FOR_EVERY_TARGET for topology in topologies)
    ]
    intro = (
        f"Of {', '.join(f'`{program}`' for program in everywhere)} at least "
        f"{FEWEST_FOR_EVERY_TARGET} plans each were compiled for all of these targets "
        "(AutoSharding's aside). Numbers of collectives, by op of the program:"
    )
    rows = []
    for topology in topologies:
        compared = [
            pair for pair in members if pair.topology == topology and pair.program in everywhere
        ]
        peak_error = percent(median(errors(pair.ratio("peak_bytes") for pair in compared)))
        rows.append((topology, len(compared), *collectives(compared), peak_error))
    columns = ("target", ">plans", ">equal", ">explained", ">unexplained", ">error of peak")
    return [intro, "", *pages.table(columns, rows)]


_COLUMNS = (
    "program",
    "target",
    "plans",
    "order",
    "time_error",
    "time_error_90th",
    "compute_error",
    "communication_error",
    "peak_error",
    "collectives_equal",
    "collectives_explained",
    "collectives_unexplained",
    "regret",
)


def by_class(every: Sequence[Pair]) -> list[str]:
    """A table of op classes, target by target."""
    rows = []
    for topology in CLOCKED:
        for name in CLASSES:
            ratios = []
            for pair in every:
                told = pair.priced.get("compiled_s_by_class", {})
                if pair.topology == topology and told.get(name, 0.0) > HEAVY * sum(told.values()):
                    ratios.append(pair.priced["compute_s_by_class"].get(name, 0.0) / told[name])
            if len(ratios) >= FEWEST:
                off = sorted(errors(ratios))
                ratio, ninth = f"{statistics.median(ratios):.2f}", percent(off[int(0.9 * len(off))])
                rows.append((topology, name, len(ratios), ratio, percent(median(off)), ninth))
    columns = ("target", "class", ">plans", ">priced / compiled", ">error", ">90th percentile")
    return pages.table(columns, rows)


def by_program(every: Sequence[Pair]) -> str:
    """The figures of the tables for each program on each target, as CSV."""
    rows = ([group[0].program, group[0].topology, *_row(group)] for group in by_problem(every))
    return csv_text(_COLUMNS, (dict(zip(_COLUMNS, row, strict=True)) for row in rows))


def _row(members: Sequence[Pair]) -> list[str]:
    times = errors(pair.ratio("time_s") for pair in members)
    counts = collectives(members)
    every = sum(counts)
    return [
        str(len(members)),
        number(median(ranks(members))),
        percent(median(times)),
        percent(sorted(times)[int(0.9 * len(times))] if times else None),
        percent(median(errors(pair.ratio("compute_s") for pair in members))),
        percent(median(errors(pair.ratio("comm_s") for pair in members))),
        percent(median(errors(pair.ratio("peak_bytes") for pair in members))),
        *(percent(count / every if every else None) for count in counts),
        percent(median(regrets(members))),
    ]


def reasons(every: Iterable[Pair]) -> list[tuple[str, int]]:
    counts: collections.Counter[str] = collections.Counter()
    for pair in every:
        counts.update(pair.priced.get("reasons", {}))
    return counts.most_common()


def worst(every: Sequence[Pair]) -> list[str]:
    """A table of the plans whose time is furthest off."""
    timed = [(pair, pair.ratio("time_s")) for pair in every]
    known = [(pair, ratio) for pair, ratio in timed if ratio]
    known.sort(key=lambda item: -max(item[1], 1.0 / item[1]))
    rows = (
        (
            *(pair.program, pair.topology, pair.plan, f"{ratio:.2f}"),
            *(number(pair.ratio(name)) for name in ("compute_s", "peak_bytes")),
            reason(pair.program),
        )
        for pair, ratio in known[:WORST]
    )
    columns = ("program", "target", "plan", ">time", ">computing", ">peak", "")
    return pages.table(columns, rows)
