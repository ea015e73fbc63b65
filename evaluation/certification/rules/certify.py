"""Certify one factor of one op's rule, by running the op on shards and by compiling it.

*On shards*: the operands are cut along the factor, the op runs on each piece with local shapes, and
the pieces of the result are concatenated (pass factor) or combined by the claimed monoid (reduction
factor). ``MEANING`` says what "runs on a piece" means for ops that look up elements by index.

*Compiled*: the op alone, annotated along the factor by the package's own lowering, compiled by XLA
for virtual devices. The result must be the same, and the compiled program may hold no collective
that the steps do not have.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from evaluation.certification.rules import single_op
from evaluation.certification.rules.single_op import SingleOp, local_text
from toast_lab.ir import program as p
from toast_lab.lowering.annotate import annotate
from toast_lab.runtime import _jax_private, hlo
from toast_lab.sharding import steps as st
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.step_kinds import STEP_KINDS

MEANING = {
    ("gather", "reduction"): "indices are clamped to the whole operand and lowered by the "
    "shard's offset; "
    "rows that another shard holds count as zero",
    ("scatter", "pass"): "indices are lowered by the shard's offset along a scattered dim; "
    "updates that fall outside "
    "the shard are dropped",
    (
        "scatter",
        "reduction",
    ): "every shard but the first starts from the combiner's neutral element",
    ("dynamic_update_slice", "pass"): "the start is clamped to the whole operand; along an "
    "updated dim the shard takes "
    "the part of the update that falls into it",
    ("convolution", "pass"): "a group factor leaves each shard its share of the groups",
    ("rng_bit_generator", "pass"): "each shard makes its piece of the one stream (checked on the "
    "compiled op only)",
    ("chlo.ragged_dot", "pass"): "checked on shards only: XLA's CPU compiler has no ragged dot",
}

# Ops that cannot be run on a single shard; see MEANING.
NOT_ON_SHARDS = {"rng_bit_generator"}
# Cases that the CPU compiler cannot compile for several devices, or miscompiles.
NOT_COMPILED = {
    "chlo.mulhi/pointwise": "XLA cannot convert a sharded mulhi",
    "reduce/NaN in a maximum": "XLA's CPU all_reduce loses NaN in max and min",
}

# Cases in which the CPU compiler communicates although other compilers do not: plans are priced for
# the better compiler. "TPU" refers to programs that jaxlib 0.10.2 and libtpu compiled ahead of time
# for v5e:2x2.
XLA_COMMUNICATES = {
    "custom_call/Qr": "a TPU op: the CPU compiler gathers it, TPU's does not",
    "custom_call/ProductOfElementaryHouseholderReflectors": "a TPU op: the CPU compiler gathers "
    "it, TPU's does not",
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of certifying one factor of one op.

    An error is empty if the check passed, and None if the check was not made.
    """

    kind: str
    case: str
    factor: int
    role: str
    ways: int
    local_error: str | None
    compiled_error: str | None
    excuse: str = ""  #: why the compiled op may communicate more than is priced

    @property
    def ok(self) -> bool:
        """Did at least one check pass, and none fail?"""
        tried = [e for e in (self.local_error, self.compiled_error) if e is not None]
        return bool(tried) and not any(tried)


def shardable_factors(single: SingleOp) -> list[int]:
    """Factors of the op that a plan may shard."""
    program = single.program
    return [
        f
        for f in program.factors(single.op)
        if program.factor_size[f] > 1 and program.factor_class[f] in (p.PASS, p.REDUCTION)
    ]


def certify(
    single: SingleOp,
    case: str,
    factor: int,
    ways: int,
    *,
    local: bool = True,
    compiled: bool = True,
) -> Outcome:
    """Certify one factor (counted within the op) cut into ``ways`` pieces."""
    factor_in_op, factor = factor, factor + single.program.factors(single.op)[0]
    role = p.FACTOR_CLASSES[single.program.factor_class[factor]]
    wrong = compiled_error(single, factor, ways) if compiled else None
    excuse = next((reason for key, reason in XLA_COMMUNICATES.items() if case.startswith(key)), "")
    if excuse and wrong and wrong.startswith(MORE):
        wrong = ""
    else:
        excuse = ""
    return Outcome(
        single.kind,
        case,
        factor_in_op,
        role,
        ways,
        local_error(single, factor, ways, role) if local else None,
        wrong,
        excuse,
    )


# -- on shards -------------------------------------------------------------------------------------

Arrays = list[np.ndarray]


def local_error(single: SingleOp, factor: int, ways: int, role: str) -> str:
    """The error of the results that shards are combined to, "" if they are right."""
    split_operands, split_results = single.factor_dims(factor)
    results_by_shard: list[Arrays] = []
    for shard in range(ways):
        operands = [
            piece(a, dim, shard, ways)
            for a, dim in zip(single.operands, split_operands, strict=True)
        ]
        special = _SPECIAL.get((single.kind, role))
        shard_results = (
            special(single, factor, operands, split_operands, shard, ways) if special else None
        )
        if shard_results is None:
            shard_results = run_local(single, factor, ways, operands)
        results_by_shard.append(shard_results)
    combined = []
    for i, dim in enumerate(split_results):
        parts = [shard_results[i] for shard_results in results_by_shard]
        if role == "reduction":
            combined.append(reduce(COMBINE[single.monoid], parts))
        # This result does not have the pass factor, so all shards must give the same
        elif dim is None:
            if any(difference(part, parts[0]) for part in parts):
                return f"result {i} differs from shard to shard"
            combined.append(parts[0])
        else:
            combined.append(np.concatenate(parts, axis=dim))
    return compare(combined, single.expected, single.undefined)


