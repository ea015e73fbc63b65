"""The targets of the evaluation, each computed from the rows.

A target is met, missed or not measured, with the numbers.

Start reading at ``targets``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from toast_lab.bench import cases, tables
from toast_lab.bench.cases import OURS
from toast_lab.bench.tables import Found

TIE = 1e-9  # relative difference of scores that is rounding
TIMES_SLOWER = 25.0
SLOW_MODELS = ("UNet", "GNS")
CLOSE_WITHIN_S = 10.0
GROWTH = 0.5  # exponent of search time against layers


class Target(NamedTuple):
    """One target and what the rows say of it."""

    text: str
    met: bool | None  #: None: rows are missing
    numbers: tuple[str, ...]  #: one for each place where it could fail
    reason: str = ""  #: why it is missed, as far as we know

    @property
    def verdict(self) -> str:
        """In a word or two."""
        return {True: "met", False: "missed", None: "not measured"}[self.met]


def targets(found: Sequence[Found], *, quick: bool = False) -> list[Target]:
    """All targets.

    ``quick`` is for sizes that try the command out: they can neither meet nor miss a target.
    """
    made = [
        at_least_as_good(found),
        slower(found),
        close_in_time(found),
        optimum(found),
        growth(found),
    ]
    return [t._replace(met=None) for t in made] if quick else made


def at_least_as_good(found: Iterable[Found]) -> Target:
    """Our plan against the best of every rival, problem by problem."""
    wins, missed, lines = 0, [], []
    names: set[str] = set()
    wanted = {(c.name, m) for c in cases.CASES for m in cases.MACHINES}
    for (part, case, machine), group in tables.problems(found).items():
        if part != "models" or (case, machine) not in wanted:
            continue
        ours = next((one for one in group if one.method == OURS and one.has_plan), None)
        rivals = [one for one in group if one.method != OURS and one.has_plan]
        if ours is None or not rivals:
            continue
        wanted.discard((case, machine))
        names |= {one.method for one in rivals}
        best = min(rivals, key=lambda one: one.rank)
        does_not_fit, score = best.rank
        if (ours.rank[0], ours.rank[1]) <= (does_not_fit, score * (1 + TIE)):
            wins += 1
        else:
            missed.append(case)
            lines.append(
                f"{case} on {machine}: {OURS} {_plan(ours)}, {best.method} {_plan(best)} "
                f"({ours.rank[1] / score - 1:+.2%} in score)"
            )
    total = wins + len(missed)
    if not total:
        return Target(_GOOD, None, ())
    lines.append(f"rivals: {', '.join(sorted(names)) or 'none'}")
    left = [f"no rows yet: {', '.join(f'{c} on {m}' for c, m in sorted(wanted))}"] if wanted else []
    verdict = False if missed else (None if wanted else True)
    return Target(
        _GOOD,
        verdict,
        (f"{wins} of {total} problems", *lines, *left),
        _GOOD_MISSED if missed else "",
    )


def slower(found: Iterable[Found]) -> Target:
    """AutoMap's time to its own best over ours to our own best."""
    text = (
        f"automap needs at least {TIMES_SLOWER:g} times our time to its own best on U-Net and GNS"
    )
    ratios, lines = [], []
    for (part, case, machine), group in tables.problems(found).items():
        by_method = {one.method: one for one in group if one.has_plan}
        if part != "models" or case not in SLOW_MODELS or not {OURS, "automap"} <= set(by_method):
            continue
        ours, theirs = by_method[OURS].row["own_best_s"], by_method["automap"].row["own_best_s"]
        ratios.append(theirs / ours if ours > 0 else math.inf)
        # Ours goes on to better plans; how soon it had one as good as theirs says more of speed
        # alone.
        target = by_method["automap"].rank
        equal_s = next(
            (p.elapsed_s for p in by_method[OURS].points if (not p.fits, p.score) <= target), None
        )
        also = (
            "never"
            if equal_s is None
            else f"{equal_s:.2f} s, {theirs / equal_s:.1f} times"
            if equal_s
            else "at once"
        )
        lines.append(
            f"{case} on {machine}: {theirs:.2f} s / {ours:.2f} s = {ratios[-1]:.1f} (as good as "
            f"AutoMap's best: {also})"
        )
    met = min(ratios) >= TIMES_SLOWER if ratios else None
    return Target(text, met, tuple(lines), _SLOWER_MISSED if met is False else "")


