"""Write shares: programs of one device, as files that are measured on a GPU's machine.

A share is a plan of the corpus (with stand-ins for its collectives) or a single op (``ops``). Its
text carries the numbers of our ops, so that the time of a kernel can be traced back to them.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path

from evaluation.corpus import compiled, plans, programs
from evaluation.corpus.targets import target
from evaluation.measured import fresh_ops, ops, rows
from evaluation.row_files import Row, append_rows, read_rows
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

ONE = {"one": 1}  # the mesh of a single op
TIME_LIMIT_S = 300.0
#: Makers of single ops: those that rules were read off, and those that test the rules.
SINGLE = dict(zip(rows.PLAN_NAMES, (ops.every, fresh_ops.every), strict=True))


def each_single(names: Collection[str]) -> Iterator[tuple[Row, Model, Problem]]:
    """(head, model, problem) of every single op of the groups ``names`` of ``SINGLE``."""
    for plan_name, make in SINGLE.items():
        for single in make() if plan_name in names else ():
            model, problem = single_problem(single)
            yield head_of(single, plan_name), model, problem


def head_of(single: ops.Single, plan_name: str) -> Row:
    """The fields that identify a single op among the shares."""
    return {"program": single.name, "digest": single.family, "plan": plan_name}


def single_problem(single: ops.Single) -> tuple[Model, Problem]:
    """The model and one-device problem of a single op."""
    model = from_jax(single.function, *single.arguments, name=single.name)
    return model, Problem(analyse(model), ONE, "h100")


def generate(folder: Path, names: Collection[str]) -> None:
    """Write the shares that do not exist yet.

    ``names`` are programs of the corpus, or names in ``SINGLE``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listed = folder / "shares.jsonl"
    for head, model, plan in _wanted(names):
        if rows.key(head) in map(rows.key, read_rows(listed)):
            continue
        try:
            row = write_share(folder, head, model, plan)
        except ToastError as error:
            print(f"{head['program']}, {head['plan']}: {error}", flush=True)
            continue
        append_rows(listed, [row])


def _wanted(names: Collection[str]) -> Iterator[tuple[Row, Model, ShardingPlan]]:
    for head, model, problem in each_single(names):
        yield head, model, Plan.from_actions(problem, [])
    judged = [
        row for row in compiled.rows() if row["topology"] == rows.TOPOLOGY and row.get("peak_bytes")
    ]
    corpus = (name for name in names if name not in SINGLE)
    for name, _, problem, digest in programs.each_problem(corpus, [target(rows.TOPOLOGY)]):
        for row in judged:
            if (row["program"], row["digest"]) == (name, digest):
                head = {
                    "program": name,
                    "digest": digest,
                    "plan": row["plan"],
                    "sharding_id": plans.sharding_id(row["sharding"]),
                }
                yield head, problem.analysis.model, plans.decoded(problem, row["sharding"])


def write_share(folder: Path, head: Row, model: Model, plan: ShardingPlan) -> Row:
    """Divide a plan, write its program into the folder, and give its line of ``shares.jsonl``."""
    n_devices = plan.mesh.n_devices
    text = annotate(model, plan, located=True)
    local = divided(model, n_devices, text, "gpu", {"time_limit_s": TIME_LIMIT_S})
    name = hashlib.sha256(repr(rows.key(head)).encode()).hexdigest()[:12] + ".mlir.gz"
    (folder / name).write_bytes(gzip.compress(local.text.encode(), 9))
    return {
        **head,
        "file": name,
        "arguments": _arguments(model.program, local),
        "rounds": {str(op): times for op, times in rounds_of(model.program).items()},
    }


def _arguments(program: Program, local: LocalProgram) -> list[Row]:
    """The data for drawing each argument as ``runtime.inputs.draw`` would."""
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
