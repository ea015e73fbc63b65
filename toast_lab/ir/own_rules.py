"""Our own sharding rules, for ops that Shardy leaves out: custom calls, CHLO ops, ``map``.

``op_kinds`` says which kind has which.  Each takes the shapes of an op's operands and results and
the MLIR operation (None where it is unknown), and returns None where it has no rule after all.

A factor that may be sharded promises the same as in every rule (see ``narrowing``): the op computed
on local shards gives local shards or partial results of its result.  Where we cannot tell, an op
stays whole, and ``rules.why_missing`` gives the reason.

jaxlib is imported only where an op is read: pricing and searching load this module too, and read no
ops.

Reference: TOAST section 3.1 (the identities I of an op).  Start reading at ``Rule``.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable
from typing import Any

from toast_lab.ir.program import NEED_REPLICATION, PASS, REDUCTION

Shapes = list[tuple[int, ...]]
# A constant whose elements are all equal, as MLIR prints it
SPLAT = re.compile(r"^dense<([^<>\[\]\"]+)> : ")


@dataclasses.dataclass(frozen=True)
class Rule:
    """One op's rule; factor indices are local to the op, the major factor of a dim comes first."""

    sizes: list[int]
    classes: list[int]
    operands: list[list[tuple[int, ...]]]
    results: list[list[tuple[int, ...]]]
    missing: str = ""  # why there is no rule, empty when there is one


class _Draft:
    """A rule in the making: dims are tied to factors one by one, all others stay whole."""

    def __init__(self, operands: Shapes, results: Shapes) -> None:
        self.shapes = [*operands, *results]
        self.n_operands = len(operands)
        self.sizes: list[int] = []
        self.classes: list[int] = []
        self.dims: list[list[tuple[int, ...]]] = [[() for _ in shape] for shape in self.shapes]

    def factor(self, places: Iterable[tuple[int, int]], role: int = PASS) -> None:
        """One factor for ``places``: (tensor, dim) pairs, results counted after the operands."""
        size = 0
        for tensor, dim in places:
            size = max(size, self.shapes[tensor][dim])
            self.dims[tensor][dim] = (len(self.sizes),)
        self.sizes.append(size)
        self.classes.append(role)

    def build(self) -> Rule:
        """The rule, with a need-replication factor for every dim that has no factor yet."""
        for tensor, shape in enumerate(self.shapes):
            for dim in range(len(shape)):
                if not self.dims[tensor][dim]:
                    self.factor([(tensor, dim)], NEED_REPLICATION)
        return Rule(
            self.sizes, self.classes, self.dims[: self.n_operands], self.dims[self.n_operands :]
        )


# -- rules that Shardy does not have ---------------------------------------------------------------


def elementwise(operands: Shapes, results: Shapes, op: Any = None) -> Rule | None:
    """Every dim of the results' one shape is one factor; operands are of that shape or scalars."""
    shape = results[0]
    if any(other not in (shape, ()) for other in (*operands, *results)):
        return None
    draft = _Draft(operands, results)
    for dim in range(len(shape)):
        draft.factor((tensor, dim) for tensor, other in enumerate(draft.shapes) if other == shape)
    return draft.build()


def leading(operands: Shapes, results: Shapes, count: int) -> Rule:
    """The first ``count`` dims of every tensor are batch dims; all others stay whole."""
    draft = _Draft(operands, results)
    for dim in range(count):
        draft.factor((tensor, dim) for tensor in range(len(draft.shapes)))
    return draft.build()


def all_but(operands: Shapes, results: Shapes, whole: int) -> Rule:
    """Every dim but ``whole`` is one factor of all tensors that have operand 0's rank."""
    draft = _Draft(operands, results)
    rank = len(operands[0])
    for dim in range(rank):
        if dim != whole:
            draft.factor(
                (tensor, dim) for tensor, shape in enumerate(draft.shapes) if len(shape) == rank
            )
    return draft.build()


def identity(operands: Shapes, results: Shapes, op: Any = None) -> Rule:
    """Operand i passes through as result i."""
    rule = separate(operands, [], PASS)
    return dataclasses.replace(rule, results=rule.operands)


def separate(operands: Shapes, results: Shapes, role: int, missing: str = "") -> Rule:
    """A factor of its own for every dim of every tensor."""
    sizes = [size for shape in (*operands, *results) for size in shape]
    factors = itertools.count()

    def dims(shapes: Shapes) -> list[list[tuple[int, ...]]]:
        return [[(next(factors),) for _ in shape] for shape in shapes]

    return Rule(
        sizes=sizes,
        classes=[role] * len(sizes),
        operands=dims(operands),
        results=dims(results),
        missing=missing,
    )


