"""Models with padded dims: programs of sizes that the axes of a mesh divide.

``padded_model`` traces a model's function on padded arguments (``padded_function``). The model that
it gives is like any other; its arguments and results are padded, and ``padded_arguments`` and
``cut_results`` go to and fro between them and those of the function as it was written. Weights can
be stored padded, since their padding is and stays zero.

TOAST has no padding: it splits a dim only where the mesh divides it (section 4.2).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import jax

from toast_lab.errors import InvalidProblem
from toast_lab.frontends import padded_function as on_padded
from toast_lab.frontends import tracing
from toast_lab.frontends.loading import with_function, with_recipe
from toast_lab.frontends.padding import Starts, padded_function, padding_of
from toast_lab.ir.model import Function, Model


def padded_model(model: Model, starts: Starts, *, words: Sequence[str] = ()) -> Model:
    """The model whose dims are padded.

    Args:
        model: a model whose function is known.
        starts: (argument, dim, size, padded size): of all that is made of this dim of an argument,
            dims of this size are padded, and the arguments' with them.
        words: what is padded, for texts: "vocabulary 50257 to 50304".

    Raises:
        InvalidProblem: the model has no function that could be traced again, it is padded already,
            or there is nothing of that size.
        FrontendError, RunFailed: the function cannot be traced.
    """
    if model.padding is not None:
        raise InvalidProblem(f"{model.name} is padded already ({model.padding}); pad the original")
    again = with_function(
        _padded,
        model,
        tuple(starts),
        tuple(words),
        activity="padding {}",
    )
    return with_recipe(again, model, starts=tuple(starts))


def _padded(model: Model, starts: Starts, words: tuple[str, ...]) -> Model:
    own, whole = padded_function(cast(Function, model.function), starts)
    padding = padding_of(starts, whole)._replace(words=words)
    again = tracing.traced_anew(model, own)
    return dataclasses.replace(again, padding=padding, recompute=model.recompute)


def padded_arguments(model: Model, *arguments: Any) -> tuple[Any, ...]:
    """Arguments of the function as it was written, with zeros in the padding of ``model``.

    They may be any pytrees of the original's shapes. Weights that are padded once stay padded from
    step to step, since the results are.

    Raises:
        InvalidProblem: the model is not padded, or these are not its arguments.

    Examples:
        >>> import jax, toast_lab as tl
        >>> table = jax.numpy.ones((5, 4))
        >>> total = tl.from_jax(lambda table: (table @ table.T).sum(), table)
        >>> own = tl.padded(total, {"batch": 8})
        >>> tl.padded_arguments(own, table)[0].shape
        (8, 4)
    """
    return _each(model, "arguments", arguments, on_padded.pad)


def cut_results(model: Model, results: Any) -> Any:
    """Results of a padded model's function without their padding.

    Raises:
        InvalidProblem: the model is not padded, or these are not its results.

    Examples:
        >>> import jax, toast_lab as tl
        >>> table = jax.numpy.ones((5, 4))
        >>> double = tl.from_jax(lambda table: table * 2, table)
        >>> own = tl.padded(double, {"batch": 8})
        >>> padded_result = own.function.call(*tl.padded_arguments(own, table))
        >>> padded_result.shape, tl.cut_results(own, padded_result).shape
        ((8, 4), (5, 4))
    """
    return _each(model, "results", results, on_padded.cut)


def _each(model: Model, which: str, tree: Any, change: Any) -> Any:
    if model.padding is None:
        raise InvalidProblem(
            f"{model.name} is not padded; tl.padded(model, sizes) makes one that is"
        )
    rows = getattr(model.padding, which)
    leaves, structure = jax.tree.flatten(tree)
    if len(leaves) != len(rows):
        raise InvalidProblem(
            f"{model.name} has {len(rows)} arrays in its {which}, these are {len(leaves)}"
        )
    layouts = [{dim: on_padded.PaddedDim(*layout) for dim, *layout in row} for row in rows]
    return jax.tree.unflatten(structure, list(map(change, leaves, layouts)))
