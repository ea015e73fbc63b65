"""Write ``docs/accuracy.md`` and ``docs/accuracy.svg``: table and scatter of the accuracy run.

The exit status is 1 if a target is missed.
"""

from __future__ import annotations

import math
import statistics

from evaluation import pages
from evaluation.accuracy import cases, dataset, judge
from evaluation.accuracy.judge import Judged, Ranked
from evaluation.accuracy.scatter import SIZE_PX, Panel, scatter

RANK, MEMORY, COLLECTIVES = 0.9, 0.15, 0.05  # targets
WORST = 8
WHY = [
    "What is known of the reasons:",
    "",
    "- *reduce_scatter, all_reduce, collective_permute.* For a sum that the plan scatters, libtpu "
    "often makes an all_reduce and a local slice. It adds up several sums on each device first, so "
    "that one collective serves them all. It turns gathers and scatters around a product into "
    "rings of permutes. And where a mesh axis is idle for an op, it cuts the product along that "
    "axis, sums a part on each device and permutes the parts into place. Which of these it chooses "
    "is not modelled. all_gathers leave it less choice, and agree.",
    "- *mlp and attention* have two and six products. One choice of that kind, or a gather that is "
    "fused into a product and whose waiting counts as cycles, changes the order of their plans. "
    "The order of the larger programs rests on many ops.",
    "- *Parts of wide values in products.* Where a device cuts its part out of an f32 value for a "
    "product, the part is priced in bfloat16, as if it had been sent. libtpu reads it in f32, "
    "twice as many bytes, and is slow at cutting along the second-last dim of a matrix (one head "
    "of four).",
    "- *Memory of attention on v5e.* Its tensors are smaller than the chip's 128 MiB of vector "
    "memory, where the compiler keeps temporaries. Which of them it keeps there is priced by size "
    "and lifetime alone.",
    "- *Memory in general.* The compiler schedules ops in an order of its own and sometimes "
    "computes again what the price keeps, or keeps what the price drops; buffers leave gaps. "
    "Peaks are those of its buffer assignment.",
    "",
]
SEEN = (
    "Several pricing rules (`toast_lab/cost/fusion.py`, `bfloat16.py`, `epilogues.py`) were "
    "written after reading what libtpu makes of these same models, so this page says nothing about "
    "models that the rules have not seen. [The corpus](corpus.md) tells the two apart, and has "
    "GPUs."
)


def run() -> int:
    """Write both files and print the text; gives 1 if a target is missed, else 0."""
    judged = judge.judge()
    if not judged:
        print("no data: python -m evaluation accuracy compile makes it (needs libtpu)")
        return 1
    table = judge.ranked(judged)
    missed = misses(table, judged)
    text = page(table, judged, missed)
    (pages.DOCS / "accuracy.md").write_text(text)
    pages.save_figure(scatter(panels(judged)), pages.DOCS / "accuracy.svg", SIZE_PX)
    print(text)
    return 1 if missed else 0


def misses(table: list[Ranked], judged: list[Judged]) -> list[str]:
    """Sentences about the missed targets, with their numbers."""
    found = [
        f"{r.case} on {r.topology}: rank correlation of time {r.time:.3f}, wanted {RANK}"
        for r in table
        if r.time < RANK
    ]
    error = _median([one.memory_error for one in judged if one.memory_error is not None])
    if not error <= MEMORY:
        found.append(f"median error of peak memory {error:.1%}, wanted {MEMORY:.0%}")
    found += [f"{one}: called fitting, refused by over 10%" for one in judged if one.wrongly_fits]
    for kind, errors in judge.collective_errors(judged).items():
        if not _median(errors) <= COLLECTIVES:
            found.append(
                f"bytes of {kind}: median error {_median(errors):.1%}, wanted {COLLECTIVES:.0%}"
            )
    return found


