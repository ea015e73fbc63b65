"""XLA's compiler for GPUs is found and installed; these tests need no wheel."""

from __future__ import annotations

import importlib.metadata as metadata
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from toast_lab.errors import InvalidProblem, NotSaved, RunFailed
from toast_lab.runtime import gpu_compiler, gpu_target
from toast_lab.runtime.gpu_compiler import ASSEMBLER, ASSEMBLER_VERSION, PLUGIN

JAX = gpu_compiler.wanted_version()


def wheel(folder: Path, name: str, version: str) -> None:
    """Write the metadata that pip leaves of an installed wheel, without its content."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the environment variable names; it does not exist yet."""
    monkeypatch.setenv(gpu_compiler.FOLDER_VARIABLE, str(tmp_path / "own"))
    return tmp_path / "own"


def test_both_wheels_in_the_folder_are_found(folder: Path) -> None:
    wheel(folder, PLUGIN, JAX)
    wheel(folder, ASSEMBLER, ASSEMBLER_VERSION)
    found = gpu_compiler.find()
    assert found.folder == str(folder)
    assert found.versions == {PLUGIN: JAX, ASSEMBLER: ASSEMBLER_VERSION}
    assert found.assembler_version == ASSEMBLER_VERSION


@pytest.mark.parametrize(
    ("wheels", "words"),
    [
        ([], [f"there is no {PLUGIN} {JAX} and there is no {ASSEMBLER}"]),
        ([(PLUGIN, JAX)], [f"there is no {ASSEMBLER}"]),
        (
            [(PLUGIN, "0.1.0"), (ASSEMBLER, "12.9.86")],
            [
                f"{PLUGIN} 0.1.0 belongs to another version of JAX than the installed "
                f"{metadata.version('jax')}"
            ],
        ),
    ],
)
def test_what_is_missing_or_wrong_is_said_with_the_line_to_run(
    folder: Path, wheels: list[tuple[str, str]], words: list[str]
) -> None:
    for name, version in wheels:
        wheel(folder, name, version)
    with pytest.raises(InvalidProblem) as error:
        gpu_compiler.find()
    command = f"{sys.executable} -m pip install --no-deps --target {folder}"
    pinned = f"{PLUGIN}=={JAX} {ASSEMBLER}=={ASSEMBLER_VERSION}"
    for word in (
        *words,
        str(folder),
        "\n  toast-lab install-gpu-compiler\n",
        f"{command} {pinned}",
    ):
        assert word in str(error.value), word


