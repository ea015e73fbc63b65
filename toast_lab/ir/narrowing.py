"""Take back the factors of Shardy's rules that are not local.

Shardy's rules serve propagation: a factor says "shard these dims alike", and the partitioner adds
whatever communication that takes.  Ours promise more.  The op computed on local shards gives the
local shards of its result (pass factor) or partial results that the op's monoid combines (reduction
factor), with no further communication; the steps of a plan and their prices rest on it.  Each
function here takes back the factors that break the promise, and says why.  Two kinds of factors
that Shardy withholds although they are local are granted: windows that do not overlap, and
right-hand sides of a triangular solve.  ``op_kinds`` says which kind needs which function; all of
them change the factors' roles in place.  The certification of the rules
(``tests/certification/rules``) executes every factor of every kind, and defines "computed on local
shards" for ops with indices.

jaxlib is imported where an op is read, see ``own_rules``.

Reference: TOAST section 3.1 (the identities I of an op).  Start reading at
``keep_factors_of_results``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from toast_lab.ir import own_rules
from toast_lab.ir.own_rules import Rule, Shapes
from toast_lab.ir.program import NEED_REPLICATION, PASS, REDUCTION


def _majors(dims: list[tuple[int, ...]]) -> list[int]:
    return [factors[0] for factors in dims]


def keep_factors_of_results(rule: Rule, classes: list[int], generates: bool) -> None:
    """Keep as pass factors only those that appear in the operands and in every result.

    With a factor of operands alone, a part of the result would be computed from a part of the
    input.  Reshapes whose sizes share no divisor have such factors (3x4 to 4x3 gives each side its
    own), and so do the rules that JAX writes on linear algebra calls, which tie only the batch
    dims.  A factor of results alone slices a result that is computed whole, which a plan expresses
    anyway, unless the op ``generates`` its dims out of nothing.
    """
    results = [set(_majors(dims)) for dims in rule.results]
    operands = {factor for dims in rule.operands for factor in _majors(dims)}
    for factor, role in enumerate(classes):
        if role == REDUCTION and any(factor in factors for factors in results):
            classes[factor] = NEED_REPLICATION
        if role != PASS or generates:
            continue
        if factor not in operands or not all(factor in factors for factors in results):
            classes[factor] = NEED_REPLICATION


def narrow_call(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """Dims that cannot be computed shard by shard stay whole.

    Shardy ties the matrix dims of an eigendecomposition to those of its result, and the sorted dim
    of a top-k to that of its result where k is the whole dim.
    """
    ours = own_rules.custom_call(*_shapes(op), op)
    if ours is None:
        return
    for dims, our_dims in zip(rule.operands, ours.operands, strict=True):
        for factors, our_factors in zip(dims, our_dims, strict=True):
            if ours.classes[our_factors[0]] != PASS:
                classes[factors[0]] = NEED_REPLICATION


def _shapes(op: Any) -> tuple[Shapes, Shapes]:
    from toast_lab._jaxlib import ir

    def of(values: Any) -> Shapes:
        return [
            tuple(value.type.shape) if isinstance(value.type, ir.RankedTensorType) else ()
            for value in values
        ]

    return of(op.operands), of(op.results)


def narrow_pad(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """A padded dim stays whole.

    Even low=1, high=-1, which keeps its size, shifts every element into its neighbour's place.
    """
    rows = zip(
        *(own_rules.ints(op, f"{kind}_padding{end}") or [] for kind, end in _PAD_KEYS), strict=True
    )
    for factors, amounts in zip(rule.operands[0], rows, strict=True):
        if any(amounts):
            classes[factors[0]] = NEED_REPLICATION


_PAD_KEYS = (("edge", "_low"), ("edge", "_high"), ("interior", ""))

_NEUTRAL: dict[str, Callable[[str], bool]] = {
    "add": lambda text: _number(text) in (0, 0j) or text == "false",
    "mul": lambda text: _number(text) == 1 or text == "true",
}


def narrow_reduce(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """A sum or product can be split only if it starts from zero or one.

    Every shard starts from the init value, also in XLA's partitioner (seen with jaxlib 0.10.2): a
    sum over 4 shards with init 5 comes out 15 too large.  Repeating an init does no harm to max,
    min, and, or.
    """
    half = len(op.operands) // 2
    neutral = _NEUTRAL.get(monoid)
    if neutral is not None and not all(
        neutral(splat(initial)) for initial in list(op.operands)[half:]
    ):
        _no_reduction(classes)
    narrow_bitwise(rule, classes, op, monoid)


def narrow_bitwise(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """No collective combines the bits of integers; for bools, ``and`` and ``or`` are min and max.

    XLA's CPU compiler reports "unsupported reduction computation", and NCCL has no such operation.
    """
    if monoid in ("and", "or") and str(op.results[0].type.element_type) != "i1":
        _no_reduction(classes)


def _no_reduction(classes: list[int]) -> None:
    for factor, role in enumerate(classes):
        if role == REDUCTION:
            classes[factor] = NEED_REPLICATION


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
        classes[factors[0]] = PASS if local else NEED_REPLICATION


def splat(value: Any) -> str:
    """The number of a splat constant as MLIR prints it, "" for any other value."""
    from toast_lab._jaxlib import constant_text

    owner = value.owner
    # As ``OpKind.keeps_number`` says, which is above this module.
    while getattr(owner, "name", "") in _KEEP_NUMBER:
        owner = owner.operands[0].owner
    if getattr(owner, "name", "") != "stablehlo.constant":
        return ""
    match = own_rules.SPLAT.match(constant_text(owner))
    return match.group(1) if match else ""


_KEEP_NUMBER = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.convert")


def _number(text: str) -> complex | None:
    try:
        if text.startswith("("):
            real, imaginary = text.strip("()").split(",")
            return complex(float(real), float(imaginary))
        return float(text)
    except ValueError:
        return None


def combiner(region: Any) -> str:
    """The StableHLO op that the body of a reduction or scatter consists of, "" if it does more."""
    block = region.blocks[0]
    ops, arguments = list(block.operations), list(block.arguments)
    if len(ops) != 2 or len(arguments) != 2:
        return ""
    computing, returning = ops[0].operation, ops[1].operation
    # Both arguments once, and nothing else: add(b, b) is not a sum.
    both = list(computing.operands) in (arguments, arguments[::-1])
    if not both or list(returning.operands) != list(computing.results):
        return ""
    return str(computing.name).removeprefix("stablehlo.")


def narrow_convolution(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """A spatial dim is local only where windows neither overlap nor leave gaps.

    Such windows pass, as in patch embeddings and 1x1 convolutions (Shardy always calls them a
    permutation).  The window dim is an exact reduction only where a single window covers the whole
    dim.
    """
    from toast_lab._jaxlib import ir

    if ir.IntegerAttr(op.attributes["batch_group_count"]).value > 1:
        # The contraction is local, but XLA sums over the whole mesh: sharded on d of d=2, m=4, the
        # result is four times too large (jaxlib 0.10.2 and 0.12.0.1; reproducer in
        # docs/certification.md).
        _no_reduction(classes)
    # The spatial dims of input, kernel and output
    lhs, kernel, out = (
        [labels.index(str(number)) for number in range(len(labels) - 2)]
        for labels in own_rules.convolution_labels(op)
    )
    count = len(lhs)
    (left, right), (result,) = _shapes(op)
    strides = own_rules.ints(op, "window_strides") or [1] * count
    dilations = [own_rules.ints(op, key) or [1] * count for key in ("lhs_dilation", "rhs_dilation")]
    padding = _padding(op, count)
    reversal = "window_reversal"
    turned = reversal in op.attributes and "true" in str(op.attributes[reversal])
    for i in range(count):
        size, window, windows = left[lhs[i]], right[kernel[i]], result[out[i]]
        input_factor, result_factor = rule.operands[0][lhs[i]][0], rule.results[0][out[i]][0]
        exact = (
            padding[i] == (0, 0)
            and all(dilation[i] == 1 for dilation in dilations)
            and size == window * windows
            and (strides[i] == window or windows == 1)
        )
        reduces = exact and windows == 1 and (not turned or window == 1)
        for factor in (input_factor, rule.operands[1][kernel[i]][0]):
            if classes[factor] == REDUCTION and not reduces:
                classes[factor] = NEED_REPLICATION
        if input_factor == result_factor and rule.sizes[result_factor] == windows and exact:
            classes[result_factor] = PASS


def _padding(op: Any, count: int) -> list[tuple[int, int]]:
    from toast_lab._jaxlib import ir

    if "padding" not in op.attributes:
        return [(0, 0)] * count
    padding = np.asarray(ir.DenseIntElementsAttr(op.attributes["padding"]))
    return list(map(tuple, padding.reshape(-1, 2).tolist()))


def narrow_triangular_solve(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """Each right-hand side is solved by itself, though Shardy keeps that dim whole."""
    side = -1 if str(op.attributes["left_side"]) == "true" else -2
    factor = rule.operands[1][side][0]
    if factor == rule.results[0][side][0] and factor not in _majors(rule.operands[0]):
        classes[factor] = PASS
