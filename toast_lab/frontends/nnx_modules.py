"""Modules of flax's nnx among the arguments: objects that a function changes in place.

They are split together, so that shared parts stay shared, and the function sees modules rebuilt
from their states. Its changes are copied into the caller's own modules, as ``nnx.jit`` does:
values of variables, new and deleted variables, and attributes other than arrays. Where a result
is one of these modules (or a part of one), the caller gets their own object back.

flax is not imported here: unless the user imports it, its classes cannot occur.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jax.tree_util import (
    keystr,
    tree_flatten_with_path,
    tree_leaves,
    tree_map,
    tree_unflatten,
)

from toast_lab.frontends.calls import is_module

# Attributes of a module that record the trace it belongs to
_TRACE_ATTRIBUTES = {"_pytree__state", "_object__state"}


class Changes(NamedTuple):
    """A function's changes to the modules, from one trace."""

    at: tuple[tuple[Any, ...], ...]  #: paths within the state of all modules whose values are new
    graph: Any  #: structure and attributes afterwards; None if unchanged
    state: Any  #: (paths of all leaves afterwards, their pytree); None if unchanged


NOTHING = Changes((), None, None)


class _Alias:
    """Stands in a result for an object of the caller."""

    def __init__(self, path: tuple[Any, ...]) -> None:
        self.path = path


