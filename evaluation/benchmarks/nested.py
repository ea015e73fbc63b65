"""How the time to read a program grows with nested loops.

It is measured by depth, by carried values, and for gradients of adaptive ODE solvers.

    python -m evaluation benchmarks nested

Tracing is up to the user and not timed. The targets bound CPU seconds per op, which nesting may not
raise.
"""

from __future__ import annotations

import functools
import time
from typing import Any

MAX_RATIO = 3.0  #: of CPU seconds per op, relative to a single loop
MAX_SECONDS_DEPTH_12 = 1.0
LOOPS = ((1, 24), (2, 24), (4, 24), (12, 24), (12, 96), (100, 8))  # (depth, carried values)
SOLVERS = (1, 2, 3, 4)  # numbers of nested bounded loops around a step


def run() -> list[str]:
    """Print the table; gives the missed targets."""
    import os

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    from evaluation.benchmarks import nested_programs
    from toast_lab.frontends.tracing import trace

    print("\nReading nested loops, CPU seconds")
    print(f"{'program':<40} {'ops':>7} {'seconds':>8} {'us an op':>9}")
    _read(nested_programs.nested_loops(2, 4))  # imports modules and warms up
    missed, alone = [], 0.0
    for depth, carried in LOOPS:
        ops, seconds = _row(
            f"loops: depth {depth}, {carried} values", nested_programs.nested_loops(depth, carried)
        )
        alone = alone or seconds / ops
        if seconds / ops > MAX_RATIO * alone:
            missed.append(
                f"depth {depth}: {seconds / ops / alone:.1f} times the seconds for "
                "each op of one loop alone"
            )
        if depth == 12 and carried == 24 and seconds > MAX_SECONDS_DEPTH_12:
            missed.append(f"depth 12 takes {seconds:.2f} s (target {MAX_SECONDS_DEPTH_12})")

    def leaf(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, "float32")

    for depth in SOLVERS:
        args: tuple[Any, ...] = ((leaf(8, 16), leaf(16, 8)), leaf(4, 8), leaf(5), leaf(4, 4, 8))
        text = trace(functools.partial(nested_programs.fit, depth=depth), args, ()).text
        ops, seconds = _row(f"gradient of an adaptive solver, depth {depth + 1}", text)
        if seconds / ops > MAX_RATIO * alone:
            missed.append(
                f"solver of depth {depth + 1}: {seconds / ops / alone:.1f} times the "
                "seconds for each op"
            )
    return missed


def _read(text: str) -> int:
    from toast_lab.ir import read

    program = read.parse(text).program
    return program.n_ops - program.n_arguments


def _row(name: str, text: str) -> tuple[int, float]:
    best, ops = float("inf"), 0
    for _ in range(3):
        began = time.process_time()
        ops = _read(text)
        best = min(best, time.process_time() - began)
    print(f"{name:<40} {ops:>7} {best:>8.3f} {best / ops * 1e6:>9.0f}", flush=True)
    return ops, best
