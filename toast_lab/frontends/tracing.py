"""``from_jax``: a JAX function becomes a ``Model``.

``arguments.py`` separates the caller's arguments; this module traces and lowers the function.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax

from toast_lab.errors import FrontendError, join_offenders
from toast_lab.frontends import (
    arguments,
    calls,
    partitioned_functions,
    platform_rules,
    stages,
    traced_keys,
    user_code,
    wrapped_kernels,
)
from toast_lab.frontends.logical_names import dim_names_of
from toast_lab.frontends.quiet import look_for_devices
from toast_lab.frontends.traced import Placement, Traced, build, without_collector
from toast_lab.ir.model import DimNames, Function, Model
from toast_lab.ir.platform_names import PLATFORMS
from toast_lab.ir.platforms import Parts
from toast_lab.prepare import start_early


def from_jax(
    fn: Callable[..., Any],
    *args: Any,
    donate_argnums: int | Sequence[int] = (),
    name: str | None = None,
    dim_names: DimNames | None = None,
    platform: str | None = None,
    **keywords: Any,
) -> Model:
    """Trace a JAX function.

    Modules of flax (linen and nnx), equinox and haiku are accepted as their users write them:
    ``from_jax(model.apply, variables, x)``, ``from_jax(nnx.jit(step), model, optimizer, batch)``,
    ``from_jax(eqx.filter_jit(step), model, x)``, ``from_jax(model, x)``. Leaves other than arrays
    are bound, and each variable that the function changes in an nnx module becomes an additional
    result, named by its path; see ``arguments``.

    Args:
        fn: any function that ``jax.jit`` accepts, jitted or not; a jitted function keeps its static
            and donated arguments.
        args: pytrees of arrays or ShapeDtypeStructs; only shapes and types count.
        donate_argnums: positions whose buffers the results may reuse, as for ``jax.jit``.
        name: name for listings, the function's own by default.
        dim_names: names for argument dims by path or last key,
            ``{"wq": ("d_model", "heads", "key")}``.
        platform: "cpu", "tpu" or "gpu", for which JAX lowers the function; by default that of this
            host, or another if only that one has all of the function's ops. A ``Problem`` takes the
            program for its machine by itself (``Model.lowered_for``).
        keywords: further arguments, by name. Bind those that are called like an option of this
            function with ``functools.partial``.

    Raises:
        FrontendError: ``fn`` cannot be traced or lowered for the platform (with the user's line),
            JAX does not accept an argument as an array, or ``fn`` calls back to the host (all
            offenders are listed).

    Examples:
        >>> import jax
        >>> import toast_lab as tl
        >>> x = jax.ShapeDtypeStruct((64, 32), "float32")
        >>> w = jax.ShapeDtypeStruct((32, 16), "float32")
        >>> model = tl.from_jax(lambda x, w: jax.nn.relu(x @ w), x, w, name="layer")
        >>> print(model)
        layer: 4 ops, 2 arguments, 1 result
    """
    start_early()  # compiles a first search's kernels during the tracing
    look_for_devices()
    traced = trace(fn, args, donate_argnums, keywords, platform=platform)
    function_name = user_code.function_name(fn)
    return build(traced, name or function_name, dim_names or {}, f"function {function_name}")


def trace(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    donate_argnums: int | Sequence[int],
    keywords: Mapping[str, Any] | None = None,
    *,
    platform: str | None = None,
) -> Traced:
    """Trace and lower ``fn`` to StableHLO, with argument and result paths.

    ``platform`` and errors are those of ``from_jax``.
    """
    donate = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    if platform is not None:
        platform_rules.name_in_jax(platform)
    return trace_separated(arguments.separate_arguments(fn, args, donate, keywords), platform)


@without_collector()
def trace_separated(separated: arguments.Arguments, platform: str | None = None) -> Traced:
    """``trace``, for arguments that are separated already."""
    name = separated.call.__name__
    bound_leaves = "".join(f". Is an array missing? {note}" for note in separated.notes)
    refusal = f"{name} cannot be traced"
    first = _lowered(separated.call, separated, platform, refusal, remark=bound_leaves)
    info = first.lowered.out_info
    result = info[0] if separated.changed else info
    leaves, _ = jax.tree_util.tree_flatten_with_path(result)
    paths = [path for paths in separated.paths for path in paths]
    function = Function(
        call=separated.call,
        given=separated.given,
        donated=separated.donated,
        shardings=first.shardings,
        results=tuple(map(_struct, first.traced.jaxpr.out_avals)),
        changes=bool(separated.changed),
    )
    return first.as_traced(
        name,
        function,
        paths=paths,
        outputs=[
            *("result" + jax.tree_util.keystr(path) for path, _ in leaves),
            *separated.changed,
        ],
        notes=separated.notes,
    )._replace(
        trees=(
            jax.tree_util.tree_structure(separated.given),
            jax.tree_util.tree_structure(info),
        ),
        notes=(
            *separated.notes,
            *first.notes,
            *platform_rules.notes(first.traced.jaxpr),
            *_closed_over(first.traced),
        ),
        function=function,
        dim_names=dim_names_of(paths, separated.given),
        call_form=separated.form._replace(
            result_count=len(result) if type(result) is tuple else -1,
            returned=_returned(separated, result),
        ),
        placements=tuple(map(_placement, separated.leaves)),
    )


@without_collector()
def retrace(function: Function, call: Callable[..., Any]) -> Model:
    """The program of ``call``, traced and lowered as that of ``function`` was.

    ``call`` takes the arguments of ``function.call`` and gives its results, for instance with more
    names on the way.

    Raises:
        FrontendError: ``call`` cannot be traced.
    """
    name = user_code.function_name(call)
    first = _lowered(call, function, None, f"{name} cannot be traced again")
    count = len(jax.tree_util.tree_leaves(function.given))
    traced = first.as_traced(
        name,
        function,
        paths=[f"argument[{i}]" for i in range(count)],
        outputs=[f"result[{i}]" for i in range(len(function.results))],
    )
    return build(traced, name, {}, "traced again")


@without_collector()
def traced_anew(model: Model, function: Function, platform: str | None = None) -> Model:
    """``model`` with the program of another function, which takes and gives what its own does.

    ``platform`` is that of ``from_jax``.

    Raises:
        FrontendError: ``function`` cannot be traced.
    """
    refusal = f"{model.name} cannot be traced again"
    first = _lowered(function.call, function, platform, refusal)
    program = model.program
    traced = first.as_traced(
        model.name,
        function,
        paths=program.value_name[: program.n_arguments],
        outputs=program.output_paths,
        notes=model.notes,
    )._replace(
        trees=model.trees,
        notes=model.notes,
        function=function,
        call_form=model.call_form,
        placements=tuple(map(_placement, jax.tree_util.tree_leaves(function.given))),
    )
    return dataclasses.replace(
        build(traced, model.name, model.dim_names, model.source),
        sizes=model.sizes,
        expert_plans=model.expert_plans,
        parameter_count=model.parameter_count,
        paper_parameters=model.paper_parameters,
    )


def _returned(separated: arguments.Arguments, result: Any) -> tuple[tuple[int, int], ...]:
    """Elements of a result that look like an argument, see ``CallForm``.

    A single array does only if the argument is donated: it may be anything of that shape.
    """
    donated = separated.donated
    positions = sorted(range(len(separated.given)), key=lambda position: position not in donated)
    elements = list(enumerate(result)) if type(result) is tuple else [(-1, result)]
    alike = []
    for number, element in elements:
        leaves, tree = cast(Any, jax.tree_util).tree_flatten(element)
        for position in positions:
            others, other_tree = cast(Any, jax.tree_util).tree_flatten(separated.given[position])
            is_state = position in donated or not jax.tree_util.treedef_is_leaf(tree)
            if leaves and is_state and tree == other_tree:
                if [leaf.shape for leaf in leaves] == [jax.numpy.shape(leaf) for leaf in others]:
                    alike.append((number, position))
                    break
    return tuple(alike)


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    weak = bool(getattr(aval, "weak_type", False))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)


def kernel_body(
    name: str,
    shapes: Sequence[tuple[tuple[int, ...], str]],
    platform: str,
    parts: Parts | None = None,
) -> str:
    """StableHLO of the wrapped kernel ``name`` for operands of (shape, element type).

    ``parts`` is how a function of ``custom_partitioning`` is cut, whose shapes are whole.
    """

    def lower(traced: Any) -> str:
        return str(platform_rules.lower(traced, platform).as_text())

    typed = [(shape, _dtype(element)) for shape, element in shapes]
    if partitioned_functions.is_known(name):
        return partitioned_functions.body_text(name, typed, parts, lower)
    return wrapped_kernels.body_text(name, typed, platform, lower)


def _dtype(element: str) -> Any:
    """JAX's type of a StableHLO element type."""
    names = {"bf16": "bfloat16", "i1": "bool", "complex<f32>": "complex64"}
    words = {"f": "float", "i": "int", "ui": "uint"}
    match = re.fullmatch(r"(ui|i|f)(\d+)", element)
    name = f"{words[match.group(1)]}{match.group(2)}" if match else element.lower()
    return jax.numpy.dtype(names.get(element, name))


INTERPRETED = "kernels are interpreted on the CPU"


def _placement(leaf: Any) -> Placement | None:
    """The named sharding that an argument carries; None if it is on no mesh."""
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, jax.sharding.NamedSharding) or sharding.mesh.empty:
        return None
    entries = [*sharding.spec, *[None] * (len(leaf.shape) - len(sharding.spec))]
    axes = [entry if isinstance(entry, tuple) else (entry,) for entry in entries]
    return Placement(
        tuple(sharding.mesh.shape.items()),
        tuple(tuple(axis for axis in dim if isinstance(axis, str)) for dim in axes),
    )


