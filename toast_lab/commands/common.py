"""What the commands share: from arguments to models, problems and plans, and from results to text.

Only stdout carries results; progress goes to stderr and only to a terminal.  Keys of JSON objects name the
unit of their numbers (``time_s``, ``peak_bytes``).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from toast_lab.errors import FrontendError, InvalidPlan, did_you_mean

if TYPE_CHECKING:
    from toast_lab.conflicts.analysis import Analysis
    from toast_lab.cost.problem import Cost, Problem
    from toast_lab.frontends import Model
    from toast_lab.search.contract import SearchResult
    from toast_lab.search.trace import Trace
    from toast_lab.sharding.plan import ShardingPlan

DEFAULT_MESH = "4x2"
FILE_SUFFIXES = (".mlir", ".mlirbc", ".stablehlo", ".vhlo", ".bc", ".txt", ".hlo")


# -- from arguments ------------------------------------------------------------------------------------


def check_early(args: argparse.Namespace) -> None:
    """Refuse what can be seen to be wrong before minutes are spent on tracing and searching."""
    from toast_lab.cost.layout import lay_out
    from toast_lab.cost.machines import machine
    from toast_lab.sharding.mesh import make_mesh

    found = machine(args.machine)
    if args.mesh:
        lay_out(found, make_mesh(args.mesh))
    if getattr(args, "plan", None):
        mesh_of(args.plan)
    for flag in ("save", "trace"):
        check_folder(getattr(args, flag, None), f"--{flag}")
    if hasattr(args, "method"):
        search_settings(args)


def search_settings(args: argparse.Namespace) -> tuple[str, Trace | None, dict[str, Any]]:
    """(method, trace to go on from, options of the method) that the arguments name; all wrong options are listed."""
    from toast_lab.search.contract import method_of
    from toast_lab.search.trace import Trace

    trace = Trace.load(args.resume) if args.resume else None
    method = args.method or (trace.about["method"] if trace is not None else "mcts")
    known = method_of(method).__kwdefaults__ or {}
    wanted = [*args.option, *([f"threads={args.threads}"] if args.threads else [])]
    words = Words("--option", "option", f"options of {method}", "--option depth=8")
    return method, trace, _read_values(wanted, known, words, closed=True)


def check_folder(path: str | None, option: str) -> None:
    """Refuse a file to write that cannot be written."""
    if path and not os.access(Path(path).absolute().parent, os.W_OK):
        raise InvalidPlan(f"{option} {path}: its folder does not exist or cannot be written to")
    if path and Path(path).is_dir():
        raise InvalidPlan(f"{option} {path}: this is a folder, give a file")


def load_model(args: argparse.Namespace) -> Model:
    """The MODEL argument with its ``--set`` sizes, whatever it names; what was done to it goes to stderr."""
    model = _load_model(args)
    for note in model.notes:
        print(f"note: {note}", file=sys.stderr)
    return model


def _load_model(args: argparse.Namespace) -> Model:
    from toast_lab import frontends
    from toast_lab.models import registry

    which = str(args.model)
    _trace_on_cpu()
    with working(f"loading {which}"):
        if which not in registry.MODELS and (which.endswith(FILE_SUFFIXES) or "/" in which or Path(which).is_file()):
            if args.set:
                raise FrontendError(f"--set {' '.join(args.set)}: {which} is a file, its sizes are fixed")
            return frontends.from_stablehlo(Path(which), time_limit_s=args.time_limit)
        if ":" in which:
            return frontends.load(which, time_limit_s=args.time_limit, **read_sizes(args.set, {}))
        return frontends.load(which, **read_sizes(args.set, registry.sizes(which)))


def _trace_on_cpu() -> None:
    """Let JAX see the CPU only in this process: it just traces, and a GPU's memory is for the child that runs.

    The variable is put back, since children inherit it.
    """
    before = os.environ.get("JAX_PLATFORMS")
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        importlib.import_module("jax")
    finally:
        if before is None:
            del os.environ["JAX_PLATFORMS"]
        else:
            os.environ["JAX_PLATFORMS"] = before


def read_sizes(items: Iterable[str], defaults: dict[str, Any]) -> dict[str, Any]:
    """``["layers=2", "dtype=bfloat16"]`` as numbers and texts, typed as the defaults are; all offenders are listed."""
    words = Words("--set", "size", "sizes", "analyse mlp --set batch=64")
    return _read_values(items, defaults, words, closed=bool(defaults))


class Words(NamedTuple):
    """What ``_read_values`` says of what it reads."""

    flag: str
    one: str
    all: str
    example: str


def _read_values(items: Iterable[str], defaults: dict[str, Any], words: Words, *, closed: bool) -> dict[str, Any]:
    """Key=value texts, typed as the defaults are; ``closed``: other keys are wrong.  All offenders are listed."""
    found: dict[str, Any] = {}
    wrong = []
    for item in items:
        key, sep, text = item.partition("=")
        if not sep or not key:
            wrong.append(
                f"{item!r} is not of the form {words.one}=value "
                f'(give MODEL before {words.flag}, as in "{words.example}")'
            )
            continue
        if closed and key not in defaults:
            known = ", ".join(f"{k}={v}" for k, v in defaults.items()) or "none"
            wrong.append(f"there is no {words.one} {key!r}{did_you_mean(key, defaults)}; {words.all}: {known}")
            continue
        try:
            found[key] = _typed(text, defaults.get(key))
        except ValueError:
            wrong.append(f"{item}: {text!r} is not {_kind_text(defaults[key])}")
    if wrong:
        raise FrontendError(f"{words.flag}: " + "; ".join(wrong))
    return found


def _typed(text: str, default: Any) -> Any:
    if isinstance(default, bool):
        folded = text.casefold()
        if folded not in ("true", "false", "1", "0", "yes", "no"):
            raise ValueError(text)
        return folded in ("true", "1", "yes")
    if isinstance(default, str):
        return text
    if isinstance(default, int):
        return int(text)
    if isinstance(default, float):
        return float(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _kind_text(default: Any) -> str:
    return {"int": "a whole number", "float": "a number", "bool": "true or false"}.get(type(default).__name__, "valid")


def analyse(args: argparse.Namespace, model: Model) -> Analysis:
    """Analyse a loaded model."""
    from toast_lab.conflicts.analysis import analyse_program

    with working(f"analysing {model.name}"):
        return analyse_program(model.program, model.dim_names, phases=args.phases, trees=model.trees)


def make_problem(args: argparse.Namespace, analysis: Analysis) -> Problem:
    """The problem that mesh, machine and memory limit describe; a plan file brings its own mesh."""
    from toast_lab.cost.problem import Problem

    mesh = args.mesh
    if mesh is None and getattr(args, "plan", None):
        mesh = mesh_of(args.plan)
    limit = args.memory_limit * 2.0**30 if args.memory_limit else None
    problem = Problem(analysis, mesh or DEFAULT_MESH, args.machine, memory_limit_bytes=limit)
    if getattr(args, "keep_annotations", None):
        problem = problem.keep_annotations(strict=args.keep_annotations == "all")
        for note in () if problem.pins is None else problem.pins.notes:
            print(f"note: {note}", file=sys.stderr)
    if getattr(args, "pin", None) or getattr(args, "forbid", None):
        problem = problem.what_if(args.pin, args.forbid)
    return problem


def mesh_of(path: str) -> Any:
    """The mesh of a saved plan, as axes and sizes."""
    try:
        data = json.loads(Path(path).read_text())
        return {str(a): s for a, s in data["mesh"].items()}
    except OSError as error:
        raise InvalidPlan(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidPlan(f"{path} is not a plan that --save wrote") from None


def given_plan(args: argparse.Namespace, problem: Problem) -> ShardingPlan | None:
    """The plan of ``--plan`` or ``--actions``, None if neither was given.  Raises InvalidPlan if it breaks a pin."""
    plan = _given_plan(args, problem)
    if plan is not None and problem.pins is not None:
        problem.pins.check(plan.op_axis, plan.value_axis)
    return plan


def _given_plan(args: argparse.Namespace, problem: Problem) -> ShardingPlan | None:
    from toast_lab.sharding.plan import ShardingPlan

    if args.plan:
        plan = ShardingPlan.load(args.plan, problem)
        for note in plan.notes:
            print(f"{args.plan}: {note}", file=sys.stderr)
        return plan
    if args.actions is not None:
        return ShardingPlan.from_actions(problem, args.actions)
    return None


def plan_or_search(
    args: argparse.Namespace, problem: Problem, model: Model
) -> tuple[ShardingPlan, SearchResult | None]:
    """The plan given, else the best that a search finds."""
    plan = given_plan(args, problem)
    if plan is not None:
        return plan, None
    result = search_plan(args, problem, model)
    return result.plan, result


def search_plan(args: argparse.Namespace, problem: Problem, model: Model) -> SearchResult:
    """Search as the arguments say, with a progress bar; the first Ctrl-C ends it and keeps what it found.

    "manual" tries the model's expert plans.  Raises InvalidPlan if it has none.
    """
    from toast_lab.search.contract import Budget, search
    from toast_lab.search.trace import Simulation

    method, trace, options = search_settings(args)
    if method == "manual":
        if not model.expert_plans:
            raise InvalidPlan(
                f"{model.name} has no expert plans for --method manual to try; price a plan of your own with "
                '"toast-lab price MODEL --actions COLOUR->AXIS ..."'
            )
        options["plans"] = model.expert_plans
    seconds = args.seconds
    if seconds is None and args.evaluations is None:
        seconds = args.default_seconds
    before = 0 if trace is None else len(trace.simulations)
    began = time.monotonic()
    with progress(f"searching ({method})") as update, stop_on_interrupt() as stopped:

        def on_progress(simulations: Sequence[Simulation]) -> None:
            last = simulations[-1]
            share = max(
                (time.monotonic() - began) / seconds if seconds else 0.0,
                (last.index - before) / args.evaluations if args.evaluations else 0.0,
            )
            update(min(share, 1.0), f"best {time_text(last.best_time_s)}, {bytes_text(last.best_peak_bytes)}")

        result = search(
            problem, method=method, seed=args.seed, budget=Budget(seconds, args.evaluations),
            on_progress=on_progress, cancel=stopped, resume=trace, **options,
        )  # fmt: skip
    if args.trace:
        result.trace.save(args.trace)
        _say_written("trace", args.trace)
    return result


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Gives whether Ctrl-C was pressed; pressed again it ends the command as ever.

    Where signals cannot be caught (another thread) it does nothing.
    """
    pressed: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    def stopped() -> bool:
        return bool(pressed)

    try:
        before = signal.signal(signal.SIGINT, interrupt)
    except ValueError:
        yield stopped
        return
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def save_plan(args: argparse.Namespace, plan: ShardingPlan) -> None:
    """Write the plan if ``--save`` asks for it; only the path is said, and on stderr."""
    if args.save:
        plan.save(args.save)
        _say_written("plan", args.save)


