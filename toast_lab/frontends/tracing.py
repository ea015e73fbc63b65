"""``from_jax``: a JAX function becomes a ``Model``.

``arguments.py`` separates the caller's arguments; this module traces and lowers the function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from toast_lab.errors import FrontendError
from toast_lab.frontends import arguments, stages, traced_keys, user_code
from toast_lab.frontends.quiet import look_for_devices
from toast_lab.frontends.traced import Traced, build
from toast_lab.ir.model import DimNames, Function, Model
from toast_lab.prepare import start_early


def from_jax(
    fn: Callable[..., Any],
    *args: Any,
    donate_argnums: int | Sequence[int] = (),
    name: str | None = None,
    dim_names: DimNames | None = None,
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
        keywords: further arguments, by name. Bind those that are called like an option of this
            function with ``functools.partial``.

    Raises:
        FrontendError: ``fn`` cannot be traced (with the user's line), JAX does not accept an
            argument as an array, or ``fn`` calls back to the host (all offenders are listed).

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
    traced = trace(fn, args, donate_argnums, keywords)
    function_name = user_code.function_name(fn)
    return build(traced, name or function_name, dim_names or {}, f"function {function_name}")


def trace(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    donate_argnums: int | Sequence[int],
    keywords: Mapping[str, Any] | None = None,
) -> Traced:
    """Trace and lower ``fn`` to StableHLO, with argument and result paths.

    Raises FrontendError as ``from_jax`` does.
    """
    donate = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    return trace_separated(arguments.separate_arguments(fn, args, donate, keywords))


def trace_separated(separated: arguments.Arguments) -> Traced:
    """``trace``, for arguments that are separated already.

    Raises FrontendError as ``from_jax`` does.
    """
    try:
        lowering = _lower(separated.call, separated)
        text = lowering.text()
    except FrontendError:
        raise
    except Exception as error:
        bound_leaves = "".join(f". Is an array missing? {note}" for note in separated.notes)
        raise FrontendError(
            f"{separated.call.__name__} cannot be traced: "
            f"{user_code.short(error)}{user_code.line(error)}{bound_leaves}"
        ) from error
    lowered = lowering.lowered
    result = lowered.out_info[0] if separated.changed else lowered.out_info
    leaves, _ = jax.tree_util.tree_flatten_with_path(result)
    return Traced(
        text=text,
        paths=[path for paths in separated.paths for path in paths],
        outputs=[
            *("result" + jax.tree_util.keystr(path) for path, _ in leaves),
            *separated.changed,
        ],
        donated=separated.donated_leaves(),
        trees=(
            jax.tree_util.tree_structure(separated.given),
            jax.tree_util.tree_structure(lowered.out_info),
        ),
        notes=(*separated.notes, *lowering.notes, *_closed_over(lowering.traced)),
        function=Function(
            call=separated.call,
            given=separated.given,
            donated=separated.donated,
            shardings=lowering.shardings,
            results=tuple(map(_struct, lowering.traced.jaxpr.out_avals)),
            changes=bool(separated.changed),
        ),
        keys=traced_keys.keys_of(lowering.traced.jaxpr, jax.tree_util.tree_leaves(separated.given)),
    )


def retrace(function: Function, call: Callable[..., Any], paths: Sequence[str] = ()) -> Model:
    """The program of ``call``, traced and lowered as that of ``function`` was.

    ``call`` takes the arguments of ``function.call`` and gives its results, for instance with more
    names or constraints on the way. ``paths`` name the arguments.

    Raises:
        FrontendError: ``call`` cannot be traced.
    """
    try:
        lowering = _lower(call, function)
        text = lowering.text()
    except Exception as error:
        raise FrontendError(
            f"{user_code.function_name(call)} cannot be traced again: "
            f"{user_code.short(error)}{user_code.line(error)}"
        ) from error
    leaves = jax.tree_util.tree_leaves(function.given)
    return build(
        Traced(
            text=text,
            paths=list(paths) or [f"argument[{i}]" for i in range(len(leaves))],
            outputs=[f"result[{i}]" for i in range(len(function.results))],
            donated=[
                i in function.donated
                for i, given in enumerate(function.given)
                for _ in jax.tree_util.tree_leaves(given)
            ],
            trees=None,
            notes=(),
            keys=traced_keys.keys_of(lowering.traced.jaxpr, leaves),
        ),
        user_code.function_name(call),
        {},
        "traced again",
    )


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    weak = bool(getattr(aval, "weak_type", False))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)


class _Lowering(NamedTuple):
    """A function as JAX traced and lowered it."""

    traced: Any
    lowered: Any
    shardings: Mapping[str, Any]  #: those declared that were used
    notes: list[str]

    def text(self) -> str:
        return str(self.lowered.as_text(debug_info=True))


def _lower(call: Callable[..., Any], like: arguments.Arguments | Function) -> _Lowering:
    """Trace and lower ``call`` for the arguments, donations and shardings of ``like``.

    The shardings that a jitted function declares are used, and left out if they fail.
    """
    notes: list[str] = []
    for shardings in [like.shardings, {}] if like.shardings else [{}]:
        try:
            jitted = jax.jit(call, keep_unused=True, donate_argnums=like.donated, **shardings)
            stages.tell("tracing")
            traced = jitted.trace(*like.given)
            stages.tell("lowering")
            try:
                return _Lowering(traced, traced.lower(), shardings, notes)
            except ValueError as error:
                if "AbstractMesh" not in str(error):
                    raise
                platforms = (jax.default_backend(),)
                lowered = traced.lower(lowering_platforms=platforms)
                return _Lowering(traced, lowered, shardings, notes)
        except Exception as error:
            if not shardings:
                raise
            notes = [
                f"{' and '.join(shardings)} of the function are ignored: {user_code.short(error)}"
            ]
    raise AssertionError("the last try returns or raises")


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
