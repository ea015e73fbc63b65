"""Our own sharding rules, for ops that Shardy leaves out: custom calls, CHLO ops, ``map``.

``op_kinds`` assigns them to kinds of ops. Each function takes the shapes of an op's operands and
results and the MLIR operation (None if it is unknown), and returns None if there is no rule after
all.

A factor that may be sharded makes the same promise as in every rule (see ``narrowing``): the op
computed on local shards gives local shards, or partial results, of its result. If that is
uncertain, the op stays whole, and ``rules.why_missing`` gives the reason.

jaxlib is imported only by the functions that read an op: pricing and searching load this module
too, but read no ops.

Reference: TOAST section 3.1 (the identities I of an op). Start reading at ``Rule``.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable
from typing import Any

from toast_lab.ir.program import NEED_REPLICATION, PASS, REDUCTION

Shapes = list[tuple[int, ...]]
#: Target of the calls that stand for wrapped functions, see ``frontends.wrapped_kernels``.
WRAPPED = "toast_kernel"
#: The same for functions of ``custom_partitioning``, see ``frontends.partitioned_functions``.
PARTITIONED = f"{WRAPPED}_partitioned"
# A constant whose elements are all equal, as printed by MLIR
SPLAT = re.compile(r"^dense<([^<>\[\]\"]+)> : ")


@dataclasses.dataclass(frozen=True)
class Rule:
    """One op's rule; factor indices are local to the op, and the major factor of a dim is first."""

    sizes: list[int]
    classes: list[int]
    operands: list[list[tuple[int, ...]]]
    results: list[list[tuple[int, ...]]]
    missing: str = ""  # why there is no rule, empty if there is one


class _Draft:
    """A rule under construction: dims are assigned to factors; all others stay whole."""

    def __init__(self, operands: Shapes, results: Shapes) -> None:
        self.shapes = [*operands, *results]
        self.n_operands = len(operands)
        self.sizes: list[int] = []
        self.classes: list[int] = []
        self.dims: list[list[tuple[int, ...]]] = [[() for _ in shape] for shape in self.shapes]

    def factor(self, places: Iterable[tuple[int, int]], role: int = PASS) -> None:
        """Add one factor for ``places``: (tensor, dim) pairs, results numbered after operands."""
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
    """Every dim of the results' shape is one factor; operands have this shape or are scalars."""
    shape = results[0]
    if any(other_shape not in (shape, ()) for other_shape in (*operands, *results)):
        return None
    draft = _Draft(operands, results)
    for dim in range(len(shape)):
        draft.factor(
            (tensor, dim) for tensor, other_shape in enumerate(draft.shapes) if other_shape == shape
        )
    return draft.build()


def leading(operands: Shapes, results: Shapes, count: int) -> Rule:
    """The first ``count`` dims of every tensor are batch dims; all others stay whole."""
    draft = _Draft(operands, results)
    for dim in range(count):
        draft.factor((tensor, dim) for tensor in range(len(draft.shapes)))
    return draft.build()


def all_but(operands: Shapes, results: Shapes, whole: int) -> Rule:
    """Every dim but ``whole`` is one factor of all tensors with operand 0's rank."""
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
    """Every dim of every tensor has a separate factor."""
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
    """Every dim can be cut: a tensor made without operands can be made piece by piece."""
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
    broadcast_dims = ints(op, "broadcast_dimensions") or []
    places: list[list[tuple[int, int]]] = [[(len(operands), dim)] for dim in range(len(shape))]
    for tensor, operand in enumerate(operands):
        # The attribute positions the operand of smaller rank; one of the result's rank needs none.
        result_dims: Iterable[int] = range(len(shape) - len(operand), len(shape))
        if len(broadcast_dims) == len(operand) < len(shape):
            result_dims = broadcast_dims
        for dim, result_dim in enumerate(result_dims):
            if operand[dim] == shape[result_dim]:
                places[result_dim].append((tensor, dim))
    for factor_places in places:
        draft.factor(factor_places)
    return draft.build()