def run_local(single: SingleOp, factor: int, ways: int, operands: Arrays) -> Arrays:
    """Run the op on the operands of one shard."""
    if single.reference:
        return [np.asarray(a) for a in single.reference(*operands)]
    return single_op.execute(local_text(single, factor, ways, single.pinned), single.free(operands))


def piece(array: np.ndarray, dim: int | None, shard: int, ways: int) -> np.ndarray:
    """One shard of an array cut along ``dim`` (None: not cut)."""
    return array if dim is None else np.split(array, ways, axis=dim)[shard]


def _or(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a | b


def _sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a | b if a.dtype == np.bool_ else a + b


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a & b if a.dtype == np.bool_ else a * b


COMBINE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": _sum,
    "max": np.maximum,
    "min": np.minimum,
    "mul": _product,
    "and": lambda a, b: a & b,
    "or": _or,
}


def neutral(monoid: str, dtype: np.dtype[Any]) -> Any:
    """The neutral element of a monoid."""
    if monoid in ("add", "or"):
        return np.zeros((), dtype)
    if monoid == "mul":
        return np.ones((), dtype)
    if monoid == "and":
        return np.ones((), bool) if dtype == np.bool_ else np.invert(np.zeros((), dtype))
    if dtype == np.bool_:
        return np.asarray(monoid == "min")
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return np.asarray(info.min if monoid == "max" else info.max, dtype)
    return np.asarray(-np.inf if monoid == "max" else np.inf).astype(dtype)


def _attribute(body: str, key: str) -> list[int]:
    match = re.search(rf"\b{key} = (?:array<i64: )?\[?([\d, ]+)[\]>]", body)
    return [int(x) for x in match.group(1).split(",")] if match else []


def _index_vector_dim(body: str) -> int:
    match = re.search(r"\bindex_vector_dim = (\d+)", body)
    return int(match.group(1)) if match else 0


def _gather_reduction(
    single: SingleOp, factor: int, operands: Arrays, split: list[int | None], shard: int, ways: int
) -> Arrays:
    dim = split[0]
    assert dim is not None
    size, local = single.operands[0].shape[dim], operands[0].shape[dim]
    map_, vector = _attribute(single.body, "start_index_map"), _index_vector_dim(single.body)
    indices = operands[1].astype(np.int64)
    if vector == indices.ndim:
        indices = indices[..., None]
    at = np.moveaxis(indices, vector, 0)[map_.index(dim)] if dim in map_ else np.zeros((), np.int64)
    at = np.clip(at, 0, size - 1) - shard * local
    mine = (at >= 0) & (at < local)
    if dim in map_:
        np.moveaxis(indices, vector, 0)[map_.index(dim)] = np.clip(at, 0, local - 1)
    moved = indices.reshape(operands[1].shape).astype(operands[1].dtype)
    (rows,) = run_local(single, factor, ways, [operands[0], moved])
    offset = _attribute(single.body, "offset_dims")
    shape = [1 if d in offset else s for d, s in enumerate(rows.shape)]
    return [
        np.where(
            np.broadcast_to(mine, np.delete(rows.shape, offset)).reshape(shape),
            rows,
            np.zeros((), rows.dtype),
        )
    ]


def _scatter_pass(
    single: SingleOp, factor: int, operands: Arrays, split: list[int | None], shard: int, ways: int
) -> Arrays | None:
    half = len(operands) // 2
    dim = split[0]
    map_ = _attribute(single.body, "scatter_dims_to_operand_dims")
    if dim is None or dim not in map_ or split[half + 1] is not None:
        return None  # the updates have the factor too, so no index has to be moved
    vector = _index_vector_dim(single.body)
    indices = operands[half].astype(np.int64)
    if vector == indices.ndim:
        indices = indices[..., None]
    np.moveaxis(indices, vector, 0)[map_.index(dim)] -= shard * operands[0].shape[dim]
    operands = list(operands)
    operands[half] = indices.reshape(operands[half].shape).astype(np.int32)
    return run_local(single, factor, ways, operands)


def _scatter_reduction(
    single: SingleOp, factor: int, operands: Arrays, split: list[int | None], shard: int, ways: int
) -> Arrays:
    if shard:
        start = neutral(single.monoid, operands[0].dtype)
        operands = [np.broadcast_to(start, operands[0].shape), *operands[1:]]
    return run_local(single, factor, ways, operands)


