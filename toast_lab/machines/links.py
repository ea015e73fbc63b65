"""``Link``: one level of the links that join devices."""

from __future__ import annotations

import dataclasses
import math

TOPOLOGIES = ("ring", "torus", "switch")


@dataclasses.dataclass(frozen=True)
class Link:
    """One level of links.

    ``torus``: nearest neighbours in ``len(extents)`` dims; ``switch``: every device of the level is
    one hop from every other; ``ring``: every mesh axis has a closed ring of its own, whatever its
    size (for sums one can do in one's head).
    """

    #: "ICI", "NVLink", "InfiniBand"
    name: str
    #: One of TOPOLOGIES.
    topology: str
    #: Sent by one device; on a torus along one dim, over both its links together (one each way).
    bytes_per_s: float
    #: Of one hop.
    latency_s: float
    #: The most devices that this level joins, those of the levels inside it included; None: any
    #: number.
    devices: int | None = None
    #: The longest torus dims, in units of what the levels inside join; torus only.
    extents: tuple[int, ...] = ()
    #: A torus dim closes into a ring if its extent is a multiple of this (and above 2) ...
    wrap_multiple: int = 1
    #: ... and, where this is set, only if that holds for all dims of the slice.
    wrap_all: bool = False
    #: Where the numbers are from.
    source: str = ""

    def problems(self) -> list[str]:
        """What is impossible about the numbers, one text each."""
        extents = list(self.extents)
        dims_fit = self.topology != "torus" or 1 <= len(extents) <= 6
        checks = (
            ("topology", self.topology in TOPOLOGIES, f"one of {', '.join(TOPOLOGIES)}"),
            ("bytes_per_s", above_zero(self.bytes_per_s), "must be above 0"),
            ("latency_s", at_least_zero(self.latency_s), "must not be below 0"),
            ("devices", self.devices is None or self.devices >= 1, "must be above 0"),
            ("wrap_multiple", self.wrap_multiple >= 1, "must be above 0"),
            ("extents", all(extent >= 1 for extent in extents), "all must be above 0"),
            ("extents", dims_fit, "a torus has 1 to 6 dims"),
        )
        shown = {**vars(self), "extents": extents}
        return [
            f"{key} = {shown[key]!r} ({demand})" for key, passed, demand in checks if not passed
        ]


def above_zero(value: float) -> bool:
    """Is it a finite number above zero?"""
    return math.isfinite(value) and value > 0


def at_least_zero(value: float) -> bool:
    """Is it a finite number, zero or above?"""
    return math.isfinite(value) and value >= 0
