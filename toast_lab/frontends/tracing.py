"""``from_jax``: a JAX function becomes a ``Model``.

``arguments.py`` takes the caller's arguments apart; this module traces and lowers the function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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

    Modules of flax (linen and nnx), equinox and haiku are taken as their users write them:
    ``from_jax(model.apply, variables, x)``, ``from_jax(nnx.jit(step), model, optimizer, batch)``,
    ``from_jax(eqx.filter_jit(step), model, x)``, ``from_jax(model, x)``.  Leaves other than arrays
    are bound, and each variable that the function changes in an nnx module is a further result,
    named by its path; see ``arguments``.

    Args:
        fn: any function that ``jax.jit`` accepts, jitted or not; static and donated arguments of a
            jitted one stay so.
        args: pytrees of arrays or ShapeDtypeStructs; only shapes and types count.
        donate_argnums: positions whose buffers the results may reuse, as for ``jax.jit``.
        name: name for listings, the function's own by default.
        dim_names: names for argument dims by path or last key,
            ``{"wq": ("d_model", "heads", "key")}``.
        keywords: further arguments by name.  Use ``functools.partial`` for those that have the name
            of an option of this function.

    Raises:
        FrontendError: ``fn`` does not trace (with the user's line), an argument is not an array
            for JAX, or ``fn`` calls back to the host (all offenders are listed).

    Examples:
        >>> import jax
        >>> import toast_lab as tl
        >>> x = jax.ShapeDtypeStruct((64, 32), "float32")
        >>> w = jax.ShapeDtypeStruct((32, 16), "float32")
        >>> model = tl.from_jax(lambda x, w: jax.nn.relu(x @ w), x, w, name="layer")
        >>> print(model)
        layer: 4 ops, 2 arguments, 1 result
    """
    start_early()  # beside the tracing, the kernels of a first search
    look_for_devices()
    traced = trace(fn, args, donate_argnums, keywords)
    called = user_code.function_name(fn)
    return build(traced, name or called, dim_names or {}, f"function {called}")


def trace(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    donate_argnums: int | Sequence[int],
    keywords: Mapping[str, Any] | None = None,
) -> Traced:
    """StableHLO of ``fn``, with argument and result paths.

    Raises FrontendError as ``from_jax`` does.
    """
    donate = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    taken = arguments.take_apart(fn, args, donate, keywords)
    try:
        traced, lowered, refused = _lowered(taken)
        text = lowered.as_text(debug_info=True)
    except FrontendError:
        raise
    except Exception as error:
        bound = "".join(f". Is an array missing? {note}" for note in taken.notes)
        raise FrontendError(
            f"{user_code.function_name(fn)} does not trace: "
            f"{user_code.short(error)}{user_code.line(error)}{bound}"
        ) from error
    result = lowered.out_info[0] if taken.changed else lowered.out_info
    leaves, _ = jax.tree_util.tree_flatten_with_path(result)
    return Traced(
        text=text,
        paths=[path for paths in taken.paths for path in paths],
        outputs=[*("result" + jax.tree_util.keystr(path) for path, _ in leaves), *taken.changed],
        donated=[i in taken.donated for i, paths in enumerate(taken.paths) for _ in paths],
        trees=(
            jax.tree_util.tree_structure(taken.given),
            jax.tree_util.tree_structure(lowered.out_info),
        ),
        notes=(*taken.notes, *refused, *_closed_over(traced)),
        function=Function(taken.call, taken.given, bool(taken.changed)),
        keys=traced_keys.keys_of(traced.jaxpr, jax.tree_util.tree_leaves(taken.given)),
    )


def _lowered(taken: arguments.Arguments) -> tuple[Any, Any, list[str]]:
    """(traced, lowered, notes), with the argument shardings of a jitted function if they work."""
    notes: list[str] = []
    for shardings in [taken.shardings, {}] if taken.shardings and not taken.changed else [{}]:
        try:
            jitted = jax.jit(
                taken.call, keep_unused=True, donate_argnums=taken.donated, **shardings
            )
            stages.tell("tracing")
            traced = jitted.trace(*taken.given)
            stages.tell("lowering")
            try:
                return traced, traced.lower(), notes
            except ValueError as error:
                if "AbstractMesh" not in str(error):
                    raise
                return traced, traced.lower(lowering_platforms=(jax.default_backend(),)), notes
        except Exception as error:
            if not shardings:
                raise
            notes = [
                f"{' and '.join(shardings)} of the function are left out: {user_code.short(error)}"
            ]
    raise AssertionError("the last try returns or raises")


_LARGE = 2**20  # bytes; smaller tables and masks are nobody's weights


def _closed_over(traced: Any) -> list[str]:
    """A note if the function closes over weights, which as constants are not sharded."""
    constants = getattr(traced.jaxpr, "consts", ())
    sizes = [int(constant.nbytes) for constant in constants if hasattr(constant, "nbytes")]
    if sum(sizes) < _LARGE:
        return []
    return [
        f"the function closes over {len(sizes)} arrays with {sum(sizes) / 1e6:.1f} MB, which are "
        "constants of the program and stay whole on every device: pass weights as arguments"
    ]
