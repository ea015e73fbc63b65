"""Logical-axis rules: a plan in the form that flax users write.

flax gives every dim of a parameter a logical name and maps names to mesh axes by a list of rules,
the same for all tensors.  A plan may shard two tensors with the same names differently, which no
such list can express; the tensors that a list gets wrong are named.  Rules apply in order, and a
rule whose mesh axes are taken in a tensor is skipped, as in ``flax.linen.logical_to_mesh_axes``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from toast_lab.conflicts.colour_names import last_key
from toast_lab.errors import InvalidProblem
from toast_lab.export.places import source_of
from toast_lab.lowering.specs import partition_text, spec_entries, visible
from toast_lab.sharding.plan import ShardingPlan, Spec, model_of

if TYPE_CHECKING:
    from toast_lab.ir.model import Model

Rules = tuple[tuple[str, Any], ...]


class AxisRules(NamedTuple):
    """Rules for ``flax.linen.logical_axis_rules``, and the tensors that they get wrong."""

    rules: Rules
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            "LOGICAL_AXIS_RULES = (",
            *(f"    ({name!r}, {axes!r})," for name, axes in self.rules),
            ")",
        ]
        return "\n".join([*lines, *(f"# not as planned: {text}" for text in self.wrong)])


class _Tensor(NamedTuple):
    path: str
    names: tuple[str | None, ...]
    spec: Spec
    bytes: int


def axis_rules(
    plan: ShardingPlan,
    names: Mapping[str, Sequence[str | None]] | None = None,
    model: Model | None = None,
) -> AxisRules:
    """Rules that give the plan's argument shardings.

    Args:
        plan: of a model.
        names: logical names of dims by argument path or by its last key; by default those that the
            arguments carry (``flax.linen.with_logical_partitioning``, nnx variables with
            ``sharding_names``), else the model's ``dim_names``.
        model: see ``minimal_constraints``.

    Raises:
        InvalidProblem: no argument has names, or some have another number of names than dims.
    """
    program, specs = plan.program, plan.value_specs()
    if names is None:
        model = model_of(plan, model)
        source = source_of(program, model)
        names = {**model.dim_names, **(source.names if source else {})}
    tensors, offenders = [], []
    for argument in range(program.n_arguments):
        path = program.value_name[argument]
        own = names.get(path, names.get(last_key(path)))
        if own is None:
            continue
        spec = visible(program, argument, specs[argument])
        if len(own) != len(spec):
            offenders.append(f"{path}: {len(own)} names for {len(spec)} dims")
            continue
        tensors.append(_Tensor(path, tuple(own), spec, program.nbytes(argument)))
    if offenders:
        raise InvalidProblem("names of dims do not fit:\n" + "\n".join(offenders[:20]))
    if not tensors:
        raise InvalidProblem(
            "no argument has names for its dims: pass names={'w1': ('embed', 'mlp'), ...}, or "
            "dim_names to from_jax"
        )
    rules = _best(tensors)
    lost = [
        f"{tensor.path} {tensor.names}: {partition_text(resolve(tensor.names, rules))} instead of "
        f"{partition_text(tensor.spec)}"
        for tensor in tensors
        if resolve(tensor.names, rules) != tensor.spec
    ]
    return AxisRules(rules, tuple(lost))


def resolve(names: Sequence[str | None], rules: Iterable[tuple[str, Any]]) -> Spec:
    """Mesh axes per dim of a tensor whose dims have these names."""
    resolved: list[tuple[str, ...] | None] = [None] * len(names)
    for name, axes in rules:
        mesh_axes = (axes,) if isinstance(axes, str) else tuple(axes or ())
        taken = {axis for dim_axes in resolved for axis in dim_axes or ()}
        for i, own in enumerate(names):
            if own == name and resolved[i] is None and taken.isdisjoint(mesh_axes):
                resolved[i] = mesh_axes
                break
    return tuple(dim_axes or () for dim_axes in resolved)


def _best(tensors: Sequence[_Tensor]) -> Rules:
    """For each name the axes that most bytes want, in the order that gets most bytes right."""
    bytes_by_axes: dict[str, Counter[tuple[str, ...]]] = {}
    for tensor in tensors:
        for name, axes in zip(tensor.names, tensor.spec, strict=True):
            if name is not None:
                split = bytes_by_axes.setdefault(name, Counter())
                # Names that are whole in some tensors keep their rule: it is skipped where its
                # axes are taken.
                if axes:
                    split[axes] += tensor.bytes
    rules: list[tuple[str, Any]] = []
    for name, split in bytes_by_axes.items():
        best = max(split, key=lambda axes: split[axes], default=())
        rules.append((name, spec_entries((best,))[0]))

    def right(order: Sequence[tuple[str, Any]]) -> float:
        return sum(
            tensor.bytes for tensor in tensors if resolve(tensor.names, order) == tensor.spec
        )

    score = right(rules)
    while True:
        trials = [
            _moved(rules, i, j) for i in range(len(rules)) for j in range(len(rules)) if i != j
        ]
        trials += [
            [*rules[:i], (rules[i][0], None), *rules[i + 1 :]]
            for i in range(len(rules))
            if rules[i][1]
        ]
        better = next((trial for trial in trials if right(trial) > score), None)
        if better is None:
            return tuple(rules)
        rules, score = better, right(better)


def _moved(rules: Sequence[Any], i: int, j: int) -> list[Any]:
    rest = [*rules[:i], *rules[i + 1 :]]
    return [*rest[:j], rules[i], *rest[j:]]