class Modules:
    """The modules among the arguments of one call."""

    def __init__(self, args: Sequence[Any]) -> None:
        self.nnx: Any = sys.modules.get("flax.nnx")
        # (argument, path within it) -> index of the module
        self.places: dict[tuple[int, tuple[Any, ...]], int] = {}
        self.graph: Any = None
        self.changes = NOTHING
        if self.nnx is None:
            return
        nodes: list[Any] = []
        for i, arg in enumerate(args):
            for path, part in tree_flatten_with_path(arg, is_leaf=self._is_part)[0]:
                if self._is_part(part) and not isinstance(part, self.nnx.State):
                    self.places[i, path] = len(nodes)
                    nodes.append(part)
        if nodes:
            self.nodes = tuple(nodes)
            self.graph, state = self.nnx.split(self.nodes)
            # A module that shares all its variables with an earlier one has no entry of its own.
            self.states = [
                self._state_of(state[index]) if index in state else self.nnx.State({})
                for index in range(len(nodes))
            ]

    def _state_of(self, part: Any) -> Any:
        """The state of a module, or of a variable that is an argument by itself."""
        return part if isinstance(part, self.nnx.State) else self.nnx.State({"": part})

    def _whole_state(self, states: Sequence[Any]) -> Any:
        return self.nnx.State(
            {
                index: state[""] if isinstance(node, self.nnx.Variable) and len(state) else state
                for index, (state, node) in enumerate(zip(states, self.nodes, strict=True))
            }
        )

    def _is_part(self, value: Any) -> bool:
        """Is it a module, a variable outside of one, or a ``State``, which counts as one value?"""
        return is_module(value) or isinstance(value, (self.nnx.Variable, self.nnx.State))

    def _is_state(self, value: Any) -> bool:
        return isinstance(value, self.nnx.State)

    def _replace(
        self, args: Sequence[Any], is_leaf: Callable[[Any], bool], replacements: Sequence[Any]
    ) -> list[Any]:
        replaced = []
        for i, arg in enumerate(args):
            leaves, tree = tree_flatten_with_path(arg, is_leaf=is_leaf)
            new_leaves = [
                replacements[self.places[i, path]] if (i, path) in self.places else leaf
                for path, leaf in leaves
            ]
            replaced.append(tree_unflatten(tree, new_leaves))
        return replaced

    def _states_in(self, args: Sequence[Any]) -> list[Any]:
        """The state of each module among ``args``."""
        states: list[Any] = [None] * len(self.states)
        for i, arg in enumerate(args):
            for path, part in tree_flatten_with_path(arg, is_leaf=self._is_state)[0]:
                if (i, path) in self.places:
                    states[self.places[i, path]] = part
        return states

    def without(self, args: Sequence[Any]) -> list[Any]:
        """``args`` with each module replaced by its state."""
        return self._replace(args, self._is_part, self.states) if self.places else list(args)

    def keystr(self, path: tuple[Any, ...], argument: int) -> str:
        """A path as text; keys within a module are written as attributes."""
        for end in range(len(path) + 1):
            if (argument, path[:end]) in self.places:
                return str(keystr(path[:end])) + _attributes(path[end:])
        text = str(keystr(path))
        return text.removesuffix(".value") if self.nnx is not None else text

    def merged(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """``args`` with modules in place of their states, and the leaves of these modules."""
        if not self.places:
            return list(args), []
        states = self._states_in(args)
        state_leaves = tree_leaves(states)
        self.live = self.nnx.merge(self.graph, self._whole_state(states))
        return self._replace(args, self._is_state, self.live), state_leaves

    def changed(self, before: list[Any], donated: Sequence[int] = ()) -> list[Any]:
        """New values of all variables that changed; ``changes`` says which.

        All variables of ``donated`` arguments are included: their old buffers are gone.
        """
        self.changes = NOTHING
        if not self.places:
            return []
        old_leaves = set(map(id, before))
        graph, state = self.nnx.split(self.live)
        leaves, tree = tree_flatten_with_path(state)
        new_values = {
            path: leaf
            for path, leaf in leaves
            if id(leaf) not in old_leaves or self._place(path)[0] in donated
        }
        structure: tuple[Any, Any] = (None, None)
        if graph != self.graph:
            structure = (graph, (tuple(path for path, _ in leaves), tree))
        self.changes = Changes(tuple(new_values), *structure)
        return list(new_values.values())

    def _place(self, path: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
        """(argument, path within it) of the module in which a path in the whole state begins."""
        return next(place for place, index in self.places.items() if index == path[0].key)

    def names(self, changes: Changes, base: Sequence[str]) -> list[str]:
        """Readable names of the changed variables; ``base`` has the names of the arguments."""
        names = []
        for path in changes.at:
            argument, within = self._place(path)
            names.append(base[argument] + str(keystr(within)) + _attributes(path[1:]))
        return names

    def keys(self, changes: Changes) -> list[tuple[int, str]]:
        """(argument, path within it as JAX writes it) of the changed variables."""
        places = [(self._place(path), path[1:]) for path in changes.at]
        return [
            (argument, str(keystr((*within, *inner_path))))
            for (argument, within), inner_path in places
        ]

    def put(self, args: Sequence[Any]) -> list[Any]:
        """``args`` with each state replaced by the caller's module, which is updated from it."""
        if not self.places:
            return list(args)
        self.nnx.update(self.nodes, self._whole_state(self._states_in(args)))
        return self._replace(args, self._is_state, self.nodes)

    def marked(self, result: Any) -> Any:
        """``result`` with marks in place of the caller's modules, their parts and variables."""
        if not self.places:
            return result
        path_of = {id(part): path for path, part in self._parts(self.live).items()}

        def mark(leaf: Any) -> Any:
            return _Alias(path_of[id(leaf)]) if id(leaf) in path_of else leaf

        return tree_map(mark, result, is_leaf=self._is_part_of_module)

    def unmarked(self, result: Any) -> Any:
        """``result`` with the caller's own objects in place of the marks."""
        if not self.places:
            return result
        own_parts = functools.cache(lambda: self._parts(self.nodes))

        def unmark(part: Any) -> Any:
            return own_parts()[part.path] if isinstance(part, _Alias) else part

        return tree_map(
            unmark, result, is_leaf=lambda part: is_module(part) or isinstance(part, _Alias)
        )

    def _parts(self, nodes: Any) -> dict[tuple[Any, ...], Any]:
        """Modules and variables by path."""
        return {
            path: part for path, part in self.nnx.iter_graph(nodes) if self._is_part_of_module(part)
        }

    def _is_part_of_module(self, value: Any) -> bool:
        return is_module(value) or isinstance(value, self.nnx.Variable)

    def store(self, changes: Changes, values: Sequence[Any]) -> None:
        """Write a call's changes into the caller's modules."""
        if not self.places:
            return
        leaves, tree = tree_flatten_with_path(self.nnx.split(self.nodes)[1])
        new_values = {**dict(leaves), **dict(zip(changes.at, values, strict=True))}
        paths: Sequence[Any] = [path for path, _ in leaves]
        if changes.graph is not None:
            paths, tree = changes.state
        state = tree_unflatten(tree, [new_values[path] for path in paths])
        if changes.graph is not None:
            self._restructure(self.nnx.merge(changes.graph, state))
        self.nnx.update(self.nodes, state)

    def _restructure(self, like: Any) -> None:
        """Give the caller's modules the attributes of ``like``, and keep the parts in common."""
        mine, theirs = self._parts(self.nodes), self._parts(like)
        common_paths = {path for path, part in theirs.items() if type(mine.get(path)) is type(part)}
        for path in common_paths:
            if not is_module(theirs[path]):
                continue
            attributes, new_attributes = vars(mine[path]), vars(theirs[path])
            for name in attributes.keys() - new_attributes.keys() - _TRACE_ATTRIBUTES:
                del attributes[name]
            for name, value in new_attributes.items():
                if name not in _TRACE_ATTRIBUTES and not (
                    name in attributes and (*path, name) in common_paths
                ):
                    attributes[name] = value


def _attributes(path: tuple[Any, ...]) -> str:
    """``['layers'][0]['kernel'].value`` as ``.layers[0].kernel``."""
    text = ""
    for i, key in enumerate(path):
        name = getattr(key, "key", None)
        if name == "":
            continue  # the key of a variable that is an argument by itself
        if isinstance(name, str) and name.isidentifier():
            text += f".{name}"
        elif not (i == len(path) - 1 and getattr(key, "name", "") == "value"):
            text += str(keystr((key,)))
    return text
