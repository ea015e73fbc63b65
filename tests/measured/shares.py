"""What is to be measured: programs of one device, as files that a GPU's machine can take.

A share is a plan of the corpus (its collectives are stand-ins) or a single op (``ops``).  Its text
carries the numbers of our ops, so that a kernel's time finds its way back to them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.corpus import compiled, plans, programs
from tests.corpus.targets import target
from tests.measured import fresh_ops, ops
from toast_lab.compare.local_program import LocalProgram
from toast_lab.compare.replay import divided
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem
from toast_lab.errors import ToastError
from toast_lab.frontends.tracing import from_jax
from toast_lab.ir.model import Model
from toast_lab.ir.program import Program
from toast_lab.lowering.annotate import annotate
from toast_lab.plan_verbs import Plan
from toast_lab.runtime import inputs
from toast_lab.runtime.compile import rounds_of
from toast_lab.runtime.executable import donated_arguments
from toast_lab.sharding.plan import ShardingPlan

TOPOLOGY = "gpu:h100:8"
ONE = {"one": 1}  # the mesh of a single op
TIME_LIMIT_S = 300.0
#: Single ops: those that rules were read off, and those that they are tested on.
SINGLE = {"op": ops.every, "fresh op": fresh_ops.every}
Row = dict[str, Any]


def single_problem(single: ops.Single) -> tuple[Model, Problem]:
    """A single op as a problem of one device."""
    model = from_jax(single.function, *single.arguments, name=single.name)
    return model, Problem(analyse(model), ONE, "h100")


def generate(folder: Path, names: Sequence[str]) -> None:
    """Write what is not there yet; ``names`` are programs of the corpus, or names in
    ``SINGLE``."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = folder / "shares.jsonl"
    for head, model, plan in _wanted(names):
        if identity(head) in map(identity, compiled.read_rows(listed)):
            continue
        try:
            row = write_share(folder, head, model, plan)
        except ToastError as error:
            print(f"{head['program']}, {head['plan']}: {error}", flush=True)
            continue
        with listed.open("a") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def identity(row: Row) -> tuple[str, str, str]:
    """What names a share."""
    return row["program"], row["digest"], row["plan"]


def _wanted(names: Sequence[str]) -> Iterator[tuple[Row, Model, ShardingPlan]]:
    for plan_name, makers in SINGLE.items():
        for single in makers() if plan_name in names else ():
            model, problem = single_problem(single)
            head = {"program": single.name, "digest": single.family, "plan": plan_name}
            yield head, model, Plan.from_actions(problem, [])
    rows = [row for row in compiled.rows() if row["topology"] == TOPOLOGY and row.get("peak_bytes")]
    where = target(TOPOLOGY)
    for name, model, analysis, digest in programs.each_traced(n for n in names if n not in SINGLE):
        problem = Problem(analysis, where.mesh, where.machine)
        for row in rows:
            if (row["program"], row["digest"]) == (name, digest):
                head = {"program": name, "digest": digest, "plan": row["plan"]}
                yield head, model, plans.decoded(problem, row["sharding"])


def write_share(folder: Path, head: Row, model: Model, plan: ShardingPlan) -> Row:
    """Divide a plan, write its program into the folder, and give its line of ``shares.jsonl``."""
    n_devices = plan.mesh.n_devices
    text = annotate(model, plan, located=True)
    local = divided(model, n_devices, text, "gpu", {"time_limit_s": TIME_LIMIT_S})
    name = hashlib.sha256(repr(identity(head)).encode()).hexdigest()[:12] + ".mlir.gz"
    (folder / name).write_bytes(gzip.compress(local.text.encode(), 9))
    return {
        **head,
        "file": name,
        "arguments": _arguments(model.program, local),
        "results": len(local.result_shapes),
        "rounds": {str(op): times for op, times in rounds_of(model.program).items()},
        "removed": [[one.kind, one.bytes] for one in local.removed],
    }


def _arguments(program: Program, local: LocalProgram) -> list[Row]:
    """How to draw each argument, as ``runtime.inputs.draw`` would."""
    bounds = inputs.index_bounds(program)
    positive = inputs.under_roots(program) | inputs.under_fractions(program)
    return [
        {
            "shape": list(shape),
            "element": program.value_dtype[argument],
            "bound": bounds.get(argument),
            "positive": argument in positive,
            "donated": donated,
        }
        for argument, (shape, donated) in enumerate(
            zip(local.argument_shapes, donated_arguments(program), strict=True)
        )
    ]
