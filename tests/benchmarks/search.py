"""How long a search takes: against layers, devices, seeds and threads.

Each row is one search of the Adam training step of the built-in ``t2b`` at paper size (or of a small model whose
optimum is proven), with its whole anytime curve, so that every table and target is made from the rows alone
(``search_report.py``).  The clock starts at the analysed program: building the problem counts, tracing does not.  Wall
seconds on a machine that should do nothing else.

    python -m tests.benchmarks search                          all of it: tables, targets, docs/benchmarks.md
    python -m tests.benchmarks.search --small --out FOLDER     a minute of it, to try it out; the page stays as it is
    python -m tests.benchmarks.search --report                 the page again from the rows there are

Rows are written as they come.  Started again, a run goes on where it was stopped; a complete one is measured anew.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import datetime
import importlib.metadata
import os
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks import search_report
from toast_lab.conflicts.analysis import Analysis, analyse_program
from toast_lab.cost.problem import Problem
from toast_lab.frontends import load
from toast_lab.search.contract import Budget, method_of, search
from toast_lab.search.methods import METHODS

ROWS = Path(__file__).with_name("search.csv")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
PROVEN = {"mlp": "", "attention": "", "transformer": "layers=1"}  #: models whose optimum is to be proven
MACHINE = "tpu-v5e"
LARGE_MACHINE = "a100"  #: its network joins any number of devices, a slice of TPU v5e at most 256


class Task(NamedTuple):
    """One search to be measured."""

    table: str
    model: str
    sizes: str  #: as ``--set`` takes them
    mesh: str
    machine: str
    method: str
    seed: int
    seconds: float
    threads: str = ""  #: empty: what the method does by default

    @property
    def key(self) -> tuple[str, ...]:
        """What tells its row from others."""
        return tuple(str(getattr(self, name)) for name in self._fields)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run measures."""

    layers: Sequence[int] = (18, 36, 72, 144, 288)
    layer_seeds: int = 3
    meshes: Sequence[str] = (
        "4", "2x2", "16", "4x4", "4x2x2", "2x2x2x2", "64", "8x8", "4x4x4", "4x4x2x2", "16x16", "8x8x4", "4x4x4x4",
        "32x32", "16x8x8", "8x8x4x4", "64x64", "16x16x16", "8x8x8x8",
    )  # fmt: skip
    target_seeds: int = 5
    rival_seconds: float = 20.0
    proof_seconds: float = 60.0
    proven_seeds: int = 20
    thread_counts: Sequence[int] = (1, 2)
    thread_seconds: float = 5.0
    thread_repeats: int = 2
    seconds: float = 30.0  #: no search of ours may take longer


SMALL = Settings(
    layers=(2, 4), layer_seeds=1, meshes=("4", "8x8"), target_seeds=1, rival_seconds=1.0, proof_seconds=5.0,
    proven_seeds=2, thread_seconds=1.0, thread_repeats=1, seconds=5.0,
)  # fmt: skip


def tasks(settings: Settings) -> list[Task]:
    """Every search of a run, those of one program together."""
    s = settings
    first = f"layers={s.layers[0]},mode=train"
    found = [Task("target", "t2b", first, "4x4", MACHINE, "mcts", seed, s.seconds) for seed in range(s.target_seeds)]
    rivals = [m for m in METHODS if m not in ("mcts", "exhaustive")]  # too many plans to enumerate
    found += [Task("target", "t2b", first, "4x4", MACHINE, m, 0, s.rival_seconds) for m in rivals]
    found += [Task("devices", "t2b", first, mesh, LARGE_MACHINE, "mcts", 0, s.seconds) for mesh in s.meshes]
    if "threads" in method_of("mcts").__kwdefaults__:
        found += [
            Task("threads", "t2b", first, "4x4", MACHINE, "mcts", seed, s.thread_seconds, str(n))
            for seed in range(s.thread_repeats)
            for n in s.thread_counts
        ]
    found += [
        Task("layers", "t2b", f"layers={n},mode=train", "4x4", MACHINE, "mcts", seed, s.seconds)
        for n in s.layers
        for seed in range(s.layer_seeds)
    ]
    for model, sizes in PROVEN.items():
        found.append(Task("proven", model, sizes, "4x2", MACHINE, "exhaustive", 0, s.proof_seconds))
        found += [
            Task("proven", model, sizes, "4x2", MACHINE, "mcts", seed, s.seconds) for seed in range(s.proven_seeds)
        ]
    return found


COLUMNS = (
    *Task._fields, "ops", "devices", "axes", "status", "whole_s", "elapsed_s", "simulations", "evaluations", "score",
    "fits", "bound", "curve", "on",
)  # fmt: skip


