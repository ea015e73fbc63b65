"""``ShardingPlan``: the form in which all stages pass on a sharding of a program.

For each value it says which mesh axes cut each dim of its definition, and for each op along which
factor it is split on each axis. The axes of every operand's use follow from the op's factors.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
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
from toast_lab.sharding.space import Action, Space, parse_action, renaming
from toast_lab.sharding.state import State
from toast_lab.text import history_text

Spec = tuple[tuple[str, ...], ...]  # mesh axes per dim


class Lowered(NamedTuple):
    """The layouts of ``V`` values and ``U`` uses under a plan, from which every lowering starts."""

    layouts: np.ndarray  #: [V] packed layout in which each value is kept; see ``steps``
    wanted: np.ndarray  #: [U] packed layout in which each use reads its value
    #: [V] bit mask of the axes over which a value is a partial sum when its op is done
    partial: np.ndarray
    kept: tuple[Spec, ...]  #: [V] mesh axes per dim in which each value is kept
    used: tuple[Spec, ...]  #: [U] mesh axes per dim in which each use reads its value
    #: [V] mesh axes per dim in which its op leaves each value, with partial sums counted as summed.
    #: Arguments and constants have no such op: for them, the axes in which they are kept
    natural: tuple[Spec, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class ShardingPlan:
    """A sharding of one program on one mesh.

    A plan is pickled without its analysis: the process that sends it keeps one.
    """

    program: Program
    mesh: Mesh
    sharding: Sharding
    #: the actions that led to it, as text; ``plan_of_actions`` gives the plan as it was after them.
    #: Empty if it was not made from actions
    actions: tuple[str, ...] = ()
    key: int = 0  #: 64-bit state key
    analysis: Analysis | None = None  #: of the program; None: not available in this process
    #: what was asked for and left out, and why: parts of a saved plan, cuts of arguments
    notes: tuple[str, ...] = ()
    #: a judge's verdict on it, set by ``ConfirmedResult.with_judgement``; None: not judged
    judged: Mapping[str, Any] | None = None
    #: what changed it after its actions, or made it without any, as text
    refinements: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.in_brief()}>"

    def in_brief(self) -> str:
        """Its program, mesh and actions, and what came after them, on one line."""
        shown = history_text(self.actions[:12])
        if len(self.actions) > 12:
            shown += f" and {len(self.actions) - 12} more"
        if self.refinements:
            shown = history_text([*([shown] if shown else []), *self.refinements])
        return f"of {self.program.name} on {self.mesh}: {shown or 'no actions'} ({self.key:016x})"

    def __getstate__(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "analysis": None}

    @classmethod
    def of(cls, plan: ShardingPlan) -> Self:
        """The same plan as an instance of this class; its cached properties stay cached."""
        if isinstance(plan, cls):
            return plan
        copy = object.__new__(cls)
        copy.__dict__.update(plan.__dict__)
        return copy

    def named_as_in(self, analysis: Analysis) -> Self:
        """The same plan with the names that colours have in another analysis of its program."""
        if self.analysis is None or self.analysis is analysis:
            return self
        up_to_date = renaming(self.analysis, analysis)
        actions = tuple(map(up_to_date, self.actions))
        return dataclasses.replace(self, analysis=analysis, actions=actions)

    # -- reading ----------------------------------------------------------------------------------
    @property
    def history(self) -> tuple[str, ...]:
        """Its actions, and then what changed it after them: all that ``make_plan`` takes."""
        return (*self.actions, *self.refinements)

    @property
    def op_factor(self) -> np.ndarray:
        """[O, A] factor along which each op is split on each axis; -1: none."""
        return self.sharding.op_factor

    @property
    def value_dim(self) -> np.ndarray:
        """[V, A] dim of each value that each axis cuts; -1: none."""
        return self.sharding.value_dim

    @functools.cached_property
    def lowered(self) -> Lowered:
        """The layouts of all values and uses, computed once."""
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
        """[V] packed layout in which lowering keeps each value."""
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
        """Is this a plan of ``program``?"""
        return self.program is program or self.program.digest() == program.digest()

    def check_is_of(self, program: Program, mesh: Mesh | None = None, why: str = "") -> None:
        """Raise InvalidPlan if the plan is for another program or another mesh.

        Args:
            program: the one that the plan has to shard.
            mesh: the one that it has to be for; None: any mesh.
            why: a sentence for the message, with anything else that is known of the difference.
        """
        if not self.is_of(program):
            raise InvalidPlan(
                f"this plan is for the program {self.program.name} ({self.program.digest()}), not "
                f"for {program.name} ({program.digest()}){why and '. '}{why}"
            )
        if mesh is not None and mesh != self.mesh:
            raise InvalidPlan(f"this plan is for the mesh {self.mesh}, not for {mesh}")

    def own_model(self, model: Model) -> Model:
        """``model`` with the program that this plan shards.

        A function may have another program on each platform; a plan is of one of them.

        Raises:
            InvalidPlan: the plan is of another function.
        """
        own = model.of_program(self.program)
        self.check_is_of(own.program)
        return own

    def check(self) -> None:
        """Raise InvalidPlan with every op and value that cannot be sharded as the plan says."""
        if offenders := validity.offenders(self.program, self.mesh, self.sharding):
            raise InvalidPlan("this plan cannot be carried out: " + join_offenders(offenders))


#: The class of plans in a result: ``ShardingPlan`` from a search, ``Plan`` for users.
PlanT = TypeVar("PlanT", bound=ShardingPlan, covariant=True)


# -- making ----------------------------------------------------------------------------------------
def make_plan(
    analysis: Analysis,
    mesh: Mesh,
    sharding: Sharding,
    history: Sequence[str] = (),
    *,
    key: int = 0,
    notes: tuple[str, ...] = (),
) -> ShardingPlan:
    """The plan of an analysed program with this sharding, whose arrays become read-only.

    Args:
        analysis: of the program.
        mesh: of ``A`` axes.
        sharding: of every op and value.
        history: the actions that led to it, as text, pinned ones first, and what changed it after
            them, such as "refined in 12 places"; see ``is_action``.
        key: 64-bit key that identifies the plan.
        notes: the parts of a saved plan that were left out.
    """
    return ShardingPlan(
        program=analysis.program,
        mesh=mesh,
        sharding=sharding.frozen(),
        actions=tuple(filter(is_action, history)),
        key=key,
        analysis=analysis,
        notes=notes,
        refinements=tuple(text for text in history if not is_action(text)),
    )


def is_action(text: str) -> bool:
    """Is a line of a plan's history an action? Other lines say how else the plan came about."""
    return "->" in text


