"""Keeps compiled kernels in files.

The files may be missing, damaged, locked or not writable without breaking anything.

The folder is the first of these that can be written to: ``NUMBA_CACHE_DIR`` if it is set, the
package's own ``__pycache__`` (removed together with the package), a folder in the user's cache
folder, and a private temporary folder. This module does not import Numba, which takes long.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

from toast_lab.files import lock

PACKAGE_FOLDER = Path(__file__).parent
WAIT_S = 300.0  #: longest wait for another process to compile a kernel
_DIGEST_BYTES = 32


@functools.cache
def folder() -> Path:
    """The folder for compiled kernels; it exists, and can be written to if any folder can."""
    for path in _candidates():
        if _usable(path):
            return path
    return Path(tempfile.mkdtemp(prefix="toast-lab-"))


def _candidates() -> Iterator[Path]:
    if numba_folder := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(numba_folder) / "toast-lab"
    yield PACKAGE_FOLDER / "__pycache__" / "kernels"
    with contextlib.suppress(RuntimeError):  # the home folder is not known
        yield (
            Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            / "toast-lab"
            / "kernels"
        )
    yield Path(tempfile.gettempdir()) / f"toast-lab-{os.getuid()}"


def _usable(path: Path) -> bool:
    """Can only this user (or root) write to the folder? Code that is loaded from it is executed."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if status.st_uid not in (os.getuid(), 0):
            return False
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
        with tempfile.TemporaryFile(dir=path) as probe:
            probe.write(b"\0")
    except OSError:
        return False
    return True


def path_of(name: str, versions: object, sources: bytes) -> Path:
    """The file of a kernel.

    A checkout that two Pythons use keeps the kernels of both: ``write`` deletes files of the same
    kernel only if they are of the same versions.

    Args:
        name: of the kernel.
        versions: what compiled it, and for which processor; its ``repr`` counts.
        sources: digest of what it was made from.
    """
    compiler = hashlib.sha256(repr(versions).encode()).hexdigest()
    return folder() / f"{name}-{compiler[:12]}-{sources.hex()[:16]}.kernel"


def read(path: Path) -> bytes | None:
    """Content of a file that ``write`` wrote; None if the file is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return data if hashlib.sha256(data).digest() == digest else None


def write(path: Path, data: bytes) -> None:
    """Write ``data`` whole or not at all, and delete files of older sources of the same kernel.

    If it cannot be written, as on a full disk, a warning is given once.
    """
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        partial.write_bytes(hashlib.sha256(data).digest() + data)
        partial.replace(path)
        kernel, _, _ = path.name.rpartition("-")
        for older in path.parent.glob(f"{kernel}-*.kernel"):
            if older != path and older.name.rpartition("-")[0] == kernel:
                remove(older)
    except OSError as error:
        remove(partial)
        _warn_once(
            f"compiled kernels cannot be kept in {path.parent} ({error.strerror}): they "
            "are compiled anew in "
            "every process. Make room there, or name another folder in NUMBA_CACHE_DIR."
        )


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def remove(path: Path) -> None:
    """Delete a file, if it exists."""
    with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file.

    Other processes that want the lock wait for at most ``WAIT_S`` and then continue without it.
    """
    with contextlib.ExitStack() as stack:
        handle = _open_lock(path)
        if handle is not None:
            stack.callback(os.close, handle)  # releases the lock, as does the end of the process
            with contextlib.suppress(OSError):  # a file system without locks
                lock(handle, WAIT_S)
        yield


def is_locked(path: Path) -> bool:
    """Does another process hold the lock of a file?"""
    handle = _open_lock(path)
    if handle is None:
        return False
    try:
        return not lock(handle, 0.0)
    except OSError:
        return False
    finally:
        os.close(handle)


def _open_lock(path: Path) -> int | None:
    try:
        # All versions of a kernel share one lock file, so that lock files do not accumulate.
        name = path.name.rpartition("-")[0] or path.name
        return os.open(path.with_name(f"{name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def remember(file: str | None) -> None:
    """Read a source file of kernels as soon as it is imported.

    If it were read only when a kernel is compiled, it could have been edited since: the kernel of
    the old module would be kept as if it were made from the new source, and a process that loads it
    would read packs at wrong addresses.
    """
    with contextlib.suppress(OSError):  # code that was typed in has no file
        content(Path(file or ""))


@functools.cache
def content(path: Path) -> bytes:
    """Content of a source file at the time of the first call."""
    return path.read_bytes()
