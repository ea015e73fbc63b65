"""docs/corpus.md from the compiled and the priced rows; needs neither packages nor compilers."""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.accuracy.judge import spearman
from tests.corpus import compiled, fit, plans, priced, programs
from toast_lab.files import write_whole

PAGE = Path(__file__).parents[2] / "docs" / "corpus.md"
FEWEST = 5  # plans that can be ranked
WORST = 10


class Pair(NamedTuple):
    """One plan, compiled and priced."""

    program: str
    topology: str
    plan: str
    compiled: compiled.Row
    priced: compiled.Row
    other_names: tuple[str, ...] = ()  # of plans that are the same sharding

    @property
    def family(self) -> str:
        """Family of its program."""
        return programs.PROGRAMS[self.program].family

    @property
    def is_unseen(self) -> bool:
        """Was no rule read off its program?"""
        return self.is_held_aside or self.program in programs.JUDGED_LATE

    @property
    def is_held_aside(self) -> bool:
        """Was no rule read off its family?"""
        return self.family in programs.HELD_ASIDE

    def ratio(self, name: str) -> float | None:
        """Priced over compiled of one quantity; None where the compiler does not tell."""
        told = self.compiled.get(name)
        return self.priced[name] / told if told else None


def pairs() -> list[Pair]:
    """Every plan that was compiled and priced."""
    by_key = {compiled.key(row): row for row in priced.rows()}
    others = collections.defaultdict(list)
    for (*head, name), same in compiled.same_plans().items():
        others[(*head, same)].append(name)
    return [
        Pair(
            row["program"],
            row["topology"],
            row["plan"],
            row,
            by_key[compiled.key(row)],
            tuple(others[compiled.key(row)]),
        )
        for row in compiled.rows()
        if compiled.key(row) in by_key and "error" not in row
    ]


def page(every: Sequence[Pair]) -> str:
    """The page as Markdown."""
    known = {pair.program for pair in every}
    packages = {programs.PROGRAMS[name].package for name in known} - {""}
    by_others = sum(bool(programs.PROGRAMS[name].package) for name in known)
    families = {pair.family for pair in every}
    lines = [
        "# Prices against compilers, on a corpus",
        "",
        f"{len(every)} plans of {len(known)} programs in {len(families)} families, {by_others} of "
        f"the programs from PyPI packages ({', '.join(sorted(packages))}). `python -m tests.corpus "
        "compile` has compilers judge them (no device is needed; it goes on where it was stopped), "
        "`price` prices them with the code of today, `figures` makes this page.",
        "",
        "Plans are data parallel, fully sharded and tensor parallel ones, random ones of 1 to 6 "
        "actions, and what searches find: ours (mcts), AutoMap's, Alpa's, a beam.",
        "",
        "*Time* is the compiler's own clock of a step (`compiled.time_s`): computing plus exposed "
        "communication, on TPUs from cycles and the latency-hiding schedule, on H100 from XLA's "
        "measured tables; A100 and P100 have none. Errors are |priced / compiled - 1|. Rank is "
        f"Spearman's, over the plans of one program on one target ({FEWEST} and more), median "
        "over programs. "
        "Regret: how much slower, by the compiler's clock, the plan of our search is than the best "
        "of all plans judged for that program.",
        "",
        "## By target",
        "",
        *_table(every, lambda pair: pair.topology),
        "",
        "## By family",
        "",
        "No rule was read off the families that are *held aside*, and nothing is fitted to them.",
        "Attention decoding, recurrent, linear algebra and recommendation were held aside until "
        "2026-11-23; then rules were read off `decode`, `gated_recurrence`, `flax_lstm`, "
        "`conjugate_gradients`, `two_towers` and `ranking` ([machines.md](machines.md)).",
        "",
        *_table(
            every,
            lambda pair: pair.family + (" (held aside)" if pair.is_held_aside else ""),
        ),
        "",
        "## What a rule was read off is no test of it",
        "",
        "Plans on TPU v5e of programs by whether any rule was read off them.",
        "",
        *_table(
            [pair for pair in every if pair.topology == "tpu:v5e:4x4"],
            lambda pair: "no rule was read off them" if pair.is_unseen else "the others",
        ),
        "",
        "## Against rivals",
        "",
        "Milliseconds of a step by the compiler's clock; - is a plan that does not fit or that "
        "nobody judged. AutoSharding is XLA's, told how much memory a device has; data parallel is "
        "on both axes. Programs that no rule was read off are in italics: of families that are "
        "held aside, or judged for the first time when the rules of today were there.",
        "",
        *rivals(every),
        "",
        "## Would factors help?",
        "",
        "Errors of computing, median and 90th percentile, on each family with factors fitted to "
        "the others (families held aside are in neither). None is used so far: what they gain, if "
        "anything, is little.",
        "",
        *fit.table(every),
        "",
        "## By program",
        "",
        *_table(every, lambda pair: f"{pair.program}, {pair.topology}"),
        "",
        "## Why collectives differ",
        "",
        "By `tl.diff_compiled`, all targets:",
        "",
        "| reason | collectives |",
        "|---|--:|",
        *(f"| {reason or 'unexplained'} | {count} |" for reason, count in _reasons(every)),
        "",
        "## Worst cases",
        "",
        "| program | target | plan | time | computing | peak |",
        "|---|---|---|--:|--:|--:|",
        *_worst(every),
    ]
    return "\n".join(lines) + "\n"


