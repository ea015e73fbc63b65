"""``ShardingPlan``: the one form in which every stage takes and gives a sharding of a program.

For each value it says which mesh axes cut each dim of its definition, and for each op along which
of its factors it is split on each axis; the axes of every operand's use follow from the latter.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.errors import InvalidPlan, join_offenders
from toast_lab.ir import random_keys
from toast_lab.ir.model import Model
from toast_lab.ir.program import Program
from toast_lab.sharding import steps, validity
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.space import Action, Space, parse_action
from toast_lab.sharding.state import State
from toast_lab.text import history_text

Spec = tuple[tuple[str, ...], ...]  # mesh axes per dim


class Lowered(NamedTuple):
    """Where a plan has each of ``V`` values and ``U`` uses; what every lowering starts from."""

    layouts: np.ndarray  #: [V] packed layout in which each value is kept; see ``steps``
    wanted: np.ndarray  #: [U] packed layout in which each use reads its value
    partial: (
        np.ndarray
    )  #: [V] axes over which a value is a partial sum when its op is done, a bit each
    kept: tuple[Spec, ...]  #: [V] mesh axes per dim in which each value is kept
    used: tuple[Spec, ...]  #: [U] the same in which each use reads its value
    #: [V] the same in which its op leaves each value, partial sums taken as summed; arguments and
    #: constants have no such op: the one in which they are kept
    natural: tuple[Spec, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class ShardingPlan:
    """A sharding of one program on one mesh.

    Another process gets it without its analysis; whoever sent it there has one.
    """

    program: Program
    mesh: Mesh
    sharding: Sharding
    #: how it came about, as text; empty if it did not come from actions
    actions: tuple[str, ...] = ()
    key: int = 0  #: 64-bit state key
    analysis: Analysis | None = None  #: that it was made for, None: nobody has one
    notes: tuple[str, ...] = ()  #: what a saved plan had that does not fit this program, and why
    #: what a judge said of it, by ``ConfirmedResult.with_judgement``; None: nobody has judged it
    judged: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.in_brief()}>"

    def in_brief(self) -> str:
        """Its program, mesh and actions on one line."""
        shown = history_text(self.actions[:12])
        if len(self.actions) > 12:
            shown += f" and {len(self.actions) - 12} more"
        return f"of {self.program.name} on {self.mesh}: {shown or 'no actions'} ({self.key:016x})"

    def __getstate__(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "analysis": None}

    @classmethod
    def of(cls, plan: ShardingPlan) -> Self:
        """A plan as one of this class; what was worked out of it stays worked out."""
        own = object.__new__(cls)
        own.__dict__.update(plan.__dict__)
        return own

    # -- reading ----------------------------------------------------------------------------------
    @property
    def op_factor(self) -> np.ndarray:
        """[O, A] factor along which each op is split on each axis, -1: none."""
        return self.sharding.op_factor

    @property
    def value_dim(self) -> np.ndarray:
        """[V, A] dim of each value on each axis, -1: none."""
        return self.sharding.value_dim

    @functools.cached_property
    def lowered(self) -> Lowered:
        """The layouts of all values and uses, worked out once."""
        program, tables = self.program, steps.tables(self.program)
        kept = steps.kept_layouts(tables, self.op_factor, self.value_dim)
        wanted = steps.wants_of(tables, self.op_factor)
        natural, partial = steps.natural_layouts_of(tables, self.op_factor)
        has_op = (program.value_op >= program.n_arguments) & ~program.value_is_constant
        rank, use_rank = np.diff(program.shape_ptr), np.diff(program.use_dim_ptr)
        return Lowered(
            layouts=kept,
            wanted=wanted,
            partial=partial,
            kept=self._specs(kept, rank),
            used=self._specs(wanted, use_rank),
            natural=self._specs(np.where(has_op, natural, kept), rank),
        )

    def kept_layouts(self) -> np.ndarray:
        """[V] packed layout of each value as lowering keeps it."""
        return self.lowered.layouts

    def spec(self, layout: int, rank: int) -> Spec:
        """Mesh axis names per dim of a packed layout."""
        return tuple(
            tuple(self.mesh.axes[axis] for axis in dim)
            for dim in steps.unpack(layout, rank, len(self.mesh.axes))
        )

    def _specs(self, layouts: np.ndarray, ranks: np.ndarray) -> tuple[Spec, ...]:
        pairs = list(zip(layouts.tolist(), ranks.tolist(), strict=True))
        spec_of = {pair: self.spec(*pair) for pair in set(pairs)}
        return tuple(spec_of[pair] for pair in pairs)

    def value_specs(self) -> list[Spec]:
        """Mesh axes per dim of every value's definition."""
        return list(self.lowered.kept)

    def argument_specs(self) -> dict[str, Spec]:
        """Mesh axes per dim of every argument, by path."""
        paths = self.program.value_name[: self.program.n_arguments]
        return dict(zip(paths, self.lowered.kept, strict=False))

    def result_specs(self) -> dict[str, Spec]:
        """Mesh axes per dim of every result, by path."""
        results = (self.lowered.kept[value] for value in self.program.outputs.tolist())
        return dict(zip(self.program.output_paths, results, strict=True))

    # -- checking ---------------------------------------------------------------------------------
    def is_of(self, program: Program) -> bool:
        """Does it shard this program?"""
        return self.program is program or self.program.digest() == program.digest()

    def check_is_of(self, program: Program, mesh: Mesh | None = None, why: str = "") -> None:
        """Raise InvalidPlan if the plan is of another program, or for another mesh than this.

        Args:
            program: whoever takes the plan works on this one.
            mesh: the same of its mesh; None: any will do.
            why: what else is known of the difference, a sentence.
        """
        if not self.is_of(program):
            raise InvalidPlan(
                f"this plan shards {self.program.name} ({self.program.digest()}), which is another "
                f"program than {program.name} ({program.digest()}){why and '. '}{why}"
            )
        if mesh is not None and mesh != self.mesh:
            raise InvalidPlan(f"this plan is for the mesh {self.mesh}, not for {mesh}")

    def check(self) -> None:
        """Raise InvalidPlan listing every op and value that the plan cannot shard as it says."""
        if offenders := validity.offenders(self.program, self.mesh, self.sharding):
            raise InvalidPlan("this plan cannot be carried out: " + join_offenders(offenders))


