"""Frontends: a JAX function, a StableHLO file or a ``module:make`` becomes a ``Model``.

Takes what users have, gives a Program with argument paths, source lines and donated arguments, plus the
canonical StableHLO text that it was read from.  Nothing is materialised: arrays become shapes.
Start reading at ``from_jax``.
"""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toast_lab import isolate
from toast_lab.errors import FrontendError
from toast_lab.ir import read
from toast_lab.ir.program import Program

DimNames = Mapping[str, tuple[str, ...]]
ExpertPlans = Mapping[str, tuple[tuple[Any, ...], ...]]
OPTIONS = ("donate_argnums", "dim_names", "expert_plans", "parameter_count")  #: what a user's make may add


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A program and where it came from."""

    name: str
    program: Program
    stablehlo: str  #: canonical module: no calls, only @main, with locations
    dim_names: DimNames = dataclasses.field(default_factory=dict)
    trees: Any = None  #: (argument tree, result tree) as jax PyTreeDefs, None if unknown
    source: str = ""  #: what to say when asked where this came from
    expert_plans: ExpertPlans = dataclasses.field(default_factory=dict)  #: actions by name, see ``registry.Example``
    parameter_count: int | None = None  #: trained numbers, if known
    paper_parameters: str = ""  #: the same as the paper gives it, for its own models at their default sizes

    def __str__(self) -> str:
        p = self.program
        text = f"{self.name}: {p.n_ops - p.n_arguments} ops, {p.n_arguments} arguments, {len(p.outputs)} results"
        if self.parameter_count is not None:
            text += f", {self.parameter_count:,} parameters"
        return text + (f" (paper: {self.paper_parameters})" if self.paper_parameters else "")


def from_jax(
    fn: Callable[..., Any],
    *args: Any,
    donate_argnums: int | Sequence[int] = (),
    name: str | None = None,
    dim_names: DimNames | None = None,
) -> Model:
    """Trace a JAX function.

    Args:
        fn: any function that ``jax.jit`` accepts, jitted or not.
        args: pytrees of arrays or ShapeDtypeStructs; only shapes and types are looked at.
        donate_argnums: positions whose buffers the results may reuse, as for ``jax.jit``.
        name: name for listings, the function's own by default.
        dim_names: names for argument dims by path or last key, ``{"wq": ("d_model", "heads", "key")}``.

    Raises:
        FrontendError: ``fn`` does not trace (with the user's line), or a leaf is no array (all are listed).
    """
    text, interface = _trace(fn, args, donate_argnums)
    return _build(text, interface, name or _function_name(fn), dim_names or {}, f"function {_function_name(fn)}")


def from_stablehlo(source: str | bytes | Path, *, name: str | None = None, time_limit_s: float = 300.0) -> Model:
    """Read StableHLO: a path (.mlir, .mlirbc, portable artifact), text or bytes.

    Parsing happens in a child process, since malformed input can abort the MLIR libraries.
    Raises FrontendError if the file is missing, malformed, cut off or has dynamic shapes.
    """
    what = "StableHLO input"
    data: str | bytes
    if isinstance(source, Path) or (isinstance(source, str) and "\n" not in source and "module" not in source):
        what = str(source)
        try:
            data = Path(source).read_bytes()
        except OSError as error:
            raise FrontendError(f"cannot read {source}: {error.strerror}") from None
        name = name or Path(source).stem
    else:
        data = source  # type: ignore[assignment]
    if not data:
        raise FrontendError(f"{what} is empty")
    if isinstance(data, bytes) and not data.startswith(b"ML\xefR"):
        try:
            data = data.decode()
        except UnicodeDecodeError:
            raise FrontendError(f"{what} is neither StableHLO text nor MLIR bytecode") from None
    program, text = _in_child(
        "toast_lab.frontends:_parse_foreign",
        data,
        _identifier(name or "main"),
        what,
        time_limit_s=time_limit_s,
        what=f"reading {what}",
    )
    return Model(program.name, program, text, {}, None, what)


def load(which: str, *, time_limit_s: float = 300.0, on_event: Any = None, cancel: Any = None, **sizes: Any) -> Model:
    """A built-in model by name, or the user's own as ``"package.module:make"``.

    ``make(**sizes)`` gives ``(fn, args)`` or ``(fn, args, options)``, options being a dict with ``donate_argnums``,
    ``dim_names``, ``expert_plans`` and ``parameter_count``, as in ``models.registry.Example``.  It runs in a child
    process with a time limit.  Raises FrontendError or RunFailed with what went wrong.
    """
    if ":" not in which:
        from toast_lab.models import registry

        example = registry.make(which, **sizes)
        model = from_jax(
            example.fn,
            *example.args,
            donate_argnums=example.donate_argnums,
            dim_names=example.dim_names,
            name=_function_name(example.fn),
        )
        facts = registry.FACTS.get(which)
        at_paper_size = facts is not None and facts.parameter_count == example.parameter_count
        return dataclasses.replace(
            model,
            name=which,
            source=f"built-in model {which}",
            expert_plans=dict(example.expert_plans),
            parameter_count=example.parameter_count,
            paper_parameters=facts.paper_parameters if facts and at_paper_size else "",
        )
    text, interface, name, options = _in_child(
        "toast_lab.frontends:_make_foreign",
        which,
        sizes,
        time_limit_s=time_limit_s,
        what=f"loading {which}",
        on_event=on_event,
        cancel=cancel,
    )
    model = _build(text, interface, name, options.get("dim_names", {}), which)
    return dataclasses.replace(
        model, expert_plans=options.get("expert_plans", {}), parameter_count=options.get("parameter_count")
    )


# -- the parts that run in a child -------------------------------------------------------------------


def _parse_foreign(data: str | bytes, name: str, what: str) -> tuple[Program, str]:
    try:
        parsed = read.parse(data, name=name)
    except FrontendError as error:
        raise FrontendError(f"{what}: {error}") from None
    return parsed.program, parsed.text


def _make_foreign(which: str, sizes: dict[str, Any]) -> tuple[str, dict[str, Any], str, dict[str, Any]]:
    import importlib
    import traceback

    module_name, _, attribute = which.partition(":")
    try:
        make = getattr(importlib.import_module(module_name), attribute)
    except ImportError as error:
        raise FrontendError(
            f"{which}: cannot import {module_name}: {error}. Is it on the path (the current folder is)?"
        ) from None
    except AttributeError:
        raise FrontendError(f"{which}: module {module_name} has no {attribute}") from None
    except Exception as error:
        raise FrontendError(
            f"{which}: importing {module_name} raised {type(error).__name__}: {error}{_line(error)}"
        ) from None
    try:
        made = make(**sizes)
    except Exception as error:
        traceback.print_exc()
        raise FrontendError(f"{which} raised {type(error).__name__}: {error}{_line(error)}") from None
    if not isinstance(made, tuple) or len(made) < 2 or not callable(made[0]):
        raise FrontendError(f"{which} must return (fn, args) or (fn, args, options), got {type(made).__name__}")
    if hasattr(made, "_asdict"):
        options = {k: v for k, v in made._asdict().items() if k in OPTIONS}
    else:
        options = dict(made[2]) if len(made) > 2 else {}
    args = made[1] if isinstance(made[1], tuple | list) else (made[1],)
    isolate.report("tracing")
    text, interface = _trace(made[0], tuple(args), options.get("donate_argnums", ()))
    try:
        pickle.dumps(interface["trees"])
    except Exception:
        interface["trees"] = None  # custom pytree nodes do not survive the trip; paths still do
    kept = {k: dict(options.get(k) or {}) for k in ("dim_names", "expert_plans")}
    return text, interface, _function_name(made[0]), {**kept, "parameter_count": options.get("parameter_count")}


def _in_child(target: str, *args: Any, **kwargs: Any) -> Any:
    return isolate.run_in_child(target, *args, env={"JAX_PLATFORMS": "cpu"}, **kwargs)


# -- tracing -----------------------------------------------------------------------------------------


def _trace(
    fn: Callable[..., Any], args: tuple[Any, ...], donate_argnums: int | Sequence[int]
) -> tuple[str, dict[str, Any]]:
    import jax

    shapes, paths = _shapes(fn, args)
    donate = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    bad = [str(d) for d in donate if not 0 <= d < len(args)]
    if bad:
        raise FrontendError(f"donate_argnums {', '.join(bad)}: there are {len(args)} arguments")
    try:
        lowered = jax.jit(fn, keep_unused=True, donate_argnums=donate).trace(*shapes).lower()
        text = lowered.as_text(debug_info=True)
    except Exception as error:
        raise FrontendError(f"{_function_name(fn)} does not trace: {_short(error)}{_line(error)}") from error
    donated = [i in donate for i, a in enumerate(shapes) for _ in jax.tree_util.tree_leaves(a)]
    results, out_tree = jax.tree_util.tree_flatten_with_path(lowered.out_info)
    return text, {
        "paths": paths,
        "outputs": ["result" + jax.tree_util.keystr(path) for path, _ in results],
        "donated": donated,
        "trees": (jax.tree_util.tree_structure(tuple(shapes)), out_tree),
    }


def _shapes(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[list[Any], list[str]]:
    import jax
    import numpy as np

    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    paths: list[str] = []
    wrong: list[str] = []
    shapes = []
    for i, arg in enumerate(args):
        known = i < len(parameters) and parameters[i].kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        )
        base = parameters[i].name if known else f"arg{i}"
        leaves, tree = jax.tree_util.tree_flatten_with_path(arg)
        new: list[Any] = []
        for path, leaf in leaves:
            text = base + jax.tree_util.keystr(path)
            paths.append(text)
            if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
                new.append(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
            elif isinstance(leaf, bool | int | float | complex | np.generic):
                new.append(leaf)
            else:
                wrong.append(f"{text} is a {type(leaf).__name__}")
                new.append(leaf)
        shapes.append(jax.tree_util.tree_unflatten(tree, new))
    if wrong:
        from toast_lab.errors import join_offenders

        raise FrontendError(
            f"arguments of {_function_name(fn)} must be arrays, shapes or numbers: {join_offenders(wrong)}. "
            "Bind other values with functools.partial or a lambda."
        )
    return shapes, paths


def _build(text: str, interface: dict[str, Any], name: str, dim_names: DimNames, source: str) -> Model:
    parsed = read.parse(
        text,
        name=_identifier(name),
        argument_paths=interface["paths"],
        output_paths=interface["outputs"],
        donated=interface["donated"],
    )
    return Model(_identifier(name), parsed.program, parsed.text, dim_names, interface["trees"], source)


def _function_name(fn: Any) -> str:
    while hasattr(fn, "func"):  # functools.partial
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


def _identifier(name: str) -> str:
    clean = "".join(c if c.isalnum() or c == "_" else "_" for c in name).strip("_")
    return clean or "main"


def _short(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + " ".join(lines[:3])[:600]


def _line(error: BaseException) -> str:
    """The innermost line of the user's code in a traceback, as " (file.py:12)"."""
    import traceback

    skip = ("/jax/", "/jaxlib/", "/toast_lab/frontends", "<frozen", "importlib", "/numpy/", "contextlib")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not any(s in f.filename for s in skip)]
    return (
        f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}: {(frames[-1].line or '').strip()})" if frames else ""
    )