def page(table: list[Ranked], judged: list[Judged], missed: list[str]) -> str:
    """The whole page as Markdown."""
    versions = dataset.rows()[0]["versions"]
    errors, sums = judge.collective_errors(judged), judge.collective_sums(judged)
    programs = {row.case for row in table}
    models = {cases.case(name).model for name in programs}
    lines = [
        "# How prices agree with the TPU compiler",
        "",
        "Can you rely on a price for a TPU? This page says whether prices put the plans of a model "
        "in the order in which the TPU compiler puts them, and how far off memory and collectives "
        "are.",
        "",
        *findings(table, judged),
        "",
        SEEN,
        "",
        "## How they are compared",
        "",
        f"{len(judged)} plans of {len(programs)} programs ({len(models)} models, "
        f"{len(programs) - len(models)} of them also at a size at which many plans do not fit) "
        "were compiled by libtpu for slices that were not attached "
        f"({', '.join(f'{name} {version}' for name, version in versions.items())}). They are plans "
        "that experts use, plans of a single action, which need much memory, and random sequences "
        "of actions.",
        "",
        "- **Time.** The compiler estimates cycles for what runs on a core: fusions, matrix "
        "products, copies. It has no such estimate for collectives, nor for the custom fusions of "
        "gathers, scatters and sorts. *Compiled time* is therefore these cycles over the clock, "
        "loops counted by their rounds, plus the collectives that are in the compiled program, "
        "priced with our own model of the links; nothing overlaps. So the comparison tests our "
        "prices of computing and which collectives we expect, and cannot test the model of the "
        "links. The column *compute* compares computing alone.",
        "- **Order** is Spearman's rank correlation over the plans of one program on one slice; "
        f"the target is at least {RANK}.",
        "- **Memory** is XLA's buffer assignment or, where the compiler refused the program, what "
        "it says the program needs. The target is a median "
        f"error of at most {MEMORY:.0%} over all plans.",
        "- **Collectives** are compared in bytes of a step. The target is a median "
        f"error of at most {COLLECTIVES:.0%}.",
        "",
        "`python -m evaluation accuracy` makes this page from the compiled programs that are kept "
        "in `evaluation/accuracy`. `python -m evaluation accuracy compile --full` compiles those "
        "that are missing; it needs `toast-lab[tpu]`, and goes on where it was stopped.",
        "",
        "## Time and memory",
        "",
        "![Priced against compiled](accuracy.svg)",
        "",
        "*Wrongly fitting*: refused by the compiler for needing over 10% more memory than there "
        "is, and priced as fitting.",
        "",
        *pages.table(
            (
                "program",
                "slice",
                ">plans",
                ">order by time",
                ">order by compute",
                ">memory, median error",
                ">refused",
                ">wrongly fitting",
            ),
            (
                (
                    *(row.case, row.topology, row.n, _rank(row.time), _rank(row.compute)),
                    *(_percent(row.memory_error), row.refused, row.wrongly_fit),
                )
                for row in table
            ),
        ),
        "",
        "## Collectives",
        "",
        "|priced − compiled| / compiled bytes of a step, over the plans in which that kind moves "
        "at least 1 MiB on either side; 100% where only one side has the kind.",
        "",
        *pages.table(
            ("kind", ">plans", ">median error", ">priced, all plans", ">compiled, all plans"),
            (
                (kind, len(off), _percent(_median(off)), *map(_gib, sums[kind]))
                for kind, off in errors.items()
            ),
        ),
        "",
        "How they differ, over all plans. `tl.diff_compiled` says the same of a plan of yours: "
        "*missing* is only priced, *extra* only compiled.",
        "",
        *pages.table(
            ("difference", ">collectives", ">bytes apart"),
            ((name, count, _gib(off)) for name, count, off in judge.reasons(judged)),
        ),
        "",
        "## Targets missed, and why",
        "",
        *(f"- {line}" for line in missed or ["none"]),
        "",
        *(WHY if missed else []),
        "## Worst cases",
        "",
        *worst(judged),
    ]
    return "\n".join(lines) + "\n"


