"""The micro-benchmarks of a calibration, in the child process; ``measure`` is the one entry point.

All devices work at once, as in a real step: virtual devices share the cores of their host, and
their speed alone says nothing.  Every measurement is a loop of r rounds inside one compiled
program, and its time is (time of r rounds - time of one round) / (r - 1): what starting a program
costs is then gone, and r is chosen so that the clock can be trusted.  Each point is reported as
soon as it is there; a run that is cut short keeps them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.runtime import devices as dev
from toast_lab.runtime.child import Progress

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64"}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
_WORTH_S = 0.03  #: a measurement lasts at least this long, or takes _MOST_ROUNDS
_MOST_ROUNDS = 256
_SLOWEST_S = 1.0  #: no larger sizes once a single round takes this long
_REPEATS = 3


class Point(NamedTuple):
    """One measurement; times are medians of repeats."""

    what: str  #: "dot", "memory", "overhead", "overlap" or a collective
    dtype: str
    devices: int  #: that took part; of a collective, in each of the groups that worked side by side
    #: dot: operands and result; memory: read and written; collective: its larger side, on one
    #: device
    size_bytes: float
    flops: float
    time_s: float  #: one round; of "overlap" the share hidden instead, 0 to 1


class Found(NamedTuple):
    """The devices that a child measures; reported first."""

    platform: str
    kind: str
    n_devices: int
    memory_bytes: float  #: of one device; of a virtual one its share of the host
    versions: dict[str, str]


class Skipped(NamedTuple):
    """A measurement that the devices refused."""

    what: str
    why: str


def measure(platform: str, count: int | None, time_limit_s: float, quick: bool = False) -> bool:
    """Measure ``count`` devices, reporting Found, Point, Skipped and Progress.

    ``count`` None: all that are attached.

    Args:
        platform: "cpu", "gpu" or "tpu".
        count: number of devices.
        time_limit_s: no new measurement is begun after this.
        quick: few and small sizes, for tests.

    Returns:
        False if time ran out before the last measurement.

    Raises:
        InvalidProblem: too few devices are attached.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    deadline = time.monotonic() + time_limit_s
    devices = dev.attached(dev.Devices(platform, count or 1))
    if count is None:
        devices = list(jax.local_devices(backend=platform))
    isolate.report(_found(platform, devices))
    plan = _plan(len(devices), platform, quick)
    last_round_s: dict[tuple[str, str, int], float] = {}  # series -> time of its last round
    for number, (series, label, start) in enumerate(plan):
        isolate.report(Progress(label, number / len(plan)))
        if time.monotonic() > deadline:
            return False
        if last_round_s.get(series, 0.0) > _SLOWEST_S:
            continue
        try:
            for point in start(devices):
                last_round_s[series] = point.time_s if point.what != "overlap" else 0.0
                isolate.report(point)
        except Exception as error:  # one type or size that a device refuses must not end the rest
            last_round_s[series] = float("inf")
            isolate.report(
                Skipped(label, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
            )
    return True


_Start = Callable[[list[Any]], Iterator[Point]]


def _plan(n: int, platform: str, quick: bool) -> list[tuple[tuple[str, str, int], str, _Start]]:
    """What to measure, the most needed first: (series, label, start)."""
    host = platform == "cpu"
    sides = [32, 64] if quick else [64, 128, 256, 512, 1024, *([] if host else [2048, 4096, 8192])]
    traffic = [2.0**14, 2.0**18] if quick else [2.0**k for k in range(14, 27 if host else 31, 2)]
    sizes = [2.0**10, 2.0**16] if quick else [2.0**k for k in range(10, 25 if host else 29, 2)]
    plan: list[tuple[tuple[str, str, int], str, _Start]] = [
        (("overhead", "", 1), "start of an op", _overhead)
    ]

    def dots(dtype: str) -> None:
        for side in sides:
            label = f"dot {dtype} {side}x{side}"
            plan.append((("dot", dtype, n), label, lambda d, s=side: _dot(d, dtype, s)))  # type: ignore[misc]

    def collectives(over: int) -> None:
        for kind in COLLECTIVES:
            for size in sizes:
                label = f"{kind} over {over}, {size / 1024:g} KiB"
                plan.append(
                    ((kind, "", over), label, lambda d, k=kind, s=size: _collective(d, over, k, s))  # type: ignore[misc]
                )

    dots("f32")
    for size in traffic:
        plan.append(
            (("memory", "", n), f"memory {size / 1024:g} KiB", lambda d, s=size: _memory(d, s))  # type: ignore[misc]
        )
    if n > 1:
        collectives(n)
    dots("bf16")
    overs = [
        o for o in (2, 4, 8, 16, 32, 64, 128) if o < n and n % o == 0 and not (quick and o > 2)
    ]
    for over in overs:
        collectives(over)
    if n > 1:
        for share in (0.25, 1.0) if quick else (0.25, 0.5, 1.0, 2.0, 4.0):
            label = f"overlap, {share:g} as much compute"
            plan.append((("overlap", "", n), label, lambda d, s=share: _overlap(d, s, quick)))  # type: ignore[misc]
    if not quick:
        dots("f16")
        dots("f64")
    return plan


def _found(platform: str, found: list[Any]) -> Found:
    import importlib.metadata

    if platform == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / len(found)
    else:
        memory = float((found[0].memory_stats() or {}).get("bytes_limit", 0))
    versions = {package: importlib.metadata.version(package) for package in ("jax", "jaxlib")}
    return Found(platform, found[0].device_kind, len(found), memory, versions)


# -- timing ----------------------------------------------------------------------------------------


def _per_round_s(build: Callable[[int], Callable[[], Any]]) -> float:
    """Seconds of one round; ``build(r)`` gives a call that runs r rounds, compiled and warm."""
    once = _best_s(build(1), 1)
    rounds = int(min(_MOST_ROUNDS, max(3, _WORTH_S / once)))
    looped = build(rounds)
    spent = _best_s(looped, _REPEATS)
    while spent < _WORTH_S and rounds < _MOST_ROUNDS * 16:  # starting it was most of that one round
        rounds = int(min(_MOST_ROUNDS * 16, rounds * min(16.0, 2 * _WORTH_S / spent)))
        looped = build(rounds)
        spent = _best_s(looped, _REPEATS)
    single = _best_s(build(1), _REPEATS)
    return max(spent - single, 0.02 * spent) / (rounds - 1)


def _best_s(call: Callable[[], Any], repeats: int) -> float:
    import jax

    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _looped(
    devices: list[Any], step: Callable[[Any, Any], Any], arrays: list[Any], group: int | None = None
) -> Callable[[int], Any]:
    """A build function for ``_per_round_s`` that runs ``step(i, carry)`` on every device.

    Arrays are cut along their first dim.

    Mesh axis "d" has ``group`` devices (all by default), and as many groups work side by side as
    there are.

    The number of rounds is a constant of the program: a GPU would otherwise ask the host after each
    one.
    """
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.sharding.Mesh(np.asarray(devices).reshape(-1, group or len(devices)), ("group", "d"))
    split = PartitionSpec(("group", "d"))
    placed = [jax.device_put(array, NamedSharding(mesh, split)) for array in arrays]

    def build(rounds: int) -> Callable[[], Any]:
        def body(*locals_: Any) -> Any:
            return jax.lax.fori_loop(0, rounds, step, tuple(locals_))

        mapped = jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(split,) * len(placed),
            out_specs=(split,) * len(placed),
            check_vma=False,
        )
        compiled = jax.jit(mapped).lower(*placed).compile()
        return lambda: compiled(*placed)

    return build


