"""Finding and installing XLA's compiler for NVIDIA GPUs, which needs neither a GPU nor CUDA.

Two wheels are needed besides JAX: ``jax-cuda12-pjrt``, of JAX's own version, is the compiler, and
``nvidia-cuda-nvcc-cu12`` has the assembler ``ptxas``. (The assembler of CUDA 13 refuses GPUs older
than compute capability 7.5; that of 12.9 takes all since 5.0.) Nothing else of CUDA is used, so
they are installed without their dependencies.

They are in a folder of their own that only the compiling child process puts on ``sys.path``.
Installed normally they would disturb all uses of JAX: on every start it would try to open a GPU and
complain that there is none. An installed JAX with CUDA has both wheels already, and is used as is.

``find`` locates them, ``install`` gets them; ``environment`` and ``flags`` set up the child.
"""

from __future__ import annotations

import importlib.metadata as metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from toast_lab.errors import InvalidProblem, NotSaved, RunFailed
from toast_lab.files import PathLike
from toast_lab.runtime.gpu_target import GpuTarget

CACHE_VARIABLE = "TOAST_LAB_CACHE"
FOLDER_VARIABLE = "TOAST_LAB_GPU_COMPILER"
COMMAND = "toast-lab install-gpu-compiler"
PLUGIN, ASSEMBLER = "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12"
ASSEMBLER_VERSION = "12.9.86"
# Their names in an installed JAX with CUDA.
_PLUGINS = (PLUGIN, "jax-cuda13-pjrt")
_ASSEMBLERS = (ASSEMBLER, "nvidia-cuda-nvcc")
_OLDEST_FOR_CUDA_13 = (7, 5)

#: Flags that the compiling child adds to XLA_FLAGS, each with its reason. The user's own flags come
#: after them and take precedence.
FLAGS = (
    # Untuned Triton products use tiny tiles, which distorts both time and memory; tuning on a real
    # GPU mostly chooses cuBLAS.
    "--xla_gpu_enable_triton_gemm=false",
    # A combined collective keeps the name of only one of its parts.
    "--xla_gpu_all_reduce_combine_threshold_bytes=0",
    "--xla_gpu_all_gather_combine_threshold_bytes=0",
    "--xla_gpu_reduce_scatter_combine_threshold_bytes=0",
    "--xla_gpu_collective_permute_combine_threshold_bytes=0",
)
#: Set for a single compilation if XLA has the tables for it: every instruction then carries the
#: compiler's own time, see ``gpu_times``.
TIMES_FLAG = "xla_gpu_collect_cost_model_stats"
#: Set together with it: the times of the same tables decide what overlaps, see ``schedule``.
SCHEDULER_FLAGS = (
    "xla_gpu_enable_latency_hiding_scheduler",
    "xla_gpu_enable_analytical_sol_latency_estimator",
)


class GpuCompiler(NamedTuple):
    """Where the compiler's wheels are."""

    #: to be put first on the child's ``sys.path``; "" if the wheels can be imported without it
    folder: str
    versions: dict[str, str]  #: of the two wheels, by name

    @property
    def assembler_version(self) -> str:
        """Version of ptxas, "12.9.86"."""
        return next((version for name, version in self.versions.items() if name in _ASSEMBLERS), "")


def requirements() -> tuple[str, ...]:
    """Requirements, in pip's format, of the wheels that match the installed JAX."""
    return f"{PLUGIN}=={wanted_version()}", f"{ASSEMBLER}=={ASSEMBLER_VERSION}"


def cache_folder() -> Path:
    """The folder for files that can be obtained again, such as compilers.

    It is ``$TOAST_LAB_CACHE``, else ``toast-lab`` in the platform's cache folder.
    """
    named_folder = os.environ.get(CACHE_VARIABLE)
    if named_folder:
        return Path(named_folder)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home()))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "toast-lab"


def default_folder() -> Path:
    """Where ``install`` puts the wheels and ``find`` looks for them.

    It is ``$TOAST_LAB_GPU_COMPILER``, else a folder for the installed version of JAX in
    ``cache_folder()``.
    """
    named_folder = os.environ.get(FOLDER_VARIABLE)
    if named_folder:
        return Path(named_folder)
    return cache_folder() / "gpu-compiler" / f"jax-{wanted_version()}"


def find() -> GpuCompiler:
    """The compiler that matches the installed JAX.

    It is looked for in ``default_folder()``, then among the importable packages; if
    ``$TOAST_LAB_GPU_COMPILER`` names a folder, only there.

    Raises:
        InvalidProblem: it is missing, or belongs to another version of JAX; the message has the
            command to run.
    """
    folder = default_folder()
    versions = _versions([str(folder)])
    mistakes = _mistakes(versions)
    if not mistakes:
        return GpuCompiler(str(folder), versions)
    if not os.environ.get(FOLDER_VARIABLE):
        importable = _versions(sys.path)
        if not _mistakes(importable):
            return GpuCompiler("", importable)
        # If an installed JAX with CUDA nearly fits, report that instead of the empty folder.
        if importable and not versions:
            mistakes, folder = _mistakes(importable), Path(sys.prefix)
    raise InvalidProblem(
        f"compiling for a GPU that is not attached needs XLA's compiler for GPUs (550 MB); in "
        f"{folder} {' and '.join(mistakes)}. Get it with the command:\n  {COMMAND}\n"
        f"(pip, into a folder of its own: {command_line()})"
    )


