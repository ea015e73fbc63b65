"""JAX without notes on hardware that nobody asked for.

The first call that needs a device makes JAX look for all of them.  libtpu, the CUDA plugin and XLA then write to
stderr what they did not find, some of them past Python, and a notebook shows it in red under the reader's first cell,
although tracing needs no accelerator.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import tempfile
from collections.abc import Iterator

_LOGGERS = (
    "jax._src.xla_bridge",
    "jax._src.cloud_tpu_init",
    "jax_plugins",
    "jax_plugins.xla_cuda12",
    "jax_plugins.xla_cuda13",
)


@functools.cache
def look_for_devices() -> None:
    """Let JAX find its devices, once in a process, and say nothing of those that are not there.

    Where that fails altogether nothing is hidden: what was written comes out, and whoever needs a device next gets
    the error.
    """
    import jax

    with _no_records(), _kept_back() as written:
        try:
            jax.devices()
        except Exception:
            failed = True
        else:
            failed = False
    if failed:
        sys.stderr.write(written[0])


@contextlib.contextmanager
def _no_records() -> Iterator[None]:
    def nothing(record: logging.LogRecord) -> bool:
        return False

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(nothing)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(nothing)


@contextlib.contextmanager
def _kept_back() -> Iterator[list[str]]:
    """Keep back what libraries write to file descriptor 2; the list holds it afterwards."""
    written: list[str] = []
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile())
            before = os.dup(2)
        except OSError:  # nowhere to keep it, or no stderr
            yield [""]
            return
        stack.callback(os.close, before)
        os.dup2(file.fileno(), 2)
        try:
            yield written
        finally:
            os.dup2(before, 2)
            file.seek(0)
            written.append(file.read().decode(errors="replace"))
