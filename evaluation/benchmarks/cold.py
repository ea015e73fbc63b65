"""A first search on a machine: seconds until it has priced a plan, and CPU seconds of all kernels.

Each row runs in processes of its own with an empty folder for kernels; bytecode of libraries is
present, as after installation by pip. Wall seconds are those of an otherwise idle machine.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time

from toast_lab import isolate

FIRST_S, ALL_CPU_S = 15.0, 40.0  #: targets on two cores

SEARCH = """
import json, os, sys, time
began = float(sys.argv[1])
import toast_lab as tl
imported = time.time()
model = tl.load("transformer", layers=4)
problem = tl.Problem(tl.analyse(model), mesh={"data": 4, "model": 4}, machine="tpu-v5e")
ready = time.time()
times = []
seen = lambda news: times.extend([time.time() - began] * len(news))
result = tl.search(problem, seed=0, budget=tl.Budget(seconds=5), on_progress=seen)
print(json.dumps({"import_s": imported - began, "problem_s": ready - began, "first_s": times[0],\
 "second_s": times[1],
                  "wall_s": time.time() - began, "elapsed_s": result.elapsed_s,\
 "evaluations": result.evaluations}))
"""


def search(folder: str) -> dict[str, float]:
    """Run a first search, five lines of Python, in a fresh process; gives its times."""
    found = subprocess.run(
        [sys.executable, "-c", SEARCH, str(time.time())],
        env={**isolate.child_environment(), "NUMBA_CACHE_DIR": folder},
        capture_output=True,
        text=True,
        check=True,
    )
    row: dict[str, float] = json.loads(found.stdout)
    return row


def every_kernel(folder: str, threads: int) -> tuple[float, float]:
    """(wall seconds, CPU seconds) of compiling all kernels on ``threads`` cores."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "toast_lab.prepare"]
    if threads == 1 and sys.platform == "linux":
        command = ["taskset", "-c", "0", *command]
    subprocess.run(
        command,
        env={**isolate.child_environment(), "NUMBA_CACHE_DIR": folder},
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu_s


def run() -> list[str]:
    """Print the tables; gives the missed targets."""
    print(
        f"\nA first search on a machine ({isolate.n_cores()} cores), seconds since Python was "
        "started"
    )
    print(
        f"{'kernels':>10} {'import':>7} {'problem':>8} {'unsharded':>10} {'first plan':>11} "
        f"{'end':>6} "
        f"{'searching':>10} {'plans':>7}"
    )
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for kernels in ("none", "on disk"):
            row = search(folder)
            print(
                f"{kernels:>10} {row['import_s']:7.2f} {row['problem_s']:8.2f} "
                f"{row['first_s']:10.2f} "
                f"{row['second_s']:11.2f} {row['wall_s']:6.1f} {row['elapsed_s']:10.2f} "
                f"{row['evaluations']:7.0f}"
            )
            if kernels == "none" and row["second_s"] > FIRST_S:
                missed.append(
                    f"the first plan came after {row['second_s']:.1f} s (target {FIRST_S:g} s)"
                )
    print(f"\n{'all kernels':>12} {'wall s':>7} {'CPU s':>7}")
    for threads in sorted({1, isolate.n_cores()}):
        with tempfile.TemporaryDirectory() as folder:
            wall_s, cpu_s = every_kernel(folder, threads)
        print(f"{threads:>6} cores {wall_s:7.1f} {cpu_s:7.1f}")
        if threads == 1 and cpu_s > ALL_CPU_S:
            missed.append(f"all kernels took {cpu_s:.1f} s of CPU (target {ALL_CPU_S:g} s)")
    return missed
