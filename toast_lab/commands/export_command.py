"""``toast-lab export``: turn a saved plan into code for the user's program."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from toast_lab.commands import command_options, common, keeping, output
from toast_lab.errors import InvalidProblem

if TYPE_CHECKING:
    from toast_lab.ir.model import Model
    from toast_lab.plan_verbs import Written
    from toast_lab.sharding.plan import ShardingPlan

OUTPUTS = ("python", "patch", "test", "stablehlo", "rules", "padding")
#: of them, those that hold the written plan
_WRITTEN = ("python", "patch", "rules", "padding")


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab export``."""
    add_option = parser.add_argument
    command_options.model(parser)
    add_option("plan", metavar="PLAN", help="a plan that --save wrote")
    command_options.problem(parser)
    add_option("--python", metavar="FILE", help="a file of plain JAX that jits your function")
    add_option("--patch", metavar="FILE", help="a diff that adds the constraints to your source")
    add_option("--rules", metavar="FILE", help="logical-axis rules for flax")
    add_option(
        "--padding", metavar="FILE", help="a file of plain JAX that pads your function (--pad)"
    )
    add_option(
        "--test", metavar="FILE", help="a pytest file that fails when collectives or memory drift"
    )
    add_option("--stablehlo", metavar="FILE", help="the whole plan as Shardy's annotations")
    command_options.flag(
        parser,
        "--explicit",
        "write --python and --patch for a mesh of explicit axes (AxisType.Explicit)",
    )
    command_options.written(parser)


def run(args: Namespace) -> int:
    """Write the plan as rules and constraints, and the files that were asked for."""
    path_of_output = {name: getattr(args, name) for name in OUTPUTS if getattr(args, name)}
    model, problem = common.load_problem(args)
    plan = common.load_plan(args.plan, problem.analysis, problem.mesh)
    written = None
    if not path_of_output or set(_WRITTEN) & set(path_of_output):
        written = common.write_plan(args, problem, plan, model)
    texts = {name: _text(name, args, plan, model=model, written=written) for name in path_of_output}
    files = {
        name: path for name, path in path_of_output.items() if _write(args, name, path, texts[name])
    }
    written_data = None if written is None else output.written_data(written)
    report = output.problem_data(model, problem, files=files, written=written_data)

    def show(console: output.Out) -> None:
        if written is not None:
            console.print(str(written), soft_wrap=True)

    return output.emit(args, report, show)


def _write(args: Namespace, name: str, path: str, text: str) -> bool:
    kept = keeping.keep_text(args, f"--{name} file", path, text)
    # On a terminal, ``keep`` has already printed this.
    if kept and not sys.stderr.isatty():
        print(f"wrote {path}", file=sys.stderr)
    return kept


def _text(
    name: str, args: Namespace, plan: ShardingPlan, *, model: Model, written: Written | None
) -> str:
    from toast_lab.jobs import plan_job

    if name == "stablehlo":
        return plan_job.stablehlo_text(model, plan)
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
    assert written is not None
    text, omissions = plan_job.written_text(written, name, "explicit" if args.explicit else "auto")
    for omission in omissions:
        print(omission, file=sys.stderr)
    return text
