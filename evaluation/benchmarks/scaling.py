"""How the time from StableHLO text to an action space grows with the program, stage by stage.

The program is the Adam training step of the built-in ``t2b`` at paper size, with 18 to 288 unrolled
layers. Tracing it is up to the user and not timed: the clock starts with the module's text in
memory. Each size is measured in a process of its own, one at a time, on one thread. CPU seconds are
given beside wall seconds, since other work on the machine disturbs only the latter; the targets
bound CPU seconds.

    python -m evaluation benchmarks scaling                  five sizes, with targets
    python -m evaluation benchmarks scaling --layers 2 4 8   others, without targets
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LAYERS = (18, 36, 72, 144, 288)
MESH = {"data": 4, "model": 4}

MAX_EXPONENT = 1.1  #: exponent of CPU seconds in the number of ops, fitted over all sizes
MAX_SECONDS_18_LAYERS = 2.0
MAX_SECONDS_100K_OPS = 40.0
MAX_BYTES_100K_OPS = 4e9

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}


def run(layers: Sequence[int] = LAYERS) -> list[str]:
    """Print the table; gives the missed targets."""
    print("\nFrom StableHLO text to the action space: t2b training step, CPU seconds")
    rows = []
    for n in layers:
        rows.append(measure(n))
        if n == layers[0]:
            stages = list(rows[0]["cpu_s"])
            print(
                f"{'layers':>6} {'ops':>7} {'text MB':>7} {'total':>7} {'wall':>7} "
                f"{'RSS MB':>7}  " + _cells(stages)
            )
        print(_line(rows[-1]), flush=True)
    if len(rows) < 2:
        return []
    totals = [total(row) for row in rows]
    growth = [_exponent(rows, [row["cpu_s"][stage] for row in rows]) for stage in rows[0]["cpu_s"]]
    print(
        f"{'exponent against ops':<22} {_exponent(rows, totals):>7.2f} {'':>15}  " + _cells(growth)
    )
    return _missed(rows) if tuple(layers) == LAYERS else []


def total(row: dict[str, Any]) -> float:
    """CPU seconds of all stages."""
    return float(sum(row["cpu_s"].values()))


def measure(layers: int) -> dict[str, Any]:
    """Trace ``layers`` layers in one child, and measure the analysis of the text in another."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "module.mlir")
        _child("trace", path, str(layers))
        return json.loads(_child("analyse", path))


def _child(*args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "evaluation.benchmarks.scaling", *args],
        env={**os.environ, **ONE_THREAD, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def _exponent(rows: list[dict[str, Any]], seconds: list[float]) -> float:
    """Slope of log seconds over log ops, by least squares."""
    ops = [row["ops"] for row in rows]
    return float(np.polyfit(np.log(ops), np.log(np.maximum(seconds, 1e-4)), 1)[0])


def _cells(values: Sequence[Any]) -> str:
    return " ".join(f"{v:>10}" if isinstance(v, str) else f"{v:>10.2f}" for v in values)


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['layers']:>6} {row['ops']:>7} {row['text_bytes'] / 1e6:>7.1f} {total(row):>7.2f} "
        f"{row['wall_s']:>7.2f} "
        f"{row['peak_bytes'] / 1e6:>7.0f}  {_cells(list(row['cpu_s'].values()))}"
    )


def _missed(rows: list[dict[str, Any]]) -> list[str]:
    missed = []
    totals = [total(row) for row in rows]
    exponent = _exponent(rows, totals)
    if exponent > MAX_EXPONENT:
        missed.append(
            f"the analysis grows with ops to the power {exponent:.2f} (target {MAX_EXPONENT})"
        )
    if totals[0] > MAX_SECONDS_18_LAYERS:
        missed.append(
            f"{rows[0]['layers']} layers take {totals[0]:.2f} s of one core (target "
            f"{MAX_SECONDS_18_LAYERS})"
        )
    ops = [row["ops"] for row in rows]
    for quantity, limit, values, unit in (
        ("CPU seconds", MAX_SECONDS_100K_OPS, totals, 1.0),
        ("peak memory in GB", MAX_BYTES_100K_OPS, [row["peak_bytes"] for row in rows], 1e9),
    ):
        at_100k = float(np.interp(100_000, ops, values)) / unit
        print(
            f"{quantity} at 100,000 ops, between the sizes measured: {at_100k:.2f} (target "
            f"{limit / unit:g})"
        )
        if at_100k > limit / unit:
            missed.append(f"100,000 ops: {at_100k:.2f} {quantity} (target {limit / unit:g})")
    return missed


