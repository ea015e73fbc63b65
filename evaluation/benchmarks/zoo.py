"""Time and memory of loading and analysing the paper's models, without allocating any weight.

The sizes are the paper's. The target is that resident memory stays below a tenth of the arguments'
size.
"""

from __future__ import annotations

import resource
import time
from typing import Any

import toast_lab as tl

MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("t2b", {"mode": "train"}),
    ("t7b", {"mode": "train"}),
    ("itx", {"mode": "decode"}),
    ("itx", {"mode": "prefill"}),
    ("gns", {"mode": "train"}),
    ("unet", {"mode": "train"}),
)


def run() -> list[str]:
    """Print the table; gives the missed targets."""
    missed = []
    print(
        "\nThe paper's models at the paper's sizes, from the JAX function to the program and "
        "from there to the actions"
    )
    print(
        f"{'model':<6} {'mode':<8} {'ops':>6} {'arguments GB':>12} {'load s':>7} "
        f"{'analyse s':>9} {'RSS GB':>7}"
    )
    for name, options in MODELS:
        began = time.perf_counter()
        model = tl.load(name, **options)
        loaded = time.perf_counter()
        tl.analyse(model)
        analysed = time.perf_counter()
        program = model.program
        arguments = sum(program.nbytes(v) for v in range(program.n_arguments))
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(
            f"{name:<6} {options['mode']:<8} {program.n_ops:>6} {arguments / 1e9:>12.1f} "
            f"{loaded - began:>7.1f} "
            f"{analysed - loaded:>9.2f} {resident / 1e9:>7.2f}",
            flush=True,
        )
        if resident > 0.1 * arguments:
            missed.append(
                f"{name}: {resident / 1e9:.2f} GB resident, arguments are {arguments / 1e9:.1f} GB"
            )
    return missed
