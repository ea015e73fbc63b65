"""``python -m evaluation accuracy gpus``: prices against XLA's compiler for GPUs.

Three models with three plans each are compiled ahead of time for 8 GPUs of three kinds, by the
compiler that ``toast-lab install-gpu-compiler`` installs. Collectives are compared by source op,
with ``tl.diff_compiled``; memory is the predicted peak over the compiled one.
"""

from __future__ import annotations

import collections
import resource
from typing import Any

from evaluation import pages
from toast_lab import frontends
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.ir.model import Model
from toast_lab.models import registry
from toast_lab.runtime.compile import compile_plan
from toast_lab.runtime.diff import diff_compiled
from toast_lab.runtime.diff_rows import STATUSES
from toast_lab.sharding.plan import ShardingPlan, plan_of_actions

MESH = {"d": 2, "m": 4}
GPUS = ("h100", "a100", "p100")
ROLES = {"data": "d", "model": "m", "seq": "m"}
#: Model, sizes, and plans: each has the actions of one expert plan without those of another.
CASES: tuple[tuple[str, dict[str, Any], dict[str, tuple[str, str]]], ...] = (
    (
        "transformer",
        {
            "layers": 2,
            "d_model": 1024,
            "hidden": 4096,
            "heads": 16,
            "vocab": 8192,
            "batch": 32,
            "sequence": 512,
            "dtype": "bfloat16",
            "mode": "train",
        },
        {name: (name, "") for name in ("data", "data+megatron", "fsdp+megatron")},
    ),
    (
        "itx",
        {
            "layers": 2,
            "batch": 16,
            "prompt": 512,
            "sequence": 1024,
            "key_size": 128,
            "vocab": 8192,
            "mode": "prefill",
        },
        {name: (name, "") for name in ("data", "megatron", "data+megatron")},
    ),
    (
        "gns",
        {"steps": 1, "nodes": 4096, "edges": 65536, "latent": 1024, "hidden_layers": 1},
        {
            "edge sharding": ("edge sharding", ""),
            "Megatron": ("edge sharding + Megatron", "edge sharding"),
            "edge sharding + Megatron": ("edge sharding + Megatron", ""),
        },
    ),
)
HEAD = (
    "model",
    "plan",
    "GPU",
    *STATUSES,
    "bytes priced / compiled",
    "peak priced, GiB",
    "compiled, GiB",
    "ratio",
    "computing priced, ms",
    "XLA's, ms",
    "left out",
    "CPU of the child, s",
)


def main() -> int:
    """Print the table row by row."""
    print("\n".join(pages.table(HEAD, ())), flush=True)
    for name, sizes, plans in CASES:
        model = frontends.load(name, **sizes)
        analysis = analyse(model)
        experts = registry.make(name, **sizes).expert_plans
        for title, (whole, less) in plans.items():
            actions = [a for a in experts[whole] if a not in experts.get(less, ())]
            for gpu in GPUS:
                problem = Problem(analysis, MESH, gpu)
                plan = plan_of_actions(problem.space, registry.on_axes(actions, ROLES))
                row = (name, title, gpu, *numbers(model, problem, plan, f"gpu:{gpu}:8"))
                print(pages.line(row), flush=True)
    return 0


def numbers(model: Model, problem: Problem, plan: ShardingPlan, topology: str) -> list[str]:
    """The cells of one compiled plan."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    compiled = compile_plan(model, plan, topology, store=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    cost, diff = price(problem, plan), diff_compiled(problem, plan, compiled)
    counts = collections.Counter(row.status for row in diff.rows)
    pairs = diff.bytes_by_kind().values()
    priced_bytes, compiled_bytes = (sum(pair[side] for pair in pairs) for side in (0, 1))
    times = compiled.times
    peak = compiled.peak_bytes or 0
    return [
        *(str(counts[status]) for status in STATUSES),
        f"{priced_bytes / compiled_bytes:.2f}" if compiled_bytes else "-",
        f"{cost.peak_bytes / 2**30:.2f}",
        f"{peak / 2**30:.2f}",
        f"{cost.peak_bytes / peak:.2f}",
        f"{cost.compute_s * 1e3:.2f}" if times else "",
        f"{times.compute_s * 1e3:.2f}" if times else "",
        f"{len(times.left_out)}" if times else "",
        "" if compiled.cached else f"{cpu_s:.1f}",
    ]
