"""Writes results to files whole or not at all.

If the disk is full, neither the previous file nor the result is lost.

The content is written to a file beside the target, is forced to disk, and then replaces the target
in one step. A reader, even after a crash, sees either the old content or the new, never a part. If
the content cannot be written, ``NotSaved`` names the path, the cause and a remedy.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from toast_lab.errors import NotSaved

PathLike = str | os.PathLike[str]
ADVICE = {
    errno.ENOSPC: "make room there, or give a file on another disk",
    errno.EDQUOT: "make room below your quota, or give a file on another disk",
    errno.EFBIG: "raise the limit on file sizes, or give a file on another disk",
    errno.EACCES: "give a file in a folder that you may write to",
    errno.EPERM: "give a file in a folder that you may write to",
    errno.EROFS: "give a file on a disk that can be written to",
    errno.ENOENT: "create its folder first, or give another file",
    errno.ENOTDIR: "give a file in a folder",
    errno.EISDIR: "this is a folder, give a file",
    errno.ENAMETOOLONG: "give a shorter name",
}


def write_whole(path: PathLike, content: str | bytes, subject: str = "the file") -> None:
    """Replace a file's content; texts are encoded as UTF-8.

    Raises NotSaved, and leaves the file unchanged, if it cannot be written.
    """
    with whole_file(path, subject) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def whole_file(path: PathLike, subject: str = "the file") -> Iterator[BinaryIO]:
    """Gives an open file that becomes ``path`` when the block ends.

    If the block raises, the file is deleted.

    Args:
        path: the target. Links are followed, and an existing file keeps its permissions. A device
            or a pipe is written to directly, since there is nothing to replace.
        subject: name of the content in messages: "the plan".

    Raises:
        NotSaved: the file cannot be written.
    """
    target = Path(os.path.realpath(path))
    try:
        try:
            mode = os.stat(target).st_mode
        except FileNotFoundError:
            mode = None
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if mode is not None and not stat.S_ISREG(mode):
            with open(target, "wb") as stream:
                yield stream
            return
        temporary = target.with_name(f".{secrets.token_hex(8)}.part")
        # The system applies the user's umask to 0o666.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(handle, "wb") as stream:
                yield stream
                stream.flush()
                force_to_disk(stream.fileno())
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _force_folder(target.parent)
    except OSError as error:
        raise not_saved(path, subject, error) from error


def not_saved(path: PathLike, subject: str, error: OSError) -> NotSaved:
    """The error for users if the system could not write ``path``."""
    reason = error.strerror or str(error)
    advice = ADVICE.get(error.errno or 0, "give another file")
    return NotSaved(f"{os.fspath(path)}: {subject} could not be written: {reason}; {advice}")


def lock(handle: int, patience_s: float) -> bool:
    """Take the lock of an open file; False if another process holds it and keeps it so long.

    The end of the process releases it. Raises OSError on file systems without locks.
    """
    deadline = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)


def force_to_disk(descriptor: int) -> None:
    """Call ``os.fsync``, if the file system supports it."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise


def _force_folder(folder: Path) -> None:
    """Force the entries of a folder to disk, so that a renamed file keeps its new name.

    A failure does not matter, since the content of the file is safe already.
    """
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def file_name(text: str) -> str:
    """Turn ``text`` into a part of a file name.

    >>> file_name("mcts (seed 0) of a/b")
    'mcts_seed_0_of_a_b'
    """
    return re.sub(r"[^\w.-]+", "_", text).strip("_.") or "figure"
