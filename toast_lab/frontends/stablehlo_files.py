"""``from_stablehlo``: StableHLO in any of its forms, read in a child process.

Malformed input can abort the MLIR libraries, and a large file can fill the memory. To protect the
caller, this process only checks a file's size, and the child opens it.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

from toast_lab import _jaxlib, fork_server
from toast_lab.errors import FrontendError, join_offenders
from toast_lab.frontends.traced import identifier, in_child
from toast_lab.ir import canonical, read, unsupported
from toast_lab.ir.model import Model
from toast_lab.ir.program_notes import program_notes
from toast_lab.prepare import start_early

#: Runs once, for all children that are forked to work in this module (``fork_server``).
before_fork = fork_server.import_jax

#: larger inputs are refused: 100,000 ops with locations are about 60 MB of text
MAX_BYTES = 256 * 2**20
_MLIR = b"ML\xefR"
_NEITHER = "this is neither StableHLO text nor MLIR bytecode nor a jax.export artifact"


def from_stablehlo(
    source: str | bytes | Path,
    *,
    name: str | None = None,
    time_limit_s: float = 300.0,
    max_bytes: int = MAX_BYTES,
    title: str = "StableHLO input",
    cancel: Any = None,
) -> Model:
    """Read StableHLO: text, MLIR bytecode, a portable artifact or a ``jax.export`` artifact.

    Args:
        source: a path, or the text or bytes themselves.
        name: name for listings, the file's by default.
        time_limit_s: the child process that reads is stopped after this many seconds.
        max_bytes: larger inputs are refused.
        title: name for text or bytes in messages.
        cancel: polled ten times a second; True ends the reading.

    Raises:
        FrontendError: the file is missing, too large, malformed, cut off, or holds ops that cannot
            be sharded (dynamic shapes, foreign dialects, host communication: each op is named with
            its line).
        RunFailed: the parser crashed, hung or ran out of memory.

    Examples:
        >>> import toast_lab as tl
        >>> text = tl.load("mlp", batch=64).stablehlo
        >>> print(tl.from_stablehlo(text, name="again"))
        again: 5 ops, 3 arguments, 1 result
    """
    data = source
    if isinstance(source, str) and "\n" not in source and "{" not in source:
        data = Path(source)
    if isinstance(data, Path):
        title = str(source)
        size = _size(data)
        name = name or data.stem
        data = Path(os.path.abspath(data))
    else:
        size = len(data)
    if not size:
        raise FrontendError(f"{title} is empty")
    if size > max_bytes:
        raise FrontendError(
            f"{title} has {size / 1e6:.0f} MB; the limit is {max_bytes / 1e6:.0f} MB. Such a file "
            "usually holds weights as constants: export the program with its parameters as "
            "arguments. To read it anyway, use from_stablehlo(..., max_bytes=...), which needs "
            "memory of about 20 times its size."
        )
    start_early()
    program, text, trees, notes = in_child(
        "toast_lab.frontends.stablehlo_files:_read",
        data,
        identifier(name or "main"),
        title,
        time_limit_s=time_limit_s,
        # Address space, most of which the libraries only reserve; a parser needs some 20 bytes per
        # byte of text.
        memory_limit_bytes=16 * 2**30 + 24 * size,
        activity=f"reading {title}",
        cancel=cancel,
    )
    return Model(
        name=program.name,
        program=program,
        stablehlo=text,
        dim_names={},
        trees=trees,
        source=title,
        notes=(*notes, *program_notes(program)),
    )


def _size(path: Path) -> int:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise FrontendError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise FrontendError(f"cannot read {path}: it is not a regular file")
    return status.st_size


# -- what runs in the child ------------------------------------------------------------------------


def _read(data: str | bytes | Path, name: str, label: str) -> tuple[Any, str, Any, tuple[str, ...]]:
    try:
        content = data.read_bytes() if isinstance(data, Path) else data
        paths, trees = None, None
        if isinstance(content, bytes) and not content.startswith(_MLIR):
            # Is it a result of ``Exported.serialize``, a flatbuffer with MLIR bytecode inside?
            if content[:1] != b"{" and _MLIR in content[4:]:
                content, paths, trees = _open_artifact(content)
            else:
                content = _decoded(content)
        try:
            parsed = read.parse(
                content,
                name=name,
                argument_paths=paths,
                file=str(data) if isinstance(data, Path) else "",
            )
        except FrontendError as error:
            if isinstance(content, str) and "not well-formed" in str(error):
                if foreign := _foreign_ops(content):
                    raise FrontendError(
                        f"ops of dialects that are not StableHLO:\n{join_offenders(foreign)}\n"
                        "  Convert the module to StableHLO first."
                    ) from None
            raise
    except OSError as error:
        raise FrontendError(f"cannot read {label}: {error.strerror}") from None
    except FrontendError as error:
        raise FrontendError(f"{label}: {error}") from None
    return parsed.program, parsed.text, trees, parsed.notes


def _decoded(content: bytes) -> str:
    """Text of a file that is not MLIR bytecode; errors name other well-known formats."""
    descriptions = {
        b"PK\x03\x04": "a zip archive; if torch.export saved it, load it with torch.export.load "
        "and pass it to toast_lab.from_torch",
        b"\x1f\x8b": "compressed; unpack it first",
        b"\x7fELF": "an executable",
        b"HloModule": "HLO text, which XLA makes from StableHLO; pass that StableHLO",
    }
    for magic, description in descriptions.items():
        if content.startswith(magic):
            raise FrontendError(f"this is {description}")
    if b"\x00" in content:
        raise FrontendError(_NEITHER)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise FrontendError(_NEITHER) from None


_OP = re.compile(r'^\s*(?:%[\w:#, %]+=\s*)?"?([a-z_]\w*)\.([a-z_][\w.]*)"?[\s(<]', re.MULTILINE)
_NO_OPS = frozenset({"module", "return"})


def _foreign_ops(text: str) -> list[str]:
    """All ops of other dialects in a text that the parser, which stops at the first, refused."""
    lines_by_name: dict[str, list[int]] = {}
    for match in _OP.finditer(text):
        dialect, name = match.groups()
        if dialect not in unsupported.DIALECTS and dialect not in _NO_OPS:
            line = text.count("\n", 0, match.start(1)) + 1
            lines_by_name.setdefault(f"{dialect}.{name}", []).append(line)
    return [
        f"{name} (line{'s' if len(lines) > 1 else ''} "
        f"{', '.join(map(str, lines[:10]))}{', ...' if len(lines) > 10 else ''})"
        for name, lines in lines_by_name.items()
    ]


# -- jax.export ------------------------------------------------------------------------------------


def _open_artifact(content: bytes) -> tuple[bytes, list[str] | None, Any]:
    """(portable artifact inside, argument paths, (argument tree, result tree) or None)."""
    import jax
    from jax import export

    try:
        exported = export.deserialize(bytearray(content))
        module = bytes(exported.mlir_module_serialized)
        paths = _tree_paths(exported)
        symbolic = [
            f"{path}: {aval.str_short()}"
            for path, aval in zip(paths, exported.in_avals, strict=True)
            if not all(isinstance(size, int) for size in aval.shape)
        ]
        names = paths if symbolic else _module_paths(exported, module, paths)
    except ImportError as error:
        raise FrontendError(
            f"this is a jax.export artifact, which cannot be read here: {error}"
        ) from None
    except Exception as error:  # a damaged flatbuffer can raise any kind of error
        raise FrontendError(
            "this jax.export artifact cannot be read "
            f"({type(error).__name__}: {str(error)[:200]}). "
            f"Was it cut off, or written by a JAX much newer than {jax.__version__}?"
        ) from None
    if symbolic:
        raise FrontendError(
            f"it was exported with symbolic sizes:\n{join_offenders(symbolic)}\n"
            "  Export it with fixed sizes."
        )
    kept_names = [names[i] for i in exported.module_kept_var_idx]
    extra = ["platform_index"] if len(exported.platforms) > 1 else []
    trees = None
    if not extra and len(kept_names) == len(names):
        in_tree: Any = exported.in_tree
        args, kwargs = in_tree.children()
        trees = (in_tree if kwargs.num_leaves else args, exported.out_tree)
    return module, extra + kept_names, trees


def _tree_paths(exported: Any) -> list[str]:
    """``args[0]['w']`` for every argument leaf."""
    import jax

    leaves = range(len(exported.in_avals))
    args, kwargs = exported.in_tree.unflatten(leaves)
    paths = {
        leaf: base + jax.tree_util.keystr(path)
        for base, tree in (("args", tuple(args)), ("kwargs", kwargs))
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
    return [paths[leaf] for leaf in leaves]


def _module_paths(exported: Any, module: bytes, paths: list[str]) -> list[str]:
    """``params['w']`` where the module names its arguments as JAX does, else as in ``paths``."""
    names = list(paths)
    # Has to outlive the operations that are taken from it
    parsed = _jaxlib.parse_module(_jaxlib.make_context(), module)
    main = canonical.main_function(parsed)
    arguments = list(main.arguments)[-len(exported.module_kept_var_idx) :]
    for i, argument in zip(exported.module_kept_var_idx, arguments, strict=False):
        names[i] = read.argument_path(argument, -1) or names[i]
    return names