def assembler_folder(folder: str) -> str:
    """The folder that holds ``bin/ptxas``, for wheels installed in ``folder``."""
    return str(Path(folder) / "nvidia" / "cuda_nvcc")


def check(compiler: GpuCompiler, target: GpuTarget) -> None:
    """Raise InvalidProblem if this compiler cannot compile for this GPU."""
    major = compiler.assembler_version.partition(".")[0]
    if major.isdigit() and int(major) >= 13 and target.capability < _OLDEST_FOR_CUDA_13:
        capability, oldest = (
            ".".join(map(str, pair)) for pair in (target.capability, _OLDEST_FOR_CUDA_13)
        )
        raise InvalidProblem(
            f"{target.name} has compute capability {capability}, but the installed assembler of "
            f"CUDA {compiler.assembler_version} supports none below {oldest}. Get that of CUDA 12 "
            f"with the command:\n  {COMMAND}"
        )


def install(folder: PathLike | None = None) -> GpuCompiler:
    """Install the wheels with pip, whole or not at all, replacing those already in the folder.

    Args:
        folder: the folder to install into; ``default_folder()`` if left out.

    Raises:
        InvalidProblem: the folder holds other files.
        RunFailed: pip failed; the message has its output.
        NotSaved: the folder cannot be written.
    """
    target = Path(folder) if folder is not None else default_folder()
    if target.exists() and any(target.iterdir()) and not _versions([str(target)]):
        raise InvalidProblem(
            f"{target} holds something other than the GPU compiler: name an empty folder, or one "
            "that does not exist"
        )
    staging = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        completed = subprocess.run(
            _pip(staging / "new"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if completed.returncode:
            raise RunFailed(
                f"pip could not get {' and '.join(requirements())} (exit status "
                f"{completed.returncode}; wheels exist for Linux on x86-64 and ARM):\n"
                f"{completed.stdout.strip()[-2000:]}"
            )
        if target.exists():
            target.rename(staging / "old")
        (staging / "new").rename(target)
    except OSError as error:
        raise NotSaved(f"{target}: cannot write the GPU compiler: {error.strerror}") from None
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
    return GpuCompiler(str(target), _versions([str(target)]))


def command_line(folder: Path | None = None) -> str:
    """The command of ``install``, as a line for a shell."""
    import shlex

    return shlex.join(_pip(folder or default_folder()))


def environment(flags: str) -> dict[str, str]:
    """Environment variables of the compiling child."""
    return {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "1", "XLA_FLAGS": flags}


def flags(environment: Mapping[str, str] = os.environ) -> str:
    """XLA_FLAGS of the compiling child: ``FLAGS``, then the user's."""
    return " ".join([*FLAGS, *environment.get("XLA_FLAGS", "").split()])


def recorded_flags() -> dict[str, str]:
    """Flags that the results of such a compilation depend on; part of the store's key."""
    return {"XLA_FLAGS": flags()} | dict.fromkeys(
        (TIMES_FLAG, *SCHEDULER_FLAGS), "true where measured"
    )


def _pip(folder: Path) -> list[str]:
    options = ["--no-deps", "--target", str(folder)]
    return [sys.executable, "-m", "pip", "install", *options, *requirements()]


def wanted_version() -> str:
    """Version of the compiler that matches the installed JAX: the one that its extra pins."""
    for line in metadata.requires("jax") or ():
        pinned = re.match(r"jax-cuda12-plugin\b[^;]*>=\s*([\w.]+)[^;]*;.*\bcuda12\b", line)
        if pinned:
            return pinned.group(1)
    return metadata.version("jaxlib")


def _versions(path: list[str]) -> dict[str, str]:
    """Versions of the wheels on a search path, by name."""
    versions = {}
    for names in (_PLUGINS, _ASSEMBLERS):
        for name in names:
            wheel = next(iter(metadata.distributions(name=name, path=path)), None)
            if wheel is not None:
                versions[name] = wheel.version
                break
    return versions


def _mistakes(versions: Mapping[str, str]) -> list[str]:
    """Says what is wrong with these versions; empty if they can be used."""
    mistakes = []
    plugin = next((name for name in _PLUGINS if name in versions), "")
    if not plugin:
        mistakes.append(f"there is no {PLUGIN} {wanted_version()}")
    elif versions[plugin] != wanted_version():
        jax = metadata.version("jax")
        mistakes.append(
            f"{plugin} {versions[plugin]} belongs to another version of JAX than the "
            f"installed {jax}"
        )
    if not any(name in versions for name in _ASSEMBLERS):
        mistakes.append(f"there is no {ASSEMBLER}")
    return mistakes
