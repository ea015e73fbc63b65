"""Shardings that a user has written into a program.

``jax.lax.with_sharding_constraint`` leaves an ``sdy.sharding_constraint`` op, ``in_shardings`` and
``out_shardings`` leave attributes on the arguments and results of @main.  Analysis and searches do
not look at any of them, until ``Problem.keep_annotations`` turns them into pins.
"""

from __future__ import annotations

from typing import Any, NamedTuple

CONSTRAINT = "sdy.sharding_constraint"


class Annotation(NamedTuple):
    """One sharding of one value."""

    value: int  #: number in the program
    name: str  #: path of the argument or result, else the value's name
    where: str  #: source line
    mesh: tuple[tuple[str, int], ...]  #: axes and their sizes; empty: unknown
    spec: tuple[tuple[str, ...], ...]  #: mesh axes per dim; a dim that may get more ends in ``"*"``
    replicated: tuple[str, ...]  #: axes that are on no dim, the open ones included
    kind: str  #: "argument", "result", "constraint" (an op that does nothing else) or "op"
    trouble: str = ""  #: why no plan can express it; empty if one can

    def __str__(self) -> str:
        dims = ", ".join("+".join(dim) or "-" for dim in self.spec)
        mesh = ",".join(f"{axis}={size}" for axis, size in self.mesh)
        place = f" ({self.where})" if self.where else ""
        return f"{self.kind} {self.name}{place}: ({dims}) on {mesh or 'an unknown mesh'}" + (
            f", {self.trouble}" if self.trouble else ""
        )


def annotations_of(program: Any) -> tuple[Annotation, ...]:
    """The shardings that the user has written into a program.

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
    for inner in ("analysis", "program"):
        program = getattr(program, inner, program)
    return tuple(program.annotations)