_HEAD = (
    "of",
    "plans",
    "rank of time",
    "error of time, median",
    "90th",
    "of computing",
    "of peak",
    "collectives equal",
    "explained",
    "not",
    "regret",
)


def _table(every: Sequence[Pair], group: Callable[[Pair], str]) -> list[str]:
    groups = collections.defaultdict(list)
    for pair in every:
        groups[group(pair)].append(pair)
    return [
        "| " + " | ".join(_HEAD) + " |",
        "|---" + "|--:" * (len(_HEAD) - 1) + "|",
        *(f"| {name} | " + " | ".join(_row(members)) + " |" for name, members in groups.items()),
    ]


def _row(members: Sequence[Pair]) -> list[str]:
    times = _errors(pair.ratio("time_s") for pair in members)
    counts: collections.Counter[str] = collections.Counter()
    for pair in members:
        counts.update(pair.priced.get("collectives", {}))
        counts["unexplained"] += pair.priced.get("unexplained", 0)
    every = counts.total() - counts["unexplained"]
    return [
        str(len(members)),
        _number(_median(ranks(members))),
        _percent(_median(times)),
        _percent(sorted(times)[int(0.9 * len(times))] if times else None),
        _percent(_median(_errors(pair.ratio("compute_s") for pair in members))),
        _percent(_median(_errors(pair.ratio("peak_bytes") for pair in members))),
        _percent(counts["equal"] / every if every else None),
        _percent((every - counts["equal"] - counts["unexplained"]) / every if every else None),
        _percent(counts["unexplained"] / every if every else None),
        _percent(_median(regrets(members))),
    ]


def _by_problem(members: Iterable[Pair]) -> list[list[Pair]]:
    groups = collections.defaultdict(list)
    for pair in members:
        groups[pair.program, pair.topology].append(pair)
    return list(groups.values())


def ranks(members: Iterable[Pair]) -> list[float]:
    """Spearman's rank correlation of time of each program on each target that can be ranked."""
    found = []
    for group in _by_problem(members):
        timed = [pair for pair in group if pair.compiled.get("time_s")]
        ours = [pair.priced["time_s"] for pair in timed]
        found.append(spearman(ours, [pair.compiled["time_s"] for pair in timed], FEWEST))
    return [rank for rank in found if not math.isnan(rank)]


def regrets(members: Iterable[Pair]) -> list[float]:
    """How much slower our search's plan is than the best judged one, by program and target."""
    found = []
    for group in _by_problem(members):
        times = fitting_times(group)
        if len(times) > 1 and plans.OURS in times:
            found.append(times[plans.OURS] / min(times.values()) - 1.0)
    return found


