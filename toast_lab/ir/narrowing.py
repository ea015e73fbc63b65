"""Where Shardy's rule claims more than is local.

Shardy's rules serve propagation: a factor says "shard these dims alike", and the partitioner puts
in whatever communication that takes.  Ours must say more.  A factor that may be sharded promises
that the op computed on local shards gives the local shards of its result (pass factor) or partial
results that the op's monoid combines (reduction factor), with no further communication: that is
what the steps of a plan consist of and what they are priced as.  The functions here take back each
factor that breaks the promise, with the reason beside it; two that Shardy holds back although they
are local are given (windows that do not overlap, right-hand sides of a triangular solve).
``op_kinds`` says which kind needs which; all of them change the factors' roles in place.  What
"computed on local shards" means for ops with indices is written in the certification of the rules
(``tests/certification/rules``), which executes every factor of every kind.

jaxlib is imported where an op is read, see ``own_rules``.

Reference: TOAST section 3.1 (the identities I of an op).  Start reading at
``keep_what_results_carry``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from toast_lab.ir import own_rules
from toast_lab.ir import program as p
from toast_lab.ir.own_rules import Rule, Shapes


def _majors(dims: list[tuple[int, ...]]) -> list[int]:
    return [factors[0] for factors in dims]


def keep_what_results_carry(rule: Rule, classes: list[int], generates: bool) -> None:
    """Keep as pass factors only those that stand on every result.

    With any other, a part of the result would be computed from part of the input.

    Found on reshapes whose sizes share no divisor (3x4 to 4x3 gives each side a factor of its own)
    and on the rules that JAX writes on linear algebra calls, where only the batch dims are tied.  A
    factor on results alone has nothing to do with the operands: the op is computed whole and its
    result sliced, which a plan says anyway; unless the op ``generates`` its dims out of nothing.
    """
    results = [set(_majors(dims)) for dims in rule.results]
    operands = {f for dims in rule.operands for f in _majors(dims)}
    for factor, role in enumerate(classes):
        if role == p.REDUCTION and any(factor in factors for factors in results):
            classes[factor] = p.NEED_REPLICATION
        if role != p.PASS or generates:
            continue
        if factor not in operands or not all(factor in factors for factors in results):
            classes[factor] = p.NEED_REPLICATION


def narrow_call(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """What cannot be computed shard by shard stays whole.

    Shardy ties the matrix dims of an eigendecomposition to those of its result, and the sorted dim
    of a top-k to that of its result where k is the whole dim.
    """
    ours = own_rules.custom_call(*_shapes(op), op)
    if ours is None:
        return
    ours_local = {
        (t, d)
        for t, dims in enumerate(ours.operands)
        for d, f in enumerate(dims)
        if ours.classes[f[0]] == p.PASS
    }
    for tensor, dims in enumerate(rule.operands):
        for dim, factors in enumerate(dims):
            if (tensor, dim) not in ours_local:
                classes[factors[0]] = p.NEED_REPLICATION


def _shapes(op: Any) -> tuple[Shapes, Shapes]:
    from toast_lab._jaxlib import ir

    def of(values: Any) -> Shapes:
        return [
            tuple(v.type.shape) if isinstance(v.type, ir.RankedTensorType) else () for v in values
        ]

    return of(op.operands), of(op.results)


def narrow_pad(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """A padded dim stays whole.

    Even low=1, high=-1, which keeps its size, shifts every element into its neighbour's place.
    """
    rows = zip(*(own_rules.ints(op, f"{k}_padding{e}") or [] for k, e in _PAD_KEYS), strict=True)
    for factors, amounts in zip(rule.operands[0], rows, strict=True):
        if any(amounts):
            classes[factors[0]] = p.NEED_REPLICATION


_PAD_KEYS = (("edge", "_low"), ("edge", "_high"), ("interior", ""))

_NEUTRAL: dict[str, Callable[[str], bool]] = {
    "add": lambda text: _number(text) in (0, 0j) or text == "false",
    "mul": lambda text: _number(text) == 1 or text == "true",
}


def narrow_reduce(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """A sum or product can be split only if it starts from zero or one.

    Every shard starts from the init value, and so does XLA's partitioner (seen with jaxlib 0.10.2):
    a sum over 4 shards with init 5 comes out 15 too large.  Taking an init twice does no harm to
    max, min, and, or.
    """
    half = len(op.operands) // 2
    neutral = _NEUTRAL.get(monoid)
    if neutral is not None and not all(neutral(splat(v)) for v in list(op.operands)[half:]):
        _no_reduction(classes)
    narrow_bitwise(rule, classes, op, monoid)


def narrow_bitwise(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """No collective combines the bits of integers.

    Of bools, ``and`` and ``or`` are a minimum and a maximum.

    XLA's CPU compiler says "unsupported reduction computation", and NCCL has none either.
    """
    if monoid in ("and", "or") and str(op.results[0].type.element_type) != "i1":
        _no_reduction(classes)


def _no_reduction(classes: list[int]) -> None:
    for factor, role in enumerate(classes):
        if role == p.REDUCTION:
            classes[factor] = p.NEED_REPLICATION


def narrow_update(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """A dim that is updated in part passes if the update is one element long.

    One element falls into one shard, which is how a cache is written in decoding.  A longer update
    may straddle two, and XLA gathers the whole operand for it (seen in CPU and TPU programs).
    Shardy lets both pass in jaxlib 0.10.2 and neither in 0.12.
    """
    (operand, update, *_), _ = _shapes(op)
    for dim, factors in enumerate(rule.operands[0]):
        if update[dim] == operand[dim]:
            continue
        local = update[dim] == 1 and rule.results[0][dim][0] == factors[0]
        classes[factors[0]] = p.PASS if local else p.NEED_REPLICATION


def splat(value: Any) -> str:
    """The one number of a splat constant as MLIR prints it.

    It is "" if ``value`` is no splat constant.
    """
    from toast_lab._jaxlib import constant_text

    owner = value.owner
    # As ``OpKind.keeps_number`` says, which is above this module.
    while getattr(owner, "name", "") in (
        "stablehlo.broadcast_in_dim",
        "stablehlo.reshape",
        "stablehlo.convert",
    ):
        owner = owner.operands[0].owner
    if getattr(owner, "name", "") != "stablehlo.constant":
        return ""
    match = re.match(r"^dense<([^<>\[\]\"]+)> : ", constant_text(owner))
    return match.group(1) if match else ""


def _number(text: str) -> complex | None:
    try:
        if text.startswith("("):
            real, imaginary = text.strip("()").split(",")
            return complex(float(real), float(imaginary))
        return float(text)
    except ValueError:
        return None


def combiner(region: Any) -> str:
    """The StableHLO op that the body of a reduction or scatter applies to its arguments.

    It is "" if the body does more.
    """
    block = region.blocks[0]
    ops = list(block.operations)
    if len(ops) != 2 or len(block.arguments) != 2:
        return ""
    first, last = ops[0].operation, ops[1].operation
    # Both arguments once, and nothing else: add(b, b) is no sum.
    both = list(first.operands) in (list(block.arguments), list(block.arguments)[::-1])
    if not both or list(last.operands) != list(first.results):
        return ""
    return str(first.name).removeprefix("stablehlo.")


def narrow_convolution(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """A spatial dim is local where windows neither overlap nor leave gaps.

    Else neighbours are needed.

    Then windows pass (Shardy calls them a permutation in any case): patch embeddings and 1x1
    convolutions.  The window dim as a reduction is exact only where there is one window and it is
    the whole dim.
    """
    from toast_lab._jaxlib import ir

    if ir.IntegerAttr(op.attributes["batch_group_count"]).value > 1:
        # The contraction is local, but XLA sums over the whole mesh: on d=2, m=4, sharded on d,
        # four times the value comes out (jaxlib 0.10.2 and 0.12.0.1; docs/certification.md has the
        # reproducer).
        _no_reduction(classes)
    lhs, kernel, out = _conv_dims(str(op.attributes["dimension_numbers"]))
    count = len(lhs)
    (left, right), (result,) = _shapes(op)
    strides = own_rules.ints(op, "window_strides") or [1] * count
    dilations = [own_rules.ints(op, key) or [1] * count for key in ("lhs_dilation", "rhs_dilation")]
    padding = _padding(op, count)
    turned = (
        "true" in str(op.attributes["window_reversal"])
        if "window_reversal" in op.attributes
        else False
    )
    for i in range(count):
        n, window, windows = left[lhs[i]], right[kernel[i]], result[out[i]]
        plain = padding[i] == (0, 0) and all(d[i] == 1 for d in dilations) and n == window * windows
        exact = plain and (strides[i] == window or windows == 1)
        for factor in {rule.operands[0][lhs[i]][0], rule.operands[1][kernel[i]][0]}:
            if classes[factor] == p.REDUCTION and not (
                exact and windows == 1 and (not turned or window == 1)
            ):
                classes[factor] = p.NEED_REPLICATION
        factor = rule.results[0][out[i]][0]
        if factor == rule.operands[0][lhs[i]][0] and rule.sizes[factor] == windows and exact:
            classes[factor] = p.PASS


def _conv_dims(text: str) -> tuple[list[int], list[int], list[int]]:
    """Spatial dims of input, kernel and output of a convolution.

    They are read from ``#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>``.
    """
    parts = re.findall(r"\[([^\]]*)\]", text)

    def dims(part: str) -> list[int]:
        labels = [label.strip() for label in part.split(",")]
        return [labels.index(str(i)) for i in range(len(labels) - 2)]

    lhs, kernel, out = parts[:3]
    return dims(lhs), dims(kernel), dims(out)


def _padding(op: Any, count: int) -> list[tuple[int, int]]:
    from toast_lab._jaxlib import ir

    if "padding" not in op.attributes:
        return [(0, 0)] * count
    numbers: list[int] = (
        np.asarray(ir.DenseIntElementsAttr(op.attributes["padding"])).reshape(-1).tolist()
    )
    return [(numbers[2 * i], numbers[2 * i + 1]) for i in range(count)]


def narrow_triangular_solve(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """Each right-hand side is solved on its own (Shardy keeps that dim whole).

    The triangle itself stays whole.
    """
    side = -1 if str(op.attributes["left_side"]) == "true" else -2
    factor = rule.operands[1][side][0]
    if factor == rule.results[0][side][0] and factor not in _majors(rule.operands[0]):
        classes[factor] = p.PASS
