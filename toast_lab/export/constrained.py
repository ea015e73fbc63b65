"""Put sharding constraints at places of a JAX function, without touching its source.

A place is identified by the source lines that lead to an equation of the function's jaxpr, the
equation's primitive, whether it belongs to a derivative's backward pass, and its shape. So one
place is one expression in the source, however many layers run through it. The function is traced,
and its equations are evaluated again with ``with_sharding_constraint`` on the operands and results
at those places, also within loops, branches and inner jits.

This file and its imports need nothing but JAX, since exported code contains their sources.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from toast_lab.frontends.calls import (
    Whole,
    called,
    is_on_host,
    numbers_of,
    ordered,
    split_result,
)

_INSIDE_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
# Files whose frames are not the user's and end the chain of source lines
ENDS = {code.co_filename for code in ((lambda: 0).__code__, called.__code__)}
_INLINED = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_lin",
)
# Primitives whose jaxpr only combines two scalars
_OF_SCALARS = ("reduce", "scatter", "select_and_")
# Their jaxprs are code for one device, or for one core of it
_BY_HAND = ("pallas_call", "mpmd_map", "core_map", "shard_map")


class EquationPlace(NamedTuple):
    """The equations of a function that come from one expression of its source."""

    source: str  #: "model.py:31 < train.py:12": the line that computes it < its caller
    primitive: str  #: "dot_general"
    backward: bool  #: part of a derivative's backward pass
    shape: tuple[int, ...]  #: of the first result


class EquationSelection(NamedTuple):
    """A selection of the equations of a place."""

    numbers: frozenset[int]
    #: numbers start again each time the source line runs, so that they hold for any layer count
    in_pass: bool


class PinRule(NamedTuple):
    """Constraints to set at a place.

    Specs have one entry per dim: None, a mesh axis or a tuple of mesh axes.
    """

    place: EquationPlace
    #: operand number -> spec in which the equation reads it
    operands: Mapping[int, tuple[Any, ...]]
    #: result number -> specs that it takes in turn
    results: Mapping[int, tuple[tuple[Any, ...], ...]]
    which: EquationSelection | None = None  #: None: all equations of the place


def constrain(
    fn: Callable[..., Any], rules: Sequence[PinRule], mesh: jax.sharding.Mesh
) -> Callable[..., Any]:
    """``fn`` with sharding constraints at the places of ``rules``.

    Raises:
        ValueError: while tracing, if a rule matches no equation, because the source has changed
            since the rules were made.
    """

    def constrained(*args: Any, **keywords: Any) -> Any:
        values, by_name = ordered(fn, args, keywords)
        leaves, tree = jax.tree_util.tree_flatten(values)
        # A leaf other than an array is a static argument of the surrounding jit, or bound in the
        # user's function.
        given = Whole(
            tree,
            tuple(
                None if isinstance(leaf, jax.Array | np.ndarray | np.generic) else (leaf,)
                for leaf in leaves
            ),
        )
        arrays = [leaf for leaf, slot in zip(leaves, given.slots, strict=True) if slot is None]
        result_leaves: list[Whole] = []

        def of_arrays(*array_leaves: Any) -> Any:
            results, other_leaves = split_result(
                called(fn, given.filled(array_leaves), by_name), numbers_of(fn)
            )
            result_leaves[:] = [other_leaves]
            return results

        walk = Walk(rules, mesh)
        results = walk.closed(jax.make_jaxpr(of_arrays)(*arrays), arrays)
        walk.check()
        return result_leaves[0].filled(results)

    return constrained


class Walk:
    """Evaluates a jaxpr equation by equation."""

    def __init__(self, rules: Sequence[PinRule], mesh: Any) -> None:
        self.mesh = mesh
        self.rules: dict[EquationPlace, list[PinRule]] = {}
        for rule in rules:
            self.rules.setdefault(rule.place, []).append(rule)
        self.count: dict[EquationPlace, int] = {}  #: number of the last equation of each place
        #: the same, counted since the last equation at other source lines
        self.in_pass: dict[EquationPlace, int] = {}
        self.lines: tuple[str, bool] = "", False
        self.used: set[int] = set()

    def closed(self, closed: Any, values: Sequence[Any]) -> list[Any]:
        """Evaluate a closed jaxpr, and return its results."""
        return self.jaxpr(closed.jaxpr, closed.consts, values)

    def jaxpr(self, jaxpr: Any, consts: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """Evaluate a jaxpr, and return its results."""
        value_of: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        value_of.update(zip(jaxpr.invars, values, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else value_of[atom]

        for eqn in jaxpr.eqns:
            results = self.equation(eqn, [read(atom) for atom in eqn.invars])
            value_of.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn: Any, values: list[Any]) -> list[Any]:
        """Evaluate one equation with its constraints, also in jaxprs that it calls."""
        name = eqn.primitive.name
        if name in _INLINED and not _declares_shardings(eqn):
            keys = ("jaxpr", "call_jaxpr", "fun_jaxpr")
            inner = next(eqn.params[key] for key in keys if eqn.params.get(key) is not None)
            return self.jaxpr(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), values)
        if not name.startswith((*_OF_SCALARS, *_BY_HAND)) and any(
            map(_holds_jaxpr, eqn.params.values())
        ):
            walked = {key: self.rewritten(param) for key, param in eqn.params.items()}
            return self.bind(eqn, values, walked)
        place = place_of(eqn)
        number, in_pass = self.counted(place)
        rules = [
            rule
            for rule in self.rules.get(place, ())
            if rule.which is None
            or (in_pass if rule.which.in_pass else number) in rule.which.numbers
        ]
        for rule in rules:
            self.used.add(id(rule))
            for i, spec in rule.operands.items():
                values[i] = self.pin(values[i], spec)
        results = self.bind(eqn, values, eqn.params)
        for rule in rules:
            for i, specs in rule.results.items():
                for spec in specs:
                    results[i] = self.pin(results[i], spec)
        return results

    def counted(self, place: EquationPlace) -> tuple[int, int]:
        """Count an equation. Gives its number at its place: in total, and since its lines began."""
        if (place.source, place.backward) != self.lines:
            self.lines = place.source, place.backward
            self.in_pass.clear()
        self.count[place] = self.count.get(place, -1) + 1
        self.in_pass[place] = self.in_pass.get(place, -1) + 1
        return self.count[place], self.in_pass[place]

    def bind(self, eqn: Any, values: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
        """Evaluate one equation with given parameters, and return its results."""
        bind_params = eqn.primitive.get_bind_params(dict(params))
        # Older versions of JAX return both
        functions, keywords = bind_params if isinstance(bind_params, tuple) else ((), bind_params)
        with eqn.ctx.manager, _at(eqn):
            results = eqn.primitive.bind(*functions, *values, **keywords)
        return list(results) if eqn.primitive.multiple_results else [results]

    def rewritten(self, param: Any) -> Any:
        """A parameter of an equation, with constraints in the jaxprs that it holds."""
        if isinstance(param, tuple | list) and any(map(_holds_jaxpr, param)):
            # Linear solves have named tuples
            make = getattr(type(param), "_make", type(param))
            return make(map(self.rewritten, param))
        if not isinstance(param, core.Jaxpr | core.ClosedJaxpr):
            return param
        inner, consts = getattr(param, "jaxpr", param), getattr(param, "consts", ())
        # Types as they are: references to mutable arrays, memory spaces, shardings within types
        types: list[Any] = [variable.aval for variable in inner.invars]
        walked = jax.make_jaxpr(lambda *values: self.jaxpr(inner, consts, values))(*types)
        return walked.jaxpr if isinstance(param, core.Jaxpr) else walked

    def pin(self, value: Any, spec: Sequence[Any]) -> Any:
        """``value`` with a sharding constraint."""
        memory = "pinned_host" if is_on_host(value) else None
        sharding = jax.sharding.NamedSharding(self.mesh, partition_spec(spec), memory_kind=memory)
        return jax.lax.with_sharding_constraint(value, sharding)

    def check(self) -> None:
        """Raise ValueError for rules that matched no equation."""
        unmatched = [
            f"{place.primitive} {list(place.shape)} at {place.source or 'no line of the source'}"
            for place, rules in self.rules.items()
            for rule in rules
            if id(rule) not in self.used
        ]
        if unmatched:
            raise ValueError(
                "no equation matches these places; has the source, or have the sizes of arguments, "
                "changed since? " + "; ".join(unmatched[:20])
            )


def partition_spec(entries: Sequence[Any]) -> jax.sharding.PartitionSpec:
    """A PartitionSpec with one entry per dim.

    Trailing whole dims get no entry, since JAX hides the last dims of random keys.
    """
    entry_count = max((i + 1 for i, entry in enumerate(entries) if entry is not None), default=0)
    return jax.sharding.PartitionSpec(*entries[:entry_count])


def place_of(eqn: Any) -> EquationPlace:
    """The place of an equation."""
    shape = tuple(map(int, getattr(eqn.outvars[0].aval, "shape", ()))) if eqn.outvars else ()
    lines = source_lines(eqn.source_info.traceback)
    backward = "transpose" in str(eqn.source_info.name_stack)
    source = " < ".join(f"{os.path.basename(file)}:{line}" for file, line in lines)
    return EquationPlace(source, eqn.primitive.name, backward, shape)


def source_lines(traceback: Any) -> list[tuple[str, int]]:
    """(file, line) of the user's frames that lead to an equation, innermost first.

    They end where JAX was called to trace: the frames outside of that differ between callers.
    """
    lines: list[tuple[str, int]] = []
    for frame in traceback.frames if traceback is not None else ():
        if frame.file_name in ENDS or frame.file_name.startswith((_INSIDE_JAX, "<frozen")):
            if lines:
                break
            continue
        lines.append((frame.file_name, frame.line_num))
    return lines


def _at(eqn: Any) -> Any:
    """A context that keeps the source line and name of an equation.

    It uses private functions of JAX; without them, only profiles lack the lines and names.
    """
    try:
        from jax._src import source_info_util as info

        stack = info.current_name_stack() + eqn.source_info.name_stack
        return info.user_context(eqn.source_info.traceback, name_stack=stack)
    except Exception:
        return contextlib.nullcontext()


def _declares_shardings(eqn: Any) -> bool:
    """Is this an inner ``jax.jit`` with shardings, which act like constraints?"""
    return any(
        isinstance(sharding, jax.sharding.Sharding)
        for key in ("in_shardings", "out_shardings")
        for sharding in eqn.params.get(key, ())
    )


def _holds_jaxpr(param: Any) -> bool:
    if isinstance(param, tuple | list):
        return any(map(_holds_jaxpr, param))
    return isinstance(param, core.Jaxpr | core.ClosedJaxpr)