# -- in the child ----------------------------------------------------------------------------------


def _trace(path: str, layers: int) -> None:
    from toast_lab.frontends.tracing import trace
    from toast_lab.models import registry

    example = registry.make("t2b", layers=layers, mode="train")
    Path(path).write_text(trace(example.fn, example.args, example.donate_argnums).text)


class Clock:
    """Adds up the CPU seconds of stages.

    The time of a stage that runs inside another counts for the inner one only.
    """

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._inside: list[float] = []

    def around(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``work`` so that its own seconds are counted as stage ``name``."""
        self.spent.setdefault(name, 0.0)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            began = time.process_time()
            try:
                return work(*args, **kwargs)
            finally:
                took = time.process_time() - began
                self.spent[name] += took - self._inside.pop()
                if self._inside:
                    self._inside[-1] += took

        return timed


def _analyse(path: str) -> dict[str, Any]:
    text = Path(path).read_text()
    from toast_lab import _jaxlib
    from toast_lab.conflicts import analysis, compatibility, dimension_graph, repeated
    from toast_lab.ir import canonical, read
    from toast_lab.ir.model import Model
    from toast_lab.sharding import space
    from toast_lab.sharding.mesh import make_mesh

    _compile_kernels()
    clock = Clock()
    stages = (
        ("parse", _jaxlib, "parse_module"),
        ("canonical", canonical, "canonicalise"),
        ("rules", _jaxlib, "populate_rules"),
        ("program", read, "read_program"),
        ("names", analysis, "name_dims"),
        ("colours", dimension_graph, "colour_names"),
        ("conflicts", dimension_graph, "find_conflicts"),
        ("boxes", compatibility, "compatibility_sets"),
        ("layers", repeated, "tie_repeated"),
        ("arguments", repeated, "argument_groups"),
        ("groups", repeated, "colour_groups"),
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, module, function in stages:
        setattr(module, function, clock.around(name, getattr(module, function)))
    wall = time.perf_counter()
    parsed = clock.around("text", read.parse)(text)
    analysed = clock.around("texts", analysis.analyse)(Model(parsed.program.name, parsed.program))
    action_space = clock.around("space", space.build_space)(analysed, make_mesh(MESH))
    wall = time.perf_counter() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    order = ("parse", "canonical", "text", "rules", "program")
    return {
        "layers": sum(1 for name in parsed.program.value_name if name.endswith("['wq']")) // 3,
        "ops": parsed.program.n_ops - parsed.program.n_arguments,
        "text_bytes": len(text),
        "wall_s": wall,
        "before_bytes": before * 1024,
        "peak_bytes": peak * 1024,
        "groups": len(analysed.groups),
        "conflicts": len(analysed.pairs),
        "moves": action_space.n_moves,
        "cpu_s": {
            name: clock.spent[name]
            for name in (*order, *(n for n in clock.spent if n not in order))
        },
    }


def _compile_kernels() -> None:
    """Compile or load the numba kernels before the clock starts, as the package's warm-up does."""
    from toast_lab.conflicts import analysis
    from toast_lab.ir import read
    from toast_lab.ir.model import Model
    from toast_lab.sharding import space
    from toast_lab.sharding.mesh import make_mesh

    tiny = "func.func @main(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {\n" + (
        "%0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>\n"
        "%1 = stablehlo.add %a, %0 : tensor<4x4xf32>\n"
        "%2 = stablehlo.tanh %1 : tensor<4x4xf32>\n"
        "return %2 : tensor<4x4xf32>}"
    )
    program = read.parse(tiny).program
    space.build_space(analysis.analyse(Model(program.name, program)), make_mesh(MESH))


if __name__ == "__main__":  # a child
    if sys.argv[1] == "trace":
        _trace(sys.argv[2], int(sys.argv[3]))
    else:
        print(json.dumps(_analyse(sys.argv[2])))
