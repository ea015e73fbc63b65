"""``toast-lab install-gpu-compiler``: get XLA's compiler for GPUs that need not be there."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from toast_lab.commands import output


def run(args: argparse.Namespace) -> int:
    """Get the compiler's wheels into a folder that only the compiling child looks at."""
    from toast_lab.runtime import gpu_compiler

    folder = Path(args.folder) if args.folder else gpu_compiler.default_folder()
    with output.working(f"getting {' and '.join(gpu_compiler.requirements())}"):
        found = gpu_compiler.install(folder)
    looked_at = folder.resolve() == gpu_compiler.default_folder().resolve()
    setting = f"{gpu_compiler.FOLDER_VARIABLE}={shlex.quote(str(folder.resolve()))}"
    data = {"folder": found.folder, "versions": found.versions, "looked_at": looked_at}

    def show(out: output.Out) -> None:
        names = " and ".join(f"{name} {version}" for name, version in found.versions.items())
        out.print(f"{names}\nin {found.folder}")
        if not looked_at:
            out.print(f"Compiling looks there if it is told so:\n  export {setting}")
        out.print("Now for instance:\n  toast-lab compile mlp --topology gpu:h100:8 --mesh 2x4")

    return output.emit(args, data, show)
