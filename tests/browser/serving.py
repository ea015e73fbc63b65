"""Starts the system's Chromium and the explorer, for tests, benchmarks and pictures."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toast_lab.errors import RunFailed

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Requests to other hosts fail at once.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)


def launch_arguments() -> dict[str, Any]:
    """The arguments with which Playwright starts the system's Chromium.

    It has no window, and none of its own services may use the network.

    Raises:
        RunFailed: no Chromium is installed.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = next((path for path in map(shutil.which, names) if path), None)
    if executable is None:
        raise RunFailed("No Chromium on PATH; scripts/ensure_chromium.sh installs it.")
    return {"executable_path": executable, "headless": True, "args": list(FLAGS)}


def free_port() -> int:
    """A TCP port on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_answers(
    url: str, process: subprocess.Popen[bytes], log: Path, seconds: float
) -> None:
    """Wait until a server answers at a URL.

    Raises:
        RunFailed: the server ended, answered with an error, or did not answer in time. The message
            has the end of its log.
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RunFailed(
                f"the server ended with status {process.returncode}:\n{log.read_text()[-4000:]}"
            )
        try:
            with direct.open(url, timeout=30):
                return
        except urllib.error.HTTPError as error:
            raise RunFailed(f"{url} answers {error.code}:\n{log.read_text()[-4000:]}") from None
        except OSError:
            time.sleep(0.2)
    raise RunFailed(f"no answer from {url} within {seconds:.0f} s:\n{log.read_text()[-4000:]}")


@contextlib.contextmanager
def serving(*arguments: str, port: int = 0) -> Iterator[str]:
    """Run ``toast-lab serve`` with these arguments in its own process, and give its address.

    Without a port, it listens on a free one.
    """
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-m", "toast_lab.cli", "serve", "--port", str(port), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(os.environ)
            )
        try:
            wait_until_answers(url, process, log, 180)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=30)
