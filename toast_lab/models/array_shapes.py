"""Shapes in place of arrays: no weight of a built-in model is ever allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax

from toast_lab.models.registry import Example, count_parameters

if TYPE_CHECKING:
    import optax

    Weights = dict[tuple[Any, ...], tuple[tuple[str, int], ...]]
    """Path of a weight in nested dicts and lists -> name and size of each of its dims."""


def arrays_of(dtype: str) -> Callable[..., jax.ShapeDtypeStruct]:
    """``arrays_of("float32")(2, 3)`` stands for an array ``[2, 3]``."""
    return lambda *shape: jax.ShapeDtypeStruct(shape, jax.numpy.dtype(dtype))


def shapes_of(weights: Weights, dtype: str) -> dict[str, Any]:
    """Nested dicts of ShapeDtypeStructs; a group whose keys are numbers is a list."""
    shape_of = arrays_of(dtype)
    tree: dict[Any, Any] = {}
    for (*groups, name), dims in weights.items():
        group = tree
        for key in groups:
            group = group.setdefault(key, {})
        group[name] = shape_of(*(size for _, size in dims))

    def with_lists(group: Any) -> Any:
        if not isinstance(group, dict):
            return group
        inner = {key: with_lists(entry) for key, entry in group.items()}
        return list(inner.values()) if 0 in inner else inner

    return cast("dict[str, Any]", with_lists(tree))


def names_of(weights: Weights) -> dict[str, tuple[str, ...]]:
    """Names of the dims of the weights by argument path, like ``params['down'][0]['conv1']``."""
    return {
        "params" + "".join(f"[{key!r}]" for key in path): tuple(name for name, _ in dims)
        for path, dims in weights.items()
    }


class Training(NamedTuple):
    """A network that is trained: its forward pass, its loss and one step of its optimiser.

    ``forward(params, *inputs)``, ``loss(params, *inputs, *targets)`` and
    ``step(params, opt_state, *inputs, *targets)``.
    """

    forward: Callable[..., Any]
    loss: Callable[..., Any]
    step: Callable[..., Any]
    optimiser: optax.GradientTransformation

    def example(
        self, mode: str, params: Any, inputs: tuple[Any, ...], targets: tuple[Any, ...]
    ) -> Example:
        """Forward pass, gradient or training step, as ``mode`` says; a step's state is donated."""
        count = count_parameters(params)
        if mode == "forward":
            return Example(self.forward, (params, *inputs), parameter_count=count)
        if mode == "gradient":
            gradient = jax.value_and_grad(self.loss)
            return Example(gradient, (params, *inputs, *targets), parameter_count=count)
        state = jax.eval_shape(self.optimiser.init, params)
        args = (params, state, *inputs, *targets)
        return Example(self.step, args, donate_argnums=(0, 1), parameter_count=count)
