"""Load, analyse, search and execute a foreign model.

What the tests check and docs/foreign_models.md shows.

``python -m tests.foreign_models.measure [name ...]`` prints the table of what is installed.
"""

from __future__ import annotations

import collections
import importlib.metadata
import importlib.util
import sys
import time
from typing import NamedTuple

import toast_lab as tl
from toast_lab.errors import ToastError

MESH = {"data": 2, "model": 4}


class Foreign(NamedTuple):
    """A model of somebody else."""

    packages: tuple[str, ...]  #: distributions, with the one it is from first
    what: str
    library: str


MODELS = {
    "haiku_resnet": Foreign(("dm-haiku",), "`hk.nets.ResNet18`, SGD step", "haiku"),
    "flax_gpt2": Foreign(
        ("transformers", "flax"), "`FlaxGPT2LMHeadModel`, Adam step", "flax linen"
    ),
    "equimo_vit": Foreign(("equimo", "equinox"), "`VisionTransformer`, gradients", "equinox"),
    "torch_llama": Foreign(
        ("transformers", "torch", "torchax"), "`LlamaForCausalLM`, forward", "torch"
    ),
    "jraph_network": Foreign(("jraph", "dm-haiku"), "`GraphNetwork`, gradients", "haiku"),
}


class Row(NamedTuple):
    """What was found for one model."""

    name: str
    ops: int
    arguments: int
    names: int
    conflicts: int
    sets: int
    load_s: float
    analysis_s: float
    actions: tuple[str, ...]
    collectives: int
    inputs: str
    error: float
    without_rule: dict[str, int]
    notes: tuple[str, ...]


def installed(name: str) -> bool:
    """Whether every package that a model needs is here."""
    try:
        for package in MODELS[name].packages:
            importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return name != "flax_gpt2" or importlib.metadata.version("transformers").startswith("4.")


def measure(name: str, seconds: float = 5.0) -> Row:
    """The whole road, with a memory limit that no plan meets without sharding the parameters."""
    started = time.perf_counter()
    model = tl.load(f"tests.foreign_models.{name}:make")
    loaded = time.perf_counter()
    analysis = tl.analyse(model)
    analysed = time.perf_counter()
    whole = tl.Problem(analysis, mesh={"one": 1}, machine="tpu-v5e")
    problem = tl.Problem(
        analysis, mesh=MESH, machine="tpu-v5e", memory_limit_bytes=whole.baseline[1] / 4
    )
    result = tl.search(problem, method="mcts", seed=0, budget=tl.Budget(seconds=seconds))
    run = tl.run(model, result.plan, devices="cpu:8", repeats=1, warmup=0)
    program = model.program
    kinds = collections.Counter(program.kind[op] for op, _ in program.missing_rules)
    error = run.max_relative_error
    return Row(
        name,
        program.n_ops - program.n_arguments,
        program.n_arguments,
        program.n_factors,
        len(analysis.pairs),
        len(analysis.compatibility_sets),
        loaded - started,
        analysed - loaded,
        tuple(result.plan.actions),
        len(run.collectives),
        run.inputs,
        float("nan") if error is None else error,
        dict(kinds),
        model.notes,
    )


def main(names: list[str]) -> None:
    """Print the table."""
    print(
        "| model | package | ops | arguments | names | conflicts | sets | load s | analysis s | "
        "actions | collectives "
        "| inputs | error | ops without rule |"
    )
    print("|---|---|" + "---|" * 12)
    for name in names or MODELS:
        foreign = MODELS[name]
        if not installed(name):
            print(f"| {foreign.what} | {', '.join(foreign.packages)} not installed |" + " |" * 12)
            continue
        try:
            row = measure(name)
        except ToastError as error:
            print(f"| {foreign.what} | failed: {str(error)[:300]} |" + " |" * 12)
            continue
        versions = ", ".join(
            f"{p} {importlib.metadata.version(p).split('+')[0]}" for p in foreign.packages
        )
        missing = (
            ", ".join(f"{kind} x{count}" for kind, count in row.without_rule.items()) or "none"
        )
        print(
            f"| {foreign.what} | {versions} | {row.ops} | {row.arguments} | {row.names} | "
            f"{row.conflicts} | {row.sets} "
            f"| {row.load_s:.1f} | {row.analysis_s:.3f} | {len(row.actions)} | {row.collectives} "
            f"| {row.inputs} "
            f"| {row.error:.1e} | {missing} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
