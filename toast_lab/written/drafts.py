"""Drafts of written plans: what is written, and the price of what propagation makes of it.

A draft gives each *role* of arguments a layout, and some sites a layout. ``Drafts`` propagates and
prices drafts, each once, within milliseconds. Its propagation imitates Shardy's; the search has
the drafts that it ends with propagated by Shardy itself (see ``agreed``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from toast_lab.cost.problem import Problem, Quick
from toast_lab.ir.argument_paths import folded_path, own_words
from toast_lab.ir.program import Program
from toast_lab.ir.sites import Sites
from toast_lab.ragged import Ragged
from toast_lab.search.terms.menus import unpacked_layouts
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan, Spec
from toast_lab.sharding.sharding import Sharding
from toast_lab.written import propagation_kernel
from toast_lab.written.propagation import WrittenPropagation
from toast_lab.written.sharding_rules import rules_of, rules_of_paths
from toast_lab.written.written_plan import ShardingRule, WrittenSize

#: The dim that each mesh axis cuts, -1: none.
Layout = tuple[int, ...]


class Draft(NamedTuple):
    """What is written."""

    roles: tuple[Layout, ...]  #: the layout of each role of arguments
    constraints: frozenset[tuple[int, Layout]]  #: (number of the site, layout)

    def with_site(self, site: int, layout: Layout) -> Draft:
        """The draft with another constraint, in place of the one that the site has."""
        return self._replace(constraints=self.without(site).constraints | {(site, layout)})

    def without(self, *sites: int) -> Draft:
        """The draft without the constraints of these sites."""
        return self._replace(
            constraints=frozenset(item for item in self.constraints if item[0] not in sites)
        )


class DraftRow(NamedTuple):
    """A draft with its price and size."""

    draft: Draft
    cost: Quick
    size: WrittenSize


class Drafts:
    """Propagates and prices drafts of one problem."""

    def __init__(self, problem: Problem, sites: Sites) -> None:
        self.problem, self.program = problem, problem.analysis.program
        self.sites = sites.sites
        self.pricer = problem.pricer()
        self.propagation = WrittenPropagation(problem.analysis, problem.mesh)
        #: role of each argument, and of results that follow an argument, by their numbers
        self.role_of, self.results = _roles(self.program)
        self.members = [
            np.flatnonzero(self.role_of == role) for role in range(self.role_of.max(initial=-1) + 1)
        ]
        #: arguments that stand for all of their role where rules are counted
        self.samples = [int(argument) for members in self.members for argument in members[:2]]
        self.uses_of = Ragged.by_key(self.program.use_value, self.program.n_values)
        numbers: dict[tuple[int, ...], int] = {}
        #: of each value, the number of its dims in ``all_dims``
        self.dims_of = np.array(
            [
                numbers.setdefault(self.program.dims(value), len(numbers))
                for value in range(self.program.n_values)
            ],
            np.int64,
        )
        self.all_dims = list(numbers)
        self.own_constraints = _own_constraints(self.program, problem.mesh)
        self.priced: dict[Draft, Quick] = {}
        self.rule_counts: dict[tuple[Layout, ...], int] = {}

    # -- layouts ----------------------------------------------------------------------------------
    def spec(self, layout: Layout, rank: int) -> Spec:
        """Mesh axes per dim of a layout."""
        axes = self.problem.mesh.axes
        return tuple(
            tuple(axis for axis, cut in zip(axes, layout, strict=True) if cut == dim)
            for dim in range(rank)
        )

    def fits(self, layout: Layout, sizes: Sequence[int]) -> bool:
        """Can a tensor of these sizes be cut so?"""
        ways: dict[int, int] = {}
        for dim, size in zip(layout, self.problem.mesh.sizes, strict=True):
            if dim >= 0:
                ways[dim] = ways.get(dim, 1) * size
        return all(dim < len(sizes) and sizes[dim] % count == 0 for dim, count in ways.items())

    def role_layouts(self, plan: ShardingPlan) -> tuple[Layout, ...]:
        """The layout that most arguments of each role have under a plan."""
        kept = plan.kept_layouts()[: self.program.n_arguments]
        rows = _tuples(unpacked_layouts(kept, len(self.problem.mesh.axes)))
        return tuple(
            _most_frequent(rows[argument] for argument in members) for members in self.members
        )

    def options(self, plan: ShardingPlan) -> list[tuple[int, Layout]]:
        """Constraints that a plan suggests, for each site its own layout first.

        The others are those in which its readers want it, the same with fewer axes, and those that
        any value of the same dims has or is read in: propagation may need one upstream of where
        the plan has it.
        """
        program, n_axes = self.program, len(self.problem.mesh.axes)
        suggested = dict[tuple[int, Layout], None]()
        kept = unpacked_layouts(plan.lowered.layouts, n_axes)
        wanted = unpacked_layouts(plan.lowered.wanted, n_axes)
        of_dims: dict[tuple[int, ...], list[Layout]] = {}
        dims_of_all = np.concatenate([self.dims_of, self.dims_of[program.use_value]])
        rows = np.column_stack([dims_of_all, np.concatenate([kept, wanted])])
        for dims, *layout in np.unique(rows, axis=0).tolist():
            of_dims.setdefault(self.all_dims[dims], []).append(tuple(layout))
        distinct: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        for number, site in enumerate(self.sites):
            if site.values and site.rank and not site.refusal:
                distinct.setdefault((site.values, site.cotangents), number)
        for number in distinct.values():
            site = self.sites[number]
            layouts = [
                _most_frequent(_tuples(kept[list(own_values)]))
                for own_values in (site.values, site.cotangents)
                if own_values
            ]
            layouts += _tuples(wanted[self.uses_of.row(site.values[-1])])
            sizes = program.dims(site.values[0])
            parts = [part for layout in layouts for part in _parts(layout)]
            suggested.update(
                dict.fromkeys(
                    (number, layout)
                    for layout in (*parts, *of_dims[sizes])
                    if self.fits(layout, sizes)
                )
            )
        return list(suggested)

    # -- size -------------------------------------------------------------------------------------
    def rules(self, draft: Draft) -> tuple[ShardingRule, ...]:
        """The rules that shard the arguments as the draft says."""
        return rules_of(self.program, self.argument_specs(draft, range(self.program.n_arguments)))

    def argument_specs(self, draft: Draft, arguments: Iterable[int]) -> list[Spec]:
        """Mesh axes per dim of these arguments."""
        return [
            self.spec(draft.roles[self.role_of[argument]], len(self.program.dims(argument)))
            for argument in arguments
        ]

    def result_specs(self, draft: Draft) -> dict[int, Spec]:
        """Mesh axes per dim of the results that follow an argument, by their numbers."""
        program = self.program
        return {
            number: self.spec(draft.roles[role], len(program.dims(program.outputs[number])))
            for number, role in self.results.items()
        }

    def size(self, draft: Draft) -> WrittenSize:
        """The number of rules and constraints of a draft."""
        if draft.roles not in self.rule_counts:
            specs = self.argument_specs(draft, self.samples)
            paths = [self.program.value_name[argument] for argument in self.samples]
            self.rule_counts[draft.roles] = len(rules_of_paths(paths, specs))
        return WrittenSize(self.rule_counts[draft.roles], len(draft.constraints))

    # -- meaning ----------------------------------------------------------------------------------
    def constrained(self, draft: Draft) -> dict[int, Layout]:
        """The layout of each value at a site that the draft constrains."""
        return {
            value: layout
            for number, layout in sorted(draft.constraints)
            for value in (*self.sites[number].values, *self.sites[number].cotangents)
        }

    def propagated(self, draft: Draft) -> Sharding:
        """The sharding of every op and value that propagation makes of a draft."""
        return self._propagated([draft.roles[role] for role in self.role_of.tolist()], draft)

    def _propagated(self, layouts: Sequence[Layout], draft: Draft) -> Sharding:
        """The same with a layout of each argument, for what the roles of the draft say."""
        sharding = self.propagation.run(
            dict(enumerate(layouts)),
            self.own_constraints | self.constrained(draft),
            {number: layouts[self.members[role][0]] for number, role in self.results.items()},
        )
        drop_uneven(self.program, self.problem.mesh, sharding)
        return sharding

    def price(self, draft: Draft) -> Quick:
        """The price of a draft."""
        if draft not in self.priced:
            self.priced[draft] = self.price_of(self.propagated(draft))
        return self.priced[draft]

    def price_without(
        self, draft: Draft, rules: Sequence[ShardingRule], rule: ShardingRule
    ) -> Quick:
        """The price of a draft without one of its rules.

        The rule's arguments are left to the first rule after it that matches them and divides
        them, or whole.
        """
        mesh, layouts = self.problem.mesh, [draft.roles[role] for role in self.role_of.tolist()]
        later = rules[rules.index(rule) + 1 :]
        for argument in rule.arguments:
            path, sizes = self.program.value_name[argument], self.program.dims(argument)
            matching = (other.spec for other in later if re.search(other.pattern, path))
            layout = mesh.cut_dims(next(matching, ()))
            layouts[argument] = layout if self.fits(layout, sizes) else mesh.cut_dims(())
        return self.price_of(self._propagated(layouts, draft))

    def row(self, draft: Draft) -> DraftRow:
        """A draft with its price and size."""
        return DraftRow(draft, self.price(draft), self.size(draft))

    def price_of(self, sharding: Sharding) -> Quick:
        """The price of any sharding of the program.

        One that breaks pins does not fit, and C(s) grows with every place that does.
        """
        quick, pins = self.pricer.of_sharding(*sharding), self.problem.pins
        broken = 0 if pins is None else len(pins.broken(*sharding))
        return quick._replace(score=quick.score * (1 + broken), fits=False) if broken else quick


def _roles(program: Program) -> tuple[np.ndarray, dict[int, int]]:
    """The role of each argument, [n_arguments], and of the results that follow one, by number.

    Arguments of one role have one layout in every draft: those of repeated layers, and the states
    of an optimizer with their parameter.
    """
    words = [
        tuple(map(folded_path, parts))
        for parts in own_words(program.value_name[: program.n_arguments])
    ]
    role_of_key: dict[object, int] = {}
    roles = [
        role_of_key.setdefault((words[argument], len(program.dims(argument))), len(role_of_key))
        for argument in range(program.n_arguments)
    ]
    # A result's path begins with its place in the result, an argument's with a name; one of a tree
    # of its own kind still has the name of that tree
    below_root: dict[object, set[int]] = {}
    for argument, role in enumerate(roles):
        own, dims = words[argument], program.dims(argument)
        for begin in range(min(2, len(own))):
            below_root.setdefault((tuple(own[begin:]), dims), set()).add(role)
    results = {}
    for number, value in enumerate(program.outputs.tolist()):
        own = tuple(map(folded_path, own_words([program.output_paths[number]])[0]))
        for begin in range(len(own)):
            matching_roles = below_root.get((own[begin:], program.dims(value)), set())
            if matching_roles:
                if len(matching_roles) == 1:
                    (results[number],) = matching_roles
                break
    return np.asarray(roles, np.int64), results


def _own_constraints(program: Program, mesh: Mesh) -> dict[int, Layout]:
    """The constraints that the user's code has already, as far as they are on this mesh."""
    return {
        row.value: mesh.cut_dims(row.spec)
        for row in program.annotations
        if row.kind == "constraint"
        and not row.trouble
        and row.mesh == tuple(zip(mesh.axes, mesh.sizes, strict=True))
        and not any("*" in axes for axes in row.spec)
    }


