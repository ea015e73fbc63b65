"""Layers of a function that the backward pass may compute again instead of keeping what they made.

A *layer* is a function of the user's files that the differentiated part of a program calls several
times, or in a loop; of nested ones the outermost. ``recomputed`` traces the program again with
``jax.checkpoint`` around every call of some layers, with a policy that says what is kept. Where the
user's own code has ``jax.checkpoint`` around a layer already, the policy takes its place, so that
"everything" undoes it.

TOAST has no recomputation; this adds it beside the choice of shardings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax

from toast_lab.errors import InvalidProblem, did_you_mean
from toast_lab.frontends import site_finding, tracing
from toast_lab.frontends.checkpoints import (
    POLICIES,
    Choices,
    LayerUses,
    code_of,
    is_checkpoint,
    name_of,
    where_of,
    with_policies,
)
from toast_lab.frontends.instrumented import Statement, visited
from toast_lab.frontends.loading import with_function, with_recipe
from toast_lab.ir.model import Function, Model
from toast_lab.text import line_text

_LOOPS = str(Path("jax/_src/lax/control_flow/loops.py"))
_ACTIVITY = "finding what {} may compute again"
_DERIVATIVES = str(Path("jax/_src/interpreters/ad.py"))


class Layer(NamedTuple):
    """A function whose results may be computed again.

    Attributes:
        name: qualified name of the function.
        where: file and line of its definition.
        calls: the places that call it, in the order of the first calls.
        times: how often tracing the program calls it; once for each loop.
        in_loop: is it called in a loop of JAX?
        is_recomputed: has the user put ``jax.checkpoint`` around it?
    """

    name: str
    where: str
    calls: tuple[Statement, ...]
    times: int
    in_loop: bool
    is_recomputed: bool

    def __str__(self) -> str:
        where = f"{self.name} ({line_text(self.where)})"
        return f"{where}, in a loop" if self.in_loop else f"{where}, {self.times} calls"


def layers_of(model: Model) -> tuple[Layer, ...]:
    """The layers of a model whose function is known, those with the most calls first.

    User code that is not loaded in this process runs in a child process.

    Raises:
        InvalidProblem: the model has no function that could be traced again.
        FrontendError, RunFailed: the function cannot be traced again, or not in time.
    """
    return with_function(_layers, model, activity=_ACTIVITY)


def _layers(model: Model) -> tuple[Layer, ...]:
    function = cast(Function, model.function)
    seen, files = _Seen(), frozenset(site_finding.files_of(model.program))

    def visit(callee: Any, statement: Statement) -> Any:
        code = code_of(callee)
        if code is None or code.co_filename not in files:
            return callee
        return seen.watching(callee, code, statement)

    with visited(files, visit, calls=True):
        tracing.retrace(function, function.call)
    return tuple(seen.layers())


def recomputed(model: Model, choices: Choices) -> Model:
    """The model with what each chosen layer keeps for the backward pass.

    Args:
        model: a model whose function is known.
        choices: name of a policy (``POLICIES``) by the ``where`` of a layer.

    Raises:
        InvalidProblem: an unknown policy or layer, or the model has no function that could be
            traced again.
        FrontendError, RunFailed: JAX cannot trace the function with ``jax.checkpoint`` there, for
            instance since a layer returns something that is no array.
    """
    for policy in choices.values():
        if policy not in POLICIES:
            raise InvalidProblem(f"no policy is called {policy!r}{did_you_mean(policy, POLICIES)}")
    files = tuple(site_finding.files_of(model.program))
    again = with_function(
        _recomputed,
        model,
        dict(choices),
        files,
        activity=_ACTIVITY,
    )
    return with_recipe(again, model, recompute=tuple(choices.items()), files=files)


def _recomputed(model: Model, choices: Choices, files: tuple[str, ...]) -> Model:
    uses = LayerUses()
    function = with_policies(cast(Function, model.function), choices, files, uses)
    again = tracing.traced_anew(model, function)
    return dataclasses.replace(again, recompute=uses.rows(model, choices))


class _Seen:
    """What tracing a function showed of the calls in it."""

    def __init__(self) -> None:
        self.codes: dict[str, Any] = {}
        self.times: Counter[str] = Counter()
        self.within: dict[str, Counter[str]] = defaultdict(Counter)
        self.calls: dict[str, dict[Statement, None]] = defaultdict(dict)
        self.in_loop: set[str] = set()
        self.is_recomputed: set[str] = set()
        self.stack: list[str] = []

    def watching(self, callee: Any, code: Any, statement: Statement) -> Callable[..., Any]:
        where = where_of(code)

        def call(*args: Any, **keywords: Any) -> Any:
            leaves = jax.tree_util.tree_leaves((args, keywords))
            if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                return callee(*args, **keywords)
            in_loop, is_differentiated = _around()
            if is_differentiated:
                self.codes[where] = code
                self.times[where] += 1
                self.calls[where][statement] = None
                self.within[where].update(set(self.stack) - {where})
                if in_loop:
                    self.in_loop.add(where)
                if is_checkpoint(callee):
                    self.is_recomputed.add(where)
            self.stack.append(where)
            try:
                return callee(*args, **keywords)
            finally:
                self.stack.pop()

        return call

    def layers(self) -> Iterator[Layer]:
        repeated = {
            where for where, times in self.times.items() if times > 1 or where in self.in_loop
        }
        for where, times in self.times.most_common():
            # Half of its calls in another layer make it a part of that one
            is_part = any(self.within[where][other] * 2 >= times for other in repeated - {where})
            if where in repeated and not is_part:
                yield Layer(
                    name=name_of(self.codes[where]),
                    where=where,
                    calls=tuple(self.calls[where]),
                    times=times,
                    in_loop=where in self.in_loop,
                    is_recomputed=where in self.is_recomputed,
                )


def _around() -> tuple[bool, bool]:
    """Is the call that is being traced in a loop of JAX, and is it being differentiated?"""
    in_loop = is_differentiated = False
    with contextlib.suppress(ValueError):
        frame: Any = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            in_loop |= file.endswith(_LOOPS)
            is_differentiated |= file.endswith(_DERIVATIVES)
            frame = frame.f_back
    return in_loop, is_differentiated
