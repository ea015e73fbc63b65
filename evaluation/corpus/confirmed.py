"""Confirmed searches on the corpus: is the plan that the compiler confirmed as good as any rival's?

``confirmed.jsonl`` has a row for each program and target, with every verdict and the seconds that
the search had taken by then. Rivals are the plans of the same program in ``compiled.jsonl``. An
interrupted run continues with the program at which it stopped: plans that were compiled are in the
store of compiled results.

Nobody looks at the compilers' answers for a program before its search is over.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from evaluation.corpus import plans, programs
from evaluation.corpus.targets import Target
from evaluation.row_files import Row, append_rows, read_rows
from toast_lab import pipeline
from toast_lab.confirm.loop import Judging
from toast_lab.confirm.verdict import JudgeEvent, Verdict
from toast_lab.cost.problem import Problem
from toast_lab.errors import ToastError
from toast_lab.search.contract import Budget

ROWS = Path(__file__).parent / "confirmed.jsonl"
EVALUATIONS = 20_000  #: budget of the search in each round
COMPILES = 12
TIME_LIMIT_S = 400.0  #: time limit of one compile


def generate(names: Iterable[str], targets: Sequence[Target]) -> None:
    """Run confirmed searches for programs and targets that have no row yet, program by program."""
    known = {_head(row) for row in rows()}
    for name, target, problem, digest in programs.each_problem(names, targets):
        if (name, digest, target.topology) in known:
            continue
        row = {"program": name, "digest": digest, "topology": target.topology}
        try:
            row |= _searched(problem, target)
        except ToastError as error:
            row["error"] = str(error)[:300]
        append_rows(ROWS, [row])
        print(name, target.topology, row.get("standing", row.get("error")), flush=True)


def rows() -> list[Row]:
    """The rows of ``confirmed.jsonl``."""
    return read_rows(ROWS)


def _head(row: Row) -> tuple[str, str, str]:
    return row["program"], row["digest"], row["topology"]


def _searched(problem: Problem, target: Target) -> Row:
    verdicts: list[Row] = []
    began, compile_s = time.monotonic(), 0.0

    def hear(event: JudgeEvent) -> None:
        nonlocal compile_s
        if event.verdict is None:
            return
        judgement = event.verdict.judgement
        # Count the original compile time of plans that an interrupted run had compiled
        compile_s += judgement.compile_s if judgement.cached else 0.0
        verdicts.append(_verdict_row(event.verdict, time.monotonic() - began + compile_s))

    result = pipeline.search(
        problem,
        plans.OURS,
        0,
        Budget(seconds=None, evaluations=EVALUATIONS),
        judge=Judging(target.topology, compiles=COMPILES, time_limit_s=TIME_LIMIT_S, on_event=hear),
    )
    best = getattr(result, "best", None)
    return {
        "standing": result.standing.name,  # type: ignore[attr-defined]
        "best": None if best is None else best.time_s,
        "written": result.written().size.total,
        "wall_s": round(time.monotonic() - began + compile_s, 1),
        "verdicts": verdicts,
    }


def _verdict_row(verdict: Verdict[Any], at_s: float) -> Row:
    """A verdict as a row; times in seconds."""
    return {
        "at_s": round(at_s, 1),
        "round": verdict.round,
        "name": verdict.name,
        "priced_s": float(f"{verdict.priced_s:.4g}"),
        "time_s": verdict.time_s,
        "stands": verdict.stands,
        "remark": verdict.remark[:120],
    }
