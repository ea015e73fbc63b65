"""``load``: a built-in model by its name, or the user's own as ``"package.module:make"``."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pickle
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from toast_lab import fork_server, isolate
from toast_lab.errors import FrontendError, did_you_mean
from toast_lab.frontends import stages, user_code
from toast_lab.frontends.quiet import look_for_devices
from toast_lab.frontends.traced import Traced, build, in_child
from toast_lab.frontends.tracing import from_jax, trace
from toast_lab.ir.model import Model, Recipe
from toast_lab.prepare import start_early

#: Done once for all children that are forked to work here (``fork_server``).
before_fork = fork_server.import_jax

#: options that a user's make may return
OPTIONS = ("donate_argnums", "dim_names", "expert_plans", "parameter_count")


def load(
    which: str,
    *,
    time_limit_s: float = 300.0,
    on_event: Any = None,
    cancel: Any = None,
    **sizes: Any,
) -> Model:
    """A built-in model by name, or the user's own as ``"package.module:make"``.

    ``make(**sizes)`` gives ``(fn, args)`` or ``(fn, args, options)``, options being a dict with
    ``donate_argnums``, ``dim_names``, ``expert_plans`` and ``parameter_count``, as in
    ``models.registry.Example``; ``fn`` may be a torch module or exported program, with its example
    inputs.  ``make`` runs in a child process with a time limit.  Raises FrontendError or RunFailed
    with what went wrong.

    Examples:
        >>> import toast_lab as tl
        >>> print(tl.load("attention", sequence=4096))
        attention: 10 ops, 4 arguments, 1 result
        >>> tl.load("atention")
        Traceback (most recent call last):
            ...
        toast_lab.errors.FrontendError: no built-in model is called 'atention' (did you mean ...
    """
    if ":" not in which:
        from toast_lab.models import registry

        start_early()
        look_for_devices()
        example = registry.make(which, **sizes)
        model = from_jax(
            example.fn,
            *example.args,
            donate_argnums=example.donate_argnums,
            dim_names=example.dim_names,
            name=user_code.function_name(example.fn),
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
    start_early()
    traced, name, options = in_child(
        "toast_lab.frontends.loading:_make_foreign",
        which,
        sizes,
        time_limit_s=time_limit_s,
        activity=f"loading {which}",
        on_event=on_event,
        cancel=cancel,
    )
    if on_event is not None:
        on_event("reading")
    return dataclasses.replace(
        build(traced, name, options["dim_names"], which),
        sizes=options["sizes"],
        expert_plans=options["expert_plans"],
        parameter_count=options["parameter_count"],
        function=None if options["is_torch"] else Recipe(which, sizes),
    )


def function_of(recipe: Recipe) -> Any:
    """The ``Function`` of a recipe, made again in this process.  Raises what ``load`` raises."""
    if ":" not in recipe.which:
        return load(recipe.which, **recipe.sizes).function
    fn, args, *_ = _example_of(*recipe)
    return trace(fn, _arguments(args), ()).function


def _make_foreign(which: str, sizes: dict[str, Any]) -> tuple[Traced, str, dict[str, Any]]:
    """The child's part: import, call ``make``, trace."""
    fn, args, options = _parts_of(which, _example_of(which, sizes))
    is_torch = _is_torch(fn)
    with stages.listening(isolate.report):
        if is_torch:
            from toast_lab.frontends import pytorch

            stages.tell("tracing")
            traced, name = pytorch.trace_torch(fn, args), pytorch.module_name(fn)
        else:
            traced = trace(fn, args, options.get("donate_argnums", ()))
            name = user_code.function_name(fn)
    try:
        pickle.dumps(traced.trees)
    except Exception:
        # Custom pytree nodes do not survive the trip; paths still do
        traced = traced._replace(trees=None)
    facts = {
        "dim_names": dict(options.get("dim_names") or {}),
        "sizes": _sizes_of(which, sizes),
        "expert_plans": dict(options.get("expert_plans") or {}),
        "parameter_count": options.get("parameter_count"),
        "is_torch": is_torch,
    }
    return traced, name, facts


def _parts_of(which: str, example: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Function, arguments and options that ``make`` gave.  Raises FrontendError."""
    wanted = f"{which} must return (fn, args) or (fn, args, options)"
    is_tuple = isinstance(example, tuple) and len(example) > 1
    if not is_tuple or not (callable(example[0]) or _is_torch(example[0])):
        raise FrontendError(f"{wanted}, got {type(example).__name__}")
    fn, args, *others = example
    if hasattr(example, "_asdict"):
        fields = example._asdict()
        return fn, _arguments(args), {key: fields[key] for key in OPTIONS if key in fields}
    options = others[0] if others else {}
    if len(others) > 1 or not isinstance(options, Mapping):
        kinds = ", ".join(type(part).__name__ for part in example)
        raise FrontendError(
            f"{wanted}, got {len(example)} things ({kinds}); if all behind the first are "
            f"arguments, they go into one tuple: return {user_code.function_name(fn)}, (...)"
        )
    unknown = [
        f"{key!r}{did_you_mean(key, OPTIONS) if isinstance(key, str) else ''}"
        for key in options
        if key not in OPTIONS
    ]
    if unknown:
        raise FrontendError(
            f"{which} returned options that there are not: {', '.join(unknown)}. Options are "
            f"{', '.join(OPTIONS)}; arguments go into the tuple before"
        )
    return fn, _arguments(args), dict(options)


def _arguments(args: Any) -> tuple[Any, ...]:
    return tuple(args) if isinstance(args, tuple | list) else (args,)


def _example_of(which: str, sizes: dict[str, Any]) -> Any:
    module_name, _, attribute = which.partition(":")
    try:
        make = getattr(importlib.import_module(module_name), attribute)
    except ImportError as error:
        raise FrontendError(
            f"{which}: cannot import {module_name}: {error}. Is it on the path (the current "
            "folder is)?"
        ) from None
    except AttributeError:
        raise FrontendError(f"{which}: module {module_name} has no {attribute}") from None
    except Exception as error:
        raise FrontendError(
            f"{which}: importing {module_name} raised {type(error).__name__}: "
            f"{error}{user_code.line(error)}"
        ) from None
    try:
        return make(**sizes)
    except Exception as error:
        traceback.print_exc()
        raise FrontendError(
            f"{which} raised {type(error).__name__}: {error}{user_code.line(error)}"
        ) from None


def _sizes_of(which: str, sizes: dict[str, Any]) -> dict[str, int]:
    """The whole numbers that ``make`` was called with, those left to their defaults included."""
    module_name, _, attribute = which.partition(":")
    make = getattr(importlib.import_module(module_name), attribute)
    try:
        given = inspect.signature(make).bind(**sizes)
    except (TypeError, ValueError):  # no signature, as of what is compiled
        return {}
    given.apply_defaults()
    return {name: size for name, size in given.arguments.items() if type(size) is int}


def _is_torch(example: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(example, torch.nn.Module | torch.export.ExportedProgram)