def close_in_time(found: Iterable[Found]) -> Target:
    """Seconds to within 1% of the best of any method, on T2B and a 4x4 mesh."""
    name = cases.FOUR_BY_FOUR.name
    text = (
        f"{name}: within 1% of the best plan any method found in at most {CLOSE_WITHIN_S:g} s "
        "from analysed program"
    )
    rows = [r for r in tables.search_times(found) if r["case"] == name and r["method"] == OURS]
    if not rows:
        return Target(text, None, ())
    close = rows[0]["close_s"]
    # From the analysed program on: reading it and loading kernels is part of it.
    took = None if close is None else close + (rows[0]["prepare_s"] or 0.0)
    numbers = (
        "never within its budget"
        if took is None
        else (f"{took:.2f} s, of which {close:.2f} s are the search")
    )
    return Target(text, took is not None and took <= CLOSE_WITHIN_S, (numbers,))


def optimum(found: Iterable[Found]) -> Target:
    """Seeds whose plan is the proven optimum."""
    text = "mlp, attention and a 1-layer block: the proven optimum, 20 of 20 seeds"
    lines: list[str] = []
    verdicts: list[bool | None] = []
    names = {name for name, *_ in cases.SMALL}
    for (_, case, _), group in tables.problems(found).items():
        proof = next((o for o in group if o.method == "exhaustive" and o.has_plan), None)
        seeds = [o for o in group if o.method == OURS and o.has_plan]
        if case not in names or not seeds:
            continue
        if proof is None or proof.row["status"] != "COMPLETE":
            lines.append(f"{case}: exhaustive search did not come to an end, nothing is proven")
            verdicts.append(None)
            continue
        hits = sum(o.rank <= (proof.rank[0], proof.rank[1] * (1 + TIE)) for o in seeds)
        lines.append(f"{case}: {hits} of {len(seeds)} seeds")
        verdicts.append(None if hits == len(seeds) < cases.SEEDS else hits == len(seeds))
    if False in verdicts:
        return Target(text, False, tuple(lines))
    return Target(
        text, True if len(verdicts) == len(names) and all(verdicts) else None, tuple(lines)
    )


def growth(found: Iterable[Found]) -> Target:
    """Exponent of search time against the number of layers, by least squares of the logarithms."""
    text = "search time grows at most with the square root of the number of layers"
    points = [
        (o.x, o.row["elapsed_s"], o.row["status"])
        for o in found
        if o.part == "depth" and o.has_plan
    ]
    priced = [o.row.get("evaluations") for o in found if o.part == "depth" and o.has_plan]
    lines = [
        f"{x:g} layers: {seconds:.2f} s ({status})"
        + (f", {n} plans, {seconds / n * 1e6:.0f} us each" if n else "")
        for (x, seconds, status), n in zip(points, priced, strict=True)
    ]
    exponent = fitted_exponent([(x, s) for x, s, _ in points])
    if exponent is None:
        return Target(text, None, tuple(lines))
    ended = all(status not in ("BUDGET", "CRASHED", "CANCELLED") for _, _, status in points)
    if not ended:
        lines.append("a search that its budget ended says nothing of growth")
    met = exponent <= GROWTH if ended else None
    return Target(
        text, met, (f"exponent {exponent:.2f}", *lines), _GROWTH_MISSED if met is False else ""
    )


def fitted_exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """Slope of log y against log x by least squares; None for fewer than two different x."""
    logs = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len({x for x, _ in logs}) < 2:
        return None
    mean_x, mean_y = (sum(v) / len(logs) for v in zip(*logs, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum(
        (x - mean_x) ** 2 for x, _ in logs
    )


_GOOD = "our plan at least as good as every rival's on all five models x three machines"


_GOOD_MISSED = (
    "where a rival is ahead, both are in good local optima that single changes do not connect: "
    "in GNS and T2B whole "
    "chains of ops would have to change together, which integer programs over all axes find if "
    "their time suffices. "
    "For U-Net these programs are too large for the budget, and the best plan is one of colour "
    "actions, of which beam "
    "search tries a few more"
)
_GROWTH_MISSED = (
    "the number of plans priced hardly grows with depth, but peak memory is a pass over all ops "
    "for each of them, "
    "which begins to dominate: repeated layers are folded for time only"
)
_SLOWER_MISSED = (
    "the rival here propagates in memory, 0.1 to 0.8 ms an action, where the paper's goes "
    "through a compiler's passes; "
    "and our search goes on to better plans until its budget ends, so that its time to its own "
    "best is most of the "
    "budget. The time until it was as good as AutoMap's best stands beside it"
)


def _plan(one: Found) -> str:
    fits = "" if one.row["fits"] else ", does not fit"
    return f"{one.row['time_s'] * 1e3:.2f} ms{fits}"
