"""Start JAX without its messages about missing hardware.

The first call that needs a device makes JAX look for all of them. libtpu, the CUDA plugin and XLA
then report to stderr the devices that are missing, some of them bypassing Python. A notebook shows
that in red under the reader's first cell, although tracing needs no accelerator.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import tempfile
from collections.abc import Iterator

from toast_lab.errors import FrontendError

_LOGGERS = (
    "jax._src.xla_bridge",
    "jax._src.cloud_tpu_init",
    "jax_plugins",
    "jax_plugins.xla_cuda12",
    "jax_plugins.xla_cuda13",
)


@functools.cache
def look_for_devices() -> None:
    """Let JAX find its devices, once per process, without messages about missing ones.

    Raises FrontendError if it finds none at all, after printing the libraries' messages.
    """
    import jax

    error: Exception | None = None
    with _no_records(), _kept_back() as written:
        try:
            jax.devices()
        except Exception as caught:
            error = caught
    if error is not None:
        sys.stderr.write(written[0])
        platforms = os.environ.get("JAX_PLATFORMS")
        raise FrontendError(
            f"JAX found no device: {error or type(error).__name__}. "
            + (
                f"JAX_PLATFORMS={platforms} allows no others; unset it, or"
                if platforms
                else "A CPU is enough for tracing:"
            )
            + " set JAX_PLATFORMS=cpu"
        ) from error


@contextlib.contextmanager
def _no_records() -> Iterator[None]:
    def drop(_record: logging.LogRecord) -> bool:
        return False

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(drop)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(drop)


@contextlib.contextmanager
def _kept_back() -> Iterator[list[str]]:
    """Capture the libraries' output to file descriptor 2; the list holds it afterwards."""
    written: list[str] = []
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile())
            saved_stderr = os.dup(2)
        except OSError:  # nowhere to keep the output, or no stderr
            yield [""]
            return
        stack.callback(os.close, saved_stderr)
        os.dup2(file.fileno(), 2)
        try:
            yield written
        finally:
            os.dup2(saved_stderr, 2)
            file.seek(0)
            written.append(file.read().decode(errors="replace"))
