"""docs/corpus.md from the compiled and the priced rows; needs neither packages nor compilers."""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.accuracy.judge import spearman
from tests.corpus import compiled, confirmed, confirmed_curves, fit, plans, priced, programs
from tests.corpus.op_classes import CLASSES
from tests.corpus.reasons import reason
from tests.corpus.targets import FEW_PROGRAMS, TARGETS
from tests.readings import has_needed_constraints, has_peak
from toast_lab.bench.charts import save_figure
from toast_lab.files import write_whole
from toast_lab.machines.catalogue import MACHINES
from toast_lab.text import csv_text

PAGE = Path(__file__).parents[2] / "docs" / "corpus.md"
BY_PROGRAM = PAGE.parent / "corpus" / "by_program.csv"
CURVES = PAGE.parent / "corpus" / "confirmed.svg"
FEWEST = 5  # plans that can be ranked
FEWEST_FOR_EVERY_TARGET = 6  # plans of a program that is told of for all targets together
WORST = 10
MOST_NAMED = 5  # programs that are behind a missed target
HEAVY = 0.25  # share of the computing from which a class of ops is told of
NARROWLY = 0.01  # by which share a rival may be quicker without being ahead
TPU, GPU = "tpu:v5e:4x4", "gpu:h100:8"
CLOCKED = (TPU, GPU)  # whose compilers tell times of many plans


