"""Which package a source file is of."""

from __future__ import annotations

from toast_lab.ir.locations import SourceFrame

#: packages whose files are never those of a model: what models are written with
FRAMEWORKS = (
    "jax jaxlib flax equinox haiku optax numpy scipy ml_dtypes opt_einsum einops chex jaxtyping "
    "beartype orbax jmp lineax optimistix diffrax"
).split()
STANDARD = "Python"  #: the standard library


def package_of(file: str) -> str:
    """The installed package that a file is in; empty for the user's own and built-in models."""
    path = file.replace("\\", "/")
    if "/toast_lab/models/" in path or not SourceFrame(file, 0).in_library:
        return ""
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in path:
            return path.rpartition(folder)[2].partition("/")[0].removesuffix(".py")
    return STANDARD
