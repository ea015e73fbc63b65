"""Sharding rules: Shardy's where it has one, ours where it has none on purpose.

A rule says, for one op, which factors there are and which factors make up each dim of each operand and
result.  Our own rules are few: elementwise CHLO ops, ``optimization_barrier``, constants and iota.  An op
with no rule at all gets a factor of its own for every dim, none of which may be sharded.
"""

from __future__ import annotations

import dataclasses

from toast_lab.ir import kinds
from toast_lab.ir import program as p

Shapes = list[tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """One op's rule; factor indices are local to the op, the major factor of a dim comes first."""

    sizes: list[int]
    classes: list[int]
    operands: list[list[tuple[int, ...]]]
    results: list[list[tuple[int, ...]]]
    missing: str = ""  # why there is no rule, empty when there is one


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


def elementwise(operands: Shapes, results: Shapes) -> Rule:
    """Every dim of one shape is one factor; scalars join in."""
    shape = results[0]
    dims: list[tuple[int, ...]] = [(i,) for i in range(len(shape))]
    return Rule(
        list(shape),
        [p.PASS] * len(shape),
        [dims if s == shape else [] for s in operands],
        [dims for _ in results],
    )


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


def handed_on(operands: Shapes, results: Shapes, *, shared: bool) -> Rule:
    """A value that control flow hands on as it is: one factor a dim, its own or (``shared``) those of another op."""
    dims: list[list[tuple[int, ...]]] = [[(i,) for i in range(len(shape))] for shape in (*operands, *results)]
    sizes = [] if shared else list((*operands, *results)[0])
    return Rule(sizes, [p.PASS] * len(sizes), dims[: len(operands)], dims[len(operands) :])


def with_captured(rule: Rule, captured: Shapes, kind: str) -> Rule:
    """``rule`` with the values that the op's region uses without naming them as operands: they stay whole."""
    extra = separate(captured, [], p.NEED_REPLICATION)
    offset = len(rule.sizes)
    return Rule(
        rule.sizes + extra.sizes,
        rule.classes + extra.classes,
        rule.operands + [[(f[0] + offset,) for f in dims] for dims in extra.operands],
        rule.results,
        rule.missing or f"{kind} uses outer values in its body",
    )


def rule_for(kind: str, shardy: dict | None, operands: Shapes, results: Shapes) -> Rule:
    """The rule of one op of ``kind``: Shardy's, else ours, else an all-replicated one with the reason."""
    if shardy is not None:
        return from_shardy(shardy, operands, results)
    if kind in kinds.CONSTANTS:
        return separate(operands, results, p.PASS)
    same = all(s == results[0] or s == () for s in (*operands, *results)) if results else False
    if kind in kinds.CHLO_ELEMENTWISE and same:
        return elementwise(operands, results)
    if kind == "optimization_barrier":
        return identity(operands)
    return separate(operands, results, p.NEED_REPLICATION, f"no sharding rule for {kind}")
