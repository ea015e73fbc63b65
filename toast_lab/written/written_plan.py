"""``WrittenPlan``: rules of arguments and constraints on values, with what they lead to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from toast_lab.cost.problem import Cost, Problem, Quick
from toast_lab.ir.sites import Site
from toast_lab.search.action_path import PathStep
from toast_lab.sharding.plan import ShardingPlan, Spec
from toast_lab.text import counted


class WrittenSize(NamedTuple):
    """The amount of text that a person has to write."""

    rules: int
    constraints: int

    @property
    def total(self) -> int:
        """Rules and constraints together."""
        return self.rules + self.constraints

    def __str__(self) -> str:
        return f"{counted(self.rules, 'rule')} and {counted(self.constraints, 'constraint')}"


class ShardingRule(NamedTuple):
    """A pattern of argument paths and the sharding of all arguments that it matches.

    The states of an optimizer that follow their parameter match the parameter's rule, and so do
    results whose paths match.
    """

    #: regular expression, searched for in paths as ``jax.tree_util.keystr`` writes them; the first
    #: rule that matches a path decides
    pattern: str
    words: str  #: the role, as people say it: ``wq``, or ``down[*].conv1``
    spec: Spec  #: mesh axes per dim
    arguments: tuple[int, ...]  #: those that it decides


class SiteConstraint(NamedTuple):
    """A sharding of all values of a site."""

    site: Site
    spec: Spec  #: mesh axes per dim


@dataclasses.dataclass(frozen=True, eq=False)
class WrittenPlan:
    """Rules, constraints, and the plan that propagation makes of them."""

    problem: Problem
    rules: tuple[ShardingRule, ...]
    constraints: tuple[SiteConstraint, ...]  #: in program order
    plan: ShardingPlan  #: every op and value as propagation shards it
    cost: Cost  #: price of ``plan``
    #: the shardings of results that follow an argument, by their numbers; JAX chooses the others
    results: Mapping[int, Spec] = dataclasses.field(default_factory=dict, repr=False)
    #: files with sites and the digests of their texts when the sites were found
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    #: price of the plan without each rule and each constraint, as ``Drafts`` propagates it
    without: Mapping[ShardingRule | SiteConstraint, Quick] = dataclasses.field(
        default_factory=dict, repr=False
    )
    #: the way to the plan that it was written for, in actions
    path: tuple[PathStep, ...] = dataclasses.field(default=(), repr=False)
    #: cost of the plan that it was written for, all of whose ops are sharded
    unlimited: Cost | None = None

    @property
    def size(self) -> WrittenSize:
        """Numbers of rules and constraints."""
        return WrittenSize(len(self.rules), len(self.constraints))

    def argument_specs(self) -> list[Spec]:
        """Mesh axes per dim of each argument, as the rules shard it."""
        program = self.problem.analysis.program
        specs: list[Spec] = [()] * program.n_arguments
        for rule in self.rules:
            for argument in rule.arguments:
                specs[argument] = rule.spec
        return [
            (*spec, *[()] * (len(program.dims(argument)) - len(spec)))
            for argument, spec in enumerate(specs)
        ]

    @property
    def loss(self) -> float:
        """How much higher its C(s) is than that of the unlimited plan, as a share of the latter."""
        if self.unlimited is None:
            return 0.0
        return self.cost.score / self.unlimited.score - 1.0
