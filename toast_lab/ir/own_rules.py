"""Our own sharding rules: for ops that Shardy leaves out, and where Shardy's rule claims more than is local.

Shardy's rules serve propagation: a factor says "shard these dims alike", and the partitioner puts in whatever
communication that takes.  Ours must say more.  A factor that may be sharded promises that the op computed on local
shards gives the local shards of its result (pass factor) or partial results that the op's monoid combines
(reduction factor), with no further communication: that is what the steps of a plan consist of and what they are
priced as.  ``narrow`` takes back each factor that breaks the promise, with the reason beside it; ``own`` gives
the rules that are missing.  What "computed on local shards" means for ops with indices is written in the
certification of the rules (``tests/certification/rules``), which executes every factor of every kind.

Reference: TOAST section 3.1 (the identities I of an op).  Start reading at ``narrow``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from toast_lab._jaxlib import ir
from toast_lab.errors import UnsupportedOp
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


class _Draft:
    """A rule in the making: dims are tied to factors one by one, what is left gets factors that stay whole."""

    def __init__(self, operands: Shapes, results: Shapes) -> None:
        self.shapes = [*operands, *results]
        self.n_operands = len(operands)
        self.sizes: list[int] = []
        self.classes: list[int] = []
        self.dims: list[list[tuple[int, ...]]] = [[() for _ in shape] for shape in self.shapes]

    def factor(self, places: Iterable[tuple[int, int]], role: int = p.PASS) -> None:
        """One factor for ``places``: (tensor, dim) pairs, results counted after the operands."""
        places = list(places)
        self.sizes.append(max(self.shapes[t][d] for t, d in places))
        self.classes.append(role)
        for tensor, dim in places:
            self.dims[tensor][dim] = (len(self.sizes) - 1,)

    def build(self) -> Rule:
        """The rule, with a need-replication factor for every dim that nothing was said about."""
        for tensor, shape in enumerate(self.shapes):
            for dim in range(len(shape)):
                if not self.dims[tensor][dim]:
                    self.factor([(tensor, dim)], p.NEED_REPLICATION)
        return Rule(self.sizes, self.classes, self.dims[: self.n_operands], self.dims[self.n_operands :])


# -- rules that Shardy does not have -----------------------------------------------------------------------


def elementwise(operands: Shapes, results: Shapes) -> Rule:
    """Every dim of the results' one shape is one factor; operands of another shape (scalars) stay whole."""
    draft = _Draft(operands, results)
    shape = results[0]
    for dim in range(len(shape)):
        draft.factor((t, dim) for t, other in enumerate(draft.shapes) if other == shape)
    return draft.build()


def leading(operands: Shapes, results: Shapes, count: int) -> Rule:
    """The first ``count`` dims of every tensor are batch dims; all others stay whole."""
    draft = _Draft(operands, results)
    for dim in range(count):
        draft.factor((t, dim) for t in range(len(draft.shapes)))
    return draft.build()


def all_but(operands: Shapes, results: Shapes, whole: int) -> Rule:
    """As ``elementwise``, but for tensors of operand 0's rank and for every dim except ``whole``."""
    draft = _Draft(operands, results)
    rank = len(operands[0])
    for dim in range(rank):
        if dim != whole:
            draft.factor((t, dim) for t, shape in enumerate(draft.shapes) if len(shape) == rank)
    return draft.build()


def _broadcasting(operands: Shapes, results: Shapes, op: Any) -> Rule:
    """``chlo.broadcast_*``: operands are aligned at their last dims, or as ``broadcast_dimensions`` say."""
    draft = _Draft(operands, results)
    shape = results[0]
    given = _ints(op, "broadcast_dimensions")
    places: list[list[tuple[int, int]]] = [[(len(operands), dim)] for dim in range(len(shape))]
    for t, other in enumerate(operands):
        # The attribute places the operand of smaller rank; one of the result's rank is in place already.
        rows = given if given is not None and len(given) == len(other) < len(shape) else None
        for dim in range(len(other)):
            row = rows[dim] if rows is not None else len(shape) - len(other) + dim
            if other[dim] == shape[row]:
                places[row].append((t, dim))
    for found in places:
        draft.factor(found)
    return draft.build()


