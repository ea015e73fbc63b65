"""Programs for loss, gradients and a step of plain gradient descent, with and without a plan.

They are made of a model's function.

The programs are traced here and passed on as StableHLO, so the user's function stays in its
process. With a plan, ``plan.jit`` is differentiated: the loss comes from the planned program, the
derivatives from the function, traced by JAX with the plan's argument shardings.

Start reading at ``prepare``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from toast_lab.apply.jit import jit
from toast_lab.errors import ToastError
from toast_lab.frontends import loading
from toast_lab.frontends.traced import in_child
from toast_lab.ir.model import Function, Model, Recipe
from toast_lab.ir.program import Program
from toast_lab.runtime.executable import ShardedProgram, whole_job
from toast_lab.sharding.plan import ShardingPlan

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh

RATE = 0.01  #: learning rate of the step: new = old - RATE * gradient


class Gradients(NamedTuple):
    """Programs whose results are the loss, the gradients, and the arguments after a step.

    If there are none, ``why_not`` is the reason.
    """

    planned: tuple[ShardedProgram | None, ...]  #: for each plan
    notes: tuple[str, ...]  #: for each plan why it has no program, "" if it has one
    names: tuple[str, ...] = ()  #: of the results
    shapes: tuple[tuple[int, ...], ...] = ()  #: of the results
    loss: str = ""  #: the value that is differentiated, in words
    reference: ShardedProgram | None = None  #: without a plan
    why_not: str = ""  #: why there are no programs at all


def none(why: str, n_plans: int) -> Gradients:
    """``Gradients`` without any programs, with the reason."""
    return Gradients((None,) * n_plans, ("",) * n_plans, why_not=why)


def prepare(
    model: Model, plans: Sequence[ShardingPlan], *, time_limit_s: float = 300.0
) -> Gradients:
    """Trace the gradient programs of ``model``; failures are reported, never raised."""
    reason = _includes_update(model.program)
    if reason or model.function is None:
        return none(
            reason or f"{model.name} has no function to differentiate: {model.source}",
            len(plans),
        )
    if isinstance(model.function, Function):
        return _trace(model.function, model.program, plans)
    try:
        traced: Gradients = in_child(
            "toast_lab.compare.gradients:_trace_recipe",
            model.function,
            model.program,
            plans,
            time_limit_s=time_limit_s,
            activity=f"tracing the gradient of {model.name}",
        )
        return traced
    except Exception as error:  # for instance while pickling a plan with user pytrees
        return none(f"tracing the gradient failed: {_short(error)}", len(plans))


def _trace_recipe(recipe: Recipe, program: Program, plans: Sequence[ShardingPlan]) -> Gradients:
    return _trace(loading.function_of(recipe), program, plans)


def _includes_update(program: Program) -> str:
    """A sentence if outputs already are gradients or updated arguments; else empty.

    They are if each array output has the shape and dtype of an argument of its own, and there is
    also a scalar floating-point output or a donated argument.
    """
    unmatched = [_kind(program, argument) for argument in range(program.n_arguments)]
    array_kinds = [
        _kind(program, int(value)) for value in program.outputs if program.dims(int(value))
    ]
    scalars = [
        value
        for value in program.outputs
        if not program.dims(int(value)) and _is_float(program.value_dtype[int(value)])
    ]
    for kind in array_kinds:
        if kind not in unmatched:
            return ""
        unmatched.remove(kind)
    if array_kinds and (scalars or program.donated[: program.n_arguments].any()):
        return (
            "the outputs include the update (or the gradients): each is like an argument, and was "
            "compared as such"
        )
    return ""


def _kind(program: Program, value: int) -> tuple[Any, ...]:
    return (*program.dims(value), program.value_dtype[value])


def _is_float(element: str) -> bool:
    return element.startswith(("f", "bf"))


def _trace(function: Function, program: Program, plans: Sequence[ShardingPlan]) -> Gradients:
    import jax

    if function.changes:
        return none("the function changes modules among its arguments", len(plans))
    if program.shard_maps:
        return none("a shard_map cannot run on one device, as the reference would", len(plans))
    leaves, tree = jax.tree_util.tree_flatten(function.given)
    if any(
        jax.numpy.issubdtype(getattr(leaf, "dtype", float), jax.dtypes.extended) for leaf in leaves
    ):
        return none("there are typed random keys among the arguments", len(plans))
    if program.host:
        return none("there are arguments or results in host memory", len(plans))
    floats = [
        argument
        for argument in range(program.n_arguments)
        if _is_float(program.value_dtype[argument])
    ]
    if not floats or len(leaves) != program.n_arguments:
        return none("no argument is a floating-point array", len(plans))
    try:
        structs = jax.tree_util.tree_leaves(jax.eval_shape(function.call, *function.given))
        loss, loss_name = _loss(structs)
    except Exception as error:
        return none(f"tracing the gradient failed: {_short(error)}", len(plans))
    if loss is None:
        return none("no result is a floating-point array", len(plans))
    paths = [program.value_name[argument] for argument in floats]
    names = (
        "loss",
        *(f"gradient of {path}" for path in paths),
        *(f"{path} after a step" for path in paths),
    )
    float_shapes = tuple(map(program.dims, floats))
    shapes = ((), *float_shapes, *float_shapes)
    step = _Step(tree, leaves, floats, loss)
    try:
        reference = whole_job(program, step.text(function.call), shapes)
    except Exception as error:
        return none(f"the function has no gradient: {_short(error)}", len(plans))
    planned: list[ShardedProgram | None] = []
    notes: list[str] = []
    for plan in plans:
        try:
            planned.append(step.job(function.call, plan))
            notes.append("")
        except Exception as error:
            planned.append(None)
            notes.append(f"no gradient through plan.jit: {_short(error)}")
    return Gradients(
        names=names,
        shapes=shapes,
        loss=loss_name,
        reference=reference,
        planned=tuple(planned),
        notes=tuple(notes),
    )


class _Step:
    """Traces functions that give ``(loss, gradients, arguments after a step)``.

    Each wraps a ``call`` with the arguments of the user's function, and takes their leaves.
    """

    def __init__(
        self, tree: Any, leaves: Sequence[Any], floats: Sequence[int], loss: Callable[..., Any]
    ) -> None:
        self.tree, self.leaves, self.floats, self.loss = tree, leaves, floats, loss

    def _function(self, call: Callable[..., Any]) -> Callable[..., list[Any]]:
        import jax

        def step(*leaves: Any) -> list[Any]:
            def loss_of(arrays: list[Any]) -> Any:
                arguments = list(leaves)
                for i, array in zip(self.floats, arrays, strict=True):
                    arguments[i] = array
                result = call(*jax.tree_util.tree_unflatten(self.tree, arguments))
                return self.loss(jax.tree_util.tree_leaves(result))

            old_arrays = [leaves[i] for i in self.floats]
            loss, gradients = jax.value_and_grad(loss_of)(old_arrays)
            new_arrays = [
                (array - RATE * gradient).astype(array.dtype)
                for array, gradient in zip(old_arrays, gradients, strict=True)
            ]
            return [loss, *gradients, *new_arrays]

        return step

    def text(self, call: Callable[..., Any], **shardings: Any) -> str:
        import jax

        traced = jax.jit(self._function(call), keep_unused=True, **shardings).trace(*self.leaves)
        return str(traced.lower(lowering_platforms=("cpu",)).as_text())

    def job(self, call: Callable[..., Any], plan: ShardingPlan) -> ShardedProgram:
        from jax.sharding import NamedSharding, PartitionSpec

        mesh = _abstract_mesh(plan)
        sharded = jit(plan, call, mesh=mesh)
        specs = plan.value_specs()[: plan.program.n_arguments]
        paths = plan.program.value_name[: len(specs)]
        inputs = [sharded.argument_shardings[path] for path in paths]
        differentiated = [inputs[argument] for argument in self.floats]
        outputs = [NamedSharding(mesh, PartitionSpec()), *differentiated, *differentiated]
        stablehlo = self.text(sharded, in_shardings=tuple(inputs), out_shardings=outputs)
        float_specs = [specs[argument] for argument in self.floats]
        return ShardedProgram(stablehlo, plan.mesh, tuple(specs), ((), *float_specs, *float_specs))


def _abstract_mesh(plan: ShardingPlan) -> AbstractMesh:
    """The plan's mesh without devices, since this process may not have them."""
    from jax.sharding import AbstractMesh, AxisType

    # Newer versions of JAX make axes explicit by default, but plans do not shard by types.
    return AbstractMesh(
        plan.mesh.sizes, plan.mesh.axes, axis_types=(AxisType.Auto,) * len(plan.mesh.axes)
    )


def _loss(structs: Sequence[Any]) -> tuple[Callable[[Sequence[Any]], Any] | None, str]:
    """The value to differentiate, as a function of the results' leaves and in words."""
    import jax.numpy as jnp

    floats = [
        index for index, struct in enumerate(structs) if jnp.issubdtype(struct.dtype, jnp.floating)
    ]
    scalars = [index for index in floats if _size(structs[index]) == 1]
    if len(scalars) == 1:
        return lambda results: results[scalars[0]].reshape(()), "the function's scalar result"
    if not floats:
        return None, ""

    def mean_of_squares(results: Sequence[Any]) -> Any:
        total = sum(jnp.sum(jnp.square(results[index].astype(jnp.float32))) for index in floats)
        return total / max(sum(_size(structs[index]) for index in floats), 1)

    return mean_of_squares, "the mean of squares of the floating-point results"


def _size(struct: Any) -> int:
    return math.prod(struct.shape)


def _short(error: Exception) -> str:
    text = error.message if isinstance(error, ToastError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0][:300] if text else type(error).__name__
