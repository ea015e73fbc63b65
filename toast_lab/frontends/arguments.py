"""Separate the caller's arguments into arrays with paths and all other leaves, which are bound.

``jax.jit`` takes only arrays. Users of equinox pass modules with activation functions among their
leaves, users of flax's nnx pass modules that their function changes in place, and both expect the
behaviour of their library's own ``jit``. Therefore:

* a leaf other than an array (a function, a string, a config) is bound: the traced function sees it
  unchanged, and it is not an argument. Python numbers are arguments, as for ``jax.jit``, except
  under ``eqx.filter_jit`` and within an equinox module passed to a function that is not jitted,
  where that library binds them. The same goes for results: leaves other than arrays are set aside
  during tracing and returned with the arrays;
* an nnx module becomes its state; the function's changes to it are returned with the function's
  result. Under ``jax.jit`` it is a pytree like any other, and is not changed in place;
* an equinox or nnx module passed as the function itself is its own first argument;
* keywords are arguments after the positional ones.

Neither library is imported here: unless the user imports it, its classes cannot occur.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from toast_lab.errors import FrontendError, join_offenders
from toast_lab.frontends import calls, nnx_modules
from toast_lab.frontends.user_code import function_name
from toast_lab.ir.call_form import EQUINOX, JAX, NNX, CallForm


class NonArrayResult(NamedTuple):
    """A function's results other than arrays, from one trace."""

    result: calls.Whole
    changes: nnx_modules.Changes  #: in modules among the arguments


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The array arguments, and the function that takes them."""

    #: takes ``given``; gives the result, or (result, new values) if it changed variables
    call: Callable[..., Any]
    changed: list[str]  #: paths of those variables, known once ``call`` has been traced
    #: the pytree of each argument, with ShapeDtypeStructs or numbers, and None for bound leaves
    given: tuple[Any, ...]
    paths: list[list[str]]  #: of the leaves, per argument
    donated: tuple[int, ...]  #: argument positions
    notes: tuple[str, ...]
    leaves: list[Any]  #: the caller's own arrays and numbers, in the order of ``given``'s leaves
    #: ``in_shardings`` and ``out_shardings`` of a jitted function, as ``jax.jit`` takes them
    shardings: dict[str, Any]
    #: everything except shapes that determines the trace: structures and bound leaves
    structure: tuple[Any, ...]
    form: CallForm  #: without what only a trace tells: its results
    #: the results of ``call`` other than arrays, from its last trace
    outcome: Callable[[], NonArrayResult]
    #: makes the user's result from the arrays; updates the caller's modules
    deliver: Callable[[NonArrayResult, Sequence[Any]], Any]

    def donated_leaves(self) -> list[bool]:
        """For each leaf of ``given``, may the results reuse its buffer?"""
        return [i in self.donated for i, paths in enumerate(self.paths) for _ in paths]

    def with_strong_types(self) -> Arguments | None:
        """The same arguments, none of them weakly typed; None if none is."""
        leaves = jax.tree_util.tree_leaves(self.given)
        if not any(calls.type_of(leaf)[-1] for leaf in leaves):
            return None
        return dataclasses.replace(self, given=jax.tree_util.tree_map(_strong, self.given))

    def with_types_of(self, given: Sequence[Any]) -> Arguments | None:
        """The same arguments, as weakly typed as ``given``; None if more than that differs."""
        leaves, tree = jax.tree_util.tree_flatten(self.given)
        others, other_tree = jax.tree_util.tree_flatten(tuple(given))
        is_other_tree: bool = tree != other_tree  # type: ignore[operator]
        if is_other_tree or any(
            calls.type_of(leaf)[:-1] != calls.type_of(other)[:-1]
            for leaf, other in zip(leaves, others, strict=True)
        ):
            return None
        return dataclasses.replace(self, given=tuple(given))


def separate_arguments(
    fn: Callable[..., Any],
    args: Sequence[Any],
    donate_argnums: Sequence[int],
    keywords: Mapping[str, Any] | None = None,
) -> Arguments:
    """Separate arrays from bound leaves.

    ``donate_argnums`` are positions in the user's ``args``, counted from the end if negative;
    arguments that a jitted ``fn`` itself donates are added. ``keywords`` become arguments after
    ``args``, in the order of the parameters.

    Raises:
        FrontendError: leaves that look like arrays but are not JAX's, such as torch tensors (all
            are listed).
    """
    name = function_name(fn)
    user = calls.prepared(fn, args, keywords or {})
    positions = _positions(fn, len(args), donate_argnums, user)
    base = [*["model"][: user.model], *_parameter_names(fn, len(args)), *user.by_name]
    nodes = nnx_modules.Modules(() if user.pure else user.values)
    leaves = _sort_leaves(user, nodes, name=name, base=base, static=positions.static)
    changed: list[str] = []
    results: list[calls.Whole] = []  # one after a trace, with slots for the arrays

    def call(*given: Any) -> Any:
        filled = [
            template.filled(jax.tree_util.tree_leaves(arrays))
            for template, arrays in zip(leaves.wholes, given, strict=True)
        ]
        merged, module_leaves = nodes.merged(filled)
        result = calls.called(user.fn, merged, user.by_name)
        new_values = nodes.changed(module_leaves, positions.donated)
        changed[:] = nodes.names(nodes.changes, base)
        arrays, result_template = calls.split_result(nodes.marked(result), user.numbers)
        results[:] = [result_template]
        return (arrays, tuple(new_values)) if new_values else arrays

    call.__name__ = call.__qualname__ = name
    call.__signature__ = _signature(base)  # type: ignore[attr-defined]

    def deliver(outcome: NonArrayResult, arrays: Sequence[Any]) -> Any:
        result_count = len(arrays) - len(outcome.changes.at)
        nodes.store(outcome.changes, arrays[result_count:])
        return nodes.unmarked(outcome.result.filled(arrays[:result_count]))

    return Arguments(
        call=call,
        changed=changed,
        given=tuple(leaves.given),
        paths=leaves.paths,
        donated=positions.donated,
        notes=_notes(leaves.bound),
        leaves=leaves.arrays,
        shardings=positions.shardings,
        structure=(
            user.by_name,
            *(template.tree for template in leaves.wholes),
            *(
                calls.static_key(slot[0]) if slot else None
                for template in leaves.wholes
                for slot in template.slots
            ),
            nodes.graph,
        ),
        form=_form(fn, user, nodes, leaves, base=base, positions=positions),
        outcome=lambda: NonArrayResult(results[0], nodes.changes),
        deliver=deliver,
    )


class _Positions(NamedTuple):
    """A call's declarations about its arguments, by position in ``Call.values``."""

    static: frozenset[int]
    donated: tuple[int, ...]
    shardings: dict[str, Any]  #: as in ``Arguments``


