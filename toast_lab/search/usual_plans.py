"""The plans that experts would try first, made from the roles of colours.

A plan that a program or a mesh does not allow is missing with its reason, and what a plan leaves
whole is noted. Start reading at ``usual_plans``; ``conflicts/colour_roles.py`` finds the roles.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from toast_lab.conflicts.colour_roles import ColourRoles, roles
from toast_lab.conflicts.data_arguments import groups_of
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan, did_you_mean
from toast_lab.ir.argument_paths import folded_path
from toast_lab.ir.program import REDUCTION
from toast_lab.sharding.space import Action, action_text
from toast_lab.sharding.state import State
from toast_lab.text import as_html, bytes_text

#: Parts that tensor parallelism cuts, in the order in which a weight with several is cut.
TENSOR_ROLES = ("heads", "hidden", "channels", "vocabulary", "outputs")
MOST_NAMED = 3  # weights that a note names
#: Weights of a smaller share of all bytes are not worth an action or a note.
LEAST_SHARE = 0.001
WIDTH = 100  #: columns of a listing


class UsualPlans(Mapping[str, list[Action]]):
    """The actions of each usual plan, by name.

    ``missing`` has the reason for each plan that does not exist, ``notes`` what each plan leaves
    whole. ``str()`` prints all of it.
    """

    def __init__(
        self,
        problem: Problem,
        plans: dict[str, list[Action]],
        missing: dict[str, str],
        notes: dict[str, list[str]],
    ) -> None:
        self.problem, self.missing, self.notes = problem, missing, notes
        self._plans = plans

    def __getitem__(self, name: str) -> list[Action]:
        if not isinstance(name, str) or name not in self._plans:
            raise KeyError(self._why_not(name))
        return self._plans[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._plans)

    def __len__(self) -> int:
        return len(self._plans)

    def actions(self, name: str) -> list[Action]:
        """The actions of a plan.

        Raises:
            InvalidPlan: there is no such plan, for the reason given in the message.
        """
        if not isinstance(name, str) or name not in self._plans:
            raise InvalidPlan(self._why_not(name))
        return self._plans[name]

    def _why_not(self, name: object) -> str:
        if isinstance(name, str) and name in self.missing:
            return f"{name}: {self.missing[name]}"
        known = (*self._plans, *self.missing)
        return (
            f"no usual plan is called {name!r}{did_you_mean(name, known)}; there are "
            f"{', '.join(known)}"
        )

    def __repr__(self) -> str:
        return f"<UsualPlans of {self.problem.analysis.program.name}: {', '.join(self._plans)}>"

    def __str__(self) -> str:
        analysis, mesh = self.problem.analysis, self.problem.mesh
        lines = []
        for name, actions in self._plans.items():
            texts = [action_text(analysis, mesh, action) for action in actions]
            lines += _wrapped(f"{name}: {', '.join(texts)}")
            lines += [
                line for note in self.notes.get(name, ()) for line in _wrapped(note, indent="  ")
            ]
        for name, reason in self.missing.items():
            lines += _wrapped(f"no {name} plan: {reason}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return as_html(self)


def _wrapped(sentence: str, indent: str = "") -> list[str]:
    """Lines of a fixed width; further ones are indented by four more."""
    return textwrap.wrap(
        sentence,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def usual_plans(problem: Problem) -> UsualPlans:
    """The plans that experts would try first on this mesh.

    On a mesh of several axes, the last one cuts tensors where a plan is made of two kinds of
    parallelism, and the others cut the batch.

    Examples:
        >>> import toast_lab as tl
        >>> analysis = tl.analyse(tl.load("transformer", layers=2))
        >>> problem = tl.Problem(analysis, {"data": 4, "model": 2})
        >>> usual = tl.usual_plans(problem)
        >>> plan = tl.Plan.from_actions(problem, usual["data + tensor parallel"])
        >>> plan.actions
        ('batch->data', 'heads->model', 'hidden->model', 'vocab->model')
        >>> usual.missing["expert parallel"]
        'no colour plays the part of experts'
    """
    return _Makers(problem).all_plans()


def data_parallel(problem: Problem) -> list[Action]:
    """Data parallelism: the batch is split along every mesh axis that divides it.

    Raises InvalidPlan if there is no batch, or no axis divides it.
    """
    makers = _Makers(problem)
    draft = makers.draft()
    reason = makers.cut_examples(draft, problem.mesh.axes)
    if reason:
        raise InvalidPlan(f"data parallel: {reason}")
    return draft.actions


class _PlanDraft:
    """Actions taken one after the other, and the state that they lead to."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.space = problem.space
        self.state = State(self.space)
        self.actions: list[Action] = []
        self.notes: list[str] = []

    def cut(self, group: int, axis: str) -> bool:
        """Cut a colour group along an axis; False if that changes nothing."""
        index = self.problem.mesh.axes.index(axis)
        bits = _bits(self.problem, group)
        if bits is None:
            return False
        action = Action(group, bits, index)
        if not self.state.apply(action):
            return False
        self.actions.append(action)
        return True

    def is_cut(self, value: int, axis: str) -> bool:
        """Does an axis cut a value?"""
        label = self.space.alike.values.label[value]
        return bool(self.state.values[label, self.problem.mesh.axes.index(axis)] >= 0)


