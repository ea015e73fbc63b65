"""The programs of the corpus by name and family, and which families are held out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from evaluation.compiled_rows import program_digest
from evaluation.corpus import (
    further_programs,
    later_programs,
    own_programs,
    package_models,
    package_sciences,
)
from evaluation.corpus.program import Program
from evaluation.corpus.targets import Target
from toast_lab.conflicts.analysis import Analysis, analyse
from toast_lab.cost.problem import Problem
from toast_lab.ir.model import Model

#: Held-out families: no rule is read off them, nothing is fitted; figures show them separately.
HELD_OUT = (
    "Fourier",
    "U-Net",
    "tree search",
    "probabilistic",
    "contrastive",
    "reinforcement learning",
    "molecules",
    "proteins",
)
#: Programs of other families that were first judged after the rules of today were written.
JUDGED_LATE = (
    "llama_decode",
    "haiku_gru",
    "orthogonal_iteration",
    "latent_attention",
    "optimal_transport",
    "video",
    "whisper_encoder",
    "neural_ode",
    "moe_sorted",
    "gemma_decode",
    "dinov2",
    "wav2vec2",
    "mobile_net",
    "dilated_network",
    "muon",
    "least_squares",
    "neural_sde",
    "augment",
    *(program.name for program in later_programs.PROGRAMS),
    "triangle_update",
    "blockwise_attention",
    "latent_reader",
)
PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        *own_programs.PROGRAMS,
        *later_programs.PROGRAMS,
        *further_programs.PROGRAMS,
        *package_models.PROGRAMS,
        *package_sciences.PROGRAMS,
    )
}


def families() -> dict[str, list[Program]]:
    """The programs of each family."""
    by_family: dict[str, list[Program]] = {}
    for program in PROGRAMS.values():
        by_family.setdefault(program.family, []).append(program)
    return by_family


def traced(name: str) -> tuple[Model, Analysis, str] | None:
    """A program with its analysis and digest; None, with a message, if tracing fails."""
    try:
        model = PROGRAMS[name].make()
        return model, analyse(model), program_digest(model)
    except Exception as error:  # an error of one package must not stop the others
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return None


def each_problem(
    names: Iterable[str], targets: Sequence[Target]
) -> Iterator[tuple[str, Target, Problem, str]]:
    """Each program that traces on each target; gives (name, target, problem, digest).

    Problem and digest are of the program that JAX lowers for the target's platform.
    """
    for name in names:
        found = traced(name)
        if found is None:
            continue
        for target in targets:
            problem = Problem(found[1], target.mesh, target.machine)
            yield name, target, problem, program_digest(problem.analysis.model)
