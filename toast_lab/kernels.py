"""Functions that Numba compiles.

``compiled`` functions are called from Python and kept on disk, ``helper`` functions are called by
kernels, and ``inlined`` functions are pieces of a long kernel, which is easier to read in pieces.

Each is compiled once, for the types in its annotations, whatever convertible types a caller passes.
The set of kernels is therefore known before anything runs, and ``toast_lab.prepare`` compiles them
ahead, on all cores. A helper becomes part of every kernel that calls it. A compiled function is
called at its address, so that pricing, which eight others call, is optimised and translated once
and not nine times. A function with a parameter annotated as a plain ``np.ndarray`` is compiled for
each type of array that it gets.

Each compiled function is kept in one file (see ``toast_lab.kernel_files``), named after a digest of
all sources that it was made from. Numba's own cache notices only edits of a function's own file,
fails if its folder is full or damaged, and makes two processes that start together compile
everything twice.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import inspect
import pickle
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core import caching, compiler_lock, serialize
from numba.core.registry import CPUDispatcher

from toast_lab import kernel_files
from toast_lab.pack_types import PackType, field_type
from toast_lab.packs import Pack, field_of, fields

#: "package.module:function" of every ``compiled`` function that was imported
KERNELS: dict[str, Any] = {}
#: "numpy": a division by 0 gives infinity, as in NumPy; checks of divisors would be a tenth of the
#: code. Wrappers for C would be another tenth.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


class _Helper(CPUDispatcher):  # type: ignore[misc]
    """A dispatcher that refuses calls from Python.

    Such a call would jump to the address of a wrapper that was not compiled.
    """

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"{name_of(self)} is called by kernels only: decorate it with ``compiled`` for Python"
        )


def helper(function: Any) -> Any:
    """Compile a function that only kernels call; Python can call its ``.py_func``."""
    return _helper(function, is_inlined=False)


def inlined(function: Any) -> Any:
    """Compile a helper that is inlined at each call.

    This is for pieces of an inner loop that are called at one place: calls made pricing a tenth
    slower.
    """
    return _helper(function, is_inlined=True)


def _helper(function: Any, *, is_inlined: bool) -> Any:
    options = {**_OPTIONS, "no_cpython_wrapper": True, "forceinline": is_inlined}
    dispatcher = numba.njit(**options)(function)
    dispatcher.__class__ = _Helper
    return _for_annotated_types(dispatcher)


def compiled(function: Any) -> Any:
    """Compile a function that Python calls, and keep it on disk.

    It is compiled at its first call or by ``make_ready``.
    """
    kernel = _for_annotated_types(numba.njit(**_OPTIONS)(function))
    kernel._cache = _KernelFile(kernel)
    KERNELS[name_of(kernel)] = kernel
    return kernel


def name_of(kernel: Any) -> str:
    """The name of a kernel in ``KERNELS``."""
    return f"{kernel.py_func.__module__}:{kernel.py_func.__name__}"


def make_ready(kernel: Any) -> None:
    """Load a kernel from disk, or compile it."""
    kernel.compile(tuple(annotated(kernel.py_func)))


def load(kernel: Any) -> bool:
    """Load a kernel if it is on disk; gives False if it has to be compiled."""
    if kernel.overloads:
        return True
    if not kernel._cache.path.exists():
        return False
    kernel._cache.only_load = True
    try:
        make_ready(kernel)
    except _NotOnDisk:
        return False
    finally:
        kernel._cache.only_load = False
    return True


def _for_annotated_types(dispatcher: Any) -> Any:
    """Restrict a dispatcher to the types in its function's annotations."""
    kernel_files.remember(inspect.getfile(dispatcher.py_func))

    def types_of(given_types: tuple[Any, ...]) -> tuple[Any, ...]:
        declared_types = annotated(dispatcher.py_func)
        mismatches = [
            f"{given_type}, not {declared_type}"
            for declared_type, given_type in zip(declared_types, given_types, strict=True)
            if not _fits(given_type, declared_type)
        ]
        if mismatches:
            raise TypeError(f"{name_of(dispatcher)} is called with {'; '.join(mismatches)}")
        return tuple(
            declared_type or numba.types.unliteral(given_type)
            for declared_type, given_type in zip(declared_types, given_types, strict=True)
        )

    original_template, original_compile = dispatcher.get_call_template, dispatcher.compile

    def get_call_template(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        assert not kws, f"{dispatcher.py_func.__name__}: kernels are called with positions only"
        return original_template(types_of(args), kws)

    def compile_once(signature: tuple[Any, ...]) -> Any:
        signature_types = types_of(signature)
        if signature_types in dispatcher.overloads:
            return dispatcher.overloads[signature_types].entry_point
        # Always in this order: a thread that holds the file's lock must never wait for a thread
        # that waits for the file.
        with (
            compiler_lock.global_compiler_lock,
            getattr(dispatcher._cache, "alone", contextlib.nullcontext)(),
        ):
            entry_point = original_compile(signature_types)
            if isinstance(dispatcher._cache, _KernelFile):
                _call_at_address(
                    dispatcher, dispatcher.overloads[signature_types], dispatcher._cache.path.stem
                )
            return entry_point

    dispatcher.get_call_template = get_call_template
    dispatcher.compile = compile_once
    return dispatcher


def _call_at_address(dispatcher: Any, compile_result: Any, symbol: str) -> None:
    """Let other kernels call a compiled function instead of including its code.

    ``symbol`` is the name under which they call it.
    """
    llvm.add_symbol(
        symbol, compile_result.library.get_pointer_to_function(compile_result.fndesc.llvm_func_name)
    )
    callee = copy.copy(compile_result.fndesc)
    callee.mangled_name = symbol
    dispatcher.targetctx.remove_user_function(compile_result.entry_point)
    dispatcher.targetctx.insert_user_function(compile_result.entry_point, callee)


def _fits(given_type: Any, declared_type: Any) -> bool:
    """Can compiled code take a ``given_type`` for a parameter of ``declared_type``?

    Numba itself does not check this again.
    """
    if declared_type is None or isinstance(declared_type, numba.types.Number | numba.types.Boolean):
        return True
    if not isinstance(declared_type, numba.types.Array):
        return bool(given_type == declared_type)
    return isinstance(given_type, numba.types.Array) and (
        given_type.dtype,
        given_type.ndim,
        given_type.layout,
    ) == (
        declared_type.dtype,
        declared_type.ndim,
        "C",
    )


@functools.cache
def annotated(function: Any) -> list[Any]:
    """Numba types of the parameters of a function; None for arrays of any type."""
    hints = get_type_hints(function, include_extras=True)
    declared = [field_of(hints[name]) for name in inspect.signature(function).parameters]
    return [None if field is None else field_type(field) for field in declared]


@helper
def copy_row(target: np.ndarray, source: np.ndarray) -> None:
    """``target[:] = source`` for arrays [N].

    Assigning slices would make Numba compile the code that words its errors, too.
    """
    for i in range(source.shape[0]):
        target[i] = source[i]


@helper
def copy_rows(target: np.ndarray, source: np.ndarray) -> None:
    """``target[:] = source`` for arrays [N, M]."""
    for row in range(source.shape[0]):
        for column in range(source.shape[1]):
            target[row, column] = source[row, column]


# -- on disk ---------------------------------------------------------------------------------------


class _NotOnDisk(Exception):
    """A kernel was to be loaded, not compiled, but its file is missing or damaged."""


class _KernelFile(caching._Cache):  # type: ignore[misc]
    """The file of one kernel, with the interface that Numba's dispatchers expect of a cache."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.only_load, self.hits = kernel, False, 0
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        """The kernel's file; its name depends on sources, versions and the processor."""
        if self._path is None:
            name = name_of(self.kernel).removeprefix("toast_lab.").replace(":", ".")
            processor = self.kernel.targetctx.codegen().magic_tuple()
            versions = numba.__version__, platform.python_version(), processor
            self._path = kernel_files.path_of(name, versions, _digest(self.kernel))
        return self._path

    @property
    def cache_path(self) -> str:
        return str(self.path.parent)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """A context in which no other process compiles this kernel."""
        return kernel_files.locked(self.path)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        target_context.refresh()
        # The addresses of callees must be known before the code that calls them is loaded.
        for callee in _reached(self.kernel, through_kernels=False):
            if isinstance(callee._cache, _KernelFile) and not load(callee):
                if self.only_load:
                    raise _NotOnDisk
                make_ready(callee)
        data = kernel_files.read(self.path)
        if data is not None:
            try:
                result = numba.core.compiler.CompileResult._rebuild(
                    target_context, *pickle.loads(data)
                )
            except Exception:  # whatever the fault, the kernel can be compiled again
                kernel_files.remove(self.path)
            else:
                self.hits += 1
                return result
        if self.only_load:
            raise _NotOnDisk
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        assert not result.library.has_dynamic_globals, (
            f"{self.path}: addresses of this process cannot be kept"
        )
        kernel_files.write(self.path, serialize.dumps(result._reduce()))

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None:
        kernel_files.remove(self.path)


def _digest(kernel: Any) -> bytes:
    """Identifies a kernel's sources."""
    digest = hashlib.sha256()
    functions = [dispatcher.py_func for dispatcher in [kernel, *_reached(kernel)]]
    packs = list(_packs_of(functions))
    sources: list[Any] = [sys.modules[__name__], PackType, Pack, *functions]
    sources += map(inspect.getmodule, packs)
    for path in sorted({Path(inspect.getfile(source)) for source in sources}):
        digest.update(path.name.encode() + b"\0" + kernel_files.content(path))
    # Some fields of packs are declared outside of the file of the class.
    layouts = {f"{pack.__qualname__}{fields(pack)}" for pack in packs}
    digest.update("".join(sorted(layouts)).encode())
    return digest.digest()


def _packs_of(functions: Sequence[Any]) -> Iterator[type]:
    """The packs that functions take, and those in them."""
    hints = (hint for function in functions for hint in annotated(function))
    pending = [hint.pack for hint in hints if isinstance(hint, PackType)]
    while pending:
        pack = pending.pop()
        yield pack
        pending += [field.pack for field in fields(pack) if field.pack is not None]


def _reached(kernel: Any, *, through_kernels: bool = True) -> list[Any]:
    """All helpers and kernels that a kernel calls, directly or through others.

    Calls made by other kernels are followed only with ``through_kernels``.
    """
    reached: dict[int, Any] = {}
    pending = [kernel]
    while pending:
        caller = pending.pop()
        if caller is not kernel and isinstance(caller._cache, _KernelFile) and not through_kernels:
            continue
        for value in _named(caller.py_func):
            if (
                isinstance(value, CPUDispatcher)
                and value is not kernel
                and id(value) not in reached
            ):
                reached[id(value)] = value
                pending.append(value)
    return list(reached.values())


def _named(function: Any) -> Iterator[Any]:
    """Yields the values of the globals that a function names.

    Attributes of modules (as ``steps.ways``) are included.
    """
    names = function.__code__.co_names
    for name in names:
        value = function.__globals__.get(name)
        if inspect.ismodule(value):
            yield from (vars(value)[attribute] for attribute in names if attribute in vars(value))
        elif value is not None:
            yield value
