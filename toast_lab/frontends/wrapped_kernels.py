"""``kernel_rule``: users give rules to hand-written kernels.

    tl.kernel_rule("my_norm", "b s d, d -> b s d", whole="d", flops="8*b*s*d")

    @tl.kernel_rule("b s h d, b t h d, b t h d -> b s h d", whole="s d", flops="4*b*h*s*t*d")
    def attention(q, k, v):
        return pl.pallas_call(...)(q, k, v)

The first gives a rule to kernels by name. The compiled code of most kernels holds their shapes, so
a plan can price and list what cutting them brings, but only its user can cut them, with
``jax.shard_map``. The second wraps the Python function that calls the kernel. The function is one
op of the program, and is traced again for the shapes of a part wherever a plan cuts it: compiled
and executed programs run it in a manual computation (``lowering.local_kernels``). Outside of TOAST
Lab the wrapped function is just called.

A wrapped function takes and gives arrays only. Its derivative is that of the function inside;
kernels without one are called from a ``jax.custom_vjp``, whose forward and backward functions are
wrapped each.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, overload

from toast_lab.errors import FrontendError, InvalidInput
from toast_lab.ir import kernel_rules
from toast_lab.ir.kernel_rules import WRAPPED, Amount, KernelRule


class WrappedKernel(NamedTuple):
    """A wrapped function by the name under which it is found again."""

    name: str
    fn: Callable[..., Any]

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WrappedKernel) and self.fn is other.fn

    def flat(self, *arrays: Any) -> list[Any]:
        """The leaves of the function's result."""
        import jax

        return list(jax.tree_util.tree_leaves(self.fn(*arrays)))


_WRAPPED: dict[str, WrappedKernel] = {}


def is_known(name: str) -> bool:
    """Is a function of this name wrapped in this process?"""
    return name in _WRAPPED


