"""``python -m evaluation recomputation measure|figures``: what layers keep, against compilers.

``measure`` searches each program with each policy for all of its layers, and compiles the best plan
of each. Then it sets a memory limit between the peaks of "keeps everything" and "keeps its inputs",
and searches with ``recompute=True``, and beside it the program whose layers all keep their inputs,
as a model's own ``remat`` option would have it, for as long. A row of ``recomputation.jsonl`` has
prices, clocks and peaks; rows that exist are kept. ``figures`` writes the tables of
``docs/recomputation.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import toast_lab as tl
from evaluation import pages
from evaluation.corpus import package_models
from evaluation.corpus.targets import CLOCKED, Target, target
from evaluation.row_files import Row, append_rows, read_rows
from toast_lab.advice.recomputation import problem_of
from toast_lab.errors import ToastError
from toast_lab.files import write_whole
from toast_lab.frontends.checkpoints import INPUTS, POLICIES
from toast_lab.frontends.recomputing import layers_of
from toast_lab.ir.model import Model

ROWS = Path(__file__).parent / "recomputation.jsonl"
PAGE = pages.DOCS / "recomputation.md"
#: Seconds of a search with one policy; all policies together have three times as long.
SEARCH_S = 15.0
COMPILE_S = 1800.0  #: limit of one compile
CHOSEN, OWN = "chosen under a limit", "inputs, under the same limit"

#: models of several layers by name: two of this project, three of a package
CASES: dict[str, Callable[[], Model]] = {
    "t2b": lambda: tl.load("t2b", layers=2, batch=16, sequence=2048),
    "transformer": lambda: tl.load("transformer", layers=4, batch=32, sequence=1024),
    "gpt2": lambda: package_models.gpt2(layers=2),
    "llama": lambda: package_models.llama(layers=2),
    "bert": lambda: package_models.bert(layers=2),
}


def rows() -> list[Row]:
    """The rows of ``recomputation.jsonl``."""
    return read_rows(ROWS)


def measure(programs: Iterable[str], targets: Sequence[Target]) -> None:
    """Append the rows that are missing."""
    for program in programs:
        known = {(row["topology"], row["keeps"]) for row in rows() if row["program"] == program}
        every = {(where.topology, keeps) for where in targets for keeps in (*POLICIES, CHOSEN, OWN)}
        if every <= known:
            continue
        analysis = tl.analyse(CASES[program]())
        layers = layers_of(analysis.model)
        for where in targets:
            problem = tl.Problem(analysis, where.mesh, where.machine)
            for policy in POLICIES:
                if (where.topology, policy) not in known:
                    own = problem_of(problem, {layer.where: policy for layer in layers})
                    _append(program, where, policy, own, _search(own))
            if (where.topology, OWN) not in known:
                limited = tl.Problem(
                    analysis,
                    where.mesh,
                    where.machine,
                    memory_limit_bytes=_limit_bytes(program, where),
                )
                found = _search(limited, 3 * SEARCH_S, recompute=True)
                _append(program, where, CHOSEN, limited, found)
                own = problem_of(limited, {layer.where: INPUTS for layer in layers})
                _append(program, where, OWN, own, _search(own, 3 * SEARCH_S))


def _limit_bytes(program: str, where: Target) -> float:
    """Between the peaks of the plans whose layers keep everything, and only their inputs."""
    peaks = [
        row["peak_bytes"]
        for row in rows()
        if (row["program"], row["topology"]) == (program, where.topology)
        and row["keeps"] in (INPUTS, "everything")
    ]
    return float(np.mean(peaks))


def _search(problem: Any, seconds: float = SEARCH_S, **options: Any) -> Any:
    return tl.search(problem, budget=tl.Budget(seconds=seconds), **options)


def _append(program: str, where: Target, keeps: str, problem: Any, result: Any) -> None:
    row = {
        "program": program,
        "topology": where.topology,
        "keeps": keeps,
        "ops": result.problem.analysis.program.n_ops,
        "limit_bytes": problem.memory_limit_bytes,
        "price_s": result.cost.time_s,
        "peak_bytes": result.cost.peak_bytes,
        "fits": result.cost.fits,
    }
    if keeps == CHOSEN:
        row["choices"] = [str(choice) for choice in result.choices]
    model = result.problem.analysis.model
    try:
        compiled = tl.compile(model, result.plan, where.topology, time_limit_s=COMPILE_S)
        row |= {
            "clock_s": compiled.time_s,
            "compiled_peak_bytes": compiled.total_needed_bytes,
            "compile_s": compiled.compile_s,
            "versions": {name: text for name, text in compiled.versions.items() if text},
        }
    except ToastError as error:
        row["failure"] = str(error).splitlines()[0]
    append_rows(ROWS, [row])
    print(row, flush=True)


# -- the page --------------------------------------------------------------------------------------


def figures() -> None:
    """Write the tables into the page, between their marks."""
    order = list(CASES), [*CLOCKED], [*POLICIES, CHOSEN, OWN]
    found = sorted(
        rows(),
        key=lambda row: [
            names.index(row[key])
            for names, key in zip(order, ("program", "topology", "keeps"), strict=True)
        ],
    )
    policies = [row for row in found if row["keeps"] in POLICIES]
    text = pages.with_part(PAGE.read_text(), "medians", _medians(policies))
    text = pages.with_part(text, "policies", _table(policies))
    write_whole(PAGE, pages.with_part(text, "choices", _choices(found)))


def _medians(found: Sequence[Row]) -> list[str]:
    lines = []
    for topology in dict.fromkeys(row["topology"] for row in found):
        for policy in POLICIES:
            members = [
                row for row in found if (row["topology"], row["keeps"]) == (topology, policy)
            ]
            lines.append(
                (
                    topology,
                    policy,
                    *_spread([_over(row, "price_s", "clock_s") for row in members]),
                    *_spread([_over(row, "peak_bytes", "compiled_peak_bytes") for row in members]),
                )
            )
    columns = "target|layers keep|>programs|>price / clock|farthest|>programs|>peak / compiled peak"
    return pages.table((*columns.split("|"), "farthest"), lines)


def _spread(ratios: Sequence[float | None]) -> tuple[object, ...]:
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return 0, "", ""
    farthest = max(known, key=lambda ratio: abs(np.log(ratio)))
    return len(known), f"{np.median(known):.2f}", f"{farthest:.2f}"


def _table(found: Sequence[Row]) -> list[str]:
    columns = (
        "program|target|layers keep|>price, ms|>clock, ms|>ratio|>peak, GiB|>compiled, GiB|>ratio"
    )
    return pages.table(columns.split("|"), [_cells(row) for row in found])


def _cells(row: Row) -> list[object]:
    return [
        row["program"],
        row["topology"],
        row["keeps"],
        f"{row['price_s'] * 1e3:.4g}",
        f"{row['clock_s'] * 1e3:.4g}" if row.get("clock_s") else row.get("failure", ""),
        _short(_over(row, "price_s", "clock_s")),
        f"{row['peak_bytes'] / 2**30:.2f}",
        f"{row['compiled_peak_bytes'] / 2**30:.2f}" if row.get("compiled_peak_bytes") else "",
        _short(_over(row, "peak_bytes", "compiled_peak_bytes")),
    ]


def _choices(found: Sequence[Row]) -> list[str]:
    lines = []
    for row in found:
        if row["keeps"] != CHOSEN:
            continue
        (own,) = [
            other
            for other in found
            if other["keeps"] == OWN
            and (other["program"], other["topology"]) == (row["program"], row["topology"])
        ]
        limit_bytes = row["limit_bytes"]
        lines.append(
            [
                row["program"],
                row["topology"],
                f"{limit_bytes / 2**30:.2f}",
                row["choices"][0].partition(":")[0],
                *(
                    f"{one[key] / unit:.4g}" if one.get(key) else ""
                    for one in (row, own)
                    for key, unit in (("clock_s", 1e-3), ("compiled_peak_bytes", 2**30))
                ),
                _short(row["clock_s"] / own["clock_s"] if row.get("clock_s") else None),
            ]
        )
    columns = (
        "program|target|>limit, GiB|chosen|>clock, ms|>compiled, GiB|>all inputs: clock, ms|"
        ">compiled, GiB|>ratio of clocks"
    )
    return pages.table(columns.split("|"), lines)


def _over(row: Row, above: str, below: str) -> float | None:
    return row[above] / row[below] if row.get(above) and row.get(below) else None


def _short(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def main(arguments: list[str]) -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m evaluation recomputation", description=__doc__)
    parser.add_argument("command", choices=("measure", "figures"))
    parser.add_argument("--programs", nargs="*", choices=CASES, help="by name; all by default")
    parser.add_argument("--targets", nargs="*", help="topologies; v5e and H100 by default")
    args = parser.parse_args(arguments)
    if args.command == "figures":
        figures()
        return 0
    measure(args.programs or CASES, [target(topology) for topology in args.targets or CLOCKED])
    return 0
