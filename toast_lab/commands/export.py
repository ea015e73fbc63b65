"""``toast-lab export``: a saved plan as the user's own code."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from toast_lab.commands import common, keeping, output, stopping
from toast_lab.errors import InvalidProblem
from toast_lab.files import write_whole

if TYPE_CHECKING:
    from toast_lab.cost.problem import Problem
    from toast_lab.export.minimal import MinimalConstraints
    from toast_lab.ir.model import Model
    from toast_lab.sharding.plan import ShardingPlan

OUTPUTS = ("python", "patch", "test", "stablehlo", "rules")


def run(args: argparse.Namespace) -> int:
    """Find the fewest constraints, and write what was asked for."""
    wanted = {name: getattr(args, name) for name in OUTPUTS if getattr(args, name)}
    common.check_early(args)
    model = common.load_model(args)
    problem, plan = common.required_plan(args, model)
    needs_constraints = not wanted or "python" in wanted or "patch" in wanted
    found = _constraints(args, plan, model) if needs_constraints else None
    texts = {name: _text(name, args, plan, model, found) for name in wanted}
    written = {name: path for name, path in wanted.items() if _write(args, name, path, texts[name])}
    data = {
        "model": output.model_data(model),
        "problem": output.problem_data(problem),
        "written": written,
        "constraints": None if found is None else [str(row) for row in found],
        "proof": None if found is None else found.proof,
        "remaining": None if found is None else found.remaining,
        "remaining_bytes": None if found is None else found.remaining_bytes,
        "remaining_time_s": None if found is None else found.remaining_time_s(problem),
    }
    return output.emit(args, data, lambda out: _show(found, problem))


def _write(args: argparse.Namespace, name: str, path: str, text: str) -> bool:
    written = keeping.keep(
        args,
        f"--{name} file",
        path,
        lambda to: write_whole(to, text, f"the --{name} file"),
        lambda: f"It is:\n{text}",
    )
    if written and not sys.stderr.isatty():  # on a terminal it was said
        print(f"wrote {path}", file=sys.stderr)
    return written


def _show(found: MinimalConstraints | None, problem: Problem) -> None:
    if found is None:
        return
    print(found)
    if found.remaining:
        seconds = found.remaining_time_s(problem)
        print(
            f"predicted for {problem.machine.name}: {seconds * 1e3:+.3f} ms of collectives "
            "against the plan"
        )


def _constraints(args: argparse.Namespace, plan: ShardingPlan, model: Model) -> MinimalConstraints:
    from toast_lab.export.minimal import minimal_constraints
    from toast_lab.export.trial import Progress

    with output.progress("looking for constraints") as update, stopping.stop_gently() as stopped:

        def on_event(event: Progress) -> None:
            update(None, f"{event.stage}: {event.units} left, {event.tried} sets tried")

        return minimal_constraints(
            plan, model, proof=args.proof, seconds=args.seconds, on_event=on_event, cancel=stopped
        )


def _text(
    name: str,
    args: argparse.Namespace,
    plan: ShardingPlan,
    model: Model,
    found: MinimalConstraints | None,
) -> str:
    if name == "stablehlo":
        from toast_lab.lowering.annotate import annotate

        return annotate(model, plan)
    if name == "rules":
        from toast_lab.export.axis_rules import axis_rules

        return f"{axis_rules(plan, model=model)}\n"
    if name == "test":
        from toast_lab.export.drift import to_test
        from toast_lab.models import registry

        which = str(args.model)
        if ":" not in which and which not in registry.MODELS:
            raise InvalidProblem(
                "--test: a test loads its model by name or as "
                f"package.module:make, {which} is a file"
            )
        sizes = common.read_sizes(args.set, {} if ":" in which else registry.sizes(which))
        plan_file = Path(args.plan).resolve()
        folder = Path(args.test).resolve().parent
        inside = plan_file.relative_to(folder) if plan_file.is_relative_to(folder) else plan_file
        return to_test(plan, which, str(inside), sizes=sizes, model=model)
    assert found is not None
    if name == "python":
        from toast_lab.export.python import to_python

        return to_python(plan, found)
    from toast_lab.export.patch import to_patch

    patch = to_patch(plan, found)
    for text in patch.left_out:
        print(f"not in the patch: {text}", file=sys.stderr)
    return str(patch.text)
