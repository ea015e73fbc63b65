"""Collective times against schedules, linear programs and closed forms.

The schedules are stepped through link by link.
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
from toast_lab.machines.topology import GROUP_RATE, N_COLUMNS, lay_out
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.step_kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    PERMUTE,
    REDUCE_SCATTER,
)

KINDS = [ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, PERMUTE]
#: With rates and latencies alone; ``test_fitted_links.py`` has the fitted terms.
PLAIN_LINKS = {name: without_terms(machine) for name, machine in MACHINES.items()}
W = 2.0  # a torus dim's bytes/s, so that one link one way carries 1


def on(topology="torus", extents=(8,), wrap=1, rate=W, latency=0.0, devices=None):
    extents = extents if topology == "torus" else ()
    link = Link("links", topology, rate, latency, devices, extents, wrap)
    return Machine("m", {"f32": 1.0}, 1.0, 1.0, (link,), 0.0)


def time_s(kind, machine, sizes, in_bytes, mask=None):
    mesh = Mesh(tuple(f"a{i}" for i in range(len(sizes))), tuple(sizes))
    links = lay_out(machine, mesh)
    mask = (1 << len(sizes)) - 1 if mask is None else mask
    arrays = mesh.array(), links.bytes_per_s, links.latency_s, links.switched, links.shape
    return co.collective_time_s(kind, mask, float(in_bytes), *arrays)


def ring_or_line(n, ring):
    """One torus dim of n chips, and the machine whose dims wrap or never do."""
    return on(extents=(n,), wrap=1 if ring else 10**6)


# -- schedules, stepped through --------------------------------------------------------------------


def all_gather_steps(n, ring):
    """Rounds in which each chip hands on, each way, the last chunk that came from the other side.

    On a ring it stops when everyone has everything; gives (rounds, chunks over the busiest link).
    For even n the last chunk goes half one way and half the other.
    """
    have = [{i: 1.0} for i in range(n)]  # chip -> chunk -> fraction
    moving = [(i, (i + d) % n if ring else i + d, i, d) for i in range(n) for d in (1, -1)]
    loads: dict[tuple[int, int], float] = {}
    rounds = 0
    while any(sum(h.values()) < n - 1e-9 for h in have):
        rounds += 1
        following = []
        for source, target, chunk, d in moving:
            if not 0 <= target < n:
                continue
            distance = (target - chunk) * d % n
            if ring and distance > n / 2:
                continue
            part = 0.5 if ring and distance * 2 == n else 1.0
            loads[source, d] = loads.get((source, d), 0.0) + part
            have[target][chunk] = have[target].get(chunk, 0.0) + part
            following.append((target, (target + d) % n if ring else target + d, chunk, d))
        moving = following
    return rounds, max(loads.values())


@pytest.mark.parametrize("ring", [True, False])
@pytest.mark.parametrize("n", range(3, 10))
def test_all_gathers_are_the_schedule(n, ring):
    rounds, busiest = all_gather_steps(n, ring)
    machine = ring_or_line(n, ring)
    # Chunks of 1 byte, links of 1 byte/s
    assert time_s(ALL_GATHER, machine, [n], 1.0) == pytest.approx(busiest)
    slow = on(extents=(n,), wrap=1 if ring else 10**6, latency=1e6)
    assert time_s(ALL_GATHER, slow, [n], 1.0) == pytest.approx(rounds * 1e6, rel=1e-4)
    # a reduce_scatter is the same schedule backwards
    assert time_s(REDUCE_SCATTER, machine, [n], n * 1.0) == pytest.approx(busiest)


def all_to_all_load(n, ring):
    """Bytes over the busiest link if every chip sends 1 byte to every other by a shortest way."""
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
    """The smallest load of the busiest link, by a linear program.

    Every chip splits its byte over both ways.
    """
    if not ring:
        crossing = [
            sum((t > cut) != (i > cut) and i <= cut for i, t in enumerate(targets))
            for cut in range(n - 1)
        ]
        return max(crossing)
    on_link = np.zeros((2 * n, n + 1))  # load = constant + slope * share that goes forward
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
    found = time_s(PERMUTE, ring_or_line(n, ring), [n], 1.0)
    assert found == pytest.approx(max(1.0, fractional_load(n, ring, far)))


def recursive_doubling(n):
    """Rounds until every device knows all, in Bruck's order.

    In each round a device sends all it knows to one other.
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
    # Thakur et al.: those above the power of two hand over, and get back
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
    """1 MB on the larger side, 1 GB/s, 1 us a hop."""
    machine = on(topology, rate=1e9, latency=1e-6)
    assert time_s(kind, machine, [n], 1e6 / n if kind == ALL_GATHER else 1e6) == pytest.approx(
        expected
    )


