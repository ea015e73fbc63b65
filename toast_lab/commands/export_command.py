"""``toast-lab export``: turn a saved plan into code for the user's program."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from toast_lab.commands import command_options, common, keeping, output, stopping
from toast_lab.errors import InvalidProblem
from toast_lab.files import write_whole

if TYPE_CHECKING:
    from toast_lab.cost.problem import Problem
    from toast_lab.export.minimal import MinimalConstraints
    from toast_lab.ir.model import Model
    from toast_lab.sharding.plan import ShardingPlan

OUTPUTS = ("python", "patch", "test", "stablehlo", "rules")


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab export``."""
    add_option = parser.add_argument
    command_options.model(parser)
    add_option("plan", metavar="PLAN", help="a plan that --save wrote")
    command_options.problem(parser)
    add_option(
        "--python", metavar="FILE", help="Python code that shards the function with JAX alone"
    )
    add_option("--patch", metavar="FILE", help="a diff that adds the constraints to your source")
    add_option(
        "--test", metavar="FILE", help="a pytest file that fails when collectives or memory drift"
    )
    add_option("--rules", metavar="FILE", help="logical-axis rules for flax")
    add_option("--stablehlo", metavar="FILE", help="the program with Shardy's annotations")
    add_option(
        "--proof",
        choices=("compiled", "propagated"),
        default="compiled",
        help="what must reproduce the plan from the constraints: the compiler, or propagation "
        "alone, which is quicker (%(default)s)",
    )
    add_option(
        "--seconds",
        type=command_options.positive,
        default=300.0,
        metavar="SECONDS",
        help="time limit for finding the constraints (%(default)g)",
    )


def run(args: Namespace) -> int:
    """Find the fewest constraints, and write the files that were asked for."""
    path_of_output = {name: getattr(args, name) for name in OUTPUTS if getattr(args, name)}
    common.check_early(args)
    model, problem = common.load_problem(args)
    plan = common.load_plan(args.plan, problem.analysis, problem.mesh)
    needs_constraints = (
        not path_of_output or "python" in path_of_output or "patch" in path_of_output
    )
    constraints = _constraints(args, plan, model) if needs_constraints else None
    texts = {
        name: _text(name, args, plan, model=model, constraints=constraints)
        for name in path_of_output
    }
    written = {
        name: path for name, path in path_of_output.items() if _write(args, name, path, texts[name])
    }
    report = {
        **output.problem_data(model, problem),
        "written": written,
        "constraints": None
        if constraints is None
        else [str(constraint) for constraint in constraints],
        "proof": None if constraints is None else constraints.proof,
        "remaining": None if constraints is None else constraints.remaining,
        "remaining_bytes": None if constraints is None else constraints.remaining_bytes,
        "remaining_time_s": None if constraints is None else constraints.remaining_time_s(problem),
    }
    return output.emit(args, report, lambda console: _show(constraints, problem))


def _write(args: Namespace, name: str, path: str, text: str) -> bool:
    written = keeping.keep(
        args,
        f"--{name} file",
        path,
        lambda target: write_whole(target, text, f"the --{name} file"),
        last_resort=lambda: f"It is:\n{text}",
    )
    # On a terminal, ``keep`` has already printed this.
    if written and not sys.stderr.isatty():
        print(f"wrote {path}", file=sys.stderr)
    return written


def _show(constraints: MinimalConstraints | None, problem: Problem) -> None:
    if constraints is None:
        return
    print(constraints)
    if constraints.remaining:
        seconds = constraints.remaining_time_s(problem)
        print(
            f"predicted for {problem.machine.name}: {seconds * 1e3:+.3f} ms of collectives "
            "compared with the plan"
        )


def _constraints(args: Namespace, plan: ShardingPlan, model: Model) -> MinimalConstraints:
    from toast_lab.export.minimal import minimal_constraints
    from toast_lab.export.trial import TrialProgress

    with output.progress("looking for constraints") as update, stopping.stop_gently() as stopped:

        def on_event(event: TrialProgress) -> None:
            update(None, f"{event.stage}: {event.units} left, {event.tried} sets tried")

        return minimal_constraints(
            plan, model, proof=args.proof, seconds=args.seconds, on_event=on_event, cancel=stopped
        )


def _text(
    name: str,
    args: Namespace,
    plan: ShardingPlan,
    *,
    model: Model,
    constraints: MinimalConstraints | None,
) -> str:
    if name == "stablehlo":
        from toast_lab.lowering.annotate import annotate
        from toast_lab.lowering.needed_constraints import needed_constraints

        return annotate(model, plan, constrained=needed_constraints(model, plan))
    if name == "rules":
        from toast_lab.export.axis_rules import axis_rules

        return f"{axis_rules(plan, model=model)}\n"
    if name == "test":
        from toast_lab.export.drift import to_test
        from toast_lab.models import registry

        model_name = str(args.model)
        if ":" not in model_name and model_name not in registry.MODELS:
            raise InvalidProblem(
                "--test: a test loads its model by name or as "
                f"package.module:make; {model_name} is a file"
            )
        sizes = common.read_sizes(args.set, {} if ":" in model_name else registry.sizes(model_name))
        plan_file = Path(args.plan).resolve()
        folder = Path(args.test).resolve().parent
        plan_path = plan_file.relative_to(folder) if plan_file.is_relative_to(folder) else plan_file
        return to_test(plan, model_name, str(plan_path), sizes=sizes, model=model)
    assert constraints is not None
    if name == "python":
        from toast_lab.export.python import to_python

        return to_python(plan, constraints)
    from toast_lab.export.patch import to_patch

    patch = to_patch(plan, constraints)
    for omission in patch.left_out:
        print(f"not in the patch: {omission}", file=sys.stderr)
    return str(patch.text)
