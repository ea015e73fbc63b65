"""``jax.checkpoint`` around calls in the user's files, or taken away from there.

The code of the files runs with what it calls replaced (``instrumented``). Only arrays pass through
``jax.checkpoint``; all else that a layer is called with is bound.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax

from toast_lab.errors import InvalidProblem
from toast_lab.frontends.instrumented import Statement, visited
from toast_lab.ir.model import Function, Model, Recomputed

EVERYTHING, INPUTS, PRODUCTS = "everything", "inputs", "products"
#: what is kept of a layer for the backward pass, by name; the rest is computed again
POLICIES: Mapping[str, str] = {
    EVERYTHING: "keeps everything",
    INPUTS: "keeps its inputs",
    PRODUCTS: "keeps its inputs and what products with weights make",
}
_JAX = os.path.join("jax", "_src", "")
_CHECKPOINT = os.path.join("jax", "_src", "ad_checkpoint.py")
#: policy by the ``where`` of a layer
Choices = Mapping[str, str]


class LayerUses:
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
    function: Function, choices: Choices, files: Collection[str], uses: LayerUses | None = None
) -> Function:
    """The function that keeps what ``choices`` say, where functions of ``files`` call layers."""
    uses = uses or LayerUses()

    def visit(callee: Any, statement: Statement) -> Any:
        code = code_of(callee)
        policy = None if code is None else choices.get(where_of(code))
        if policy is None:
            return callee
        where = where_of(code)
        uses.names[where] = name_of(code)
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
    own = callee.__wrapped__ if is_checkpoint(callee) else callee
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


def is_checkpoint(callee: Any) -> bool:
    """Is it what ``jax.checkpoint`` returned? That hides behind another wrapper of JAX."""
    cells = (callee, *(cell.cell_contents for cell in getattr(callee, "__closure__", None) or ()))
    codes = (getattr(function, "__code__", None) for function in cells)
    return any(code is not None and code.co_filename.endswith(_CHECKPOINT) for code in codes)


def code_of(callee: Any) -> Any:
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


def name_of(code: Any) -> str:
    """The qualified name of a function, by its code."""
    return str(code.co_qualname).replace("<locals>.", "")


def where_of(code: Any) -> str:
    """File and line of the definition of a function, by its code."""
    return f"{code.co_filename}:{code.co_firstlineno}"
