"""Commands about GPUs that are not attached; these tests need no GPU compiler."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_gpu_compiler import WRITE
from toast_lab.runtime import gpu_compiler

NET = ["mlp", "--set", "batch=16", "--mesh", "data=2,model=2"]


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        ("gpu:h101:4", ["no GPU is known as 'h101'", 'did you mean "h100"', "gpu:./my_gpu.toml:8"]),
        ("gpu:h100:8", ["4 devices, fewer than the 8 of gpu:h100:8", "topology gpu:h100:4"]),
        ("gpu:h100:2x", ["cannot read the topology", '"gpu:h100:4"']),
        ("gpu:h100:4", ["there is no jax-cuda12-pjrt", "\n  toast-lab install-gpu-compiler\n"]),
    ],
)
def test_what_cannot_be_compiled_for_is_said_before_any_work(
    toast: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    topology: str,
    words: list[str],
) -> None:
    monkeypatch.setenv(gpu_compiler.FOLDER_VARIABLE, str(tmp_path))
    status, out, err = toast("compile", *NET, "--topology", topology)
    assert (status, out) == (2, "")
    for word in words:
        assert word in err, word


def test_the_compiler_is_got_by_a_command(
    toast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_compiler, "_pip", lambda f: [sys.executable, "-c", WRITE, str(f)])
    monkeypatch.setenv(gpu_compiler.FOLDER_VARIABLE, str(tmp_path / "own"))
    status, out, err = toast("install-gpu-compiler", "--json")
    assert status == 0, err
    data = json.loads(out)
    assert data["folder"] == str(tmp_path / "own")
    assert data["looked_at"]
    assert data["versions"] == gpu_compiler.find().versions
    status, out, err = toast("install-gpu-compiler", "--folder", str(tmp_path / "else where"))
    assert status == 0, err
    assert f"export TOAST_LAB_GPU_COMPILER='{tmp_path}/else where'" in out.replace("\n", "")


def test_a_pip_that_fails_is_a_failure(
    toast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys; sys.exit('no network')"
    monkeypatch.setattr(gpu_compiler, "_pip", lambda f: [sys.executable, "-c", code])
    monkeypatch.setenv(gpu_compiler.FOLDER_VARIABLE, str(tmp_path / "own"))
    status, out, err = toast("install-gpu-compiler")
    assert (status, out) == (1, "")
    assert "no network" in err
