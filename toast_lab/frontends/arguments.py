"""The caller's arguments, taken apart into arrays with paths, and everything else, which is bound.

``jax.jit`` wants arrays only.  Users of equinox hand over modules whose leaves are also activation functions,
users of flax's nnx hand over modules that their function changes in place, and both expect what their library's own
``jit`` would do.  So here:

* a leaf that is no array (a function, a string, a config) is bound: the traced function sees it as it is, and it is
  no argument.  Python numbers are arguments, as for ``jax.jit``, except within an equinox module or below
  ``eqx.filter_jit``, where that library binds them;
* an nnx module becomes its state; what the function changes in it is returned beside the function's result;
* an equinox or nnx module given as the function itself is its own first argument.

Neither library is imported here: where the user has not imported it there is nothing of it to find.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from toast_lab.errors import FrontendError, join_offenders
from toast_lab.frontends.user_code import function_name


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Arguments without what is no array, and the function that takes their leaves."""

    call: Callable[..., Any]  #: takes ``given``; gives the result, or (result, new values) where it changed variables
    changed: list[str]  #: paths of those variables, known once ``call`` was traced
    given: tuple[Any, ...]  #: per argument its pytree, with ShapeDtypeStructs or numbers, None for what was bound
    paths: list[list[str]]  #: of the leaves, per argument
    donated: tuple[int, ...]  #: argument positions
    notes: tuple[str, ...]
    leaves: list[Any]  #: the caller's own arrays and numbers, in the order of ``given``'s leaves
    shardings: dict[str, Any]  #: ``in_shardings`` and ``out_shardings`` of a jitted function, as ``jax.jit`` takes them
    structure: tuple[Any, ...]  #: all that decides what is traced but the shapes: structures, and what was bound
    changed_at: list[Any]  #: where ``changed`` is, for ``store``; known like it
    store: Callable[[Sequence[Any], Sequence[Any]], None]  #: puts values into the caller's modules: where, values


def take_apart(fn: Callable[..., Any], args: tuple[Any, ...], donate_argnums: Sequence[int]) -> Arguments:
    """Separate arrays from what is bound.

    ``donate_argnums`` counts the user's ``args``; it is joined by what a jitted ``fn`` donates itself.

    Raises:
        FrontendError: leaves that look like arrays but are none for JAX, such as torch tensors (all are listed).
    """
    import jax

    name = function_name(fn)
    bad = [str(d) for d in donate_argnums if not 0 <= d < len(args)]
    if bad:
        raise FrontendError(f"donate_argnums {', '.join(bad)}: there are {len(args)} arguments")
    info = getattr(fn, "_jit_info", None)  # of jax.jit; private, hence nothing is lost if it is not there
    static = set(getattr(info, "static_argnums", None) or getattr(fn, "static_argnums", None) or ())
    donated = list(dict.fromkeys([*donate_argnums, *(getattr(info, "donate_argnums", None) or ())]))
    numbers_are_static = type(fn).__module__.startswith("equinox.")
    base = _parameter_names(fn, len(args))
    shardings = _shardings(info, static, len(args))
    fn = _unwrapped(fn)
    if _is_module_with_arrays(fn):
        args, base = (fn, *args), ["model", *base]
        static, donated = {i + 1 for i in static}, [i + 1 for i in donated]
        fn = _call_module
    nodes = _Nnx(args)
    plain = nodes.without(args)
    paths: list[list[str]] = []
    slots: list[list[Any]] = []  # per leaf of the whole argument: None for an array, else (what is bound,)
    given: list[Any] = []
    wrong: list[str] = []
    bound: list[str] = []
    leaves: list[Any] = []
    for i, arg in enumerate(plain):
        flat: Any = jax.tree_util.tree_flatten_with_path(arg)
        found, tree = flat
        keep = _numbers_kept(arg, len(found), numbers_are_static)
        paths.append([])
        slots.append([])
        filled: list[Any] = []
        for (path, leaf), number_is_argument in zip(found, keep, strict=True):
            text = base[i] + nodes.keystr(path, i)
            array = None if i in static else _array(leaf, number_is_argument)
            if isinstance(array, str):
                wrong.append(f"{text}: {array}")
            elif array is None:
                slots[i].append((leaf,))
                filled.append(None)
                bound.append(f"{text} = {_brief(leaf)}")
            else:
                slots[i].append(None)
                filled.append(array)
                leaves.append(leaf)
                paths[i].append(text)
        given.append(None if wrong else tree.unflatten(filled))
    if wrong:
        raise FrontendError(
            f"arguments of {name} that JAX cannot take:\n{join_offenders(wrong)}\n"
            "Give jax.ShapeDtypeStruct(shape, dtype) or JAX arrays; torch modules go to toast_lab.from_torch."
        )
    trees: list[Any] = [jax.tree_util.tree_structure(arg) for arg in plain]

    changed: list[str] = []

    def call(*traced: Any) -> Any:
        whole = []
        for tree, slot, arrays in zip(trees, slots, traced, strict=True):
            rest = iter(jax.tree_util.tree_leaves(arrays))
            whole.append(tree.unflatten([s[0] if s else next(rest) for s in slot]))
        made, before = nodes.merged(whole)
        result = fn(*made)
        new = nodes.changed(before, base)
        changed[:] = list(new)
        result = jax.tree_util.tree_map(lambda leaf: leaf if _is_result(leaf) else None, result)
        return (result, tuple(new.values())) if new else result

    call.__name__ = call.__qualname__ = name
    call.__signature__ = _signature(base)  # type: ignore[attr-defined]
    structure = (*trees, *(_same(s[0]) if s else None for slot in slots for s in slot), nodes.graph)
    notes = []
    if bound:
        notes.append(f"bound, being no arrays: {', '.join(bound[:8])}{' ...' if len(bound) > 8 else ''}")
    return Arguments(
        call, changed, tuple(given), paths, tuple(sorted(d for d in donated if d not in static)), tuple(notes), leaves,
        shardings, structure, nodes.changed_at, nodes.store,
    )  # fmt: skip


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
        found["in_shardings"] = tuple(None if i in static else next(rest, None) for i in range(count))
    return found