def _ragged_dot(operands: Shapes, results: Shapes, op: Any) -> Rule | None:
    """``chlo.ragged_dot``: which rows meet which group depends on all group sizes, so ragged and group dims stay whole.

    Batch dims pass, the contraction (unless ragged) is a reduction, the free dim of each side passes.
    """

    def dims(name: str) -> list[int]:
        return ragged_dims(op, name)

    ragged, group = dims("lhs_ragged_dimensions"), dims("rhs_group_dimensions")
    batch = list(zip(dims("lhs_batching_dimensions"), dims("rhs_batching_dimensions"), strict=True))
    inner = list(zip(dims("lhs_contracting_dimensions"), dims("rhs_contracting_dimensions"), strict=True))
    sizes = operands[2] if len(operands) > 2 else ()
    if len(ragged) != 1 or len(sizes) not in (1, len(batch) + 1):
        return None
    left, right = operands[0], operands[1]
    free_left = [d for d in range(len(left)) if d not in {x for x, _ in batch} | {x for x, _ in inner}]
    free_right = [d for d in range(len(right)) if d not in {y for _, y in batch} | {y for _, y in inner} | set(group)]
    mode_contracting = ragged[0] in {x for x, _ in inner}
    draft = _Draft(operands, results)
    out = len(operands)
    place = int(mode_contracting)  # then the groups are the result's first dim
    for i, (x, y) in enumerate(batch):
        if x != ragged[0]:
            more = [(2, i)] if len(sizes) > 1 else []  # each batch entry may have group sizes of its own
            draft.factor([(0, x), (1, y), (out, place), *more])
        place += 1
    for x in free_left:
        if x != ragged[0]:
            draft.factor([(0, x), (out, place)])
        place += 1
    for y in free_right:
        draft.factor([(1, y), (out, place)])
        place += 1
    for x, y in inner:
        if x != ragged[0]:
            draft.factor([(0, x), (1, y)], p.REDUCTION)
    return draft.build()


def ragged_dims(op: Any, name: str) -> list[int]:
    """One list of dims of a ``chlo.ragged_dot``, ``rhs_group_dimensions`` for instance."""
    match = re.search(rf"\b{name} = \[([\d, ]*)\]", str(op.attributes["ragged_dot_dimension_numbers"]))
    return [int(d) for d in match.group(1).split(",") if d.strip()] if match else []


# Calls that act element by element, or only mark or move their operand.
_ELEMENTWISE_CALLS = {
    "Sharding", "annotate_device_placement", "LayoutConstraint", "MoveToDevice", "MoveToHost", "X64Combine",
    "mhlo.erf", "cu_threefry2x32", "cu_threefry2x32_ffi", "hip_threefry2x32", "hip_threefry2x32_ffi",
}  # fmt: skip
# Linear algebra over the last two dims of the first operand, for as many matrices as its other dims say.
_MATRIX_CALLS = {
    "Cholesky", "CompactWyHelper", "Eigh", "Qr", "QrDecompositionBlock", "LuDecomposition",
    "ProductOfElementaryHouseholderReflectors", "InvertDiagBlocksLowerTriangular", "InvertDiagBlocksUpperTriangular",
}  # fmt: skip
_TOP_K_CALLS = {"TopK", "mhlo.topk", "ApproxTopK", "PartialReduce"}

_WHY_WHOLE = (
    (re.compile(r"^__cudnn\$"), "the call's configuration carries the whole shapes, so no compiler can split it"),
    (re.compile(r"^CustomSPMDPartitioning$"), "its partitioner is a function of the process that traced it"),
    (re.compile(r"callback"), "a host callback sees whole arrays"),
    (re.compile(r"^tpu_custom_call$|^__gpu\$|triton|mosaic", re.I), "a kernel written by hand sees whole arrays"),
)


def _custom_call(operands: Shapes, results: Shapes, op: Any) -> Rule | None:
    target = call_target(op)
    if not results:
        return None
    if target in _ELEMENTWISE_CALLS and all(s == results[0] for s in (*operands, *results)):
        return elementwise(operands, results)
    if target in _TOP_K_CALLS and operands:
        return all_but(operands, results, _sorted_dim(op, len(operands[0])))
    batch = _batch_dims(op)
    if batch is None and target in _MATRIX_CALLS and operands:
        batch = len(operands[0]) - 2
    if batch is not None and operands and all(s[:batch] == operands[0][:batch] for s in (*operands, *results)):
        return leading(operands, results, batch)
    return None


