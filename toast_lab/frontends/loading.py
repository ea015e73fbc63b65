"""``load``: a built-in model by its name, or the user's own as ``"package.module:make"``."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from toast_lab import fork_server, isolate
from toast_lab.errors import (
    FrontendError,
    InvalidPlan,
    InvalidProblem,
    did_you_mean,
    join_offenders,
)
from toast_lab.frontends import (
    checkpoints,
    padding,
    stages,
    tracing,
    user_code,
    wrapped_kernels,
)
from toast_lab.frontends.quiet import look_for_devices
from toast_lab.frontends.traced import Traced, build, in_child
from toast_lab.frontends.tracing import from_jax, trace
from toast_lab.ir import kernel_rules
from toast_lab.ir.model import Function, Model, Recipe
from toast_lab.ir.platforms import LoweredProgram
from toast_lab.prepare import start_early

#: Runs once, for all children that are forked to work in this module (``fork_server``).
before_fork = fork_server.import_jax

LOWERED = "toast_lab.frontends.loading:lowered"
#: for making a function again and tracing it
TIME_LIMIT_S = 300.0
ResultT = TypeVar("ResultT")
#: options that a user's ``make`` may return
OPTIONS = ("donate_argnums", "dim_names", "expert_plans", "parameter_count")


def load(
    which: str,
    *,
    platform: str | None = None,
    virtual_devices: int = 0,
    time_limit_s: float = 300.0,
    on_event: Any = None,
    cancel: Any = None,
    **sizes: Any,
) -> Model:
    """A built-in model by name, or the user's own: ``"package.module:make"``, ``"file.py:make"``.

    ``make(**sizes)`` returns ``(fn, args)`` or ``(fn, args, options)``. The options are a dict with
    ``donate_argnums``, ``dim_names``, ``expert_plans`` and ``parameter_count``, as in
    ``models.registry.Example``; ``fn`` may be a torch module or exported program, with its example
    inputs as ``args``. ``make`` runs in a child process with a time limit. ``platform`` is that of
    ``from_jax``; with ``virtual_devices`` the child has so many, for a ``make`` that makes a mesh.
    Raises FrontendError or RunFailed with the cause.

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
            platform=platform,
        )
        model.lowerings.child = (LOWERED, Recipe(which, sizes))
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
        platform,
        virtual_devices=virtual_devices,
        time_limit_s=time_limit_s,
        activity=f"loading {which}",
        on_event=on_event,
        cancel=cancel,
    )
    if on_event is not None:
        on_event("reading")
    model = build(traced, name, options["dim_names"], which)
    if not options["is_torch"]:
        model.lowerings.child = (LOWERED, Recipe(which, sizes))
    return dataclasses.replace(
        model,
        sizes=options["sizes"],
        expert_plans=options["expert_plans"],
        parameter_count=options["parameter_count"],
        function=None if options["is_torch"] else Recipe(which, sizes),
    )


def function_of(recipe: Recipe) -> Any:
    """Rebuild the ``Function`` of a recipe in this process. Raises what ``load`` raises."""
    if ":" not in recipe.which:
        function = load(recipe.which, **recipe.sizes).function
    else:
        fn, args, options = _parts_of(recipe.which, _example_of(recipe.which, recipe.sizes))
        function = trace(fn, args, options.get("donate_argnums", ())).function
    if not isinstance(function, Function):
        return function
    if recipe.recompute:
        function = checkpoints.with_policies(function, dict(recipe.recompute), recipe.files)
    return padding.padded_function(function, recipe.starts)[0] if recipe.starts else function


