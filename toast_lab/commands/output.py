"""Shows progress on a terminal, and prints results as tables or as one JSON object.

Results go to stdout only; progress goes to stderr, and only if that is a terminal. Keys of JSON
objects name the unit of their numbers (``time_s``, ``peak_bytes``).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from toast_lab.commands import keeping, stopping
from toast_lab.files import not_saved, write_whole
from toast_lab.isolate import Cancel
from toast_lab.text import JsonObject, bytes_text, line_text, plain_data

if TYPE_CHECKING:
    from toast_lab.cost.problem import Cost, Problem
    from toast_lab.ir.model import Model
    from toast_lab.plan_verbs import Written
    from toast_lab.sharding.plan import ShardingPlan


@contextlib.contextmanager
def progress(activity: str) -> Iterator[Callable[[float | None, str], None]]:
    """Shows a progress bar on stderr, if that is a terminal.

    Gives the function ``update(share or None, remark)``, which moves the bar.
    """
    if not sys.stderr.isatty():
        yield lambda share, remark: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[remark]}", markup=False),
    )
    with Progress(
        *columns, console=Console(stderr=True, markup=False, emoji=False), transient=True
    ) as bar:
        task = bar.add_task(activity, total=None, remark="")

        def update(share: float | None, remark: str) -> None:
            if share is None:
                bar.update(task, remark=remark)
            else:
                bar.update(task, total=1.0, completed=share, remark=remark)

        yield update


def or_dash(render: Callable[[float], str], value: float | None) -> str:
    """A number as written by ``render``, or "-" for None."""
    return "-" if value is None else render(value)


def stages_to(update: Callable[[float | None, str], None]) -> Callable[[Any], None]:
    """A listener for events of a child process that shows its progress and stage."""
    return lambda event: update(event.fraction, event.stage)


@contextlib.contextmanager
def stoppable(activity: str) -> Iterator[tuple[Callable[[float | None, str], None], Cancel]]:
    """Show a progress bar for work that Ctrl-C or SIGTERM ends gently.

    Gives ``update`` as ``progress`` does, and a function that tells whether to stop.
    """
    with progress(activity) as update, stopping.stop_gently() as stopped:
        yield update, stopped


# -- to text ---------------------------------------------------------------------------------------


class Out(Console):
    """stdout for readers: names are not markup, and tables have room if it is not a terminal."""

    def __init__(self) -> None:
        # Columns of numbers are never cut: a terminal of fewer than 100 columns breaks the lines
        # itself.
        width = max(100, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 120
        super().__init__(markup=False, highlight=False, emoji=False, soft_wrap=False, width=width)

    def on_broken_pipe(self) -> None:
        """Leave the error to ``cli.main``, which handles all broken pipes."""
        raise BrokenPipeError

    def table(
        self,
        title: str,
        columns: Iterable[str],
        rows: Iterable[Iterable[object]],
        limit: int | None = None,
    ) -> None:
        """Print a table; rows beyond ``limit`` are only counted.

        Columns whose titles start with ">" hold numbers. Those that start with "~" may be folded if
        space is short.
        """
        # As a part of the table, the title would be wrapped at the table's width.
        self.print(title, style="bold")
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in columns:
            justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
            table.add_column(
                column.lstrip(">~"), justify=justify, overflow="fold", no_wrap=column[:1] != "~"
            )
        all_rows = [[str(cell) for cell in row] for row in rows]
        shown = all_rows if limit is None else all_rows[:limit]
        for row in shown:
            table.add_row(*row)
        self.print(table)
        if len(shown) < len(all_rows):
            self.print(f"... and {len(all_rows) - len(shown)} more (--json has all)", style="dim")
        self.print()


def emit(args: Namespace, data: JsonObject, show: Callable[[Out], None]) -> int:
    """Print ``data`` as one JSON object with ``--json``, else let ``show`` print tables."""
    try:
        if args.json:
            print(json.dumps(plain_data(data), indent=1))
        else:
            show(Out())
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:  # for instance, stdout is a file on a full disk
        keeping.silence()
        json_text = json.dumps(plain_data(data), indent=1) + "\n"
        keeping.keep_elsewhere(
            args,
            "result",
            not_saved("standard output", "the result", error),
            lambda path: write_whole(path, json_text, "the result"),
            last_resort=lambda: f"It is:\n{json_text}",
        )
    return 0


def time_text(seconds: float) -> str:
    """``13.4 us``, ``2.31 ms``, ``1.2 s``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"


# -- plans and prices ------------------------------------------------------------------------------


def model_data(model: Model) -> JsonObject:
    """A model as JSON data."""
    program = model.program
    return {
        "name": model.name,
        "source": model.source,
        "digest": program.digest(),
        "ops": program.n_ops - program.n_arguments,
        "arguments": program.n_arguments,
        "results": len(program.outputs),
        "names": program.n_factors,
        "notes": list(model.notes),
    }