def _positions(
    fn: Callable[..., Any], count: int, donate_argnums: Sequence[int], user: calls.Call
) -> _Positions:
    """The declarations of a jitted ``fn``, with the further arguments that the user donates."""
    out_of_range = [str(position) for position in donate_argnums if not -count <= position < count]
    if out_of_range:
        raise FrontendError(
            f"donate_argnums {', '.join(out_of_range)}: there are {count} arguments"
        )
    position_of = {name: count + i for i, name in enumerate(user.by_name)}

    def positions(indices: Iterable[int], names: Iterable[str]) -> set[int]:
        by_number = {index + count if index < 0 else index for index in indices}
        by_name = {position_of[name] for name in names if name in position_of}
        return {position for position in by_number if position < count} | by_name

    declared = calls.facts(fn, count)
    static = positions(declared.static, declared.static_names)
    donated = positions((*donate_argnums, *declared.donated), declared.donated_names)
    return _Positions(
        static=frozenset(position + user.model for position in static),
        donated=tuple(sorted(position + user.model for position in donated - static)),
        shardings=_shardings(getattr(fn, "_jit_info", None), static, count),
    )


class _SortedLeaves(NamedTuple):
    """The leaves of all arguments, separated into arrays and bound leaves."""

    wholes: list[calls.Whole]  #: one per argument
    given: list[Any]  #: as in ``Arguments``, as is ``paths``
    paths: list[list[str]]
    arrays: list[Any]  #: the caller's own
    bound: list[str]  #: the other leaves, as ``path = value``


def _sort_leaves(
    user: calls.Call,
    nodes: nnx_modules.Modules,
    *,
    name: str,
    base: Sequence[str],
    static: frozenset[int],
) -> _SortedLeaves:
    """Separate arrays from bound leaves; ``base`` holds the names of the function's arguments."""
    leaves = _SortedLeaves(wholes=[], given=[], paths=[], arrays=[], bound=[])
    offenders: list[str] = []
    for i, argument in enumerate(nodes.without(user.values)):
        path_leaves, tree = jax.tree_util.tree_flatten_with_path(argument)
        are_arguments = calls.numbers_kept(argument, user.numbers)
        paths: list[str] = []
        # For each leaf: None for an array, else (bound leaf,)
        slots: list[tuple[Any] | None] = []
        shapes: list[Any] = []
        for (key_path, leaf), number_is_argument in zip(path_leaves, are_arguments, strict=True):
            path = base[i] + nodes.keystr(key_path, i)
            shape = None if i in static else _array(leaf, number_is_argument)
            if isinstance(shape, str):
                offenders.append(f"{path}: {shape}")
                continue
            shapes.append(shape)
            slots.append((leaf,) if shape is None else None)
            if shape is None:
                leaves.bound.append(f"{path} = {_brief(leaf)}")
            else:
                leaves.arrays.append(leaf)
                paths.append(path)
        leaves.paths.append(paths)
        if not offenders:
            leaves.given.append(jax.tree_util.tree_unflatten(tree, shapes))
            leaves.wholes.append(calls.Whole(tree, tuple(slots)))
    if offenders:
        raise FrontendError(
            f"arguments of {name} that JAX cannot take:\n{join_offenders(offenders)}\n"
            "Pass jax.ShapeDtypeStruct(shape, dtype) or JAX arrays; torch modules go to "
            "toast_lab.from_torch."
        )
    return leaves


