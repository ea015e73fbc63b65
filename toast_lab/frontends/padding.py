"""A traced function on padded arguments: its pytrees, and the record of what is padded.

``padded_function`` (the module of this name) pads jaxprs; here it is applied to a ``Function``, as
``loading`` does when it makes one again from its recipe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from toast_lab.errors import FrontendError, InvalidProblem
from toast_lab.frontends import padded_function as on_padded
from toast_lab.ir.model import Function, PaddedDims, Padding

Starts = Sequence[tuple[int, int, int, int]]


def padded_function(function: Function, starts: Starts) -> tuple[Function, on_padded.Padded]:
    """The function on padded arguments, and what of them is padded.

    Raises:
        InvalidProblem: there is nothing of that size.
        FrontendError: the function cannot be traced.
    """
    try:
        step = on_padded.PaddedStep(function.call, function.given, starts)
    except ValueError as error:
        if "nothing to pad" not in str(error):
            raise FrontendError(f"the function cannot be traced to pad it: {error}") from error
        raise InvalidProblem(str(error)) from error
    whole = step.padded
    leaves, tree = jax.tree.flatten(function.given)

    def call(*given: Any) -> Any:
        return step(*given)

    call.__name__ = call.__qualname__ = getattr(function.call, "__name__", "call")
    given = [_shape(leaf, own) for leaf, own in zip(leaves, whole.arguments, strict=True)]
    results = [_shape(leaf, own) for leaf, own in zip(function.results, whole.results, strict=True)]
    own = dataclasses.replace(
        function,
        call=call,
        given=jax.tree.unflatten(tree, given),
        results=tuple(results),
        shardings={},
    )
    return own, whole


def _shape(leaf: Any, layouts: dict[int, on_padded.PaddedDim]) -> Any:
    """A leaf as it is, or the shape that it has with its dims padded."""
    if not layouts:
        return leaf
    shape = [layouts[dim].total if dim in layouts else size for dim, size in enumerate(leaf.shape)]
    return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)


def padding_of(starts: Starts, whole: on_padded.Padded) -> Padding:
    """The record of what is padded."""
    return Padding(
        starts=tuple(map(tuple, starts)),  # type: ignore[arg-type]
        arguments=tuple(map(_dims, whole.arguments)),
        results=tuple(map(_dims, whole.results)),
        alone=tuple(map(str, whole.alone)),
    )


def _dims(layouts: dict[int, on_padded.PaddedDim]) -> PaddedDims:
    return tuple((dim, *layout) for dim, layout in sorted(layouts.items()))