#: What is compared without ops that the compiler has no clock for
_WITH_UNCLOCKED = ("time_s", "compute_s")
_TOLD_AS = {"comm_s": "collective_s"}  # what the compiled rows call a price


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
        return self.is_held_out or self.program in programs.JUDGED_LATE

    @property
    def has_needed_constraints(self) -> bool:
        """Was it written with the constraints that it needs, and no others?"""
        return has_needed_constraints(self.topology, self.compiled.get("reading"))

    @property
    def is_held_out(self) -> bool:
        """Was no rule read off its family?"""
        return self.family in programs.HELD_OUT

    def ratio(self, name: str) -> float | None:
        """Priced over compiled of one quantity; None where the compiler does not tell."""
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
        """Seconds, priced and compiled, without what the compiler has no clock for."""
        priced_s, told_s = self.priced.get("unclocked_s", (0.0, 0.0))
        return self.priced[name] - priced_s, self.compiled[name] - told_s


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
    versions = sorted({item for pair in every for item in pair.compiled["versions"].items()})
    on_tpu = collections.Counter(pair.program for pair in every if pair.topology == TPU)
    enough = sum(count >= plans.ENOUGH for count in on_tpu.values())
    lines = [
        "# Prices against compilers, on programs of many kinds",
        "",
        "How far can a price be trusted for a program like yours? Here the prices of "
        f"{len(every)} plans of {len(known)} programs in {len(families)} families are compared "
        "with what compilers say of the same plans, and the plans of our search with those of "
        "other methods. No time on this page was measured on a device.",
        "",
        *findings(every),
        "",
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
        "",
        "## What is compared",
        "",
        f"**Programs.** {by_others} of the {len(known)} come from PyPI packages "
        f"({', '.join(sorted(packages))}), the others were written for this comparison or are "
        "built in.",
        "",
        "**Plans** of each: data parallel, fully sharded (FSDP) and tensor parallel ones; random "
        "ones of 1 to 6 actions, and of up to 9 where others are too few; what searches find, "
        "which are ours (`mcts`), AutoMap's, Alpa's and a beam search; on TPUs also what XLA's "
        f"AutoSharding finds. {enough} of the {len(on_tpu)} programs on TPU v5e have at least "
        f"{plans.ENOUGH} plans; those with fewer take minutes a compile, or have no more.",
        "",
        "**How a plan reaches the compiler.** "
        f"{sum(pair.has_needed_constraints for pair in every)} of the {len(every)} plans have "
        "sharding constraints where propagation would decide otherwise ([why](plans.md)). The "
        "others were compiled before 2026-11-27 and have one behind every op, of which XLA makes "
        "the same or a slower program. All plans of a program for one target are alike in that.",
        "",
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
        "Milliseconds of a step and regret are by its clock as it is, so of programs that look "
        "much up (graphs, tables, tree search) they tell less.",
        "- An *error* is |priced / compiled - 1|: the median over the plans, for time also the "
        "90th percentile.",
        "- *Order* is Spearman's rank correlation between priced and compiled time over the plans "
        f"of one program on one target, if there are at least {FEWEST}; the median over programs.",
        "- *Collectives* are *equal*, *explained* (they differ for a reason that "
        "`tl.diff_compiled` names, see [below](#why-collectives-differ)), or *unexplained*.",
        "- *Regret* is by how much the plan of our search is slower, by the compiler's clock, than "
        "the best plan that fits, of all that were compiled for that program; the median over "
        "programs.",
        "",
        f"Compiled with {', '.join(f'{name} {version}' for name, version in versions)}. "
        "`python -m tests.corpus compile` compiles what is missing (no device is needed), `search` "
        "searches anew with the prices of today and compiles what is another plan than before, "
        "`price` prices all plans with the code as it is, `figures` writes this page; "
        "CONTRIBUTING.md says what they need. [by_program.csv](corpus/by_program.csv) has the "
        "columns for each program on each target.",
        "",
        "## By target",
        "",
        *_table("target", every, lambda pair: pair.topology),
        "",
        *_for_every_target(every),
        "",
        "## By family",
        "",
        *_table(
            "family",
            every,
            lambda pair: pair.family + (" (held out)" if pair.is_held_out else ""),
        ),
        "",
        "## Programs that no pricing rule has seen",
        "",
        "Many pricing rules were *read off* some of these programs: written after reading what a "
        "compiler made of them. Such a program is no test of the rule. Families that are *held "
        "out* are never looked at for that, and nothing is fitted to them. Attention "
        "decoding, recurrent, linear algebra and recommendation were held out until 2026-11-23, "
        "when rules ([machines](machines.md)) were read off `decode`, `gated_recurrence`, "
        "`flax_lstm`, `conjugate_gradients`, `two_towers` and `ranking`; `window_decode` and "
        "`diffusion_transformer` were read when sums were that are scattered piece by piece. "
        "`token_mixer` and `linear_attention`, whose family was held out until then, were read on "
        "2026-11-24 for what is cut along two dims and for gathers that run ahead. "
        "`conformer`, `latent_attention`, `quantised_sound`, `optimal_transport` and `video` were "
        "written on 2026-11-25 and judged before anything was changed: the time of their 60 plans "
        "was off by 18% in the median (90th percentile 65%), and the plan of our search was 0, 0, "
        "0, 3.5 and, on `quantised_sound`, 40% slower than the best. Then rules of convolutions "
        "were read off `conformer` and `quantised_sound`. "
        "Eleven programs of packages (`bert`, `descent`, `gpt2_decode`, `hamiltonian`, "
        "`moe_sorted`, `neural_ode`, `normalizing_flow`, `sinkhorn`, `spectral_solver`, "
        "`tree_search`, `whisper_encoder`) were compiled for the first time after that, still on "
        "2026-11-25: the time of their 115 plans was off by 12% in the median (90th percentile "
        "49%), their peak by 10%, and the plan of our search was slower than the best by 0% in the "
        "median, by 10% on `bert` and `sinkhorn`, 11% on `descent`, 13% on `gpt2_decode` and 23% "
        "on `tree_search`. Then rules of casts, one-hot gradients and products that sum over "
        "nothing were read off `gpt2_decode`, `descent` and `bert`. "
        "Sixteen more programs of packages, from `mistral` to `lennard_jones`, were judged on "
        "2026-11-25 before anything was changed: the time of their 151 plans was off by 19% in the "
        "median (90th percentile 70%), their peak by 25%, the order of plans agreed by 0.90, and "
        "the plan of our search was slower than the best by 0% in the median, by 6% on "
        "`neural_sde`, 26% on `augment` and 43% on `mistral`. Convolutions of groups of features "
        "were priced 75 times too long (`regnet`), and it showed how much libtpu leaves out that "
        "looks up (`graph_convolution`). A rule for the former was read off `regnet`; rules for "
        "weights that are turned for their updates, for kernels of a single op and for fills were "
        "read off programs that had been read before, and for sums that would be scattered out of "
        "order off `mistral` and `llama`. "
        "Rules for loops that run together, for what several products need of one, for turned "
        "copies and for tiles in memory were read off `gpt2`, `llama`, `transformer`, `vit`, "
        "`moe`, `gns` and `jraph_network` on 2026-11-27. What libtpu makes of the other 59 was "
        "not looked at then, but of several forms of a rule the one was taken that errs least on "
        "all: on these the time of plans on TPU v5e went from being off by 14.7% to 13.6%, and "
        "their peak from 19.6% to 15.9%. The plans of `unet` for TPU v5e were compiled after that. "
        "Later on that day the rule of turned weights was dropped, since what it priced came of "
        "the constraints that were behind every op, and a rule of few images was read off "
        "convolutions written for it. `scanned_llama`, `mixture_of_two`, `cached_decode` and "
        "`low_rank_adapters` were written then and judged before anything was changed: the time "
        "of their 35 plans was off by 9% in the median (90th percentile 26%), their peak by 6%, "
        "and the plan of our search was slower than the best by 0, 0.5, 0 and 0.5%. "
        f"{', '.join(f'`{name}`' for name in programs.JUDGED_LATE)} were compiled for the first "
        "time when the rules of their day were there, so no rule was read off them either. What "
        "sums that are scattered piece by piece write and cut first was read off `gpt2` and `bert` "
        "and products written for it. Of the plans for TPU v3, compiled on 2026-11-27, only those "
        "of `conjugate_gradients` were read, for casts in front of loops. "
        "`triangle_update`, `radiance_field`, `blockwise_attention`, `k_means` and "
        "`latent_reader` were written on 2026-11-28 and judged on TPU v5e before anything was "
        "changed: the time of their 62 plans was off by 21% in the median (90th percentile 42%), "
        "their peak by 9%, and the plan of our search was slower than the best by 9, 45, 1, 26 and "
        "2%. Then a rule of reshapes was read off `radiance_field`, and one of one-hot matrices "
        "off `k_means`. They change 73 plans of other programs, whose time was off by 13.6% in "
        "the mean before and by 11.2% after: `unet` went from 20% to 16%, `equivariant` from 31% "
        "to 23%, `pair_filters` from 10% to 6%, and all three are held out. Searched anew, the "
        "plan of our search went from 34% to 0% behind the best on `equivariant`, from 23% to 0% "
        "on `jraph_network` and from 12% to 2% on `gpt2`. On `k_means` and `radiance_field` it is "
        "still 26% behind the best: their prices are within 1% of each other. There the simple "
        "plan within 2%, which is what the explorer shows first, is the best one on both. Of "
        "plans on TPU v5e:",
        "",
        *_table(
            "programs",
            [pair for pair in every if pair.topology == TPU],
            lambda pair: "no rule was read off them" if pair.is_unseen else "the others",
        ),
        "",
        "For H100, twelve programs were there until 2026-11-25, and rules were read off some of "
        "them. Fifteen more were judged on 2026-11-26 before anything was changed: the time of "
        "their 116 plans was off by 19% in the median (90th percentile 84%). Then rules for "
        "kernels of GPUs ([machines](machines.md#kernels-of-a-gpu)) were read off "
        "`gemma_decode`, `gpt2_decode`, `conjugate_gradients`, `token_mixer`, `haiku_gru` and "
        "`bert`, and another eleven programs were compiled to see whether they hold: the time "
        "of their 77 plans was off by 27% (90th percentile 95%) by the prices before, by 13% "
        "(55%) by those with the rules. One more rule was read off `llama_decode` after that.",
        "",
        "## Against rivals",
        "",
        "Milliseconds of a step by the compiler's clock. The last column is the best rival's time "
        "over ours: above 1 ours is quicker. A dash is a plan that does not fit or was not "
        "compiled. Data parallel and fully sharded are on both mesh axes where nothing else is "
        "said; AutoSharding was told how much memory a device has. No rule was read off the "
        "programs in italics.",
        "",
        *rivals(every),
        "",
        "## Confirmed by the compiler",
        "",
        f"`python -m tests.corpus confirm`: a search that the compiler judges, with at most "
        f"{confirmed.COMPILES} compiles. *First* is the plan that the first round, priced by rule, "
        "takes for the best (by the prices of that day); *rival* the best of all plans of "
        "others above, AutoSharding among them where it is there. Milliseconds by the "
        "compiler's clock, which TPUs and H100 have: XLA has no times for A100 and P100, so that "
        "nothing can be confirmed for them.",
        "",
        _confirmed_in_brief(every),
        "",
        "![Confirmed searches over time](corpus/confirmed.svg)",
        "",
        "A line for each program: the time of the best plan judged so far, over the best rival's.",
        "",
        *confirmations(every),
        "",
        "## By class of op",
        "",
        f"Computing by what computes it, of plans in which a class has at least {HEAVY:.0%} of the "
        "compiler's time: priced over compiled, and the errors. A kernel that does the work of "
        "several ops is counted where each side names it, so that what follows a product can stand "
        "among its elementwise ops on one side and with the product on the other.",
        "",
        *by_class(every),
        "",
        "## Why collectives differ",
        "",
        "Reasons that `tl.diff_compiled` finds, over all targets:",
        "",
        "| reason | collectives |",
        "|---|--:|",
        *(f"| {reason or 'unexplained'} | {count} |" for reason, count in _reasons(every)),
        "",
        "## Worst cases",
        "",
        "Priced over compiled, the plans whose time is furthest off:",
        "",
        "| program | target | plan | time | computing | peak | |",
        "|---|---|---|--:|--:|--:|---|",
        *_worst(every),
        "",
        "## Would fitted factors help?",
        "",
        "Hardly, so none is used. The table has the errors of computing (median, 90th percentile) "
        "by the rules alone, with one factor on all computing, and with a factor for each class of "
        "ops. Each family was judged with factors fitted to the others; families that are held out "
        "are in neither.",
        "",
        *fit.table(every),
    ]
    return "\n".join(lines) + "\n"


