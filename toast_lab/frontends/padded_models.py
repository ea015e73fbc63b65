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
from typing import Any

import jax

from toast_lab.errors import InvalidProblem
from toast_lab.frontends import padded_function as on_padded
from toast_lab.frontends import tracing
from toast_lab.frontends.loading import LOWERED, function_of
from toast_lab.frontends.padding import Starts, padded_function, padding_of
from toast_lab.frontends.traced import in_child
from toast_lab.ir.model import Model, Recipe


def padded_model(
    model: Model, starts: Starts, *, words: Sequence[str] = (), time_limit_s: float = 300.0
) -> Model:
    """The model whose dims are padded.

    Args:
        model: a model whose function is known.
        starts: (argument, dim, size, padded size): of all that is made of this dim of an argument,
            dims of this size are padded, and the arguments' with them.
        words: what is padded, for texts: "vocabulary 50257 to 50304".
        time_limit_s: limit in seconds for a child process, in which user code runs that is not
            loaded in this one.

    Raises:
        InvalidProblem: the model has no function that could be traced again, it is padded already,
            or there is nothing of that size.
        FrontendError, RunFailed: the function cannot be traced.
    """
    function = model.function
    if model.padding is not None:
        raise InvalidProblem(f"{model.name} is padded already ({model.padding}); pad the original")
    if isinstance(function, Recipe):
        again: Model = in_child(
            "toast_lab.frontends.padded_models:padded_in_child",
            model,
            function,
            tuple(starts),
            time_limit_s=time_limit_s,
            activity=f"padding {function.which}",
        )
    elif function is None:
        raise InvalidProblem(
            f"{model.name} has no function that could be traced again: it was read from "
            f"{model.source or 'a file'}. Load the JAX function itself"
        )
    else:
        own, whole = padded_function(function, starts)
        again = tracing.traced_anew(model, own)
        again = dataclasses.replace(
            again, padding=padding_of(starts, whole), recompute=model.recompute
        )
    padding = again.padding
    assert padding is not None  # it was made above, or in the child
    again = dataclasses.replace(again, padding=padding._replace(words=tuple(words)))
    child = model.lowerings.child
    recipe = function if isinstance(function, Recipe) else child[1] if child is not None else None
    if isinstance(recipe, Recipe):
        recipe = recipe._replace(starts=tuple(starts))
        again.lowerings.child = (LOWERED, recipe)
        if isinstance(function, Recipe):
            again = dataclasses.replace(again, function=recipe)
    return again


def padded_in_child(model: Model, recipe: Recipe, starts: Starts) -> Model:
    """``padded_model`` in a child process, in which the user's code may run."""
    return padded_model(dataclasses.replace(model, function=function_of(recipe)), starts)


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
