"""Results are written whole or not at all, tested with real failures of the system."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from toast_lab.errors import NotSaved
from toast_lab.files import whole_file, write_whole

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    before = os.umask(0o027)
    try:
        write_whole(path, "one")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    write_whole(path, "Übung")
    assert path.read_bytes() == "Übung".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "plan.json", tmp_path / "there" / "real.json"
    target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@needs_full
def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    message = r"^/dev/full: the plan could not be written: No space left on device; make room there"
    with pytest.raises(NotSaved, match=message):
        write_whole(FULL, "x", "the plan")
    assert stat.S_ISCHR(FULL.stat().st_mode)
    write_whole(os.devnull, "x")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_write_that_the_system_refuses_half_way_leaves_the_old_file_and_nothing_else(
    tmp_path: Path,
) -> None:
    """The files of the writing process are limited to 4096 bytes.

    The write fails as on a full disk.
    """
    path = tmp_path / "trace.npz"
    path.write_text("precious")
    code = (
        "import resource, sys; sys.dont_write_bytecode = True\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from toast_lab.files import write_whole\n"
        "from toast_lab.errors import NotSaved\n"
        "try: write_whole(sys.argv[1], 'x' * 100_000, 'the trace')\n"
        "except NotSaved as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(
        f"{path}: the trace could not be written: File too large; raise the limit"
    )
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["trace.npz"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096


def test_what_is_interrupted_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("precious")

    def interrupted() -> None:
        with whole_file(path) as out:
            out.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["plan.json"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no/such/plan.json", "No such file or directory; create its folder first"),
        (".", "Is a directory; this is a folder, give a file"),
        ("file/plan.json", "Not a directory; give a file in a folder"),
        ("x" * 300, "File name too long; give a shorter name"),
    ],
)
def test_the_message_says_which_path_and_what_to_do(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotSaved) as caught:
        write_whole(tmp_path / name, "x", "the plan")
    assert str(caught.value).startswith(f"{tmp_path / name}: the plan could not be written: {said}")