def findings(every: Sequence[Pair]) -> list[str]:
    """What the tables come to, in a few lines."""
    lines = []
    for topology in CLOCKED:
        members = [pair for pair in every if pair.topology == topology]
        times = _errors(pair.ratio("time_s") for pair in members)
        lines.append(
            f"- **{topology}**: the order of a program's plans agrees with a rank correlation of "
            f"{_number(_median(ranks(members)))}, and time is off by {_percent(_median(times))}, "
            "in the median."
        )
    errors = {
        family: _median(_errors(pair.ratio("time_s") for pair in members))
        for family, members in _by_family(every).items()
    }
    ordered = sorted((error, family) for family, error in errors.items() if error is not None)
    named = [f"{family} ({_percent(error)})" for error, family in ordered]
    lines.append(
        "- **It depends on the kind of program.** The median error of time is smallest for "
        f"{', '.join(named[:3])}, and largest for {', '.join(named[:-4:-1])}."
    )
    seen, unseen = (
        _percent(
            _median(
                _errors(
                    pair.ratio("time_s")
                    for pair in every
                    if pair.topology == TPU and pair.is_unseen == is_unseen
                )
            )
        )
        for is_unseen in (False, True)
    )
    lines.append(
        f"- **On programs that no pricing rule was read off** time on {TPU} is off by {unseen}, on "
        f"the others by {seen}."
    )
    ratios = rival_ratios(every)
    ahead = sorted((ratio, name) for name, ratio in ratios.items() if ratio < 1.0 - NARROWLY)
    lines.append(
        f"- **Against rivals.** In {len(ratios) - len(ahead)} of {len(ratios)} cases (a program on "
        f"a target) no other method's plan is more than {NARROWLY:.0%} quicker than ours by the "
        "compiler's clock. Another method is ahead on (its time over ours) "
        + ", ".join(f"{name} ({ratio:.2f})" for ratio, name in ahead)
        + "."
    )
    return lines


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


