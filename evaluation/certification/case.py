"""``Case``: one program to certify.

It says how to build the program, which ops it is meant to exercise, and which inputs make the
comparison meaningful.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from toast_lab import frontends
from toast_lab.ir.model import Model
from toast_lab.runtime import inputs

S = jax.ShapeDtypeStruct
F32 = jnp.float32

Maker = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Case:
    """A program to certify, built on demand, since tracing all of them takes a while."""

    name: str
    model: Callable[[], Model]
    #: ops (as StableHLO or CHLO spell them) that the program must hold to serve its purpose
    exercises: tuple[str, ...]
    #: makers of values that replace the drawn ones, by argument path or its prefix
    inputs: Mapping[str, Maker]
    why_inputs: str  #: why these inputs are needed
    slack: float = 1.0  #: factor on the dtype's tolerance
    why_slack: str = ""  #: evidence that the error is more than another order of rounding

    def __post_init__(self) -> None:
        if bool(self.inputs) != bool(self.why_inputs) or (self.slack != 1.0) != bool(
            self.why_slack
        ):
            raise ValueError(
                f"{self.name}: own inputs and a wider tolerance need their reason, and only those"
            )

    def missing(self, model: Model) -> list[str]:
        """Ops that the program should hold but does not."""
        return [
            op
            for op in self.exercises
            if not re.search(rf"\b(stablehlo|chlo)\.{op}\b", model.stablehlo)
        ]

    def arrays(self, model: Model, seed: int = 0) -> list[np.ndarray]:
        """The inputs of one comparison; the same seed gives the same inputs."""
        program = model.program
        arrays = inputs.draw(program, seed)
        used = set()
        for i in range(program.n_arguments):
            path = program.value_name[i]
            key = next(
                (k for k in self.inputs if path == k or path.startswith((k + "[", k + "."))), None
            )
            if key is not None:
                used.add(key)
                made = np.asarray(
                    self.inputs[key](np.random.default_rng([seed, i]), program.dims(i))
                )
                arrays[i] = made.astype(arrays[i].dtype).reshape(program.dims(i))
        unknown = sorted(set(self.inputs) - used)
        if unknown:
            raise ValueError(f"{self.name}: no argument is called {', '.join(unknown)}")
        return arrays


def case(
    name: str,
    fn: Callable[..., Any],
    *args: Any,
    exercises: str = "",
    inputs: Mapping[str, Maker] | None = None,
    why_inputs: str = "",
    slack: float = 1.0,
    why_slack: str = "",
    **options: Any,
) -> Case:
    """Make a case of a JAX function; ``options`` are passed to ``from_jax``."""
    return Case(
        name,
        lambda: frontends.from_jax(fn, *args, name=name, **options),
        tuple(exercises.split()),
        inputs or {},
        why_inputs,
        slack,
        why_slack,
    )


# -- values for arguments that need more than random numbers ---------------------------------------


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers between 0.5 and 1.5, whose sums do not cancel."""
    return rng.uniform(0.5, 1.5, shape)


def spd(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Symmetric positive definite matrices with a condition number below 3.

    Their Cholesky factors are then determined up to rounding.
    """
    n = shape[-1]
    a = rng.standard_normal(shape) / np.sqrt(n)
    return a @ np.swapaxes(a, -1, -2) * 0.3 + 2 * np.eye(n)


def triangular(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Lower triangular matrices with a dominant diagonal."""
    n = shape[-1]
    return np.tril(rng.standard_normal(shape) / n) + 2 * np.eye(n)


def spread(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Well separated values in random order, so that rounding cannot change a sort."""
    return rng.permutation(int(np.prod(shape))).reshape(shape) * 0.125


def separated_eigenvalues(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Symmetric matrices with eigenvalues 1, 2, 3, ...; eigenvectors are determined up to sign."""
    n = shape[-1]
    q = np.linalg.qr(rng.standard_normal(shape))[0]
    return q * np.arange(1.0, n + 1) @ np.swapaxes(q, -1, -2)


def below(bound: int) -> Maker:
    """Integers from 0 to ``bound - 1``."""
    return lambda rng, shape: rng.integers(0, bound, shape)


def always(value: Any) -> Maker:
    """Arrays that hold one value everywhere."""
    return lambda rng, shape: np.broadcast_to(np.asarray(value), shape)