#: Results are of the plans that a search makes, or of users' (``Plan``).
PlanT = TypeVar("PlanT", bound=ShardingPlan, covariant=True)


# -- making ----------------------------------------------------------------------------------------
def make_plan(
    analysis: Analysis,
    mesh: Mesh,
    sharding: Sharding,
    actions: tuple[str, ...] = (),
    *,
    key: int = 0,
    notes: tuple[str, ...] = (),
) -> ShardingPlan:
    """The plan of an analysed program with this sharding, whose arrays are frozen.

    Args:
        analysis: of the program.
        mesh: of ``A`` axes.
        sharding: of every op and value.
        actions: how it came about, as text, the pinned ones first.
        key: tells the plan from others.
        notes: what of a saved plan was left out.
    """
    return ShardingPlan(
        program=analysis.program,
        mesh=mesh,
        sharding=sharding.frozen(),
        actions=actions,
        key=key,
        analysis=analysis,
        notes=notes,
    )


def unsharded_plan(analysis: Analysis, mesh: Mesh) -> ShardingPlan:
    """The plan that shards nothing, whatever is pinned."""
    return make_plan(analysis, mesh, Sharding.whole(analysis.program, len(mesh.axes)))


def plan_of_state(state: State, actions: Iterable[Action]) -> ShardingPlan:
    """Freeze a search state."""
    space = state.space
    texts = (*pinned_texts(space), *(space.text(action) for action in actions))
    return make_plan(space.analysis, space.mesh, state.sharding, texts, key=state.plan_key)


