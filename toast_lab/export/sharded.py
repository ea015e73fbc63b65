"""``jax.jit`` of a function with the shardings of a plan.

They are on arguments, results, and constraints at places of its source.

Modules of flax's nnx in the arguments, also within tuples and dicts, are changed in place, as under
``nnx.jit``; static arguments and leaves that are no arrays stay what they are.  Like
``constrained`` this file and what it imports need nothing but JAX, and exported code carries them
along.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from toast_lab.export.constrained import ENDS, Rule, constrain, partition_spec
from toast_lab.frontends.calls import Whole, called, placed, prepared, same, split_result, type_of
from toast_lab.frontends.nnx_modules import Changes, Modules

ENDS.update(code.co_filename for code in ((lambda: 0).__code__, called.__code__))
# Path of a leaf -> mesh axes per dim; "*" stands for any number
Specs = Mapping[str, tuple[Any, ...]]


class Shardings(NamedTuple):
    """What a plan says of a function."""

    mesh: Mapping[str, int]  #: sizes of the axes, in order
    arguments: Sequence[Specs]  #: one for each positional argument
    result: Specs
    #: for each argument, what the function leaves of it where that is another sharding
    changed: Sequence[Specs]
    rules: Sequence[Rule]
    donated: tuple[int, ...] = ()


def make_mesh(shardings: Shardings, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """The mesh, of the first devices if none are given."""
    import numpy as np

    sizes = tuple(shardings.mesh.values())
    count = int(np.prod(sizes))
    found = list(jax.devices() if devices is None else devices)
    if len(found) < count:
        raise ValueError(
            f"the mesh {dict(shardings.mesh)} needs {count} devices, here are {len(found)}"
        )
    return jax.sharding.Mesh(np.asarray(found[:count]).reshape(sizes), tuple(shardings.mesh))


def shard(
    fn: Callable[..., Any],
    shardings: Shardings,
    mesh: jax.sharding.Mesh | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """``fn``, jitted and sharded.

    What is called positionally and what by name may differ from call to call.  ``options`` go to
    ``jax.jit``.  ``place(*args)`` of the result puts arguments where they belong, ``lower(*args)``
    is that of ``jax.jit``.
    """
    mesh = make_mesh(shardings) if mesh is None else mesh
    jitted: dict[Any, tuple[Any, Any, Whole, Changes]] = {}
    options = {"donate_argnums": shardings.donated, **options}
    donated = (
        (options["donate_argnums"],)
        if isinstance(options["donate_argnums"], int)
        else options["donate_argnums"]
    )

    def prepare(
        args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[_Given, tuple[Any, Any, Whole, Changes]]:
        given = _Given(fn, shardings, donated, args, keywords)
        if given.key not in jitted:
            ins = tuple(map(functools.partial(_tree, mesh), given.arrays, shardings.arguments))
            shapes = jax.eval_shape(given.run, *given.arrays)
            outcome = given.whole[0], given.modules.changes
            outs = (
                _tree(mesh, shapes[0], shardings.result),
                _outs_of_changes(mesh, shardings, given.modules),
            )
            constrained = constrain(given.run, shardings.rules, mesh)
            jitted[given.key] = (
                jax.jit(constrained, in_shardings=ins, out_shardings=outs, **options),
                ins,
                *outcome,
            )
        return given, jitted[given.key]

    @functools.wraps(fn)
    def sharded(*args: Any, **keywords: Any) -> Any:
        given, (run, ins, whole, changes) = prepare(args, keywords)
        flat: Any = jax.tree_util.tree_flatten(given.arrays)
        leaves, tree = flat
        gone = [
            i in donated for i, a in enumerate(given.arrays) for _ in jax.tree_util.tree_leaves(a)
        ]
        result, new = run(*tree.unflatten(placed(leaves, jax.tree_util.tree_leaves(ins), gone)))
        given.modules.store(changes, new)
        return given.modules.unmarked(whole.filled(jax.tree_util.tree_leaves(result)))

    def lower(*args: Any, **keywords: Any) -> Any:
        given, (run, *_) = prepare(args, keywords)
        return run.lower(*given.arrays)

    def place(*args: Any) -> tuple[Any, ...]:
        given = _Given(fn, shardings, donated, args, {})
        put = [
            jax.device_put(a, _tree(mesh, a, s))
            for a, s in zip(given.arrays, shardings.arguments, strict=True)
        ]
        whole = [
            w.filled(jax.tree_util.tree_leaves(a)) for w, a in zip(given.wholes, put, strict=True)
        ]
        return tuple(given.modules.put(whole)[given.call.model :])

    sharded.lower, sharded.place, sharded.mesh = lower, place, mesh  # type: ignore[attr-defined]
    return sharded


class _Given:
    """The arguments of one call: what of them are arrays, and a function of those."""

    def __init__(
        self,
        fn: Callable[..., Any],
        shardings: Shardings,
        donated: Sequence[int],
        args: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        self.call = prepared(fn, args, keywords)
        self.donated = donated
        values, wanted = self.call.values, shardings.arguments
        if len(values) != len(wanted):
            raise ValueError(
                f"these shardings are for a call with {len(wanted)} arguments, this "
                f"one has {len(values)}"
            )
        self.modules = Modules(() if self.call.pure else values)
        self.wholes: list[Whole] = []
        self.arrays: list[Any] = []  # per argument its pytree, None for what is no array
        self.whole: list[Whole] = []  # of the result, known once ``run`` was traced
        lost: list[str] = []
        for plain, specs in zip(self.modules.without(values), wanted, strict=True):
            flat: Any = jax.tree_util.tree_flatten_with_path(plain)
            found, tree = flat
            known = [_spec(specs, path) is not None for path, _ in found]
            lost += [
                str(jax.tree_util.keystr(path)) or "the whole"
                for (path, leaf), is_known in zip(found, known, strict=True)
                if not is_known
                and hasattr(leaf, "shape")
                and hasattr(leaf, "dtype")
                and not isinstance(leaf, type)
            ]
            slots = tuple(
                None if is_known else (leaf,)
                for (_, leaf), is_known in zip(found, known, strict=True)
            )
            self.wholes.append(Whole(tree, slots))
            self.arrays.append(
                tree.unflatten(
                    [None if s else leaf for (_, leaf), s in zip(found, slots, strict=True)]
                )
            )
        if lost:
            named = ", ".join(key for specs in wanted for key in specs)
            raise ValueError(
                f"these shardings know nothing of {', '.join(lost[:20])}; they know {named[:1000]}"
            )
        self.key = (
            self.call.by_name,
            self.modules.graph,
            *(w.tree for w in self.wholes),
            *(same(s[0]) if s else None for w in self.wholes for s in w.slots),
            *map(type_of, jax.tree_util.tree_leaves(self.arrays)),
        )

    def run(self, *arrays: Any) -> Any:
        """Arrays of the result, and new values of variables in modules."""
        plain = [
            w.filled(jax.tree_util.tree_leaves(a)) for w, a in zip(self.wholes, arrays, strict=True)
        ]
        values, before = self.modules.merged(plain)
        result = called(self.call.fn, values, self.call.by_name)
        new = self.modules.changed(before, self.donated)
        found, rest = split_result(self.modules.marked(result), self.call.numbers)
        self.whole[:] = [rest]
        return found, tuple(new)


def _outs_of_changes(mesh: Any, shardings: Shardings, modules: Modules) -> tuple[Any, ...]:
    """Shardings of what changes in modules.

    Variables that are new have None, and so what propagation gives them.
    """
    found = []
    for argument, text in modules.keys(modules.changes):
        spec = _of_text({**shardings.arguments[argument], **shardings.changed[argument]}, text)
        found.append(
            None if spec is None else jax.sharding.NamedSharding(mesh, partition_spec(spec))
        )
    return tuple(found)


def _spec(specs: Specs, path: Any) -> Any:
    return _of_text(specs, str(jax.tree_util.keystr(path)))


def _of_text(specs: Specs, text: str) -> Any:
    return specs.get(text, specs.get(re.sub(r"\d+", "*", text)))


def _tree(mesh: Any, tree: Any, specs: Specs) -> Any:
    """NamedShardings for the leaves of a pytree."""
    lost: list[str] = []

    def of(path: Any, _: Any) -> Any:
        found = _spec(specs, path)
        if found is None:
            lost.append(str(jax.tree_util.keystr(path)) or "the whole")
            found = ()
        return jax.sharding.NamedSharding(mesh, partition_spec(found))

    made = jax.tree_util.tree_map_with_path(of, tree)
    if lost:
        raise ValueError(
            f"these shardings know nothing of {', '.join(lost[:20])}; they know "
            f"{', '.join([*specs][:20])}"
        )
    return made