def with_function(
    work: Callable[..., ResultT],
    model: Model,
    *given: Any,
    activity: str,
) -> ResultT:
    """``work(model, *given)``, which traces the model's function again.

    If that is not loaded in this process, a child makes it and does the work. ``activity`` says
    what is done, with ``{}`` for the model.

    Raises:
        InvalidProblem: the model has no function that could be traced again.
        FrontendError, RunFailed, RunInterrupted: what ``work`` raises, or the function cannot be
            made again, or not within ``TIME_LIMIT_S`` seconds.
    """
    if model.function is None:
        raise InvalidProblem(
            f"{model.name} has no function that could be traced again: it was read from "
            f"{model.source or 'a file'}. Load the JAX function itself"
        )
    if not isinstance(model.function, Recipe):
        return work(model, *given)
    result: ResultT = in_child(
        "toast_lab.frontends.loading:with_function_again",
        work,
        model,
        *given,
        time_limit_s=TIME_LIMIT_S,
        activity=activity.format(model.function.which),
    )
    return result


def with_function_again(work: Callable[..., ResultT], model: Model, *given: Any) -> ResultT:
    """Runs in a child: ``work`` on a model whose function is made again from its recipe."""
    function = function_of(cast(Recipe, model.function))
    if function is None:
        raise InvalidPlan(f"{model.name} is not a function that JAX traces")
    return work(dataclasses.replace(model, function=function), *given)


def with_recipe(again: Model, model: Model, **changes: Any) -> Model:
    """A model made of another, which other processes make by its recipe with these changes."""
    recipe = model.function if isinstance(model.function, Recipe) else model.recipe
    if recipe is not None:
        recipe = recipe._replace(**changes)
        again.lowerings.child = (LOWERED, recipe)
        if isinstance(model.function, Recipe):
            again = dataclasses.replace(again, function=recipe)
    return again


def lowered(
    recipe: Recipe, platform: str, kernel: tuple[Any, ...] | None = None
) -> LoweredProgram | str:
    """Runs in a child: the program of a recipe for another platform, or the code of a kernel."""
    if kernel is not None:
        example = _example_of(recipe.which, recipe.sizes)  # imports wrapped kernels with the module
        name, shapes, parts = kernel
        if parts is not None or not wrapped_kernels.is_known(name):
            fn, args, options = _parts_of(recipe.which, example)
            trace(fn, args, options.get("donate_argnums", ()), platform=platform)
        return tracing.kernel_body(name, shapes, platform, parts)
    model = load(recipe.which, platform=platform, **recipe.sizes)
    if recipe.recompute or recipe.starts:
        model = tracing.traced_anew(model, function_of(recipe), platform)
    return model.lowerings.program(model.name, platform)


def _make_foreign(
    which: str, sizes: dict[str, Any], platform: str | None
) -> tuple[Traced, str, dict[str, Any]]:
    """Runs in the child: import the module, call ``make``, and trace."""
    fn, args, options = _parts_of(which, _example_of(which, sizes))
    is_torch = _is_torch(fn)
    with stages.listening(isolate.report):
        if is_torch:
            from toast_lab.frontends import pytorch

            stages.tell("tracing")
            traced, name = pytorch.trace_torch(fn, args), pytorch.module_name(fn)
        else:
            traced = trace(fn, args, options.get("donate_argnums", ()), platform=platform)
            name = user_code.function_name(fn)
    try:
        pickle.dumps(traced.trees)
    except Exception:
        # Custom pytree nodes do not survive the trip to the parent; paths still do
        traced = traced._replace(trees=None)
    rules = _portable_rules(traced.text, which)
    traced = traced._replace(lower=None, kernel_body=None, kernel_rules=rules)
    facts = {
        "dim_names": dict(options.get("dim_names") or {}),
        "sizes": _sizes_of(which, sizes),
        "expert_plans": dict(options.get("expert_plans") or {}),
        "parameter_count": options.get("parameter_count"),
        "is_torch": is_torch,
    }
    return traced, name, facts


# Names by which a rule may be for a kernel in StableHLO
_NAMES = re.compile(r'\b(?:kernel_)?name = "([^"]+)"|custom_call @([^\s(]+)|jit\((\w+)\)')


