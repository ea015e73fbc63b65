"""From the rows of ``search.py`` to tables and targets; nothing is measured here.

"Near" is the moment from which on the best plan so far is within 1% of the best one known: of the same run in the
tables against layers and devices, of any row of the same problem where the target asks for that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

NEAR = 1.01  #: C(s) of a plan that counts as found, over the best one's
MAX_EXPONENT = 0.5  #: of search time against layers
MAX_SECONDS_TO_NEAR = 10.0  #: t2b training on 4x4, from the analysed program
ENDED = ("CONVERGED", "COMPLETE")
BEGIN, END = "<!-- search: made by python -m tests.benchmarks search -->", "<!-- search: end -->"

Row = dict[str, str]


class Target(NamedTuple):
    """One claim and what was found."""

    what: str
    wanted: str
    found: str
    met: bool


def rank(row: Row) -> tuple[bool, float]:
    """Lower is better: a plan that fits before any that does not, then C(s)."""
    return row["fits"] != "1", float(row["score"])


def near_s(row: Row, best: tuple[bool, float]) -> float:
    """Seconds until the best plan so far was within 1% of ``best``, a ``rank``; infinite if it never was."""
    for point in row["curve"].split():
        at_s, score, fits = point.split(":")
        if (fits != "1", float(score)) <= (best[0], best[1] * NEAR):
            return float(at_s)
    return math.inf


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of log y over log x, least squares; not a number with fewer than two points, or with one at infinity."""
    if len(xs) < 2 or not all(map(math.isfinite, ys)):
        return math.nan
    return float(np.polyfit(np.log(xs), np.log(ys), 1)[0])


def of_table(rows: Iterable[Row], name: str, method: str = "mcts") -> list[Row]:
    """Rows of one table and method."""
    return [row for row in rows if row["table"] == name and row["method"] == method]


def layers_of(row: Row) -> int:
    """Layers of the program of a row."""
    return int(dict(item.split("=") for item in row["sizes"].split(",") if item)["layers"])


class Grown(NamedTuple):
    """Medians over the seeds of one number of layers."""

    layers: int
    ops: int
    seeds: int
    ended_s: float  #: infinite if most searches ended with their budget
    near_s: float
    plans: float
    plans_per_s: float


def by_layers(rows: Iterable[Row]) -> list[Grown]:
    """The table against layers."""
    found: dict[int, list[Row]] = {}
    for row in of_table(rows, "layers"):
        found.setdefault(layers_of(row), []).append(row)
    return [
        Grown(
            layers, int(some[0]["ops"]), len(some),
            statistics.median(float(r["whole_s"]) if r["status"] in ENDED else math.inf for r in some),
            statistics.median(near_s(r, rank(r)) for r in some),
            statistics.median(int(r["evaluations"]) for r in some),
            statistics.median(int(r["evaluations"]) / float(r["elapsed_s"]) for r in some),
        )
        for layers, some in sorted(found.items())
    ]  # fmt: skip


def best_known(rows: Iterable[Row], like: Row) -> Row:
    """The best row of the same problem, by whichever method."""
    same = ("model", "sizes", "mesh", "machine")
    return min((r for r in rows if all(r[k] == like[k] for k in same)), key=rank)


class Proven(NamedTuple):
    """One small model: what was proven, and how many seeds reached it."""

    program: str
    mesh: str
    proof: Row | None
    reached: int
    seeds: int
    slowest_s: float


def proven(rows: Sequence[Row]) -> list[Proven]:
    """The models with an optimum to be proven."""
    found = []
    for proof in of_table(rows, "proven", "exhaustive"):
        seeds = [r for r in of_table(rows, "proven") if (r["model"], r["sizes"]) == (proof["model"], proof["sizes"])]
        complete = proof["status"] == "COMPLETE"
        best = rank(proof)
        reached = sum(complete and rank(r) <= (best[0], best[1] * (1 + 1e-9)) for r in seeds)
        slowest = max((float(r["whole_s"]) for r in seeds), default=math.nan)
        name = f"{proof['model']} {proof['sizes']}".strip()
        found.append(Proven(name, proof["mesh"], proof if complete else None, reached, len(seeds), slowest))
    return found


def threads(rows: Iterable[Row]) -> dict[int, float]:
    """Plans a second by number of threads, the median."""
    found: dict[int, list[float]] = {}
    for row in of_table(rows, "threads"):
        found.setdefault(int(row["threads"]), []).append(int(row["evaluations"]) / float(row["elapsed_s"]))
    return {n: statistics.median(some) for n, some in sorted(found.items())}


def targets(rows: Sequence[Row]) -> list[Target]:
    """Every target of which there are rows."""
    found = []
    grown = by_layers(rows)
    if len(grown) > 1:
        slope = exponent([g.layers for g in grown], [g.ended_s for g in grown])
        text = f"{slope:.2f}" if math.isfinite(slope) else "some searches did not end within their budget"
        found.append(
            Target("exponent of search time against layers", f"at most {MAX_EXPONENT}", text, slope <= MAX_EXPONENT)
        )
    ours = of_table(rows, "target")
    if ours:
        best = rank(best_known(rows, ours[0]))
        slowest = max(near_s(r, best) for r in ours)
        what = f"{ours[0]['model']} ({ours[0]['sizes']}) on {ours[0]['mesh']}, {len(ours)} seeds: slowest to within 1%"
        wanted = f"at most {MAX_SECONDS_TO_NEAR:g} s"
        found.append(Target(what, wanted, _seconds(slowest), slowest <= MAX_SECONDS_TO_NEAR))
    for one in proven(rows):
        text = f"{one.reached} of {one.seeds} seeds" if one.proof else "no proof within its budget"
        met = one.proof is not None and one.reached == one.seeds > 0
        found.append(Target(f"{one.program} on {one.mesh}: proven optimum", "every seed", text, met))
    return found


