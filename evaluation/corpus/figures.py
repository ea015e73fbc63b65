"""Make docs/corpus.md from the compiled and priced rows; needs neither packages nor compilers."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterable, Sequence

from evaluation import pages
from evaluation.corpus import (
    confirmed,
    confirmed_curves,
    first_looks,
    fit,
    plans,
    programs,
    rivals,
    tables,
)
from evaluation.corpus.cells import number, percent
from evaluation.corpus.goals import targets
from evaluation.corpus.judged_plans import FEWEST, Pair, by_family, errors, median, pairs, ranks
from evaluation.corpus.targets import CLOCKED, JUDGED_ON
from toast_lab.files import write_whole
from toast_lab.machines.catalogue import MACHINES

PAGE = pages.DOCS / "corpus.md"
BY_PROGRAM = PAGE.parent / "corpus" / "by_program.csv"
CURVES = PAGE.parent / "corpus" / "confirmed.svg"


def page(every: Sequence[Pair]) -> str:
    """The page as Markdown."""
    sections = (
        _opening(every),
        _targets(every),
        _compared(every),
        ["## By target", "", *tables.grouped("target", every, lambda pair: pair.topology)],
        tables.for_every_target(every),
        _families(every),
        _unseen(every),
        _rivals(every),
        _confirmed(every),
        _op_classes(every),
        _reasons(every),
        _worst(every),
        _factors(every),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _opening(every: Sequence[Pair]) -> list[str]:
    known = {pair.program for pair in every}
    families = {pair.family for pair in every}
    return [
        "# Prices against compilers, on programs of many kinds",
        "",
        "How far can a price be trusted for a program like yours? Here the prices of "
        f"{len(every)} plans of {len(known)} programs in {len(families)} families are compared "
        "with what compilers say of the same plans, and the plans of our search with those of "
        "other methods. No time on this page was measured on a device.",
        "",
        *findings(every),
    ]


def _targets(every: Sequence[Pair]) -> list[str]:
    return [
        "## Targets",
        "",
        "Set before the first program was compiled, for programs that no rule was read off. The "
        "first column is of those on TPU v5e, the second of all on targets with a clock.",
        "",
        *targets(every),
        "",
        "Peaks are small here, since sizes were cut: they are off by "
        f"{_share_of_memory(every)} of the memory of a v5e in the median. "
        "Searching was to stay at 80% of its speed at least, and did: t2b of 18 layers on 8x4 of "
        "TPU v5e, 20,000 plans, three times in turn with the commit before the corpus (`c34f13b`) "
        "on two cores, gave 1.02 to 1.19 times as many plans a second by random search, 0.98 to "
        "1.21 times by `mcts`.",
    ]


def _compared(every: Sequence[Pair]) -> list[str]:
    known = {pair.program for pair in every}
    packages = {programs.PROGRAMS[name].package for name in known} - {""}
    by_others = sum(bool(programs.PROGRAMS[name].package) for name in known)
    on_tpu = collections.Counter(pair.program for pair in every if pair.topology == JUDGED_ON)
    enough = sum(count >= plans.ENOUGH for count in on_tpu.values())
    return [
        "## What is compared",
        "",
        f"**Programs.** {by_others} of the {len(known)} come from PyPI packages "
        f"({', '.join(sorted(packages))}), the others were written for this comparison or are "
        "built in.",
        "",
        "**Plans** of each: data parallel ones; [usual plans](search.md#usual-plans-and-the-roles-"
        "of-colours) (fully sharded, data + tensor parallel) of the programs in the README's "
        "table, and of the others, compiled before these were made from roles, plans that cut the "
        "weights' dim with most bytes; random "
        "ones of 1 to 6 actions, and of up to 9 where others are too few; what searches find, "
        "which are ours (`mcts`), AutoMap's, Alpa's and a beam search; on TPUs also what XLA's "
        f"AutoSharding finds. {enough} of the {len(on_tpu)} programs on TPU v5e have at least "
        f"{plans.ENOUGH} plans; the others take minutes to compile, or have no more.",
        "",
        "**How a plan reaches the compiler.** "
        f"{sum(pair.has_needed_constraints for pair in every)} of the {len(every)} plans have "
        "sharding constraints where propagation would decide otherwise ([why](plans.md)). The "
        "others were compiled before 2026-11-27 and have one after every op, of which XLA makes "
        "the same or a slower program. All plans of a program for one target are alike in that.",
        "",
        *_columns(),
        "",
        *_commands(every),
    ]


def _columns() -> list[str]:
    return [
        "**Columns**",
        "",
        "- *Time* of a step is the compiler's own clock (`compiled.time_s`): computing, plus the "
        "communication that nothing hides. On TPUs the compiler says how long computing takes, "
        "what is sent, and beside what; how long sending takes is from our own description of "
        "the links ([why](schedule.md)). On H100 all of it is from tables of measured times inside "
        "XLA. A cell is "
        "empty where the compiler has no time for a whole step: on A100 and P100, on v6e in these "
        "runs, where it has no clock for some op, and for plans on v5e that were compiled before "
        "2026-11-23, when communication was read otherwise.",
        "- The *peak* is what the compiler's buffer assignment takes of a device's memory. Left "
        "out are plans on TPUs that were compiled before 2026-11-25, whose peaks were read from "
        "libtpu's statistics, which count some memory twice.",
        "- On TPUs gathers, scatters and sorts are left out of both sides of time and computing, "
        "and of order: libtpu has no clock for most of them ([what it leaves out](schedule.md)). "
        "Milliseconds of a step and regret are by its clock as it is, so they say less about "
        "programs with many lookups (graphs, tables, tree search).",
        "- An *error* is |priced / compiled - 1|: the median over the plans, for time also the "
        "90th percentile.",
        "- *Order* is Spearman's rank correlation between priced and compiled time over the plans "
        f"of one program on one target, if there are at least {FEWEST}; the median over programs.",
        "- *Collectives* are *equal*, *explained* (they differ for a reason that "
        "`tl.diff_compiled` names, see [below](#why-collectives-differ)), or *unexplained*.",
        "- *Regret* is by how much the plan of our search is slower, by the compiler's clock, than "
        "the best plan that fits, of all that were compiled for that program; the median over "
        "programs.",
    ]


def _commands(every: Sequence[Pair]) -> list[str]:
    versions = sorted({item for pair in every for item in pair.compiled["versions"].items()})
    return [
        f"Compiled with {', '.join(f'{name} {version}' for name, version in versions)}. "
        "`python -m evaluation corpus compile` compiles what is missing (no device is needed), "
        "`search` searches anew with the prices of today and compiles what is another plan than "
        "before, `price` prices all plans with the code as it is, `figures` writes this page; "
        "evaluation/README.md says what they need. [by_program.csv](corpus/by_program.csv) has the "
        "columns for each program on each target.",
    ]


def _families(every: Sequence[Pair]) -> list[str]:
    def named(pair: Pair) -> str:
        return pair.family + (" (held out)" if pair.is_held_out else "")

    return ["## By family", "", *tables.grouped("family", every, named)]


def _unseen(every: Sequence[Pair]) -> list[str]:
    late = ", ".join(f"`{name}`" for name in programs.JUDGED_LATE)
    return [
        "## Programs that no pricing rule has seen",
        "",
        "Many pricing rules were *read off* some of these programs: written after reading what a "
        "compiler made of them. Such a program does not test the rule. Families that are *held "
        "out* are never looked at for that, and nothing is fitted to them. Nor was any rule read "
        f"off {late}: they were compiled for the first time when the rules of that day "
        "already existed. Of plans on TPU v5e:",
        "",
        *tables.grouped(
            "programs",
            [pair for pair in every if pair.topology == JUDGED_ON],
            lambda pair: "no rule was read off them" if pair.is_unseen else "the others",
        ),
        "",
        "**At first sight.** Programs that came to the corpus later were judged before anything "
        "was changed:",
        "",
        *first_looks.looks_table(),
        "",
        "Rules that were read off programs known by then:",
        "",
        *first_looks.readings_table(),
        "",
        "What these rules did to programs that they were not read off:",
        "",
        *(f"- {effect}" for effect in first_looks.EFFECTS),
        "",
        "On 2026-11-30 [fifteen rules went](ablation.md) that the choice of a plan does not need. "
        "On programs that no rule was read off, with the columns as explained there:",
        "",
        *first_looks.cut_table(),
    ]


def _rivals(every: Sequence[Pair]) -> list[str]:
    return [
        "## Against rivals",
        "",
        "Milliseconds of a step by the compiler's clock. The last column is the best rival's time "
        "over ours: above 1 ours is quicker. A dash is a plan that does not fit or was not "
        "compiled. Data parallel and fully sharded are on both mesh axes; *tensor* cuts weights by "
        "heads, hidden dims and vocabulary on the second axis, *heaviest dim* by the one dim with "
        "most bytes: on the first axis, on both, or on the second. AutoSharding was told how much "
        "memory a device has. No rule was read off the "
        "programs in italics.",
        "",
        *rivals.table(every),
    ]


def _confirmed(every: Sequence[Pair]) -> list[str]:
    return [
        "## Confirmed by the compiler",
        "",
        f"`python -m evaluation corpus confirm`: a search that the compiler judges, with at most "
        f"{confirmed.COMPILES} compiles. *First* is the plan that the first round, priced by rule, "
        "takes for the best (by the prices of that day); *rival* the best of all plans of "
        "others above, AutoSharding among them where it is there. Milliseconds by the "
        "compiler's clock, which TPUs and H100 have: XLA has no times for A100 and P100, so that "
        "nothing can be confirmed for them.",
        "",
        rivals.confirmed_in_brief(every),
        "",
        "![Confirmed searches over time](corpus/confirmed.svg)",
        "",
        "A line for each program: the time of the best plan judged so far, over the best rival's.",
        "",
        *rivals.confirmations_table(every),
    ]


def _op_classes(every: Sequence[Pair]) -> list[str]:
    return [
        "## By class of op",
        "",
        "Computing by class of op, for plans in which a class takes at least "
        f"{tables.HEAVY:.0%} of the compiler's time: priced over compiled, and the errors. A "
        "kernel that does the work of several ops is counted where each side names it, so that "
        "what follows a product can stand among its elementwise ops on one side and with the "
        "product on the other.",
        "",
        *tables.by_class(every),
    ]


def _reasons(every: Sequence[Pair]) -> list[str]:
    return [
        "## Why collectives differ",
        "",
        "Reasons that `tl.diff_compiled` finds, over all targets:",
        "",
        *pages.table(
            ("reason", ">collectives"),
            ((reason or "unexplained", count) for reason, count in tables.reasons(every)),
        ),
    ]


def _worst(every: Sequence[Pair]) -> list[str]:
    return [
        "## Worst cases",
        "",
        "Priced over compiled, the plans whose time is furthest off:",
        "",
        *tables.worst(every),
    ]


def _factors(every: Sequence[Pair]) -> list[str]:
    return [
        "## Would fitted factors help?",
        "",
        "Hardly, so none is used. The table has the errors of computing (median, 90th percentile) "
        "by the rules alone, with one factor on all computing, and with a factor for each class of "
        "ops. Each family was judged with factors fitted to the others; families that are held out "
        "are in neither.",
        "",
        *fit.table(every),
    ]


def findings(every: Sequence[Pair]) -> list[str]:
    """The main findings of the tables, in a few lines."""
    lines = []
    for topology in CLOCKED:
        members = [pair for pair in every if pair.topology == topology]
        times = errors(pair.ratio("time_s") for pair in members)
        lines.append(
            f"- **{topology}**: the order of a program's plans agrees with a rank correlation of "
            f"{number(median(ranks(members)))}, and time is off by {percent(median(times))}, "
            "in the median."
        )
    by_kind = {
        family: median(errors(pair.ratio("time_s") for pair in members))
        for family, members in by_family(every).items()
    }
    ordered = sorted((error, family) for family, error in by_kind.items() if error is not None)
    named = [f"{family} ({percent(error)})" for error, family in ordered]
    lines.append(
        "- **It depends on the kind of program.** The median error of time is smallest for "
        f"{', '.join(named[:3])}, and largest for {', '.join(named[:-4:-1])}."
    )
    seen, unseen = (
        percent(
            median(
                errors(
                    pair.ratio("time_s")
                    for pair in every
                    if pair.topology == JUDGED_ON and pair.is_unseen == is_unseen
                )
            )
        )
        for is_unseen in (False, True)
    )
    lines.append(
        f"- **On programs that no pricing rule was read off** time on {JUDGED_ON} is off by "
        f"{unseen}, on the others by {seen}."
    )
    ratios = rivals.ratios(every)
    ahead = sorted((ratio, name) for name, ratio in ratios.items() if ratio < 1.0 - rivals.NARROWLY)
    lines.append(
        f"- **Against rivals.** In {len(ratios) - len(ahead)} of {len(ratios)} cases (a program on "
        f"a target) no other method's plan is more than {rivals.NARROWLY:.0%} quicker than ours by "
        "the compiler's clock. Another method is ahead on (its time over ours) "
        + ", ".join(f"{name} ({ratio:.2f})" for ratio, name in ahead)
        + "."
    )
    return lines


def _share_of_memory(every: Iterable[Pair]) -> str:
    """The median error of the peak as a share of the memory of a v5e device."""
    shares = [
        abs(pair.priced["peak_bytes"] - pair.compiled["peak_bytes"])
        / MACHINES["tpu-v5e"].memory_bytes
        for pair in every
        if pair.topology == JUDGED_ON and pair.ratio("peak_bytes") is not None
    ]
    return f"{statistics.median(shares):.1%}"


def write() -> None:
    """Write the page, its table of programs and the README's table."""
    every = pairs()
    write_whole(PAGE, page(every))
    BY_PROGRAM.parent.mkdir(exist_ok=True)
    write_whole(BY_PROGRAM, tables.by_program(every))
    pages.save_figure(
        confirmed_curves.curves(rivals.curves(every)), CURVES, confirmed_curves.SIZE_PX
    )
    write_whole(rivals.README, rivals.readme(every, rivals.README.read_text()))
