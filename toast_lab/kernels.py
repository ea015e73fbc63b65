"""Functions that Numba compiles.

``compiled`` ones are called from Python and kept on disk, ``helper``s by kernels, and ``inlined``
ones are pieces of a long kernel, which is easier to read in pieces.

All are compiled once, for the types that their annotations say, whatever a caller has at hand that
converts to them: so it is known what there is to compile before anything runs, and
``toast_lab.prepare`` does it ahead, on all cores.  A helper becomes part of every kernel that calls
it; a compiled function is called at its address, so that pricing, which eight others call, is
optimised and translated once and not nine times.  A parameter annotated as a plain ``np.ndarray``
is compiled for each type of array that it meets.

What is compiled is kept in one file each (see ``toast_lab.kernel_files``), named after a digest of
all sources that it was made from.  Numba's own cache notices edits of a function's own file only,
ends in errors where its folder is full or damaged, and lets two processes that start together
compile everything twice.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import inspect
import pickle
import platform
from collections.abc import Iterator
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
#: "numpy": a division by 0 gives infinity, as in NumPy; checking each would be a tenth of the code.
#: No wrappers for C: they would be a tenth of the code.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


class _Helper(CPUDispatcher):  # type: ignore[misc]
    """Refuses calls from Python.

    They would jump to the address of a wrapper that was not compiled.
    """

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"{name_of(self)} is called by kernels only: decorate it with ``compiled`` for Python"
        )


def helper(function: Any) -> Any:
    """Compile a function that kernels call; Python cannot, but has it as ``.py_func``."""
    return _helper(function, is_inlined=False)


def inlined(function: Any) -> Any:
    """Compile a helper that becomes part of its caller at each call, as if it were written there.

    For pieces of an inner loop that are called at one place: calls made pricing a tenth slower.
    """
    return _helper(function, is_inlined=True)


def _helper(function: Any, *, is_inlined: bool) -> Any:
    options = {**_OPTIONS, "no_cpython_wrapper": True, "forceinline": is_inlined}
    dispatcher = numba.njit(**options)(function)
    dispatcher.__class__ = _Helper
    return _once(dispatcher)


def compiled(function: Any) -> Any:
    """Compile a function that Python calls, and keep it on disk.

    It is compiled at its first call or by ``make_ready``.
    """
    kernel = _once(numba.njit(**_OPTIONS)(function))
    kernel._cache = _Kept(kernel)
    KERNELS[name_of(kernel)] = kernel
    return kernel


def name_of(kernel: Any) -> str:
    """What ``KERNELS`` calls it."""
    return f"{kernel.py_func.__module__}:{kernel.py_func.__name__}"


def make_ready(kernel: Any) -> None:
    """Load a kernel from disk, or compile it."""
    kernel.compile(tuple(annotated(kernel.py_func)))


def load(kernel: Any) -> bool:
    """Load a kernel if it was compiled before; False: it has to be compiled."""
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


def _once(dispatcher: Any) -> Any:
    """Let a function be compiled for the types of its annotations alone."""
    kernel_files.remember(inspect.getfile(dispatcher.py_func))

    def types_of(given: tuple[Any, ...]) -> tuple[Any, ...]:
        declared = annotated(dispatcher.py_func)
        wrong = [
            f"{other}, not {own}"
            for own, other in zip(declared, given, strict=True)
            if not _fits(other, own)
        ]
        if wrong:
            raise TypeError(f"{name_of(dispatcher)} is called with {'; '.join(wrong)}")
        return tuple(
            own or numba.types.unliteral(other) for own, other in zip(declared, given, strict=True)
        )

    template, compile_ = dispatcher.get_call_template, dispatcher.compile

    def get_call_template(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        assert not kws, f"{dispatcher.py_func.__name__}: kernels are called with positions only"
        return template(types_of(args), kws)

    def compile_once(signature: tuple[Any, ...]) -> Any:
        wanted = types_of(signature)
        if wanted in dispatcher.overloads:
            return dispatcher.overloads[wanted].entry_point
        # Always in this order: a thread that holds the file's lock must not wait for one that waits
        # for the file.
        with (
            compiler_lock.global_compiler_lock,
            getattr(dispatcher._cache, "alone", contextlib.nullcontext)(),
        ):
            entry_point = compile_(wanted)
            if isinstance(dispatcher._cache, _Kept):
                _call_at_address(
                    dispatcher, dispatcher.overloads[wanted], dispatcher._cache.path.stem
                )
            return entry_point

    dispatcher.get_call_template = get_call_template
    dispatcher.compile = compile_once
    return dispatcher


def _call_at_address(dispatcher: Any, result: Any, symbol: str) -> None:
    """Let other kernels call what was compiled instead of containing it.

    ``symbol`` is the name that they know it by.
    """
    llvm.add_symbol(symbol, result.library.get_pointer_to_function(result.fndesc.llvm_func_name))
    callee = copy.copy(result.fndesc)
    callee.mangled_name = symbol
    dispatcher.targetctx.remove_user_function(result.entry_point)
    dispatcher.targetctx.insert_user_function(result.entry_point, callee)


def _fits(given: Any, declared: Any) -> bool:
    """May compiled code take one for the other?

    Numba itself does not look again at what it was told.
    """
    if declared is None or isinstance(declared, numba.types.Number | numba.types.Boolean):
        return True
    if not isinstance(declared, numba.types.Array):
        return bool(given == declared)
    return isinstance(given, numba.types.Array) and (given.dtype, given.ndim, given.layout) == (
        declared.dtype,
        declared.ndim,
        "C",
    )


@functools.cache
def annotated(function: Any) -> list[Any]:
    """Numba's types of the parameters of a function; None for arrays of any type."""
    hints = get_type_hints(function, include_extras=True)
    declared = [field_of(hints[name]) for name in inspect.signature(function).parameters]
    return [None if field is None else field_type(field) for field in declared]


