"""``python -m evaluation NAME [arguments]``: run one of the evaluations, or list them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from toast_lab.errors import ToastError, did_you_mean


class Part(NamedTuple):
    """One of the evaluations."""

    module: str  #: with ``main(arguments)``, which gives an exit status
    summary: str


PARTS = {
    "ablation": Part("evaluation.ablation.command", "what each rule of the price is good for"),
    "accuracy": Part("evaluation.accuracy.command", "prices against the TPU compiler, and links"),
    "benchmarks": Part("evaluation.benchmarks.command", "seconds and bytes, and the explorer"),
    "certification": Part(
        "evaluation.certification.command", "rules, plans and collectives checked by execution"
    ),
    "corpus": Part("evaluation.corpus.command", "prices and plans against compilers and rivals"),
    "foreign_models": Part("evaluation.foreign_models.command", "models of other people, sharded"),
    "gaps": Part("evaluation.paper.gaps", "how far the paper's plans can be from the best"),
    "measured": Part("evaluation.measured.command", "prices and XLA's times against a real GPU"),
    "paper": Part("evaluation.paper.command", "the paper's section 5, rerun"),
    "recomputation": Part(
        "evaluation.recomputation.command", "what layers keep, by price and by compilers"
    ),
    "which_mesh": Part(
        "evaluation.which_mesh.command", "advice on slices and meshes, confirmed by compilers"
    ),
    "written": Part("evaluation.written.command", "plans that people can write against whole ones"),
}


def main(arguments: Sequence[str]) -> int:
    """Run the evaluation that is named first with the other arguments; gives an exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("python -m evaluation NAME [arguments]; NAME --help lists the arguments.\n")
        print("\n".join(f"  {name:<15} {part.summary}" for name, part in PARTS.items()))
        return 0
    name, *rest = arguments
    if name not in PARTS:
        hint = did_you_mean(name, PARTS)
        print(
            f"evaluation: there is no {name!r}{hint}; there are: {', '.join(PARTS)}",
            file=sys.stderr,
        )
        return 2
    try:
        return int(importlib.import_module(PARTS[name].module).main(rest))
    except ToastError as error:
        print(f"evaluation {name}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