def _say_written(what: str, path: str) -> None:
    if sys.stderr.isatty():
        print(f"{what} written to {path}", file=sys.stderr)


# -- progress ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[float | None, str], None]]:
    """A progress bar on stderr if that is a terminal; ``update(share or None, remark)`` moves it."""
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
    with Progress(*columns, console=Console(stderr=True, markup=False, emoji=False), transient=True) as bar:
        task = bar.add_task(what, total=None, remark="")

        def update(share: float | None, remark: str) -> None:
            if share is None:
                bar.update(task, remark=remark)
            else:
                bar.update(task, total=1.0, completed=share, remark=remark)

        yield update


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal's stderr that something without a known length goes on."""
    with progress(what):
        yield


# -- to text -------------------------------------------------------------------------------------------


class Out(Console):
    """stdout for people: no markup in names, wide enough for tables when it is not a terminal."""

    def __init__(self) -> None:
        # Columns of numbers are never cut: below 100 columns it is the terminal that breaks the lines.
        width = max(100, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 120
        super().__init__(markup=False, highlight=False, emoji=False, soft_wrap=False, width=width)

    def on_broken_pipe(self) -> None:
        """Leave it to ``cli.main``, which answers every broken pipe alike."""
        raise BrokenPipeError

    def table(
        self, title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], limit: int | None = None
    ) -> None:
        """Print a table; beyond ``limit`` rows the rest is counted.

        Columns that start with ">" are numbers, those that start with "~" may be folded where space is short.
        """
        self.print(title, style="bold")  # a title inside the table would be wrapped at the table's width
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in columns:
            justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
            table.add_column(column.lstrip(">~"), justify=justify, overflow="fold", no_wrap=column[:1] != "~")
        all_rows = [[str(cell) for cell in row] for row in rows]
        shown = all_rows if limit is None else all_rows[:limit]
        for row in shown:
            table.add_row(*row)
        self.print(table)
        if len(shown) < len(all_rows):
            self.print(f"... and {len(all_rows) - len(shown)} more (--json has all)", style="dim")
        self.print()


