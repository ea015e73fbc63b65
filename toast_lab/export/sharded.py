"""``jax.jit`` of a function with the shardings of a plan: arguments, results, and constraints at places of its source.

Modules of flax's nnx in the arguments, also within tuples and dicts, are changed in place, as under ``nnx.jit``.  Like
``constrained`` this file needs nothing but JAX, and exported code carries it along.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax

from toast_lab.export.constrained import ENDS, Rule, constrain, partition_spec

ENDS.add((lambda: 0).__code__.co_filename)
Specs = Mapping[str, tuple[Any, ...]]  # path of a leaf -> mesh axes per dim; "*" stands for any number


class Shardings(NamedTuple):
    """What a plan says of a function."""

    mesh: Mapping[str, int]  #: sizes of the axes, in order
    arguments: Sequence[Specs]  #: one for each positional argument
    result: Specs
    changed: Sequence[Specs]  #: for each argument, what the function leaves of it where that is another sharding
    rules: Sequence[Rule]
    donated: tuple[int, ...] = ()


def make_mesh(shardings: Shardings, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """The mesh, of the first devices if none are given."""
    import numpy as np

    sizes = tuple(shardings.mesh.values())
    count = int(np.prod(sizes))
    found = list(jax.devices() if devices is None else devices)
    if len(found) < count:
        raise ValueError(f"the mesh {dict(shardings.mesh)} needs {count} devices, here are {len(found)}")
    return jax.sharding.Mesh(np.asarray(found[:count]).reshape(sizes), tuple(shardings.mesh))


def shard(
    fn: Callable[..., Any], shardings: Shardings, mesh: jax.sharding.Mesh | None = None, **options: Any
) -> Callable[..., Any]:
    """``fn``, jitted and sharded.

    ``options`` go to ``jax.jit``.  ``place(*args)`` of the result puts arguments where they belong, ``lower(*args)`` is
    that of ``jax.jit``.
    """
    mesh = make_mesh(shardings) if mesh is None else mesh
    jitted: dict[Any, Any] = {}
    options = {"donate_argnums": shardings.donated, **options}

    def prepare(args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...], _Modules]:
        modules = _Modules(args)
        leaves, tree = jax.tree_util.tree_flatten(modules.plain)
        key = tree, tuple((getattr(x, "shape", ()), str(getattr(x, "dtype", type(x)))) for x in leaves), modules.graph
        if key not in jitted:
            pure = modules.pure(fn)
            ins = tuple(map(functools.partial(_tree, mesh), modules.plain, shardings.arguments))
            outs = _outs(mesh, shardings, jax.eval_shape(pure, *modules.plain), modules)
            constrained = constrain(pure, shardings.rules, mesh)
            jitted[key] = jax.jit(constrained, in_shardings=ins, out_shardings=outs, **options)
        return jitted[key], modules.plain, modules

    @functools.wraps(fn)
    def sharded(*args: Any) -> Any:
        run, plain, modules = prepare(args)
        result, new = run(*plain)
        modules.store(new)
        return result

    def lower(*args: Any) -> Any:
        run, plain, _ = prepare(args)
        return run.lower(*plain)

    def place(*args: Any) -> tuple[Any, ...]:
        modules = _Modules(args)
        put = tuple(
            jax.device_put(a, _tree(mesh, a, s)) for a, s in zip(modules.plain, shardings.arguments, strict=True)
        )
        return modules.placed(put)

    sharded.lower, sharded.place, sharded.mesh = lower, place, mesh  # type: ignore[attr-defined]
    return sharded


def _outs(mesh: Any, shardings: Shardings, shapes: Any, modules: _Modules) -> Any:
    result, new = shapes
    changed = {}
    for k, state in new.items():
        i, path = modules.at[k]
        changed[k] = _tree(mesh, state, {**shardings.arguments[i], **shardings.changed[i]}, path)
    return _tree(mesh, result, shardings.result), changed


def _tree(mesh: Any, tree: Any, specs: Specs, at: Any = ()) -> Any:
    """NamedShardings for the leaves of a pytree, which is itself ``at`` a path of the one that ``specs`` speaks of."""
    lost: list[str] = []

    def of(path: Any, _: Any) -> Any:
        text = jax.tree_util.keystr((*at, *path))
        found = specs.get(text, specs.get(re.sub(r"\d+", "*", text)))
        if found is None:
            lost.append(text or "the whole")
            found = ()
        return jax.sharding.NamedSharding(mesh, partition_spec(found))

    made = jax.tree_util.tree_map_with_path(of, tree)
    if lost:
        raise ValueError(
            f"these shardings know nothing of {', '.join(lost[:20])}; they know {', '.join([*specs][:20])}"
        )
    return made


class _Modules:
    """The nnx modules in the arguments, split so that what they share stays shared."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.nnx = cast("Any", sys.modules.get("flax.nnx"))
        self.kinds = tuple(getattr(self.nnx, k) for k in ("Pytree", "Object", "Module") if hasattr(self.nnx, k))
        self.args = args
        self.at: list[tuple[int, Any]] = []  # per module its argument and the path within that
        self.nodes: list[Any] = []
        for i, arg in enumerate(args if self.kinds else ()):
            for path, part in jax.tree_util.tree_flatten_with_path(arg, is_leaf=self.is_module)[0]:
                if self.is_module(part):
                    self.at.append((i, path))
                    self.nodes.append(part)
        self.graph: Any = None
        self.plain = args
        if self.at:
            self.graph, states = self.nnx.split(self.nodes)
            # A module all of whose variables belong to an earlier one as well has no state of its own.
            found = [states[k] if k in states else self.nnx.State({}) for k in range(len(self.at))]
            self.plain = self.put(args, found, self.is_module)

    def is_module(self, x: Any) -> bool:
        """Is this a module, and not part of one?"""
        return isinstance(x, self.kinds) and not isinstance(x, self.nnx.State)

    def is_state(self, x: Any) -> bool:
        """Is this what stands for a module in ``plain``?"""
        return isinstance(x, self.nnx.State)

    def put(self, args: Sequence[Any], new: Sequence[Any], replaced: Callable[[Any], bool]) -> tuple[Any, ...]:
        """``args`` with something else in place of the modules or of their states."""
        at, made = dict(zip(self.at, new, strict=True)), []
        for i, arg in enumerate(args):
            flat: Any = jax.tree_util.tree_flatten_with_path(arg, is_leaf=replaced)
            parts, tree = flat
            made.append(tree.unflatten([at.get((i, path), part) for path, part in parts]))
        return tuple(made)

    def states(self, plain: Sequence[Any]) -> Any:
        """The states of all modules out of arguments that have them in place of the modules."""
        found = {}
        for i, arg in enumerate(plain):
            for path, part in jax.tree_util.tree_flatten_with_path(arg, is_leaf=self.is_state)[0]:
                if (i, path) in self.at:
                    found[self.at.index((i, path))] = part
        return self.nnx.State(found)

    def pure(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """``fn`` of states; gives its result and, by number of the module, the new states."""

        def pure(*args: Any) -> Any:
            if not self.at:
                return fn(*args), {}
            nodes = self.nnx.merge(self.graph, self.states(args))
            result = fn(*self.put(args, nodes, self.is_state))
            states = self.nnx.split(nodes)[1]
            return result, {k: states[k] for k in range(len(self.at)) if k in states}

        return pure

    def store(self, new: Mapping[int, Any]) -> None:
        """Put new states into the caller's modules."""
        if self.at:
            self.nnx.update(self.nodes, self.nnx.State(dict(new)))

    def placed(self, plain: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments whose modules hold the arrays of ``plain``; the caller's modules are changed in place."""
        if not self.at:
            return plain
        self.store(self.states(plain))
        return self.put(plain, self.nodes, self.is_state)