@helper
def copy_row(target: np.ndarray, source: np.ndarray) -> None:
    """``target[:] = source`` for arrays [N].

    Assigning slices makes Numba compile how its errors are worded.
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
    """A kernel was to be loaded, not compiled, and is not on disk, or damaged there."""


class _Kept(caching._Cache):  # type: ignore[misc]
    """Where one kernel is on disk, in the form that Numba's dispatchers ask for."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.only_load, self.hits = kernel, False, 0
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        """The kernel's file: another one for other sources, versions and processors."""
        if self._path is None:
            name = name_of(self.kernel).removeprefix("toast_lab.").replace(":", ".")
            self._path = kernel_files.folder() / f"{name}-{_digest(self.kernel)}.kernel"
        return self._path

    @property
    def cache_path(self) -> str:
        return str(self.path.parent)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from compiling it meanwhile."""
        return kernel_files.locked(self.path)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        target_context.refresh()
        # Their addresses have to be known before the code that calls them is loaded.
        for callee in _callees(self.kernel):
            if not load(callee):
                if self.only_load:
                    raise _NotOnDisk
                make_ready(callee)
        data = kernel_files.read(self.path)
        if data is not None:
            try:
                result = numba.core.compiler.CompileResult._rebuild(
                    target_context, *pickle.loads(data)
                )
            except Exception:  # whatever is wrong with it, it can be compiled anew
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


def _digest(kernel: Any) -> str:
    """16 hex digits of what a kernel is made from: sources, versions and the processor."""
    magic = kernel.targetctx.codegen().magic_tuple()
    digest = hashlib.sha256(repr((numba.__version__, platform.python_version(), magic)).encode())
    for path in sorted(_sources(kernel)):
        digest.update(path.name.encode() + b"\0" + kernel_files.content(path))
    return digest.hexdigest()[:16]


def _sources(kernel: Any) -> set[Path]:
    """Files of a kernel, of all that it calls, and of the packs that these take."""
    paths = {Path(__file__), Path(inspect.getfile(PackType)), Path(inspect.getfile(Pack))}
    for dispatcher in [kernel, *_reached(kernel, through_kernels=True)]:
        paths.add(Path(inspect.getfile(dispatcher.py_func)))
        for hint in annotated(dispatcher.py_func):
            if isinstance(hint, PackType):
                paths.update(_files_of(hint.pack))
    return paths


def _callees(kernel: Any) -> list[Any]:
    """The kernels that one calls, itself or by the helpers that are part of it."""
    return [
        callee
        for callee in _reached(kernel, through_kernels=False)
        if isinstance(callee._cache, _Kept)
    ]


def _reached(kernel: Any, *, through_kernels: bool) -> list[Any]:
    """The helpers and kernels that one calls, and those that these call.

    With ``through_kernels`` it looks past other kernels, else up to them.
    """
    reached: dict[int, Any] = {}
    waiting = [kernel]
    while waiting:
        caller = waiting.pop()
        if caller is not kernel and isinstance(caller._cache, _Kept) and not through_kernels:
            continue
        for value in _named(caller.py_func):
            if (
                isinstance(value, CPUDispatcher)
                and value is not kernel
                and id(value) not in reached
            ):
                reached[id(value)] = value
                waiting.append(value)
    return list(reached.values())


def _files_of(pack: type) -> Iterator[Path]:
    yield Path(inspect.getfile(inspect.getmodule(pack)))  # type: ignore[arg-type]
    for field in fields(pack):
        if field.pack is not None:
            yield from _files_of(field.pack)


def _named(function: Any) -> Iterator[Any]:
    """The values of the globals that a function names.

    Those reached through modules (as ``steps.ways``) are included.
    """
    names = function.__code__.co_names
    for name in names:
        value = function.__globals__.get(name)
        if inspect.ismodule(value):
            yield from (vars(value)[inner] for inner in names if inner in vars(value))
        elif value is not None:
            yield value