# -- Markdown ----------------------------------------------------------------------------------------


def section(rows: Sequence[Row]) -> str:
    """The part of docs/benchmarks.md."""
    parts = [
        "## Search time",
        f"`python -m tests.benchmarks search`: {', '.join(sorted({row['on'] for row in rows}))}, otherwise idle; wall "
        "seconds from the analysed program on, compiled code warm. Unless said otherwise the Adam training step of "
        "`t2b` at paper size, every layer unrolled, `mcts` with its defaults. *Ended*: until the search found that "
        "nothing gets better and stopped. *Near*: until the best plan so far was within 1% of what the run ended with. "
        "Every search is a row of `tests/benchmarks/search.csv`, with its curve.",
        _table(("target", "wanted", "found", ""), [(*t[:3], "met" if t.met else "**missed**") for t in targets(rows)]),
    ]
    grown = by_layers(rows)
    if grown:
        parts += [f"Against layers, mesh 4x4, TPU v5e, medians of {grown[0].seeds} seeds:", _layers_table(grown)]
    if of_table(rows, "devices"):
        parts += ["Against devices and axes, A100s:", _devices_table(of_table(rows, "devices"))]
    if of_table(rows, "target"):
        parts += ["Until within 1% of the best plan that any row has for the same problem:", _target_table(rows)]
    if proven(rows):
        parts += ["Small programs whose optimum the exhaustive search proves:", _proven_table(proven(rows))]
    rates = threads(rows)
    if rates:
        one = rates.get(1, math.nan)
        cells = [(n, f"{rate:,.0f}", f"{rate / one:.2f}") for n, rate in rates.items()]
        parts += ["Threads, mesh 4x4:", _table((">threads", ">plans/s", ">over one thread"), cells)]
    return "\n\n".join(parts) + "\n"


def write(text: str, page: Path) -> None:
    """Put the section into the page, in place of the old one, or at its end."""
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    block = f"{BEGIN}\n\n{text}\n{END}\n"
    if BEGIN in old:
        before, _, rest = old.partition(BEGIN)
        new = before + block + rest.partition(END)[2].lstrip("\n")
    else:
        new = f"{old.rstrip()}\n\n{block}".lstrip()
    page.write_text(new, encoding="utf-8")


def _layers_table(grown: list[Grown]) -> str:
    cells = [
        (g.layers, f"{g.ops:,}", _seconds(g.ended_s), _seconds(g.near_s), f"{g.plans:,.0f}", f"{g.plans_per_s:,.0f}")
        for g in grown
    ]
    xs = [g.layers for g in grown]
    slopes = [exponent(xs, ys) for ys in ([g.ended_s for g in grown], [g.near_s for g in grown])]
    if len(grown) > 1:
        cells.append(("exponent", "", *(f"{s:.2f}" if math.isfinite(s) else "–" for s in slopes), "", ""))
    return _table((">layers", ">ops", ">ended", ">near", ">plans", ">plans/s"), cells)


def _devices_table(rows: list[Row]) -> str:
    ordered = sorted(rows, key=lambda r: (int(r["devices"]), int(r["axes"])))
    cells = [
        (
            r["devices"], r["mesh"], _seconds(float(r["whole_s"])) + ("" if r["status"] in ENDED else " (budget)"),
            _seconds(near_s(r, rank(r))), f"{int(r['evaluations']):,}",
            f"{int(r['evaluations']) / float(r['elapsed_s']):,.0f}", f"{float(r['score']):.4f}",
            "yes" if r["fits"] == "1" else "no",
        )
        for r in ordered
    ]  # fmt: skip
    return _table((">devices", ">mesh", ">ended", ">near", ">plans", ">plans/s", ">C(s)", "fits"), cells)


def _target_table(rows: Sequence[Row]) -> str:
    mine = [row for row in rows if row["table"] == "target"]
    best = best_known(rows, mine[0])
    cells = [
        (
            r["method"], r["seed"], f"{float(r['score']):.6f}", f"{float(r['score']) / float(best['score']):.3f}",
            "yes" if r["fits"] == "1" else "no", _seconds(near_s(r, rank(best))),
            _seconds(float(r["whole_s"])) + ("" if r["status"] in ENDED else " (budget)" * (r["status"] == "BUDGET")),
        )
        for r in mine
    ]  # fmt: skip
    return _table(("method", ">seed", ">C(s)", ">over the best", "fits", ">within 1%", ">ended"), cells)


def _proven_table(found: list[Proven]) -> str:
    cells = [
        (
            one.program, one.mesh,
            _seconds(float(one.proof["whole_s"])) if one.proof else "none",
            f"{int(one.proof['evaluations']):,}" if one.proof else "",
            f"{float(one.proof['score']):.6f}" if one.proof else "",
            f"{one.reached} of {one.seeds}", _seconds(one.slowest_s),
        )
        for one in found
    ]  # fmt: skip
    columns = ("program", ">mesh", ">proof", ">plans", ">C(s)", ">seeds that reach it", ">slowest of them ended")
    return _table(columns, cells)


def _seconds(value: float) -> str:
    if not math.isfinite(value):
        return "never"
    return f"{value:.2f} s" if value < 100 else f"{value:.0f} s"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; a column whose title starts with ">" is set to the right."""
    lines = [[c.lstrip(">") for c in columns], ["---:" if c.startswith(">") else "---" for c in columns]]
    lines += [[str(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