def fitting_times(group: Iterable[Pair]) -> dict[str, float]:
    """Seconds by the compiler's clock of the plans of one program that fit, by every name."""
    return {
        name: pair.compiled["time_s"]
        for pair in group
        if pair.compiled.get("time_s") and pair.compiled.get("fits")
        for name in (pair.plan, *pair.other_names)
    }


_RIVALS = {
    plans.OURS: "ours",
    "data both": "data parallel",
    "fsdp": "fully sharded, one axis",
    "fsdp both": "fully sharded",
    "tensor": "tensor parallel",
    plans.RIVAL: "AutoSharding",
    "alpa": "Alpa's program",
}


def rivals(every: Sequence[Pair]) -> list[str]:
    """The table of what methods find, without programs of which our search was not judged."""
    lines = [
        "| program | target | " + " | ".join(_RIVALS.values()) + " | best rival / ours |",
        "|---|---" + "|--:" * (len(_RIVALS) + 1) + "|",
    ]
    for group in _by_problem(every):
        times = fitting_times(group)
        rivals = [times[name] for name in _RIVALS if name in times and name != plans.OURS]
        if plans.OURS not in times or not rivals:
            continue
        program = f"*{group[0].program}*" if group[0].is_unseen else group[0].program
        cells = [f"{1e3 * times[name]:.3g}" if name in times else "-" for name in _RIVALS]
        lines.append(
            f"| {program} | {group[0].topology} | {' | '.join(cells)} "
            f"| {min(rivals) / times[plans.OURS]:.2f} |"
        )
    return lines


def _reasons(every: Iterable[Pair]) -> list[tuple[str, int]]:
    counts: collections.Counter[str] = collections.Counter()
    for pair in every:
        counts.update(pair.priced.get("reasons", {}))
    return counts.most_common()


def _worst(every: Sequence[Pair]) -> list[str]:
    timed = [(pair, pair.ratio("time_s")) for pair in every]
    known = [(pair, ratio) for pair, ratio in timed if ratio]
    known.sort(key=lambda item: -max(item[1], 1.0 / item[1]))
    return [
        f"| {pair.program} | {pair.topology} | {pair.plan} | {ratio:.2f} | "
        f"{_number(pair.ratio('compute_s'))} | {_number(pair.ratio('peak_bytes'))} |"
        for pair, ratio in known[:WORST]
    ]


def _errors(ratios: Iterable[float | None]) -> list[float]:
    return [abs(ratio - 1.0) for ratio in ratios if ratio is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}%"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


README = PAGE.parents[1] / "README.md"
_BEGIN, _END = "<!-- rivals: python -m tests.corpus figures -->", "<!-- end of rivals -->"
_SHOWN = {
    "data both": "data parallel",
    "fsdp both": "FSDP",
    "tensor": "tensor parallel",
    plans.RIVAL: "AutoSharding",
    plans.OURS: "TOAST Lab",
}


def readme(every: Sequence[Pair], text: str) -> str:
    """The README with the table of programs by others that AutoSharding was run on."""
    lines = [
        "| program | from | " + " | ".join(_SHOWN.values()) + " |",
        "|---|---" + "|--:" * len(_SHOWN) + "|",
    ]
    for group in _by_problem(every):
        times, package = fitting_times(group), programs.PROGRAMS[group[0].program].package
        if not package or plans.RIVAL not in times or plans.OURS not in times:
            continue
        best_s = min(times[name] for name in _SHOWN if name in times)
        cells = [
            "-"
            if name not in times
            else f"**{1e3 * times[name]:.3g} ms**"
            if times[name] <= 1.005 * best_s
            else f"{1e3 * times[name]:.3g} ms"
            for name in _SHOWN
        ]
        lines.append(f"| {group[0].program} | {package} | {' | '.join(cells)} |")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n" + "\n".join(lines) + f"\n{_END}{after}"


def write() -> None:
    """Make the page, and the README's table."""
    every = pairs()
    write_whole(PAGE, page(every))
    write_whole(README, readme(every, README.read_text()))