def _form(
    fn: Callable[..., Any],
    user: calls.Call,
    nodes: nnx_modules.Modules,
    leaves: _SortedLeaves,
    *,
    base: Sequence[str],
    positions: _Positions,
) -> CallForm:
    library = JAX
    if nodes.places:
        library = NNX
    elif user.numbers == calls.STATIC or (
        not user.pure
        and any(
            map(
                calls.is_equinox_module,
                jax.tree_util.tree_leaves(user.values, is_leaf=calls.is_equinox_module),
            )
        )
    ):
        library = EQUINOX
    counts = tuple(map(len, leaves.paths))
    with_bound = [any(slot is not None for slot in whole.slots) for whole in leaves.wholes]
    return CallForm(
        library=library,
        names=tuple(base),
        keyword_count=len(user.by_name),
        counts=counts,
        modules=tuple(sorted({position for position, path in nodes.places if not path})),
        around_modules=tuple(sorted({position for position, path in nodes.places if path})),
        static=tuple(i for i, bound in enumerate(with_bound) if bound and not counts[i]),
        partly_static=tuple(i for i, bound in enumerate(with_bound) if bound and counts[i]),
        donated=positions.donated,
        has_value_keys=any(
            jax.tree_util.keystr(path).endswith(".value") and not name.endswith(".value")
            for given, names in zip(leaves.given, leaves.paths, strict=True)
            for (path, _), name in zip(
                jax.tree_util.tree_flatten_with_path(given)[0], names, strict=True
            )
        ),
        is_sharded=bool(positions.shardings),
    )


def _notes(bound: Sequence[str]) -> tuple[str, ...]:
    """A note that tells the user which leaves are bound."""
    ellipsis = " ..." if len(bound) > 8 else ""
    note = f"bound, because they are not arrays: {', '.join(bound[:8])}{ellipsis}"
    return (note,) if bound else ()


def _shardings(info: Any, static: set[int], count: int) -> dict[str, Any]:
    """The shardings that a jitted function declares for its arguments and results, if any."""
    shardings = {}
    for key in ("in_shardings", "out_shardings"):
        leaves = getattr(info, f"{key}_leaves", None) or ()
        if any(isinstance(leaf, jax.sharding.Sharding) for leaf in leaves):
            shardings[key] = getattr(info, f"{key}_treedef").unflatten(leaves)
    in_shardings = shardings.get("in_shardings")
    if isinstance(in_shardings, tuple):  # one for each argument that is not static
        unread = iter(in_shardings)
        shardings["in_shardings"] = tuple(
            None if i in static else next(unread, None) for i in range(count)
        )
    return shardings


def _parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names for ``count`` positional arguments: ``params``, ``args[0]``, or ``arg0`` if unknown."""
    names: list[str] = []
    for parameter in calls.parameters(fn):
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind == parameter.VAR_POSITIONAL:
            names.extend(f"{parameter.name}[{i}]" for i in range(count - len(names)))
    return [*names, *(f"arg{i}" for i in range(len(names), count))][:count]


def _signature(base: Sequence[str]) -> inspect.Signature:
    """The signature from which JAX takes the names of the arguments in the module."""
    names = [name if name.isidentifier() else f"arg{i}" for i, name in enumerate(base)]
    names = [f"arg{i}" if names.count(name) > 1 else name for i, name in enumerate(names)]
    return inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
    )


def _array(leaf: Any, number_is_argument: bool) -> Any:
    """The shape or number to trace for a leaf, None to bind it, a str that describes a bad one."""
    if isinstance(leaf, bool | int | float | complex) and not isinstance(leaf, np.generic):
        return leaf if number_is_argument else None
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")) or isinstance(leaf, type):
        return None
    try:
        shape = tuple(int(size) for size in leaf.shape)
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        if is_key or np.dtype(leaf.dtype).kind not in "OSUMm":
            weak = bool(getattr(leaf, "weak_type", False))
            if calls.is_on_host(leaf):
                space = jax.memory.Space.Host
                return jax.core.ShapedArray(shape, leaf.dtype, weak, memory_space=space)
            return jax.ShapeDtypeStruct(shape, leaf.dtype, weak_type=weak)
    except Exception:
        pass
    return f"a {type(leaf).__module__.partition('.')[0]}.{type(leaf).__name__} of type {leaf.dtype}"


def _strong(leaf: Any) -> Any:
    shape, dtype, is_on_host, weak = calls.type_of(leaf)
    if not weak:
        return leaf
    if is_on_host:
        space = jax.memory.Space.Host
        return jax.core.ShapedArray(shape, leaf.dtype, weak_type=False, memory_space=space)
    return jax.ShapeDtypeStruct(shape, dtype)


def _brief(leaf: Any) -> str:
    name = getattr(leaf, "__name__", None) or repr(leaf)
    return name if len(name) <= 40 else name[:37] + "..."
