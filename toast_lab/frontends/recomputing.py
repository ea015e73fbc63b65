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
import functools
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from toast_lab.errors import InvalidProblem, did_you_mean
from toast_lab.frontends import site_finding, tracing
from toast_lab.frontends.instrumented import Statement, visited
from toast_lab.frontends.loading import LOWERED
from toast_lab.frontends.traced import in_child
from toast_lab.ir.model import Function, Model, Recipe, Recomputed
from toast_lab.text import line_text

EVERYTHING, INPUTS, PRODUCTS = "everything", "inputs", "products"
#: what is kept of a layer for the backward pass, by name; the rest is computed again
POLICIES: Mapping[str, str] = {
    EVERYTHING: "keeps everything",
    INPUTS: "keeps its inputs",
    PRODUCTS: "keeps its inputs and what products with weights make",
}
_LOOPS = os.path.join("jax", "_src", "lax", "control_flow", "loops.py")
_DERIVATIVES = os.path.join("jax", "_src", "interpreters", "ad.py")
_JAX = os.path.join("jax", "_src", "")
_CHECKPOINT = os.path.join("jax", "_src", "ad_checkpoint.py")


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


#: policy by the ``where`` of a layer
Choices = Mapping[str, str]


def layers_of(model: Model, *, time_limit_s: float = 300.0) -> tuple[Layer, ...]:
    """The layers of a model whose function is known, those with the most calls first.

    User code that is not loaded in this process runs in a child process.

    Raises:
        InvalidProblem: the model has no function that could be traced again.
        FrontendError, RunFailed: the function cannot be traced again, or not within
            ``time_limit_s`` seconds.
    """
    function = model.function
    if isinstance(function, Recipe):
        found: tuple[Layer, ...] = _in_child("layers_in_child", model, function, (), time_limit_s)
        return found
    if function is None:
        raise _no_function(model)
    seen, files = _Seen(), frozenset(site_finding.files_of(model.program))

    def visit(callee: Any, statement: Statement) -> Any:
        code = _code(callee)
        if code is None or code.co_filename not in files:
            return callee
        return seen.watching(callee, code, statement)

    with visited(files, visit, calls=True):
        tracing.retrace(function, function.call)
    return tuple(seen.layers())


def recomputed(model: Model, choices: Choices, *, time_limit_s: float = 300.0) -> Model:
    """The model with what each chosen layer keeps for the backward pass.

    Args:
        model: a model whose function is known.
        choices: name of a policy (``POLICIES``) by the ``where`` of a layer.
        time_limit_s: limit in seconds for a child process, as for ``layers_of``.

    Raises:
        InvalidProblem: an unknown policy or layer, or the model has no function that could be
            traced again.
        FrontendError, RunFailed: JAX cannot trace the function with ``jax.checkpoint`` there, for
            instance since a layer returns something that is no array.
    """
    for policy in choices.values():
        if policy not in POLICIES:
            raise InvalidProblem(f"no policy is called {policy!r}{did_you_mean(policy, POLICIES)}")
    function, files = model.function, tuple(site_finding.files_of(model.program))
    if isinstance(function, Recipe):
        again: Model = _in_child(
            "recomputed_in_child", model, function, (dict(choices),), time_limit_s
        )
    elif function is None:
        raise _no_function(model)
    else:
        uses = _Uses()
        again = tracing.traced_anew(model, with_policies(function, choices, files, uses))
        again = dataclasses.replace(again, recompute=uses.rows(model, choices))
    recipe = function if isinstance(function, Recipe) else _recipe_of(model)
    if recipe is not None:
        recipe = recipe._replace(recompute=tuple(choices.items()), files=files)
        again.lowerings.child = (LOWERED, recipe)
        if isinstance(function, Recipe):
            again = dataclasses.replace(again, function=recipe)
    return again


def _recipe_of(model: Model) -> Recipe | None:
    child = model.lowerings.child
    return child[1] if child is not None and isinstance(child[1], Recipe) else None


def _no_function(model: Model) -> InvalidProblem:
    return InvalidProblem(
        f"{model.name} has no function that could be traced again: it was read from "
        f"{model.source or 'a file'}. Load the JAX function itself"
    )


def _in_child(
    name: str, model: Model, recipe: Recipe, given: tuple[Any, ...], time_limit_s: float
) -> Any:
    return in_child(
        f"toast_lab.frontends.recomputing:{name}",
        model,
        recipe,
        *given,
        time_limit_s=time_limit_s,
        activity=f"finding what {recipe.which} may compute again",
    )


def layers_in_child(model: Model, recipe: Recipe) -> tuple[Layer, ...]:
    """``layers_of`` in a child process, in which the user's code may run."""
    return layers_of(dataclasses.replace(model, function=site_finding.function_again(recipe)))


