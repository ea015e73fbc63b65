"""``jax.checkpoint`` around calls in the user's files, or taken away from there.

The code of the files runs with what it calls replaced (``instrumented``). Only arrays pass through
``jax.checkpoint``; all else that a layer is called with is bound.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax

from toast_lab.errors import InvalidProblem
from toast_lab.frontends.instrumented import Statement, visited
from toast_lab.frontends.packages import FRAMEWORKS, package_of
from toast_lab.ir.model import Function, Model, Recomputed

EVERYTHING, INPUTS, PRODUCTS = "everything", "inputs", "products"
#: what is kept of a layer for the backward pass, by name; the rest is computed again
POLICIES: Mapping[str, str] = {
    EVERYTHING: "keeps everything",
    INPUTS: "keeps its inputs",
    PRODUCTS: "keeps its inputs and what products with weights make",
}
_CHECKPOINT = os.path.join("jax", "_src", "ad_checkpoint.py")
#: policy by the ``where`` of a layer
Choices = Mapping[str, str]


class LayerUses:
    """The places at which a traced function called chosen layers."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.calls: dict[str, dict[Statement, None]] = defaultdict(dict)
        self.refusals: dict[str, str] = {}

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
                refusal=self.refusals.get(where, ""),
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
        return _with_policy(callee, policy, lambda why: uses.refusals.update({where: why}))

    @functools.wraps(function.call)
    def call(*given: Any) -> Any:
        with visited(files, visit, calls=True):
            return function.call(*given)

    return dataclasses.replace(function, call=call)


_NOT_ARRAYS = "arguments that are no arrays are passed to it; bind them before jax.checkpoint"
_OF_LIBRARY = "it is a module of {}: wrap it with {} where it is made"


class _Library(NamedTuple):
    """How a library recomputes a module, whose state ``jax.checkpoint`` would not know."""

    base: str  #: class of all its modules
    transform: str  #: takes a function and a policy
    passes_module: bool  #: the function's first argument is the module

    def checkpoint(self, own: Any, body: Callable[..., Any], policy: Any, arrays: Any) -> Any:
        """What ``body(own, *arrays)`` returns, computed again for the backward pass."""
        transform = pkgutil.resolve_name(self.transform)
        if not self.passes_module:
            return transform(lambda *given: body(own, *given), policy=policy)(*arrays)
        owner, method = getattr(own, "__self__", own), getattr(own, "__name__", "__call__")

        def of_owner(passed: Any, *given: Any) -> Any:
            return body(getattr(passed, method), *given)

        return transform(of_owner, policy=policy)(owner, *arrays)


_LIBRARIES = (
    _Library("flax.linen.module.Module", "flax.linen.remat", passes_module=True),
    _Library("flax.nnx.module.Module", "flax.nnx.remat", passes_module=True),
    _Library("haiku._src.module.Module", "haiku.remat", passes_module=False),
)


def _library_of(callee: Any) -> _Library | None:
    """The library whose module is called, or has the method that is called."""
    owner = type(getattr(callee, "__self__", callee))
    bases = {f"{base.__module__}.{base.__qualname__}" for base in owner.__mro__}
    return next((library for library in _LIBRARIES if library.base in bases), None)


def _with_policy(callee: Any, policy: str, say: Callable[[str], None]) -> Callable[..., Any]:
    """``callee`` within ``jax.checkpoint``, or freed from it. Only arrays pass through it."""
    own = callee.__wrapped__ if is_checkpoint(callee) else callee
    if policy == EVERYTHING:
        return own  # type: ignore[no-any-return]
    saved = None if policy == INPUTS else jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    library = _library_of(own)
    if library is not None:
        say(_OF_LIBRARY.format(library.base.partition(".")[0], library.transform))

    def call(*args: Any, **keywords: Any) -> Any:
        leaves, tree = jax.tree_util.tree_flatten((args, keywords))
        is_array = [isinstance(leaf, jax.Array) for leaf in leaves]
        if not all(is_array) and library is None:
            say(_NOT_ARRAYS)

        def body(called: Any, *arrays: Any) -> Any:
            remaining = iter(arrays)
            filled = [
                next(remaining) if passed else leaf
                for leaf, passed in zip(leaves, is_array, strict=True)
            ]
            own_args, own_keywords = jax.tree_util.tree_unflatten(tree, filled)
            return called(*own_args, **own_keywords)

        arrays = [leaf for leaf, passed in zip(leaves, is_array, strict=True) if passed]
        if library is not None:
            return library.checkpoint(own, body, saved, arrays)
        return jax.checkpoint(functools.partial(body, own), policy=saved)(*arrays)

    return call


def is_checkpoint(callee: Any) -> bool:
    """Is it what ``jax.checkpoint`` returned? That hides behind another wrapper of JAX."""
    cells = (callee, *(cell.cell_contents for cell in getattr(callee, "__closure__", None) or ()))
    codes = (getattr(function, "__code__", None) for function in cells)
    return any(code is not None and code.co_filename.endswith(_CHECKPOINT) for code in codes)


def code_of(callee: Any) -> Any:
    """The code of what is called, below wrappers; None: it has none, or is a class."""
    if isinstance(callee, functools.partial):
        return code_of(callee.func)
    if isinstance(callee, type):
        return None
    function = getattr(callee, "__func__", callee)
    has_code = hasattr(function, "__code__") or hasattr(function, "__wrapped__")
    if not has_code and callable(callee):
        function = type(callee).__call__
    while hasattr(function, "__wrapped__") and _is_of_framework(function):
        function = function.__wrapped__
    return getattr(function, "__code__", None)


def _is_of_framework(function: Any) -> bool:
    """Is it a wrapper around a function that the user did not write, such as that of ``jit``?"""
    code = getattr(function, "__code__", None)
    return code is None or package_of(code.co_filename) in FRAMEWORKS


def name_of(code: Any) -> str:
    """The qualified name of a function, by its code."""
    return str(code.co_qualname).replace("<locals>.", "")


def where_of(code: Any) -> str:
    """File and line of the definition of a function, by its code."""
    return f"{code.co_filename}:{code.co_firstlineno}"
