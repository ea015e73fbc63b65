"""Functions of ``jax.experimental.custom_partitioning``: one op each, with the rule they declare.

JAX keeps such a function a call where it lowers for several devices, and inlines it for one, as we
lower. In our own traces it is one op that carries its ``sharding_rule``. Where a plan cuts it, each
device runs what its ``partition`` function gives for these shardings, in a ``shard_map``; where
none does, the function itself. A function without a ``sharding_rule`` is inlined, and a note says
so.

A rule may promise more than the partition function does, which then gathers. It is asked for each
factor of the rule, and a factor that it does not keep cut stays whole.

Start reading at ``lower_as_one``. It reads private parts of JAX; without them functions are
inlined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from toast_lab.errors import FrontendError
from toast_lab.frontends import user_code, wrapped_kernels
from toast_lab.ir.kernel_rules import PARTITIONED
from toast_lab.ir.platforms import Parts
from toast_lab.lowering.specs import spec_entries

PRIMITIVE = "custom_partitioning"
_AXIS = "part"
_Specs = tuple[tuple[tuple[str, ...], ...], ...]


@dataclasses.dataclass(eq=False)
class _Partitioned:
    """A function by the name under which it is found again."""

    name: str
    params: Mapping[str, Any]  #: of the equation that calls it
    calls: dict[Any, Any] = dataclasses.field(default_factory=dict)  #: its jaxpr by shapes
    whole: list[str] = dataclasses.field(default_factory=list)  #: why factors stay whole

    def parts(self, mesh: Any, shapes: Any, results: Any, specs: _Specs) -> Any:
        """(function of parts, specs of operands, specs of results), as ``partition`` gives them."""
        import jax

        def placed(structs: Sequence[Any], some_specs: _Specs) -> list[Any]:
            return [
                jax.ShapeDtypeStruct(
                    struct.shape,
                    struct.dtype,
                    sharding=jax.sharding.NamedSharding(
                        mesh, jax.sharding.PartitionSpec(*spec_entries(spec))
                    ),
                )
                for struct, spec in zip(structs, some_specs, strict=True)
            ]

        operands, count = self.params["in_tree"], len(shapes)
        _, fn, result_shardings, operand_shardings = self.params["partition"](
            *self.params["static_args"],
            mesh,
            operands.unflatten(placed(shapes, specs[:count])),
            self.params["out_tree"].unflatten(placed(results, specs[count:])),
        )

        def flat(*arrays: Any) -> list[Any]:
            return list(jax.tree_util.tree_leaves(fn(*operands.unflatten(arrays))))

        sides = [
            [sharding.spec for sharding in jax.tree_util.tree_leaves(side)]
            for side in (operand_shardings, result_shardings)
        ]
        return flat, *sides


_FUNCTIONS: dict[str, _Partitioned] = {}


def has_rule(eqn: Any) -> bool:
    """Is this the call of a function with a ``sharding_rule``?"""
    return eqn.primitive.name == PRIMITIVE and eqn.params.get("sharding_rule") is not None


def is_known(name: str) -> bool:
    """Was a function of this name lowered in this process?"""
    return name in _FUNCTIONS


def rules(equations: Iterable[Any]) -> list[Any]:
    """JAX's lowering rule for these functions, if there are any with a ``sharding_rule``."""
    primitives = {eqn.primitive for eqn in equations if has_rule(eqn)}
    return [(primitive, lower_as_one) for primitive in primitives]


def notes(equations: Iterable[tuple[Any, str]]) -> list[str]:
    """What is not as the user may expect, of (equation, its line)."""
    texts = []
    for eqn, where in equations:
        if eqn.primitive.name != PRIMITIVE:
            continue
        if not has_rule(eqn):
            texts.append(
                f"custom_partitioning of {_base_name(eqn.params)}{where} has no sharding_rule: "
                "planned as the ops inside"
            )
        else:
            texts += [f"custom_partitioning of {why}{where}" for why in _entry(eqn.params).whole]
    return list(dict.fromkeys(texts))


def lower_as_one(context: Any, *operands: Any, **params: Any) -> Any:
    """JAX's lowering rule that leaves a function with a ``sharding_rule`` one op."""
    from jax.extend.core import jaxpr_as_fun
    from jax.interpreters import mlir

    call, axes = params["call"], context.module_context.axis_context
    if params["sharding_rule"] is None or getattr(axes, "manual_axes", None):
        return mlir.lower_fun(jaxpr_as_fun(call), multiple_results=True)(context, *operands)
    entry = _entry(params)
    entry.calls[_key(call.in_avals)] = call
    types = map(wrapped_kernels.tensor_types, (call.in_avals, call.out_avals))
    return wrapped_kernels.one_op(
        context,
        operands,
        entry.name,
        target=PARTITIONED,
        configuration=_cost_estimate(call),
        attributes={"sdy.sharding_rule": _narrowed(_rule(params, *types), entry, call)},
    )


def _base_name(params: Mapping[str, Any]) -> str:
    information = getattr(params["call"].jaxpr.debug_info, "func_src_info", "") or "function"
    return str(information.split(" ")[0])


def _entry(params: Mapping[str, Any]) -> _Partitioned:
    """The function of an equation. Names are equal in every process that lowers a program."""
    base = _base_name(params)
    keys = ("partition", "static_args", "in_tree", "out_tree")
    number = 1
    while (name := base if number == 1 else f"{base}_{number}") in _FUNCTIONS:
        if all(_FUNCTIONS[name].params[key] == params[key] for key in keys):
            return _FUNCTIONS[name]
        number += 1
    return _FUNCTIONS.setdefault(name, _Partitioned(name, params))


