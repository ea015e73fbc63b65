"""XLA's compiler for NVIDIA GPUs, used where there is neither a GPU nor CUDA: where its files are.

Two wheels are needed beside JAX: ``jax-cuda12-pjrt`` of JAX's own version is the compiler, and
``nvidia-cuda-nvcc-cu12`` brings the assembler ``ptxas``.  (The assembler of CUDA 13 refuses GPUs
older than compute capability 7.5; the one of 12.9 takes all since 5.0.)  Nothing else of CUDA is
used, so they are installed without their dependencies.

They lie in a folder of their own that only the compiling child process puts on its path.  On the
ordinary path they would disturb everybody: every start of JAX would try to open a GPU and complain
that there is none.  An installed JAX with CUDA has both already, and is used as it is.

``find`` says where they are, ``install`` gets them; ``environment`` and ``flags`` are what the
child is started with.
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
# What an installed JAX with CUDA calls them.
_PLUGINS = (PLUGIN, "jax-cuda13-pjrt")
_ASSEMBLERS = (ASSEMBLER, "nvidia-cuda-nvcc")
_OLDEST_FOR_CUDA_13 = (7, 5)

#: What the compiling child adds to XLA_FLAGS, each with its reason.  The user's own flags come
#: behind them, and so win.
FLAGS = (
    # Untuned Triton products take tiny tiles, which distorts both time and memory; what is tuned on
    # a real GPU mostly ends at cuBLAS.
    "--xla_gpu_enable_triton_gemm=false",
    # A combined collective keeps the name of one of its parts only.
    "--xla_gpu_all_reduce_combine_threshold_bytes=0",
    "--xla_gpu_all_gather_combine_threshold_bytes=0",
    "--xla_gpu_reduce_scatter_combine_threshold_bytes=0",
    "--xla_gpu_collective_permute_combine_threshold_bytes=0",
)
#: Given to one compile, where XLA has what it needs for it: every instruction then carries the
#: compiler's own time, see ``gpu_times``.
TIMES_FLAG = "xla_gpu_collect_cost_model_stats"
#: Given with it: what runs beside what, decided by the times of the same tables, see ``schedule``.
SCHEDULER_FLAGS = (
    "xla_gpu_enable_latency_hiding_scheduler",
    "xla_gpu_enable_analytical_sol_latency_estimator",
)


class GpuCompiler(NamedTuple):
    """Where the compiler's wheels are."""

    #: to be put first on the child's path; "": they can be imported as things are
    folder: str
    versions: dict[str, str]  #: of the two wheels by name

    @property
    def assembler_version(self) -> str:
        """Version of ptxas, "12.9.86"."""
        return next((v for name, v in self.versions.items() if name in _ASSEMBLERS), "")


def requirements() -> tuple[str, ...]:
    """The wheels that go with the installed JAX, as pip takes them."""
    return f"{PLUGIN}=={wanted_version()}", f"{ASSEMBLER}=={ASSEMBLER_VERSION}"


