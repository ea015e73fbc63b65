"""Sharding rules: Shardy's where it has one, ours where it has none on purpose.

A rule says, for one op, which factors there are and which factors make up each dim of each operand and
result.  Our own rules, and where Shardy's are narrowed, stand in ``own_rules``.  An op with no rule at all
gets a factor of its own for every dim, none of which may be sharded.
"""

from __future__ import annotations

from typing import Any

from toast_lab.ir import kinds, own_rules
from toast_lab.ir import program as p
from toast_lab.ir.own_rules import Rule as Rule
from toast_lab.ir.own_rules import Shapes as Shapes


def from_shardy(rule: dict, operands: Shapes, results: Shapes) -> Rule:
    """Convert a decoded ``sdy.sharding_rule`` (see ``_jaxlib.rule_of``)."""
    sizes = list(rule["sizes"])
    classes = [p.PASS] * len(sizes)
    for role, key in (
        (p.REDUCTION, "reduction"),
        (p.NEED_REPLICATION, "need_replication"),
        (p.PERMUTATION, "permutation"),
    ):
        for factor in rule[key]:
            classes[factor] = role

    def mapping(dims: list[list[int]], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        out = []
        for factors, size in zip(dims, shape, strict=True):
            if not factors:  # a dim that the rule leaves out cannot be sharded
                sizes.append(size)
                classes.append(p.NEED_REPLICATION)
                factors = [len(sizes) - 1]
            # Factors of size 1 say nothing about the order of a merged dim, so the first larger one leads.
            real = [f for f in factors if sizes[f] > 1] or factors[:1]
            out.append(tuple(real))
        return out

    mapped_operands = [mapping(m, s) for m, s in zip(rule["operands"], operands, strict=True)]
    mapped_results = [mapping(m, s) for m, s in zip(rule["results"], results, strict=True)]
    for dims in (*mapped_operands, *mapped_results):
        for factors in dims:
            # A minor factor alone would need a strided layout, which no device-local tensor has here.
            for minor in factors[1:]:
                if classes[minor] in (p.PASS, p.REDUCTION):
                    classes[minor] = p.NEED_REPLICATION
    return Rule(sizes, classes, mapped_operands, mapped_results)


def identity(operands: Shapes) -> Rule:
    """Operand i passes through as result i (``optimization_barrier``)."""
    sizes: list[int] = []
    maps: list[list[tuple[int, ...]]] = []
    for shape in operands:
        maps.append([(len(sizes) + i,) for i in range(len(shape))])
        sizes.extend(shape)
    return Rule(sizes, [p.PASS] * len(sizes), maps, maps)


def separate(operands: Shapes, results: Shapes, role: int, missing: str = "") -> Rule:
    """A factor of its own for every dim of every tensor."""
    sizes: list[int] = []

    def take(shapes: Shapes) -> list[list[tuple[int, ...]]]:
        out: list[list[tuple[int, ...]]] = []
        for shape in shapes:
            out.append([(len(sizes) + i,) for i in range(len(shape))])
            sizes.extend(shape)
        return out

    ops, res = take(operands), take(results)
    return Rule(sizes, [role] * len(sizes), ops, res, missing)


def rule_for(kind: str, shardy: dict | None, operands: Shapes, results: Shapes, operation: Any = None) -> Rule:
    """The rule of one op of ``kind``: Shardy's where it is local, else ours, else one that keeps all replicated.

    ``operation`` is the MLIR operation; without it, rules that depend on attributes are left as Shardy has them.

    Raises:
        UnsupportedOp: the op belongs to a program that is already split over devices.
    """
    if shardy is not None:
        return own_rules.narrow(kind, from_shardy(shardy, operands, results), operation)
    if kind in kinds.CONSTANTS:
        return separate(operands, results, p.PASS)
    if kind == "optimization_barrier":
        return identity(operands)
    rule = own_rules.own(kind, operation, operands, results)
    if rule is not None:
        return rule
    return separate(operands, results, p.NEED_REPLICATION, own_rules.why_missing(kind, operation))