def _parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names for ``count`` positional arguments: ``params``, ``x``, ``args[0]`` of ``*args``, else ``arg0``."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind == inspect.Parameter.VAR_POSITIONAL:
            names.extend(f"{parameter.name}[{i}]" for i in range(count - len(names)))
    return [*names, *(f"arg{i}" for i in range(len(names), count))][:count]


def _signature(base: list[str]) -> inspect.Signature:
    """What JAX looks at to name the arguments in the module."""
    names = [name if name.isidentifier() else f"arg{i}" for i, name in enumerate(base)]
    names = [f"arg{i}" if names.count(name) > 1 else name for i, name in enumerate(names)]
    return inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names])


def _unwrapped(fn: Any) -> Any:
    """The user's function inside nnx.jit, whose own jit would hide which variables stay as they were."""
    if type(fn).__module__.startswith("flax.nnx.") and hasattr(fn, "jitted_fn"):
        return fn.__wrapped__
    return fn


def _is_module_with_arrays(fn: Any) -> bool:
    import jax

    if not (_is_equinox_module(fn) or _is_nnx_node(fn)):
        return False  # bound methods (model.apply) are no modules
    if type(fn).__module__.startswith("equinox._"):
        return False  # eqx.filter_jit and its like are modules too, around the user's function
    return any(hasattr(leaf, "shape") for leaf in jax.tree_util.tree_leaves(fn))


def _call_module(model: Any, *args: Any) -> Any:
    return model(*args)


def _is_equinox_module(x: Any) -> bool:
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(x, equinox.Module)


