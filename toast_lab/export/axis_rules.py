"""Logical-axis rules: a plan in the form that flax users write.

flax gives every dim of a parameter a logical name and maps names to mesh axes by one list of rules
for all tensors. A plan may shard two tensors with the same names differently, which no such list
can express; the result lists the tensors that its rules get wrong. Rules apply in order, and a rule
whose mesh axes are already taken in a tensor is skipped, as in
``flax.linen.logical_to_mesh_axes``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from toast_lab.conflicts.argument_words import last_key
from toast_lab.errors import InvalidProblem
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
        return "\n".join([*lines, *self._remarks()])

    def as_yaml(self) -> str:
        """The rules as files of settings for MaxText and the like have them.

        Such a model gives dims of its activations names of their own, ``activation_batch``, which
        need rules too: the plan's constraints say which.
        """
        lines = [
            f"  ['{name}', [{', '.join(repr(axis) for axis in _axes(axes))}]],"
            for name, axes in self.rules
        ]
        return "\n".join(["logical_axis_rules: [", *lines, "]", *self._remarks()])

    def _remarks(self) -> list[str]:
        return [f"# not as planned: {text}" for text in self.wrong]


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
    """The rules that come closest to the plan's argument shardings.

    Args:
        plan: of a model.
        names: logical names of dims by argument path, or by the last key of the path; by default
            those that the arguments carry (``flax.linen.with_logical_partitioning``, nnx variables
            with ``sharding_names``), else the model's ``dim_names``.
        model: the plan's model, where the plan has come from another process.

    Raises:
        InvalidProblem: no argument has names, or some have a number of names other than that of
            their dims.
    """
    program, specs = plan.program, plan.value_specs()
    if names is None:
        names = model_of(plan, model).dim_names
    tensors, offenders = [], []
    for argument in range(program.n_arguments):
        path = program.value_name[argument]
        dim_names = names.get(path, names.get(last_key(path)))
        if dim_names is None:
            continue
        spec = visible(program, argument, specs[argument])
        if len(dim_names) != len(spec):
            offenders.append(f"{path}: {len(dim_names)} names for {len(spec)} dims")
            continue
        tensors.append(_Tensor(path, tuple(dim_names), spec, program.nbytes(argument)))
    if offenders:
        raise InvalidProblem("names of dims do not fit:\n" + "\n".join(offenders[:20]))
    if not tensors:
        raise InvalidProblem(
            "no argument has names for its dims: pass names={'w1': ('embed', 'mlp'), ...}, or "
            "dim_names to from_jax"
        )
    rules = _best(tensors)
    wrong = [
        f"{tensor.path} {tensor.names}: {partition_text(resolve(tensor.names, rules))} instead of "
        f"{partition_text(tensor.spec)}"
        for tensor in tensors
        if resolve(tensor.names, rules) != tensor.spec
    ]
    return AxisRules(rules, tuple(wrong))


def resolve(names: Sequence[str | None], rules: Iterable[tuple[str, Any]]) -> Spec:
    """Mesh axes per dim that ``rules`` give a tensor whose dims have these names."""
    resolved: list[tuple[str, ...] | None] = [None] * len(names)
    for name, axes in rules:
        mesh_axes = _axes(axes)
        taken = {axis for dim_axes in resolved for axis in dim_axes or ()}
        for i, dim_name in enumerate(names):
            if dim_name == name and resolved[i] is None and taken.isdisjoint(mesh_axes):
                resolved[i] = mesh_axes
                break
    return tuple(dim_axes or () for dim_axes in resolved)


def _axes(axes: Any) -> tuple[str, ...]:
    """The mesh axes of a rule."""
    return (axes,) if isinstance(axes, str) else tuple(axes or ())


def _best(tensors: Sequence[_Tensor]) -> Rules:
    """Give each name the axes that most bytes want, then improve the rules step by step.

    A step moves a rule or clears its axes, if more bytes then get their planned sharding.
    """
    bytes_by_axes: dict[str, Counter[tuple[str, ...]]] = {}
    for tensor in tensors:
        for name, axes in zip(tensor.names, tensor.spec, strict=True):
            if name is not None:
                axes_bytes = bytes_by_axes.setdefault(name, Counter())
                # A name keeps its rule even if some tensors are whole in it: the rule is skipped
                # where its axes are taken.
                if axes:
                    axes_bytes[axes] += tensor.bytes
    rules: list[tuple[str, Any]] = []
    for name, axes_bytes in bytes_by_axes.items():
        best_axes = max(axes_bytes, key=lambda axes: axes_bytes[axes], default=())
        rules.append((name, spec_entries((best_axes,))[0]))

    def right_bytes(order: Sequence[tuple[str, Any]]) -> float:
        return sum(
            tensor.bytes for tensor in tensors if resolve(tensor.names, order) == tensor.spec
        )

    score = right_bytes(rules)
    while True:
        trials = [
            [*others[:j], rules[i], *others[j:]]
            for i in range(len(rules))
            for others in [[*rules[:i], *rules[i + 1 :]]]
            for j in range(len(rules))
            if i != j
        ]
        trials += [
            [*rules[:i], (rules[i][0], None), *rules[i + 1 :]]
            for i in range(len(rules))
            if rules[i][1]
        ]
        better = next((trial for trial in trials if right_bytes(trial) > score), None)
        if better is None:
            return tuple(rules)
        rules, score = better, right_bytes(better)