class _Lowered(NamedTuple):
    """A function, traced and lowered for one platform."""

    traced: Any
    lowered: Any
    platform: str
    notes: list[str]
    shardings: Mapping[str, Any]  #: those that it declares and that were used

    def as_traced(
        self,
        name: str,
        like: Function,
        paths: Sequence[str],
        outputs: Sequence[str],
        *,
        notes: Sequence[str] = (),
    ) -> Traced:
        """The program called ``name``, with these paths of arguments and results.

        ``notes`` hold for its programs for other platforms, too.
        """
        jaxpr = self.traced.jaxpr
        traced = Traced(
            text=self.lowered.as_text(debug_info=True),
            paths=paths,
            outputs=outputs,
            donated=[
                i in like.donated
                for i, given in enumerate(like.given)
                for _ in jax.tree_util.tree_leaves(given)
            ],
            trees=None,
            notes=(),
            keys=traced_keys.keys_of(jaxpr, jax.tree_util.tree_leaves(like.given)),
            on_host=list(map(calls.is_on_host, jax.tree_util.tree_leaves(like.given))),
            platforms=platform_rules.alike(jaxpr, self.platform),
            kernel_body=kernel_body,
        )

        def lower(other: str) -> Traced:
            text = _lower(self.traced, other, name).as_text(debug_info=True)
            is_interpreted = other == "cpu" and platform_rules.has_kernels(jaxpr)
            return traced._replace(
                text=text,
                platforms=platform_rules.alike(jaxpr, other),
                notes=(*notes, *([INTERPRETED] if is_interpreted else [])),
            )

        return traced._replace(lower=lower, kernel_body=kernel_body)


