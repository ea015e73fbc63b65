"""Which rules of the price act on an op, and what its price is without each.

Each rule is left out by itself (``Problem.without_rules``), and the plan is priced again: rules of
fusion move time from one op to another, so the price of the whole plan is shown, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from toast_lab.cost.price_rules import RULES
from toast_lab.cost.problem import Problem
from toast_lab.errors import ToastError, did_you_mean
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.text import Table, bytes_text, first_items_text, line_text

MOST_OPS = 20  #: that a text may match


class RuleEffect(NamedTuple):
    """A rule that acts on an op: prices without it."""

    name: str
    says: str
    time_s: float  #: of the op and of what is moved for it, without the rule
    plan_time_s: float  #: of the whole plan without the rule
    plan_peak_bytes: float  #: the same


class OpRules(NamedTuple):
    """The rules that act on one op of a plan."""

    op: int
    kind: str
    where: str  #: source line
    time_s: float  #: of the op and of what is moved for it, with all rules
    plan_time_s: float
    plan_peak_bytes: float
    effects: tuple[RuleEffect, ...]  #: in the order of ``price_rules.RULES``

    def __str__(self) -> str:
        return str(self.table) if self.effects else f"{self.table.title}; no rule acts on it"

    @property
    def table(self) -> Table:
        """The prices without each rule."""
        title = (
            f"Op {self.op}, {self.kind} at {line_text(self.where)}: {_time(self.time_s)}; the plan "
            f"{_time(self.plan_time_s)}, {bytes_text(self.plan_peak_bytes)}"
        )
        rows: list[tuple[object, ...]] = [
            (
                effect.name,
                _time(effect.time_s),
                _time(effect.plan_time_s),
                bytes_text(effect.plan_peak_bytes),
                effect.says,
            )
            for effect in self.effects
        ]
        return Table(title, ("without", ">op", ">plan", ">peak", "~the rule"), rows)


def price_rules(
    problem: Problem, plan: ShardingPlan, which: int | str | Iterable[int]
) -> list[OpRules]:
    """Which rules of the price act on an op, and what it would cost without each.

    A rule acts on an op if the time of the op, or of what is moved for it, is another one without
    the rule.

    Args:
        problem: the plan's problem.
        plan: the plan.
        which: number of an op, as in ``price(problem, plan).ops``, or several numbers; or a text: a
            kind of op ("dot_general"), the name of a result, or part of a source line
            ("model.py:31") of the op or else of its callers.

    Raises:
        InvalidPlan: the plan belongs to another program or mesh.
        ToastError: no op matches, or a text matches more than ``MOST_OPS``.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("mlp", batch=4096)), {"data": 4})
        >>> rules = tl.price_rules(problem, tl.replicated(problem), "dot_general")[0]
        >>> rules.kind, "memory_sustained" in [effect.name for effect in rules.effects]
        ('dot_general', True)
    """
    plan.check_is_of(problem.analysis.program, problem.mesh)
    ops = _chosen(problem, which)
    base = _Priced(problem, plan)
    effects: dict[int, list[RuleEffect]] = {op: [] for op in ops}
    for rule in RULES:
        if problem.machine.compiler not in rule.compilers:
            continue
        without = _Priced(problem.without_rules(rule.name), plan)
        acts = ~np.isclose(without.op_time_s, base.op_time_s, rtol=1e-6, atol=0.0)
        for op in filter(acts.item, ops):
            effects[op].append(
                RuleEffect(
                    name=rule.name,
                    says=rule.says,
                    time_s=float(without.op_time_s[op]),
                    plan_time_s=without.time_s,
                    plan_peak_bytes=without.peak_bytes,
                )
            )
    program = problem.analysis.program
    return [
        OpRules(
            op=op,
            kind=program.kind[op],
            where=program.where(op),
            time_s=float(base.op_time_s[op]),
            plan_time_s=base.time_s,
            plan_peak_bytes=base.peak_bytes,
            effects=tuple(effects[op]),
        )
        for op in ops
    ]


class _Priced:
    """A plan's price by op."""

    def __init__(self, problem: Problem, plan: ShardingPlan) -> None:
        totals = problem.pricer().totals(plan.op_factor, plan.value_dim)
        op, time_s = totals.steps.op[: totals.n_steps], totals.each.time_s[: totals.n_steps]
        self.op_time_s = np.bincount(op, time_s, minlength=problem.analysis.program.n_ops)
        self.time_s, self.peak_bytes = totals.time_s, totals.peak_bytes


def _chosen(problem: Problem, which: int | str | Iterable[int]) -> list[int]:
    """The ops that are asked about, in the order of the program."""
    program = problem.analysis.program
    first, n_ops = program.n_arguments, program.n_ops
    if not isinstance(which, str):
        ops = [which] if isinstance(which, int) else [int(op) for op in which]
        unknown = [op for op in ops if not first <= op < n_ops]
        if unknown:
            texts = ", ".join(map(str, unknown))
            raise ToastError(
                f"this program has no op {texts}: its ops have the numbers {first} to {n_ops - 1}"
            )
        return ops
    if which.isdecimal():
        return _chosen(problem, int(which))
    ops = list(range(first, n_ops))
    names = [{program.value_name[value] for value in program.results(op)} for op in range(n_ops)]
    matching = (
        [op for op in ops if which == program.kind[op] or which in names[op]]
        or [op for op in ops if which in program.where(op)]
        or [op for op in ops if which in program.locations[int(program.location[op])]]
    )
    if not matching:
        known = sorted({program.kind[op] for op in ops} | set().union(*names[first:]))
        raise ToastError(
            f"no op has the number, kind, result or source line {which!r}"
            f"{did_you_mean(which, known)}; toast-lab price --json lists all of them"
        )
    if len(matching) > MOST_OPS:
        listed = [f"{op} ({program.kind[op]})" for op in matching]
        raise ToastError(
            f"{len(matching)} ops match {which!r}, ask about at most {MOST_OPS}: "
            f"{first_items_text(listed, 10)}"
        )
    return matching


def _time(time_s: float) -> str:
    return f"{time_s * 1e6:.2f} us" if time_s < 1e-3 else f"{time_s * 1e3:.3f} ms"
