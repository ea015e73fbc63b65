"""scripts/install.sh installs with uv if it can, and otherwise with pip and pip's messages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP_INSTALL = "pip: -m pip install -qq --no-compile --disable-pip-version-check"
# A stand-in for pip and uv: it records how it was called, and fails on request.
TOOL = """#!/bin/sh
case "$*" in
    --version | *"config get"*) exit 0 ;;
esac
echo "{name}: $*" >>"{calls}"
echo "index ${{UV_DEFAULT_INDEX:-}}" >>"{calls}"
echo "{name} says no" >&2
exit {status}
"""


class Checkout:
    """A checkout with an environment whose Python and uv only record their calls."""

    def __init__(self, folder: Path, *, pip: int, uv: int | None) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        (folder / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/install.sh", folder / "scripts")
        (folder / "constraints.txt").write_text("uv==1.2.3\n")
        (folder / "new/bin").mkdir(parents=True)
        self.make("python", "pip", pip)
        if uv is not None:
            self.make("uv", "uv", uv)

    def make(self, file: str, name: str, status: int) -> None:
        tool = self.folder / "new/bin" / file
        tool.write_text(TOOL.format(name=name, calls=self.calls, status=status))
        tool.chmod(0o755)

    def install(self, **settings: str) -> tuple[int, str, list[str]]:
        """The status, output and calls of an install of `--editable .`."""
        done = subprocess.run(
            ["bash", "scripts/install.sh", "new", "--editable", "."],
            cwd=self.folder,
            env={"PATH": "/usr/bin:/bin", **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        calls = self.calls.read_text().splitlines()
        return done.returncode, done.stderr, calls


def test_uv_installs_where_it_is_there(tmp_path: Path) -> None:
    status, words, calls = Checkout(tmp_path, pip=0, uv=0).install()
    assert (status, words) == (0, "")
    assert calls == ["uv: pip install --quiet --python new/bin/python --editable .", "index "]


@pytest.mark.parametrize("pip", [0, 3])
def test_what_uv_cannot_install_pip_installs_and_its_words_are_the_user_s(
    tmp_path: Path, pip: int
) -> None:
    status, words, calls = Checkout(tmp_path, pip=pip, uv=2).install()
    assert (status, words) == (pip, "pip says no\n")
    assert calls[0].startswith("uv: ")
    assert calls[2] == f"{PIP_INSTALL} --editable ."


def test_uv_is_asked_for_where_it_is_missing(tmp_path: Path) -> None:
    status, words, calls = Checkout(tmp_path, pip=0, uv=None).install()
    assert (status, words) == (0, "pip says no\n")
    assert calls[0] == f"{PIP_INSTALL} --only-binary :all: uv==1.2.3"
    assert calls[2] == f"{PIP_INSTALL} --editable ."


def test_a_mirror_that_is_set_for_pip_is_asked_by_uv(tmp_path: Path) -> None:
    mirror = "file:///a/mirror"
    _, _, calls = Checkout(tmp_path, pip=0, uv=0).install(PIP_INDEX_URL=mirror)
    assert calls[1] == f"index {mirror}"
