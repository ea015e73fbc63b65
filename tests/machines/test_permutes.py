"""The time of permutes between given devices of a torus."""

from __future__ import annotations

import pytest

from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.collectives import named_time_s
from toast_lab.machines.permutes import permute_time_s
from toast_lab.machines.topology import lay_out
from toast_lab.sharding.mesh import make_mesh

V5E = MACHINES["tpu-v5e"]
MIB, HOP_S, ONE_WAY = 2.0**20, 1e-6, 45e9


def ring(n: int) -> list[tuple[int, int]]:
    return [(device, (device + 1) % n) for device in range(n)]


@pytest.mark.parametrize(
    ("mesh", "hops"),
    [({"x": 8}, 4), ({"x": 16}, 6), ({"d": 4, "m": 4}, 6), ({"d": 16, "m": 16}, 2)],
)
def test_everybody_sends_to_the_next(mesh: dict[str, int], hops: int) -> None:
    """No link carries two messages; the last device's way back to the first is the longest."""
    sizes = make_mesh(mesh)
    time_s = permute_time_s(V5E, sizes, ring(sizes.n_devices), MIB)
    assert time_s == pytest.approx(hops * HOP_S + MIB / ONE_WAY)


def test_messages_share_a_link() -> None:
    mesh = make_mesh({"d": 4, "m": 4})
    # Both devices of each half of a line send to the other half, so two messages cross its middle
    pairs = [(0, 2), (1, 3), (2, 0), (3, 1)]
    assert permute_time_s(V5E, mesh, pairs, MIB) == pytest.approx(2 * HOP_S + 2 * MIB / ONE_WAY)
    farthest = named_time_s("collective_permute", ["m"], MIB, mesh=mesh, links=lay_out(V5E, mesh))
    assert farthest == pytest.approx(3 * HOP_S + 2 * MIB / ONE_WAY)


def test_a_closed_dim_goes_the_short_way() -> None:
    mesh = make_mesh({"x": 16, "y": 16})
    assert permute_time_s(V5E, mesh, [(0, 15)], MIB) == pytest.approx(HOP_S + MIB / ONE_WAY)


def test_nobody_sends() -> None:
    assert permute_time_s(V5E, make_mesh({"x": 8}), [(3, 3)], MIB) == 0.0


@pytest.mark.parametrize("machine", ["h100", "tpu-v3", "cpu"])
def test_other_links_have_no_places(machine: str) -> None:
    assert permute_time_s(MACHINES[machine], make_mesh({"x": 16}), ring(16), MIB) is None


def test_devices_outside_the_mesh() -> None:
    assert permute_time_s(V5E, make_mesh({"x": 8}), [(0, 9)], MIB) is None
