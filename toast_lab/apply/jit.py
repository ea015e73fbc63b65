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
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from toast_lab.apply import program_call
from toast_lab.errors import InvalidPlan
from toast_lab.frontends import arguments, calls
from toast_lab.frontends.traced import build
from toast_lab.frontends.traced_keys import data_struct, is_key
from toast_lab.frontends.tracing import trace_separated
from toast_lab.frontends.user_code import function_name
from toast_lab.ir.host_memory import PINNED_HOST
from toast_lab.ir.model import Function, Model
from toast_lab.ir.platform_names import PLATFORMS
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
    given: Sequence[Any]  #: types of the argument leaves that were planned
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
        program = plan.program
        arguments_on_host = {program.value_name[i] for i in program.host.arguments}
        results_on_host = {program.output_paths[i] for i in program.host.results}
        self.argument_shardings = _named(plan.argument_specs(), mesh, arguments_on_host)
        self.result_shardings = _named(plan.result_specs(), mesh, results_on_host)
        self._explicit = jax.sharding.AxisType.Explicit in mesh.axis_types
        self.notes: tuple[str, ...] = ()
        self._traced: dict[Any, _Traced] = {}
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The results of ``fn``, computed on the plan's devices."""
        taken, traced = self._prepare(args, keywords)
        arrays = list(map(_to_array, taken.leaves, traced.given))
        if self._explicit:  # the types of traced arrays have shardings too
            arrays = [
                jax.sharding.reshard(array, sharding)
                if isinstance(array, jax.core.Tracer)
                else array
                for array, sharding in zip(arrays, traced.shardings, strict=True)
            ]
        leaves = calls.place_arrays(arrays, traced.shardings, traced.donated)
        return taken.deliver(traced.outcome, traced.run(*leaves))

    def lower(self, *args: Any, **keywords: Any) -> jax.stages.Lowered:
        """Like ``jax.jit(fn).lower``, for the function of the arguments' leaves."""
        taken, traced = self._prepare(args, keywords)
        arrays = map(_to_array, taken.leaves, traced.given)
        lowered: Any = traced.run.lower(*arrays)  # type: ignore[attr-defined]
        return lowered

    def _prepare(
        self, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[arguments.Arguments, _Traced]:
        taken = arguments.separate_arguments(self.fn, args, self.donate_argnums, keywords)
        key = (taken.structure, tuple(map(calls.type_of, taken.leaves)))
        if key not in self._traced:
            self._traced[key] = self._trace(*self._as_planned(taken))
        return taken, self._traced[key]

    def _as_planned(self, taken: arguments.Arguments) -> tuple[arguments.Arguments, Model]:
        """The arguments with the types that were planned, and their program, which is the plan's.

        Only whether a type is weak may differ from that of a call: arrays from ``jnp.full`` and
        Python numbers have weak types, shapes that were planned usually have not.
        """
        name, models = function_name(self.fn), []
        for typed in (taken, taken.with_strong_types(), self._with_types_of_model(taken)):
            if typed is None:
                continue
            traced = build(trace_separated(typed), name, {}, f"function {name}")
            model = traced.of_program(self.plan.program)
            if self.plan.is_of(model.program):
                return typed, model
            models.append(model)
        self.plan.check_is_of(models[0].program, why=different(self.plan, models[0]))
        raise AssertionError("a program that is not the plan's was just refused")

    def _with_types_of_model(self, taken: arguments.Arguments) -> arguments.Arguments | None:
        """The arguments with the types of the plan's own model, where its function is known."""
        analysis = self.plan.analysis
        function = None if analysis is None else analysis.model.function
        given = getattr(function, "given", None)
        return None if given is None else taken.with_types_of(given)

    def _trace(self, taken: arguments.Arguments, own: Model) -> _Traced:
        platform = _platform(self.mesh, own)
        model, plan, self.notes = carry(own, self.plan, platform)
        function = own.function
        assert isinstance(function, Function)
        structs = function.results
        outcome = taken.outcome()
        donated = taken.donated_leaves()
        in_shardings = tuple(
            self.argument_shardings[path] for paths in taken.paths for path in paths
        )
        specs = plan.value_specs()
        needed = needed_constraints(model, plan)
        text = annotate(model, plan, constrained=needed, platform=platform)
        callee = program_call.Callee(model.name, text, plan.mesh, list(map(data_struct, structs)))
        given, arguments_tree = jax.tree_util.tree_flatten(taken.given)
        call, explicit = taken.call, self._explicit
        out_shardings = [
            _sharding(specs[value], self.mesh, i in plan.program.host.results)
            for i, value in enumerate(plan.program.outputs)
        ]

        def plain(*leaves: Any) -> list[Any]:
            results = call(*jax.tree_util.tree_unflatten(arguments_tree, constrained(leaves)))
            typed = [
                result.astype(struct.dtype)
                for result, struct in zip(jax.tree_util.tree_leaves(results), structs, strict=True)
            ]
            return list(map(jax.sharding.reshard, typed, out_shardings)) if explicit else typed

        def constrained(leaves: Sequence[Any]) -> Sequence[Any]:
            if explicit:
                return leaves  # their types have the shardings
            return list(map(jax.lax.with_sharding_constraint, leaves, in_shardings))

        @jax.custom_jvp
        def planned(*leaves: Any) -> list[Any]:
            data = (jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in leaves)
            results = program_call.primitive().bind(*data, callee=callee)
            return [
                jax.random.wrap_key_data(result, impl=_implementation(struct.dtype))
                if is_key(struct)
                else result
                for result, struct in zip(results, structs, strict=True)
            ]

        @planned.defjvp
        def _jvp(primals: Any, tangents: Any) -> Any:
            return planned(*primals), jax.jvp(plain, primals, tangents)[1]

        run = jax.jit(
            planned,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            donate_argnums=np.flatnonzero(donated).tolist(),
            keep_unused=True,
        )
        return _Traced(run, outcome, given=given, shardings=in_shardings, donated=donated)


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
        mesh: a ``jax.sharding.Mesh`` with the axes and sizes of the plan's; by default the one
            that ``jax.set_mesh`` has set, if it has them, else made of ``devices``.
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

    Without a mesh and devices it is the one that ``jax.set_mesh`` has set, if that has the plan's
    axes and sizes, else one of the first devices.

    Raises:
        InvalidPlan: there are too few devices, the mesh given has other axes, or so has the mesh
            that is set, and its axes are explicit.
    """
    size_of = dict(zip(plan.mesh.axes, plan.mesh.sizes, strict=True))
    if mesh is None and devices is None:
        mesh = _ambient_mesh(size_of)
    if mesh is not None:
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


def _ambient_mesh(size_of: dict[str, int]) -> Any:
    """The mesh that ``jax.set_mesh`` has set, if it has these axes in this order, else None.

    Results on another mesh could not meet arrays of a script whose axes are explicit.
    """
    try:
        mesh = jax.sharding.get_mesh()
    except ValueError:  # while JAX traces, for instance under jax.grad
        mesh = _jax_private_mesh()
    if mesh.empty:
        return None
    if list(mesh.shape.items()) == list(size_of.items()):
        return mesh
    explicit = jax.sharding.AxisType.Explicit
    if explicit in mesh.axis_types:
        raise InvalidPlan(
            f"this plan is for the mesh {size_of}, but jax.set_mesh has set one with explicit axes "
            f"{dict(mesh.shape)}: its arrays could not meet results of the plan. Plan for the mesh "
            "that is set, set the plan's, or give mesh= or devices= to run the plan elsewhere."
        )
    return None


def _jax_private_mesh() -> Any:
    """The mesh that is set, also while JAX traces; without private functions only its axes."""
    try:
        from jax._src.mesh import get_concrete_mesh

        return get_concrete_mesh()
    except ImportError:
        return jax.sharding.get_abstract_mesh()


def named_shardings(plan: ShardingPlan, mesh: Any = None) -> tuple[Any, Any]:
    """Pytrees of NamedShardings of arguments and results, for ``jax.device_put`` and ``jax.jit``.

    Raises:
        InvalidPlan: there are too few devices, or the mesh given has other axes.
    """
    mesh = jax_mesh(plan, mesh)
    pytrees = []
    for specs, on_host in zip(
        partition_specs(plan), (plan.program.host.arguments, plan.program.host.results), strict=True
    ):
        leaves, tree = cast(Any, jax.tree_util).tree_flatten(
            specs, is_leaf=lambda spec: isinstance(spec, jax.sharding.PartitionSpec)
        )
        memories = [PINNED_HOST if i in on_host else None for i in range(len(leaves))]
        pytrees.append(
            tree.unflatten(
                jax.sharding.NamedSharding(mesh, spec, memory_kind=memory)
                for spec, memory in zip(leaves, memories, strict=True)
            )
        )
    return pytrees[0], pytrees[1]


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
    planned, traced = _types(ours), _types(theirs)
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


def _types(program: Program) -> dict[str, str]:
    return {
        program.value_name[argument]: f"{program.value_dtype[argument]}"
        f"{list(program.dims(argument))}"
        + (" in host memory" if argument in program.host.arguments else "")
        for argument in range(program.n_arguments)
    }


def _named(specs: dict[str, Any], mesh: Any, on_host: Container[str]) -> dict[str, Any]:
    return {path: _sharding(spec, mesh, path in on_host) for path, spec in specs.items()}


def _sharding(spec: Any, mesh: Any, on_host: bool) -> Any:
    memory = PINNED_HOST if on_host else None
    return jax.sharding.NamedSharding(mesh, to_partition_spec(spec), memory_kind=memory)


def _to_array(leaf: Any, planned: Any) -> Any:
    """The array of a leaf; its type is weak only if that of ``planned`` is."""
    array = leaf if hasattr(leaf, "dtype") else jax.numpy.asarray(leaf)
    if calls.type_of(array)[-1] and not calls.type_of(planned)[-1]:
        return jax.lax.convert_element_type(array, array.dtype)
    return array


def _implementation(dtype: Any) -> str:
    """The implementation of random keys with this dtype, among those that JAX comes with."""
    kinds = ("threefry2x32", "rbg", "unsafe_rbg")
    for kind in kinds:
        if jax.eval_shape(lambda kind=kind: jax.random.key(0, impl=kind)).dtype == dtype:
            return kind
    raise InvalidPlan(
        f"results of type {dtype} are random keys of an unknown kind; known: {', '.join(kinds)}"
    )
