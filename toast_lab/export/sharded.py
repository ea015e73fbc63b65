"""``jax.jit`` of a function with a plan's shardings of arguments and results and its constraints.

Modules of flax's nnx in the arguments, also within tuples and dicts, are changed in place, as under
``nnx.jit``; static arguments and leaves other than arrays stay as they are. Like ``constrained``,
this file and its imports need nothing but JAX, since exported code contains their sources.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from toast_lab.export.constrained import ENDS, PinRule, constrain, partition_spec
from toast_lab.frontends.calls import (
    Whole,
    called,
    place_arrays,
    prepared,
    split_result,
    static_key,
    type_of,
)
from toast_lab.frontends.nnx_modules import Changes, Modules

ENDS.update(code.co_filename for code in ((lambda: 0).__code__, called.__code__))
# Path of a leaf -> mesh axes per dim; "*" stands for any number
Specs = Mapping[str, tuple[Any, ...]]


class Shardings(NamedTuple):
    """The shardings of a function under a plan."""

    mesh: Mapping[str, int]  #: sizes of the axes, in order
    arguments: Sequence[Specs]  #: one for each positional argument
    result: Specs
    #: for each argument, the new shardings of leaves whose sharding the function changes
    changed: Sequence[Specs]
    rules: Sequence[PinRule]  #: constraints inside the function
    donated: tuple[int, ...] = ()  #: positions of donated arguments
    #: paths of leaves in host memory: for each argument, and then for the result
    on_host: Sequence[Sequence[str]] = ()


def make_mesh(shardings: Shardings, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """The mesh of ``shardings``, on the first of ``devices`` (by default of all devices)."""
    import numpy as np

    sizes = tuple(shardings.mesh.values())
    n_devices = int(np.prod(sizes))
    if jax.sharding.AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:
        raise ValueError(
            "constraints are for meshes with automatic axes, but jax.set_mesh has set one with "
            "explicit axes: call without it or with automatic axes, or run the plan by plan.jit"
        )
    available = list(jax.devices() if devices is None else devices)
    if len(available) < n_devices:
        raise ValueError(
            f"the mesh {dict(shardings.mesh)} needs {n_devices} devices, but there are "
            f"{len(available)}"
        )
    return jax.sharding.Mesh(
        np.asarray(available[:n_devices]).reshape(sizes), tuple(shardings.mesh)
    )


def shard(
    fn: Callable[..., Any],
    shardings: Shardings,
    mesh: jax.sharding.Mesh | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """``fn``, jitted and sharded.

    Each call may pass different arguments by position and by name. ``options`` go to ``jax.jit``.
    The result's ``place(*args)`` puts arguments on their devices; its ``lower(*args)`` is that of
    ``jax.jit``.
    """
    mesh = make_mesh(shardings) if mesh is None else mesh
    jitted: dict[Any, tuple[Any, Any, Whole, Changes]] = {}
    donated = options.setdefault("donate_argnums", shardings.donated)
    donated = (donated,) if isinstance(donated, int) else donated

    def in_shardings(arrays: Sequence[Any]) -> tuple[Any, ...]:
        on_host = [*shardings.on_host[:-1]] or [()] * len(arrays)
        return tuple(
            _tree(mesh, tree, specs, paths)
            for tree, specs, paths in zip(arrays, shardings.arguments, on_host, strict=True)
        )

    def prepare(
        args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[_Given, tuple[Any, Any, Whole, Changes]]:
        given = _Given(fn, args, keywords, shardings=shardings, donated=donated)
        if given.key not in jitted:
            ins = in_shardings(given.arrays)
            shapes = jax.eval_shape(given.run, *given.arrays)
            outcome = given.whole[0], given.modules.changes
            outs = (
                _tree(mesh, shapes[0], shardings.result, _last(shardings.on_host)),
                _outs_of_changes(mesh, shardings, given.modules),
            )
            constrained = constrain(given.run, shardings.rules, mesh)
            run = jax.jit(constrained, in_shardings=ins, out_shardings=outs, **options)
            jitted[given.key] = (run, ins, *outcome)
        return given, jitted[given.key]

    @functools.wraps(fn)
    def sharded(*args: Any, **keywords: Any) -> Any:
        given, (run, ins, whole, changes) = prepare(args, keywords)
        flattened: Any = jax.tree_util.tree_flatten(given.arrays)
        leaves, tree = flattened
        is_donated = [
            number in donated
            for number, arrays in enumerate(given.arrays)
            for _ in jax.tree_util.tree_leaves(arrays)
        ]
        result, changed = run(
            *tree.unflatten(place_arrays(leaves, jax.tree_util.tree_leaves(ins), is_donated))
        )
        given.modules.store(changes, changed)
        return given.modules.unmarked(whole.filled(jax.tree_util.tree_leaves(result)))

    def lower(*args: Any, **keywords: Any) -> Any:
        given, (run, *_) = prepare(args, keywords)
        return run.lower(*given.arrays)

    def place(*args: Any) -> tuple[Any, ...]:
        given = _Given(fn, args, {}, shardings=shardings, donated=donated)
        placed_arrays = list(map(jax.device_put, given.arrays, in_shardings(given.arrays)))
        whole = [
            container.filled(jax.tree_util.tree_leaves(arrays))
            for container, arrays in zip(given.wholes, placed_arrays, strict=True)
        ]
        return tuple(given.modules.put(whole)[given.call.model :])

    sharded.lower, sharded.place, sharded.mesh = lower, place, mesh  # type: ignore[attr-defined]
    return sharded


class _Given:
    """The arguments of one call: their arrays, and a function of these arrays."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        *,
        shardings: Shardings,
        donated: Sequence[int],
    ) -> None:
        self.call = prepared(fn, args, keywords)
        self.donated = donated
        values, specs_of_arguments = self.call.values, shardings.arguments
        if len(values) != len(specs_of_arguments):
            raise ValueError(
                f"these shardings are for a call with {len(specs_of_arguments)} arguments, but "
                f"this one has {len(values)}"
            )
        self.modules = Modules(() if self.call.pure else values)
        self.wholes: list[Whole] = []
        self.arrays: list[Any] = []  # per argument its pytree, None for leaves other than arrays
        self.whole: list[Whole] = []  # of the result, known once ``run`` is traced
        uncovered: list[str] = []
        for plain, specs in zip(self.modules.without(values), specs_of_arguments, strict=True):
            flattened: Any = jax.tree_util.tree_flatten_with_path(plain)
            leaves, tree = flattened
            slots = tuple((leaf,) if _spec(specs, path) is None else None for path, leaf in leaves)
            uncovered += [
                str(jax.tree_util.keystr(path)) or "the whole"
                for (path, leaf), slot in zip(leaves, slots, strict=True)
                if slot
                and hasattr(leaf, "shape")
                and hasattr(leaf, "dtype")
                and not isinstance(leaf, type)
            ]
            arrays = [None if slot else leaf for (_, leaf), slot in zip(leaves, slots, strict=True)]
            self.wholes.append(Whole(tree, slots))
            self.arrays.append(tree.unflatten(arrays))
        if uncovered:
            covered = ", ".join(key for specs in specs_of_arguments for key in specs)
            raise ValueError(
                f"these shardings do not cover {', '.join(uncovered[:20])}; they know "
                f"{covered[:1000]}"
            )
        self.key = (
            self.call.by_name,
            self.modules.graph,
            *(container.tree for container in self.wholes),
            *(
                static_key(slot[0]) if slot else None
                for container in self.wholes
                for slot in container.slots
            ),
            *map(type_of, jax.tree_util.tree_leaves(self.arrays)),
        )

    def run(self, *arrays: Any) -> Any:
        """Call the function. Gives the arrays of its result, and new values of module variables."""
        plain = [
            container.filled(jax.tree_util.tree_leaves(leaves))
            for container, leaves in zip(self.wholes, arrays, strict=True)
        ]
        values, before = self.modules.merged(plain)
        result = called(self.call.fn, values, self.call.by_name)
        changed = self.modules.changed(before, self.donated)
        results, other_leaves = split_result(self.modules.marked(result), self.call.numbers)
        self.whole[:] = [other_leaves]
        return results, tuple(changed)