def _key(shapes: Iterable[Any]) -> tuple[Any, ...]:
    return tuple((tuple(shape.shape), str(shape.dtype)) for shape in shapes)


def _rule(params: Mapping[str, Any], operands: list[Any], results: list[Any]) -> Any:
    """The ``sharding_rule`` as Shardy's attribute. Raises what JAX raises if it does not fit."""
    from jax._src import mesh as meshes
    from jax._src.custom_partitioning_sharding_rule import (
        sdy_sharding_rule_to_mlir,
        str_to_sdy_sharding_rule,
    )

    rule, options = params["sharding_rule"], {}
    if callable(rule):
        mesh = meshes.thread_resources.env.physical_mesh
        rule = rule(*params["static_args"], mesh, operands, results)
        if isinstance(rule, tuple | list):
            rule, options = rule
    if isinstance(rule, str):
        rule = str_to_sdy_sharding_rule(rule, **options)
    return sdy_sharding_rule_to_mlir(rule, operands, results)


def _narrowed(attribute: Any, entry: _Partitioned, call: Any) -> Any:
    """The rule with all factors whole that the partition function does not keep cut."""
    from jaxlib.mlir.dialects import sdy

    mappings = [*attribute.operand_mappings, *attribute.result_mappings]
    tensors = [
        [
            list(sdy.DimMappingAttr(dim).factor_indices)
            for dim in sdy.TensorMappingAttr(m).dim_mappings
        ]
        for m in mappings
    ]
    whole = set(attribute.need_replication_factors)
    for factor, size in enumerate(attribute.factor_sizes):
        if size > 1 and factor not in {*whole, *attribute.permutation_factors}:
            why = _why_whole(entry, call, factor, tensors=tensors, size=size)
            if why:
                whole.add(factor)
                sizes = (
                    f"{entry.name}: a dim of {size} stays whole although its rule lets it be cut"
                )
                entry.whole += [text for text in [f"{sizes}, {why}"] if text not in entry.whole]
    return sdy.OpShardingRuleAttr.get(
        list(attribute.factor_sizes),
        list(attribute.operand_mappings),
        list(attribute.result_mappings),
        reduction_factors=[factor for factor in attribute.reduction_factors if factor not in whole],
        need_replication_factors=sorted(whole),
        permutation_factors=list(attribute.permutation_factors),
        is_custom=True,
    )


def _why_whole(entry: _Partitioned, call: Any, factor: int, *, tensors: Any, size: int) -> str:
    """Why the partition function does not keep a factor cut; empty if it does."""
    import jax

    specs = tuple(
        tuple((_AXIS,) if factors[:1] == [factor] else () for factors in dims) for dims in tensors
    )
    if not any(map(any, specs)):
        return ""
    mesh = jax.sharding.AbstractMesh((2 if size % 2 == 0 else size,), (_AXIS,))
    try:
        _, *sides = entry.parts(mesh, call.in_avals, call.out_avals, specs)
        given = [_axes(spec, len(dims)) for spec, dims in zip(chain(*sides), tensors, strict=True)]
    except Exception as error:
        return f"its partition function raises {user_code.short(error)}"
    return "" if given == list(specs) else "its partition function does not keep it cut"


def _axes(spec: Any, rank: int) -> tuple[tuple[str, ...], ...]:
    entries = [*spec, *[None] * (rank - len(spec))]
    return tuple(
        () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        for entry in entries
    )


def _cost_estimate(call: Any) -> str:
    """FLOPs of the ops inside, as a ``pallas_call`` carries its own; empty if JAX counts none."""
    import jax
    from jax.extend.core import jaxpr_as_fun

    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in call.in_avals]
    try:
        flops = (jax.jit(jaxpr_as_fun(call)).lower(*shapes).cost_analysis() or {}).get("flops", 0)
    except Exception:
        return ""
    return f'{{"cost_estimate": {{"flops": {int(flops)}}}}}' if flops > 0 else ""


def body_text(
    name: str,
    shapes: Sequence[tuple[tuple[int, ...], Any]],
    parts: Parts | None,
    lower: Callable[[Any], str],
) -> str:
    """StableHLO of a function for whole operands of (shape, dtype).

    With ``parts`` it runs in a manual computation on parts. ``lower`` lowers a trace.

    Raises:
        FrontendError: its partition function fails, or gives what cannot be lowered.
    """
    import jax
    from jax.extend.core import jaxpr_as_fun

    entry = _FUNCTIONS[name]
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    call = entry.calls[_key(structs)]
    try:
        if parts is None:
            return lower(jax.jit(jaxpr_as_fun(call), keep_unused=True).trace(*structs))
        axes, sizes = zip(*parts.mesh, strict=True)
        mesh = jax.sharding.AbstractMesh(sizes, axes)
        specs = (*parts.operands, *parts.results)
        fn, operands, results = entry.parts(mesh, structs, call.out_avals, specs)
        mapped = jax.shard_map(
            fn, mesh=mesh, in_specs=tuple(operands), out_specs=results, check_vma=False
        )
        return lower(jax.jit(mapped, keep_unused=True).trace(*structs))
    except Exception as error:
        raise FrontendError(
            f"the partition function of {name} (custom_partitioning) fails for "
            f"{parts}: {user_code.short(error)}{user_code.line(error)}"
        ) from error
