"""``Link``: one level of the links that join devices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from toast_lab.sharding.step_kinds import REDUCE_SCATTER, STEP_KINDS

#: Those that send something, in the order of their numbers.
COLLECTIVES = STEP_KINDS[REDUCE_SCATTER:]
TOPOLOGIES = ("ring", "torus", "switch")


class CollectiveTerms(NamedTuple):
    """Fitted seconds of one kind of collective over n devices of a switch, none below 0.

    With x bytes sent by each device they are ``start_s + device_s (n - 1) + root_byte_s sqrt(x) +
    x (byte_s + byte_over_n_s / n)``; ``collectives.py`` says where each term comes from.
    """

    start_s: float
    byte_s: float
    device_s: float = 0.0
    root_byte_s: float = 0.0
    byte_over_n_s: float = 0.0

    def problems(self, kind: str) -> list[str]:
        """What is impossible about the numbers of a kind, one text each."""
        texts = [
            f"collectives.{kind}.{key} = {value!r} (must not be below 0)"
            for key, value in self._asdict().items()
            if not at_least_zero(value)
        ]
        if self.byte_s == 0.0:
            texts.append(f"collectives.{kind}.byte_s = {self.byte_s!r} (must be above 0)")
        return texts


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
    #: By kind of collective: terms fitted to measured times, which replace rate and latency; switch
    #: only.
    collectives: Mapping[str, CollectiveTerms] = dataclasses.field(default_factory=dict)

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
        texts = [
            f"{key} = {shown[key]!r} ({demand})" for key, passed, demand in checks if not passed
        ]
        if self.collectives and self.topology != "switch":
            texts.append(
                f"collectives on topology = {self.topology!r} (only of a switch, where all groups "
                "of n devices are alike)"
            )
        for kind, terms in self.collectives.items():
            if kind in COLLECTIVES:
                texts += terms.problems(kind)
            else:
                texts.append(f"collectives.{kind} (one of {', '.join(COLLECTIVES)})")
        return texts


def above_zero(value: float) -> bool:
    """Is it a finite number above zero?"""
    return math.isfinite(value) and value > 0


def at_least_zero(value: float) -> bool:
    """Is it a finite number, zero or above?"""
    return math.isfinite(value) and value >= 0
