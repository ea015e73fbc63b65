"""Takes back the factors of Shardy's rules that are not local.

Shardy's rules serve propagation: a factor says "shard these dims alike", and the partitioner adds
whatever communication that takes. Our rules promise more: the op computed on local shards gives the
local shards of its result (pass factor), or partial results that the op's monoid combines
(reduction factor), without further communication. The steps of a plan and their prices rely on this
promise. Each function in this module takes back the factors that break it, and says why. Two kinds
of factors that Shardy withholds although they are local are granted: windows that do not overlap,
and right-hand sides of a triangular solve. ``op_kinds`` assigns the functions to kinds of ops; all
of them change the factors' roles in place. The certification of the rules
(``evaluation/certification/rules``) executes every factor of every kind, and defines "computed on
local shards" for ops with indices.

jaxlib is imported only where an op is read, see ``own_rules``.

Reference: TOAST section 3.1 (the identities I of an op). Start reading at
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


def keep_factors_of_results(rule: Rule, classes: list[int], creates_dims: bool) -> None:
    """Keep as pass factors only those that appear in an operand and in every result.

    A factor of operands only would mean that a result is computed from a part of its input.
    Reshapes whose sizes share no divisor have such factors (3x4 to 4x3 gives operand and result
    separate ones), and so do the rules that JAX writes on linear algebra calls, which relate only
    the batch dims. A factor of results only would mean that a result is computed whole and then
    sliced, which a plan expresses anyway, unless the op creates dims that no operand has
    (``creates_dims``).
    """
    results = [set(_majors(dims)) for dims in rule.results]
    operands = {factor for dims in rule.operands for factor in _majors(dims)}
    for factor, role in enumerate(classes):
        if role == REDUCTION and any(factor in factors for factors in results):
            classes[factor] = NEED_REPLICATION
        if role != PASS or creates_dims:
            continue
        if factor not in operands or not all(factor in factors for factors in results):
            classes[factor] = NEED_REPLICATION


def narrow_call(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """Dims that cannot be computed shard by shard stay whole.

    Shardy relates the matrix dims of an eigendecomposition to those of its result, and the sorted
    dim of a top-k to that of its result if k is the size of the dim. Only a function that
    partitions itself combines what its parts sum up.
    """
    if own_rules.call_target(op) != own_rules.PARTITIONED:
        for factor, role in enumerate(classes):
            if role == REDUCTION:
                classes[factor] = NEED_REPLICATION
    own_rule = own_rules.custom_call(*_shapes(op), op)
    if own_rule is None:
        return
    for dims, own_dims in zip(rule.operands, own_rule.operands, strict=True):
        for factors, own_factors in zip(dims, own_dims, strict=True):
            if own_rule.classes[own_factors[0]] != PASS:
                classes[factors[0]] = NEED_REPLICATION


def _shapes(op: Any) -> tuple[Shapes, Shapes]:
    from toast_lab._jaxlib import ir

    def shapes_of(values: Any) -> Shapes:
        return [
            tuple(value.type.shape) if isinstance(value.type, ir.RankedTensorType) else ()
            for value in values
        ]

    return shapes_of(op.operands), shapes_of(op.results)


def narrow_pad(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """A padded dim stays whole.

    Even padding by low=1, high=-1, which keeps the size, shifts every element by one position.
    """
    dim_amounts = zip(
        *(own_rules.ints(op, f"{kind}_padding{suffix}") or [] for kind, suffix in _PADDINGS),
        strict=True,
    )
    for factors, amounts in zip(rule.operands[0], dim_amounts, strict=True):
        if any(amounts):
            classes[factors[0]] = NEED_REPLICATION


_PADDINGS = (("edge", "_low"), ("edge", "_high"), ("interior", ""))

_IS_NEUTRAL: dict[str, Callable[[str], bool]] = {
    "add": lambda text: _parsed_number(text) in (0, 0j) or text == "false",
    "mul": lambda text: _parsed_number(text) == 1 or text == "true",
}


def narrow_reduce(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """A sum or product can be split only if it starts from zero or one.

    Every shard starts from the initial value, also in XLA's partitioner (seen with jaxlib 0.10.2):
    a sum over 4 shards with initial value 5 comes out 15 too large. Repeating the initial value
    does not change max, min, ``and`` and ``or``.
    """
    first_initial = len(op.operands) // 2
    is_neutral = _IS_NEUTRAL.get(monoid)
    if is_neutral is not None and not all(
        is_neutral(splat(initial)) for initial in list(op.operands)[first_initial:]
    ):
        _no_reduction(classes)
    narrow_bitwise(rule, classes, op, monoid)


def narrow_bitwise(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """No collective combines the bits of integers; on bools, ``and`` and ``or`` are min and max.

    XLA's CPU compiler reports "unsupported reduction computation", and NCCL has no such operation.
    """
    if monoid in ("and", "or") and str(op.results[0].type.element_type) != "i1":
        _no_reduction(classes)


def _no_reduction(classes: list[int]) -> None:
    for factor, role in enumerate(classes):
        if role == REDUCTION:
            classes[factor] = NEED_REPLICATION


def narrow_update(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """A dim that is updated in part is a pass factor only if the update is one element long.

    One element falls into one shard, as when decoding writes to a cache. A longer update may
    straddle two shards, and XLA gathers the whole operand for it (seen in CPU and TPU programs).
    Shardy lets both pass in jaxlib 0.10.2 and neither in 0.12.
    """
    (operand, update, *_), _ = _shapes(op)
    for dim, factors in enumerate(rule.operands[0]):
        if update[dim] == operand[dim]:
            continue
        local = update[dim] == 1 and rule.results[0][dim][0] == factors[0]
        classes[factors[0]] = PASS if local else NEED_REPLICATION


def splat(value: Any) -> str:
    """The number in a splat constant as MLIR prints it, "" for any other value."""
    from toast_lab._jaxlib import constant_text

    owner = value.owner
    # These are the kinds with ``OpKind.keeps_number``; this module must not import ``op_kinds``.
    while getattr(owner, "name", "") in _KEEP_NUMBER:
        owner = owner.operands[0].owner
    if getattr(owner, "name", "") != "stablehlo.constant":
        return ""
    match = own_rules.SPLAT.match(constant_text(owner))
    return match.group(1) if match else ""


_KEEP_NUMBER = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.convert")


def _parsed_number(text: str) -> complex | None:
    try:
        if text.startswith("("):
            real, imaginary = text.strip("()").split(",")
            return complex(float(real), float(imaginary))
        return float(text)
    except ValueError:
        return None


def combiner(region: Any) -> str:
    """The one StableHLO op in the body of a reduction or scatter, "" if the body does more."""
    block = region.blocks[0]
    ops, arguments = list(block.operations), list(block.arguments)
    if len(ops) != 2 or len(arguments) != 2:
        return ""
    computing, returning = ops[0].operation, ops[1].operation
    # Each argument is used once: add(b, b) is not a sum.
    uses_both_once = list(computing.operands) in (arguments, arguments[::-1])
    if not uses_both_once or list(returning.operands) != list(computing.results):
        return ""
    return str(computing.name).removeprefix("stablehlo.")


def narrow_convolution(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """A spatial dim is local only if windows neither overlap nor leave gaps.

    It is a pass factor then, as in patch embeddings and 1x1 convolutions (Shardy always calls it a
    permutation). The window dim is an exact reduction only if a single window covers the whole dim.
    """
    from toast_lab._jaxlib import ir

    if ir.IntegerAttr(op.attributes["batch_group_count"]).value > 1:
        # The contraction is local, but XLA sums over the whole mesh: if it is sharded on axis d of
        # d=2, m=4, the result is four times too large (jaxlib 0.10.2 and 0.12.0.1; reproducer in
        # docs/certification.md).
        _no_reduction(classes)
    # The spatial dims of input, kernel and output
    lhs_dims, kernel_dims, result_dims = (
        [labels.index(str(spatial_index)) for spatial_index in range(len(labels) - 2)]
        for labels in own_rules.convolution_labels(op)
    )
    spatial_count = len(lhs_dims)
    (lhs_shape, kernel_shape), (result_shape,) = _shapes(op)
    strides = own_rules.ints(op, "window_strides") or [1] * spatial_count
    dilations = [
        own_rules.ints(op, key) or [1] * spatial_count for key in ("lhs_dilation", "rhs_dilation")
    ]
    padding = _padding(op, spatial_count)
    key = "window_reversal"
    is_reversed = key in op.attributes and "true" in str(op.attributes[key])
    for i in range(spatial_count):
        size, window, window_count = (
            lhs_shape[lhs_dims[i]],
            kernel_shape[kernel_dims[i]],
            result_shape[result_dims[i]],
        )
        input_factor, result_factor = (
            rule.operands[0][lhs_dims[i]][0],
            rule.results[0][result_dims[i]][0],
        )
        is_exact = (
            padding[i] == (0, 0)
            and all(dilation[i] == 1 for dilation in dilations)
            and size == window * window_count
            and (strides[i] == window or window_count == 1)
        )
        reduces = is_exact and window_count == 1 and (not is_reversed or window == 1)
        for factor in (input_factor, rule.operands[1][kernel_dims[i]][0]):
            if classes[factor] == REDUCTION and not reduces:
                classes[factor] = NEED_REPLICATION
        if input_factor == result_factor and rule.sizes[result_factor] == window_count and is_exact:
            classes[result_factor] = PASS


def _padding(op: Any, count: int) -> list[tuple[int, int]]:
    from toast_lab._jaxlib import ir

    if "padding" not in op.attributes:
        return [(0, 0)] * count
    padding = np.asarray(ir.DenseIntElementsAttr(op.attributes["padding"]))
    return list(map(tuple, padding.reshape(-1, 2).tolist()))


def narrow_triangular_solve(rule: Rule, classes: list[int], op: Any, monoid: str) -> None:
    """Right-hand sides are solved one by one, so that their dim passes; Shardy keeps it whole."""
    rhs_dim = -1 if str(op.attributes["left_side"]) == "true" else -2
    factor = rule.operands[1][rhs_dim][0]
    if factor == rule.results[0][rhs_dim][0] and factor not in _majors(rule.operands[0]):
        classes[factor] = PASS
