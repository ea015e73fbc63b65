"""Load, analyse, search and execute a foreign model.

What the tests check and docs/foreign_models.md shows.

``python -m evaluation foreign_models [NAME ...]`` prints the table of what is installed.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import importlib.util
import time
from typing import NamedTuple

import toast_lab as tl
from evaluation import pages
from toast_lab.errors import ToastError

MESH = {"data": 2, "model": 4}
COLUMNS = (
    *("model", "package", "ops", "arguments", "names", "conflicts", "sets", "load s"),
    *("analysis s", "actions", "collectives", "inputs", "error", "ops without rule"),
)


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
    model = tl.load(f"evaluation.foreign_models.{name}:make")
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


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation foreign_models", description=__doc__
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}; all")
    names = parser.parse_args(arguments).names
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"there is no {', '.join(unknown)}; there are: {', '.join(MODELS)}")
    print("\n".join(pages.table(COLUMNS, ())))
    for name in names or MODELS:
        foreign = MODELS[name]
        if not installed(name):
            print(pages.line((foreign.what, f"{', '.join(foreign.packages)} not installed")))
            continue
        try:
            row = measure(name)
        except ToastError as error:
            print(pages.line((foreign.what, f"failed: {str(error)[:300]}")))
            continue
        versions = ", ".join(
            f"{p} {importlib.metadata.version(p).split('+')[0]}" for p in foreign.packages
        )
        missing = (
            ", ".join(f"{kind} x{count}" for kind, count in row.without_rule.items()) or "none"
        )
        cells = (
            *(foreign.what, versions, row.ops, row.arguments, row.names, row.conflicts, row.sets),
            *(f"{row.load_s:.1f}", f"{row.analysis_s:.3f}", len(row.actions), row.collectives),
            *(row.inputs, f"{row.error:.1e}", missing),
        )
        print(pages.line(cells), flush=True)
    return 0
