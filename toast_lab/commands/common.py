"""Makes models, problems, plans and searches from arguments, for all commands."""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from toast_lab.commands import keeping, output
from toast_lab.errors import (
    FrontendError,
    InvalidInput,
    InvalidPlan,
    InvalidProblem,
    ToastError,
    did_you_mean,
    join_offenders,
)
from toast_lab.text import bytes_text

if TYPE_CHECKING:
    from toast_lab.confirm.loop import Judging
    from toast_lab.confirm.verdict import JudgeEvent
    from toast_lab.conflicts.analysis import Analysis
    from toast_lab.cost.problem import Problem
    from toast_lab.ir.model import Model
    from toast_lab.ir.rounds import Rounds
    from toast_lab.plan_verbs import Written
    from toast_lab.search.contract import SearchResult
    from toast_lab.search.saved_search import SavedSearch
    from toast_lab.sharding.mesh import Mesh
    from toast_lab.sharding.plan import ShardingPlan

DEFAULT_MESH = "4x2"
FILE_SUFFIXES = (".mlir", ".mlirbc", ".stablehlo", ".vhlo", ".bc", ".txt", ".hlo")


# -- from arguments --------------------------------------------------------------------------------


#: Options that name an output file.
OUTPUT_OPTIONS = (
    *("save", "save_search", "csv", "page", "python", "patch", "test", "rules", "stablehlo"),
    "output",
)


def check_early(args: Namespace) -> None:
    """Refuse wrong options before minutes are spent on tracing and searching; all are listed.

    Checks the machine, mesh, plans, devices, topology, output files and search options, as far as
    the command has them.
    """
    refusals: list[ToastError] = []
    meshes: list[Mesh] = []
    for check in (
        lambda: meshes.extend(_meshes(args)),
        lambda: _check_layout(args),
        lambda: _check_devices(args, meshes),
        lambda: _check_written(args),
        lambda: _check_search(args),
    ):
        try:
            check()
        except ToastError as error:
            refusals.append(error)
    if len(refusals) == 1:
        raise refusals[0]
    if refusals:
        raise InvalidInput("several options are wrong:\n" + join_offenders(refusals))


def _meshes(args: Namespace) -> list[Mesh]:
    """The meshes of a command: that of ``--mesh``, else those of its plans, else the default."""
    from toast_lab.sharding.mesh import make_mesh

    if getattr(args, "mesh", None):
        return [make_mesh(args.mesh)]
    single = [getattr(args, name, None) for name in ("plan", "before")]
    paths = [path for path in (*single, *(getattr(args, "plans", None) or ())) if path]
    if paths:
        return [make_mesh(mesh_of(path)) for path in paths]
    return [make_mesh(DEFAULT_MESH)] if hasattr(args, "mesh") and hasattr(args, "machine") else []


def _check_layout(args: Namespace) -> None:
    from toast_lab.machines.catalogue import machine
    from toast_lab.machines.topology import lay_out

    if not getattr(args, "machine", None):
        return
    machine_model = machine(args.machine)
    if getattr(args, "mesh", None):
        for mesh in _meshes(args):
            lay_out(machine_model, mesh)


def _check_devices(args: Namespace, meshes: Sequence[Mesh]) -> None:
    """Refuse devices and topologies that do not suit the meshes; a child looks for accelerators."""
    from toast_lab.runtime import devices as dev

    if getattr(args, "device", None):
        dev.check(args.device, 1)
    for mesh in meshes:
        for topology in filter(
            None, (getattr(args, "topology", None), getattr(args, "judge", None))
        ):
            from toast_lab.runtime.compile import check_compiler
            from toast_lab.runtime.topologies import parse

            check_compiler(parse(topology, mesh))
        devices = getattr(args, "devices", None)
        if devices and devices != "distributed":
            dev.check(devices, mesh.n_devices)