def cache_folder() -> Path:
    """Where compilers are kept, which can be installed again.

    It is ``$TOAST_LAB_CACHE``, else a folder of ours in the platform's folder for caches.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home()))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "toast-lab"


def default_folder() -> Path:
    """Where ``install`` puts the wheels, and where they are looked for.

    It is ``$TOAST_LAB_GPU_COMPILER``, else a folder for the installed version of JAX in
    ``cache_folder()``.
    """
    own = os.environ.get(FOLDER_VARIABLE)
    if own:
        return Path(own)
    return cache_folder() / "gpu-compiler" / f"jax-{wanted_version()}"


def find() -> GpuCompiler:
    """The compiler that goes with the installed JAX.

    It is looked for in ``default_folder()``, then among what can be imported; where the variable
    names a folder, nowhere else.

    Raises:
        InvalidProblem: it is not there, or goes with another version of JAX; with the line to run.
    """
    folder = default_folder()
    versions = _versions([str(folder)])
    wrong = _mistakes(versions)
    if not wrong:
        return GpuCompiler(str(folder), versions)
    if not os.environ.get(FOLDER_VARIABLE):
        importable = _versions(sys.path)
        if not _mistakes(importable):
            return GpuCompiler("", importable)
        # A JAX with CUDA that is nearly right is worth more words than an empty folder.
        if importable and not versions:
            wrong, folder = _mistakes(importable), Path(sys.prefix)
    raise InvalidProblem(
        f"compiling for a GPU that is not attached needs XLA's compiler for GPUs (550 MB); in "
        f"{folder} {' and '.join(wrong)}. Get it with the command:\n  {COMMAND}\n"
        f"(pip, into a folder of its own: {command_line()})"
    )


def assembler_folder(folder: str) -> str:
    """The folder of ``bin/ptxas`` among the wheels of a folder."""
    return str(Path(folder) / "nvidia" / "cuda_nvcc")


def check(compiler: GpuCompiler, target: GpuTarget) -> None:
    """Raise InvalidProblem if this compiler cannot make programs for this GPU."""
    major = compiler.assembler_version.partition(".")[0]
    if major.isdigit() and int(major) >= 13 and target.compute_capability < _OLDEST_FOR_CUDA_13:
        capability, oldest = (
            ".".join(map(str, c)) for c in (target.compute_capability, _OLDEST_FOR_CUDA_13)
        )
        raise InvalidProblem(
            f"{target.name} has compute capability {capability}; the installed assembler of CUDA "
            f"{compiler.assembler_version} knows none below {oldest}. Get that of CUDA 12 with the "
            f"command:\n  {COMMAND}"
        )


def install(folder: PathLike | None = None) -> GpuCompiler:
    """Get the wheels with pip, whole or not at all; what lay in the folder before is replaced.

    Args:
        folder: where to; ``default_folder()`` if left out.

    Raises:
        InvalidProblem: the folder holds something else.
        RunFailed: pip failed; with its words.
        NotSaved: the folder cannot be written.
    """
    target = Path(folder) if folder is not None else default_folder()
    if target.exists() and any(target.iterdir()) and not _versions([str(target)]):
        raise InvalidProblem(
            f"{target} holds other things than the GPU compiler: name an empty folder, or one "
            "that does not exist"
        )
    part = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        done = subprocess.run(
            _pip(part / "new"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            raise RunFailed(
                f"pip could not get {' and '.join(requirements())} (exit status "
                f"{done.returncode}; wheels exist for Linux on x86-64 and ARM):\n"
                f"{done.stdout.strip()[-2000:]}"
            )
        if target.exists():
            target.rename(part / "old")
        (part / "new").rename(target)
    except OSError as error:
        raise NotSaved(f"{target}: cannot write the GPU compiler: {error.strerror}") from None
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
    return GpuCompiler(str(target), _versions([str(target)]))


def command_line(folder: Path | None = None) -> str:
    """What ``install`` runs, as a line for a shell."""
    import shlex

    return shlex.join(_pip(folder or default_folder()))


def environment(flags: str) -> dict[str, str]:
    """Environment variables of the compiling child."""
    return {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "1", "XLA_FLAGS": flags}


def flags(environment: Mapping[str, str] = os.environ) -> str:
    """XLA_FLAGS of the compiling child: ours, then the user's."""
    return " ".join([*FLAGS, *environment.get("XLA_FLAGS", "").split()])


def recorded_flags() -> dict[str, str]:
    """What the results of such a compile depend on beside the program; part of the store's key."""
    return {"XLA_FLAGS": flags()} | dict.fromkeys(
        (TIMES_FLAG, *SCHEDULER_FLAGS), "true where measured"
    )


def _pip(folder: Path) -> list[str]:
    where = ["--no-deps", "--target", str(folder)]
    return [sys.executable, "-m", "pip", "install", *where, *requirements()]


def wanted_version() -> str:
    """Version of the compiler that goes with the installed JAX: the one that its extra pins."""
    for line in metadata.requires("jax") or ():
        pinned = re.match(r"jax-cuda12-plugin\b[^;]*>=\s*([\w.]+)[^;]*;.*\bcuda12\b", line)
        if pinned:
            return pinned.group(1)
    return metadata.version("jaxlib")


def _versions(path: list[str]) -> dict[str, str]:
    """Versions of the wheels on a path, by name."""
    versions = {}
    for names in (_PLUGINS, _ASSEMBLERS):
        for name in names:
            wheel = next(iter(metadata.distributions(name=name, path=path)), None)
            if wheel is not None:
                versions[name] = wheel.version
                break
    return versions


def _mistakes(versions: Mapping[str, str]) -> list[str]:
    """What is wrong with these versions; empty: they can be used."""
    wrong = []
    plugin = next((name for name in _PLUGINS if name in versions), "")
    if not plugin:
        wrong.append(f"there is no {PLUGIN} {wanted_version()}")
    elif versions[plugin] != wanted_version():
        jax = metadata.version("jax")
        wrong.append(f"{plugin} {versions[plugin]} goes with another JAX than the {jax} installed")
    if not any(name in versions for name in _ASSEMBLERS):
        wrong.append(f"there is no {ASSEMBLER}")
    return wrong
