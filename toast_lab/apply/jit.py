"""``plan.jit(fn)``: the user's function, sharded as the plan says.

    step = plan.jit(train_step)         # or with donate_argnums=(0,)
    params, loss = step(params, batch)  # arrays, pytrees and modules as ``train_step`` takes them

The compiled program is that of ``tl.annotate``, with the constraints that the plan needs: all
shardings of arguments, results and values between them are the plan's. On the first call, the
function is traced once and its program compared with the plan's; a function with another program is
refused.

Under ``jax.grad``, ``jax.vjp`` and ``jax.jvp`` the values come from the planned program and the
derivatives from ``fn`` itself, traced by JAX with the plan's argument shardings and no constraint
inside: a plan says nothing about a derivative that was not part of its program. To train, plan the
whole training step.

Start reading at ``jit``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from toast_lab.apply import program_call
from toast_lab.errors import InvalidPlan
from toast_lab.frontends import arguments, calls
from toast_lab.frontends.traced import build
from toast_lab.frontends.traced_keys import data_struct, is_key
from toast_lab.frontends.tracing import trace
from toast_lab.frontends.user_code import function_name
from toast_lab.ir.model import Model
from toast_lab.ir.platforms import PLATFORMS
from toast_lab.ir.program import Program
from toast_lab.lowering.annotate import annotate
from toast_lab.lowering.needed_constraints import needed_constraints
from toast_lab.lowering.specs import partition_specs, to_partition_spec
from toast_lab.sharding.carried import carry
from toast_lab.sharding.plan import ShardingPlan


class _Traced(NamedTuple):
    """``fn`` for arguments of one structure."""

    run: Callable[..., Any]  #: jitted function from leaves to leaves
    outcome: arguments.NonArrayResult  #: the results of ``fn`` that are not arrays
    shardings: Sequence[Any]  #: of the argument leaves
    donated: Sequence[bool]  #: whether the leaves' buffers may be reused


class Sharded:
    """A function that runs a plan, called like the function that it was made from.

    ``mesh`` is the ``jax.sharding.Mesh``; ``argument_shardings`` and ``result_shardings`` have the
    NamedShardings by path. After the first call, ``notes`` say where the mesh's devices run other
    ops than the plan's program has, which JAX lowered for another platform.
    """

    def __init__(
        self, fn: Callable[..., Any], plan: ShardingPlan, mesh: Any, donate_argnums: Sequence[int]
    ) -> None:
        self.fn, self.plan, self.mesh, self.donate_argnums = fn, plan, mesh, tuple(donate_argnums)
        self.argument_shardings = _named(plan.argument_specs(), mesh)
        self.result_shardings = _named(plan.result_specs(), mesh)
        self.notes: tuple[str, ...] = ()
        self._traced: dict[Any, _Traced] = {}
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The results of ``fn``, computed on the plan's devices."""
        taken, traced = self._prepare(args, keywords)
        leaves = calls.place_arrays(
            list(map(_to_array, taken.leaves)), traced.shardings, traced.donated
        )
        return taken.deliver(traced.outcome, traced.run(*leaves))

    def lower(self, *args: Any, **keywords: Any) -> jax.stages.Lowered:
        """Like ``jax.jit(fn).lower``, for the function of the arguments' leaves."""
        taken, traced = self._prepare(args, keywords)
        lowered: Any = traced.run.lower(*map(_to_array, taken.leaves))  # type: ignore[attr-defined]
        return lowered

    def _prepare(
        self, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[arguments.Arguments, _Traced]:
        taken = arguments.separate_arguments(self.fn, args, self.donate_argnums, keywords)
        key = (taken.structure, tuple(map(calls.type_of, taken.leaves)))
        if key not in self._traced:
            self._traced[key] = self._trace(args, keywords, taken)
        return taken, self._traced[key]

    def _trace(
        self, args: tuple[Any, ...], keywords: dict[str, Any], taken: arguments.Arguments
    ) -> _Traced:
        name = function_name(self.fn)
        traced = build(
            trace(self.fn, args, self.donate_argnums, keywords), name, {}, f"function {name}"
        )
        own = traced.of_program(self.plan.program)
        if not self.plan.is_of(own.program):
            self.plan.check_is_of(own.program, why=different(self.plan, own))
        platform = _platform(self.mesh, own)
        model, plan, self.notes = carry(own, self.plan, platform)
        structs = jax.tree_util.tree_leaves(jax.eval_shape(taken.call, *taken.given))
        outcome = taken.outcome()
        donated = [i in taken.donated for i, paths in enumerate(taken.paths) for _ in paths]
        in_shardings = tuple(
            self.argument_shardings[path] for paths in taken.paths for path in paths
        )
        specs = plan.value_specs()
        needed = needed_constraints(model, plan)
        text = annotate(model, plan, constrained=needed, platform=platform)
        callee = program_call.Callee(model.name, text, plan.mesh, list(map(data_struct, structs)))
        arguments_tree = jax.tree_util.tree_structure(taken.given)
        call = taken.call

        def plain(*leaves: Any) -> list[Any]:
            constrained = map(jax.lax.with_sharding_constraint, leaves, in_shardings)
            return jax.tree_util.tree_leaves(
                call(*jax.tree_util.tree_unflatten(arguments_tree, constrained))
            )

        @jax.custom_jvp
        def planned(*leaves: Any) -> list[Any]:
            results = program_call.primitive().bind(*map(_key_data, leaves), callee=callee)
            return list(map(_key, results, structs))

        @planned.defjvp
        def _jvp(primals: Any, tangents: Any) -> Any:
            return planned(*primals), jax.jvp(plain, primals, tangents)[1]

        run = jax.jit(
            planned,
            in_shardings=in_shardings,
            out_shardings=[_sharding(specs[value], self.mesh) for value in plan.program.outputs],
            donate_argnums=np.flatnonzero(donated).tolist(),
            keep_unused=True,
        )
        return _Traced(run, outcome, in_shardings, donated)


def jit(
    plan: ShardingPlan,
    fn: Callable[..., Any],
    *,
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None = None,
    devices: Sequence[Any] | None = None,
    donate_argnums: int | Sequence[int] = (),
) -> Sharded:
    """``fn`` as a function that runs ``plan``; the module docstring has an example.

    Args:
        plan: a plan of the program that ``fn`` traces to with the arguments of later calls.
        fn: the user's function, jitted or not.
        mesh: a ``jax.sharding.Mesh`` with the axes and sizes of the plan's; by default made of
            ``devices``.
        devices: as many as the mesh has; by default the first of ``jax.devices()``.
        donate_argnums: positions of arguments whose buffers the results may reuse, as for
            ``jax.jit``.

    Raises:
        InvalidPlan: the mesh or devices do not fit the plan; on the first call also if ``fn`` is
            another program.
    """
    donate = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    return Sharded(fn, plan, jax_mesh(plan, mesh, devices), donate)


def jax_mesh(plan: ShardingPlan, mesh: Any = None, devices: Sequence[Any] | None = None) -> Any:
    """A ``jax.sharding.Mesh`` of the plan's axes.

    Raises:
        InvalidPlan: there are too few devices, or the mesh given has other axes.
    """
    if mesh is not None:
        size_of = dict(zip(plan.mesh.axes, plan.mesh.sizes, strict=True))
        if devices is not None:
            raise InvalidPlan("give a mesh or devices, not both")
        if dict(mesh.shape) != size_of or tuple(mesh.axis_names) != plan.mesh.axes:
            raise InvalidPlan(
                f"this plan is for the mesh {size_of}, but the one given is {dict(mesh.shape)}"
            )
        return mesh
    available = list(jax.devices() if devices is None else devices)
    device_count = plan.mesh.n_devices
    if len(available) < device_count or (devices is not None and len(available) != device_count):
        raise InvalidPlan(
            f"this plan is for {device_count} devices ({plan.mesh}), but there are {len(available)}"
            + (f" ({available[0].platform})" if available else "")
            + ". For virtual devices start Python with "
            f'XLA_FLAGS="--xla_force_host_platform_device_count={device_count}".'
        )
    return jax.sharding.Mesh(
        np.asarray(available[:device_count]).reshape(plan.mesh.sizes), plan.mesh.axes
    )


def named_shardings(plan: ShardingPlan, mesh: Any = None) -> tuple[Any, Any]:
    """Pytrees of NamedShardings of arguments and results, for ``jax.device_put`` and ``jax.jit``.

    Raises:
        InvalidPlan: there are too few devices, or the mesh given has other axes.
    """
    mesh = jax_mesh(plan, mesh)
    shardings: tuple[Any, Any] = jax.tree_util.tree_map(
        lambda spec: jax.sharding.NamedSharding(mesh, spec),
        partition_specs(plan),
        is_leaf=lambda spec: isinstance(spec, jax.sharding.PartitionSpec),
    )
    return shardings


def _platform(mesh: Any, model: Model) -> str:
    """The platform of a mesh's devices; one of the model's if the mesh is abstract."""
    if not isinstance(mesh, jax.sharding.Mesh):
        return min(model.platforms)
    platform = str(mesh.devices.flat[0].platform)
    return platform if platform in PLATFORMS else "gpu"


def different(plan: ShardingPlan, model: Model) -> str:
    """Says how the program of a function differs from the plan's.

    Only arguments, donations and numbers of ops are compared.
    """
    ours, theirs = plan.program, model.program
    planned, traced = _shapes(ours), _shapes(theirs)
    differences = [
        f"{path}: {planned.get(path, 'none')} in the plan, {traced.get(path, 'none')} here"
        for path in dict.fromkeys([*planned, *traced])
        if planned.get(path) != traced.get(path)
    ]
    if differences:
        more = f" and {len(differences) - 10} more" if len(differences) > 10 else ""
        return f"Arguments differ: {'; '.join(differences[:10])}{more}."
    lost, added = (
        sorted(itertools.compress(planned, program.donated & ~other.donated))
        for program, other in ((ours, theirs), (theirs, ours))
    )
    if lost or added:
        changes = [
            f"{where} {', '.join(paths[:10])}{' ...' if len(paths) > 10 else ''}"
            for where, paths in (("only in the plan", lost), ("only here", added))
            if paths
        ]
        return f"Donated {'; '.join(changes)}: give the same donate_argnums."
    counts = (
        f"the plan's program has {ours.n_ops - ours.n_arguments} ops, "
        f"this one {theirs.n_ops - theirs.n_arguments}"
    )
    return f"Their arguments agree; {counts}. Was the plan made with the same code and versions?"


def _shapes(program: Program) -> dict[str, list[int]]:
    return {
        program.value_name[argument]: list(program.dims(argument))
        for argument in range(program.n_arguments)
    }


def _named(specs: dict[str, Any], mesh: Any) -> dict[str, Any]:
    return {path: _sharding(spec, mesh) for path, spec in specs.items()}


def _sharding(spec: Any, mesh: Any) -> Any:
    return jax.sharding.NamedSharding(mesh, to_partition_spec(spec))


def _to_array(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "dtype") else jax.numpy.asarray(leaf)


def _key_data(array: Any) -> Any:
    return jax.random.key_data(array) if is_key(array) else array


def _key(array: Any, struct: Any) -> Any:
    if not is_key(struct):
        return array
    return jax.random.wrap_key_data(array, impl=_implementation(struct.dtype))


def _implementation(dtype: Any) -> str:
    """The implementation of random keys with this dtype, among those that JAX comes with."""
    kinds = ("threefry2x32", "rbg", "unsafe_rbg")
    for kind in kinds:
        if jax.eval_shape(lambda kind=kind: jax.random.key(0, impl=kind)).dtype == dtype:
            return kind
    raise InvalidPlan(
        f"results of type {dtype} are random keys of an unknown kind; known: {', '.join(kinds)}"
    )
