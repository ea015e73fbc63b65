"""Find the typed random keys among the values of a traced function, for ``ir.random_keys``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from toast_lab.ir.random_keys import Keys


def is_key(value: Any) -> bool:
    """Are the elements of an array, or of its shape and dtype alone, typed random keys?"""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and bool(jax.numpy.issubdtype(dtype, jax.dtypes.prng_key))


def data_struct(value: Any) -> Any:
    """Shape and dtype of the data of keys; any other value unchanged."""
    if not is_key(value):
        return value
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(value.shape, value.dtype))


def key_data_shape(value: Any) -> tuple[int, ...]:
    """Shape of the data of one key of this type: ``(2,)`` for the default kind."""
    return tuple(data_struct(jax.ShapeDtypeStruct((), value.dtype)).shape)


def keys_of(jaxpr: Any, arguments: Sequence[Any]) -> Keys | None:
    """The random keys among a function's arguments and within its jaxpr; None if there are none."""
    data_shapes: dict[Any, tuple[int, ...]] = {}

    def data_shape(argument: Any) -> tuple[int, ...]:
        if argument.dtype not in data_shapes:
            data_shapes[argument.dtype] = key_data_shape(argument)
        return data_shapes[argument.dtype]

    jaxpr_keys = {
        (tuple(map(int, aval.shape)), data_shape(aval)) for aval in _avals(jaxpr) if is_key(aval)
    }
    if not jaxpr_keys:
        return None
    return Keys(
        tuple(len(data_shape(argument)) if is_key(argument) else 0 for argument in arguments),
        frozenset(jaxpr_keys),
    )


def _avals(jaxpr: Any) -> Iterator[Any]:
    """Types of all values of a jaxpr and of the jaxprs nested in it."""
    pending, visited = [jaxpr], set[int]()
    while pending:
        current = pending.pop()
        current = getattr(current, "jaxpr", current)
        if id(current) in visited:
            continue
        visited.add(id(current))
        yield from (variable.aval for variable in (*current.constvars, *current.invars))
        for eqn in current.eqns:
            yield from (variable.aval for variable in eqn.outvars)
            pending.extend(jaxprs_in(eqn))


def jaxprs_in(eqn: Any) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation."""
    from jax.extend import core

    parameters = list(eqn.params.values())
    while parameters:
        parameter = parameters.pop()
        if isinstance(parameter, core.Jaxpr | core.ClosedJaxpr):
            yield parameter
        elif isinstance(parameter, tuple | list):
            parameters.extend(parameter)
