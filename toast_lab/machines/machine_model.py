"""``Machine``: the compute and memory of one device, and the levels of links between devices.

Links come in levels, innermost first: the cores of a chip, then the torus; or NVLink within a node,
then the network. A machine file is TOML with the fields of these classes, and ``docs/machines.md``
explains each; their annotations say what a file may hold (``records``). ``topology.py`` lays a mesh
onto the links; ``catalogue.py`` has the built-in machines.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from toast_lab import records
from toast_lab.errors import InvalidProblem, join_offenders
from toast_lab.files import write_whole
from toast_lab.machines.gpu_products import GpuProducts
from toast_lab.machines.links import Link
from toast_lab.records import ABOVE_ZERO, AT_LEAST_ZERO, PART, SHARE

COMPILERS = ("cpu", "gpu", "tpu")
#: A machine file is about a page long; a larger file is not one.
LARGEST_BYTES = 4 * 2**20


@dataclasses.dataclass(frozen=True)
class Machine:
    """One device and its links. Rates are per second, sizes in bytes, times in seconds.

    Raises:
        InvalidProblem: some numbers are impossible; all of these are listed.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("mlp")), {"data": 4}, machine="tpu-v5e")
        >>> machine = problem.machine
        >>> machine.name, machine.memory_bytes / 2**30, machine.peak_flops("bf16") / 1e12
        ('tpu-v5e', 16.0, 197.0)
        >>> [link.name for link in machine.links]
        ['ICI']
    """

    name: str
    #: Peak FLOP/s of a dot or convolution by element type; "f32" is the fallback.
    flops: Mapping[str, Annotated[float, ABOVE_ZERO]]
    #: Memory of one device.
    memory_bytes: Annotated[float, ABOVE_ZERO]
    memory_bytes_per_s: Annotated[float, ABOVE_ZERO]
    #: Levels of links, innermost first.
    links: tuple[Link, ...]
    #: Fixed cost of starting one unfused op.
    op_overhead_s: Annotated[float, AT_LEAST_ZERO]
    #: Share of a collective that can hide behind independent compute, 0 to 1.
    overlap: Annotated[float, SHARE] = 1.0
    #: Where numbers come from, by field.
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: For a measured machine: the date and the hardware of the measurement.
    provenance: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Side of the matrix unit; local sizes of products are rounded up to it, unless it is 0.
    tile: Annotated[int | float, AT_LEAST_ZERO] = 0.0
    #: Share of ``memory_bytes_per_s`` that products reach, above 0 to 1.
    memory_sustained: Annotated[float, PART] = 1.0
    #: TPU: memory on the chip, in which loops keep values that every round reads; 0: none.
    vector_memory_bytes: Annotated[float, AT_LEAST_ZERO] = 0.0
    #: TPU: rate at which products read it; 0: in no time.
    vector_memory_bytes_per_s: Annotated[float, AT_LEAST_ZERO] = 0.0
    #: TPU: smallest group of devices whose collectives run piece by piece, overlapping with the
    #: product that needs or feeds them; 0: they never do.
    collective_matmul: Annotated[float, AT_LEAST_ZERO] = 0.0
    #: TPU: most bytes of sums over the same devices that are combined into one; 0: none are.
    combined_sum_bytes: Annotated[float, AT_LEAST_ZERO] = 0.0
    #: TPU: elements per second of a transposing copy, of any type; 0: it costs no time.
    transposed_numbers_per_s: Annotated[float, AT_LEAST_ZERO] = 0.0
    #: TPU: elements per second that slices at several offsets move among lanes and rows; GPU: that
    #: are joined out of step with its warps; 0: they cost no time.
    shifted_numbers_per_s: Annotated[float, AT_LEAST_ZERO] = 0.0
    #: Share, 0 to 1, of a gather that overlaps with earlier products if its operand, such as a
    #: weight, exists long before; at most the computing time of the op that needs it is hidden.
    gathered_ahead: Annotated[float, SHARE] = 0.0
    #: Rate of the link between one device and its host's memory, one way; 0: unknown.
    host_link_bytes_per_s: Annotated[float, AT_LEAST_ZERO] = 0.0
    #: Compiler whose way of fusing is expected, one of ``COMPILERS``.
    compiler: Annotated[str, records.one_of(COMPILERS)] = "cpu"
    #: GPU: how products fill it, instead of ``tile``.
    products: GpuProducts | None = None

    def __post_init__(self) -> None:
        if problems := list(records.problems(self)):
            raise InvalidProblem(f"machine {self.name}: impossible numbers: {'; '.join(problems)}")

    def offences(self) -> Iterator[str]:
        """What is wrong about several fields together."""
        return self.offences_of(vars(self))

    @staticmethod
    def offences_of(fields: Mapping[str, Any]) -> Iterator[str]:
        """``offences`` of fields, some of which may be missing."""
        if fields.get("products") is not None and fields.get("tile"):
            yield (
                f"tile = {fields['tile']} beside [products] (both say how products fill the "
                "machine: remove one)"
            )
        if "f32" not in fields.get("flops", ["f32"]):
            yield 'flops has no "f32" entry, the fallback for types that are not listed'
        links: tuple[Link, ...] = fields.get("links", ())
        if "links" in fields and not links:
            yield "no level of links; give at least one"
        if any(link.devices is None for link in links[:-1]):
            yield "every level but the outermost must say how many devices it joins"
        sizes = [link.devices for link in links if link.devices is not None]
        if any(
            inner < 1 or outer % inner or outer <= inner
            for inner, outer in itertools.pairwise(sizes)
        ):
            yield f"levels join {sizes} devices; each must join a multiple of the one inside it"
        for level, link in enumerate(links):
            if link.topology != "torus" or link.devices is None or min(link.extents, default=0) < 1:
                continue
            inner_devices = links[level - 1].devices if level else 1
            held_devices = math.prod(link.extents) * (inner_devices or 0)
            if inner_devices and held_devices < link.devices:
                yield (
                    f"links[{level}].extents {list(link.extents)} hold {held_devices} devices, "
                    f"fewer than devices = {link.devices}"
                )

    @classmethod
    def from_toml(cls, path: str | Path) -> Machine:
        """Read a machine file. Raises InvalidProblem that lists every offending key."""
        return cls.from_data(records.load(path, "a machine file", LARGEST_BYTES), str(path))

    @classmethod
    def from_data(cls, data: Mapping[str, Any], file: str) -> Machine:
        """The machine that the TOML ``data`` of ``file`` describes.

        Raises:
            InvalidProblem: the data is wrong; every offending key is listed with the file's name.
        """
        mistakes: list[str] = []
        fields = records.read({"name": Path(file).stem, **data}, cls, mistakes)
        if not fields.get("name", "unread").strip():
            mistakes.append(f"name = {fields['name']!r} is not a text")
        mistakes += cls.offences_of(fields)
        if mistakes:
            title = f"{file}: {len(mistakes)} mistakes in this machine file:"
            raise InvalidProblem(f"{title}\n{join_offenders(mistakes)}")
        return cls(**fields)

    def to_toml(self, path: str | Path, comment: str = "") -> None:
        """Write a machine file, whole or not at all, with ``comment`` at its end.

        Raises:
            NotSaved: it cannot be written; an existing file is unchanged.
        """
        write_whole(path, self.toml(comment), "the machine file")

    def toml(self, comment: str = "") -> str:
        """The text of a machine file, with ``comment`` as comment lines at its end."""
        lines = records.lines(self, defaults=True)
        if comment:
            lines += ["", *(f"# {line}".rstrip() for line in comment.splitlines())]
        return "\n".join(lines) + "\n"

    @property
    def product_bytes_per_s(self) -> float:
        """Rate of memory traffic that memory-bound products reach."""
        return self.memory_sustained * self.memory_bytes_per_s

    @property
    def max_devices(self) -> int | None:
        """The most devices that the links join; None means any number."""
        outermost = self.links[-1]
        if outermost.topology != "torus":
            return outermost.devices
        inner_devices = self.links[-2].devices or 1 if len(self.links) > 1 else 1
        torus_devices = math.prod(outermost.extents) * inner_devices
        return torus_devices if outermost.devices is None else min(torus_devices, outermost.devices)

    @property
    def source(self) -> str:
        """All sources, of numbers and of links, as one text."""
        texts = {**self.sources, **{link.name: link.source for link in self.links if link.source}}
        return " ".join(f"{key}: {text}" for key, text in texts.items())

    def peak_flops(self, dtype: str) -> float:
        """Peak FLOP/s for an element type as StableHLO spells it."""
        fallback = "bf16" if dtype == "f16" else "f32"
        return self.flops.get(dtype, self.flops.get(fallback, self.flops["f32"]))

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain data, as in a machine file."""
        data = dataclasses.asdict(self)
        data["flops"], data["sources"] = dict(self.flops), dict(self.sources)
        for link in data["links"]:
            link["extents"] = list(link["extents"])
            link["collectives"] = {
                kind: terms._asdict() for kind, terms in link["collectives"].items()
            }
        data["products"] = self.products._asdict() if self.products else None
        return data
