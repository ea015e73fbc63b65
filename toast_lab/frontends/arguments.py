"""The caller's arguments, taken apart into arrays with paths, and everything else, which is bound.

``jax.jit`` wants arrays only.  Users of equinox hand over modules whose leaves are also activation
functions, users of flax's nnx hand over modules that their function changes in place, and both
expect what their library's own ``jit`` would do.  So here:

* a leaf that is no array (a function, a string, a config) is bound: the traced function sees it as
  it is, and it is no argument.  Python numbers are arguments, as for ``jax.jit``, except below
  ``eqx.filter_jit`` and within an equinox module that a function without a jit takes, where that
  library binds them.  Results likewise: what is no array is kept aside when the function is traced,
  and given back with its arrays;
* an nnx module becomes its state; what the function changes in it is returned beside the function's
  result.  Under ``jax.jit`` it is a pytree like others, which nobody changes in place;
* an equinox or nnx module given as the function itself is its own first argument;
* keywords are arguments behind the positional ones.

Neither library is imported here: where the user has not imported it there is nothing of it to find.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toast_lab.errors import FrontendError, join_offenders
from toast_lab.frontends import calls, nnx_modules
from toast_lab.frontends.user_code import function_name


class Outcome(NamedTuple):
    """What a function gives beside arrays, as of one trace."""

    result: calls.Whole
    changes: nnx_modules.Changes  #: in modules among the arguments


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Arguments without what is no array, and the function that takes their leaves."""

    #: takes ``given``; gives the result, or (result, new values) where it changed variables
    call: Callable[..., Any]
    changed: list[str]  #: paths of those variables, known once ``call`` was traced
    #: per argument its pytree, with ShapeDtypeStructs or numbers, None for what was bound
    given: tuple[Any, ...]
    paths: list[list[str]]  #: of the leaves, per argument
    donated: tuple[int, ...]  #: argument positions
    notes: tuple[str, ...]
    leaves: list[Any]  #: the caller's own arrays and numbers, in the order of ``given``'s leaves
    #: ``in_shardings`` and ``out_shardings`` of a jitted function, as ``jax.jit`` takes them
    shardings: dict[str, Any]
    #: all that decides what is traced but the shapes: structures, and what was bound
    structure: tuple[Any, ...]
    #: what else than arrays came of ``call`` when it was traced last
    outcome: Callable[[], Outcome]
    #: the user's result of the arrays; updates the caller's modules
    deliver: Callable[[Outcome, Sequence[Any]], Any]


def take_apart(
    fn: Callable[..., Any],
    args: Sequence[Any],
    donate_argnums: Sequence[int],
    keywords: Mapping[str, Any] | None = None,
) -> Arguments:
    """Separate arrays from what is bound.

    ``donate_argnums`` counts the user's ``args``, from the end where it is negative; it is joined
    by what a jitted ``fn`` donates itself.  ``keywords`` become arguments behind ``args``, in the
    order of the parameters.

    Raises:
        FrontendError: leaves that look like arrays but are none for JAX, such as torch tensors (all
            are listed).
    """
    import jax

    name = function_name(fn)
    bad = [str(number) for number in donate_argnums if not -len(args) <= number < len(args)]
    if bad:
        raise FrontendError(f"donate_argnums {', '.join(bad)}: there are {len(args)} arguments")
    user = calls.prepared(fn, args, keywords or {})
    values, first = user.values, user.model
    at_name = {text: len(args) + position for position, text in enumerate(user.by_name)}
    jit_facts = calls.facts(fn, len(args))
    static = {
        *(position for position in jit_facts.static if position < len(args)),
        *(at_name[text] for text in jit_facts.static_names if text in at_name),
    }
    wanted = {
        number + len(args) if number < 0 else number
        for number in (*donate_argnums, *jit_facts.donated)
        if number < len(args)
    }
    wanted |= {at_name[text] for text in jit_facts.donated_names if text in at_name}
    donated = tuple(sorted(number + first for number in wanted - static))
    shardings = _shardings(getattr(fn, "_jit_info", None), static, len(args))
    static = {position + first for position in static}
    base = [*["model"][:first], *_parameter_names(fn, len(args)), *user.by_name]
    nodes = nnx_modules.Modules(() if user.pure else values)
    plain = nodes.without(values)
    paths: list[list[str]] = []
    # Per leaf of the whole argument: None for an array, else (what is bound,)
    slots: list[list[Any]] = []
    given: list[Any] = []
    wrong: list[str] = []
    bound: list[str] = []
    leaves: list[Any] = []
    for position, arg in enumerate(plain):
        flat: Any = jax.tree_util.tree_flatten_with_path(arg)
        found, tree = flat
        keep = calls.numbers_kept(arg, user.numbers)
        paths.append([])
        slots.append([])
        filled: list[Any] = []
        for (path, leaf), number_is_argument in zip(found, keep, strict=True):
            text = base[position] + nodes.keystr(path, position)
            array = None if position in static else _array(leaf, number_is_argument)
            if isinstance(array, str):
                wrong.append(f"{text}: {array}")
            elif array is None:
                slots[position].append((leaf,))
                filled.append(None)
                bound.append(f"{text} = {_brief(leaf)}")
            else:
                slots[position].append(None)
                filled.append(array)
                leaves.append(leaf)
                paths[position].append(text)
        given.append(None if wrong else tree.unflatten(filled))
    if wrong:
        raise FrontendError(
            f"arguments of {name} that JAX cannot take:\n{join_offenders(wrong)}\n"
            "Give jax.ShapeDtypeStruct(shape, dtype) or JAX arrays; torch modules go to "
            "toast_lab.from_torch."
        )
    wholes = [
        calls.Whole(jax.tree_util.tree_structure(arg), tuple(slot))
        for arg, slot in zip(plain, slots, strict=True)
    ]
    changed: list[str] = []
    last: list[calls.Whole] = []

    def call(*traced: Any) -> Any:
        whole = [
            w.filled(jax.tree_util.tree_leaves(t)) for w, t in zip(wholes, traced, strict=True)
        ]
        made, before = nodes.merged(whole)
        result = calls.called(user.fn, made, user.by_name)
        new = nodes.changed(before, donated)
        changed[:] = nodes.names(nodes.changes, base)
        arrays, rest = calls.split_result(nodes.marked(result), user.numbers)
        last[:] = [rest]
        return (arrays, tuple(new)) if new else arrays

    call.__name__ = call.__qualname__ = name
    call.__signature__ = _signature(base)  # type: ignore[attr-defined]
    structure = (
        user.by_name,
        *(w.tree for w in wholes),
        *(calls.same(s[0]) if s else None for w in wholes for s in w.slots),
        nodes.graph,
    )
    notes = []
    if bound:
        notes.append(
            f"bound, being no arrays: {', '.join(bound[:8])}{' ...' if len(bound) > 8 else ''}"
        )

    def traced_last() -> Outcome:
        return Outcome(last[0], nodes.changes)

    def deliver(outcome: Outcome, arrays: Sequence[Any]) -> Any:
        count = len(arrays) - len(outcome.changes.at)
        nodes.store(outcome.changes, arrays[count:])
        return nodes.unmarked(outcome.result.filled(arrays[:count]))

    return Arguments(
        call,
        changed,
        tuple(given),
        paths,
        donated,
        tuple(notes),
        leaves,
        shardings,
        structure,
        traced_last,
        deliver,
    )