def call_target(op: Any) -> str:
    """The name of what a ``custom_call`` calls."""
    return ir.StringAttr(op.attributes["call_target_name"]).value


def _batch_dims(op: Any) -> int | None:
    """How many leading dims of all operands and results JAX says are batch dims; None where it says nothing."""
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


def own(kind: str, op: Any, operands: Shapes, results: Shapes) -> Rule | None:
    """Our rule for an op of ``kind``, None if we have none.  ``op`` is the MLIR operation.

    Raises:
        UnsupportedOp: the op makes sense only in a program that is split over devices by hand.
    """
    if kind in kinds.PER_DEVICE:
        raise UnsupportedOp(
            f"{kind} ({str(op.location)[:200]}): the program is already split over devices by hand (shard_map, pmap); "
            "give the function before that."
        )
    if not results:
        return None
    if kind == "custom_call":
        return _custom_call(operands, results, op)
    if kind == "chlo.top_k":  # the sorted dim is the last
        return all_but(operands, results, len(operands[0]) - 1)
    if kind == "chlo.ragged_dot":
        return _ragged_dot(operands, results, op)
    if kind.startswith("chlo.broadcast_"):
        return _broadcasting(operands, results, op)
    if kind in kinds.ELEMENTWISE_WITHOUT_RULE and all(s in (results[0], ()) for s in (*operands, *results)):
        return elementwise(operands, results)
    if kind == "broadcast":  # new dims come first
        draft = _Draft(operands, results)
        new = len(results[0]) - len(operands[0])
        for dim in range(len(results[0])):
            draft.factor([(1, dim)] + ([(0, dim - new)] if dim >= new else []))
        return draft.build()
    return None


def why_missing(kind: str, op: Any) -> str:
    """Why an op of ``kind`` stays replicated, for the coverage report."""
    if kind == "custom_call" and op is not None:
        target = call_target(op)
        reason = next((text for pattern, text in _WHY_WHOLE if pattern.search(target)), "")
        return f"no sharding rule for custom_call @{target}" + (f": {reason}" if reason else "")
    if kind == "rng":
        return "no sharding rule for rng: each shard would draw numbers of its own"
    return f"no sharding rule for {kind}"


# -- factors of Shardy's rules that are not local ----------------------------------------------------------

# Ops that make dims out of nothing: each shard makes its own piece.  (A piece of rng_bit_generator's stream
# depends on the state and the position alone, and XLA was seen to make just that, without communication.)
_GENERATORS = {"broadcast_in_dim", "broadcast", "iota", "constant", "rng_bit_generator"}


def narrow(kind: str, rule: Rule, op: Any = None) -> Rule:
    """``rule`` without the factors that are not local (they need replication).  ``op``: the MLIR operation or None."""
    classes = list(rule.classes)
    _keep_what_results_carry(kind, rule, classes)
    check = _NARROW.get(kind)
    if check is not None and op is not None:
        check(rule, classes, op)
    return dataclasses.replace(rule, classes=classes)


def _majors(dims: list[tuple[int, ...]]) -> list[int]:
    return [factors[0] for factors in dims]


def _keep_what_results_carry(kind: str, rule: Rule, classes: list[int]) -> None:
    """A pass factor must stand on every result, or a part of the result would be computed from part of the input.

    Found on reshapes whose sizes share no divisor (3x4 to 4x3 gives each side a factor of its own) and on the rules
    that JAX writes on linear algebra calls, where only the batch dims are tied.  A factor on results alone
    has nothing to do with the operands: the op is computed whole and its result sliced, which a plan says anyway.
    """
    results = [set(_majors(dims)) for dims in rule.results]
    operands = {f for dims in rule.operands for f in _majors(dims)}
    for factor, role in enumerate(classes):
        if role == p.REDUCTION and any(factor in found for found in results):
            classes[factor] = p.NEED_REPLICATION
        if role != p.PASS or kind in _GENERATORS:
            continue
        if factor not in operands or not all(factor in found for found in results):
            classes[factor] = p.NEED_REPLICATION


