"""Which values of a traced function are typed random keys, as ``ir.random_keys`` asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from toast_lab.ir.random_keys import Keys


def is_key(x: Any) -> bool:
    """Are the elements of an array (or of what only has shape and type) typed random keys?"""
    import jax

    dtype = getattr(x, "dtype", None)
    return dtype is not None and bool(jax.numpy.issubdtype(dtype, jax.dtypes.prng_key))


def data_struct(x: Any) -> Any:
    """Shape and type of the data of keys; of anything else its own."""
    import jax

    return (
        jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(x.shape, x.dtype))
        if is_key(x)
        else x
    )


def words_of(x: Any) -> tuple[int, ...]:
    """Shape of the data of one key of this type: ``(2,)`` of the default kind."""
    import jax

    return tuple(data_struct(jax.ShapeDtypeStruct((), x.dtype)).shape)


def keys_of(jaxpr: Any, arguments: Sequence[Any]) -> Keys | None:
    """The random keys among a function's arguments and within its jaxpr; None if there are none."""
    words: dict[Any, tuple[int, ...]] = {}

    def of(x: Any) -> tuple[int, ...]:
        if x.dtype not in words:
            words[x.dtype] = words_of(x)
        return words[x.dtype]

    inside = {(tuple(map(int, aval.shape)), of(aval)) for aval in _avals(jaxpr) if is_key(aval)}
    if not inside:
        return None
    return Keys(tuple(len(of(x)) if is_key(x) else 0 for x in arguments), frozenset(inside))


def _avals(jaxpr: Any) -> Iterator[Any]:
    """Types of all values of a jaxpr and of those within it."""
    from jax.extend import core

    waiting, seen = [jaxpr], set[int]()
    while waiting:
        inner = waiting.pop()
        inner = getattr(inner, "jaxpr", inner)
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        for variable in (*inner.constvars, *inner.invars):
            yield variable.aval
        for eqn in inner.eqns:
            for variable in eqn.outvars:
                yield variable.aval
            parts = list(eqn.params.values())
            while parts:
                part = parts.pop()
                if isinstance(part, core.Jaxpr | core.ClosedJaxpr):
                    waiting.append(part)
                elif isinstance(part, tuple | list):
                    parts.extend(part)