def _bits(problem: Problem, group: int) -> int | None:
    """The sides of a group's conflicts on which the fewest sums run over devices.

    For attention these are the positions of the queries: keys and values are gathered, and no
    softmax runs over devices. None if the group cannot be cut.
    """
    space, names = problem.space, problem.analysis.program.factor_class
    best: tuple[int, int] | None = None
    for move in (space.group == group).nonzero()[0].tolist():
        rows = slice(space.op_effects.ptr[move], space.op_effects.ptr[move + 1])
        sums = int((names[space.op_effects.cut[rows]] == REDUCTION).sum())
        bits = int(space.bits[move])
        if best is None or (sums, bits) < best:
            best = (sums, bits)
    return None if best is None else best[1]


#: Adds actions along these axes to a draft, and gives the reason if it cannot.
Cut = Callable[[_PlanDraft, Sequence[str]], str]


class _Makers:
    """Makes each plan of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.analysis, self.program = problem.analysis, problem.analysis.program
        self.axes: Sequence[str] = problem.mesh.axes
        self.roles: ColourRoles = roles(problem.analysis)
        self.weights = sorted(self.roles.arguments.weights)
        layers = set(self.roles.groups("layers"))  # loops take stacked weights one by one
        self.weight_groups = {
            weight: groups_of(self.analysis, weight) - layers for weight in self.weights
        }
        self.weight_bytes = sum(map(self.program.nbytes, self.weights))

    def draft(self) -> _PlanDraft:
        """A plan without actions."""
        return _PlanDraft(self.problem)

    def all_plans(self) -> UsualPlans:
        """Every usual plan, or the reason why there is none."""
        others, last = tuple(self.axes[:-1]), (self.axes[-1],)
        every = tuple(self.axes)
        steps: dict[str, tuple[Cut, Sequence[str]]] = {
            "data": (self.cut_examples, others),
            "fully sharded": (self.cut_all, others),
            "tensor": (self.cut_tensors, last),
            "sequence": (self.cut_sequence, last),
        }
        recipes: dict[str, Sequence[tuple[Cut, Sequence[str]]]] = {
            "data parallel": [(self.cut_examples, every)],
            "fully sharded": [(self.cut_all, every)],
            "tensor parallel": [(self.cut_tensors, every)],
        }
        if others:
            recipes |= {
                f"{' + '.join(parts)} parallel": [steps[part] for part in parts]
                for parts in (
                    ("data", "tensor"),
                    ("data", "tensor", "sequence"),
                    ("data", "sequence"),
                    ("fully sharded", "tensor"),
                    ("fully sharded", "tensor", "sequence"),
                )
            }
        else:
            recipes["tensor + sequence parallel"] = [steps["tensor"], steps["sequence"]]
        recipes["expert parallel"] = [(self.cut_experts, last), (self.cut_examples, every)]
        if self.roles.arguments.caches:
            recipes["tensor parallel, cache by batch"] = [
                *([steps["data"]] if others else []),
                (self.cut_cache_by_batch, last),
            ]
        if self.roles.groups("edges"):
            recipes["edges + nodes"] = [(self.cut_graph, every)]
        return self._build(recipes)

    def _build(self, recipes: Mapping[str, Sequence[tuple[Cut, Sequence[str]]]]) -> UsualPlans:
        plans: dict[str, list[Action]] = {}
        missing: dict[str, str] = {}
        notes: dict[str, list[str]] = {}
        names_by_key: dict[int, str] = {0: "the unsharded program"}
        for name, steps in recipes.items():
            draft = self.draft()
            reason = next((text for step, axes in steps if (text := step(draft, axes))), "")
            if not reason and draft.state.key in names_by_key:
                reason = f"it is the same as {names_by_key[draft.state.key]}"
            if reason:
                missing[name] = reason
                continue
            names_by_key[draft.state.key] = name
            plans[name] = draft.actions
            if draft.notes:
                notes[name] = draft.notes
        return UsualPlans(self.problem, plans, missing, notes)

    # Each of these adds actions to a draft, and gives the reason if it cannot.

    def cut_examples(self, draft: _PlanDraft, axes: Iterable[str]) -> str:
        """Cut the batch; without one the edges of a graph, or the positions that lead the data."""
        groups = self.roles.groups("batch")
        if not groups and not self.roles.arguments.doubt:
            leading = self.roles.arguments.batches
            groups = self.roles.groups("edges") or tuple(
                group for group in self.roles.groups("sequence") if group in leading
            )
            if groups:
                draft.notes.append(f"there is no batch; cut by {self.roles.of_group(groups[0])}")
        if not groups:
            return f"{self.roles.doubt}. Give a list of actions instead, for instance batch->data"
        return self._cut_each(draft, groups, axes)

    def cut_all(self, draft: _PlanDraft, axes: Sequence[str]) -> str:
        """Cut the batch, and every weight along some dim that divides, on the same axes."""
        if not self.weights:
            return "no argument is a weight"
        reason = self.cut_examples(draft, axes)
        if reason:
            return reason
        cut_axes = {action.axis for action in draft.actions}
        axes = [axis for axis in axes if self.problem.mesh.axes.index(axis) in cut_axes]
        for axis in axes:
            refused: set[int] = set()
            while (group := self._heaviest(draft, axis, refused)) is not None:
                if not draft.cut(group, axis):
                    refused.add(group)
        if not any(draft.is_cut(weight, axis) for weight in self.weights for axis in axes):
            return f"{self._axes_text(axes)}: no dim of a weight divides"
        self._note_whole(draft, axes)
        return ""

    def cut_tensors(self, draft: _PlanDraft, axes: Sequence[str]) -> str:
        """Cut weights by heads, hidden dims and vocabulary, as Megatron does.

        Going forward, a weight that is still whole is cut by a dim that it makes; the next weight
        is then cut by the dim that it sums over, and its result is summed over the axis.
        """
        candidates = {group for role in TENSOR_ROLES for group in self.roles.groups(role)}
        if not candidates:
            return f"no colour plays the part of {', '.join(TENSOR_ROLES[:-1])} or outputs"
        before = len(draft.actions)
        for axis in axes:
            for product in self.roles.weight_products:
                if not draft.is_cut(product.weight, axis):
                    produced = {int(self.analysis.group[colour]) for colour in product.produced}
                    for group in sorted(produced & candidates, key=self._tensor_order):
                        if draft.cut(group, axis):
                            break
            for group in self.roles.groups("vocabulary"):
                draft.cut(group, axis)
        if len(draft.actions) == before:
            return self._why_not(sorted(candidates), *axes)
        self._note_whole(draft, axes)
        self._note_cache(draft, axes)
        return ""

    def cut_sequence(self, draft: _PlanDraft, axes: Sequence[str]) -> str:
        """Cut by position whatever the axis leaves whole."""
        groups = self.roles.groups("sequence")
        if not groups:
            return "no colour plays the part of sequence"
        # A loop takes steps one after the other: devices would wait for each other.
        walked = self.roles.walked
        groups = tuple(group for group in groups if group not in walked)
        if not groups:
            return "a loop walks the sequence step by step"
        return self._cut_each(draft, groups, axes)

    def cut_experts(self, draft: _PlanDraft, axes: Sequence[str]) -> str:
        """Give each device some experts."""
        groups = self.roles.groups("experts")
        if not groups:
            return "no colour plays the part of experts"
        names, colour = self.analysis.names, self.analysis.colour
        expert_colours = {one for group in groups for one in self.analysis.groups[group].colours}
        if not any(
            names.shardable[name] and int(colour[name]) in expert_colours & product.shared
            for product in self.roles.weight_products
            for name in self.program.factors(product.op)
        ):
            return "ragged products need all experts on every device"
        return self._cut_each(draft, groups, axes)

    def cut_graph(self, draft: _PlanDraft, axes: Sequence[str]) -> str:
        """Cut edges, and by nodes what has no edges."""
        return self._cut_each(draft, self.roles.groups("edges", "nodes"), axes)

    def cut_cache_by_batch(self, draft: _PlanDraft, axes: Sequence[str]) -> str:
        """Cut weights by hidden dims and features, and attention and its cache by batch."""
        if self.roles.is_cache_by_heads:
            return "the cache has a dim of heads, by which tensor parallelism cuts it"
        for axis in axes:
            for role in ("hidden", "vocabulary", "features", "batch"):
                for group in self.roles.groups(role):
                    draft.cut(group, axis)
        caches = self.roles.arguments.caches
        if not all(draft.is_cut(cache, axis) for cache in caches for axis in axes):
            return self._why_not(self.roles.groups("batch"), *axes)
        return ""

    def _cut_each(self, draft: _PlanDraft, groups: Sequence[int], axes: Iterable[str]) -> str:
        axes = tuple(axes)
        before = len(draft.actions)
        taken = {(action.group, self.axes[action.axis]) for action in draft.actions}
        for axis in axes:
            is_cut = [draft.cut(group, axis) for group in groups]
            if not any(is_cut) and not any((group, axis) in taken for group in groups):
                draft.notes.append(f"{axis} is left out: {self._why_not(groups, axis)}")
        if len(draft.actions) > before or any(
            (group, axis) in taken for group in groups for axis in axes
        ):
            return ""
        return self._why_not(groups, *axes)

    def _why_not(self, groups: Sequence[int], *axes: str) -> str:
        of_axis = dict(zip(self.axes, self.problem.mesh.sizes, strict=True))
        of_group = [self.analysis.groups[group].size for group in groups]
        is_left = any(size % of_axis[axis] == 0 for size in of_group for axis in axes)
        subject = f"{'what is left of ' if is_left else ''}{self._sizes(groups)}"
        return f"{self._axes_text(axes)} {'do' if len(axes) > 1 else 'does'} not divide {subject}"

    def _heaviest(self, draft: _PlanDraft, axis: str, refused: set[int]) -> int | None:
        """The group that is on most bytes of the weights that an axis does not cut yet.

        None if these weights have next to none of all bytes, or no other dim.
        """
        group_bytes: Counter[int] = Counter()
        whole_bytes = 0
        for weight in self.weights:
            if not draft.is_cut(weight, axis):
                whole_bytes += self.program.nbytes(weight)
                for group in self.weight_groups[weight] - refused:
                    group_bytes[group] += self.program.nbytes(weight)
        if whole_bytes <= LEAST_SHARE * self.weight_bytes:
            return None
        return max(group_bytes, key=lambda group: (group_bytes[group], -group), default=None)

    def _tensor_order(self, group: int) -> tuple[int, int]:
        return TENSOR_ROLES.index(self.roles.of_group(group)), group

    def _sizes(self, groups: Sequence[int]) -> str:
        named = [
            f"{self.analysis.group_name[group]} ({self.analysis.groups[group].size})"
            for group in groups
        ]
        rest = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        return ", ".join(named[:MOST_NAMED]) + rest

    def _axes_text(self, axes: Iterable[str]) -> str:
        sizes = dict(zip(self.axes, self.problem.mesh.sizes, strict=True))
        return " and ".join(f"{axis}={sizes[axis]}" for axis in axes)

    def _note_whole(self, draft: _PlanDraft, axes: Iterable[str]) -> None:
        """Note the weights that an axis leaves whole, if they have a share of the bytes."""
        for axis in axes:
            whole = [weight for weight in self.weights if not draft.is_cut(weight, axis)]
            whole_bytes = sum(map(self.program.nbytes, whole))
            if whole_bytes <= LEAST_SHARE * self.weight_bytes:
                continue
            whole.sort(key=lambda weight: (-self.program.nbytes(weight), weight))
            # Weights of several layers, and the states of one weight, are alike
            alike = Counter(
                f"{folded_path(self.program.value_name[weight])} {list(self.program.dims(weight))}"
                for weight in whole
            )
            named = list(alike)[:MOST_NAMED]
            others = len(whole) - sum(alike[name] for name in named)
            rest = f" and {others} more" if others else ""
            draft.notes.append(
                f"whole on {self._axes_text([axis])}: {', '.join(named)}{rest}, "
                f"{bytes_text(whole_bytes)} of {bytes_text(self.weight_bytes)} of weights"
            )

    def _note_cache(self, draft: _PlanDraft, axes: Iterable[str]) -> None:
        """Note the axes along which no cache is cut, and why."""
        caches = self.roles.arguments.caches
        for axis in axes:
            whole = [cache for cache in caches if not draft.is_cut(cache, axis)]
            if whole:
                name = self.program.value_name[whole[0]]
                why = (
                    "its heads do not divide"
                    if self.roles.is_cache_by_heads
                    else "it has no dim of heads: all heads share a key and a value"
                )
                draft.notes.append(
                    f"the cache is whole on {self._axes_text([axis])}, {name}: {why}"
                )
