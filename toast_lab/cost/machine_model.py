"""``Machine`` and ``Link``: what one device can compute and hold, and the levels of links that join devices.

Links come in levels, innermost first: cores of a chip, then the torus; NVLink within a node, then the network.  How a
mesh is laid onto them is ``cost/layout.py``'s matter; which machines there are, ``cost/machine_table.py``'s.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toast_lab.errors import InvalidProblem

TOPOLOGIES = ("ring", "torus", "switch")
COMPILERS = ("cpu", "gpu", "tpu")


@dataclasses.dataclass(frozen=True)
class Link:
    """One level of links.

    ``torus``: nearest neighbours in ``len(extents)`` dims; ``switch``: every device of the level one hop from every
    other; ``ring``: every mesh axis has a closed ring of its own, whatever its size (for sums in the head).
    """

    name: str  #: "ICI", "NVLink", "InfiniBand"
    topology: str  #: one of TOPOLOGIES
    bytes_per_s: float  #: sent by one device; on a torus along one dim, both its links together (one each way)
    latency_s: float  #: one hop
    devices: int | None = None  #: most devices that this level joins, those of the levels inside included; None: any
    extents: tuple[int, ...] = ()  #: longest torus dims, in units of what the levels inside join; torus only
    wrap_multiple: int = 1  #: a torus dim is closed into a ring if its extent is a multiple of this (and above 2)
    wrap_all: bool = False  #: and only if that holds for all dims of the slice
    source: str = ""  #: where the numbers are from

    def problems(self) -> list[str]:
        """What is impossible about the numbers, one text each."""
        wrong = (
            [] if self.topology in TOPOLOGIES else [f"topology = {self.topology!r} (one of {', '.join(TOPOLOGIES)})"]
        )
        wrong += [] if _above_zero(self.bytes_per_s) else [f"bytes_per_s = {self.bytes_per_s} (must be above 0)"]
        wrong += [] if _at_least_zero(self.latency_s) else [f"latency_s = {self.latency_s} (must not be below 0)"]
        if self.devices is not None and self.devices < 1:
            wrong.append(f"devices = {self.devices} (must be above 0)")
        if self.wrap_multiple < 1:
            wrong.append(f"wrap_multiple = {self.wrap_multiple} (must be above 0)")
        if any(e < 1 for e in self.extents):
            wrong.append(f"extents = {list(self.extents)} (all must be above 0)")
        if self.topology == "torus" and not 1 <= len(self.extents) <= 6:
            wrong.append(f"extents = {list(self.extents)} (a torus has 1 to 6 dims)")
        return wrong


@dataclasses.dataclass(frozen=True)
class Machine:
    """One device and its links.  Rates per second, sizes in bytes, times in seconds."""

    name: str
    flops: Mapping[str, float]  #: peak FLOP/s per element type of a dot or convolution; "f32" is the fallback
    memory_bytes: float  #: memory per device
    memory_bytes_per_s: float
    links: tuple[Link, ...]  #: innermost level first
    op_overhead_s: float  #: fixed cost of starting one unfused op
    overlap: float = 1.0  #: share of a collective that can hide behind independent compute, 0 to 1
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)  #: by field: where its numbers are from
    provenance: Mapping[str, str] = dataclasses.field(default_factory=dict)  #: of a measured machine: when, on what
    tile: float = 0.0  #: side of the matrix unit, to which local sizes of products are rounded up; 0: they are not
    compiler: str = "cpu"  #: whose habits of fusing to expect, one of COMPILERS

    def __post_init__(self) -> None:
        if wrong := self.problems():
            texts = "; ".join(f"{key}: {text}" if key.startswith("links") else text for key, text in wrong)
            raise InvalidProblem(f"machine {self.name}: impossible numbers: {texts}")

    def problems(self) -> list[tuple[str, str]]:
        """What is impossible about the numbers: (key, text) each."""
        positive = {
            "memory_bytes": self.memory_bytes,
            "memory_bytes_per_s": self.memory_bytes_per_s,
            **{f"flops.{k}": v for k, v in self.flops.items()},
        }
        wrong = [(k, f"{k} = {v} (must be above 0)") for k, v in positive.items() if not _above_zero(v)]
        if not _at_least_zero(self.op_overhead_s):
            wrong.append(("op_overhead_s", f"op_overhead_s = {self.op_overhead_s} (must not be below 0)"))
        if not _at_least_zero(self.tile):
            wrong.append(("tile", f"tile = {self.tile} (must not be below 0)"))
        if not 0 <= self.overlap <= 1:
            wrong.append(("overlap", f"overlap = {self.overlap} (must be from 0 to 1)"))
        if self.compiler not in COMPILERS:
            wrong.append(("compiler", f"compiler = {self.compiler!r} (one of {', '.join(COMPILERS)})"))
        if "f32" not in self.flops:
            wrong.append(("flops", 'flops has no "f32" entry, which the types that are not listed fall back to'))
        if not self.links:
            wrong.append(("links", "no level of links; give at least one"))
        for i, link in enumerate(self.links):
            wrong += [(f"links[{i}]", text) for text in link.problems()]
        limits = [link.devices for link in self.links]
        if any(d is None for d in limits[:-1]):
            wrong.append(("links", "every level but the outermost must say how many devices it joins"))
        sizes = [d for d in limits if d is not None]
        if any(inner < 1 or outer % inner or outer <= inner for inner, outer in itertools.pairwise(sizes)):
            wrong.append(("links", f"levels join {sizes} devices; each must join a multiple of the one inside it"))
        for i, link in enumerate(self.links):
            if link.topology == "torus" and link.extents and link.devices is not None and min(link.extents) > 0:
                inside = self.links[i - 1].devices if i else 1
                if inside and math.prod(link.extents) * inside < link.devices:
                    text = f"extents {list(link.extents)} hold {math.prod(link.extents) * inside} devices"
                    wrong.append((f"links[{i}]", f"{text}, fewer than devices = {link.devices}"))
        return wrong

    @classmethod
    def flat(
        cls, name: str, flops: Mapping[str, float], memory_bytes: float, memory_bytes_per_s: float,
        link_bytes_per_s: float, link_latency_s: float, topology: str, op_overhead_s: float, source: str,
    ) -> Machine:  # fmt: skip
        """A machine with one level of links, ``"ring"`` or ``"switch"``, and no limit to the number of devices."""
        link = Link("links", topology, link_bytes_per_s, link_latency_s, source=source)
        sources = {"all": source}
        return cls(name, flops, memory_bytes, memory_bytes_per_s, (link,), op_overhead_s, sources=sources)

    @classmethod
    def from_toml(cls, path: str | Path) -> Machine:
        """Read a machine file.  Raises InvalidProblem with every offending key."""
        from toast_lab.cost.machine_file import read

        return read(path)

    def to_toml(self, path: str | Path, comment: str = "") -> None:
        """Write a machine file; the file is either whole or as it was before.  ``comment`` goes to its end."""
        from toast_lab.cost.machine_file import write

        write(self, path, comment)

    @property
    def max_devices(self) -> int | None:
        """Most devices that its links join; None: any number."""
        last = self.links[-1]
        if last.topology != "torus":
            return last.devices
        inside = self.links[-2].devices or 1 if len(self.links) > 1 else 1
        held = math.prod(last.extents) * inside
        return held if last.devices is None else min(held, last.devices)

    @property
    def source(self) -> str:
        """All sources in one text."""
        texts = {**self.sources, **{link.name: link.source for link in self.links if link.source}}
        return " ".join(f"{key}: {text}" for key, text in texts.items())

    def peak_flops(self, dtype: str) -> float:
        """Peak FLOP/s for an element type as StableHLO spells it."""
        return self.flops.get(dtype, self.flops.get("bf16" if dtype == "f16" else "f32", self.flops["f32"]))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in a machine file."""
        data = dataclasses.asdict(self)
        data["flops"], data["sources"] = dict(self.flops), dict(self.sources)
        for link in data["links"]:
            link["extents"] = list(link["extents"])
        return data


def _above_zero(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _at_least_zero(value: float) -> bool:
    return math.isfinite(value) and value >= 0
