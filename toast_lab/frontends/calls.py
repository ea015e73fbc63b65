"""How users call their functions: keywords, static arguments, results other than arrays.

``jax.jit`` and the jits of other libraries treat Python numbers among arguments and results
differently, so the kind of function decides how they are treated (``numbers_of``). This file needs
nothing but JAX, and exported code depends on it.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten

_JITTED = type(jax.jit(lambda: None))
_NUMBERS = bool | int | float | complex
ARRAYS = "arrays"  #: Python numbers become arrays, as under ``jax.jit``
MIXED = "mixed"  #: the same, except within equinox modules, which are not meant for ``jax.jit``
STATIC = "static"  #: they stay as they are, as under ``equinox.filter_jit``


class CallFacts(NamedTuple):
    """A function's declarations about its arguments, by the positions that its caller uses."""

    static: frozenset[int]
    static_names: frozenset[str]
    donated: frozenset[int]
    donated_names: frozenset[str]


class Call(NamedTuple):
    """One call of a user's function."""

    #: the function to call, without its own jit: what that declares about arguments is known from
    #: ``facts``, its shardings must not bind a plan, and ``nnx.jit`` would hide changes
    fn: Callable[..., Any]
    values: tuple[Any, ...]  #: all arguments in the order of the parameters, keywords last
    by_name: tuple[str, ...]  #: names of the last values, which are keyword arguments
    numbers: str  #: treatment of Python numbers: ARRAYS, MIXED or STATIC
    pure: bool  #: under ``jax.jit``, where modules are not changed in place
    model: int  #: 1 if the first value is the module that was passed as the function, else 0