def all_pass(operands: Shapes, results: Shapes, op: Any = None) -> Rule:
    """Every dim can be cut by itself: a tensor made of nothing can be made piece by piece."""
    return separate(operands, results, PASS)


def top_k(operands: Shapes, results: Shapes, op: Any = None) -> Rule:
    """``chlo.top_k``: the sorted dim, which is the last, stays whole."""
    return all_but(operands, results, len(operands[0]) - 1)


def broadcast(operands: Shapes, results: Shapes, op: Any) -> Rule | None:
    """``broadcast``: new dims come first."""
    if op is None:
        return None
    draft = _Draft(operands, results)
    new_count = len(results[0]) - len(operands[0])
    for dim in range(len(results[0])):
        draft.factor([(1, dim), (0, dim - new_count)] if dim >= new_count else [(1, dim)])
    return draft.build()


def broadcasting(operands: Shapes, results: Shapes, op: Any) -> Rule | None:
    """``chlo.broadcast_*`` aligns operands at their last dims, or by ``broadcast_dimensions``."""
    if op is None:
        return None
    draft = _Draft(operands, results)
    shape = results[0]
    attribute = ints(op, "broadcast_dimensions") or []
    places: list[list[tuple[int, int]]] = [[(len(operands), dim)] for dim in range(len(shape))]
    for tensor, operand in enumerate(operands):
        # The attribute places the operand of smaller rank; one of the result's rank needs no place.
        result_dims: Iterable[int] = range(len(shape) - len(operand), len(shape))
        if len(attribute) == len(operand) < len(shape):
            result_dims = attribute
        for dim, result_dim in enumerate(result_dims):
            if operand[dim] == shape[result_dim]:
                places[result_dim].append((tensor, dim))
    for tied in places:
        draft.factor(tied)
    return draft.build()


def ragged_dot(operands: Shapes, results: Shapes, op: Any) -> Rule | None:
    """``chlo.ragged_dot``: batch dims and free dims pass, the contraction is a reduction.

    Ragged and group dims stay whole, since all group sizes together decide which rows meet which
    group.
    """
    if op is None:
        return None

    def pairs(name: str) -> list[tuple[int, int]]:
        sides = (ragged_dims(op, f"{side}_{name}_dimensions") for side in ("lhs", "rhs"))
        return list(zip(*sides, strict=True))

    ragged = ragged_dims(op, "lhs_ragged_dimensions")
    group = ragged_dims(op, "rhs_group_dimensions")
    batch, inner = pairs("batching"), pairs("contracting")
    sizes = operands[2] if len(operands) > 2 else ()
    if len(ragged) != 1 or len(sizes) not in (1, len(batch) + 1):
        return None
    tied_left = {left for left, _ in (*batch, *inner)}
    tied_right = {right for _, right in (*batch, *inner)} | set(group)
    draft = _Draft(operands, results)
    out = len(operands)
    # With a ragged contraction the groups are the result's first dim.
    row = int(ragged[0] in {left for left, _ in inner})
    for i, (left, right) in enumerate(batch):
        if left != ragged[0]:
            # Each batch entry may have group sizes of its own
            more = [(2, i)] if len(sizes) > 1 else []
            draft.factor([(0, left), (1, right), (out, row), *more])
        row += 1
    for left in range(len(operands[0])):
        if left not in tied_left:
            if left != ragged[0]:
                draft.factor([(0, left), (out, row)])
            row += 1
    for right in range(len(operands[1])):
        if right not in tied_right:
            draft.factor([(1, right), (out, row)])
            row += 1
    for left, right in inner:
        if left != ragged[0]:
            draft.factor([(0, left), (1, right)], REDUCTION)
    return draft.build()


def ragged_dims(op: Any, name: str) -> list[int]:
    """One list of dims of a ``chlo.ragged_dot``, ``rhs_group_dimensions`` for instance."""
    match = re.search(
        rf"\b{name} = \[([\d, ]*)\]", str(op.attributes["ragged_dot_dimension_numbers"])
    )
    return [int(dim) for dim in match.group(1).split(",") if dim.strip()] if match else []


