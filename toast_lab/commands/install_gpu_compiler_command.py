"""``toast-lab install-gpu-compiler``: install XLA's compiler for GPUs, which need no GPU."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path

from toast_lab.commands import output


def add_options(parser: ArgumentParser) -> None:
    """The options of ``toast-lab install-gpu-compiler``."""
    parser.add_argument(
        "--folder",
        metavar="FOLDER",
        help="where to install it ($TOAST_LAB_GPU_COMPILER, else a folder in the user's cache); to "
        "compile with another folder, set $TOAST_LAB_GPU_COMPILER to it",
    )


def run(args: Namespace) -> int:
    """Install the compiler's wheels into a folder that only the compiling child imports from."""
    from toast_lab.runtime import gpu_compiler

    folder = Path(args.folder) if args.folder else gpu_compiler.default_folder()
    with output.progress(f"installing {' and '.join(gpu_compiler.requirements())}"):
        compiler = gpu_compiler.install(folder)
    is_default = folder.resolve() == gpu_compiler.default_folder().resolve()
    setting = f"{gpu_compiler.FOLDER_VARIABLE}={shlex.quote(str(folder.resolve()))}"
    report = {"folder": compiler.folder, "versions": compiler.versions, "looked_at": is_default}

    def show(console: output.Out) -> None:
        versions = " and ".join(f"{name} {version}" for name, version in compiler.versions.items())
        console.print(f"{versions}\nin {compiler.folder}")
        if not is_default:
            console.print(f"To compile with this folder:\n  export {setting}")
        console.print(
            "You can now run, for instance:\n"
            "  toast-lab compile mlp --topology gpu:h100:8 --mesh 2x4"
        )

    return output.emit(args, report, show)