def _update_pass(
    single: SingleOp, factor: int, operands: Arrays, split: list[int | None], shard: int, ways: int
) -> Arrays | None:
    whole, update = single.operands[:2]
    if split[1] is not None:
        return None  # the update has the factor too, so it covers the dim
    out = operands[0].copy()
    where, source = [], []
    for d in range(whole.ndim):
        start = int(np.clip(operands[2 + d], 0, whole.shape[d] - update.shape[d]))
        offset = shard * out.shape[d] if d == split[0] else 0
        low, high = max(start, offset), min(start + update.shape[d], offset + out.shape[d])
        where.append(slice(low - offset, max(high, low) - offset))
        source.append(slice(low - start, max(high, low) - start))
    out[tuple(where)] = update[tuple(source)]
    return [out]


_SPECIAL: dict[tuple[str, str], Callable[..., Arrays | None]] = {
    ("gather", "reduction"): _gather_reduction,
    ("scatter", "pass"): _scatter_pass,
    ("scatter", "reduction"): _scatter_reduction,
    ("dynamic_update_slice", "pass"): _update_pass,
}

MORE = "compiled: holds"

# -- compiled --------------------------------------------------------------------------------------


def plan_for(single: SingleOp, factor: int, ways: int) -> ShardingPlan:
    """A plan that splits the op along ``factor`` and nothing else.

    Operands are kept as the op reads them, results as the op leaves them.
    """
    program = single.program
    op_factor = np.full((program.n_ops, 1), -1, np.int32)
    value_dim = np.full((program.n_values, 1), -1, np.int8)
    op_factor[single.op, 0] = factor
    operands, results = single.factor_dims(factor)
    for value, dim in (
        *zip(program.operands(single.op), operands, strict=True),
        *zip(program.results(single.op), results, strict=True),
    ):
        if (
            dim is not None
            and program.value_op[value] != -1
            and not program.value_is_constant[value]
        ):
            value_dim[value, 0] = dim
    return ShardingPlan(program, Mesh(("a",), (ways,)), Sharding(op_factor, value_dim))


def compiled_error(single: SingleOp, factor: int, ways: int) -> str:
    """The error of the op compiled for ``ways`` devices along ``factor``, "" if it is right."""
    import jax
    from jax.sharding import NamedSharding

    from toast_lab.lowering.specs import to_partition_spec

    plan = plan_for(single, factor, ways)
    program = single.program
    devices = jax.devices()[:ways]
    mesh = jax.sharding.Mesh(np.asarray(devices), ("a",))
    executable = _jax_private.compile_module(annotate(single.text, plan), devices)
    specs = plan.value_specs()
    with jax.enable_x64(True):
        arguments = [
            jax.device_put(a, NamedSharding(mesh, to_partition_spec(specs[i])))
            for i, a in enumerate(single.free(single.operands))
        ]
    outputs = _jax_private.execute(executable, arguments)
    results = [
        np.asarray(
            jax.make_array_from_single_device_arrays(
                program.dims(int(v)), NamedSharding(mesh, to_partition_spec(specs[int(v)])), parts
            )
        )
        for v, parts in zip(program.outputs, outputs, strict=True)
    ]
    wrong = compare(results, single.expected, single.undefined)
    if wrong:
        return f"compiled: {wrong}"
    steps = st.lower(program, plan.op_factor, plan.value_dim, np.asarray([ways]))
    priced = sorted({STEP_KINDS[k] for k in steps.kind} - {"compute"})
    kinds = sorted(
        {c.kind for c in hlo.collectives(_jax_private.optimised_hlo(executable), {"a": ways})}
    )
    if not set(kinds) <= set(priced):
        return f"{MORE} {', '.join(kinds)}, priced as {', '.join(priced) or 'no collective'}"
    return ""


# -- comparing -------------------------------------------------------------------------------------

_TOLERANCE = {
    "float64": 1e-12,
    "complex128": 1e-12,
    "float32": 2e-5,
    "complex64": 2e-5,
    "float16": 5e-3,
    "bfloat16": 4e-2,
}


def compare(found: Arrays, expected: Arrays, undefined: tuple[int, ...] = ()) -> str:
    """Describe the first result that differs by more than its type's rounding, "" if none does.

    ``undefined`` results may differ.
    """
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        wrong = "" if i in undefined else difference(a, b)
        if wrong:
            return f"result {i}: {wrong}"
    return ""


def difference(found: np.ndarray, expected: np.ndarray) -> str:
    """Describe how two arrays differ, "" if they do not.

    Integers must be equal, and NaNs and infinities must be in the same places.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype}{list(found.shape)} instead of {expected.dtype}{list(expected.shape)}"
    tolerance = _TOLERANCE.get(expected.dtype.name)
    if tolerance is None:
        unequal = int(np.sum(found != expected))
        return f"{unequal} of {expected.size} elements differ" if unequal else ""
    a, b = found.astype(np.complex128), expected.astype(np.complex128)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(np.isnan(a), np.isnan(b)):
        return "not finite in the same places"
    scale = float(np.max(np.abs(b[finite]), initial=0.0)) or 1.0
    error = float(np.max(np.abs(a[finite] - b[finite]), initial=0.0)) / scale
    return f"relative error {error:.3g}" if error > tolerance else ""
