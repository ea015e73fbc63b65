"""The micro-benchmarks of a calibration, run in the child process; start at ``measure``.

All devices work at once, as in a real step: virtual devices share the cores of their host, so their
individual speed means nothing. Every measurement is a loop of r rounds inside one compiled program,
and its time is (time of r rounds - time of one round) / (r - 1): this cancels the cost of starting
a program, and r is large enough for the clock's resolution. Each point is reported as soon as it is
measured, so a run that is cut short keeps its points.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.machines.calibrate_fit import CalibrationPoint
from toast_lab.runtime import devices as dev
from toast_lab.runtime.child import RunProgress
from toast_lab.runtime.compile_child import versions

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64"}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
#: A measurement lasts at least this long, unless it reaches the limit on rounds.
_WORTH_S = 0.03
_MOST_ROUNDS = 256
#: Once a single round takes longer than this, larger sizes are left out.
_SLOWEST_S = 1.0
_REPEATS = 3


class Hardware(NamedTuple):
    """The devices that a child measures; reported first."""

    platform: str
    kind: str
    n_devices: int
    memory_bytes: float  #: of one device; for a virtual one its share of the host's memory
    versions: dict[str, str]


class Skipped(NamedTuple):
    """A measurement that the devices refused."""

    what: str
    why: str


def measure(platform: str, count: int | None, time_limit_s: float, quick: bool = False) -> bool:
    """Measure devices, reporting Hardware, CalibrationPoint, Skipped and RunProgress.

    Args:
        platform: "cpu", "gpu" or "tpu".
        count: number of devices; None means all that are attached.
        time_limit_s: no measurement starts after this many seconds.
        quick: measure few, small sizes, for tests.

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
    isolate.report(_hardware(platform, devices))
    measurements = _plan(len(devices), platform, quick)
    last_round_s: dict[tuple[str, str, int], float] = {}  # series -> time of its last round
    for position, (series, label, start) in enumerate(measurements):
        isolate.report(RunProgress(label, position / len(measurements)))
        if time.monotonic() > deadline:
            return False
        if last_round_s.get(series, 0.0) > _SLOWEST_S:
            continue
        try:
            for point in start(devices):
                last_round_s[series] = point.time_s if point.what != "overlap" else 0.0
                isolate.report(point)
        except Exception as error:  # a refused type or size must not end the run
            last_round_s[series] = float("inf")
            isolate.report(
                Skipped(label, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
            )
    return True


Devices = list[Any]
_Series = tuple[str, str, int]  # kind of measurement, element type, devices
_Start = Callable[[Devices], Iterator[CalibrationPoint]]


def _plan(n_devices: int, platform: str, quick: bool) -> list[tuple[_Series, str, _Start]]:
    """Measurements as (series, label, start), the most important first."""
    on_host = platform == "cpu"
    sides = [64, 128, 256, 512, 1024, *([] if on_host else [2048, 4096, 8192])]
    memory_sizes = [2.0**power for power in range(14, 27 if on_host else 31, 2)]
    sizes = [2.0**power for power in range(10, 25 if on_host else 29, 2)]
    shares = [0.25, 0.5, 1.0, 2.0, 4.0]
    group_sizes = [2, 4, 8, 16, 32, 64, 128]
    if quick:
        sides, memory_sizes, sizes = [32, 64], [2.0**14, 2.0**18], [2.0**10, 2.0**16]
        shares, group_sizes = [0.25, 1.0], [2]
    measurements: list[tuple[_Series, str, _Start]] = [
        (("overhead", "", 1), "start of an op", _overhead)
    ]

    def dots(dtype: str) -> None:
        for side in sides:
            label = f"dot {dtype} {side}x{side}"
            measurements.append(
                (("dot", dtype, n_devices), label, partial(_dot, dtype=dtype, side=side))
            )

    def collectives(group: int) -> None:
        for kind, size in itertools.product(COLLECTIVES, sizes):
            label = f"{kind} over {group}, {size / 1024:g} KiB"
            start = partial(_collective, group=group, kind=kind, size_bytes=size)
            measurements.append(((kind, "", group), label, start))

    dots("f32")
    for size in memory_sizes:
        label = f"memory {size / 1024:g} KiB"
        measurements.append((("memory", "", n_devices), label, partial(_memory, size_bytes=size)))
    if n_devices > 1:
        collectives(n_devices)
    dots("bf16")
    for group in group_sizes:
        if group < n_devices and n_devices % group == 0:
            collectives(group)
    if n_devices > 1:
        for share in shares:
            label = f"overlap, {share:g} as much compute"
            start = partial(_overlap, share=share, quick=quick)
            measurements.append((("overlap", "", n_devices), label, start))
    if not quick:
        dots("f16")
        dots("f64")
    return measurements


def _hardware(platform: str, devices: Devices) -> Hardware:
    if platform == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / len(devices)
    else:
        memory = float((devices[0].memory_stats() or {}).get("bytes_limit", 0))
    return Hardware(
        platform=platform,
        kind=devices[0].device_kind,
        n_devices=len(devices),
        memory_bytes=memory,
        versions=versions(("jax", "jaxlib")),
    )


# -- timing ----------------------------------------------------------------------------------------


def _per_round_s(build: Callable[[int], Callable[[], Any]]) -> float:
    """Seconds of one round; ``build(r)`` gives a compiled function that runs r rounds."""
    once_s = _median_s(build(1), 1)
    rounds = int(min(_MOST_ROUNDS, max(3, _WORTH_S / once_s)))
    looped = build(rounds)
    looped_s = _median_s(looped, _REPEATS)
    while looped_s < _WORTH_S and rounds < _MOST_ROUNDS * 16:  # the start dominated
        rounds = int(min(_MOST_ROUNDS * 16, rounds * min(16.0, 2 * _WORTH_S / looped_s)))
        looped = build(rounds)
        looped_s = _median_s(looped, _REPEATS)
    single_s = _median_s(build(1), _REPEATS)
    return max(looped_s - single_s, 0.02 * looped_s) / (rounds - 1)


def _median_s(call: Callable[[], Any], repeats: int) -> float:
    import jax

    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _looped(
    devices: Devices, step: Callable[[Any, Any], Any], arrays: list[Any], group: int | None = None
) -> Callable[[int], Any]:
    """A build function for ``_per_round_s`` that runs ``step(i, carry)`` on every device.

    Arrays are split along their first dim. Mesh axis "d" has ``group`` devices (all by default),
    and all groups work side by side. The number of rounds is a constant of the program; otherwise a
    GPU would ask the host after each round.
    """
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.sharding.Mesh(np.asarray(devices).reshape(-1, group or len(devices)), ("group", "d"))
    split_spec = PartitionSpec(("group", "d"))
    placed = [jax.device_put(array, NamedSharding(mesh, split_spec)) for array in arrays]

    def build(rounds: int) -> Callable[[], Any]:
        def body(*local_arrays: Any) -> Any:
            return jax.lax.fori_loop(0, rounds, step, tuple(local_arrays))

        mapped = jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(split_spec,) * len(placed),
            out_specs=(split_spec,) * len(placed),
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


# -- measurements ----------------------------------------------------------------------------------


def _overhead(devices: Devices) -> Iterator[CalibrationPoint]:
    """Tiny dots one after the other, each a separate op whose arithmetic takes no time."""
    length = 64

    def step(_: Any, carry: Any) -> Any:
        value, weights = carry
        for _repeat in range(length):
            value = value @ weights
        return value, weights

    rows = len(devices) * 8
    arrays = [_normal((rows, 8), "float32"), _normal((rows, 8), "float32", 0.1)]
    yield CalibrationPoint(
        "overhead",
        "f32",
        devices=len(devices),
        size_bytes=0.0,
        flops=2.0 * 8**3,
        time_s=_per_round_s(_looped(devices, step, arrays)) / length,
    )


def _product(_: Any, carry: Any) -> Any:
    value, weights = carry
    return value @ weights, weights


def _squares(devices: Devices, side: int, dtype: str) -> list[Any]:
    """Two square matrices for each device, scaled so that products keep their magnitude."""
    shape = (len(devices) * side, side)
    return [_normal(shape, dtype), _normal(shape, dtype, side**-0.5)]


def _dot(devices: Devices, dtype: str, side: int) -> Iterator[CalibrationPoint]:
    arrays = _squares(devices, side, DTYPES[dtype])
    yield CalibrationPoint(
        "dot",
        dtype,
        devices=len(devices),
        size_bytes=3.0 * side * side * arrays[0].dtype.itemsize,
        flops=2.0 * side**3,
        time_s=_per_round_s(_looped(devices, _product, arrays)),
    )


def _memory(devices: Devices, size_bytes: float) -> Iterator[CalibrationPoint]:
    length = int(size_bytes / 8)  # f32: half of the bytes are read, half are written

    def step(_: Any, carry: Any) -> Any:
        (array,) = carry
        return (array * 0.5 + 0.25,)

    array = _normal((len(devices) * length,), "f4")
    yield CalibrationPoint(
        "memory",
        "f32",
        devices=len(devices),
        size_bytes=size_bytes,
        flops=0.0,
        time_s=_per_round_s(_looped(devices, step, [array])),
    )


def _collective_step(kind: str, group: int, length: int) -> Callable[[Any, Any], Any]:
    """A step that runs one collective, whose larger side has ``length`` elements.

    The step returns an array of its input's shape, with next to no copying.
    """
    from jax import lax

    shard_length = length // group

    def step(i: Any, array: Any) -> Any:
        if kind == "all_reduce":
            return lax.psum(array, "d")
        if kind == "all_gather":
            gathered = lax.all_gather(array, "d", tiled=True)
            return lax.dynamic_slice(gathered, ((i % group) * shard_length,), (shard_length,))
        if kind == "reduce_scatter":
            return lax.dynamic_update_slice(array, lax.psum_scatter(array, "d", tiled=True), (0,))
        if kind == "all_to_all":
            return lax.all_to_all(array, "d", 0, 0, tiled=True)
        # To the farthest device of a ring
        return lax.ppermute(
            array, "d", [(device, (device + group // 2) % group) for device in range(group)]
        )

    return step


def _collective(
    devices: Devices, group: int, kind: str, size_bytes: float
) -> Iterator[CalibrationPoint]:
    import jax.numpy as jnp

    length = max(1, int(size_bytes / 4 / group)) * group
    local_length = length // group if kind == "all_gather" else length
    step = _collective_step(kind, group, length)
    zeros = jnp.zeros(len(devices) * local_length, "float32")
    build = _looped(devices, lambda i, carry: (step(i, carry[0]),), [zeros], group)
    yield CalibrationPoint(
        kind,
        "f32",
        devices=group,
        size_bytes=4.0 * length,
        flops=0.0,
        time_s=_per_round_s(build),
    )


def _overlap(devices: Devices, share: float, quick: bool) -> Iterator[CalibrationPoint]:
    """The share of a collective that overlaps with independent dots of the same program.

    It is relative to whichever of the two is shorter.
    """
    import jax.numpy as jnp

    count = len(devices)
    side, length = (64, count * 2**10) if quick else (256, count * 2**16)
    reduce = _collective_step("all_reduce", count, length)
    matrices = _squares(devices, side, "float32")
    array = jnp.zeros(count * length, "float32")
    comm_s = _per_round_s(_looped(devices, lambda i, carry: (reduce(i, carry[0]),), [array]))
    dot_s = _per_round_s(_looped(devices, _product, matrices))
    dot_count = max(1, min(64, round(share * comm_s / dot_s)))

    def compute(i: Any, carry: Any) -> Any:
        for _ in range(dot_count):
            carry = _product(i, carry)
        return carry

    def both(i: Any, carry: Any) -> Any:
        return reduce(i, carry[0]), *compute(i, carry[1:])

    compute_s = _per_round_s(_looped(devices, compute, matrices))
    both_s = _per_round_s(_looped(devices, both, [array, *matrices]))
    hidden_share = (comm_s + compute_s - both_s) / min(comm_s, compute_s)
    yield CalibrationPoint(
        "overlap",
        "f32",
        devices=count,
        size_bytes=4.0 * length,
        flops=2.0 * side**3 * dot_count,
        time_s=min(1.0, max(0.0, hidden_share)),
    )
