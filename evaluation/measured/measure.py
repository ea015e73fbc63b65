"""``python -m evaluation measured measure FOLDER OUT``: run shares on an attached GPU.

Several processes run one after the other, so that a crash costs few shares. In each, several
threads compile programs, which are then run one by one. OUT holds every measurement as soon as it
is made.

Times are the profiler's: ``kernels_s`` is the sum of kernels and copies of one step, ``step_s`` the
time from the start of the first to the end of the last. Every instruction has XLA's own time as
well, from the same executable.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import glob
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Row = dict[str, Any]
STEPS, WARMUP = 4, 2
DONATED_BYTES = 8e9  # beyond this only one step is measured, since each needs arrays of its own
POOL = 2**20  # number of random numbers, repeated to fill arrays


def main(arguments: list[str]) -> int:
    """Measure until the time is up."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation measured measure", description=__doc__
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--at-once", type=int, default=24, help="shares of one process")
    parser.add_argument("--threads", type=int, default=14)
    parser.add_argument(
        "--graphs",
        action="store_true",
        help="as users run it, with several kernels launched as one graph: the time of a step then "
        "holds what they hold, but the profiler names no instruction",
    )
    parser.add_argument("--texts", type=Path, help="a folder for what XLA made of the programs")
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    shares = [json.loads(line) for line in (args.folder / "shares.jsonl").read_text().splitlines()]
    if args.child:
        _measure(args, shares[slice(*args.child)])
        return 0
    end = time.monotonic() + args.seconds
    for start in range(0, len(shares), args.at_once):
        left = end - time.monotonic()
        if left < 10:
            print(f"time is up before share {start} of {len(shares)}", flush=True)
            break
        command = [sys.executable, "-m", "evaluation", "measured", "measure"]
        command += [str(args.folder), str(args.out)]
        command += ["--threads", str(args.threads), "--seconds", str(left)]
        command += ["--child", str(start), str(start + args.at_once)]
        command += ["--graphs"] * args.graphs
        command += ["--texts", str(args.texts)] if args.texts else []
        flags = os.environ.get("XLA_FLAGS", "")
        if not args.graphs:
            flags += " --xla_gpu_enable_command_buffer="
        started = time.monotonic()
        try:
            code = subprocess.run(
                command, timeout=left + 5, check=False, env={**os.environ, "XLA_FLAGS": flags}
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
        took_s = time.monotonic() - started
        print(f"shares {start} and on: {took_s:.0f} s, exit {code}", flush=True)
    return 0


def _measure(args: argparse.Namespace, shares: list[Row]) -> None:
    import jax

    from toast_lab.runtime import _jax_private, gpu_compiler

    jax.config.update("jax_enable_x64", True)
    device = jax.devices()[0]
    on = {"device": device.device_kind, "jax": jax.__version__, "graphs": args.graphs}
    flags = dict.fromkeys((gpu_compiler.TIMES_FLAG, *gpu_compiler.SCHEDULER_FLAGS), True)

    def compiled(share: Row) -> tuple[Any, float]:
        text = gzip.decompress((args.folder / share["file"]).read_bytes()).decode()
        started = time.monotonic()
        try:
            loaded = _jax_private.compile_module(text, [device], flags)
        except Exception:  # other versions have other tables or flags
            loaded = _jax_private.compile_module(text, [device])
        return loaded, time.monotonic() - started

    pool = concurrent.futures.ThreadPoolExecutor(args.threads)
    futures = [pool.submit(compiled, share) for share in shares]
    concurrent.futures.wait(futures)
    draw = _Draw()
    for share, future in zip(shares, futures, strict=True):
        row = {name: share[name] for name in ("program", "digest", "plan")} | on
        row["sharding_id"] = share.get("sharding_id", "")
        try:
            loaded, compile_s = future.result()
            if args.texts:
                hlo_source = _jax_private.optimised_hlo(loaded).encode()
                name = share["file"].replace(".mlir.", ".hlo.")
                (args.texts / name).write_bytes(gzip.compress(hlo_source))
            row |= {"compile_s": compile_s, **_run(share, loaded, device, draw)}
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        with args.out.open("a") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
        print(share["program"], share["plan"], row.get("kernels_s", row.get("error")), flush=True)


class Event(NamedTuple):
    """A kernel or copy that ran on the device."""

    instruction: str  #: name of the HLO instruction; "" if the profiler gives none
    start_ns: float
    length_ns: float


class _Draw:
    """Random arrays, as ``toast_lab.runtime.inputs`` draws them, from one pool."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.normal = random.standard_normal(POOL, np.float32)
        self.bits = random.integers(0, 2**31 - 1, POOL)

    def __call__(self, argument: Row) -> np.ndarray:
        from toast_lab.runtime.inputs import dtype_of

        dtype, shape = dtype_of(argument["element"]), tuple(argument["shape"])
        if dtype.kind == "b":
            pool = self.bits % 2 == 0
        elif dtype.kind == "u" and argument["bound"] is None:
            pool = self.bits * 2 + 1
        elif dtype.kind in "iu":
            pool = self.bits % (argument["bound"] or 2)
        else:
            scale = 1.0 if len(shape) < 2 else 1.0 / np.sqrt(max(shape[-2], 1))
            pool = np.abs(self.normal) + 0.8 if argument["positive"] else self.normal * scale
        return np.resize(pool.astype(dtype), shape)


def _run(share: Row, loaded: Any, device: Any, draw: _Draw) -> Row:
    import jax

    from toast_lab.runtime import _jax_private

    hosts = [draw(argument) for argument in share["arguments"]]
    donated = [argument["donated"] for argument in share["arguments"]]
    donated_bytes = sum(host.nbytes for host, gone in zip(hosts, donated, strict=True) if gone)
    kept = [
        None if gone else jax.device_put(host, device)
        for host, gone in zip(hosts, donated, strict=True)
    ]

    def put() -> list[Any]:
        given = [
            jax.device_put(host, device) if array is None else array
            for host, array in zip(hosts, kept, strict=True)
        ]
        jax.block_until_ready(given)
        return given

    def step(given: list[Any]) -> float:
        started = time.perf_counter()
        jax.block_until_ready(_jax_private.execute(loaded, given))
        return time.perf_counter() - started

    host_s = [step(put()) for _ in range(WARMUP)][-1]
    n_steps = STEPS if host_s < 1.0 and donated_bytes < DONATED_BYTES else 1
    ready = [put() for _ in range(n_steps)]
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder)
        for _ in range(n_steps):
            step(ready.pop())
        jax.profiler.stop_trace()
        events = _split(_events(folder), n_steps)
    return {
        "host_s": host_s,
        **_times(share, loaded, events),
        "memory": _jax_private.memory_stats(loaded),
    }


def _split(events: list[Event], n_steps: int) -> list[list[Event]]:
    """Split events into steps, which have equally many.

    Raises ValueError if the number of events is no multiple of ``n_steps``.
    """
    events = sorted(events, key=lambda event: event.start_ns)
    each, rest = divmod(len(events), n_steps)
    if rest:
        raise ValueError(f"{len(events)} kernels in {n_steps} steps")
    return [events[step * each : (step + 1) * each] for step in range(n_steps)]


def _events(folder: str) -> list[Event]:
    """Kernels and copies that ran on the device."""
    from jax.profiler import ProfileData

    (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
    found = []
    for plane in ProfileData.from_file(path).planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                name = str(dict(event.stats).get("hlo_op", ""))
                found.append(Event(name, event.start_ns, event.duration_ns))
    return found


def _times(share: Row, loaded: Any, events: list[list[Event]]) -> Row:
    """Seconds of a step and of its instructions, from the ``events`` of each step."""
    from toast_lab.compare.local_program import STAND_IN
    from toast_lab.runtime import _jax_private, gpu_times, hlo, hlo_text

    module = hlo_text.parse(_jax_private.optimised_hlo(loaded))
    rounds_by_op = {int(op): times for op, times in share["rounds"].items()}

    def rounds(instruction: Any) -> float | None:
        return rounds_by_op.get(hlo.op_of(instruction))

    measured_s: dict[str, float] = defaultdict(float)
    steps_s, sums_s = [], []
    for step in filter(None, events):
        last_ns = max(event.start_ns + event.length_ns for event in step)
        steps_s.append((last_ns - step[0].start_ns) / 1e9)
        sums_s.append(sum(event.length_ns for event in step) / 1e9)
        for event in step:
            measured_s[event.instruction] += event.length_ns / 1e9 / len(events)
    instructions, stand_in_s = [], 0.0
    for timed in gpu_times.timed(module, "sm_90", 1, rounds=rounds):
        spent_s = measured_s.get(timed.instruction.name, 0.0)
        if timed.op < 0 and STAND_IN in timed.instruction.attributes:
            stand_in_s += spent_s
        elif spent_s > 0.0:
            instructions.append([timed.kind, timed.op, timed.times, spent_s, timed.time_s])
    return {
        "step_s": statistics.median(steps_s) if steps_s else None,
        "kernels_s": statistics.median(sums_s) if sums_s else None,
        "n_kernels": sum(map(len, events)) / len(events),
        "stand_in_s": stand_in_s,
        "instructions": instructions,
    }