def unsharded_plan(analysis: Analysis, mesh: Mesh) -> ShardingPlan:
    """The plan that shards nothing, pins ignored."""
    return make_plan(analysis, mesh, Sharding.whole(analysis.program, len(mesh.axes)))


def plan_of_state(state: State, actions: Iterable[Action]) -> ShardingPlan:
    """The plan of a search state to which ``actions`` led."""
    space = state.space
    texts = (*pinned_texts(space), *(space.text(action) for action in actions))
    return make_plan(space.analysis, space.mesh, state.sharding, texts, key=state.plan_key)


def plan_of_actions(space: Space, actions: Iterable[object]) -> ShardingPlan:
    """Take actions in order: ``[("batch", "data"), ("sequence", "model", 1), ...]``.

    An action on a colour is mirrored to all colours of its group. Naming several of them therefore
    asks for one action under several names: it is taken once. Actions that the space has pinned
    are left out too.

    Raises:
        InvalidPlan: an action names no existing colour or axis, or changes nothing for another
            reason (the message has the sizes).
    """
    actions = list(actions)
    not_actions = [
        text
        for text in actions
        if isinstance(text, str) and " " in text.strip() and not is_action(text)
    ]
    if not_actions:
        raise InvalidPlan(
            "these tell how a search changed a plan after its actions, and are no actions:\n"
            f"{join_offenders(not_actions)}\n"
            "Such a plan cannot be made again from its texts: save it with plan.save(path) and "
            "load it with Plan.load(path)"
        )
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

    ``in_specs`` maps argument paths to one entry per dim: None, an axis name or a tuple of axis
    names. Trailing dims may be left out. Typed random keys have only the dims that JAX shows.

    A cut that changes nothing more, because cuts before it have spread there, is left out. The
    plan's ``notes`` name every dim that lacks an axis that was asked for.

    Raises:
        InvalidPlan: a path, a dim or an axis does not exist, the axis does not divide the dim, or a
            spec would cut the words of a random key (all offenders are listed).
    """
    cuts, offenders = _cuts_of(space, in_specs)
    if offenders:
        raise InvalidPlan(
            "these arguments cannot be sharded as requested: " + join_offenders(offenders)
        )
    state, taken = State(space), list[Action]()
    for action in dict.fromkeys(cut.action for cut in cuts):
        if state.apply(action):
            taken.append(action)
    plan = plan_of_state(state, taken)
    notes = []
    for cut in cuts:
        spec = plan.lowered.kept[cut.value]
        if cut.axis in spec[cut.dim]:
            continue
        if not any(spec) and cut.action not in taken:
            raise InvalidPlan(no_effect(space, cut.action))
        winner = [
            f", since dim {dim} has it first" for dim, axes in enumerate(spec) if cut.axis in axes
        ]
        notes.append(
            f"{cut.path} is {spec_text(spec)}: dim {cut.dim} is not on {cut.axis}{''.join(winner)}"
        )
    return dataclasses.replace(plan, notes=tuple(notes))


class _Cut(NamedTuple):
    """One mesh axis that is asked for on one dim of an argument."""

    path: str
    value: int
    dim: int
    axis: str
    action: Action


def _cuts_of(space: Space, in_specs: dict[str, Iterable[Any]]) -> tuple[list[_Cut], list[str]]:
    """The cuts that argument shardings ask for, in their order, and all that is wrong with them."""
    analysis, program, mesh = space.analysis, space.analysis.program, space.mesh
    argument_of = {program.value_name[value]: value for value in range(program.n_arguments)}
    unknown = [path for path in in_specs if path not in argument_of]
    if unknown:
        raise InvalidPlan(
            f"no argument is called {', '.join(unknown[:20])}; arguments: "
            f"{', '.join(list(argument_of)[:20])}"
        )
    cuts, offenders = list[_Cut](), list[str]()
    for path, spec in in_specs.items():
        value, dim_specs = argument_of[path], list(spec)
        sizes = program.dims(value)
        if len(dim_specs) > len(sizes):
            offenders.append(f"{path}: {len(dim_specs)} entries for {len(sizes)} dims")
            continue
        for dim, dim_spec in enumerate(dim_specs):
            axes = (dim_spec,) if isinstance(dim_spec, str) else tuple(dim_spec or ())
            if axes and (offence := random_keys.offence(program, value, dim)):
                offenders.append(f"{path}: {offence}")
                continue
            colour = analysis.colour[program.def_names(value)[dim]]
            group = analysis.group_name[analysis.group[colour]]
            for axis in axes:
                action = parse_action(analysis, mesh, (group, axis))
                cuts.append(_Cut(path, value, dim, axis=axis, action=action))
            if not mesh.divides(sizes[dim], axes):
                offenders.append(
                    f"{path}: dim {dim} has size {sizes[dim]}, not divisible by {mesh.ways(axes)} "
                    f"({' and '.join(axes)})"
                )
    return cuts, offenders


def model_of(plan: ShardingPlan, model: Model | None = None) -> Model:
    """The model that a plan shards: the one given, or that of its analysis.

    Raises:
        InvalidPlan: no model is given and the plan's analysis has none with its StableHLO text, or
            the one given is of another program.
    """
    if model is not None:
        return plan.own_model(model)
    if plan.analysis is None or not plan.analysis.model.stablehlo:
        raise InvalidPlan(f"give model=, the model whose program this is ({plan.program.name})")
    return plan.analysis.model


def spec_text(spec: Spec) -> str:
    """A spec as ``[data, -, seq+model]``, or ``whole`` if no axis cuts the tensor."""
    return "[" + ", ".join("+".join(axes) or "-" for axes in spec) + "]" if any(spec) else "whole"


def pinned_texts(space: Space) -> tuple[str, ...]:
    """The pinned actions of a space as text; the actions of every plan start with them."""
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
        f'"{axis}" = {size}, or its remaining size is not divisible by it.'
    )
    if space.fixed is not None:
        sentence += f" Pinned or forbidden: {', '.join(space.fixed.texts)}."
    return sentence