def emit(args: argparse.Namespace, data: dict[str, Any], show: Callable[[Out], None]) -> int:
    """Print ``data`` as one JSON object if ``--json`` asks for it, else let ``show`` print for people."""
    if args.json:
        print(json.dumps(_plain(data), indent=1))
    else:
        show(Out())
    return 0


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | range):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def time_text(seconds: float) -> str:
    """``13.4 us``, ``2.31 ms``, ``1.2 s``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"


def bytes_text(size: float) -> str:
    """``512 B``, ``4.0 KiB``, ``1.25 GiB``."""
    for unit, scale in (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if abs(size) >= scale:
            return f"{size / scale:.3g} {unit}" if size / scale < 1000 else f"{size / scale:.0f} {unit}"
    return f"{size:.0f} B"


def short(location: str) -> str:
    """``file.py:12`` of a location with its folder."""
    return location.rsplit("/", 1)[-1]


def few(items: Iterable[str], limit: int = 3) -> str:
    """The first items and how many are left out."""
    texts = list(items)
    return ", ".join(texts[:limit]) + (f", +{len(texts) - limit}" if len(texts) > limit else "")


# -- plans and prices ----------------------------------------------------------------------------------


def model_data(model: Model) -> dict[str, Any]:
    """A model for JSON."""
    p = model.program
    return {
        "name": model.name, "source": model.source, "digest": p.digest(), "ops": p.n_ops - p.n_arguments,
        "arguments": p.n_arguments, "results": len(p.outputs), "names": p.n_factors,
    }  # fmt: skip


def problem_data(problem: Problem) -> dict[str, Any]:
    """A problem for JSON."""
    time_s, peak_bytes = problem.baseline
    return {
        "mesh": dict(zip(problem.mesh.axes, problem.mesh.sizes, strict=True)), "machine": problem.machine.name,
        "memory_limit_bytes": problem.memory_limit_bytes,
        "unsharded_time_s": time_s, "unsharded_peak_bytes": peak_bytes,
        "pins": [] if problem.pins is None else problem.pins.texts,
    }  # fmt: skip


def plan_data(plan: ShardingPlan) -> dict[str, Any]:
    """A plan for JSON, in brief: actions and what they mean for arguments and results."""
    return {
        "actions": plan.actions,
        "key": f"{plan.key:016x}",
        "arguments": plan.argument_specs(),
        "results": plan.result_specs(),
    }


def cost_data(cost: Cost) -> dict[str, Any]:
    """A price for JSON, with every collective."""
    return {
        "time_s": cost.time_s, "overlapped_time_s": cost.overlapped_s,
        "compute_s": cost.compute_s, "communication_s": cost.comm_s,
        "peak_bytes": cost.peak_bytes, "memory_limit_bytes": cost.memory_limit_bytes, "fits": cost.fits,
        "relative_time": cost.relative_time, "memory_penalty": cost.memory_penalty, "score": cost.score,
        "collectives": [c._asdict() for c in cost.collectives],
    }  # fmt: skip


def show_cost(out: Out, problem: Problem, cost: Cost) -> None:
    """Time and memory beside the unsharded program's."""
    base_time, base_peak = problem.baseline
    fits = "fits" if cost.fits else f"over the limit of {bytes_text(cost.memory_limit_bytes)}"
    out.table(
        f"Estimate for one device of {problem.machine.name}, mesh {problem.mesh}",
        ("", ">unsharded", ">sharded", ""),
        [
            (
                "time of a step",
                time_text(base_time),
                time_text(cost.time_s),
                f"{cost.relative_time:.3f} of unsharded",
            ),
            ("  compute", "", time_text(cost.compute_s), ""),
            ("  communication", "", time_text(cost.comm_s), f"{len(cost.collectives)} collectives"),
            ("  if overlapped", "", time_text(cost.overlapped_s), ""),
            ("peak memory", bytes_text(base_peak), bytes_text(cost.peak_bytes), fits),
            ("score C(s)", "", f"{cost.score:.4f}", "relative time + memory penalty"),
        ],
    )


