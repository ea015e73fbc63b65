"""``SweepTask``: one search of a sweep as plain data, and the format in which sweeps are written.

Start reading at ``tasks_of``.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from toast_lab import checks
from toast_lab.errors import FrontendError, InvalidProblem, ToastError, did_you_mean, join_offenders
from toast_lab.machines.catalogue import machine as find_machine
from toast_lab.machines.topology import lay_out
from toast_lab.models import registry
from toast_lab.search.methods import METHODS, no_method
from toast_lab.sharding.mesh import make_mesh

#: A finished task as one flat object, see ``rows``.
TaskRow = dict[str, Any]
_MOST_SEEDS = 100_000
KEYS = (
    "models",
    "meshes",
    "machines",
    "methods",
    "seeds",
    "seconds",
    "evaluations",
    "memory_limit_gib",
)


@dataclasses.dataclass(frozen=True)
class SweepTask:
    """One search.

    ``digest`` identifies it in the file of rows; two tasks with the same digest are the same work.
    """

    model: str  #: a built-in model, or "package.module:make"
    sizes: tuple[tuple[str, Any], ...]  #: sorted by name
    mesh: str  #: "data=8,model=4"
    machine: str
    method: str
    seed: int = 0
    seconds: float | None = 30.0
    evaluations: int | None = None
    memory_limit_gib: float | None = None  #: per device; None: the machine's memory
    options: tuple[tuple[str, Any], ...] = ()  #: of the method, sorted by name

    #: "module:function" that a worker applies to a task of a subclass, with the arguments of
    #: ``sweep_worker.run_task``; empty: that function
    run_function: ClassVar[str] = ""

    @property
    def parcel(self) -> str:
        """A file that the function reads; workers elsewhere get a copy. Empty: it reads none."""
        return ""

    @classmethod
    def make(
        cls,
        model: str,
        sizes: Mapping[str, Any],
        mesh: Mapping[str, int] | str,
        machine: str,
        method: str,
        **more: Any,
    ) -> SweepTask:
        """A task in canonical form: sizes sorted, the mesh with the names of its axes."""
        options = tuple(sorted(dict(more.pop("options", {})).items()))
        return cls(
            model=model,
            sizes=tuple(sorted(sizes.items())),
            mesh=str(make_mesh(mesh)),
            machine=machine,
            method=method,
            options=options,
            **more,
        )

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data."""
        data = dataclasses.asdict(self)
        return {**data, "sizes": dict(self.sizes), "options": dict(self.options)}

    @property
    def digest(self) -> str:
        """16 hex digits, a hash of all fields."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        sizes = "".join(f" {name}={value}" for name, value in self.sizes)
        return (
            f"{self.method} {self.model}{sizes} on {self.mesh} of {self.machine}, seed {self.seed}"
        )


def tasks_of(data: Mapping[str, Any]) -> list[SweepTask]:
    """Every combination that a sweep names, grouped by model so that workers load each model once.

    Args:
        data: the sweep, with KEYS. ``models`` are names, texts such as ``"t2b:layers=2"``, or
            tables with ``name`` and sizes, where a list means one search for each of its values;
            ``seeds`` is a list of numbers or a text such as ``"0-4"``; ``methods`` are names or
            tables with ``name`` and options.

    Raises:
        InvalidProblem: listing everything that is wrong: unknown keys, models, sizes, methods and
            machines, meshes that a machine cannot hold, and invalid seeds or budgets.
    """
    offenders: list[str] = [
        f"unknown key {key!r}{did_you_mean(key, KEYS)}; the keys of a sweep are: {', '.join(KEYS)}"
        for key in data
        if key not in KEYS
    ]

    def entries(key: str, default: Any = None) -> list[Any]:
        value = data.get(key, default)
        if isinstance(value, list | tuple) and value:
            return list(value)
        offenders.append(f"{key} must be a list with at least one entry, got {value!r}")
        return []

    models = _models(entries("models"), offenders)
    meshes = _meshes(entries("meshes", ["4x2"]), offenders)
    machines = _machines(entries("machines", ["tpu-v5e"]), offenders)
    methods = _methods(entries("methods", ["mcts"]), offenders)
    seeds = _seeds(data.get("seeds", [0]), offenders)
    for mesh, name in itertools.product(meshes, machines):
        try:
            lay_out(find_machine(name), make_mesh(mesh))
        except ToastError as error:
            offenders.append(f"mesh {mesh} on {name}: {error}")
    evaluations = data.get("evaluations")
    limits = {
        "seconds": data.get("seconds", 30.0 if evaluations is None else None),
        "evaluations": evaluations,
        "memory_limit_gib": data.get("memory_limit_gib"),
    }
    for key, value in limits.items():
        if value is not None and (offence := checks.number_offence(value, 0.0)):
            offenders.append(f"{key} {offence}")
    if offenders:
        raise InvalidProblem("this sweep is not possible:\n" + join_offenders(offenders, 50))
    return [
        SweepTask.make(
            model,
            sizes,
            mesh,
            machine=machine,
            method=method,
            seed=seed,
            options=options,
            **limits,
        )
        for (model, sizes), mesh, machine, (method, options), seed in itertools.product(
            models, meshes, machines, methods, seeds
        )
    ]


def read_sweep(path: str | Path) -> dict[str, Any]:
    """Read a sweep from a TOML or JSON file, in the form that ``tasks_of`` takes.

    Raises:
        InvalidProblem: the file cannot be read.
    """
    try:
        text = Path(path).read_text()
        data = json.loads(text) if str(path).endswith(".json") else tomllib.loads(text)
    except OSError as error:
        raise InvalidProblem(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InvalidProblem(f"{path} is neither TOML nor JSON (.json): {error}") from None
    if not isinstance(data, dict):
        raise InvalidProblem(
            f"{path} holds a {type(data).__name__}; a sweep is a table of {', '.join(KEYS)}"
        )
    return data


def _models(entries: Sequence[Any], offenders: list[str]) -> list[tuple[str, dict[str, Any]]]:
    models = []
    for entry in entries:
        name, sizes = _model(entry, offenders)
        if not name:
            continue
        if ":" not in name:
            try:
                model_sizes = registry.sizes(name)
            except FrontendError as error:
                offenders.append(str(error))
                continue
            choices = ", ".join(model_sizes)
            offenders += [
                f"{name} has no size {key!r}{did_you_mean(key, model_sizes)}; sizes: {choices}"
                for key in sizes
                if key not in model_sizes
            ]
        columns = [value if isinstance(value, list) else [value] for value in sizes.values()]
        models += [
            (name, dict(zip(sizes, values, strict=True))) for values in itertools.product(*columns)
        ]
    return models


def _model(entry: Any, offenders: list[str]) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
        return entry["name"], {key: value for key, value in entry.items() if key != "name"}
    if not isinstance(entry, str):
        offenders.append(
            f'a model is a name, "name:size=value,..." or a table with a name, got {entry!r}'
        )
        return "", {}
    name, separator, text = entry.rpartition(":")
    if not separator or "=" not in text:
        return entry, {}
    sizes = {}
    for assignment in text.split(","):
        key, is_pair, value = assignment.partition("=")
        if not is_pair or not key:
            offenders.append(f"{entry}: expected size=value, got {assignment!r}")
            continue
        # Several values of one size are separated by "|": layers=2|4|8.
        values = [_typed(choice) for choice in value.split("|")]
        sizes[key] = values[0] if len(values) == 1 else values
    return name, sizes


def _typed(text: str) -> Any:
    if text.casefold() in ("true", "false"):
        return text.casefold() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _meshes(entries: Sequence[Any], offenders: list[str]) -> list[str]:
    meshes = []
    for entry in entries:
        try:
            meshes.append(str(make_mesh(entry)))
        except ToastError as error:
            offenders.append(f"mesh {entry}: {error}")
        except (TypeError, ValueError, AttributeError):
            offenders.append(f'a mesh is "4x2", "data=4,model=2" or a table of axes, got {entry!r}')
    return meshes


def _machines(entries: Sequence[Any], offenders: list[str]) -> list[str]:
    machines = []
    for entry in entries:
        try:
            find_machine(str(entry))
            machines.append(str(entry))
        except (ToastError, OSError) as error:
            offenders.append(str(error))
    return machines


def _methods(entries: Sequence[Any], offenders: list[str]) -> list[tuple[str, dict[str, Any]]]:
    methods = []
    for entry in entries:
        options = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
        name = options.pop("name", None)
        if name not in METHODS:
            offenders.append(no_method(name))
        else:
            methods.append((str(name), options))
    return methods


def _seeds(value: Any, offenders: list[str]) -> list[int]:
    try:
        if isinstance(value, str):
            seeds = [seed for span in value.split(",") for seed in _span(span)]
        else:
            seeds = [value] if isinstance(value, int) else list(value)
        if not 0 < len(seeds) <= _MOST_SEEDS or any(
            checks.whole_offence(seed, 0, checks.MOST_SEED) for seed in seeds
        ):
            raise ValueError
        return seeds
    except (TypeError, ValueError):
        offenders.append(
            f"seeds are whole numbers from 0 to {checks.MOST_SEED}, at most {_MOST_SEEDS} of them, "
            f'such as [0, 1], "0-4" or "0,3", got {value!r:.80}'
        )
        return []


def _span(text: str) -> range:
    first, separator, last = text.strip().partition("-")
    seeds = range(int(first), int(last if separator else first) + 1)
    if len(seeds) > _MOST_SEEDS:
        raise ValueError(text)
    return seeds


Finished = tuple[SweepTask, TaskRow]