def test_small_all_reduces_trade_bytes_for_rounds():
    """8 bytes over 64 devices: everything is gathered on a ring, doubled on a switch."""
    ring, switch = on("ring", rate=1e9, latency=1e-6), on("switch", rate=1e9, latency=1e-6)
    assert time_s(ALL_REDUCE, ring, [64], 8.0) == pytest.approx(32e-6 + 8 * 63e-9)
    assert time_s(ALL_REDUCE, switch, [64], 8.0) == pytest.approx(6 * (1e-6 + 8e-9))
    assert time_s(ALL_TO_ALL, switch, [64], 8.0) == pytest.approx(6 * (1e-6 + 4e-9))


def test_two_dims_at_once_are_twice_as_fast():
    """16 chips as 4x4 rings.

    Every link of both dims is busy, so B (n-1)/n comes in at twice the rate.
    """
    machine = on(extents=(4, 4), rate=1e9)
    one_after_other = 3 / 16 * 1e-3 + 3 / 4 * 1e-3
    assert time_s(ALL_GATHER, machine, [4, 4], 1e6 / 16) == pytest.approx(15 / 16 * 1e-3 / 2)
    assert time_s(ALL_GATHER, on("switch", rate=1e9), [4, 4], 1e6 / 16) == pytest.approx(
        15 / 16 * 1e-3
    )
    assert time_s(ALL_GATHER, on("ring", rate=1e9), [4, 4], 1e6 / 16) < one_after_other
    # Each dim's busiest link: n/4
    assert time_s(ALL_TO_ALL, machine, [4, 4], 1e6) == pytest.approx(1e-3)


def test_axes_that_fill_a_shared_dim_are_one_ring():
    machine = on(extents=(16,), rate=1e9, latency=1e-6)
    for kind in KINDS:
        assert time_s(kind, machine, [4, 4], 1e6) == pytest.approx(time_s(kind, machine, [16], 1e6))
    assert time_s(ALL_GATHER, machine, [4, 4], 1e6, mask=1) > 3 * time_s(
        ALL_GATHER, machine, [4], 1e6
    )


def test_nodes_are_gathered_over_the_network_first():
    """16 GPUs, 2 nodes: 1/16 crosses the network, then the rest goes over NVLink."""
    sizes, chunk = [2, 8], 1e9 / 16
    found = time_s(ALL_GATHER, PLAIN_LINKS["a100"], sizes, chunk)
    assert found == pytest.approx(chunk / 25e9 + 14 * chunk / 300e9, rel=0.01)
    assert time_s(REDUCE_SCATTER, PLAIN_LINKS["a100"], sizes, 1e9) == pytest.approx(found)


# -- several axes against linear programs and brute force ------------------------------------------

dims = st.lists(st.tuples(st.integers(2, 9), st.floats(0.1, 10)), min_size=2, max_size=3)


def rows(axes, latency=0.0):
    """Entries as ``collectives`` makes them, slowest first, for torus dims of (size, rate)."""
    table = [
        [n, rate, latency, n // 2, n * n // 4 / n, max(2.0, n * n // 4 / n), i, i]
        for i, (n, rate) in enumerate(axes)
    ]
    return np.asarray(sorted(table, key=lambda row: row[1]), dtype=float)


@settings(max_examples=60, deadline=None)
@given(dims)
def test_the_simultaneous_bound_is_what_the_best_pieces_reach(axes):
    """The smallest busiest dim, by a linear program.

    Its variables are fractions of the data for each order of visiting the dims.
    """
    total = math.prod(n for n, _ in axes)
    orders = list(itertools.permutations(range(len(axes))))
    busy = np.zeros((len(axes), len(orders)))
    for column, order in enumerate(orders):
        here = 1.0 / total
        for dim in order:
            n, rate = axes[dim]
            busy[dim, column] = here * (n - 1) / rate
            here *= n
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
        here, spent = 1.0 / total, 0.0
        for n, rate in order:
            spent += here * (n - 1) / rate
            here *= n
        times.append(spent)
    on_switches = np.ones(len(axes), np.bool_)
    assert from_python(co._several)(
        ALL_GATHER, 1.0, float(total), rows(axes), on_switches, np.zeros((len(axes), N_COLUMNS))
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
        shape[:, GROUP_RATE] *= faster
        arrays = links.bytes_per_s * faster, links.latency_s * slower, links.switched, shape
        return co.collective_time_s(kind, mask, size * scale, mesh.array(), *arrays)

    here = seconds()
    assert np.isfinite(here)
    if all(n == 1 for i, n in enumerate(sizes) if mask >> i & 1):
        assert here == 0
        return
    assert here > 0
    factor = data.draw(st.floats(1.01, 100))
    assert here < seconds(scale=factor) <= here * factor * (1 + 1e-9)
    assert here / factor * (1 - 1e-9) <= seconds(faster=factor) < here
    assert here < seconds(slower=factor) <= here * factor * (1 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(machines, meshes, st.floats(1, 1e10))
def test_kinds_stand_in_their_order(name, sizes, size):
    """For the same bytes, gathering and scattering cost the same.

    Reducing costs no more than both, no less than either.
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
    """A few bytes: 2 hops an axis, not 2 there and 2 back."""
    assert time_s(
        ALL_REDUCE, on(extents=(4, 4), rate=1e12, latency=1.0), [4, 4], 4.0
    ) == pytest.approx(4.0)