def findings(table: list[Ranked], judged: list[Judged]) -> list[str]:
    """The main findings of the tables, in a few lines."""
    ordered = [row for row in table if not math.isnan(row.time)]
    weak = [f"{row.case} on {row.topology}" for row in ordered if row.time < RANK]
    memory = [plan.memory_error for plan in judged if plan.memory_error is not None]
    medians = {
        kind: _median(errors)
        for kind, errors in judge.collective_errors(judged).items()
        if kind != "all kinds"
    }
    agreeing = [kind for kind, error in medians.items() if error <= COLLECTIVES]
    differing = [kind for kind in medians if kind not in agreeing]
    return [
        f"- **Order.** The rank correlation reaches {RANK} in {len(ordered) - len(weak)} of "
        f"{len(ordered)} cases (a program on a slice)"
        + (f"; below it: {', '.join(weak)}." if weak else "."),
        f"- **Memory.** The peak is off by {_percent(_median(memory))} in the median. Of "
        f"{sum(row.refused for row in table)} plans that the compiler refused, "
        f"{sum(row.wrongly_fit for row in table) or 'none'} was wrongly called fitting.",
        "- **Collectives.** "
        + (f"The bytes of {', '.join(agreeing)} agree with the price. " if agreeing else "")
        + (
            f"Those of {', '.join(differing)} often do not: libtpu makes other collectives than "
            "the plan has ([why](#targets-missed-and-why))."
            if differing
            else ""
        ),
    ]


def _gib(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"


def worst(judged: list[Judged]) -> list[str]:
    """The plans with the largest errors in time and in memory, with the parts of their prices."""
    timed = [plan for plan in judged if plan.time_s]
    ratio = {id(plan): plan.cost.time_s / (plan.time_s or 1.0) for plan in timed}
    middle = {}
    for group in {(plan.case, plan.topology) for plan in timed}:
        middle[group] = _median(
            [ratio[id(plan)] for plan in timed if (plan.case, plan.topology) == group]
        )

    def off(plan: Judged) -> float:
        return abs(math.log(ratio[id(plan)] / middle[plan.case, plan.topology]))

    lines = [
        "Time: priced over compiled, furthest from the median ratio of the same program and slice. "
        "(A factor that all plans share changes no order.)",
        "",
        *pages.table(
            (
                "plan",
                ">priced",
                ">compiled",
                ">ratio",
                ">median ratio",
                ">priced computing + sending",
                ">compiled computing + sending",
            ),
            (
                (
                    *(plan, _ms(plan.cost.time_s), _ms(plan.time_s), f"{ratio[id(plan)]:.2f}"),
                    f"{middle[plan.case, plan.topology]:.2f}",
                    f"{_ms(plan.cost.compute_s)} + {_ms(plan.cost.comm_s)}",
                    f"{_ms(plan.compute_s)} + {_ms(plan.comm_s)}",
                )
                for plan in sorted(timed, key=off, reverse=True)[:WORST]
            ),
        ),
    ]
    known = [plan for plan in judged if plan.memory_error is not None]
    known.sort(key=lambda plan: plan.memory_error or 0.0, reverse=True)
    rows = (
        (
            *(plan, f"{plan.cost.peak_bytes / 2**30:.3f} GiB"),
            *(f"{(plan.peak_bytes or 0) / 2**30:.3f} GiB", _percent(plan.memory_error or 0.0)),
        )
        for plan in known[:WORST]
    )
    memory = pages.table(("plan", ">priced", ">compiled", ">error"), rows)
    return [*lines, "", "Memory:", "", *memory]


def panels(judged: list[Judged]) -> list[Panel]:
    """The two plots: time and memory, priced against compiled."""
    times = [
        (plan.case, plan.time_s * 1e3, plan.cost.time_s * 1e3) for plan in judged if plan.time_s
    ]
    sizes = [
        (plan.case, plan.peak_bytes / 2**30, plan.cost.peak_bytes / 2**30)
        for plan in judged
        if plan.peak_bytes
    ]
    return [Panel("Time of a step, ms", times), Panel("Peak memory of a device, GiB", sizes)]


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.1%}"


def _rank(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.3g} ms"