def _normal(shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> Any:
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    return jnp.asarray(rng.standard_normal(shape, np.float32) * scale, dtype)


# -- what is measured ------------------------------------------------------------------------------


def _overhead(devices: list[Any]) -> Iterator[Point]:
    """Tiny dots one after the other.

    Each is an op of its own, and none takes time for its numbers.
    """
    n_devices, length = len(devices), 64

    def step(_: Any, carry: Any) -> Any:
        value, weights = carry
        for _repeat in range(length):
            value = value @ weights
        return value, weights

    arrays = [_normal((n_devices * 8, 8), "float32"), _normal((n_devices * 8, 8), "float32", 0.1)]
    yield Point(
        "overhead",
        "f32",
        n_devices,
        0.0,
        2.0 * 8**3,
        _per_round_s(_looped(devices, step, arrays)) / length,
    )


def _dot(devices: list[Any], dtype: str, side: int) -> Iterator[Point]:
    n_devices, name = len(devices), DTYPES[dtype]
    arrays = [
        _normal((n_devices * side, side), name),
        _normal((n_devices * side, side), name, side**-0.5),
    ]
    size = 3.0 * side * side * arrays[0].dtype.itemsize

    def step(_: Any, carry: Any) -> Any:
        value, weights = carry
        return value @ weights, weights

    yield Point(
        "dot", dtype, n_devices, size, 2.0 * side**3, _per_round_s(_looped(devices, step, arrays))
    )


def _memory(devices: list[Any], size_bytes: float) -> Iterator[Point]:
    n_devices, length = len(devices), int(size_bytes / 8)  # f32: half is read, half is written

    def step(_: Any, carry: Any) -> Any:
        (array,) = carry
        return (array * 0.5 + 0.25,)

    yield Point(
        "memory",
        "f32",
        n_devices,
        size_bytes,
        0.0,
        _per_round_s(_looped(devices, step, [_normal((n_devices * length,), "f4")])),
    )


def _collective_step(kind: str, n_devices: int, length: int) -> Callable[[Any, Any], Any]:
    """``length``: elements of the larger side.

    Whatever a kind leaves over is carried on, with next to no copying.
    """
    from jax import lax

    part = length // n_devices

    def step(i: Any, array: Any) -> Any:
        if kind == "all_reduce":
            return lax.psum(array, "d")
        if kind == "all_gather":
            return lax.dynamic_slice(
                lax.all_gather(array, "d", tiled=True), ((i % n_devices) * part,), (part,)
            )
        if kind == "reduce_scatter":
            return lax.dynamic_update_slice(array, lax.psum_scatter(array, "d", tiled=True), (0,))
        if kind == "all_to_all":
            return lax.all_to_all(array, "d", 0, 0, tiled=True)
        # To the farthest of a ring
        return lax.ppermute(
            array,
            "d",
            [(device, (device + n_devices // 2) % n_devices) for device in range(n_devices)],
        )

    return step


def _collective(devices: list[Any], over: int, kind: str, size_bytes: float) -> Iterator[Point]:
    import jax.numpy as jnp

    length = max(1, int(size_bytes / 4 / over)) * over
    local = length // over if kind == "all_gather" else length
    step = _collective_step(kind, over, length)
    zeros = jnp.zeros(len(devices) * local, "float32")
    build = _looped(devices, lambda i, carry: (step(i, carry[0]),), [zeros], over)
    yield Point(kind, "f32", over, 4.0 * length, 0.0, _per_round_s(build))


def _overlap(devices: list[Any], share: float, quick: bool) -> Iterator[Point]:
    """How much of a collective is hidden behind an independent dot in one program.

    It is the hidden part of whichever of the two is shorter.
    """
    import jax.numpy as jnp

    n_devices = len(devices)
    side, length = (64, n_devices * 2**10) if quick else (256, n_devices * 2**16)
    reduce = _collective_step("all_reduce", n_devices, length)
    value, weights = (
        _normal((n_devices * side, side), "float32"),
        _normal((n_devices * side, side), "float32", side**-0.5),
    )
    array = jnp.zeros(n_devices * length, "float32")
    comm_s = _per_round_s(_looped(devices, lambda i, c: (reduce(i, c[0]),), [array]))
    dot_s = _per_round_s(_looped(devices, lambda _, c: (c[0] @ c[1], c[1]), [value, weights]))
    dots = max(1, min(64, round(share * comm_s / dot_s)))

    def compute(carry: Any) -> Any:
        value, weights = carry
        for _ in range(dots):
            value = value @ weights
        return value, weights

    compute_s = _per_round_s(_looped(devices, lambda _, c: compute(c), [value, weights]))
    both_s = _per_round_s(
        _looped(devices, lambda i, c: (reduce(i, c[0]), *compute(c[1:])), [array, value, weights])
    )
    hidden = (comm_s + compute_s - both_s) / min(comm_s, compute_s)
    yield Point(
        "overlap", "f32", n_devices, 4.0 * length, 2.0 * side**3 * dots, min(1.0, max(0.0, hidden))
    )