def prepared(fn: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> Call:
    """Bring a user's call into the form that is traced."""
    numbers, pure = numbers_of(fn), is_jitted(fn)
    values, by_name = ordered(fn, args, keywords)
    inner = without_jit(fn)
    model = int(_is_module_with_arrays(inner))
    if model:
        inner, values = operator.call, (inner, *values)
    return Call(inner, values, by_name, numbers=numbers, pure=pure, model=model)


def without_jit(fn: Any) -> Any:
    """``fn`` without its outermost ``jax.jit`` or ``nnx.jit``, also in partials and methods."""
    if isinstance(fn, functools.partial):
        return functools.partial(without_jit(fn.func), *fn.args, **fn.keywords)
    if isinstance(fn, types.MethodType):
        return types.MethodType(without_jit(fn.__func__), fn.__self__)
    return fn.__wrapped__ if isinstance(fn, _JITTED) or is_nnx_jitted(fn) else fn


def _is_module_with_arrays(fn: Any) -> bool:
    if not (is_equinox_module(fn) or is_module(fn)):
        return False  # bound methods (model.apply) are not modules
    if type(fn).__module__.startswith("equinox._"):
        return False  # eqx.filter_jit and similar wrap the user's function in a module too
    return any(hasattr(leaf, "shape") for leaf in tree_leaves(fn))


def ordered(
    fn: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """All arguments in the order of ``fn``'s parameters, keywords last, and the keywords' names.

    The order in which a call gives its keywords does not matter. Those that match no parameter
    (they go to ``**options``) come last, sorted.
    """
    declared = [name for name in parameter_names(fn) if name in keywords]
    names = tuple(dict.fromkeys([*declared, *sorted(keywords)]))
    return (*args, *(keywords[name] for name in names)), names


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """Names of the parameters that can be passed by name, in order; empty without a signature."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters(fn) if parameter.kind in by_name]


def parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function; empty without a signature."""
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return []


def called(fn: Callable[..., Any], values: Sequence[Any], keywords: Sequence[str]) -> Any:
    """Call ``fn`` with the result of ``ordered``."""
    count = len(values) - len(keywords)
    return fn(*values[:count], **dict(zip(keywords, values[count:], strict=True)))


def facts(fn: Any, count: int) -> CallFacts:
    """The static and donated arguments of a jitted ``fn`` that takes ``count`` positional ones.

    Sees through ``functools.partial``, bound methods and the jits of flax and equinox.
    """
    if isinstance(fn, functools.partial) or (
        is_equinox_module(fn) and hasattr(fn, "func") and hasattr(fn, "args")
    ):
        return _shifted(facts(fn.func, count + len(fn.args)), len(fn.args))
    if isinstance(fn, types.MethodType):
        return _shifted(facts(fn.__func__, count + 1), 1)
    # The result of equinox.filter_jit
    if is_equinox_module(fn) and hasattr(fn, "donate_first") and hasattr(fn, "donate_rest"):
        donated = {i for i in range(count) if (fn.donate_rest if i else fn.donate_first)}
        names = frozenset(parameter_names(fn)) if fn.donate_rest else frozenset[str]()
        return CallFacts(frozenset(), frozenset(), frozenset(donated), names)
    # Private to JAX, hence optional
    info = getattr(getattr(fn, "jitted_fn", fn), "_jit_info", None)
    inner = getattr(fn, "__wrapped__", fn) if info is not None else fn
    position_of = {
        parameter.name: i
        for i, parameter in enumerate(parameters(inner))
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    }

    def both(option: str) -> tuple[frozenset[int], frozenset[str]]:
        argnums = _tuple(getattr(info, f"{option}_argnums", None))
        names = _tuple(getattr(info, f"{option}_argnames", None))
        positions = {i + count if i < 0 else i for i in argnums} | {
            position_of[name] for name in names if name in position_of
        }
        by_name = {name for name, i in position_of.items() if i in positions}
        return frozenset(positions), frozenset(by_name.union(names))

    return CallFacts(*both("static"), *both("donate"))


def _shifted(facts: CallFacts, offset: int) -> CallFacts:
    """Facts of a function whose first arguments are bound already."""
    return facts._replace(
        static=frozenset(i - offset for i in facts.static if i >= offset),
        donated=frozenset(i - offset for i in facts.donated if i >= offset),
    )


def _tuple(option: Any) -> tuple[Any, ...]:
    if option is None:
        return ()
    return (option,) if isinstance(option, str | int) else tuple(option)


def numbers_of(fn: Any) -> str:
    """Treatment of Python numbers by the jit that suits ``fn``: ARRAYS, MIXED or STATIC."""
    fn = _innermost(fn)
    if is_equinox_module(fn):
        return STATIC
    return ARRAYS if isinstance(fn, _JITTED) or is_nnx_jitted(fn) else MIXED


def is_jitted(fn: Any) -> bool:
    """Did ``jax.jit`` make this?"""
    return isinstance(_innermost(fn), _JITTED)


def _innermost(fn: Any) -> Any:
    while isinstance(fn, functools.partial | types.MethodType):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
    return fn


def is_equinox_module(value: Any) -> bool:
    """Is this a module of equinox? The results of ``equinox.filter_jit`` are modules too."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(value, equinox.Module)


def is_module(value: Any) -> bool:
    """Is this a module of flax's nnx, or an optimizer, a stream of random keys and the like?"""
    nnx = sys.modules.get("flax.nnx")
    kinds = tuple(
        getattr(nnx, kind) for kind in ("Pytree", "Object", "Module") if hasattr(nnx, kind)
    )
    return nnx is not None and isinstance(value, kinds) and not isinstance(value, type)


def is_nnx_jitted(fn: Any) -> bool:
    """Did ``nnx.jit`` make this?"""
    return type(fn).__module__.startswith("flax.nnx.") and hasattr(fn, "jitted_fn")


def numbers_kept(tree: Any, numbers: str) -> list[bool]:
    """For each leaf of a pytree, whether a Python number there becomes an array or is static."""
    if numbers != MIXED:
        return [numbers == ARRAYS] * len(tree_leaves(tree))
    return [
        not is_equinox_module(subtree)
        for subtree in tree_leaves(tree, is_leaf=is_equinox_module)
        for _ in tree_leaves(subtree)
    ]


class Whole(NamedTuple):
    """A pytree in which some leaves are empty slots, to be filled with arrays."""

    tree: Any
    #: for each leaf: None where an array belongs, else (leaf,)
    slots: tuple[tuple[Any] | None, ...]

    def filled(self, arrays: Iterable[Any]) -> Any:
        """The pytree with these arrays in it."""
        unused = iter(arrays)
        return self.tree.unflatten([slot[0] if slot else next(unused) for slot in self.slots])


def split_result(result: Any, numbers: str) -> tuple[Any, Whole]:
    """Split a result into its arrays and the rest.

    Returns:
        The arrays as a pytree with None for the other leaves, and the ``Whole`` that rebuilds the
        result from them.
    """
    leaves, tree = tree_flatten(result)
    slots = tuple(
        None if _is_array(leaf, number_is_array) else (leaf,)
        for leaf, number_is_array in zip(leaves, numbers_kept(result, numbers), strict=True)
    )
    arrays = [None if slot else leaf for leaf, slot in zip(leaves, slots, strict=True)]
    return tree_unflatten(tree, arrays), Whole(tree, slots)


def _is_array(leaf: Any, number_is_array: bool) -> bool:
    if isinstance(leaf, _NUMBERS) and not isinstance(leaf, np.generic):
        return number_is_array
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUMm"
    return isinstance(leaf, jax.Array) or hasattr(leaf, "__jax_array__")


class _Identity:
    """Stands for an unhashable object: equal only to one that stands for the very same object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def static_key(value: Any) -> Any:
    """A hashable key for a static value: equal keys give the same trace."""
    if isinstance(value, _NUMBERS):
        # 1 and 1.0 are equal, and so are 0.0 and -0.0, but they make different programs
        return type(value), repr(value)
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    return value


def type_of(value: Any) -> tuple[Any, ...]:
    """(shape, dtype, is it on the host, is the dtype weak) of an array, type or Python number."""
    aval: Any = value if isinstance(value, jax.core.ShapedArray) else jax.typeof(value)
    weak = bool(getattr(aval, "weak_type", False))
    return tuple(aval.shape), str(aval.dtype), is_on_host(value), weak


def is_on_host(value: Any) -> bool:
    """Is an array in host memory, or the array that a type stands for?"""
    if isinstance(value, jax.Array | jax.core.ShapedArray):
        aval = value if isinstance(value, jax.core.ShapedArray) else jax.typeof(value)
        return str(getattr(aval, "memory_space", "")).endswith("Host")
    return getattr(getattr(value, "sharding", None), "memory_kind", None) == "pinned_host"


def place_arrays(
    arrays: Sequence[Any], shardings: Sequence[Any], donated: Sequence[bool]
) -> list[Any]:
    """Arrays placed where ``jax.jit`` with these ``in_shardings`` accepts them.

    ``jax.jit`` refuses arrays that are committed elsewhere. In a training loop these are results of
    the previous step that are sharded differently from its arguments.
    """
    results = list(arrays)
    misplaced = [
        i
        for i, (array, sharding) in enumerate(zip(arrays, shardings, strict=True))
        if isinstance(array, jax.Array)
        and not isinstance(array, jax.core.Tracer)
        and getattr(array, "committed", True)
        and not array.sharding.is_equivalent_to(sharding, array.ndim)
    ]
    if misplaced:
        moved = jax.device_put(
            [results[i] for i in misplaced],
            [shardings[i] for i in misplaced],
            donate=[donated[i] for i in misplaced],
        )
        for i, array in zip(misplaced, moved, strict=True):
            results[i] = array
    return results