def drop_uneven(program: Program, mesh: Mesh, sharding: Sharding) -> None:
    """Leave dims and factors whole that their axes do not divide, in place.

    Shardy cuts them all the same, and XLA pads them. Padding is not priced: that such a dim is
    whole is what it costs at most.
    """
    axis_size, first_dim = mesh.array(), program.shape_ptr[:-1].astype(np.int64)
    value_dim = sharding.value_dim.astype(np.int32)
    propagation_kernel.drop_uneven(value_dim, program.shape, first_dim, axis_size)
    sharding.value_dim[:] = value_dim
    factors_of_all = np.zeros(program.n_ops, np.int64)
    propagation_kernel.drop_uneven(
        sharding.op_factor, program.factor_size, factors_of_all, axis_size
    )


def _parts(layout: Layout) -> Iterator[Layout]:
    """A layout, and the same without each of its axes, and without any."""
    yield layout
    for axis, dim in enumerate(layout):
        if dim >= 0:
            yield (*layout[:axis], -1, *layout[axis + 1 :])
    yield (-1,) * len(layout)


def _tuples(rows: np.ndarray) -> list[Layout]:
    return list(map(tuple, rows.tolist()))


def _most_frequent(layouts: Iterable[Layout]) -> Layout:
    return Counter(layouts).most_common(1)[0][0]
