"""Files of compiled kernels: whatever happens to them or their folder, it is not an error."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from toast_lab import isolate, kernel_files

CALLED = """
from toast_lab.kernels import helper
@helper
def called(x: int) -> int:
    return x + {}
"""
CALLER = """
import pathlib, sys, time
import called
from toast_lab.kernels import KERNELS, compiled

@compiled
def caller(x: int) -> int:
    return called.called(x) + 1

if sys.argv[1:] == ["edited"]:  # wait until the source is
    here = pathlib.Path(__file__).parent
    (here / "imported").touch()
    while not (here / "edited").exists():
        time.sleep(0.05)
elif len(sys.argv) > 1:  # wait for the others, so that all compile at once
    time.sleep(max(0.0, float(sys.argv[1]) - time.time()))
print(caller(0), caller._cache.hits, caller._cache.path)
"""


def run(folder: Path, cache: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(folder), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-B", folder / "caller.py", *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(cache), **env},
    )


def outcome(process: subprocess.Popen[str]) -> tuple[int, int, Path]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    value, hits, path = out.split()
    return int(value), int(hits), Path(path)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "caller.py").write_text(textwrap.dedent(CALLER))
    (tmp_path / "called.py").write_text(textwrap.dedent(CALLED.format(1)))
    return tmp_path


def test_an_edit_of_a_file_that_a_kernel_calls_into_is_seen(program: Path) -> None:
    cache = program / "cache"
    assert outcome(run(program, cache))[:2] == (2, 0)
    assert outcome(run(program, cache))[:2] == (2, 1)
    before = (program / "called.py").stat()
    (program / "called.py").write_text(textwrap.dedent(CALLED.format(2)))
    # An upgraded wheel may have the same time stamps
    os.utime(program / "called.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert outcome(run(program, cache))[:2] == (3, 0)
    assert len(list((cache / "toast-lab").glob("*.kernel"))) == 1, "the older kernel is gone"


def test_kernels_of_another_python_are_kept_and_those_of_older_sources_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_files, "folder", lambda: tmp_path)
    older, newer = (kernel_files.path_of("k", "3.11", sources) for sources in (b"1", b"2"))
    others = [kernel_files.path_of("k", "3.12", b"1"), kernel_files.path_of("k.l", "3.11", b"1")]
    for path in (older, *others, newer):
        kernel_files.write(path, b"code")
    assert {*tmp_path.glob("*.kernel")} == {newer, *others}


def test_what_is_compiled_after_an_edit_counts_as_made_from_what_was_imported(
    program: Path,
) -> None:
    cache = program / "cache"
    older = run(program, cache, "edited")
    try:
        while not (program / "imported").exists():
            assert older.poll() is None
            time.sleep(0.05)
        (program / "called.py").write_text(textwrap.dedent(CALLED.format(2)))
        (program / "edited").touch()
        assert outcome(older)[:2] == (2, 0)
    finally:
        older.kill()
    assert outcome(run(program, cache))[:2] == (3, 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("callee", ["whole", "gone", "damaged", "edited"])
def test_a_kernel_that_another_calls_at_its_address_is_there_before_it(
    program: Path, callee: str
) -> None:
    source = textwrap.dedent(CALLED.format(1)).replace("helper", "compiled")
    (program / "called.py").write_text(source)
    cache = program / "cache"
    assert outcome(run(program, cache))[0] == 2
    (path,) = (cache / "toast-lab").glob("called*.kernel")
    if callee == "gone":
        path.unlink()
    elif callee == "damaged":
        path.write_bytes(path.read_bytes()[:-100])
    elif callee == "edited":
        (program / "called.py").write_text(source.replace("+ 1", "+ 7"))
    value, hits, _ = outcome(run(program, cache))
    assert value == (8 if callee == "edited" else 2)
    assert hits == (0 if callee == "edited" else 1)
    assert len(list((cache / "toast-lab").glob("called*.kernel"))) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_a_damaged_file_is_compiled_anew(program: Path, damage: str) -> None:
    cache = program / "cache"
    path = outcome(run(program, cache))[2]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(
        {
            "cut": path.read_bytes()[:-100],
            "flipped": bytes(data),
            "empty": b"",
            "foreign": b"no kernel" * 99,
        }[damage]
    )
    assert outcome(run(program, cache))[:2] == (2, 0)
    assert outcome(run(program, cache))[:2] == (2, 1)


def test_processes_that_compile_at_once_share_the_work(program: Path) -> None:
    import time

    start = str(time.time() + 4.0)
    racing = [run(program, program / "cache", start) for _ in range(4)]
    outcomes = [outcome(process) for process in racing]
    assert [value for value, _, _ in outcomes] == [2] * 4
    assert sum(hits for _, hits, _ in outcomes) == 3, "one compiled, three waited and loaded"


def test_without_any_folder_to_write_to_kernels_still_work(program: Path) -> None:
    blocked = program / "blocked"
    blocked.write_text("a file where a folder should be")
    value, _, path = outcome(
        run(program, blocked, TMPDIR=str(program), HOME=str(blocked), XDG_CACHE_HOME=str(blocked))
    )
    assert value == 2
    assert blocked not in path.parents


def test_a_full_disk_is_warned_of_and_nothing_half_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        with open(self, "wb") as file:
            file.write(data[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    kernel_files._warn_once.cache_clear()
    with pytest.warns(UserWarning, match=r"No space left on device.*NUMBA_CACHE_DIR"):
        kernel_files.write(tmp_path / "k-1.kernel", b"x" * 100)
    assert list(tmp_path.iterdir()) == []


def test_folders_that_others_can_write_to_are_not_trusted(tmp_path: Path) -> None:
    for mode in (0o777, 0o770):
        shared = tmp_path / f"{mode:o}"
        shared.mkdir()
        shared.chmod(mode)
        assert not kernel_files._usable(shared)
    own_folder = tmp_path / "own"
    assert kernel_files._usable(own_folder)


def test_a_lock_ends_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "k-1.kernel"
    code = "import sys, time; from pathlib import Path; from toast_lab import kernel_files\n"
    code += (
        "with kernel_files.locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, path],
        stdout=subprocess.PIPE,
        text=True,
        env=isolate.child_environment(),
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert kernel_files.is_locked(path)
    finally:
        holder.kill()
        holder.communicate()
    assert not kernel_files.is_locked(path)