def _outs_of_changes(mesh: Any, shardings: Shardings, modules: Modules) -> tuple[Any, ...]:
    """Shardings of the variables that change in modules; None (any sharding) for new ones."""
    changed = []
    for argument, path_text in modules.keys(modules.changes):
        spec = _of_text({**shardings.arguments[argument], **shardings.changed[argument]}, path_text)
        changed.append(
            None if spec is None else jax.sharding.NamedSharding(mesh, partition_spec(spec))
        )
    return tuple(changed)


def _spec(specs: Specs, path: Any) -> Any:
    return _of_text(specs, str(jax.tree_util.keystr(path)))


def _of_text(specs: Specs, path_text: str) -> Any:
    return specs.get(path_text, specs.get(re.sub(r"\d+", "*", path_text)))


def _last(on_host: Sequence[Sequence[str]]) -> Sequence[str]:
    return on_host[-1] if on_host else ()


def _tree(mesh: Any, tree: Any, specs: Specs, on_host: Sequence[str] = ()) -> Any:
    """NamedShardings for the leaves of a pytree."""
    uncovered: list[str] = []

    def sharding_of(path: Any, _: Any) -> Any:
        spec = _spec(specs, path)
        if spec is None:
            uncovered.append(str(jax.tree_util.keystr(path)) or "the whole")
            spec = ()
        memory = "pinned_host" if str(jax.tree_util.keystr(path)) in on_host else None
        return jax.sharding.NamedSharding(mesh, partition_spec(spec), memory_kind=memory)

    shardings = jax.tree_util.tree_map_with_path(sharding_of, tree)
    if uncovered:
        raise ValueError(
            f"these shardings do not cover {', '.join(uncovered[:20])}; they know "
            f"{', '.join([*specs][:20])}"
        )
    return shardings
