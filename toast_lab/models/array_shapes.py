"""Shapes in place of arrays: no weight of a built-in model is ever allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from toast_lab.models.registry import Example, count_parameters

if TYPE_CHECKING:
    import optax


def arrays_of(dtype: str) -> Callable[..., jax.ShapeDtypeStruct]:
    """``arrays_of("float32")(2, 3)`` stands for an array ``[2, 3]``."""
    return lambda *shape: jax.ShapeDtypeStruct(shape, jax.numpy.dtype(dtype))


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