def _portable_rules(text: str, which: str) -> tuple[kernel_rules.KernelRule, ...]:
    """The rules that can go to the parent: those with local functions as costs cannot.

    Raises FrontendError if the program ``text`` needs one of these.
    """
    portable, stuck = [], []
    for rule in kernel_rules.registered():
        try:
            pickle.dumps(rule)
            portable.append(rule)
        except Exception:
            stuck.append(rule)
    names = {name for groups in _NAMES.findall(text) for name in groups if name} if stuck else set()
    offenders = [
        f"kernel {rule.name}: {rule.text}"
        for rule in stuck
        if any(re.fullmatch(rule.name, name) for name in names)
    ]
    if offenders:
        raise FrontendError(
            f"{which}: flops and bytes of these kernels are local functions, which cannot leave "
            f"the process that loads the module:\n{join_offenders(offenders)}\nGive an expression "
            'of the dims, such as flops="4*b*d", or a function that the module defines by name'
        )
    return tuple(portable)


def _parts_of(which: str, example: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function, arguments and options that ``make`` returned. Raises FrontendError."""
    requirement = f"{which} must return (fn, args) or (fn, args, options)"
    is_tuple = isinstance(example, tuple) and len(example) > 1
    if not is_tuple or not (callable(example[0]) or _is_torch(example[0])):
        raise FrontendError(f"{requirement}, got {type(example).__name__}")
    fn, args, *trailing = example
    if hasattr(example, "_asdict"):
        fields = example._asdict()
        return fn, _arguments(args), {key: fields[key] for key in OPTIONS if key in fields}
    options = trailing[0] if trailing else {}
    if len(trailing) > 1 or not isinstance(options, Mapping):
        kinds = ", ".join(type(element).__name__ for element in example)
        raise FrontendError(
            f"{requirement}, got {len(example)} values ({kinds}); if all but the first are "
            f"arguments, put them into one tuple: return {user_code.function_name(fn)}, (...)"
        )
    unknown = [
        f"{key!r}{did_you_mean(key, OPTIONS) if isinstance(key, str) else ''}"
        for key in options
        if key not in OPTIONS
    ]
    if unknown:
        raise FrontendError(
            f"{which} returned unknown options: {', '.join(unknown)}. The options are "
            f"{', '.join(OPTIONS)}; arguments belong in the tuple before them"
        )
    return fn, _arguments(args), dict(options)


def _arguments(args: Any) -> tuple[Any, ...]:
    return tuple(args) if isinstance(args, tuple | list) else (args,)


def _example_of(which: str, sizes: dict[str, Any]) -> Any:
    module_name, attribute = _module_and_name(which)
    try:
        make = getattr(importlib.import_module(module_name), attribute)
    except ImportError as error:
        raise FrontendError(
            f"{which}: cannot import {module_name}: {error}. Is it on the path (the current "
            "folder is)? A file can be named, too: path/to/file.py:make"
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


def _module_and_name(which: str) -> tuple[str, str]:
    """The module to import, and what to take from it; the folder of a file gets onto the path."""
    module_name, _, attribute = which.partition(":")
    if not module_name.endswith(".py"):
        return module_name, attribute
    file = Path(module_name).resolve()
    if not file.is_file():
        raise FrontendError(f"{which}: there is no file {module_name}")
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.find_spec(file.stem)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != file:
        raise FrontendError(
            f"{which}: another module is called {file.stem}, too "
            f"({'built in' if spec is None else spec.origin}); rename the file, or give the model "
            "as package.module:make"
        )
    return file.stem, attribute


def _sizes_of(which: str, sizes: dict[str, Any]) -> dict[str, bool | int | float | str]:
    """The numbers, words and switches that ``make`` was called with, including defaults."""
    module_name, attribute = _module_and_name(which)
    make = getattr(importlib.import_module(module_name), attribute)
    try:
        signature = inspect.signature(make)
        bound_arguments = signature.bind(**sizes)
    except (TypeError, ValueError):  # no signature, as for compiled functions
        return {}
    bound_arguments.apply_defaults()
    return {
        name: size
        for name, size in bound_arguments.arguments.items()
        if type(size) in (bool, int, float, str)
        and signature.parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY
    }


def _is_torch(example: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(example, torch.nn.Module | torch.export.ExportedProgram)