# Calls that act element by element, or only mark or move their operand.
_ELEMENTWISE_CALLS = {
    "annotate_device_placement",
    "LayoutConstraint",
    "MoveToDevice",
    "MoveToHost",
    "X64Combine",
    "mhlo.erf",
    "cu_threefry2x32",
    "cu_threefry2x32_ffi",
    "hip_threefry2x32",
    "hip_threefry2x32_ffi",
}
# Linear algebra on matrices in the last two dims of the first operand, batched over its other dims.
_MATRIX_CALLS = {
    "Cholesky",
    "CompactWyHelper",
    "Qr",
    "QrDecompositionBlock",
    "ProductOfElementaryHouseholderReflectors",
    "InvertDiagBlocksLowerTriangular",
    "InvertDiagBlocksUpperTriangular",
}
_TOP_K_CALLS = {"TopK", "mhlo.topk", "ApproxTopK", "PartialReduce"}

_WHY_WHOLE = (
    (
        re.compile(r"^__cudnn\$"),
        "the call's configuration carries the whole shapes, so no compiler can split it",
    ),
    (
        re.compile(r"^(Eigh|LuDecomposition)$"),
        "XLA's compiler for TPU gathers its operand whatever its sharding",
    ),
    (
        re.compile(r"^CustomSPMDPartitioning$"),
        "its partitioner is a function of the process that traced it",
    ),
    (re.compile(r"callback"), "a host callback sees whole arrays"),
    (
        re.compile(r"^tpu_custom_call$|^__gpu\$|triton|mosaic", re.I),
        "a kernel written by hand sees whole arrays",
    ),
)


def custom_call(operands: Shapes, results: Shapes, op: Any) -> Rule | None:
    """The rule of a call whose target works element by element, is a top-k, or has batch dims."""
    if op is None:
        return None
    target = call_target(op)
    if target in _ELEMENTWISE_CALLS and all(shape == results[0] for shape in (*operands, *results)):
        return elementwise(operands, results)
    if not operands:
        return None
    if target in _TOP_K_CALLS:
        return all_but(operands, results, _sorted_dim(op, len(operands[0])))
    batch = _batch_dims(op)
    if batch is None and target in _MATRIX_CALLS:
        batch = len(operands[0]) - 2
    if batch is None or any(shape[:batch] != operands[0][:batch] for shape in operands + results):
        return None
    return leading(operands, results, batch)


def call_target(op: Any) -> str:
    """The name of what a ``custom_call`` calls."""
    from toast_lab._jaxlib import ir

    return ir.StringAttr(op.attributes["call_target_name"]).value


def _batch_dims(op: Any) -> int | None:
    """Number of leading dims that JAX declares as batch dims, None where it declares none."""
    if "mhlo.frontend_attributes" not in op.attributes:
        return None
    match = re.search(r'\bnum_batch_dims = "(\d+)"', str(op.attributes["mhlo.frontend_attributes"]))
    return int(match.group(1)) if match else None


def _sorted_dim(op: Any, rank: int) -> int:
    for key in ("mhlo.backend_config", "backend_config"):
        if key in op.attributes:
            match = re.search(r'\breduction_dim"?\s*[=:]\s*(\d+)', str(op.attributes[key]))
            if match:
                return int(match.group(1))
    return rank - 1


def known_whole(op: Any) -> bool:
    """Is this ``custom_call`` one that stays whole whatever a rule on it says?"""
    return any(pattern.search(call_target(op)) for pattern, _ in _WHY_WHOLE)


def call_without_rule(op: Any) -> str:
    """The call, and why it has no rule, as ``custom_call @Eigh: XLA's compiler for TPU ...``."""
    if op is None:
        return "custom_call"
    target = call_target(op)
    reason = next((text for pattern, text in _WHY_WHOLE if pattern.search(target)), "")
    return f"custom_call @{target}" + (f": {reason}" if reason else "")


def convolution_labels(op: Any) -> list[list[str]]:
    """Dims of input, kernel and output: ``[b, 0, f]``, ``[0, i, o]`` and ``[b, 0, f]``."""
    rows = re.findall(r"\[([^\]]*)\]", str(op.attributes["dimension_numbers"]))
    return [re.split(r",\s*", row) for row in rows[:3]]


def ints(op: Any, key: str) -> list[int] | None:
    """An attribute of integers, None if the op does not carry it."""
    from toast_lab._jaxlib import ir

    if key not in op.attributes:
        return None
    return list(ir.DenseI64ArrayAttr(op.attributes[key]))
