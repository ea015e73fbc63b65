"""``told.jsonl``: our price and XLA's time of the measured single ops.

For plans of the corpus, the corpus's own files have them. ``toast-lab install-gpu-compiler``
installs XLA's compiler for GPUs; without it, XLA's earlier times stay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluation.measured import rows, shares
from evaluation.row_files import Row, read_rows, write_rows
from toast_lab.cost.problem import price
from toast_lab.errors import InvalidProblem
from toast_lab.plan_verbs import Plan
from toast_lab.runtime import gpu_compiler
from toast_lab.runtime.compile import compile_plan

ROWS = Path(__file__).parent / "told.jsonl"
TOPOLOGY = "gpu:h100:1"


def read() -> dict[tuple[str, str, str, str], Row]:
    """Read the kept rows, by share."""
    return {rows.key(row): row for row in read_rows(ROWS)}


def generate() -> None:
    """Price every single op anew, and ask XLA for its time."""
    before, fresh, is_there = read(), [], _has_compiler()
    for head, model, problem in shares.each_single(shares.SINGLE):
        plan = Plan.from_actions(problem, [])
        cost = price(problem, plan)
        priced = {"priced_s": rows.rounded(cost.compute_s), "peak_bytes": cost.peak_bytes}
        if is_there:
            compiled_row = _compiled(model, plan)
        else:
            kept = before.get(rows.key(head), {})
            compiled_row = {name: kept[name] for name in ("told_s", "left_out") if name in kept}
        fresh.append({**head, **priced, **compiled_row})
        print(head["program"], flush=True)
    write_rows(ROWS, fresh)


def _has_compiler() -> bool:
    try:
        gpu_compiler.find()
    except InvalidProblem as error:
        print(f"{error}\nWhat it said before stays.", flush=True)
        return False
    return True


def _compiled(model: Any, plan: Any) -> Row:
    times = compile_plan(model, plan, TOPOLOGY, store=True).times
    if times is None:
        return {}
    return {"told_s": rows.rounded(times.compute_s), "left_out": len(times.left_out)}