def _narrow_call(rule: Rule, classes: list[int], op: Any) -> None:
    # Shardy ties the matrix dims of an eigendecomposition to those of its result, and the sorted dim of a top-k
    # to that of its result where k is the whole dim; neither can be computed shard by shard.
    ours = _custom_call(*_shapes(op), op)
    if ours is None:
        return
    ours_local = {
        (t, d) for t, dims in enumerate(ours.operands) for d, f in enumerate(dims) if ours.classes[f[0]] == p.PASS
    }
    for tensor, dims in enumerate(rule.operands):
        for dim, factors in enumerate(dims):
            if (tensor, dim) not in ours_local:
                classes[factors[0]] = p.NEED_REPLICATION


def _shapes(op: Any) -> tuple[Shapes, Shapes]:
    def of(values: Any) -> Shapes:
        return [tuple(v.type.shape) if isinstance(v.type, ir.RankedTensorType) else () for v in values]

    return of(op.operands), of(op.results)


def _narrow_pad(rule: Rule, classes: list[int], op: Any) -> None:
    # low=1, high=-1 keeps the size and shifts every element into its neighbour's place.
    rows = zip(*(_ints(op, f"{k}_padding{e}") or [] for k, e in _PAD_KEYS), strict=True)
    for factors, amounts in zip(rule.operands[0], rows, strict=True):
        if any(amounts):
            classes[factors[0]] = p.NEED_REPLICATION


_PAD_KEYS = (("edge", "_low"), ("edge", "_high"), ("interior", ""))

_NEUTRAL: dict[str, Callable[[str], bool]] = {
    "add": lambda text: _number(text) in (0, 0j) or text == "false",
    "mul": lambda text: _number(text) == 1 or text == "true",
}


def _narrow_reduce(rule: Rule, classes: list[int], op: Any) -> None:
    # Every shard starts from the init value, and so does XLA's partitioner (seen with jaxlib 0.10.2): a sum over 4
    # shards with init 5 comes out 15 too large.  Taking an init twice does no harm to max, min, and, or.
    half = len(op.operands) // 2
    body = body_monoid(op.regions[0])
    neutral = _NEUTRAL.get(body)
    if body and (neutral is None or all(neutral(splat(v)) for v in list(op.operands)[half:])):
        return
    for factor, role in enumerate(classes):
        if role == p.REDUCTION:
            classes[factor] = p.NEED_REPLICATION


def splat(value: Any) -> str:
    """The one number of a constant value as MLIR prints it, "" if ``value`` is no splat constant."""
    owner = value.owner
    while getattr(owner, "name", "") in ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.convert"):
        owner = owner.operands[0].owner
    if getattr(owner, "name", "") != "stablehlo.constant":
        return ""
    match = re.match(r"^dense<([^<>\[\]\"]+)> : ", constant_text(owner))
    return match.group(1) if match else ""


def constant_text(constant: Any) -> str:
    """The value of a ``stablehlo.constant`` as MLIR prints it, long ones cut."""
    try:
        return str(constant.attributes["value"])
    except TypeError:  # jaxlib 0.10.2 has no Python class for dense attributes of complex numbers
        match = re.search(r"dense<.*", constant.get_asm(large_elements_limit=16, enable_debug_info=False))
        return match.group(0) if match else ""


def _number(text: str) -> complex | None:
    try:
        if text.startswith("("):
            real, imaginary = text.strip("()").split(",")
            return complex(float(real), float(imaginary))
        return float(text)
    except ValueError:
        return None


def body_monoid(region: Any) -> str:
    """The monoid that a reduction's or scatter's body applies to its two arguments, "" if it is none we know."""
    block = region.blocks[0]
    ops = list(block.operations)
    if len(ops) != 2 or len(block.arguments) != 2:
        return ""
    first, last = ops[0].operation, ops[1].operation
    # Both arguments once, and nothing else: add(b, b) is no sum.
    both = list(first.operands) in (list(block.arguments), list(block.arguments)[::-1])
    if not both or list(last.operands) != list(first.results):
        return ""
    found = kinds.BODY_MONOID.get(first.name.removeprefix("stablehlo."), "")
    if found in ("and", "or") and not str(block.arguments[0].type).endswith("<i1>"):
        return ""  # bit by bit on integers: XLA has no such all_reduce ("Unsupported reduction computation")
    return found