def _check_written(args: Namespace) -> None:
    options = {f"--{name.replace('_', '-')}": getattr(args, name, None) for name in OUTPUT_OPTIONS}
    path_of = {flag: path for flag, path in options.items() if isinstance(path, str) and path}
    offences = [_output_file_offence(path, flag) for flag, path in path_of.items()]
    targets = [os.path.realpath(path) for path in path_of.values()]
    repeated_flags = [
        flag
        for flag, target in zip(path_of, targets, strict=True)
        # A device can take the output of several options.
        if targets.count(target) > 1 and (os.path.isfile(target) or not os.path.exists(target))
    ]
    if repeated_flags:
        offences.append(f"{' and '.join(repeated_flags)} name the same file")
    store = getattr(args, "store", None)
    if store and store != "none":
        offences.append(_output_folder_offence(str(Path(store).parent), "--store"))
    if getattr(args, "out", None):
        offences.append(_output_folder_offence(args.out, "--out"))
    if any(offences):
        raise InvalidPlan("; ".join(filter(None, offences)))


def _check_search(args: Namespace) -> None:
    if hasattr(args, "method") and hasattr(args, "resume"):
        if getattr(args, "judge", None) and args.resume:
            raise InvalidProblem(
                "--resume continues a search without a judge; to continue one with --judge, "
                "repeat the same command: its compiled results are kept"
            )
        _, saved, _ = search_settings(args)
        if saved is None:
            return
        differences = [
            f"{name} {saved.facts[name]!r}, not {value!r}"
            for name, value in (("seed", args.seed), ("method", args.method))
            if value not in (None, saved.facts[name])
        ]
        if differences:
            raise InvalidProblem(f"--resume {args.resume}: it has {'; '.join(differences)}")


def search_settings(args: Namespace) -> tuple[str, SavedSearch | None, dict[str, Any]]:
    """(method, search to continue, options of the method) from the arguments.

    Raises FrontendError, which lists every wrong option.
    """
    from toast_lab.search.methods import method_named
    from toast_lab.search.saved_search import SavedSearch

    saved = SavedSearch.load(args.resume) if args.resume else None
    method = args.method or ("mcts" if saved is None else saved.facts["method"])
    search_method = method_named(method)
    defaults = {name: option.default for name, option in search_method.options().items()}
    assignments = [*args.option, *([f"threads={args.threads}"] if args.threads else [])]
    message_words = ValueWords(
        "--option", "option", f"options of {method}", "search mlp --option depth=8"
    )
    options = _read_values(assignments, defaults, message_words, closed=True)
    # Checks the options, so that every offence is reported before a model is loaded.
    search_method.of(options)
    return method, saved, options


def check_folder(path: str | None, option: str) -> None:
    """Refuse an output file that cannot be written."""
    if path and (offence := _output_file_offence(path, option)):
        raise InvalidPlan(offence)


def _output_file_offence(path: str, option: str) -> str:
    target = Path(path).absolute()
    if target.exists() and not target.is_file() and not target.is_dir():
        # A device or a pipe: no file is created in its folder
        return ""
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK | os.X_OK):
        return f"{option} {path}: its folder does not exist or cannot be written to"
    if target.is_dir():
        return f"{option} {path}: this is a folder, give a file"
    if target.exists() and not os.access(target, os.W_OK):
        return f"{option} {path}: this file exists and cannot be written to"
    return ""


def _output_folder_offence(path: str, option: str) -> str:
    """The offence of an output folder, which is created if it does not exist; empty if none."""
    existing = Path(path).absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        return f"{option} {path}: {existing} is a file, give a folder"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{option} {path}: {existing} cannot be written to"
    return ""


def load_model(args: Namespace) -> Model:
    """Load the model that MODEL and ``--set`` name; notes about it go to stderr."""
    model = _load_model(args)
    if args.loop_rounds:
        model = model.with_rounds(_read_rounds(args.loop_rounds))
    print_notes(model.notes)
    return model


def _read_rounds(texts: Sequence[str]) -> Rounds:
    """``["40"]`` as the number for all loops, ``["solve.py:12=40"]`` as that of a line's."""
    by_line: dict[str, float] = {}
    for text in texts:
        line, _, number = text.rpartition("=")
        try:
            by_line[line] = float(number)
        except ValueError:
            raise InvalidInput(
                f"--loop-rounds {text}: {number!r} is not a number; give N, or LINE=N such as "
                "solve.py:12=40"
            ) from None
    if "" in by_line and len(texts) > 1:
        raise InvalidInput(f"--loop-rounds {' '.join(texts)}: give one number, or numbers by line")
    return by_line.get("", by_line)


