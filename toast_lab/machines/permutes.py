"""The time of a permute between given devices of a torus.

``collectives`` prices a permute by its axes alone: every device sends to the farthest one. A
compiled program says which device sends to which. If these are neighbours, as in products that run
piece by piece during their collective, most links carry one message instead of two or three.

Each message travels dim by dim, along each by the shortest way, and the link with the most messages
determines the time of the permute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from toast_lab.machines.machine_model import Machine
from toast_lab.machines.topology import TorusPlaces, torus_places
from toast_lab.sharding.mesh import Mesh

Pairs = Sequence[tuple[int, int]]
_Link = tuple[tuple[int, ...], int, int]  # (position of the sender, dim, direction)


def permute_time_s(machine: Machine, mesh: Mesh, pairs: Pairs, local_bytes: float) -> float | None:
    """Seconds of a permute; None unless the machine's innermost links are a torus of all devices.

    Args:
        machine: the machine with the links.
        mesh: the mesh, in whose order devices are numbered.
        pairs: (source, target) of each message.
        local_bytes: size of each message.
    """
    places = torus_places(machine, mesh)
    if places is None or any(not 0 <= device < mesh.n_devices for pair in pairs for device in pair):
        return None
    message_counts: Counter[_Link] = Counter()
    farthest = 0
    for source, target in pairs:
        links = _route(places, source, target)
        message_counts.update(links)
        farthest = max(farthest, len(links))
    busiest = max(message_counts.values(), default=0)
    link = machine.links[0]
    return farthest * link.latency_s + busiest * local_bytes / (0.5 * link.bytes_per_s)


def _route(places: TorusPlaces, source: int, target: int) -> list[_Link]:
    position, target_position = list(places.place[source]), places.place[target]
    links: list[_Link] = []
    for dim, (extent, wraps) in enumerate(zip(places.extents, places.wraps, strict=True)):
        hops = target_position[dim] - position[dim]
        if wraps and 2 * abs(hops) > extent:
            hops -= extent if hops > 0 else -extent
        step = 1 if hops > 0 else -1
        for _ in range(abs(hops)):
            links.append((tuple(position), dim, step))
            position[dim] = (position[dim] + step) % extent
    return links
