"""``Link``: one level of the links between devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

from toast_lab.records import ABOVE_ZERO, AT_LEAST_ZERO, one_of
from toast_lab.sharding.step_kinds import REDUCE_SCATTER, STEP_KINDS

#: Kinds of steps that send data, in the order of their numbers.
COLLECTIVES = STEP_KINDS[REDUCE_SCATTER:]
TOPOLOGIES = ("ring", "torus", "switch")


class CollectiveTerms(NamedTuple):
    """Fitted terms for the time of one kind of collective over n devices of a switch, all >= 0.

    With x bytes sent by each device the time is ``start_s + device_s (n - 1) + root_byte_s sqrt(x)
    + x (byte_s + byte_over_n_s / n)``; ``collectives.py`` says where each term comes from.
    """

    start_s: Annotated[float, AT_LEAST_ZERO]
    byte_s: Annotated[float, ABOVE_ZERO]
    device_s: Annotated[float, AT_LEAST_ZERO] = 0.0
    root_byte_s: Annotated[float, AT_LEAST_ZERO] = 0.0
    byte_over_n_s: Annotated[float, AT_LEAST_ZERO] = 0.0


@dataclasses.dataclass(frozen=True)
class Link:
    """One level of links.

    ``torus``: nearest neighbours in ``len(extents)`` dims; ``switch``: every device of the level is
    one hop from every other; ``ring``: every mesh axis has a closed ring of its own, whatever its
    size (simple enough for mental arithmetic).
    """

    #: "ICI", "NVLink", "InfiniBand"
    name: str
    #: One of TOPOLOGIES.
    topology: Annotated[str, one_of(TOPOLOGIES)]
    #: Rate at which one device sends; on a torus, along one dim over both links (one each way).
    bytes_per_s: Annotated[float, ABOVE_ZERO]
    #: Latency of one hop.
    latency_s: Annotated[float, AT_LEAST_ZERO]
    #: The most devices that this level joins, including those of inner levels; None: any number.
    devices: Annotated[int | None, ABOVE_ZERO] = None
    #: Torus only: the longest dims, in units of the devices that the inner level joins.
    extents: tuple[int, ...] = ()
    #: A torus dim closes into a ring if its extent is a multiple of this (and above 2) ...
    wrap_multiple: Annotated[int, ABOVE_ZERO] = 1
    #: ... and, if this is set, only if that holds for all dims of the slice.
    wrap_all: bool = False
    #: Where the numbers come from.
    source: str = ""
    #: Switch only: terms fitted to measured times, by kind of collective, which replace rate and
    #: latency.
    collectives: Annotated[Mapping[str, CollectiveTerms], one_of(COLLECTIVES)] = dataclasses.field(
        default_factory=dict
    )

    def offences(self) -> Iterator[str]:
        """What is wrong about several fields together."""
        extents = list(self.extents)
        if min(extents, default=1) < 1:
            yield f"extents = {extents} (all must be above 0)"
        if self.topology == "torus" and not 1 <= len(extents) <= 6:
            yield f"extents = {extents} (a torus has 1 to 6 dims)"
        if self.collectives and self.topology != "switch":
            yield (
                f"collectives on topology = {self.topology!r} (only for a switch, where all groups "
                "of n devices are alike)"
            )
