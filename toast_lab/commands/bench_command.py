"""``toast-lab bench``: rerun the paper's evaluation, or prove bounds for its problems."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toast_lab.commands import command_options, common, output
from toast_lab.commands.sweep_command import keep_rows, sweeping
from toast_lab.errors import InvalidProblem

if TYPE_CHECKING:
    from toast_lab.bench.paper import Paper


def add_options(parser: ArgumentParser) -> None:
    """The evaluations of ``toast-lab bench``."""
    evaluations = parser.add_subparsers(metavar="EVALUATION", required=True)
    summary = (
        "rerun section 5: step times, search times and scaling; resumable, Ctrl-C keeps the rows "
        "so far"
    )
    _add_paper_options(command_options.command_parser(evaluations, "paper", summary, "bench"))
    summary = "prove how far each plan of section 5 can be from the best; resumable"
    gaps = command_options.command_parser(evaluations, "gaps", summary, "bench")
    _add_gaps_options(gaps)
    gaps.set_defaults(evaluation=run_gaps)


def _add_cases(parser: ArgumentParser, seconds: float | None) -> None:
    """The options of both evaluations that choose their problems."""
    add_option = parser.add_argument
    add_option("--models", nargs="+", metavar="MODEL", help="any of gns, unet, itx, t2b, t7b (all)")
    add_option(
        "--machines", nargs="+", metavar="MACHINE", help="machines to price on (a100 p100 tpu-v3)"
    )
    add_option(
        "--seconds",
        type=command_options.positive,
        default=seconds,
        metavar="SECONDS",
        help="time limit of each search (20)",
    )


def _add_gaps_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab bench gaps``."""
    add_option = parser.add_argument
    _add_cases(parser, seconds=20.0)
    add_option(
        "--bound",
        type=command_options.positive,
        default=60.0,
        metavar="SECONDS",
        help="time limit of each proof (60)",
    )
    add_option("--quick", action="store_true", help="small sizes, to try the command out")
    add_option("--out", required=True, metavar="FOLDER", help="folder for rows and tables")


def _add_paper_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab bench paper``."""
    add_option = parser.add_argument
    add_option(
        "--parts",
        nargs="+",
        metavar="PART",
        help="any of models, scaling, goals, depth, devices and compiled (all but compiled)",
    )
    _add_cases(parser, seconds=None)
    add_option(
        "--methods", nargs="+", metavar="METHOD", help="search methods (the paper's and one more)"
    )
    add_option(
        "--compile-seconds",
        type=command_options.positive,
        metavar="SECONDS",
        help="time limit of each search whose plan is compiled (--seconds)",
    )
    add_option(
        "--quick",
        action="store_true",
        help="small sizes and 2 s per search, to try the command out; its numbers mean little",
    )
    add_option(
        "--compile",
        action="store_true",
        help="also compile reduced models for TPU v3 and v5e (needs libtpu)",
    )
    add_option("--page", metavar="FILE", help="path of the page (evaluation.md in --out)")
    add_option(
        "--remark",
        default="",
        metavar="TEXT",
        help="remark on the page about how its rows were made, such as other load on the machine",
    )
    command_options.rows(parser, "rows, tables, charts and the page")


def run(args: Namespace) -> int:
    """Run the evaluation that the arguments name."""
    return int(getattr(args, "evaluation", run_paper_evaluation)(args))


def run_paper_evaluation(args: Namespace) -> int:
    """Run the searches that have no row yet, then write tables, charts and the page.

    Ctrl-C keeps the rows so far and writes the files from them.
    """
    import importlib.util

    from toast_lab.bench.cases import COMPILED, Choice
    from toast_lab.bench.paper import run_paper
    from toast_lab.sweep.run_sweep import Workers

    choice = Choice.make(
        parts=args.parts,
        models=args.models,
        machines=args.machines,
        methods=args.methods,
        seconds=args.seconds,
        quick=args.quick,
        compile_seconds=args.compile_seconds,
    )
    choice = choice._replace(remark=args.remark)
    if args.compile:
        choice = choice._replace(parts=(*choice.parts, COMPILED))
    if COMPILED in choice.parts and importlib.util.find_spec("libtpu") is None:
        raise InvalidProblem(
            'bench paper: --compile needs libtpu, but no TPU: pip install "toast-lab[tpu]". '
            "Without --compile only the searches run; the same command with it adds the table of "
            "compiled plans later."
        )
    page_file = Path(args.page) if args.page else None
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
            command=command(args),
            page_file=page_file,
            workers=Workers(args.scheduler, args.workers, retry_crashed=args.retry_crashed),
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
    from toast_lab.bench.cases import COMPILED

    arguments = ["toast-lab", "bench", "paper"]
    # With ``compiled`` alone, the page still shows all rows in the folder.
    if args.parts == [COMPILED]:
        args = Namespace(**{**vars(args), "parts": None, "compile": True})
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


def run_gaps(args: Namespace) -> int:
    """Run the searches and proofs without a row, then write the tables; Ctrl-C keeps the rows."""
    from toast_lab.bench import gaps
    from toast_lab.bench.cases import Choice

    choice = Choice.make(models=args.models, machines=args.machines)
    folder = Path(args.out)
    with output.stoppable("proving") as (update, stopped):
        rows = gaps.run_gaps(
            choice.cases,
            choice.machines,
            folder,
            search_seconds=args.seconds,
            bound_seconds=args.bound,
            quick=args.quick,
            on_progress=update,
            cancel=stopped,
        )
    files = gaps.write_tables(rows, folder)
    missing = len(choice.cases) * len(choice.machines) - len(rows)
    report = {
        "rows": [row._asdict() for row in rows],
        "missing": missing,
        "files": [str(path) for path in files],
    }

    def show(console: output.Out) -> None:
        console.print(gaps.gap_table(rows), soft_wrap=True)
        if missing:
            console.print(f"{missing} problems are missing; repeat the same command to run them.")

    output.emit(args, report, show)
    return 130 if missing else 0