def print_notes(notes: Iterable[object]) -> None:
    """Print one line to stderr for each note."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def _load_model(args: Namespace) -> Model:
    from toast_lab import frontends
    from toast_lab.ir import kernel_rules
    from toast_lab.models import registry

    model_name = str(args.model)
    platform = _platform(args)
    if getattr(args, "kernels", None):
        kernel_rules.read_file(args.kernels)
    _trace_on_cpu()
    with output.progress(f"loading {model_name}"):
        if model_name not in registry.MODELS and (
            model_name.endswith(FILE_SUFFIXES) or "/" in model_name or Path(model_name).is_file()
        ):
            if args.set:
                raise FrontendError(
                    f"--set {' '.join(args.set)}: {model_name} is a file; its sizes are fixed"
                )
            return frontends.from_stablehlo(Path(model_name), time_limit_s=args.time_limit)
        if ":" in model_name:
            return frontends.load(
                model_name,
                platform=platform,
                virtual_devices=getattr(args, "virtual_devices", 0),
                time_limit_s=args.time_limit,
                **read_sizes(args.set, {}),
            )
        sizes = read_sizes(args.set, registry.sizes(model_name))
        return frontends.load(model_name, platform=platform, **sizes)


def _platform(args: Namespace) -> str | None:
    """The platform of ``--platform`` or of the machine; None: that of this host."""
    if getattr(args, "platform", None):
        return str(args.platform)
    if not getattr(args, "machine", None):
        return None
    from toast_lab.machines.catalogue import machine

    return machine(args.machine).compiler


def _trace_on_cpu() -> None:
    """Let JAX see only the CPU in this process.

    This process only traces; a GPU's memory is left to the child that runs. The variable is
    restored, since children inherit it.
    """
    previous_platforms = os.environ.get("JAX_PLATFORMS")
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        importlib.import_module("jax")
    finally:
        if previous_platforms is None:
            del os.environ["JAX_PLATFORMS"]
        else:
            os.environ["JAX_PLATFORMS"] = previous_platforms


def read_sizes(assignments: Iterable[str], defaults: dict[str, Any]) -> dict[str, Any]:
    """Read ``["layers=2", "dtype=bfloat16"]`` as values of the defaults' types.

    All offenders are listed.
    """
    message_words = ValueWords("--set", "size", "sizes", "analyse mlp --set batch=64")
    return _read_values(assignments, defaults, message_words, closed=bool(defaults))


class ValueWords(NamedTuple):
    """Words that the messages of ``_read_values`` use."""

    flag: str
    one: str
    all: str
    example: str


def _read_values(
    assignments: Iterable[str], defaults: dict[str, Any], message_words: ValueWords, *, closed: bool
) -> dict[str, Any]:
    """Read key=value texts as the defaults' types, listing offenders; ``closed`` bars others."""
    values: dict[str, Any] = {}
    offenders = []
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key:
            offenders.append(
                f"expected {message_words.one}=value, got {assignment!r} "
                f'(MODEL must come before {message_words.flag}, as in "{message_words.example}")'
            )
            continue
        if closed and key not in defaults:
            choices = ", ".join(f"{name}={default}" for name, default in defaults.items()) or "none"
            offenders.append(
                f"there is no {message_words.one} {key!r}{did_you_mean(key, defaults)}; "
                f"{message_words.all}: {choices}"
            )
            continue
        try:
            values[key] = _value_of(text, defaults.get(key))
        except ValueError:
            offenders.append(f"{assignment}: {text!r} is not {_type_text(defaults[key])}")
    if offenders:
        raise FrontendError(f"{message_words.flag}: " + "; ".join(offenders))
    return values


