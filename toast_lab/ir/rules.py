"""Sharding rules: Shardy's if it has one, ours for ops that it leaves out on purpose.

The rule of an op lists its factors, and which of them make up each dim of each operand and result.
Our own rules are in ``own_rules``, ``narrowing`` narrows Shardy's, and ``op_kinds`` assigns both to
kinds of ops. An op without any rule gets a separate factor for every dim, none of which may be
sharded.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from toast_lab.ir import narrowing
from toast_lab.ir.op_kinds import op_kind
from toast_lab.ir.own_rules import Rule as Rule
from toast_lab.ir.own_rules import Shapes as Shapes
from toast_lab.ir.own_rules import separate as separate
from toast_lab.ir.program import NEED_REPLICATION, PASS, PERMUTATION, REDUCTION


def from_shardy(rule: dict, operands: Shapes, results: Shapes) -> Rule:
    """Convert a decoded ``sdy.sharding_rule`` (see ``_jaxlib.rule_of``)."""
    sizes = list(rule["sizes"])
    classes = [PASS] * len(sizes)
    for role, key in (
        (REDUCTION, "reduction"),
        (NEED_REPLICATION, "need_replication"),
        (PERMUTATION, "permutation"),
    ):
        for factor in rule[key]:
            classes[factor] = role

    def mapping(dims: list[list[int]], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        mapped = []
        for factors, size in zip(dims, shape, strict=True):
            if not factors:  # a dim that the rule leaves out cannot be sharded
                sizes.append(size)
                classes.append(NEED_REPLICATION)
                factors = [len(sizes) - 1]
            # Factors of size 1 do not affect the order of a merged dim: its major factor is the
            # first larger one.
            larger = [factor for factor in factors if sizes[factor] > 1]
            mapped.append(tuple(larger or factors[:1]))
        return mapped

    operand_dims = [mapping(*pair) for pair in zip(rule["operands"], operands, strict=True)]
    result_dims = [mapping(*pair) for pair in zip(rule["results"], results, strict=True)]
    for dims in (*operand_dims, *result_dims):
        for factors in dims:
            # Splitting a minor factor alone would need a strided layout, which device-local tensors
            # do not have.
            for minor in factors[1:]:
                if classes[minor] in (PASS, REDUCTION):
                    classes[minor] = NEED_REPLICATION
    return Rule(sizes, classes, operand_dims, result_dims)


def handed_on(operands: Shapes, results: Shapes, *, shared: bool) -> Rule:
    """The rule of a value that control flow passes on unchanged.

    Each dim has one factor, which belongs to this op or (``shared``) to another.
    """
    dims: list[list[tuple[int, ...]]] = [
        [(dim,) for dim in range(len(shape))] for shape in (*operands, *results)
    ]
    sizes = [] if shared else list((*operands, *results)[0])
    return Rule(sizes, [PASS] * len(sizes), dims[: len(operands)], dims[len(operands) :])


def with_captured(rule: Rule, captured: Shapes, kind: str) -> Rule:
    """``rule`` with additional whole operands for the values that the op's region captures."""
    extra = separate(captured, [], NEED_REPLICATION)
    offset = len(rule.sizes)
    return Rule(
        sizes=rule.sizes + extra.sizes,
        classes=rule.classes + extra.classes,
        operands=rule.operands
        + [[(factors[0] + offset,) for factors in dims] for dims in extra.operands],
        results=rule.results,
        missing=rule.missing or f"{kind} uses values from outside its body",
    )


def rule_for(
    kind: str, shardy: Rule | None, operands: Shapes, results: Shapes, operation: Any = None
) -> Rule:
    """The rule of one op of ``kind``: Shardy's, else ours, else a rule that splits nothing.

    Shardy's rule is narrowed to its local factors. ``operation`` is the MLIR operation; without it,
    rules that depend on attributes are not narrowed.
    """
    facts = op_kind(kind)
    if facts.per_device:  # in the body of a shard_map, which no plan splits any further
        return separate(operands, results, NEED_REPLICATION)
    if facts.given is not None and operation is not None:
        rule = facts.given(operands, results, operation)
        if rule is not None:
            return rule
    if shardy is not None:
        return narrow(kind, shardy, operation)
    rule = facts.rule(operands, results, operation) if facts.rule is not None and results else None
    if rule is not None:
        return rule
    return separate(operands, results, NEED_REPLICATION, why_missing(kind, operation))


def narrow(kind: str, rule: Rule, operation: Any = None) -> Rule:
    """Shardy's ``rule``, with all factors that are not local marked as in need of replication."""
    facts = op_kind(kind)
    classes = list(rule.classes)
    narrowing.keep_factors_of_results(rule, classes, facts.creates_dims)
    if operation is None:
        return dataclasses.replace(rule, classes=classes)
    if facts.narrow is not None:
        facts.narrow(rule, classes, operation, monoid(kind, operation))
    if facts.stays_whole is not None and facts.stays_whole(operation):
        no_factor_shardable = [NEED_REPLICATION] * len(classes)
        return dataclasses.replace(
            rule, classes=no_factor_shardable, missing=why_missing(kind, operation)
        )
    return dataclasses.replace(rule, classes=classes)


def why_missing(kind: str, operation: Any = None) -> str:
    """Why an op of ``kind`` stays replicated, for the coverage report."""
    subject = op_kind(kind).without_rule or kind
    return f"no sharding rule for {subject if isinstance(subject, str) else subject(operation)}"


def monoid(kind: str, operation: Any) -> str:
    """How partial results of an op are combined, one of ``program.MONOIDS``."""
    facts = op_kind(kind)
    if facts.combiner_region is None:
        return facts.monoid if isinstance(facts.monoid, str) else facts.monoid(operation)
    return op_kind(narrowing.combiner(operation.regions[facts.combiner_region])).as_combiner