def problem_data(
    model: Model,
    problem: Problem,
    plan: ShardingPlan | None = None,
    cost: Cost | None = None,
    **more: object,
) -> JsonObject:
    """A model, a problem and, if given, a plan and its price as JSON data, before ``more``."""
    time_s, peak_bytes = problem.baseline
    about = {
        "mesh": dict(zip(problem.mesh.axes, problem.mesh.sizes, strict=True)),
        "machine": problem.machine.name,
        "memory_limit_bytes": problem.memory_limit_bytes,
        "unsharded_time_s": time_s,
        "unsharded_peak_bytes": peak_bytes,
        "pins": [] if problem.pins is None else problem.pins.texts,
    }
    data = {"model": model_data(model), "problem": about}
    if plan is not None:
        data["plan"] = plan_data(plan)
    if cost is not None:
        data["cost"] = cost_data(cost)
    return {**data, **more}


def plan_data(plan: ShardingPlan) -> JsonObject:
    """A plan as JSON data, in brief: actions, and specs of arguments and results."""
    return {
        "actions": plan.actions,
        "refinements": plan.refinements,
        "key": f"{plan.key:016x}",
        "arguments": plan.argument_specs(),
        "results": plan.result_specs(),
    }


def written_data(written: Written) -> JsonObject:
    """A written plan as JSON data: its size and price, its rules and its constraints."""
    return {
        "size": written.size._asdict(),
        "loss": written.loss,
        "time_s": written.cost.time_s,
        "peak_bytes": written.cost.peak_bytes,
        "fits": written.cost.fits,
        "rules": [
            {"words": rule.words, "pattern": rule.pattern, "spec": rule.spec}
            for rule in written.rules
        ],
        "constraints": [
            {"where": site.where, "name": site.target, "spec": spec}
            for site, spec in written.constraints
        ],
    }


def cost_data(cost: Cost) -> JsonObject:
    """A price as JSON data, with every collective."""
    return {
        "time_s": cost.time_s,
        "overlapped_time_s": cost.overlapped_s,
        "compute_s": cost.compute_s,
        "communication_s": cost.comm_s,
        "peak_bytes": cost.peak_bytes,
        "memory_limit_bytes": cost.memory_limit_bytes,
        "fits": cost.fits,
        "relative_time": cost.relative_time,
        "memory_penalty": cost.memory_penalty,
        "score": cost.score,
        "collectives": [collective._asdict() for collective in cost.collectives],
    }


def show_cost(console: Out, problem: Problem, cost: Cost) -> None:
    """Print time and memory, beside those of the unsharded program."""
    base_time, base_peak = problem.baseline
    fits = "fits" if cost.fits else f"over the limit of {bytes_text(cost.memory_limit_bytes)}"
    relative = f"{cost.relative_time:.3f} of unsharded"
    console.table(
        f"Estimate for one device of {problem.machine.name}, mesh {problem.mesh}",
        ("", ">unsharded", ">sharded", ""),
        [
            ("time of a step", time_text(base_time), time_text(cost.time_s), relative),
            ("  compute", "", time_text(cost.compute_s), ""),
            ("  communication", "", time_text(cost.comm_s), f"{len(cost.collectives)} collectives"),
            ("  if overlapped", "", time_text(cost.overlapped_s), ""),
            ("peak memory", bytes_text(base_peak), bytes_text(cost.peak_bytes), fits),
            ("score C(s)", "", f"{cost.score:.4f}", "relative time + memory penalty"),
        ],
    )


def show_pins(console: Out, problem: Problem) -> None:
    """Print the pins of a problem."""
    if problem.pins is not None:
        console.print("Kept: " + "; ".join(problem.pins.texts))


def show_plan(console: Out, plan: ShardingPlan, written: Written | None = None) -> None:
    """Print what a plan is, with its rules; as it was written, if it was."""
    from toast_lab.written.screen import plan_text

    console.print(plan_text(plan) if written is None else str(written), soft_wrap=True)
    console.print()


def show_collectives(console: Out, cost: Cost) -> None:
    """Print the collectives by kind and axes, the costliest first."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for collective in cost.collectives:
        groups.setdefault((collective.kind, ",".join(collective.axes)), []).append(collective)
    rows = []
    for (kind, axes), members in groups.items():
        largest = max(members, key=lambda collective: collective.time_s)
        time_s = sum(collective.time_s for collective in members)
        size = bytes_text(sum(collective.local_bytes for collective in members))
        location = line_text(largest.where)
        cells = (kind, axes, len(members), size, time_text(time_s), largest.value, location)
        rows.append((time_s, cells))
    if rows:
        rows.sort(key=lambda row: -row[0])
        columns = ("kind", "axes", ">count", ">bytes", ">time", "~largest", "~at")
        console.table("Collectives", columns, [cells for _, cells in rows])
