"""Builds the documentation's site for the tests that check it."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: packages of the extra ``docs`` that are not installed
LACKING = [
    name for name in ("mkdocs", "material", "mkdocstrings") if not importlib.util.find_spec(name)
]


def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, which the first process of a test run that needs it builds."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    site, whole = folder / "site", folder / "site is whole"
    with (folder / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            _build(site)
            whole.touch()
    return site


def _build(folder: Path) -> None:
    """Build the site into a folder without network, and fail on any warning."""
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # Requests to other hosts fail at once
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    environment = {**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "WARNING" not in done.stderr
