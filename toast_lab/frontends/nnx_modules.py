"""Modules of flax's nnx among the arguments: objects that a function changes in place.

They are split together, so that shared parts stay shared, and the function sees modules rebuilt
from their states.  Its changes are copied into the caller's own modules, as ``nnx.jit`` does:
values of variables, new and deleted variables, and attributes other than arrays.  Where a result
is one of these modules (or a part of one), the caller gets their own object back.

flax is not imported here: without the user's own import its classes cannot occur.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from toast_lab.frontends.calls import is_module

# Attributes of a module that record the trace it belongs to
_OWN = ("_pytree__state", "_object__state")


class Changes(NamedTuple):
    """A function's changes to the modules, as of one trace."""

    at: tuple[tuple[Any, ...], ...]  #: paths within the state of all modules whose values are new
    graph: Any  #: structure and attributes afterwards; None: as before
    state: Any  #: (paths of all leaves afterwards, their pytree); None: as before


NOTHING = Changes((), None, None)


class _Alias:
    """Stands for an object of the caller's in a result."""

    def __init__(self, path: tuple[Any, ...]) -> None:
        self.path = path


class Modules:
    """The modules among the arguments of one call."""

    def __init__(self, args: Sequence[Any]) -> None:
        import jax

        self.nnx: Any = sys.modules.get("flax.nnx")
        # Argument and path within it -> module
        self.places: dict[tuple[int, tuple[Any, ...]], int] = {}
        self.graph: Any = None
        self.changes = NOTHING
        if self.nnx is None:
            return
        nodes: list[Any] = []
        for i, arg in enumerate(args):
            for path, part in jax.tree_util.tree_flatten_with_path(arg, is_leaf=self._is_part)[0]:
                if self._is_part(part) and not isinstance(part, self.nnx.State):
                    self.places[i, path] = len(nodes)
                    nodes.append(part)
        if nodes:
            self.nodes = tuple(nodes)
            self.graph, state = self.nnx.split(self.nodes)
            # A module that shares all its variables with an earlier one has no entry of its own.
            self.states = [
                self._state_of(state[number]) if number in state else self.nnx.State({})
                for number in range(len(nodes))
            ]

    def _state_of(self, part: Any) -> Any:
        """The state of a module, or of a variable that is an argument by itself."""
        return part if isinstance(part, self.nnx.State) else self.nnx.State({"": part})

    def _whole_state(self, states: Sequence[Any]) -> Any:
        lone = [isinstance(node, self.nnx.Variable) for node in self.nodes]
        return self.nnx.State(
            {
                number: state[""] if one and len(state) else state
                for number, (state, one) in enumerate(zip(states, lone, strict=True))
            }
        )

    def _is_part(self, value: Any) -> bool:
        """Is it a module, or a variable outside of one?  Parts of a ``State`` count as values."""
        return is_module(value) or isinstance(value, (self.nnx.Variable, self.nnx.State))

    def _is_state(self, value: Any) -> bool:
        return isinstance(value, self.nnx.State)

    def _replace(
        self, args: Sequence[Any], is_leaf: Callable[[Any], bool], new: Sequence[Any]
    ) -> list[Any]:
        import jax

        replaced = []
        for i, arg in enumerate(args):
            flat: Any = jax.tree_util.tree_flatten_with_path(arg, is_leaf=is_leaf)
            leaves, tree = flat
            parts = [
                new[self.places[i, path]] if (i, path) in self.places else part
                for path, part in leaves
            ]
            replaced.append(tree.unflatten(parts))
        return replaced

    def _states_in(self, args: Sequence[Any]) -> list[Any]:
        """The state of each module among ``args``."""
        import jax

        states: list[Any] = [None] * len(self.states)
        for i, arg in enumerate(args):
            for path, part in jax.tree_util.tree_flatten_with_path(arg, is_leaf=self._is_state)[0]:
                if (i, path) in self.places:
                    states[self.places[i, path]] = part
        return states

    def without(self, args: Sequence[Any]) -> list[Any]:
        """``args`` with the state of each module in its place."""
        return self._replace(args, self._is_part, self.states) if self.places else list(args)

    def keystr(self, path: tuple[Any, ...], argument: int) -> str:
        """A path as text; within a module its keys are written as the attributes that they are."""
        import jax

        for end in range(len(path) + 1):
            if (argument, path[:end]) in self.places:
                return str(jax.tree_util.keystr(path[:end])) + _attributes(path[end:])
        text = str(jax.tree_util.keystr(path))
        return text.removesuffix(".value") if self.nnx is not None else text

    def merged(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """``args`` with modules in place of their states, and the leaves of these modules."""
        import jax

        if not self.places:
            return list(args), []
        states = self._states_in(args)
        before = jax.tree_util.tree_leaves(states)
        self.live = self.nnx.merge(self.graph, self._whole_state(states))
        return self._replace(args, self._is_state, self.live), before

    def changed(self, before: list[Any], donated: Sequence[int] = ()) -> list[Any]:
        """New values of all variables that changed; ``changes`` says which.

        Those of ``donated`` arguments are all among them: their old buffers are gone.
        """
        import jax

        self.changes = NOTHING
        if not self.places:
            return []
        old = {id(leaf) for leaf in before}
        graph, state = self.nnx.split(self.live)
        flat: Any = jax.tree_util.tree_flatten_with_path(state)
        leaves, tree = flat
        new = [
            (leaf_path, leaf)
            for leaf_path, leaf in leaves
            if id(leaf) not in old or self._place(leaf_path)[0] in donated
        ]
        same, paths = graph == self.graph, tuple(path for path, _ in leaves)
        at = tuple(path for path, _ in new)
        self.changes = Changes(at, None if same else graph, None if same else (paths, tree))
        return [leaf for _, leaf in new]

    def _place(self, path: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
        """(argument, path within it) of the module that begins a path in the whole state."""
        return next(where for where, node in self.places.items() if node == path[0].key)

    def names(self, changes: Changes, base: Sequence[str]) -> list[str]:
        """Readable names of the changed variables; ``base`` has the names of the arguments."""
        import jax

        names = []
        for path in changes.at:
            argument, within = self._place(path)
            names.append(base[argument] + str(jax.tree_util.keystr(within)) + _attributes(path[1:]))
        return names

    def keys(self, changes: Changes) -> list[tuple[int, str]]:
        """(argument, path within it as JAX writes it) of the changed variables."""
        import jax

        places = [(self._place(path), path[1:]) for path in changes.at]
        return [
            (argument, str(jax.tree_util.keystr((*within, *rest))))
            for (argument, within), rest in places
        ]

    def put(self, args: Sequence[Any]) -> list[Any]:
        """``args`` with the caller's modules, updated from the states, in place of these."""
        if not self.places:
            return list(args)
        self.nnx.update(self.nodes, self._whole_state(self._states_in(args)))
        return self._replace(args, self._is_state, self.nodes)

    def marked(self, result: Any) -> Any:
        """``result`` with marks in place of the caller's modules, their parts and variables."""
        if not self.places:
            return result
        import jax

        known = {id(part): path for path, part in self._parts(self.live).items()}
        flat: Any = jax.tree_util.tree_flatten(
            result, is_leaf=lambda leaf: is_module(leaf) or isinstance(leaf, self.nnx.Variable)
        )
        leaves, tree = flat
        return tree.unflatten(
            [_Alias(known[id(leaf)]) if id(leaf) in known else leaf for leaf in leaves]
        )

    def unmarked(self, result: Any) -> Any:
        """``result`` with the caller's own objects in place of the marks."""
        if not self.places:
            return result
        import jax

        own: dict[Any, Any] = {}

        def of(part: Any) -> Any:
            if not isinstance(part, _Alias):
                return part
            own.update(own or self._parts(self.nodes))
            return own[part.path]

        return jax.tree_util.tree_map(
            of, result, is_leaf=lambda part: is_module(part) or isinstance(part, _Alias)
        )

    def _parts(self, nodes: Any) -> dict[tuple[Any, ...], Any]:
        """Modules and variables by path."""
        return {
            path: part
            for path, part in self.nnx.iter_graph(nodes)
            if is_module(part) or isinstance(part, self.nnx.Variable)
        }

    def store(self, changes: Changes, values: Sequence[Any]) -> None:
        """Put what a call changed into the caller's modules."""
        import jax

        if not self.places:
            return
        flat: Any = jax.tree_util.tree_flatten_with_path(self.nnx.split(self.nodes)[1])
        leaves, tree = flat
        new = {**dict(leaves), **dict(zip(changes.at, values, strict=True))}
        if changes.graph is None:
            self.nnx.update(self.nodes, tree.unflatten([new[path] for path, _ in leaves]))
            return
        paths, tree = changes.state
        state = tree.unflatten([new[path] for path in paths])
        self._restructure(self.nnx.merge(changes.graph, state))
        self.nnx.update(self.nodes, state)

    def _restructure(self, like: Any) -> None:
        """Give the caller's modules the attributes of ``like``; common parts stay the same."""
        mine, theirs = self._parts(self.nodes), self._parts(like)
        kept = {path for path, part in theirs.items() if type(mine.get(path)) is type(part)}
        for path in kept:
            if not is_module(theirs[path]):
                continue
            own, other = vars(mine[path]), vars(theirs[path])
            for key in [key for key in own if key not in other and key not in _OWN]:
                del own[key]
            own.update(
                {
                    k: inner
                    for k, inner in other.items()
                    if k not in _OWN and not (k in own and (*path, k) in kept)
                }
            )


def _attributes(path: tuple[Any, ...]) -> str:
    """``['layers'][0]['kernel'].value`` as ``.layers[0].kernel``."""
    import jax

    text = ""
    for i, key in enumerate(path):
        name = getattr(key, "key", None)
        if name == "":
            continue  # of a variable by itself
        if isinstance(name, str) and name.isidentifier():
            text += f".{name}"
        elif not (i == len(path) - 1 and getattr(key, "name", "") == "value"):
            text += str(jax.tree_util.keystr((key,)))
    return text
