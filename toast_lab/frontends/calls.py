"""How users call their functions: keywords, static arguments, results that are no arrays.

``jax.jit`` and the jits of other libraries agree on little here, so that a function tells by its
kind what becomes of a Python number among its arguments and results (``numbers_of``).  This file
needs nothing but JAX, and exported code carries it along.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

_JITTED = type(jax.jit(lambda: None))
_NUMBERS = bool | int | float | complex
ARRAYS = "arrays"  #: Python numbers become arrays, as under ``jax.jit``
MIXED = "mixed"  #: they do but within equinox modules, since nobody calls those with ``jax.jit``
STATIC = "static"  #: they stay as they are, as under ``equinox.filter_jit``


class Facts(NamedTuple):
    """What a function says of its arguments, counted as its caller counts them."""

    static: frozenset[int]
    static_names: frozenset[str]
    donated: frozenset[int]
    donated_names: frozenset[str]


class Call(NamedTuple):
    """One call of a user's function."""

    #: what to call; of ``nnx.jit`` the function inside, whose changes that jit would hide
    fn: Callable[..., Any]
    values: tuple[Any, ...]  #: all arguments in the order of the parameters, keywords last
    by_name: tuple[str, ...]  #: names of the last of them, which are keywords
    numbers: str  #: what becomes of Python numbers: ARRAYS, MIXED or STATIC
    pure: bool  #: under ``jax.jit``, where nobody changes a module in place
    model: int  #: 1: the first value is the module that was given as the function; else 0