def show_pins(out: Out, problem: Problem) -> None:
    """What every plan of the problem keeps to."""
    if problem.pins is not None:
        out.print("Kept: " + "; ".join(problem.pins.texts))


def show_plan(out: Out, plan: ShardingPlan) -> None:
    """Actions, and the arguments that are cut."""
    out.print("Actions: " + ("  ".join(plan.actions) or "none, every device holds and computes everything"))
    out.print()
    cut = [(path, spec) for path, spec in plan.argument_specs().items() if any(spec)]
    if cut:
        rows = [(path, "[" + ", ".join("+".join(dim) or "-" for dim in spec) + "]") for path, spec in cut]
        out.table(
            f"Sharded arguments ({len(cut)} of {plan.program.n_arguments})",
            ("~argument", "mesh axes per dim"),
            rows,
            24,
        )


def show_collectives(out: Out, cost: Cost) -> None:
    """Collectives by kind and axis, costliest first."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for c in cost.collectives:
        groups.setdefault((c.kind, ",".join(c.axes)), []).append(c)
    rows = sorted(groups.items(), key=lambda item: -sum(c.time_s for c in item[1]))
    if rows:
        out.table(
            "Collectives",
            ("kind", "axes", ">count", ">bytes", ">time", "~largest", "~at"),
            [
                (
                    kind,
                    axes,
                    len(cs),
                    bytes_text(sum(c.local_bytes for c in cs)),
                    time_text(sum(c.time_s for c in cs)),
                    top.value,
                    short(top.where),
                )
                for (kind, axes), cs in rows
                for top in [max(cs, key=lambda c: c.time_s)]
            ],
        )