def measure(task: Task, analysis: Analysis) -> dict[str, Any]:
    """One search; ``curve`` is "seconds:score:fits" of every improvement, the seconds from the analysed program on."""
    known = method_of(task.method).__kwdefaults__ or {}
    options: dict[str, Any] = {"threads": int(task.threads)} if task.threads else {}
    if task.table == "threads" and "patience" in known:
        options["patience"] = 10**6  # not to stop early, but to count
    began = time.perf_counter()
    problem = Problem(analysis, task.mesh, task.machine)
    result = search(problem, task.method, task.seed, Budget(seconds=task.seconds), **options)
    whole_s = time.perf_counter() - began
    before_s = whole_s - result.elapsed_s  # an upper bound: what comes after the search is in it
    curve = " ".join(f"{before_s + s.elapsed_s:.4f}:{s.score!r}:{int(s.fits)}" for s in result.trace.improvements())
    return {
        **task._asdict(), "ops": analysis.program.n_ops - analysis.program.n_arguments,
        "devices": problem.mesh.n_devices, "axes": len(problem.mesh.axes), "status": result.status.name,
        "whole_s": round(whole_s, 4), "elapsed_s": round(result.elapsed_s, 4),
        "simulations": len(result.trace.simulations), "evaluations": result.evaluations, "score": result.cost.score,
        "fits": int(result.cost.fits), "bound": "" if result.bound is None else result.bound, "curve": curve,
        "on": where(),
    }  # fmt: skip


def where() -> str:
    """The machine and versions, as the page tells them."""
    jax, python = importlib.metadata.version("jax"), ".".join(platform.python_version_tuple()[:2])
    today = datetime.date.today()
    return f"{os.cpu_count()} {platform.machine()} cores, Python {python}, jax {jax}, {today:%Y-%m}"


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows measured so far; a last line that was cut off does not count."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as handle:
        return [row for row in csv.DictReader(handle) if row.get("on")]


def measured(settings: Settings, path: Path) -> list[dict[str, str]]:
    """All rows of a run, measuring those that are missing."""
    wanted = tasks(settings)
    rows = {tuple(row[name] for name in Task._fields): row for row in read_rows(path)}
    if all(task.key in rows for task in wanted):
        rows = {}
    rows = {task.key: rows[task.key] for task in wanted if task.key in rows}
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())
        handle.flush()
        for task, analysis in _analysed([task for task in wanted if task.key not in rows]):
            row = measure(task, analysis)
            writer.writerow(row)
            handle.flush()
            rows[task.key] = {name: str(row[name]) for name in COLUMNS}
            print(
                f"{task.table:>8} {task.model} {task.sizes} on {task.mesh}, {task.method} seed {task.seed} "
                f"{task.threads and f'{task.threads} threads '}{row['status']} {row['whole_s']:.2f} s, "
                f"{row['evaluations']} plans, C(s) {row['score']:.6f}",
                flush=True,
            )
    return [rows[task.key] for task in wanted]


def _analysed(wanted: list[Task]) -> Iterator[tuple[Task, Analysis]]:
    """Each task with its program; a program is made once if its tasks stand together, and everything is warm."""
    if wanted:
        from toast_lab.warm import main as compile_kernels

        compile_kernels()
    at, analysis, warm = ("", ""), None, False
    for task in wanted:
        if analysis is None or at != (task.model, task.sizes):
            analysis = None  # the old one goes before the new one comes
            sizes = dict(item.split("=") for item in task.sizes.split(",") if item)
            model = load(task.model, **{k: int(v) if v.isdigit() else v for k, v in sizes.items()})
            at, analysis = (task.model, task.sizes), analyse_program(model.program, model.dim_names, trees=model.trees)
            del model
        if not warm:  # small programs do not reach what a large one's search compiles
            warm = True
            search(Problem(analysis, task.mesh, task.machine), "mcts", 0, Budget(seconds=None, evaluations=2000))
        yield task, analysis


def run(settings: Settings | None = None, rows: Path = ROWS, page: Path | None = PAGE) -> list[str]:
    """Measure, print the tables and write them into the page; gives the missed targets."""
    print("\nSearch time against layers, devices, seeds and threads; wall seconds", flush=True)
    return report(measured(settings or Settings(), rows), page)


def report(rows: list[dict[str, str]], page: Path | None) -> list[str]:
    """Print the tables of ``rows`` and write them into the page; gives the missed targets."""
    text = search_report.section(rows)
    print(f"\n{text}")
    if page is not None:
        search_report.write(text, page)
    return [f"{t.what}: {t.found} (target {t.wanted})" for t in search_report.targets(rows) if not t.met]


def main() -> None:
    """``python -m tests.benchmarks.search``."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.search", description="Measure searches.")
    parser.add_argument("--small", action="store_true", help="few and small programs, without the page")
    parser.add_argument("--report", action="store_true", help="measure nothing, make the page from the rows")
    parser.add_argument("--out", type=Path, help="folder of the rows, and of the page")
    args = parser.parse_args()
    if args.small and args.out is None:
        parser.error("--small needs --out, so that it overwrites nothing")
    rows, page = (ROWS, PAGE) if args.out is None else (args.out / ROWS.name, args.out / PAGE.name)
    missed = report(read_rows(rows), page) if args.report else run(SMALL if args.small else Settings(), rows, page)
    for line in missed:
        print(f"MISSED  {line}")


if __name__ == "__main__":
    main()
