"""The times of collectives agree with schedules, linear programs and closed forms.

The schedules are simulated link by link.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from tests.helpers import from_python
from tests.machines.plain import without_terms
from toast_lab.machines import collectives as co
from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.links import Link
from toast_lab.machines.machine_model import Machine
from toast_lab.machines.topology import (
    GROUP,
    GROUP_RATE,
    LATENCY,
    N_COLUMNS,
    RATE,
    SIZE,
    SWITCHED,
    lay_out,
)
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.step_kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    PERMUTE,
    REDUCE_SCATTER,
)

KINDS = [ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, PERMUTE]
#: Only rates and latencies; ``test_fitted_links.py`` has the fitted terms.
PLAIN_LINKS = {name: without_terms(machine) for name, machine in MACHINES.items()}
W = 2.0  # a torus dim's bytes/s, so that a link carries 1 each way


def on(topology="torus", extents=(8,), wrap=1, rate=W, latency=0.0, devices=None):
    extents = extents if topology == "torus" else ()
    link = Link("links", topology, rate, latency, devices, extents, wrap)
    return Machine("m", {"f32": 1.0}, 1.0, 1.0, (link,), 0.0)


def time_s(kind, machine, sizes, in_bytes, mask=None):
    mesh = Mesh(tuple(f"a{i}" for i in range(len(sizes))), tuple(sizes))
    links = lay_out(machine, mesh)
    mask = (1 << len(sizes)) - 1 if mask is None else mask
    return co.collective_time_s(kind, mask, float(in_bytes), links.shape)


def ring_or_line(n, ring):
    """Return a machine with one torus dim of n chips, which wraps around or never does."""
    return on(extents=(n,), wrap=1 if ring else 10**6)


# -- simulated schedules ---------------------------------------------------------------------------


def all_gather_steps(n, ring):
    """Simulate rounds in which each chip passes on, each way, the last chunk that it received.

    They end when every chip has all chunks. Gives (rounds, chunks over the busiest link). On a ring
    of even n, half of the last chunk goes one way and half the other.
    """
    chunks_of = [{i: 1.0} for i in range(n)]  # chip -> chunk -> fraction
    moving = [(i, (i + d) % n if ring else i + d, i, d) for i in range(n) for d in (1, -1)]
    loads: dict[tuple[int, int], float] = {}
    rounds = 0
    while any(sum(h.values()) < n - 1e-9 for h in chunks_of):
        rounds += 1
        following = []
        for source, target, chunk, d in moving:
            if not 0 <= target < n:
                continue
            distance = (target - chunk) * d % n
            if ring and distance > n / 2:
                continue
            fraction = 0.5 if ring and distance * 2 == n else 1.0
            loads[source, d] = loads.get((source, d), 0.0) + fraction
            chunks_of[target][chunk] = chunks_of[target].get(chunk, 0.0) + fraction
            following.append((target, (target + d) % n if ring else target + d, chunk, d))
        moving = following
    return rounds, max(loads.values())


@pytest.mark.parametrize("ring", [True, False])
@pytest.mark.parametrize("n", range(3, 10))
def test_all_gathers_are_the_schedule(n, ring):
    rounds, busiest = all_gather_steps(n, ring)
    machine = ring_or_line(n, ring)
    # Chunks have 1 byte, links 1 byte/s
    assert time_s(ALL_GATHER, machine, [n], 1.0) == pytest.approx(busiest)
    slow = on(extents=(n,), wrap=1 if ring else 10**6, latency=1e6)
    assert time_s(ALL_GATHER, slow, [n], 1.0) == pytest.approx(rounds * 1e6, rel=1e-4)
    # a reduce_scatter is the same schedule backwards
    assert time_s(REDUCE_SCATTER, machine, [n], n * 1.0) == pytest.approx(busiest)


def all_to_all_load(n, ring):
    """Return the bytes over the busiest link if all chips send 1 byte to all by shortest ways."""
    loads: dict[tuple[int, int], float] = {}
    for source, target in itertools.permutations(range(n), 2):
        forward = (target - source) % n
        ways = (
            [(1, forward), (-1, n - forward)]
            if ring
            else [(1 if target > source else -1, abs(target - source))]
        )
        shortest = min(length for _, length in ways)
        ways = [way for way in ways if way[1] == shortest]
        for d, length in ways:
            for step in range(length):
                at = (source + d * step) % n
                loads[at, d] = loads.get((at, d), 0.0) + 1 / len(ways)
    return max(loads.values())


@pytest.mark.parametrize("ring", [True, False])
@pytest.mark.parametrize("n", range(3, 12))
def test_all_to_alls_are_as_slow_as_the_busiest_link(n, ring):
    assert time_s(ALL_TO_ALL, ring_or_line(n, ring), [n], n * 1.0) == pytest.approx(
        all_to_all_load(n, ring)
    )


def fractional_load(n, ring, targets):
    """Return the smallest possible load of the busiest link, by a linear program.

    Every chip splits its byte over both directions.
    """
    if not ring:
        crossing = [
            sum((t > cut) != (i > cut) and i <= cut for i, t in enumerate(targets))
            for cut in range(n - 1)
        ]
        return max(crossing)
    on_link = np.zeros((2 * n, n + 1))  # load = constant + slope * share sent forward
    constant = np.zeros(2 * n)
    for source, target in enumerate(targets):
        forward = (target - source) % n
        for step in range(forward):
            on_link[(source + step) % n, source] += 1
        for step in range(n - forward if forward else 0):
            link = n + (source - step) % n
            constant[link] += 1
            on_link[link, source] -= 1
    on_link[:, n] = -1
    best = linprog(
        [*[0.0] * n, 1.0], A_ub=on_link, b_ub=-constant, bounds=[*[(0, 1)] * n, (0, None)]
    )
    assert best.success
    return best.fun


@pytest.mark.parametrize("ring", [True, False])
@pytest.mark.parametrize("n", [3, 4, 5, 6])
def test_a_permute_is_the_rotation_by_half_the_ring(n, ring):
    far = [(i + n // 2) % n for i in range(n)] if ring else list(range(n))[::-1]
    permute_s = time_s(PERMUTE, ring_or_line(n, ring), [n], 1.0)
    assert permute_s == pytest.approx(max(1.0, fractional_load(n, ring, far)))


def recursive_doubling(n):
    """Return the rounds until every device has all data, in Bruck's order.

    In each round, a device sends all it has to one other device.
    """
    known = [{i} for i in range(n)]
    rounds = 0
    while any(len(k) < n for k in known):
        known = [known[i] | known[(i + 2**rounds) % n] for i in range(n)]
        rounds += 1
    return rounds


@pytest.mark.parametrize("n", range(2, 20))
def test_switches_take_as_many_rounds_as_doubling(n):
    switch = on("switch", latency=1.0, rate=1e12)
    assert time_s(ALL_GATHER, switch, [n], 1.0) == pytest.approx(recursive_doubling(n))
    # Thakur et al.: devices above a power of two send first and receive last
    pre_and_post = 0 if n & (n - 1) == 0 else 2
    assert time_s(ALL_REDUCE, switch, [n], 1.0) == pytest.approx(
        recursive_doubling(n) + pre_and_post
    )


# -- closed forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "topology", "n", "expected"),
    [
        (ALL_GATHER, "ring", 4, 2e-6 + 0.75e-3),
        (REDUCE_SCATTER, "ring", 4, 2e-6 + 0.75e-3),
        (ALL_REDUCE, "ring", 4, 4e-6 + 1.5e-3),
        (ALL_TO_ALL, "ring", 8, 4e-6 + 2e-3),
        (PERMUTE, "ring", 4, 2e-6 + 2e-3),
        (ALL_GATHER, "switch", 8, 3e-6 + 0.875e-3),
        (ALL_REDUCE, "switch", 8, 6e-6 + 1.75e-3),
        (ALL_TO_ALL, "switch", 8, 7e-6 + 0.875e-3),
        (PERMUTE, "switch", 8, 1e-6 + 1e-3),
        (ALL_GATHER, "ring", 1, 0.0),
    ],
)
def test_times_by_hand(kind, topology, n, expected):
    """The larger of input and output has 1 MB; links have 1 GB/s and 1 us a hop."""
    machine = on(topology, rate=1e9, latency=1e-6)
    assert time_s(kind, machine, [n], 1e6 / n if kind == ALL_GATHER else 1e6) == pytest.approx(
        expected
    )


def test_small_all_reduces_trade_bytes_for_rounds():
    """For 8 bytes over 64 devices, rings gather everything and switches use doubling."""
    ring, switch = on("ring", rate=1e9, latency=1e-6), on("switch", rate=1e9, latency=1e-6)
    assert time_s(ALL_REDUCE, ring, [64], 8.0) == pytest.approx(32e-6 + 8 * 63e-9)
    assert time_s(ALL_REDUCE, switch, [64], 8.0) == pytest.approx(6 * (1e-6 + 8e-9))
    assert time_s(ALL_TO_ALL, switch, [64], 8.0) == pytest.approx(6 * (1e-6 + 4e-9))


def test_two_dims_at_once_are_twice_as_fast():
    """With 16 chips as 4x4 rings, the links of both dims are busy.

    So the B (n-1)/n bytes of a gather arrive at twice the rate.
    """
    machine = on(extents=(4, 4), rate=1e9)
    one_after_other = 3 / 16 * 1e-3 + 3 / 4 * 1e-3
    assert time_s(ALL_GATHER, machine, [4, 4], 1e6 / 16) == pytest.approx(15 / 16 * 1e-3 / 2)
    assert time_s(ALL_GATHER, on("switch", rate=1e9), [4, 4], 1e6 / 16) == pytest.approx(
        15 / 16 * 1e-3
    )
    assert time_s(ALL_GATHER, on("ring", rate=1e9), [4, 4], 1e6 / 16) < one_after_other
    # Each dim's busiest link carries n/4
    assert time_s(ALL_TO_ALL, machine, [4, 4], 1e6) == pytest.approx(1e-3)


def test_axes_that_fill_a_shared_dim_are_one_ring():
    machine = on(extents=(16,), rate=1e9, latency=1e-6)
    for kind in KINDS:
        assert time_s(kind, machine, [4, 4], 1e6) == pytest.approx(time_s(kind, machine, [16], 1e6))
    assert time_s(ALL_GATHER, machine, [4, 4], 1e6, mask=1) > 3 * time_s(
        ALL_GATHER, machine, [4], 1e6
    )


def test_nodes_are_gathered_over_the_network_first():
    """With 16 GPUs in 2 nodes, 1/16 crosses the network, then the rest goes over NVLink."""
    sizes, chunk = [2, 8], 1e9 / 16
    gather_s = time_s(ALL_GATHER, PLAIN_LINKS["a100"], sizes, chunk)
    assert gather_s == pytest.approx(chunk / 25e9 + 14 * chunk / 300e9, rel=0.01)
    assert time_s(REDUCE_SCATTER, PLAIN_LINKS["a100"], sizes, 1e9) == pytest.approx(gather_s)


# -- several axes against linear programs and brute force ------------------------------------------

dims = st.lists(st.tuples(st.integers(2, 9), st.floats(0.1, 10)), min_size=2, max_size=3)


def rows(axes, latency=0.0):
    """Return the rows that ``collectives`` makes for torus dims of (size, rate), slowest first."""
    table = np.zeros((len(axes), N_COLUMNS))
    for i, (n, rate) in enumerate(sorted(axes, key=lambda axis: axis[1])):
        table[i, :GROUP] = n // 2, n * n // 4 / n, max(2.0, n * n // 4 / n)
        table[i, [GROUP, SIZE, RATE, LATENCY, co._AXIS]] = i, n, rate, latency, i
    return table


@settings(max_examples=60, deadline=None)
@given(dims)
def test_the_simultaneous_bound_is_what_the_best_pieces_reach(axes):
    """A linear program minimises the time of the busiest dim.

    Its variables are the fractions of the data for each order of visiting the dims.
    """
    total = math.prod(n for n, _ in axes)
    orders = list(itertools.permutations(range(len(axes))))
    busy = np.zeros((len(axes), len(orders)))
    for column, order in enumerate(orders):
        held = 1.0 / total
        for dim in order:
            n, rate = axes[dim]
            busy[dim, column] = held * (n - 1) / rate
            held *= n
    # minimise T: busy @ x <= T, sum x = 1
    best = linprog(
        [*[0.0] * len(orders), 1.0],
        A_ub=np.hstack([busy, -np.ones((len(axes), 1))]),
        b_ub=np.zeros(len(axes)),
        A_eq=[[*[1.0] * len(orders), 0.0]],
        b_eq=[1.0],
    )
    assert best.success
    assert from_python(co._simultaneous_s)(float(total), rows(axes)) == pytest.approx(
        best.fun, rel=1e-6
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(2, 9), st.floats(0.1, 10)), min_size=2, max_size=4))
def test_one_after_the_other_takes_the_best_order(axes):
    total = math.prod(n for n, _ in axes)
    times = []
    for order in itertools.permutations(axes):
        held, spent = 1.0 / total, 0.0
        for n, rate in order:
            spent += held * (n - 1) / rate
            held *= n
        times.append(spent)
    on_switches = rows(axes)
    on_switches[:, SWITCHED] = 1.0
    assert from_python(co._several)(
        ALL_GATHER, 1.0, float(total), on_switches, np.zeros((len(axes), N_COLUMNS))
    ) == pytest.approx(min(times))


# -- laws ------------------------------------------------------------------------------------------

machines = st.sampled_from(sorted(MACHINES))
meshes = st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KINDS), machines, meshes, st.data())
def test_times_grow_with_bytes_and_latency_and_shrink_with_rate(kind, name, sizes, data):
    machine = PLAIN_LINKS[name]
    assume(machine.max_devices is None or math.prod(sizes) <= machine.max_devices)
    mesh = Mesh(tuple(f"a{i}" for i in range(len(sizes))), tuple(sizes))
    mask = data.draw(st.integers(1, (1 << len(sizes)) - 1))
    size = data.draw(st.floats(1, 1e10))
    links = lay_out(machine, mesh)

    def seconds(scale=1.0, faster=1.0, slower=1.0):
        shape = links.shape.copy()
        shape[:, [RATE, GROUP_RATE]] *= faster
        shape[:, LATENCY] *= slower
        return co.collective_time_s(kind, mask, size * scale, shape)

    base_s = seconds()
    assert np.isfinite(base_s)
    if all(n == 1 for i, n in enumerate(sizes) if mask >> i & 1):
        assert base_s == 0
        return
    assert base_s > 0
    factor = data.draw(st.floats(1.01, 100))
    assert base_s < seconds(scale=factor) <= base_s * factor * (1 + 1e-9)
    assert base_s / factor * (1 - 1e-9) <= seconds(faster=factor) < base_s
    assert base_s < seconds(slower=factor) <= base_s * factor * (1 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(machines, meshes, st.floats(1, 1e10))
def test_kinds_stand_in_their_order(name, sizes, size):
    """For the same bytes, an all_gather and a reduce_scatter take the same time.

    An all_reduce takes no longer than both together, and no less than either.
    """
    machine = PLAIN_LINKS[name]
    n = math.prod(sizes)
    assume(n > 1 and (machine.max_devices is None or n <= machine.max_devices))
    gather = time_s(ALL_GATHER, machine, sizes, size / n)
    scatter = time_s(REDUCE_SCATTER, machine, sizes, size)
    reduce = time_s(ALL_REDUCE, machine, sizes, size)
    assert gather == pytest.approx(scatter)
    assert gather * (1 - 1e-9) <= reduce <= (gather + scatter) * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(KINDS), machines, meshes, st.data())
def test_axes_of_size_one_change_nothing(kind, name, sizes, data):
    machine = PLAIN_LINKS[name]
    assume(machine.max_devices is None or math.prod(sizes) <= machine.max_devices)
    where = data.draw(st.integers(0, len(sizes)))
    padded = [*sizes[:where], 1, *sizes[where:]]
    assert time_s(kind, machine, padded, 1e6) == pytest.approx(time_s(kind, machine, sizes, 1e6))


def test_reducing_over_both_dims_uses_the_links_of_both():
    machine = on(extents=(4, 4), rate=1e9)
    one = time_s(ALL_REDUCE, machine, [4, 4], 1e6, mask=1)
    assert (
        one == time_s(ALL_REDUCE, machine, [4, 4], 1e6, mask=2) == pytest.approx(2 * 3 / 4 * 1e-3)
    )
    assert time_s(ALL_REDUCE, machine, [4, 4], 1e6, mask=3) == pytest.approx(2 * 15 / 16 * 1e-3 / 2)


def test_tiny_all_reduces_over_two_axes_gather_everything_in_turn():
    """A few bytes take 2 hops for each axis, not 2 to reduce and 2 to gather."""
    assert time_s(
        ALL_REDUCE, on(extents=(4, 4), rate=1e12, latency=1.0), [4, 4], 4.0
    ) == pytest.approx(4.0)
