"""Shardings that the user wrote into a program.

``jax.lax.with_sharding_constraint`` leaves an ``sdy.sharding_constraint`` op; ``in_shardings`` and
``out_shardings`` leave attributes on the arguments and results of @main. Analysis and searches
ignore them all, unless ``Problem.keep_annotations`` turns them into pins.
"""

from __future__ import annotations

from typing import Any, NamedTuple

CONSTRAINT = "sdy.sharding_constraint"


class Annotation(NamedTuple):
    """The sharding that the user wrote for one value."""

    value: int  #: its index in the program
    name: str  #: path of the argument or result, else the value's name
    where: str  #: source line
    mesh: tuple[tuple[str, int], ...]  #: axes and their sizes; empty: unknown
    spec: tuple[tuple[str, ...], ...]  #: mesh axes per dim; a dim that may get more ends in ``"*"``
    replicated: tuple[str, ...]  #: axes that may not split any dim, not even an open one
    kind: str  #: "argument", "result", "constraint" (an op that does nothing else) or "op"
    trouble: str = ""  #: why no plan can express the sharding; empty if a plan can

    def __str__(self) -> str:
        dims = ", ".join("+".join(dim) or "-" for dim in self.spec)
        mesh = ",".join(f"{axis}={size}" for axis, size in self.mesh)
        source_line = f" ({self.where})" if self.where else ""
        return f"{self.kind} {self.name}{source_line}: ({dims}) on {mesh or 'an unknown mesh'}" + (
            f", {self.trouble}" if self.trouble else ""
        )


def annotations_of(program: Any) -> tuple[Annotation, ...]:
    """The shardings that the user wrote into a program.

    Takes a Model, a Problem, an Analysis or a Program.

    Examples:
        >>> import jax
        >>> import toast_lab as tl
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> rows = jax.NamedSharding(mesh, jax.P("data"))
        >>> x = jax.ShapeDtypeStruct((8, 4), "float32")
        >>> model = tl.from_jax(lambda x: jax.lax.with_sharding_constraint(2 * x, rows), x)
        >>> [annotation.kind for annotation in tl.annotations(model)]
        ['constraint']
    """
    for attribute in ("analysis", "program"):
        program = getattr(program, attribute, program)
    return tuple(program.annotations)