def ragged_dot(operands: Shapes, results: Shapes, op: Any) -> Rule | None:
    """``chlo.ragged_dot``: batch and free dims pass, contracted dims are reductions.

    Ragged and group dims stay whole, since it takes all group sizes to tell which rows are
    multiplied by which group.
    """
    if op is None:
        return None

    def pairs(name: str) -> list[tuple[int, int]]:
        dim_lists = (ragged_dims(op, f"{side}_{name}_dimensions") for side in ("lhs", "rhs"))
        return list(zip(*dim_lists, strict=True))

    ragged = ragged_dims(op, "lhs_ragged_dimensions")
    group = ragged_dims(op, "rhs_group_dimensions")
    batch, contracted = pairs("batching"), pairs("contracting")
    group_sizes_shape = operands[2] if len(operands) > 2 else ()
    if len(ragged) != 1 or len(group_sizes_shape) not in (1, len(batch) + 1):
        return None
    left_not_free = {left for left, _ in (*batch, *contracted)}
    right_not_free = {right for _, right in (*batch, *contracted)} | set(group)
    draft = _Draft(operands, results)
    result_tensor = len(operands)
    # With a ragged contraction the groups are the result's first dim.
    result_dim = int(ragged[0] in {left for left, _ in contracted})
    for i, (left, right) in enumerate(batch):
        if left != ragged[0]:
            # Group sizes may differ between batch entries.
            group_size_dims = [(2, i)] if len(group_sizes_shape) > 1 else []
            draft.factor([(0, left), (1, right), (result_tensor, result_dim), *group_size_dims])
        result_dim += 1
    for left in range(len(operands[0])):
        if left not in left_not_free:
            if left != ragged[0]:
                draft.factor([(0, left), (result_tensor, result_dim)])
            result_dim += 1
    for right in range(len(operands[1])):
        if right not in right_not_free:
            draft.factor([(1, right), (result_tensor, result_dim)])
            result_dim += 1
    for left, right in contracted:
        if left != ragged[0]:
            draft.factor([(0, left), (1, right)], REDUCTION)
    return draft.build()


def ragged_dims(op: Any, name: str) -> list[int]:
    """One list of dims of a ``chlo.ragged_dot``, for instance ``rhs_group_dimensions``."""
    match = re.search(
        rf"\b{name} = \[([\d, ]*)\]", str(op.attributes["ragged_dot_dimension_numbers"])
    )
    return [int(dim) for dim in match.group(1).split(",") if dim.strip()] if match else []


# Calls that work element by element, or only annotate or move their operand.
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
        "the call's configuration contains the whole shapes, so no compiler can split it",
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
    """The rule of a call whose target works element by element, is a top-k or has batch dims."""
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
    """The name of the target of a ``custom_call``."""
    from toast_lab._jaxlib import ir

    return ir.StringAttr(op.attributes["call_target_name"]).value


def is_wrapped(op: Any) -> bool:
    """Is this the call that stands for a wrapped function?"""
    return call_target(op) in (WRAPPED, PARTITIONED)


def _batch_dims(op: Any) -> int | None:
    """Number of leading dims that JAX declares as batch dims, None if it declares nothing."""
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
    """Does this ``custom_call`` stay whole, whatever rule it carries?"""
    return any(pattern.search(call_target(op)) for pattern, _ in _WHY_WHOLE)


def call_without_rule(op: Any) -> str:
    """The call, and why it has no rule: ``custom_call @Eigh: XLA's compiler for TPU ...``."""
    if op is None:
        return "custom_call"
    target = call_target(op)
    reason = next((why for pattern, why in _WHY_WHOLE if pattern.search(target)), "")
    return f"custom_call @{target}" + (f": {reason}" if reason else "")


def convolution_labels(op: Any) -> list[list[str]]:
    """Dims of input, kernel and output: ``[b, 0, f]``, ``[0, i, o]`` and ``[b, 0, f]``."""
    label_lists = re.findall(r"\[([^\]]*)\]", str(op.attributes["dimension_numbers"]))
    return [re.split(r",\s*", label_list) for label_list in label_lists[:3]]


def always(op: Any) -> bool:
    """Whatever the op's attributes are."""
    return True


def has_groups(op: Any) -> bool:
    """Does this convolution have groups of features or of examples?"""
    from toast_lab._jaxlib import ir

    keys = ("feature_group_count", "batch_group_count")
    return any(ir.IntegerAttr(op.attributes[key]).value > 1 for key in keys)


def ints(op: Any, key: str) -> list[int] | None:
    """The integers of an attribute, None if the op does not have it."""
    from toast_lab._jaxlib import ir

    if key not in op.attributes:
        return None
    return list(ir.DenseI64ArrayAttr(op.attributes[key]))