def recomputed_in_child(model: Model, recipe: Recipe, choices: Choices) -> Model:
    """``recomputed`` in a child process, in which the user's code may run."""
    function = site_finding.function_again(recipe)
    return recomputed(dataclasses.replace(model, function=function), choices)


class _Uses:
    """The places at which a traced function called chosen layers."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.calls: dict[str, dict[Statement, None]] = defaultdict(dict)
        self.with_others: set[str] = set()

    def rows(self, model: Model, choices: Choices) -> tuple[Recomputed, ...]:
        """What plans and exports say of them. Raises InvalidProblem for what was not called."""
        if unused := [where for where in choices if where not in self.calls]:
            raise InvalidProblem(f"nothing of {model.name} calls {', '.join(unused)}")
        return tuple(
            Recomputed(
                layer=self.names[where],
                where=where,
                policy=policy,
                calls=tuple((at.file, at.line, at.end_line, at.name) for at in self.calls[where]),
                refusal=_NOT_ARRAYS if where in self.with_others else "",
            )
            for where, policy in choices.items()
        )


def with_policies(
    function: Function, choices: Choices, files: Collection[str], uses: _Uses | None = None
) -> Function:
    """The function that keeps what ``choices`` say, where functions of ``files`` call layers."""
    uses = uses or _Uses()

    def visit(callee: Any, statement: Statement) -> Any:
        code = _code(callee)
        policy = None if code is None else choices.get(_where(code))
        if policy is None:
            return callee
        where = _where(code)
        uses.names[where] = _name(code)
        uses.calls[where][statement] = None
        return _with_policy(callee, policy, lambda: uses.with_others.add(where))

    @functools.wraps(function.call)
    def call(*given: Any) -> Any:
        with visited(files, visit, calls=True):
            return function.call(*given)

    return dataclasses.replace(function, call=call)


_NOT_ARRAYS = "arguments that are no arrays are passed to it; bind them before jax.checkpoint"


def _with_policy(callee: Any, policy: str, say_others: Callable[[], None]) -> Callable[..., Any]:
    """``callee`` within ``jax.checkpoint``, or freed from it. Only arrays pass through it."""
    own = callee.__wrapped__ if _is_checkpoint(callee) else callee
    if policy == EVERYTHING:
        return own  # type: ignore[no-any-return]
    saved = None if policy == INPUTS else jax.checkpoint_policies.dots_with_no_batch_dims_saveable

    def call(*args: Any, **keywords: Any) -> Any:
        leaves, tree = jax.tree_util.tree_flatten((args, keywords))
        is_array = [isinstance(leaf, jax.Array) for leaf in leaves]
        if not all(is_array):
            say_others()

        def body(*arrays: Any) -> Any:
            remaining = iter(arrays)
            filled = [
                next(remaining) if passed else leaf
                for leaf, passed in zip(leaves, is_array, strict=True)
            ]
            own_args, own_keywords = jax.tree_util.tree_unflatten(tree, filled)
            return own(*own_args, **own_keywords)

        arrays = [leaf for leaf, passed in zip(leaves, is_array, strict=True) if passed]
        return jax.checkpoint(body, policy=saved)(*arrays)

    return call


def _is_checkpoint(callee: Any) -> bool:
    """Is it what ``jax.checkpoint`` returned? That hides behind another wrapper of JAX."""
    cells = (callee, *(cell.cell_contents for cell in getattr(callee, "__closure__", None) or ()))
    codes = (getattr(function, "__code__", None) for function in cells)
    return any(code is not None and code.co_filename.endswith(_CHECKPOINT) for code in codes)


def _code(callee: Any) -> Any:
    """The code of what is called, below wrappers; None: it has none, or is a class."""
    while True:
        if isinstance(callee, functools.partial):
            callee = callee.func
        elif hasattr(callee, "__wrapped__") and _is_of_jax(callee):
            callee = callee.__wrapped__
        else:
            break
    if isinstance(callee, type):
        return None
    function = getattr(callee, "__func__", callee)
    code = getattr(function, "__code__", None)
    if code is None and callable(callee):
        code = getattr(type(callee).__call__, "__code__", None)
    return code


def _is_of_jax(callee: Any) -> bool:
    """Is it a wrapper that JAX put around a function, such as that of ``jit``?"""
    code = getattr(callee, "__code__", None)
    return code is None or _JAX in code.co_filename


def _name(code: Any) -> str:
    return str(code.co_qualname).replace("<locals>.", "")


def _where(code: Any) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}"


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
        where = _where(code)

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
                if _is_checkpoint(callee):
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
                    name=_name(self.codes[where]),
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
