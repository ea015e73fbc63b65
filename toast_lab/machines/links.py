"""``Link``: one level of the links between devices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from toast_lab.sharding.step_kinds import REDUCE_SCATTER, STEP_KINDS

#: Kinds of steps that send data, in the order of their numbers.
COLLECTIVES = STEP_KINDS[REDUCE_SCATTER:]
TOPOLOGIES = ("ring", "torus", "switch")


class CollectiveTerms(NamedTuple):
    """Fitted terms for the time of one kind of collective over n devices of a switch, all >= 0.

    With x bytes sent by each device the time is ``start_s + device_s (n - 1) + root_byte_s sqrt(x)
    + x (byte_s + byte_over_n_s / n)``; ``collectives.py`` says where each term comes from.
    """

    start_s: float
    byte_s: float
    device_s: float = 0.0
    root_byte_s: float = 0.0
    byte_over_n_s: float = 0.0

    def problems(self, kind: str) -> list[str]:
        """One sentence for each impossible number, for the collective ``kind``."""
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
    size (simple enough for mental arithmetic).
    """

    #: "ICI", "NVLink", "InfiniBand"
    name: str
    #: One of TOPOLOGIES.
    topology: str
    #: Rate at which one device sends; on a torus, along one dim over both links (one each way).
    bytes_per_s: float
    #: Latency of one hop.
    latency_s: float
    #: The most devices that this level joins, including those of inner levels; None: any number.
    devices: int | None = None
    #: Torus only: the longest dims, in units of the devices that the inner level joins.
    extents: tuple[int, ...] = ()
    #: A torus dim closes into a ring if its extent is a multiple of this (and above 2) ...
    wrap_multiple: int = 1
    #: ... and, if this is set, only if that holds for all dims of the slice.
    wrap_all: bool = False
    #: Where the numbers come from.
    source: str = ""
    #: Switch only: terms fitted to measured times, by kind of collective, which replace rate and
    #: latency.
    collectives: Mapping[str, CollectiveTerms] = dataclasses.field(default_factory=dict)

    def problems(self) -> list[str]:
        """One sentence for each impossible number."""
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
                f"collectives on topology = {self.topology!r} (only for a switch, where all groups "
                "of n devices are alike)"
            )
        for kind, terms in self.collectives.items():
            if kind in COLLECTIVES:
                texts += terms.problems(kind)
            else:
                texts.append(f"collectives.{kind} (one of {', '.join(COLLECTIVES)})")
        return texts


def above_zero(value: float) -> bool:
    """Is this a finite number above zero?"""
    return math.isfinite(value) and value > 0


def at_least_zero(value: float) -> bool:
    """Is this a finite number of at least zero?"""
    return math.isfinite(value) and value >= 0
