"""``Choice``: the searches behind each table and figure of the paper's section 5.

The paper gives neither batch sizes nor meshes. Its hardware is a "set of" A100, P100 and TPU v3.
All three get one mesh of 32 devices, 8 (data) by 4 (model): on TPU v3 a slice of 4x4 chips with two
cores each, on GPUs four hosts of 8. Batches are chosen so that memory is the constraint: the
unsharded program fits on no device, and some plan fits on each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from toast_lab.errors import InvalidProblem, ToastError, did_you_mean, join_offenders
from toast_lab.machines.catalogue import machine as find_machine
from toast_lab.search.methods import METHODS
from toast_lab.sweep.task import SweepTask

OURS = "mcts"
#: the paper's methods and one more, as far as they are registered
METHODS_COMPARED = ("mcts", "manual", "automap", "alpa", "beam")
MACHINES = ("a100", "p100", "tpu-v3")
MESH = "data=8,model=4"
SECONDS = 20.0
SEEDS = 20  #: for each small program whose optimum is known


class Case(NamedTuple):
    """A model with the sizes at which it is evaluated."""

    name: str  #: as the paper calls it
    model: str
    sizes: Mapping[str, Any]
    quick: Mapping[str, Any]  #: small sizes for trying out the command


class Scale(NamedTuple):
    """One point of a scaling figure."""

    name: str
    sizes: Mapping[str, Any]
    mesh: str
    x: float  #: position on the horizontal axis


class Cell(NamedTuple):
    """A task, and its place in the evaluation."""

    part: str
    case: str
    x: float
    task: SweepTask


CASES = (
    Case(
        "GNS",
        model="gns",
        sizes={"edges": 65536},
        quick={"steps": 2, "nodes": 64, "edges": 256, "latent": 32, "hidden": 16, "features": 8},
    ),
    Case(
        "UNet",
        model="unet",
        sizes={},
        quick={
            "channels": 32,
            "multipliers": [1, 2],
            "blocks": 1,
            "heads": 2,
            "groups": 8,
            "batch": 8,
            "image": 16,
        },
    ),
    Case(
        "ITX",
        model="itx",
        sizes={"batch": 128},
        quick={
            "layers": 1,
            "d_model": 32,
            "hidden": 64,
            "heads": 4,
            "key_size": 16,
            "vocab": 64,
            "batch": 8,
            "prompt": 16,
            "sequence": 16,
        },
    ),
    Case(
        "T2B 16k",
        model="t2b",
        sizes={"sequence": 16384, "batch": 8, "remat": True},
        quick={
            "layers": 1,
            "d_model": 32,
            "hidden": 64,
            "heads": 4,
            "key_size": 8,
            "vocab": 128,
            "batch": 8,
            "sequence": 64,
            "remat": True,
        },
    ),
    Case(
        "T7B 2k",
        model="t7b",
        sizes={"sequence": 2048, "batch": 32, "remat": True},
        quick={
            "layers": 1,
            "d_model": 32,
            "hidden": 64,
            "heads": 4,
            "kv_heads": 4,
            "key_size": 8,
            "vocab": 128,
            "batch": 8,
            "sequence": 32,
            "remat": True,
        },
    ),
)

#: Batch x Seq x Model up to the paper's 2x32x2 at 32k; each step doubles positions and devices of
#: "seq" together, so every seq shard has 1024 positions. Batch 8: 4 examples per data shard.
SCALING = tuple(
    Scale(
        f"2x{size}x2, {size}k",
        {"sequence": 1024 * size, "batch": 8, "remat": True},
        f"data=2,seq={size},model=2",
        4 * size,
    )
    for size in (2, 4, 8, 16, 32)
)
SCALING_MACHINE = "tpu-v3"

#: Search time against depth: the training step of T2B as in the benchmarks of the analysis, on 4x4.
DEPTHS = tuple(
    Scale(f"{size} layers", {"layers": size, "sequence": 2048, "batch": 16}, "data=4,model=4", size)
    for size in (18, 36, 72, 144, 288)
)
#: Search time against devices, on meshes of one to four axes.
DEVICES = tuple(
    Scale(mesh, {"sequence": 4096, "batch": 256, "remat": True}, mesh, size)
    for size, mesh in (
        (4, "a=4"),
        (16, "a=4,b=4"),
        (64, "a=4,b=4,c=4"),
        (256, "a=8,b=8,c=4"),
        (1024, "a=8,b=8,c=4,d=4"),
        (4096, "a=8,b=8,c=8,d=8"),
    )
)
LARGE_MACHINE = "tpu-v4"  # a torus of 4096 chips in one pod
#: "depth" and "devices" time the tree search over colour actions alone, as in the paper, which ends
#: by itself; refinement and integer programs use all the time that they are given.
PAPER_ONLY = {"refine": 0}

#: The problem of the target of 10 seconds on 4x4.
FOUR_BY_FOUR = Scale(
    "T2B on 4x4", {"sequence": 2048, "batch": 16, "remat": True}, "data=4,model=4", 16
)
FOUR_BY_FOUR_MACHINE = "tpu-v5e"

#: Programs small enough to prove their optimum: name, model, sizes, mesh.
SMALL_PROGRAMS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("mlp", "mlp", {}, "2x2"),
    ("attention", "attention", {}, "2x2"),
    (
        "1-layer block",
        "transformer",
        {
            "layers": 1,
            "d_model": 64,
            "hidden": 128,
            "heads": 4,
            "key_size": 16,
            "vocab": 256,
            "batch": 8,
            "sequence": 32,
            "mode": "forward",
        },
        "2x2",
    ),
)
SMALL_MACHINE = "tpu-v5e"

PARTS = ("models", "scaling", "goals", "depth", "devices")
#: AutoMap is given longer on the two models on which the paper found it 25 times slower than TOAST:
#: otherwise the budget could not show such a factor.
BUDGET_FACTORS = {("automap", "gns"): 3.0, ("automap", "unet"): 3.0}


class Choice(NamedTuple):
    """The part of the evaluation that is run."""

    parts: tuple[str, ...] = PARTS
    cases: tuple[Case, ...] = CASES
    machines: tuple[str, ...] = MACHINES
    methods: tuple[str, ...] = ()
    seconds: float = SECONDS
    quick: bool = False
    seed: int = 0

    @classmethod
    def make(
        cls,
        parts: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        machines: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        seconds: float | None = None,
        quick: bool = False,
    ) -> Choice:
        """A choice by names; an argument that is not given stands for all of its kind.

        Raises:
            InvalidProblem: listing every unknown part, model, machine and method.
        """
        by_model = {case.model: case for case in CASES}
        offenders = [
            _unknown(kind, name, known_names)
            for kind, names, known_names in (
                ("part", parts, PARTS),
                ("model of the evaluation", models, by_model),
                ("method", methods, METHODS),
            )
            for name in names or ()
            if name not in known_names
        ]
        for name in machines or ():
            try:
                find_machine(name)
            except ToastError as error:
                offenders.append(str(error))
        if offenders:
            raise InvalidProblem("paper:\n" + join_offenders(offenders, 50))
        default_seconds = 2.0 if quick else SECONDS
        chosen_methods = methods or [method for method in METHODS_COMPARED if method in METHODS]
        return cls(
            parts=tuple(dict.fromkeys(parts or PARTS)),
            cases=tuple(by_model[model] for model in dict.fromkeys(models or by_model)),
            machines=tuple(dict.fromkeys(machines or MACHINES)),
            methods=tuple(dict.fromkeys(chosen_methods)),
            seconds=seconds or default_seconds,
            quick=quick,
        )

    def cells(self) -> list[Cell]:
        """Every search of the chosen parts, grouped by model."""
        makers: dict[str, Callable[[], Iterator[Cell]]] = {
            "models": self._models,
            "scaling": self._scaling,
            "goals": self._goals,
            "depth": partial(self._growth, "depth", DEPTHS),
            "devices": partial(self._growth, "devices", DEVICES),
        }
        return [cell for part in PARTS if part in self.parts for cell in makers[part]()]

    def _models(self) -> Iterator[Cell]:
        for case, machine, method in itertools.product(self.cases, self.machines, self.methods):
            scale = Scale(case.name, case.quick if self.quick else case.sizes, MESH, x=0.0)
            seconds = self.seconds * BUDGET_FACTORS.get((method, case.model), 1.0)
            yield self._cell("models", scale, case.model, machine, method=method, seconds=seconds)

    def _scaling(self) -> Iterator[Cell]:
        for scale, method in itertools.product(self._t2b(SCALING), self.methods):
            yield self._cell("scaling", scale, "t2b", SCALING_MACHINE, method=method)

    def _goals(self) -> Iterator[Cell]:
        for scale, method in itertools.product(self._t2b([FOUR_BY_FOUR]), self.methods):
            yield self._cell("goals", scale, "t2b", FOUR_BY_FOUR_MACHINE, method=method)
        for name, model, sizes, mesh in SMALL_PROGRAMS:
            small_cell = partial(self._cell, "goals", Scale(name, sizes, mesh, x=0.0), model)
            yield small_cell(SMALL_MACHINE, "exhaustive", seconds=120.0)
            for seed in range(2 if self.quick else SEEDS):
                yield small_cell(SMALL_MACHINE, OURS, seed=seed)

    def _growth(self, part: str, scales: Sequence[Scale]) -> Iterator[Cell]:
        # Three times as long, so that the search ends by itself and not by its budget
        limits = {"seconds": 3 * self.seconds, "options": PAPER_ONLY}
        for scale in self._t2b(scales):
            yield self._cell(part, scale, "t2b", LARGE_MACHINE, method=OURS, **limits)

    def _t2b(self, scales: Sequence[Scale]) -> Iterator[Scale]:
        if not self.quick:
            yield from scales
            return
        quick_sizes = next(case.quick for case in CASES if case.model == "t2b")
        for scale in scales[:2]:
            depth = {"layers": int(scale.x) // 9} if "layers" in scale.sizes else {}
            yield scale._replace(sizes={**quick_sizes, "sequence": 64, **depth})

    def _cell(
        self, part: str, scale: Scale, model: str, machine: str, method: str, **budget: Any
    ) -> Cell:
        """A search; ``budget`` overrides the choice's seed and seconds, and may have options."""
        task = SweepTask.make(
            model,
            scale.sizes,
            scale.mesh,
            machine=machine,
            method=method,
            **{"seed": self.seed, "seconds": self.seconds, **budget},
        )
        return Cell(part, scale.name, scale.x, task)


def _unknown(kind: str, name: str, choices: Iterable[str]) -> str:
    names = list(choices)
    return f"no {kind} is called {name!r}{did_you_mean(name, names)}; there are: {', '.join(names)}"
