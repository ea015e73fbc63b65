"""``python -m evaluation paper``: rerun the paper's section 5 and make its page.

Step times, search times and scaling of every method, what compilers make of the plans, and the
targets that were set before.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.paper.paper_cases import Choice
from evaluation.paper.run import Heading, Paper, run_paper
from toast_lab.commands import command_options, common, keeping, output, stopping
from toast_lab.commands.sweep_command import keep_rows, sweeping
from toast_lab.errors import InvalidProblem
from toast_lab.sweep.run_sweep import Workers


def main(arguments: Sequence[str]) -> int:
    """Run the searches that have no row yet, then write tables, charts and the page."""
    parser = ArgumentParser(prog="python -m evaluation paper", description=__doc__)
    add_option = parser.add_argument
    _choices(parser)
    add_option(
        "--compile",
        action="store_true",
        help="also compile reduced models for TPU v3 and v5e (needs libtpu)",
    )
    add_option(
        "--compile-seconds",
        type=command_options.positive,
        metavar="SECONDS",
        help="time limit of each search whose plan is compiled (--seconds)",
    )
    add_option("--page", metavar="FILE", help="path of the page (evaluation.md in --out)")
    add_option(
        "--remark",
        default="",
        metavar="TEXT",
        help="remark on the page about how its rows were made, such as other load on the machine",
    )
    add_option("--json", action="store_true", help="print one JSON object and nothing else")
    command_options.rows(parser, "rows, tables, charts and the page")
    args = parser.parse_args(arguments)
    args.words = ["python -m evaluation paper", *arguments]
    with stopping.listening():
        status = _run(args)
        return int(keeping.say_failures(args)) or status


def _choices(parser: ArgumentParser) -> None:
    """Options that choose searches of the paper's evaluation."""
    add_option = parser.add_argument
    add_option(
        "--parts",
        nargs="+",
        metavar="PART",
        help="any of models, scaling, goals, depth and devices (all)",
    )
    add_option("--models", nargs="+", metavar="MODEL", help="any of gns, unet, itx, t2b, t7b (all)")
    add_option(
        "--machines", nargs="+", metavar="MACHINE", help="machines to price on (a100 p100 tpu-v3)"
    )
    add_option(
        "--methods", nargs="+", metavar="METHOD", help="search methods (the paper's and one more)"
    )
    add_option(
        "--seconds",
        type=command_options.positive,
        metavar="SECONDS",
        help="time limit of each search (20)",
    )
    add_option(
        "--quick",
        action="store_true",
        help="small sizes and 2 s per search, to try the command out; its numbers mean little",
    )


def _run(args: Namespace) -> int:
    """Ctrl-C keeps the rows so far and writes the files from them."""
    choice = Choice.make(
        parts=args.parts,
        models=args.models,
        machines=args.machines,
        methods=args.methods,
        seconds=args.seconds,
        quick=args.quick,
    )
    if args.compile and importlib.util.find_spec("libtpu") is None:
        raise InvalidProblem(
            'paper: --compile needs libtpu, but no TPU: pip install "toast-lab[tpu]". Without '
            "--compile only the searches run; the same command with it adds the table of compiled "
            "plans later."
        )
    common.check_early(args)
    with (
        sweeping(len(choice.cells())) as (on_progress, stopped),
        output.progress("compiling") as update,
    ):

        def on_compile(index: int, total: int, stage: str) -> None:
            update(index / total, stage)

        evaluation = run_paper(
            choice,
            Path(args.out),
            heading=Heading(command(args), args.remark, Path(args.page) if args.page else None),
            compile_seconds=(args.compile_seconds or choice.seconds) if args.compile else None,
            workers=Workers(args.scheduler, args.workers, args.retries, args.retry_crashed),
            on_progress=on_progress,
            on_compile=on_compile,
            cancel=stopped,
        )
    common.print_notes(evaluation.notes)
    report = {
        "searches": len(evaluation.sweep.rows),
        "made": evaluation.sweep.n_new,
        "missing": len(evaluation.sweep.missing) + evaluation.compiled_missing,
        "targets": [
            {**target._asdict(), "verdict": target.verdict} for target in evaluation.targets
        ],
        "files": [str(path) for path in evaluation.files],
    }
    output.emit(args, report, lambda console: _show(console, evaluation, report))
    for unsaved_rows in evaluation.not_kept:
        keep_rows(args, unsaved_rows.path, unsaved_rows.rows, unsaved_rows.why)
    if evaluation.failures:
        print("toast-lab: " + "\ntoast-lab: ".join(evaluation.failures), file=sys.stderr)
        return 1
    return 130 if report["missing"] and not evaluation.not_kept else 0


def command(args: Namespace) -> str:
    """The command that makes the same page, without the paths of this machine."""
    arguments = ["python", "-m", "evaluation", "paper"]
    for name in ("parts", "models", "machines", "methods"):
        if getattr(args, name):
            arguments += [f"--{name}", *getattr(args, name)]
    if args.seconds:
        arguments += ["--seconds", f"{args.seconds:g}"]
    if args.compile_seconds:
        arguments += ["--compile-seconds", f"{args.compile_seconds:g}"]
    arguments += [f"--{name}" for name in ("quick", "compile") if getattr(args, name)]
    return " ".join(
        shlex.quote(argument) for argument in [*arguments, "--out", Path(args.out).name or "."]
    )


def _show(console: output.Out, evaluation: Paper, data: dict[str, Any]) -> None:
    console.table(
        f"{data['searches']} searches, {data['made']} of them new",
        ("~target", "found", "~numbers"),
        [
            (target.text, target.verdict, "; ".join(target.numbers[:3]))
            for target in evaluation.targets
        ],
    )
    if data["missing"]:
        console.print(
            f"{data['missing']} searches or compiles are missing; repeat the same command to "
            "run them."
        )
    if data["files"]:
        console.print(f"Page: {data['files'][-1]}")