def _value_of(text: str, default: Any) -> Any:
    if isinstance(default, bool):
        folded = text.casefold()
        if folded not in ("true", "false", "1", "0", "yes", "no"):
            raise ValueError(text)
        return folded in ("true", "1", "yes")
    if isinstance(default, str | int | float):
        return type(default)(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _type_text(default: Any) -> str:
    return {"int": "a whole number", "float": "a number", "bool": "true or false"}.get(
        type(default).__name__, "valid"
    )


def analyse(args: Namespace, model: Model) -> Analysis:
    """Analyse a loaded model."""
    from toast_lab.conflicts import analysis

    with output.progress(f"analysing {model.name}"):
        return analysis.analyse(model, phases=args.phases)


def make_problem(args: Namespace, analysis: Analysis) -> Problem:
    """The problem of the arguments, on the mesh of ``--mesh``, else of ``--plan``, else 4x2."""
    from toast_lab.cost.problem import Problem

    mesh = args.mesh
    if mesh is None and getattr(args, "plan", None):
        mesh = mesh_of(args.plan)
    limit = args.memory_limit * 2.0**30 if args.memory_limit else None
    problem = Problem(analysis, mesh or DEFAULT_MESH, args.machine, memory_limit_bytes=limit)
    if getattr(args, "keep_annotations", None):
        problem = problem.keep_annotations(strict=args.keep_annotations == "all")
        print_notes(() if problem.pins is None else problem.pins.notes)
    if getattr(args, "pin", None) or getattr(args, "forbid", None):
        problem = problem.what_if(args.pin, args.forbid)
    return problem


def load_problem(args: Namespace) -> tuple[Model, Problem]:
    """The model and the problem that the arguments describe, once these are found right."""
    check_early(args)
    model = load_model(args)
    if args.pad:
        from toast_lab.advice.padding_search import padded

        model = padded(model, dict(args.pad))
    return model, make_problem(args, analyse(args, model))


def mesh_of(path: str) -> dict[str, int]:
    """The mesh of a saved plan, as axes and sizes."""
    try:
        data = json.loads(Path(path).read_text())
        return {str(axis): size for axis, size in data["mesh"].items()}
    except OSError as error:
        raise InvalidPlan(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidPlan(f"{path} is not a plan that --save wrote") from None


def given_plan(args: Namespace, problem: Problem) -> ShardingPlan | None:
    """The plan of ``--plan`` or ``--actions``, None if neither was given.

    Raises InvalidPlan if the plan violates a pin.
    """
    from toast_lab.sharding.plan import plan_of_actions

    if args.plan:
        plan = load_plan(args.plan, problem.analysis, problem.mesh)
    elif args.actions is not None:
        plan = plan_of_actions(problem.space, args.actions)
    else:
        return None
    if problem.pins is not None:
        problem.pins.check(plan.op_factor, plan.value_dim)
    return plan


def load_plan(path: str, analysis: Analysis, mesh: Mesh) -> ShardingPlan:
    """Load a saved plan; notes about parts that do not fit go to stderr."""
    from toast_lab.sharding import plan_file

    plan = plan_file.load(path, analysis, mesh)
    for note in plan.notes:
        print(f"{path}: {note}", file=sys.stderr)
    return plan


def plan_names(paths: list[str]) -> list[str]:
    """Names of plans: the names of their files, or whole paths if those are the same."""
    stems = [Path(path).stem for path in paths]
    names = [
        stem if stems.count(stem) == 1 else path for stem, path in zip(stems, paths, strict=True)
    ]
    repeated_names = sorted({name for name in names if names.count(name) > 1})
    if repeated_names:
        raise InvalidPlan(f"plans given twice: {', '.join(repeated_names)}")
    return names


def load_planned(
    args: Namespace,
) -> tuple[Model, Problem, ShardingPlan, SearchResult | None]:
    """``load_problem``, and ``plan_or_search`` for it."""
    model, problem = load_problem(args)
    return model, problem, *plan_or_search(args, problem, model)


def plan_or_search(
    args: Namespace, problem: Problem, model: Model
) -> tuple[ShardingPlan, SearchResult | None]:
    """The plan that the arguments give, else the best plan that a search finds."""
    plan = given_plan(args, problem)
    if plan is not None:
        return plan, None
    result = search_plan(args, problem, model)
    return result.plan, result


def search_plan(args: Namespace, problem: Problem, model: Model) -> SearchResult:
    """Search as the arguments say, with a progress bar.

    Ctrl-C or SIGTERM ends the search and keeps what it found. The method "manual" tries the model's
    expert plans.

    Raises InvalidPlan if the method is "manual" and the model has no expert plans.
    """
    from toast_lab.pipeline import search
    from toast_lab.search.contract import Budget
    from toast_lab.search.trace import Simulation

    method, saved, options = search_settings(args)
    if method == "manual":
        if not model.expert_plans:
            raise InvalidPlan(
                f"{model.name} has no expert plans for --method manual to try; price a plan of "
                "your own with "
                '"toast-lab price MODEL --actions COLOUR->AXIS ..."'
            )
        options["plans"] = model.expert_plans
    if getattr(args, "judge", None):
        from toast_lab.confirm.judge_targets import judged_elsewhere

        remark = judged_elsewhere(problem, args.judge)
        print_notes((remark,) if remark else ())
    print_notes(_too_small(args))
    seconds = args.seconds
    if seconds is None and args.evaluations is None:
        seconds = args.default_seconds
    replayed_count = 0 if saved is None else saved.facts["simulations"]
    began = time.monotonic()
    with output.stoppable(f"searching ({method})") as (update, stopped):

        def on_progress(simulations: Sequence[Simulation]) -> None:
            nonlocal began
            last = simulations[-1]
            if last.index < replayed_count:
                began = time.monotonic()
                update(last.index / replayed_count, f"replaying {replayed_count:,} simulations")
                return
            share = max(
                (time.monotonic() - began) / seconds if seconds else 0.0,
                (last.index - replayed_count) / args.evaluations if args.evaluations else 0.0,
            )
            update(
                min(share, 1.0),
                f"best {output.time_text(last.best_time_s)}, {bytes_text(last.best_peak_bytes)}",
            )

        if getattr(args, "judge", None):
            options["judge"] = _judging(args, update)
        if getattr(args, "actions_within", None) is not None:
            options["actions_within"] = args.actions_within / 100.0
        for name in ("size", "recompute", "padding"):
            if getattr(args, name, None):
                options[name] = getattr(args, name)
        result = search(
            problem,
            method=method,
            seed=args.seed,
            budget=Budget(seconds, args.evaluations),
            on_progress=on_progress,
            cancel=stopped,
            resume=saved,
            **options,
        )
    if args.save_search:
        keeping.keep(args, "search", args.save_search, result.save)
    return result


def _too_small(args: Namespace) -> tuple[str, ...]:
    """Why no plan will gain much, for a built-in model at sizes of the paper's listings."""
    from toast_lab.models.registry import WORTHWHILE_SIZES

    worthwhile = WORTHWHILE_SIZES.get(str(args.model))
    if args.set or worthwhile is None:
        return ()
    sizes = " ".join(f"{size}={value}" for size, value in worthwhile.items())
    return (
        f"{args.model} has the small shapes of the paper's listing, which are hardly worth "
        f"cutting; at the sizes that the explorer begins with it pays: --set {sizes}",
    )


def _judging(args: Namespace, update: Callable[[float | None, str], None]) -> Judging:
    """How plans are judged; each event of the judge updates the progress bar."""
    from toast_lab.confirm.loop import Judging

    def show(event: JudgeEvent) -> None:
        best = event.best
        clock_s = None if best is None else best.time_s
        best_text = "" if clock_s is None else f", best judged {output.time_text(clock_s)}"
        update(None, f"{event.stage}, {event.compiles} of {event.most_compiles} judged{best_text}")

    return Judging(
        args.judge,
        compiles=args.compiles,
        time_limit_s=args.compile_limit,
        seconds=args.judge_limit,
        on_event=show,
    )


def write_plan(
    args: Namespace, problem: Problem, plan: ShardingPlan, model: Model, **options: Any
) -> Written:
    """The plan as people write it, as ``--within`` and ``--size`` say; Ctrl-C ends it early."""
    from toast_lab.plan_verbs import Plan

    with output.stoppable("writing the plan") as (_, stopped):
        return Plan.of(plan).written(
            args.within / 100.0,
            args.size,
            problem=problem,
            model=model,
            cancel=stopped,
            **options,
        )