def plan_of_actions(space: Space, actions: Iterable[object]) -> ShardingPlan:
    """Take actions in order: ``[("batch", "data"), ("sequence", "model", 1), ...]``.

    Colours of one group are mirrored, so that whoever names each of them asks for the same action
    again under another name; that is left out, and so are actions that the space has pinned.

    Raises:
        InvalidPlan: an action names no colour or axis, or changes nothing otherwise (with the
            sizes).
    """
    state = State(space)
    taken: dict[Action, object] = {}
    for request in actions:
        action = parse_action(space.analysis, space.mesh, request)
        if state.apply(action):
            taken[action] = request
        elif taken.get(action, request) == request and action not in space.pinned_actions:
            raise InvalidPlan(no_effect(space, action))
    return plan_of_state(state, taken)


def plan_of_specs(space: Space, in_specs: dict[str, Iterable[Any]]) -> ShardingPlan:
    """The plan that spreads given argument shardings along their colours, in the order given.

    ``in_specs`` maps argument paths to one entry per dim: None, an axis name or a tuple of them.
    Last dims may be left out, and typed random keys have no others than those that JAX shows.

    Raises:
        InvalidPlan: a path, a dim or an axis does not exist, the words of a random key are to be
            cut, or nothing changes.
    """
    analysis, program = space.analysis, space.analysis.program
    argument_of = {program.value_name[value]: value for value in range(program.n_arguments)}
    unknown = [path for path in in_specs if path not in argument_of]
    if unknown:
        raise InvalidPlan(
            f"no argument is called {', '.join(unknown[:20])}; arguments: "
            f"{', '.join(list(argument_of)[:20])}"
        )
    requested: dict[tuple[str, str], None] = {}
    offenders = []
    for path, spec in in_specs.items():
        value, dim_specs = argument_of[path], list(spec)
        rank = len(program.dims(value))
        if len(dim_specs) > rank:
            offenders.append(f"{path}: {len(dim_specs)} entries for {rank} dims")
            continue
        for dim, dim_spec in enumerate(dim_specs):
            axes = (dim_spec,) if isinstance(dim_spec, str) else tuple(dim_spec or ())
            if axes and (offence := random_keys.offence(program, value, dim)):
                offenders.append(f"{path}: {offence}")
                continue
            colour = analysis.colour[program.def_names(value)[dim]]
            for axis in axes:
                requested[analysis.group_name[analysis.group[colour]], axis] = None
    if offenders:
        raise InvalidPlan("these arguments cannot be sharded so: " + join_offenders(offenders))
    return plan_of_actions(space, list(requested))


def model_of(plan: ShardingPlan, model: Model | None = None) -> Model:
    """The model that a plan shards: the one given, or that of its analysis.

    Raises:
        InvalidPlan: the plan brings none with its text, or the one given is another program.
    """
    if model is not None:
        plan.check_is_of(model.program)
        return model
    if plan.analysis is None or not plan.analysis.model.stablehlo:
        raise InvalidPlan(f"give model=, the model whose program this is ({plan.program.name})")
    return plan.analysis.model


def spec_text(spec: Spec) -> str:
    """``[data, -, seq+model]``; whole tensors are ``whole``."""
    return "[" + ", ".join("+".join(axes) or "-" for axes in spec) + "]" if any(spec) else "whole"


def pinned_texts(space: Space) -> tuple[str, ...]:
    """The pinned actions of a space as text, with which the actions of every plan begin."""
    return tuple(map(space.text, space.pinned_actions))


def no_effect(space: Space, action: Action) -> str:
    """Why an action changes nothing, with the sizes."""
    group = space.analysis.groups[action.group]
    axis, size = space.mesh.axes[action.axis], space.mesh.sizes[action.axis]
    sentence = f"action {space.text(action)} changes nothing: "
    if group.size % size:
        return (
            sentence + f'{group.name} has size {group.size}, not divisible by mesh axis "{axis}" = '
            f"{size}. Choose another axis or resize the mesh."
        )
    sentence += (
        f"everything of colour {group.name} (size {group.size}) already uses axis "
        f'"{axis}" = {size}, or what is left of it no longer divides.'
    )
    if space.fixed is not None:
        sentence += f" Pinned or forbidden: {', '.join(space.fixed.texts)}."
    return sentence
