"""Logical-axis rules: a plan in the form in which flax users say it.

flax gives every dim of a parameter a logical name and maps names to mesh axes by a list of rules,
the same for all tensors.  A plan may shard two tensors with the same names differently, which no
such list can say; what a list then gets wrong is named.  Rules apply in order, and one whose mesh
axes are taken in a tensor is passed over, as in ``flax.linen.logical_to_mesh_axes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from toast_lab.conflicts.analysis import last_key
from toast_lab.errors import InvalidProblem
from toast_lab.export.places import source_of
from toast_lab.lowering.specs import partition_text, spec_entries, visible
from toast_lab.sharding.plan import ShardingPlan, Spec, model_of

if TYPE_CHECKING:
    from toast_lab.ir.model import Model

Rules = tuple[tuple[str, Any], ...]


class AxisRules(NamedTuple):
    """Rules for ``flax.linen.logical_axis_rules``, and the tensors where they fail.

    Those are the tensors for which the rules give something else than the plan.
    """

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
    bytes: float


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
        source_model = model_of(plan, model)
        source = source_of(program, source_model)
        names = {**source_model.dim_names, **(source.names if source else {})}
    tensors, wrong = [], []
    for argument in range(program.n_arguments):
        path = program.value_name[argument]
        own = names.get(path, names.get(last_key(path)))
        if own is None:
            continue
        spec = visible(program, argument, specs[argument])
        if len(own) != len(spec):
            wrong.append(f"{path}: {len(own)} names for {len(spec)} dims")
            continue
        tensors.append(_Tensor(path, tuple(own), spec, float(program.nbytes(argument))))
    if wrong:
        raise InvalidProblem("names of dims do not fit:\n" + "\n".join(wrong[:20]))
    if not tensors:
        raise InvalidProblem(
            "no argument has names for its dims: give names={'w1': ('embed', 'mlp'), ...}, or "
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
    axes_of: list[tuple[str, ...] | None] = [None] * len(names)
    for name, axes in rules:
        wanted = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
        taken = {axis for some in axes_of for axis in some or ()}
        for position, own in enumerate(names):
            if own == name and axes_of[position] is None and not taken & set(wanted):
                axes_of[position] = wanted
                break
    return tuple(some or () for some in axes_of)


def _best(tensors: Sequence[_Tensor]) -> Rules:
    """For each name the axes that most bytes want; in the order that gets most bytes right."""
    wanted: dict[str, dict[tuple[str, ...], float]] = {}
    for tensor in tensors:
        for name, axes in zip(tensor.names, tensor.spec, strict=True):
            if name is not None:
                by_axes = wanted.setdefault(name, {})
                by_axes[axes] = by_axes.get(axes, 0.0) + tensor.bytes
    rules: list[tuple[str, Any]] = []
    for name, by_axes in wanted.items():
        # Names that are whole here and split there keep their rule: where its axes are taken it is
        # passed over.
        split = {axes: size for axes, size in by_axes.items() if axes}
        best = max(split, key=lambda axes: split[axes]) if split else ()
        rules.append((name, spec_entries((best,))[0]))

    def right(order: Sequence[tuple[str, Any]]) -> float:
        return sum(
            tensor.bytes for tensor in tensors if resolve(tensor.names, order) == tensor.spec
        )

    score, improved = right(rules), True
    while improved:
        improved = False
        trials = [
            _moved(rules, position, target)
            for position in range(len(rules))
            for target in range(len(rules))
            if position != target
        ]
        trials += [
            [*rules[:position], (rules[position][0], None), *rules[position + 1 :]]
            for position in range(len(rules))
            if rules[position][1]
        ]
        for trial in trials:
            if (now := right(trial)) > score:
                rules, score, improved = trial, now, True
                break
    return tuple(rules)


def _moved(rules: Sequence[Any], position: int, target: int) -> list[Any]:
    rest = [*rules[:position], *rules[position + 1 :]]
    return [*rest[:target], rules[position], *rest[target:]]