def _is_nnx_node(x: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    kinds = tuple(getattr(nnx, kind) for kind in ("Pytree", "Object", "Module") if hasattr(nnx, kind))
    return nnx is not None and isinstance(x, kinds) and not isinstance(x, type)


def _numbers_kept(arg: Any, count: int, all_static: bool) -> list[bool]:
    """For each leaf of an argument, whether a Python number there is an argument (and not bound)."""
    import jax

    if all_static:
        return [False] * count
    keep: list[bool] = []
    for part in jax.tree_util.tree_leaves(arg, is_leaf=_is_equinox_module):
        keep.extend([not _is_equinox_module(part)] * len(jax.tree_util.tree_leaves(part)))
    return keep


def _array(leaf: Any, number_is_argument: bool) -> Any:
    """What to trace in place of a leaf: a shape or a number; None if it is to be bound; a complaint (str)."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    if isinstance(leaf, bool | int | float | complex):
        return leaf if number_is_argument else None
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")) or isinstance(leaf, type):
        return None
    kind = f"a {type(leaf).__module__.partition('.')[0]}.{type(leaf).__name__} of type {leaf.dtype}"
    try:
        shape = tuple(int(size) for size in leaf.shape)
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.extended) and np.dtype(leaf.dtype).kind in "OSUMm":
            return kind
        return jax.ShapeDtypeStruct(shape, leaf.dtype, weak_type=bool(getattr(leaf, "weak_type", False)))
    except Exception:
        return kind


def _is_result(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float | complex) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))


class _Same:
    """Stands for something that has no hash: equal to what stands for the very same thing."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)


def _same(thing: Any) -> Any:
    try:
        hash(thing)
    except TypeError:
        return _Same(thing)
    return thing


def _brief(leaf: Any) -> str:
    text = getattr(leaf, "__name__", None) or repr(leaf)
    return text if len(text) <= 40 else text[:37] + "..."


class _Nnx:
    """The nnx modules among the arguments: split together, so that what they share stays shared."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        import jax

        self.nnx: Any = sys.modules.get("flax.nnx")
        self.changed_at: list[tuple[Any, ...]] = []  # paths within the state of all nodes
        self.places: dict[tuple[int, tuple[Any, ...]], int] = {}  # argument and path within it -> node
        self.graph: Any = None
        if self.nnx is None:
            return
        nodes: list[Any] = []
        for i, arg in enumerate(args):
            for path, part in jax.tree_util.tree_flatten_with_path(arg, is_leaf=_is_nnx_node)[0]:
                if _is_nnx_node(part):
                    self.places[i, path] = len(nodes)
                    nodes.append(part)
        if nodes:
            self.nodes = tuple(nodes)
            self.graph, state = self.nnx.split(self.nodes)
            # A node all of whose variables belong to an earlier one as well has no entry of its own.
            self.states = [state[n] if n in state else self.nnx.State({}) for n in range(len(nodes))]

    def _replace(self, args: Sequence[Any], is_leaf: Callable[[Any], bool], new: Sequence[Any]) -> list[Any]:
        import jax

        made = []
        for i, arg in enumerate(args):
            flat: Any = jax.tree_util.tree_flatten_with_path(arg, is_leaf=is_leaf)
            found, tree = flat
            parts = [new[self.places[i, path]] if (i, path) in self.places else part for path, part in found]
            made.append(tree.unflatten(parts))
        return made

    def without(self, args: tuple[Any, ...]) -> list[Any]:
        """``args`` with the state of each module in its place."""
        return self._replace(args, _is_nnx_node, self.states) if self.places else list(args)

    def keystr(self, path: tuple[Any, ...], argument: int) -> str:
        """A path as text; within a module its keys are written as the attributes that they are."""
        import jax

        for end in range(len(path) + 1):
            if (argument, path[:end]) in self.places:
                return str(jax.tree_util.keystr(path[:end])) + _attributes(path[end:])
        text = str(jax.tree_util.keystr(path))
        return text.removesuffix(".value") if self.nnx is not None else text

    def merged(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """``args`` with modules in place of their states, and the leaves of those, to be compared with later."""
        import jax

        if not self.places:
            return list(args), []
        states: list[Any] = [None] * len(self.states)
        for i, arg in enumerate(args):
            for path, part in jax.tree_util.tree_flatten_with_path(arg, is_leaf=self._is_state)[0]:
                if (i, path) in self.places:
                    states[self.places[i, path]] = part
        before = jax.tree_util.tree_leaves(states)
        self.live = self.nnx.merge(self.graph, self.nnx.State(dict(enumerate(states))))
        return self._replace(args, self._is_state, self.live), before

    def _is_state(self, x: Any) -> bool:
        return isinstance(x, self.nnx.State)

    def changed(self, before: list[Any], base: list[str]) -> dict[str, Any]:
        """Path and new value of every variable that is no longer what it was."""
        import jax

        if not self.places:
            return {}
        old = {id(leaf) for leaf in before}
        place = {node: where for where, node in self.places.items()}
        found = {}
        self.changed_at.clear()
        for path, leaf in jax.tree_util.tree_flatten_with_path(self.nnx.split(self.live)[1])[0]:
            argument, at = place[path[0].key]
            if id(leaf) not in old:
                found[base[argument] + str(jax.tree_util.keystr(at)) + _attributes(path[1:])] = leaf
                self.changed_at.append(path)
        return found

    def store(self, at: Sequence[Any], values: Sequence[Any]) -> None:
        """Put values into the caller's modules."""
        import jax

        new = dict(zip(at, values, strict=True))
        flat: Any = jax.tree_util.tree_flatten_with_path(self.nnx.split(self.nodes)[1])
        found, tree = flat
        self.nnx.update(self.nodes, tree.unflatten([new.get(path, leaf) for path, leaf in found]))


def _attributes(path: tuple[Any, ...]) -> str:
    """``['layers'][0]['kernel'].value`` as ``.layers[0].kernel``."""
    import jax

    text = ""
    for i, key in enumerate(path):
        name = getattr(key, "key", None)
        if isinstance(name, str) and name.isidentifier():
            text += f".{name}"
        elif not (i == len(path) - 1 and getattr(key, "name", "") == "value"):
            text += str(jax.tree_util.keystr((key,)))
    return text
