"""How long a permute takes between given devices of a torus.

``collectives`` prices a permute of which only the axes are known: everybody sends to the farthest.
A compiled program says who sends to whom.  Where that is the neighbour, as in products that run
piece by piece beside their collective, most links carry one message instead of two or three.

Each message goes dim by dim, the shortest way along each, and the link that most messages share is
what the permute waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from toast_lab.machines.machine_model import Machine
from toast_lab.machines.topology import TorusPlaces, torus_places
from toast_lab.sharding.mesh import Mesh

Pairs = Sequence[tuple[int, int]]
_Link = tuple[tuple[int, ...], int, int]  # from where, along which dim, which way


def permute_time_s(machine: Machine, mesh: Mesh, pairs: Pairs, local_bytes: float) -> float | None:
    """Seconds of a permute; None for machines whose innermost links are no torus of all devices.

    Args:
        machine: whose links these are.
        mesh: whose devices are numbered in its order.
        pairs: (source, target) of each message.
        local_bytes: of each message.
    """
    places = torus_places(machine, mesh)
    if places is None or any(not 0 <= device < mesh.n_devices for pair in pairs for device in pair):
        return None
    carried: Counter[_Link] = Counter()
    farthest = 0
    for source, target in pairs:
        links = _way(places, source, target)
        carried.update(links)
        farthest = max(farthest, len(links))
    busiest = max(carried.values(), default=0)
    link = machine.links[0]
    return farthest * link.latency_s + busiest * local_bytes / (0.5 * link.bytes_per_s)


def _way(places: TorusPlaces, source: int, target: int) -> list[_Link]:
    at, goal = list(places.place[source]), places.place[target]
    links: list[_Link] = []
    for dim, (extent, wraps) in enumerate(zip(places.extents, places.wraps, strict=True)):
        hops = goal[dim] - at[dim]
        if wraps and 2 * abs(hops) > extent:
            hops -= extent if hops > 0 else -extent
        step = 1 if hops > 0 else -1
        for _ in range(abs(hops)):
            links.append((tuple(at), dim, step))
            at[dim] = (at[dim] + step) % extent
    return links
