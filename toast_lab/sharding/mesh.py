"""A device mesh: named axes with sizes, in order (the first axis is the slowest varying)."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from toast_lab.errors import InvalidProblem

MOST_DEVICES = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Named axes and their sizes; at most 8 axes.

    Examples:
        >>> import toast_lab as tl
        >>> mesh = tl.Mesh(("data", "model"), (4, 2))
        >>> print(mesh, mesh.n_devices)
        data=4,model=2 8
        >>> mesh == tl.Problem(tl.analyse(tl.load("mlp")), {"data": 4, "model": 2}).mesh
        True
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        offenders = []
        if len(self.axes) != len(self.sizes) or not self.axes:
            offenders.append(f"{len(self.axes)} axis names for {len(self.sizes)} sizes")
        if len(set(self.axes)) != len(self.axes):
            offenders.append(f"axis names repeat: {', '.join(self.axes)}")
        if len(self.axes) > 8:
            offenders.append(f"{len(self.axes)} axes, at most 8")
        offenders += [
            f"axis name {axis!r} is not an identifier"
            for axis in self.axes
            if not re.fullmatch(r"[A-Za-z_]\w*", axis)
        ]
        offenders += [
            f"axis {axis} has size {size}, must be a whole number above 0"
            for axis, size in zip(self.axes, self.sizes, strict=False)
            if size < 1
        ]
        if not offenders and self.n_devices > MOST_DEVICES:
            offenders.append(f"{self.n_devices:.3g} devices, at most {MOST_DEVICES}")
        if offenders:
            raise InvalidProblem(
                "bad mesh: " + "; ".join(offenders) + '. Give for instance "data=4,model=2"'
            )

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return math.prod(self.sizes)

    @property
    def split_axes(self) -> list[str]:
        """The axes of more than one device."""
        return [axis for axis, size in zip(self.axes, self.sizes, strict=True) if size > 1]

    def size(self, axis: str) -> int:
        """Size of one axis by name."""
        return self.sizes[self.axes.index(axis)]

    def ways(self, axes: Iterable[str]) -> int:
        """Number of pieces into which these axes together cut a dim."""
        return math.prod(self.size(axis) for axis in axes)

    def ways_on(self, cut: int, row: np.ndarray, axis: int) -> int:
        """Number of pieces of ``cut`` by an axis and all others that have it in ``row``: [A]."""
        return math.prod(
            size for other, size in enumerate(self.sizes) if other == axis or row[other] == cut
        )

    def divides(self, size: int, axes: Iterable[str]) -> bool:
        """Do these axes together cut ``size`` into equal pieces?"""
        return size % self.ways(axes) == 0

    def cut_dims(self, spec: Sequence[Sequence[str]]) -> tuple[int, ...]:
        """The dim of ``spec``, mesh axes per dim, that each axis cuts, -1: none.

        Names that are no axis, such as parts of one, are passed over.
        """
        dim_of = {axis: dim for dim, axes in enumerate(spec) for axis in axes}
        return tuple(dim_of.get(axis, -1) for axis in self.axes)

    def axes_in(self, mask: int) -> tuple[str, ...]:
        """The axes whose bits are set in ``mask``."""
        return tuple(axis for bit, axis in enumerate(self.axes) if mask >> bit & 1)

    def array(self) -> np.ndarray:
        """Axis sizes, int64."""
        return np.asarray(self.sizes, dtype=np.int64)

    def __str__(self) -> str:
        return ",".join(f"{axis}={size}" for axis, size in zip(self.axes, self.sizes, strict=True))


def make_mesh(mesh: Mesh | Mapping[str, int] | str) -> Mesh:
    """A Mesh from a mapping, ``"data=4,model=2"`` or ``"4x2"`` (data, model, axis2, ...).

    Raises InvalidProblem if the mesh cannot be read or is not valid.
    """
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, Mapping):
        offenders = [
            f"{axis}={size!r}"
            for axis, size in mesh.items()
            if isinstance(size, bool) or not isinstance(size, int | np.integer)
        ]
        if offenders:
            raise InvalidProblem(
                f"bad mesh: axis sizes must be whole numbers, got {', '.join(offenders)}"
            )
        return Mesh(tuple(mesh), tuple(int(size) for size in mesh.values()))
    mesh_text = mesh.strip()
    if re.fullmatch(r"[0-9]{1,12}(x[0-9]{1,12})*", mesh_text):
        sizes = tuple(int(size) for size in mesh_text.split("x"))
        names = ("data", "model", *(f"axis{axis_number}" for axis_number in range(2, len(sizes))))
        return Mesh(names[: len(sizes)], sizes)
    axis_texts = [
        axis_text.partition("=") for axis_text in mesh_text.split(",") if axis_text.strip()
    ]
    if not axis_texts or any(
        not sep or not re.fullmatch("[0-9]{1,12}", size.strip()) for _, sep, size in axis_texts
    ):
        raise InvalidProblem(f'cannot read the mesh {mesh!r:.100}; write "4x2" or "data=4,model=2"')
    return Mesh(
        tuple(name.strip() for name, _, _ in axis_texts),
        tuple(int(size) for _, _, size in axis_texts),
    )