def _lowered(
    call: Callable[..., Any],
    like: arguments.Arguments | Function,
    platform: str | None,
    refusal: str,
    *,
    remark: str = "",
) -> _Lowered:
    """Trace and lower ``call`` for the arguments, donations and shardings of ``like``.

    The shardings that a jitted function declares are used, and left out if they fail. Raises
    FrontendError, whose message begins with ``refusal`` and ends with ``remark``.
    """
    notes: list[str] = []
    for shardings in [like.shardings, {}] if like.shardings else [{}]:
        try:
            jitted = jax.jit(call, keep_unused=True, donate_argnums=like.donated, **shardings)
            stages.tell("tracing")
            with platform_rules.without_gpu():
                traced = jitted.trace(*like.given)
            stages.tell("lowering")
            lowered = _first_that_works(traced, user_code.function_name(call), platform, notes)
            return lowered._replace(shardings=shardings)
        except Exception as error:
            if not shardings:
                if isinstance(error, FrontendError):
                    raise
                cause = f"{user_code.short(error)}{user_code.line(error)}{remark}"
                raise FrontendError(f"{refusal}: {cause}") from error
            notes = [
                f"{' and '.join(shardings)} of the function are ignored: {user_code.short(error)}"
            ]
    raise AssertionError("the last try returns or raises")


def _first_that_works(
    traced: Any, name: str, platform: str | None, notes: Sequence[str]
) -> _Lowered:
    """Lower for ``platform``; without one for the host's, or else for the first that works."""
    if platform is not None:
        return _Lowered(traced, _lower(traced, platform, name), platform, [*notes], shardings={})
    host = platform_rules.of_host()
    try:
        return _Lowered(traced, _lower_for_host(traced, host), host, [*notes], shardings={})
    except Exception as error:
        for other in PLATFORMS:
            if other != host:
                with contextlib.suppress(FrontendError):
                    lowered = _lower(traced, other, name)
                    note = (
                        f"lowered for {other.upper()}: JAX cannot lower it for this host's "
                        f"{host.upper()} ({user_code.short(error)}{user_code.line(error)})"
                    )
                    return _Lowered(traced, lowered, other, [*notes, note], shardings={})
        raise


def _lower_for_host(traced: Any, host: str) -> Any:
    try:
        return platform_rules.lower_own(traced, None)
    except ValueError as error:
        if "AbstractMesh" not in str(error):
            raise
        return platform_rules.lower_own(traced, (platform_rules.name_in_jax(host),))


def _lower(traced: Any, platform: str, name: str) -> Any:
    """Lower a trace for a platform that need not be attached. Raises FrontendError."""
    try:
        return platform_rules.lower(traced, platform)
    except Exception as error:
        culprits = platform_rules.offenders(traced.jaxpr, platform)
        raise FrontendError(
            f"{name} cannot be lowered for {platform.upper()}: "
            f"{user_code.short(error)}{user_code.line(error)}. "
            + (f"It is one of these:\n{join_offenders(culprits)}\n" if culprits else "")
            + "Choose a machine of another platform, or let the function take another way on this "
            "one (jax.lax.platform_dependent)"
        ) from error


_LARGE = 2**20  # bytes; smaller constants are tables and masks, not weights


def _closed_over(traced: Any) -> list[str]:
    """A note if the function closes over weights: as constants, they are not sharded."""
    constants = getattr(traced.jaxpr, "consts", ())
    sizes = [int(constant.nbytes) for constant in constants if hasattr(constant, "nbytes")]
    if sum(sizes) < _LARGE:
        return []
    return [
        f"the function closes over {len(sizes)} arrays of {sum(sizes) / 1e6:.1f} MB in all, which "
        "are constants of the program and stay whole on every device: pass weights as arguments"
    ]