def _shardings(info: Any, static: set[int], count: int) -> dict[str, Any]:
    """What a jitted function says of the shardings of its arguments and results, if anything."""
    import jax

    found = {}
    for key in ("in_shardings", "out_shardings"):
        leaves = getattr(info, f"{key}_leaves", None) or ()
        if any(isinstance(leaf, jax.sharding.Sharding) for leaf in leaves):
            found[key] = jax.tree_util.tree_unflatten(getattr(info, f"{key}_treedef"), leaves)
    given = found.get("in_shardings")
    if isinstance(given, tuple):  # one for each argument that is not static
        rest = iter(given)
        found["in_shardings"] = tuple(
            None if i in static else next(rest, None) for i in range(count)
        )
    return found


def _parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names for ``count`` positional arguments.

    They are the function's own (``params``, ``x``), ``args[0]`` of ``*args``, else ``arg0``.
    """
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            names.append(parameter.name)
        elif parameter.kind == inspect.Parameter.VAR_POSITIONAL:
            names.extend(f"{parameter.name}[{i}]" for i in range(count - len(names)))
    return [*names, *(f"arg{i}" for i in range(len(names), count))][:count]


def _signature(base: list[str]) -> inspect.Signature:
    """What JAX looks at to name the arguments in the module."""
    names = [name if name.isidentifier() else f"arg{i}" for i, name in enumerate(base)]
    names = [f"arg{i}" if names.count(name) > 1 else name for i, name in enumerate(names)]
    return inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
    )


def _array(leaf: Any, number_is_argument: bool) -> Any:
    """What to trace in place of a leaf.

    It is a shape or a number, None if the leaf is to be bound, or a complaint (str).
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    if isinstance(leaf, bool | int | float | complex) and not isinstance(leaf, np.generic):
        return leaf if number_is_argument else None
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")) or isinstance(leaf, type):
        return None
    kind = f"a {type(leaf).__module__.partition('.')[0]}.{type(leaf).__name__} of type {leaf.dtype}"
    try:
        shape = tuple(int(size) for size in leaf.shape)
        if (
            not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
            and np.dtype(leaf.dtype).kind in "OSUMm"
        ):
            return kind
        return jax.ShapeDtypeStruct(
            shape, leaf.dtype, weak_type=bool(getattr(leaf, "weak_type", False))
        )
    except Exception:
        return kind


def _brief(leaf: Any) -> str:
    text = getattr(leaf, "__name__", None) or repr(leaf)
    return text if len(text) <= 40 else text[:37] + "..."