@overload
def kernel_rule(
    rule: str,
    /,
    *,
    flops: Amount = ...,
    bytes: Amount = ...,
    whole: str = ...,
    reduces: str = ...,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


@overload
def kernel_rule(
    name: str,
    rule: str,
    /,
    *,
    flops: Amount = ...,
    bytes: Amount = ...,
    whole: str = ...,
    reduces: str = ...,
) -> None: ...


def kernel_rule(
    name_or_rule: str,
    rule: str | None = None,
    /,
    *,
    flops: Amount = None,
    bytes: Amount = None,
    whole: str = "",
    reduces: str = "",
) -> Any:
    """Give a rule to the kernels of a name, or, as a decorator, to the function that calls one.

    Args:
        name_or_rule: a regular expression that the kernel's name matches (of a ``pallas_call``, or
            the target of a custom or FFI call); for the decorator, the rule.
        rule: the dims of operands and results: ``"b s h d, b t h d -> b s h d"``. Dims whose name
            is in an operand and a result can be cut. ``_`` stays whole, ``(k g)`` is made of two
            dims, ``*`` is a whole operand, ``**`` all further ones.
        flops: of the whole kernel: a number, an expression of the dims, or a function of a dict of
            their sizes. Without it the kernel is priced by its bytes, or its own cost estimate.
        bytes: moved between memory and the device's cores, likewise; by default those of its
            operands and results.
        whole: names of dims that stay whole.
        reduces: names of dims that only operands have and that may be cut: the results for parts of
            them add up to the whole result. Softmaxes and norms are no such sums.

    Raises:
        InvalidInput: the rule cannot be read.

    Examples:
        >>> import jax, toast_lab as tl
        >>> @tl.kernel_rule("rows columns -> rows columns", whole="columns")
        ... def norm(x):
        ...     return x / jax.numpy.linalg.norm(x, axis=-1, keepdims=True)
        >>> model = tl.from_jax(lambda x: norm(x) * 2, jax.ShapeDtypeStruct((64, 8), "float32"))
        >>> model.program.kind[1]
        'custom_call'
    """
    if callable(name_or_rule):
        raise InvalidInput(
            "kernel_rule decorates with a rule: write "
            '@tl.kernel_rule("b s h d, b t h d -> b s h d"), with the dims of your kernel'
        )
    kept, summed = frozenset(whole.split()), frozenset(reduces.split())
    if rule is not None:
        kernel_rules.register(
            KernelRule(name_or_rule, rule, flops, bytes, whole=kept, reduces=summed)
        )
        return None
    if "->" not in name_or_rule:
        raise InvalidInput(
            f"kernel_rule({name_or_rule!r}) has no rule: give a name and a rule, or decorate a "
            'function with a rule such as "b s h d, b t h d -> b s h d"'
        )

    def wrap(fn: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{fn.__module__}.{fn.__qualname__}"
        kernel_rules.register(
            KernelRule(
                re.escape(name),
                name_or_rule,
                flops,
                bytes,
                whole=kept,
                reduces=summed,
                decorates=True,
            )
        )
        kernel = _WRAPPED[name] = WrappedKernel(name, fn)

        @functools.wraps(fn)
        def call(*arrays: Any) -> Any:
            import jax

            shapes = [
                jax.ShapeDtypeStruct(jax.numpy.shape(a), jax.numpy.result_type(a)) for a in arrays
            ]
            tree = jax.tree_util.tree_structure(jax.eval_shape(fn, *shapes))
            return jax.tree_util.tree_unflatten(tree, primitive().bind(*arrays, kernel=kernel))

        return call

    return wrap


@functools.cache
def primitive() -> Any:
    """The primitive that calls a wrapped function, created on first use."""
    import jax
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    call = Primitive(WRAPPED)
    call.multiple_results = True

    def plain(*arrays: Any, kernel: WrappedKernel) -> list[Any]:
        return kernel.flat(*arrays)

    def abstract(*avals: Any, kernel: WrappedKernel) -> list[Any]:
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        return [
            jax.core.ShapedArray(result.shape, result.dtype)
            for result in jax.eval_shape(kernel.flat, *shapes)
        ]

    def derived(primals: Any, tangents: Any, *, kernel: WrappedKernel) -> Any:
        return jax.jvp(kernel.flat, primals, list(map(ad.instantiate_zeros, tangents)))

    def batched(arrays: Any, dims: Any, *, kernel: WrappedKernel) -> Any:
        # ``batching.not_mapped`` is None, which is what ``vmap`` takes
        leading = [
            array if dim is None else jax.numpy.moveaxis(array, dim, 0)
            for array, dim in zip(arrays, dims, strict=True)
        ]
        results = call.bind(*leading, kernel=_mapped(kernel, leading, dims))
        return results, [0] * len(results)

    call.def_impl(plain)
    call.def_abstract_eval(abstract)
    ad.primitive_jvps[call] = derived
    batching.primitive_batchers[call] = batched
    mlir.register_lowering(call, mlir.lower_fun(plain, multiple_results=True))
    return call


def _mapped(kernel: WrappedKernel, arrays: Sequence[Any], dims: Sequence[Any]) -> WrappedKernel:
    """What ``jax.vmap`` makes of a kernel, with its rule for a new first dim of ``arrays``."""
    import jax

    is_mapped = [dim is not None for dim in dims]
    in_axes = [0 if each else None for each in is_mapped]
    flat = jax.vmap(kernel.flat, in_axes=in_axes)
    digits = "".join(str(int(each)) for each in is_mapped)
    # One name in every process: a child that traces the function again has to find it
    mapped = WrappedKernel(f"{kernel.name}_mapped_{digits}", flat)
    rule = kernel_rules.registered_for(kernel.name)
    structs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    results = [len(result.shape) - 1 for result in jax.eval_shape(flat, *structs)]
    operands = [
        (len(array.shape) - each, each) for array, each in zip(arrays, is_mapped, strict=True)
    ]
    if rule is not None:
        kernel_rules.register(kernel_rules.mapped(rule, re.escape(mapped.name), operands, results))
    _WRAPPED[mapped.name] = mapped
    return mapped


def lower_as_one(context: Any, *operands: Any, kernel: WrappedKernel) -> Any:
    """JAX's lowering rule that leaves a wrapped function one op, for our own traces."""
    return one_op(context, operands, kernel.name, target=WRAPPED)


def one_op(
    context: Any,
    operands: Sequence[Any],
    name: str,
    *,
    target: str,
    configuration: str = "",
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """The call that stands for the function called ``name``, with further ``attributes``."""
    from jaxlib.mlir import ir

    texts = {"call_target_name": target, "backend_config": configuration, "kernel_name": name}
    call = ir.Operation.create(
        "stablehlo.custom_call",
        results=tensor_types(context.avals_out),
        operands=list(operands),
        attributes={
            **{key: ir.StringAttr.get(text) for key, text in texts.items()},
            **(attributes or {}),
        },
    )
    return list(call.results)


def tensor_types(avals: Sequence[Any]) -> list[Any]:
    """MLIR's types of JAX's abstract arrays."""
    from jax.interpreters import mlir
    from jaxlib.mlir import ir

    return [
        ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(aval.dtype)) for aval in avals
    ]


def body_text(
    name: str,
    shapes: Sequence[tuple[tuple[int, ...], Any]],
    platform: str,
    lower: Callable[[Any], str],
) -> str:
    """StableHLO of a wrapped function for operands of (shape, dtype) on a platform.

    ``lower`` lowers a trace for the platform.

    Raises:
        FrontendError: the function is not in this process, or cannot be lowered for these shapes.
    """
    import jax

    if name not in _WRAPPED:
        raise FrontendError(
            f"the kernel {name} is not in this process; give the model as tl.from_jax or tl.load "
            "made it"
        )
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    try:
        return lower(jax.jit(_WRAPPED[name].flat, keep_unused=True).trace(*structs))
    except Exception as error:
        sizes = ", ".join("x".join(map(str, shape)) for shape, _ in shapes)
        raise FrontendError(
            f"the kernel {name} cannot be lowered for {platform.upper()} with local shapes "
            f"{sizes}: {type(error).__name__}: {str(error)[:300]}"
        ) from error