def _table(groups_of: str, every: Sequence[Pair], group: Callable[[Pair], str]) -> list[str]:
    groups = collections.defaultdict(list)
    for pair in every:
        groups[group(pair)].append(pair)
    return [
        "| " + " | ".join((groups_of, *_HEAD)) + " |",
        "|---" + "|--:" * len(_HEAD) + "|",
        *(f"| {name} | " + " | ".join(_row(members)) + " |" for name, members in groups.items()),
    ]


def _for_every_target(every: Sequence[Pair]) -> list[str]:
    """Of programs that have some plans for each target: numbers of collectives, and peaks.

    Without the rival's, which only TPUs have.
    """
    members = [pair for pair in every if pair.plan != plans.RIVAL]
    n_plans = collections.Counter((pair.program, pair.topology) for pair in members)
    topologies = [one.topology for one in TARGETS if one.topology not in FEW_PROGRAMS]
    everywhere = [
        program
        for program in dict.fromkeys(pair.program for pair in members)
        if all(n_plans[program, topology] >= FEWEST_FOR_EVERY_TARGET for topology in topologies)
    ]
    lines = [
        f"Of {', '.join(f'`{program}`' for program in everywhere)} at least "
        f"{FEWEST_FOR_EVERY_TARGET} plans each were compiled for all of these targets "
        "(AutoSharding's aside). Numbers of collectives, by op of the program:",
        "",
        "| target | plans | equal | explained | unexplained | error of peak |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for topology in topologies:
        own = [pair for pair in members if pair.topology == topology and pair.program in everywhere]
        n_equal, n_explained, n_unexplained = _collectives(own)
        lines.append(
            f"| {topology} | {len(own)} | {n_equal} | {n_explained} | {n_unexplained} | "
            f"{_percent(_median(_errors(pair.ratio('peak_bytes') for pair in own)))} |"
        )
    return lines


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


def targets(every: Sequence[Pair]) -> list[str]:
    """Each target, what was reached, and what is behind one that was missed, as Markdown."""
    clocked = [pair for pair in every if pair.compiled.get("time_s")]
    unseen = [pair for pair in clocked if pair.is_unseen and pair.topology == TPU]
    lines = [
        "| target | no rule was read off | all | | behind it |",
        "|---|--:|--:|---|---|",
    ]
    for goal in _GOALS:
        reached, of_all = goal.figure(unseen), goal.figure(clocked)
        if reached is None:
            continue
        is_met = goal.is_met(reached)
        lines.append(
            f"| {goal.text} | {goal.shown(reached)} | "
            f"{'' if of_all is None else goal.shown(of_all)} | "
            f"{'met' if is_met else 'missed'} | {'' if is_met else goal.behind(unseen)} |"
        )
    return lines


def _share_of_memory(every: Iterable[Pair]) -> str:
    """The median error of the peak as a share of what a device of v5e has."""
    shares = [
        abs(pair.priced["peak_bytes"] - pair.compiled["peak_bytes"])
        / MACHINES["tpu-v5e"].memory_bytes
        for pair in every
        if pair.topology == TPU and pair.ratio("peak_bytes") is not None
    ]
    return f"{statistics.median(shares):.1%}"


def _family_ranks(members: Sequence[Pair]) -> dict[str, float]:
    """The median rank correlation of each family that can be ranked."""
    medians = {family: _median(ranks(group)) for family, group in _by_family(members).items()}
    return {family: median for family, median in medians.items() if median is not None}


def _worst_programs(
    members: Sequence[Pair], figure: Callable[[Sequence[Pair]], float | None], bound: float
) -> str:
    """The programs that are beyond a bound, the worst first, with what is known of them."""
    beyond = [
        (value, group[0].program)
        for group in _by_problem(members)
        if (value := figure(group)) is not None and value > bound
    ]
    named = sorted(beyond, reverse=True)[:MOST_NAMED]
    return "; ".join(
        f"{program} {_percent(value)}" + (f" ({why})" if (why := reason(program)) else "")
        for value, program in named
    )


def _median_error(name: str) -> Callable[[Sequence[Pair]], float | None]:
    return lambda members: _median(_errors(pair.ratio(name) for pair in members))


def _refused(members: Sequence[Pair]) -> float:
    """Plans that a price calls fitting and the compiler does not."""
    return sum(bool(pair.priced["fits"]) and not pair.compiled["fits"] for pair in members)


def by_class(every: Sequence[Pair]) -> list[str]:
    """The table of op classes, target by target."""
    lines = [
        "| target | class | plans | priced / compiled | error | 90th percentile |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for topology in CLOCKED:
        for name in CLASSES:
            ratios = []
            for pair in every:
                told = pair.priced.get("compiled_s_by_class", {})
                if pair.topology == topology and told.get(name, 0.0) > HEAVY * sum(told.values()):
                    ratios.append(pair.priced["compute_s_by_class"].get(name, 0.0) / told[name])
            if len(ratios) >= FEWEST:
                errors = sorted(_errors(ratios))
                lines.append(
                    f"| {topology} | {name} | {len(ratios)} | {statistics.median(ratios):.2f} | "
                    f"{_percent(_median(errors))} | {_percent(errors[int(0.9 * len(errors))])} |"
                )
    return lines


def by_program(every: Sequence[Pair]) -> str:
    """The columns of the tables for each program on each target, as CSV."""
    rows = ([group[0].program, group[0].topology, *_row(group)] for group in _by_problem(every))
    return csv_text(_COLUMNS, (dict(zip(_COLUMNS, row, strict=True)) for row in rows))


def _row(members: Sequence[Pair]) -> list[str]:
    times = _errors(pair.ratio("time_s") for pair in members)
    collectives = _collectives(members)
    every = sum(collectives)
    return [
        str(len(members)),
        _number(_median(ranks(members))),
        _percent(_median(times)),
        _percent(sorted(times)[int(0.9 * len(times))] if times else None),
        _percent(_median(_errors(pair.ratio("compute_s") for pair in members))),
        _percent(_median(_errors(pair.ratio("comm_s") for pair in members))),
        _percent(_median(_errors(pair.ratio("peak_bytes") for pair in members))),
        *(_percent(number / every if every else None) for number in collectives),
        _percent(_median(regrets(members))),
    ]


def _collectives(members: Iterable[Pair]) -> tuple[int, int, int]:
    """Numbers of collectives that are equal, that differ for a known reason, and the others."""
    counts: collections.Counter[str] = collections.Counter()
    n_unexplained = 0
    for pair in members:
        counts.update(pair.priced.get("collectives", {}))
        n_unexplained += pair.priced.get("unexplained", 0)
    n_explained = counts.total() - counts["equal"] - n_unexplained
    return counts["equal"], n_explained, n_unexplained


def _by_family(members: Iterable[Pair]) -> dict[str, list[Pair]]:
    groups = collections.defaultdict(list)
    for pair in members:
        groups[pair.family].append(pair)
    return groups


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
        ours, theirs = (
            zip(*(pair.clocked("time_s") for pair in timed), strict=True) if timed else ((), ())
        )
        found.append(spearman(ours, theirs, FEWEST))
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
    "alpa": "Alpa",
    "automap": "AutoMap",
}


def rivals(every: Sequence[Pair]) -> list[str]:
    """The table of what methods find, without programs of which our search was not judged."""
    lines = [
        "| program | target | " + " | ".join(_RIVALS.values()) + " | best rival / ours |",
        "|---|---" + "|--:" * (len(_RIVALS) + 1) + "|",
    ]
    for group in _by_problem(every):
        times = fitting_times(group)
        ratio = _rival_ratio(times)
        if ratio is None:
            continue
        program = f"*{group[0].program}*" if group[0].is_unseen else group[0].program
        cells = [f"{1e3 * times[name]:.3g}" if name in times else "-" for name in _RIVALS]
        lines.append(f"| {program} | {group[0].topology} | {' | '.join(cells)} | {ratio:.2f} |")
    return lines


class Confirmation(NamedTuple):
    """A confirmed search beside the best plan of others."""

    row: confirmed.Row
    rival_s: float | None
    rival: str

    @property
    def head(self) -> tuple[str, str]:
        """Its program and its target."""
        return self.row["program"], self.row["topology"]

    @property
    def ratio(self) -> float | None:
        """The rival's time over ours."""
        best_s = self.row.get("best")
        return None if best_s is None or self.rival_s is None else self.rival_s / best_s


def confirmations_of(every: Sequence[Pair]) -> list[Confirmation]:
    """Every confirmed search."""
    times = {
        (group[0].program, group[0].compiled["digest"], group[0].topology): fitting_times(group)
        for group in _by_problem(every)
    }
    found = []
    for row in confirmed.rows():
        head = (row["program"], row["digest"], row["topology"])
        rivals = [
            (time_s, name)
            for name, time_s in times.get(head, {}).items()
            if name != plans.OURS and not name.startswith(("random", plans.EARLIER))
        ]
        rival_s, rival = min(rivals, default=(None, "none was judged"))
        found.append(Confirmation(row, rival_s, rival))
    return found


def _confirmed_in_brief(every: Sequence[Pair]) -> str:
    """How often no rival is ahead, by target, and where one is."""
    judged = [(one, one.ratio) for one in confirmations_of(every) if one.ratio is not None]
    behind = [(one, ratio) for one, ratio in judged if ratio < 1.0 - NARROWLY]
    counts = []
    for topology in dict.fromkeys(one.row["topology"] for one, _ in judged):
        own = [one for one, _ in judged if one.row["topology"] == topology]
        families = {programs.PROGRAMS[one.row["program"]].family for one in own}
        lost = sum(one.row["topology"] == topology for one, _ in behind)
        counts.append(f"{len(own) - lost} of {len(own)} on {topology} ({len(families)} families)")
    losses = ", ".join(f"{' on '.join(one.head)} ({ratio:.2f})" for one, ratio in behind)
    text = f"No rival's plan is more than {NARROWLY:.0%} quicker on {', '.join(counts)}"
    return f"{text}; one is on {losses}." if losses else f"{text}."


def confirmations(every: Sequence[Pair]) -> list[str]:
    """The table of confirmed searches beside the rivals of each program."""
    lines = [
        "| program | target | first | confirmed search | rival | | rival / ours | ended | compiles "
        "| minutes |",
        "|---|---|--:|--:|--:|---|--:|---|--:|--:|",
    ]
    for one in confirmations_of(every):
        row = one.row
        if row.get("best") is None:
            reason = row.get("error", row.get("standing"))
            lines.append(f"| {' | '.join(one.head)} | | - | | | | {reason} | | |")
            continue
        first_s = row["verdicts"][0]["time_s"]
        cells = [
            *one.head,
            "-" if first_s is None else f"{1e3 * first_s:.3g}",
            f"{1e3 * row['best']:.3g}",
            "-" if one.rival_s is None else f"{1e3 * one.rival_s:.3g}",
            one.rival,
            "-" if one.ratio is None else f"{one.ratio:.2f}",
            row["standing"].lower().replace("_", " "),
            str(len(row["verdicts"])),
            f"{row['wall_s'] / 60:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _curves(every: Sequence[Pair]) -> list[confirmed_curves.ConfirmedCurve]:
    """The confirmed searches that have a rival."""
    found = []
    for one in confirmations_of(every):
        judged = [
            (verdict["at_s"], verdict["time_s"])
            for verdict in one.row.get("verdicts", ())
            if verdict["stands"] and verdict["time_s"] is not None
        ]
        if one.rival_s is not None and judged:
            topology = one.row["topology"]
            found.append(confirmed_curves.ConfirmedCurve(topology, one.rival_s, judged))
    return found


def rival_ratios(every: Sequence[Pair]) -> dict[str, float]:
    """The best rival's time over ours, by program and target."""
    ratios = {
        f"{group[0].program} on {group[0].topology}": _rival_ratio(fitting_times(group))
        for group in _by_problem(every)
    }
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def _rival_ratio(times: Mapping[str, float]) -> float | None:
    """The best rival's time over ours; None: one of them was not judged."""
    others = [times[name] for name in _RIVALS if name in times and name != plans.OURS]
    return min(others) / times[plans.OURS] if others and plans.OURS in times else None


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
        f"{_number(pair.ratio('compute_s'))} | {_number(pair.ratio('peak_bytes'))} | "
        f"{reason(pair.program)} |"
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


class Goal(NamedTuple):
    """A bound that was set for a figure."""

    text: str
    figure: Callable[[Sequence[Pair]], float | None]
    shown: Callable[[float], str]
    is_met: Callable[[float], bool]
    behind: Callable[[Sequence[Pair]], str]  #: says why it was missed


_GOALS = (
    Goal(
        "order at least 0.9 in every family",
        lambda members: min(_family_ranks(members).values(), default=None),
        lambda value: f"{value:.2f} at least",
        lambda value: value >= 0.9,
        lambda members: ", ".join(
            f"{family} {value:.2f}"
            for family, value in sorted(_family_ranks(members).items(), key=lambda item: item[1])
            if value < 0.9
        ),
    ),
    Goal(
        "order 0.95 in the median",
        lambda members: _median(list(_family_ranks(members).values())),
        _number,
        lambda value: value >= 0.95,
        lambda members: "",
    ),
    Goal(
        "time off by at most 15% in the median",
        _median_error("time_s"),
        _percent,
        lambda value: value <= 0.15,
        lambda members: _worst_programs(members, _median_error("time_s"), 0.15),
    ),
    Goal(
        "peak off by at most 10% in the median",
        _median_error("peak_bytes"),
        _percent,
        lambda value: value <= 0.1,
        lambda members: _worst_programs(members, _median_error("peak_bytes"), 0.1),
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
        lambda members: _median(regrets(members)),
        _percent,
        lambda value: value <= 0.05,
        lambda members: _worst_programs(members, lambda group: _median(regrets(group)), 0.05),
    ),
    Goal(
        "regret at most 15% at worst",
        lambda members: max(regrets(members), default=None),
        _percent,
        lambda value: value <= 0.15,
        lambda members: _worst_programs(members, lambda group: _median(regrets(group)), 0.15),
    ),
)


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
    """Make the page with its table of programs, and the README's table."""
    every = pairs()
    write_whole(PAGE, page(every))
    BY_PROGRAM.parent.mkdir(exist_ok=True)
    write_whole(BY_PROGRAM, by_program(every))
    save_figure(confirmed_curves.curves(_curves(every)), CURVES, confirmed_curves.SIZE_PX)
    write_whole(README, readme(every, README.read_text()))
