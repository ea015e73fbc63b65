"""``told.jsonl``: what our price and XLA's cost model say of the single ops that were measured.

Of plans of the corpus the same stands in its own files.  XLA's compiler for GPUs is what
``toast-lab install-gpu-compiler`` gets; without it what it said before stays.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.measured import rows, shares
from toast_lab.cost.problem import price
from toast_lab.errors import InvalidProblem
from toast_lab.files import write_whole
from toast_lab.plan_verbs import Plan
from toast_lab.runtime import gpu_compiler
from toast_lab.runtime.compile import compile_plan

ROWS = Path(__file__).parent / "told.jsonl"
TOPOLOGY = "gpu:h100:1"


def read() -> dict[tuple[str, str, str], rows.Row]:
    """The rows that are kept, by share."""
    lines = ROWS.read_text().splitlines() if ROWS.exists() else []
    return {rows.key(row): row for row in map(json.loads, lines)}


def generate() -> None:
    """Ask both about every single op anew."""
    before, fresh, is_there = read(), [], _has_compiler()
    for plan_name, makers in shares.SINGLE.items():
        for single in makers():
            model, problem = shares.single_problem(single)
            plan = Plan.from_actions(problem, [])
            row: rows.Row = {"program": single.name, "digest": single.family, "plan": plan_name}
            cost = price(problem, plan)
            row |= {"priced_s": float(f"{cost.compute_s:.4g}"), "peak_bytes": cost.peak_bytes}
            if is_there:
                row |= _compiled(model, plan)
            else:
                kept = before.get(rows.key(row), {})
                row |= {name: kept[name] for name in ("told_s", "left_out") if name in kept}
            fresh.append(row)
            print(single.name, flush=True)
    lines = [json.dumps(row, separators=(",", ":")) for row in fresh]
    write_whole(ROWS, "\n".join(lines) + "\n")


def _has_compiler() -> bool:
    try:
        gpu_compiler.find()
    except InvalidProblem as error:
        print(f"{error}\nWhat it said before stays.", flush=True)
        return False
    return True


def _compiled(model: Any, plan: Any) -> rows.Row:
    times = compile_plan(model, plan, TOPOLOGY, store=True).times
    if times is None:
        return {}
    return {"told_s": float(f"{times.compute_s:.4g}"), "left_out": len(times.left_out)}