def test_an_installed_jax_with_cuda_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(gpu_compiler.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("TOAST_LAB_CACHE", str(tmp_path / "cache"))
    assert gpu_compiler.default_folder() == tmp_path / "cache" / "gpu-compiler" / f"jax-{JAX}"
    site = tmp_path / "site"
    wheel(site, "jax-cuda13-pjrt", JAX)
    wheel(site, "nvidia-cuda-nvcc", "13.0.48")
    monkeypatch.syspath_prepend(str(site))
    found = gpu_compiler.find()
    assert (found.folder, found.assembler_version) == ("", "13.0.48")
    # The package's own folder comes first
    wheel(gpu_compiler.default_folder(), PLUGIN, JAX)
    wheel(gpu_compiler.default_folder(), ASSEMBLER, "12.9.86")
    assert gpu_compiler.find().folder == str(gpu_compiler.default_folder())


def test_an_assembler_that_is_too_new_for_the_gpu_is_refused() -> None:
    new = gpu_compiler.GpuCompiler("", {"jax-cuda13-pjrt": JAX, "nvidia-cuda-nvcc": "13.0.48"})
    gpu_compiler.check(new, gpu_target.find("h100"))
    with pytest.raises(
        InvalidProblem, match=r"capability 6\.0, .* CUDA 13\.0\.48 supports none below"
    ):
        gpu_compiler.check(new, gpu_target.find("p100"))
    old = gpu_compiler.GpuCompiler("", {PLUGIN: JAX, ASSEMBLER: ASSEMBLER_VERSION})
    gpu_compiler.check(old, gpu_target.find("p100"))


def test_the_users_flags_come_behind_ours_and_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=true")
    flags = gpu_compiler.flags().split()
    assert flags == [*gpu_compiler.FLAGS, "--xla_gpu_enable_triton_gemm=true"]
    assert gpu_compiler.recorded_flags()["XLA_FLAGS"] == " ".join(flags)
    env = gpu_compiler.environment(gpu_compiler.flags())
    assert (env["JAX_PLATFORMS"], env["XLA_FLAGS"]) == ("cpu", " ".join(flags))


def instead_of_pip(
    monkeypatch: pytest.MonkeyPatch, code: str
) -> Callable[[], gpu_compiler.GpuCompiler]:
    """Let ``install`` run this code instead of pip; sys.argv[1] is the folder."""
    monkeypatch.setattr(gpu_compiler, "_pip", lambda f: [sys.executable, "-c", code, str(f)])
    return gpu_compiler.install


WRITE = f"""
import pathlib, sys
for name, version in (("{PLUGIN}", "{JAX}"), ("{ASSEMBLER}", "{ASSEMBLER_VERSION}")):
    place = pathlib.Path(sys.argv[1]) / (name.replace("-", "_") + "-" + version + ".dist-info")
    place.mkdir(parents=True)
    (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: " + name
        + "\\nVersion: " + version + "\\n")
"""


def test_installed_whole_in_place_of_what_was_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(folder, PLUGIN, "0.1.0")
    install = instead_of_pip(monkeypatch, WRITE)
    assert install().versions == {PLUGIN: JAX, ASSEMBLER: ASSEMBLER_VERSION}
    assert gpu_compiler.find().folder == str(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["own"], "no part is left"


def test_a_failed_install_leaves_everything_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(folder, PLUGIN, "0.1.0")
    install = instead_of_pip(monkeypatch, WRITE + "sys.exit('no matching distribution')")
    with pytest.raises(RunFailed, match=r"(?s)exit status 1.*no matching distribution"):
        install()
    assert gpu_compiler._versions([str(folder)]) == {PLUGIN: "0.1.0"}
    assert [path.name for path in folder.parent.iterdir()] == ["own"]


def test_a_folder_with_other_things_is_never_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    (folder / "thesis.tex").write_text("x")
    install = instead_of_pip(monkeypatch, WRITE)
    with pytest.raises(InvalidProblem, match="holds something other than the GPU compiler"):
        install()
    assert (folder / "thesis.tex").read_text() == "x"


def test_a_folder_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(gpu_compiler.FOLDER_VARIABLE, str(tmp_path / "file" / "in it"))
    install = instead_of_pip(monkeypatch, WRITE)
    with pytest.raises(NotSaved, match="cannot write the GPU compiler"):
        install()


def test_the_version_is_what_the_installed_jax_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert JAX == metadata.version("jaxlib")
    lines = [
        "jaxlib<=0.12.1,>=0.12.0",
        'jax-cuda13-plugin[with-cuda]<=3,>=3; extra == "cuda13"',
        'jax-cuda12-plugin[with-cuda]<=0.12.1,>=0.12.0.1; extra == "cuda12"',
    ]
    monkeypatch.setattr(gpu_compiler.metadata, "requires", lambda name: lines)
    assert gpu_compiler.requirements()[0] == f"{PLUGIN}==0.12.0.1"
    monkeypatch.setattr(gpu_compiler.metadata, "requires", lambda name: None)
    assert gpu_compiler.wanted_version() == JAX


def test_what_pip_is_asked_for_is_pinned_and_alone(folder: Path) -> None:
    line = gpu_compiler._pip(folder)
    assert line[:5] == [sys.executable, "-m", "pip", "install", "--no-deps"]
    assert line[5:] == ["--target", str(folder), *gpu_compiler.requirements()]
    assert all("==" in wheel for wheel in gpu_compiler.requirements())


def test_nothing_of_it_is_imported_by_a_start_of_jax(folder: Path) -> None:
    """A broken plugin in the folder does no harm, since only the compiling child looks there."""
    plugin = folder / "jax_plugins" / "broken"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text("def initialize():\n    raise SystemExit('disturbed')\n")
    code = "import toast_lab.runtime.compile, jax; print(jax.devices()[0].platform)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout.strip()) == (0, "cpu"), done.stderr
