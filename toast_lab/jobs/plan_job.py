"""Compiles, executes and exports plans in a job's thread.

Each function starts its own child processes and watches them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidProblem
from toast_lab.files import file_name
from toast_lab.ir.model import Model, Recipe
from toast_lab.jobs.job import Watch
from toast_lab.lowering.specs import partition_text
from toast_lab.plan_verbs import Plan, Written
from toast_lab.sharding import plan_file, portable
from toast_lab.sharding.plan import ShardingPlan

if TYPE_CHECKING:
    from toast_lab.compare.result import Comparison
    from toast_lab.runtime.compiled import Compiled

#: (title, kind, how the names of its files end)
_FORMATS = (
    ("PartitionSpecs", "specs", "_specs.py"),
    ("Plan (JSON)", "json", ".json"),
    ("Python with JAX alone", "python", "_sharding.py"),
    ("Patch of the source", "patch", ".patch"),
    ("Python, explicit axes", "python explicit", "_sharding.py"),
    ("Patch, explicit axes", "patch explicit", ".patch"),
    ("Axis rules for flax", "rules", "_rules.py"),
    ("Test that notices drift", "test", "_test.py"),
    ("StableHLO with shardings", "stablehlo", ".mlir"),
)
EXPORTS = {title: kind for title, kind, _ in _FORMATS}
_FILE_ENDINGS = {kind: ending for _, kind, ending in _FORMATS}


class Exported(NamedTuple):
    """A file exported from a plan."""

    file: str
    text: str
    remarks: tuple[str, ...]  #: remarks for the user: what was left out, what still differs


class PlanExecution(NamedTuple):
    """Settings for executing plans."""

    devices: str = "cpu"  #: virtual devices, or attached ones, as ``compare`` takes them
    repeats: int = 10
    warmup: int = 2
    time_limit_s: float = 1800.0  #: for all plans together


def execute(
    model: Model,
    plans: Mapping[str, ShardingPlan],
    problem: Problem,
    how: PlanExecution,
    *,
    watch: Watch,
) -> Comparison:
    """Execute plans in turns, each in a process of its own; the store keeps the rows."""
    from toast_lab.compare.compare import compare

    one_mesh = all(plan.mesh == problem.mesh for plan in plans.values())
    return compare(
        model,
        dict(plans),
        how.devices,
        repeats=how.repeats,
        warmup=how.warmup,
        problem=problem,
        machine=None if one_mesh else problem.machine,
        store=True,
        time_limit_s=how.time_limit_s,
        on_event=watch.on_event,
        cancel=watch.cancel,
    )


def compile_one(model: Model, plan: ShardingPlan, topology: str, *, watch: Watch) -> Compiled:
    """Compile a plan ahead of time."""
    from toast_lab.runtime.compile import compile_plan

    return compile_plan(model, plan, topology, on_progress=watch.on_event, cancel=watch.cancel)


def write(plan: Plan, problem: Problem, *, watch: Watch) -> Written:
    """The plan as people write it, with the fewest rules and constraints; kept by the plan."""
    watch.on_event("finding rules and constraints")
    return plan.written(problem=problem, cancel=watch.cancel)


def export(plan: Plan, problem: Problem, name: str, kind: str, *, watch: Watch) -> Exported:
    """Write a plan in the format ``kind``, one of the values of ``EXPORTS``.

    Raises:
        InvalidProblem: a test is asked for, but the model cannot be loaded by name.
    """
    remarks: tuple[str, ...] = ()
    model = problem.analysis.model
    if kind == "json":
        content = portable.file_text(plan_file.to_json(plan))
    elif kind == "specs":
        content = specs_text(plan)
    elif kind == "stablehlo":
        content = stablehlo_text(model, plan, cancel=watch.cancel)
    elif kind == "test":
        content = _test_text(model, plan, name, watch)
        remarks = (f"It reads {file_name(name)}.json beside it: export the plan as JSON, too.",)
    else:
        written = write(plan, problem, watch=watch)
        what, _, mode = kind.partition(" ")
        content, omissions = written_text(written, what, mode or "auto")
        loss = f"{written.size}, {written.loss:+.1%} C(s) compared with the whole plan."
        remarks = (loss, *omissions)
        if not content.strip():
            remarks += ("The patch is empty: the shardings of arguments and results are enough.",)
    return Exported(f"{file_name(name)}{_FILE_ENDINGS[kind]}", content, remarks)


def stablehlo_text(model: Model, plan: ShardingPlan, **options: Any) -> str:
    """The whole plan as Shardy's annotations; ``options`` are for ``needed_constraints``."""
    from toast_lab.lowering.annotate import annotate
    from toast_lab.lowering.needed_constraints import needed_constraints

    return annotate(model, plan, constrained=needed_constraints(model, plan, **options))


def written_text(written: Written, what: str, mode: str) -> tuple[str, tuple[str, ...]]:
    """The content of a file with a written plan, and what was left out of it.

    Args:
        written: the plan.
        what: "rules", "python", "padding" or "patch".
        mode: "auto" or "explicit", that of the mesh's axes.
    """
    if what == "rules":
        return f"{written.to_axis_rules()}\n", ()
    if what == "python":
        return written.to_python(mode), ()
    if what == "padding":
        return written.to_padding(), ()
    patch = written.to_patch(mode=mode)
    return str(patch.text), tuple(f"not in the patch: {skipped}" for skipped in patch.left_out)


def specs_text(plan: ShardingPlan) -> str:
    """Python source with the PartitionSpecs of arguments and results by path."""

    def rows(specs: Mapping[str, Any]) -> list[str]:
        return [f"    {path!r}: {partition_text(spec)}," for path, spec in specs.items()]

    renames = {} if plan.analysis is None else dict(plan.analysis.renames)
    colours = [
        "# Names that were given to colours: problem.renamed(COLOURS)",
        f"COLOURS = {renames!r}",
    ]
    return "\n".join(
        [
            f'"""Shardings of the arguments and results of {plan.program.name}, by path."""',
            "",
            "from jax.sharding import PartitionSpec as P",
            "",
            f"MESH = {dict(zip(plan.mesh.axes, plan.mesh.sizes, strict=True))!r}",
            *(colours if renames else ()),
            f"ACTIONS = {list(plan.actions)!r}",
            "ARGUMENTS = {",
            *rows(plan.argument_specs()),
            "}",
            "RESULTS = {",
            *rows(plan.result_specs()),
            "}",
            "",
        ]
    )


def _test_text(model: Model, plan: ShardingPlan, name: str, watch: Watch) -> str:
    if not isinstance(model.function, Recipe):
        raise InvalidProblem(
            f"a test loads its model by name or as package.module:make, and {model.name} came from "
            f"{model.source}"
        )
    which, sizes, *_ = model.function
    return Plan.of(plan).to_test(
        which,
        f"{file_name(name)}.json",
        sizes=sizes,
        model=model,
        on_progress=watch.on_event,
        cancel=watch.cancel,
    )
