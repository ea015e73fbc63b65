"""``toast-lab bench paper``: the paper's evaluation, rerun."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toast_lab.commands import common, output
from toast_lab.commands.sweep import keep_rows, sweeping
from toast_lab.errors import InvalidProblem

if TYPE_CHECKING:
    from toast_lab.bench.paper import Paper


def run(args: argparse.Namespace) -> int:
    """Search what has no row yet, then write everything.

    Ctrl-C keeps what is done and writes that.
    """
    import importlib.util

    from toast_lab.bench.cases import COMPILED, Choice
    from toast_lab.bench.paper import run_paper
    from toast_lab.sweep.run import Workers

    choice = Choice.make(
        args.parts,
        args.models,
        args.machines,
        args.methods,
        args.seconds,
        args.quick,
        args.compile_seconds,
    )
    if args.compile:
        choice = choice._replace(parts=(*choice.parts, COMPILED))
    if COMPILED in choice.parts and importlib.util.find_spec("libtpu") is None:
        raise InvalidProblem(
            'bench paper: --compile needs libtpu, though no TPU: pip install "toast-lab[tpu]". '
            "Without --compile the "
            "searches run, and the same command with it adds the compiled table later."
        )
    page_file = Path(args.page) if args.page else None
    common.check_early(args)
    with (
        sweeping(len(choice.cells())) as (on_progress, stopped),
        output.progress("compiling") as update,
    ):

        def on_compile(i: int, total: int, what: str) -> None:
            update(i / total, what)

        done = run_paper(
            choice,
            Path(args.out),
            command=command(args),
            page_file=page_file,
            workers=Workers(args.scheduler, args.workers, retry_crashed=args.retry_crashed),
            on_progress=on_progress,
            on_compile=on_compile,
            cancel=stopped,
        )
    for note in done.notes:
        print(f"note: {note}", file=sys.stderr)
    data = {
        "searches": len(done.sweep.rows),
        "made": done.sweep.n_new,
        "missing": len(done.sweep.missing) + done.compiled_missing,
        "targets": [{**t._asdict(), "verdict": t.verdict} for t in done.targets],
        "files": [str(path) for path in done.files],
    }
    output.emit(args, data, lambda out: _show(out, done, data))
    for lost in done.not_kept:
        keep_rows(args, lost.path, lost.rows, lost.why)
    if done.failures:
        print("toast-lab: " + "\ntoast-lab: ".join(done.failures), file=sys.stderr)
        return 1
    return 130 if data["missing"] and not done.not_kept else 0


def command(args: argparse.Namespace) -> str:
    """The command that makes the same page, without folders of this machine."""
    from toast_lab.bench.cases import COMPILED

    parts = ["toast-lab", "bench", "paper"]
    if args.parts == [COMPILED]:  # beside the rows that are there, the page is that of everything
        args = argparse.Namespace(**{**vars(args), "parts": None, "compile": True})
    for name in ("parts", "models", "machines", "methods"):
        if getattr(args, name):
            parts += [f"--{name}", *getattr(args, name)]
    if args.seconds:
        parts += ["--seconds", f"{args.seconds:g}"]
    if args.compile_seconds:
        parts += ["--compile-seconds", f"{args.compile_seconds:g}"]
    parts += [f"--{name}" for name in ("quick", "compile") if getattr(args, name)]
    return " ".join(shlex.quote(p) for p in [*parts, "--out", Path(args.out).name or "."])


def _show(out: output.Out, done: Paper, data: dict[str, Any]) -> None:
    out.table(
        f"{data['searches']} searches, {data['made']} of them made now",
        ("~target", "found", "~numbers"),
        [(t.text, t.verdict, "; ".join(t.numbers[:3])) for t in done.targets],
    )
    if data["missing"]:
        out.print(
            f"{data['missing']} searches or compiles are missing; the same command goes on "
            "with them."
        )
    if data["files"]:
        out.print(f"Page: {data['files'][-1]}")