def _narrow_convolution(rule: Rule, classes: list[int], op: Any) -> None:
    """A spatial dim is local where windows neither overlap nor leave gaps; else neighbours are needed.

    Then windows pass (Shardy calls them a permutation in any case): patch embeddings and 1x1 convolutions.  The
    window dim as a reduction is exact only where there is one window and it is the whole dim.
    """
    if ir.IntegerAttr(op.attributes["batch_group_count"]).value > 1:
        # The contraction is local, but XLA sums over the whole mesh: on d=2, m=4, sharded on d, four times the
        # value comes out (jaxlib 0.10.2 and 0.12.0.1; docs/certification.md has the reproducer).
        for factor, role in enumerate(classes):
            if role == p.REDUCTION:
                classes[factor] = p.NEED_REPLICATION
    lhs, kernel, out = _conv_dims(str(op.attributes["dimension_numbers"]))
    count = len(lhs)
    (left, right), (result,) = _shapes(op)
    strides = _ints(op, "window_strides") or [1] * count
    dilations = [_ints(op, key) or [1] * count for key in ("lhs_dilation", "rhs_dilation")]
    padding = _padding(op, count)
    turned = "true" in str(op.attributes["window_reversal"]) if "window_reversal" in op.attributes else False
    for i in range(count):
        n, window, windows = left[lhs[i]], right[kernel[i]], result[out[i]]
        plain = padding[i] == (0, 0) and all(d[i] == 1 for d in dilations) and n == window * windows
        exact = plain and (strides[i] == window or windows == 1)
        for factor in {rule.operands[0][lhs[i]][0], rule.operands[1][kernel[i]][0]}:
            if classes[factor] == p.REDUCTION and not (exact and windows == 1 and (not turned or window == 1)):
                classes[factor] = p.NEED_REPLICATION
        factor = rule.results[0][out[i]][0]
        if factor == rule.operands[0][lhs[i]][0] and rule.sizes[factor] == windows and exact:
            classes[factor] = p.PASS


def _conv_dims(text: str) -> tuple[list[int], list[int], list[int]]:
    """Spatial dims of input, kernel and output, from ``#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>``."""
    parts = re.findall(r"\[([^\]]*)\]", text)

    def dims(part: str) -> list[int]:
        labels = [label.strip() for label in part.split(",")]
        return [labels.index(str(i)) for i in range(len(labels) - 2)]

    lhs, kernel, out = parts[:3]
    return dims(lhs), dims(kernel), dims(out)


def _padding(op: Any, count: int) -> list[tuple[int, int]]:
    if "padding" not in op.attributes:
        return [(0, 0)] * count
    numbers: list[int] = np.asarray(ir.DenseIntElementsAttr(op.attributes["padding"])).reshape(-1).tolist()
    return [(numbers[2 * i], numbers[2 * i + 1]) for i in range(count)]


def _narrow_triangular_solve(rule: Rule, classes: list[int], op: Any) -> None:
    # Each right-hand side is solved on its own (Shardy keeps that dim whole); the triangle itself stays whole.
    side = -1 if str(op.attributes["left_side"]) == "true" else -2
    factor = rule.operands[1][side][0]
    if factor == rule.results[0][side][0] and factor not in _majors(rule.operands[0]):
        classes[factor] = p.PASS


_NARROW: dict[str, Callable[[Rule, list[int], Any], None]] = {
    "convolution": _narrow_convolution,
    "custom_call": _narrow_call,
    "pad": _narrow_pad,
    "reduce": _narrow_reduce,
    "triangular_solve": _narrow_triangular_solve,
}


def _ints(op: Any, key: str) -> list[int] | None:
    """An attribute of integers, None if the op does not carry it."""
    return [int(x) for x in ir.DenseI64ArrayAttr(op.attributes[key])] if key in op.attributes else None