def prepared(fn: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> Call:
    """What a user's call means."""
    numbers, pure = numbers_of(fn), is_jitted(fn)
    values, by_name = ordered(fn, args, keywords)
    inside: Any = fn
    if is_nnx_jitted(inside):
        inside = inside.__wrapped__
    elif isinstance(inside, functools.partial) and is_nnx_jitted(inside.func):  # a module's method
        inside = functools.partial(inside.func.__wrapped__, *inside.args, **inside.keywords)  # type: ignore[attr-defined]
    if _is_module_with_arrays(inside):
        return Call(_call_module, (inside, *values), by_name, numbers, pure, 1)
    return Call(inside, values, by_name, numbers, pure, 0)


def _call_module(model: Any, *args: Any, **keywords: Any) -> Any:
    return model(*args, **keywords)


def _is_module_with_arrays(fn: Any) -> bool:
    if not (is_equinox_module(fn) or is_module(fn)):
        return False  # bound methods (model.apply) are no modules
    if type(fn).__module__.startswith("equinox._"):
        return False  # eqx.filter_jit and its like are modules too, around the user's function
    return any(hasattr(leaf, "shape") for leaf in jax.tree_util.tree_leaves(fn))


def ordered(
    fn: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """All arguments in the order of ``fn``'s parameters, and the names of the last, the keywords.

    One call is the same as another whatever the order of its keywords.  Those without a parameter
    of their name (of ``**options``) come last, sorted.
    """
    rest, found = dict(keywords), {}
    for name in parameter_names(fn):
        if name in rest:
            found[name] = rest.pop(name)
    found.update((name, rest[name]) for name in sorted(rest))
    return (*args, *found.values()), tuple(found)


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """Names of the parameters that can be given by name, in order; none if ``fn`` does not tell."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in _parameters(fn) if p.kind in by_name]


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return []


def called(fn: Callable[..., Any], values: Sequence[Any], keywords: Sequence[str]) -> Any:
    """Call ``fn`` with what ``ordered`` gave."""
    count = len(values) - len(keywords)
    return fn(*values[:count], **dict(zip(keywords, values[count:], strict=True)))


def facts(fn: Any, count: int) -> Facts:
    """What a jitted ``fn`` holds static and donates of ``count`` positional arguments, and by name.

    Sees through ``functools.partial``, bound methods and the jits of flax and equinox.
    """
    if isinstance(fn, functools.partial) or (
        is_equinox_module(fn) and hasattr(fn, "func") and hasattr(fn, "args")
    ):
        return _shifted(facts(fn.func, count + len(fn.args)), len(fn.args))
    if isinstance(fn, types.MethodType):
        return _shifted(facts(fn.__func__, count + 1), 1)
    # What equinox.filter_jit gives
    if is_equinox_module(fn) and hasattr(fn, "donate_first") and hasattr(fn, "donate_rest"):
        donated = {i for i in range(count) if (fn.donate_rest if i else fn.donate_first)}
        names = frozenset(parameter_names(fn)) if fn.donate_rest else frozenset[str]()
        return Facts(frozenset(), frozenset(), frozenset(donated), names)
    # JAX keeps this private, so nothing may be lost without it
    info = getattr(getattr(fn, "jitted_fn", fn), "_jit_info", None)
    wanted = getattr(fn, "__wrapped__", fn) if info is not None else fn
    at = {
        p.name: i
        for i, p in enumerate(_parameters(wanted))
        if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    }

    def both(what: str) -> tuple[frozenset[int], frozenset[str]]:
        numbers = _tuple(getattr(info, f"{what}_argnums", None))
        names = _tuple(getattr(info, f"{what}_argnames", None))
        positions = {i + count if i < 0 else i for i in numbers} | {
            at[name] for name in names if name in at
        }
        by_name = {name for name, i in at.items() if i in positions} | set(names)
        return frozenset(positions), frozenset(by_name)

    return Facts(*both("static"), *both("donate"))


def _shifted(jit_facts: Facts, by: int) -> Facts:
    """Facts of a function whose first arguments are given already."""
    return jit_facts._replace(
        static=frozenset(position - by for position in jit_facts.static if position >= by),
        donated=frozenset(position - by for position in jit_facts.donated if position >= by),
    )


def _tuple(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, str | int) else tuple(given)


def numbers_of(fn: Any) -> str:
    """What becomes of Python numbers under the jit that a user of ``fn`` would take.

    It is ARRAYS, MIXED or STATIC.
    """
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


def is_equinox_module(x: Any) -> bool:
    """Is this a module of equinox?  What ``equinox.filter_jit`` gives is one, too."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(x, equinox.Module)


def is_module(x: Any) -> bool:
    """Is this a module of flax's nnx, or an optimizer, a stream of random keys and the like?"""
    nnx = sys.modules.get("flax.nnx")
    kinds = tuple(
        getattr(nnx, kind) for kind in ("Pytree", "Object", "Module") if hasattr(nnx, kind)
    )
    return nnx is not None and isinstance(x, kinds) and not isinstance(x, type)


def is_nnx_jitted(fn: Any) -> bool:
    """Did ``nnx.jit`` make this?"""
    return type(fn).__module__.startswith("flax.nnx.") and hasattr(fn, "jitted_fn")


def numbers_kept(tree: Any, numbers: str) -> list[bool]:
    """For each leaf of a pytree, whether a Python number there is an array to come.

    Otherwise it is static.
    """
    if numbers != MIXED:
        return [numbers == ARRAYS] * len(jax.tree_util.tree_leaves(tree))
    keep: list[bool] = []
    for part in jax.tree_util.tree_leaves(tree, is_leaf=is_equinox_module):
        keep.extend([not is_equinox_module(part)] * len(jax.tree_util.tree_leaves(part)))
    return keep


class Whole(NamedTuple):
    """A pytree of which some leaves are arrays to come."""

    tree: Any
    #: for each leaf None where an array belongs, else (what is there,)
    slots: tuple[tuple[Any] | None, ...]

    def filled(self, arrays: Iterable[Any]) -> Any:
        """The pytree with these arrays in it."""
        rest = iter(arrays)
        return self.tree.unflatten([slot[0] if slot else next(rest) for slot in self.slots])


def split_result(result: Any, numbers: str) -> tuple[Any, Whole]:
    """Part a result into its arrays and the rest.

    Gives (the result's arrays with None in place of its other leaves, what makes the result of them
    again).
    """
    flat: Any = jax.tree_util.tree_flatten(result)
    leaves, tree = flat
    keep = numbers_kept(result, numbers)
    is_array = [_is_array(leaf, number) for leaf, number in zip(leaves, keep, strict=True)]
    slots = tuple(None if is_it else (leaf,) for leaf, is_it in zip(leaves, is_array, strict=True))
    arrays = [leaf if is_it else None for leaf, is_it in zip(leaves, is_array, strict=True)]
    return tree.unflatten(arrays), Whole(tree, slots)


def _is_array(leaf: Any, number_is_array: bool) -> bool:
    if isinstance(leaf, _NUMBERS) and not isinstance(leaf, np.generic):
        return number_is_array
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUMm"
    return isinstance(leaf, jax.Array) or hasattr(leaf, "__jax_array__")


class _Identity:
    """Stands for something that has no hash: equal to what stands for the very same thing."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)


def same(value: Any) -> Any:
    """Something to look up by what a trace depends on.

    Equal for things that stand for one another.
    """
    if isinstance(value, _NUMBERS):
        # 1 and 1.0 are equal, and so are 0.0 and -0.0, but not the same program
        return type(value), repr(value)
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    return value


def type_of(x: Any) -> tuple[Any, ...]:
    """Shape, type and weakness of the type of an array or a Python number."""
    aval: Any = jax.typeof(x)
    return tuple(aval.shape), str(aval.dtype), bool(getattr(aval, "weak_type", False))


def placed(arrays: Sequence[Any], shardings: Sequence[Any], donated: Sequence[bool]) -> list[Any]:
    """Arrays where ``jax.jit`` with these ``in_shardings`` takes them.

    It refuses what somebody put elsewhere: in a training loop what the step before gave, where its
    results are kept otherwise than its arguments.
    """
    on_devices = list(arrays)
    away = [
        i
        for i, (x, sharding) in enumerate(zip(arrays, shardings, strict=True))
        if isinstance(x, jax.Array)
        and not isinstance(x, jax.core.Tracer)
        and getattr(x, "committed", True)
        and not x.sharding.is_equivalent_to(sharding, x.ndim)
    ]
    if away:
        put = jax.device_put(
            [on_devices[i] for i in away],
            [shardings[i] for i in away],
            donate=[donated[i] for i in away],
        )
        for i, x in zip(away, put, strict=True):
            on_devices[i] = x
    return on_devices
