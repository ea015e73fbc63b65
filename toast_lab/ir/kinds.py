"""What kind of work each StableHLO and CHLO op is, and which ops are elementwise without a Shardy rule."""

from __future__ import annotations

from toast_lab.ir import program as p

VIEWS = {
    "reshape",
    "broadcast_in_dim",
    "broadcast",
    "bitcast_convert",
    "optimization_barrier",
    "tuple",
    "get_tuple_element",
}
REDUCTIONS = {"reduce", "reduce_window", "select_and_scatter", "reduce_precision_window"}
INDEXING = {
    "gather",
    "scatter",
    "dynamic_slice",
    "dynamic_update_slice",
    "slice",
    "concatenate",
    "pad",
    "reverse",
    "dynamic_gather",
}
CONSTANTS = {"constant", "iota", "create_token"}
OPAQUE = {
    "while",
    "case",
    "if",
    "custom_call",
    "composite",
    "infeed",
    "outfeed",
    "send",
    "recv",
    "rng",
    "func.call",
}
OTHERS = {"transpose", "sort", "fft", "cholesky", "triangular_solve", "rng_bit_generator", "dynamic_reshape"}

# CHLO ops carry no Shardy rule on purpose (they are to be expanded first); these act element by element.
CHLO_ELEMENTWISE = {
    "chlo." + name
    for name in (
        "square acos acosh asin asinh atan atanh bessel_i1e conj cosh digamma erf erf_inv erfc is_inf "
        "is_neg_inf is_pos_inf lgamma next_after polygamma sinh tan zeta _asin_acos_kernel mulhi constant_like"
    ).split()
}
# All ops that act element by element and carry no Shardy rule.
ELEMENTWISE_WITHOUT_RULE = CHLO_ELEMENTWISE | {"map", "sdy.propagation_barrier"}

# Ops that only a program split over devices by hand can hold; their meaning depends on how many devices there are.
PER_DEVICE = {
    "partition_id", "replica_id", "all_gather", "all_reduce", "all_to_all", "reduce_scatter", "collective_permute",
    "collective_broadcast", "collective_reduce", "cross-replica-sum", "sdy.manual_computation",
}  # fmt: skip

# combiner op in a reduction or scatter body -> monoid of its partial results
BODY_MONOID = {"add": "add", "maximum": "max", "minimum": "min", "multiply": "mul", "and": "and", "or": "or"}


def op_class(kind: str) -> int:
    """Cost class of an op kind; ops not listed are elementwise if StableHLO's, opaque otherwise."""
    if kind in VIEWS:
        return p.VIEW
    if kind in CONSTANTS:
        return p.CONSTANT
    if kind in ("dot_general", "dot", "chlo.ragged_dot"):
        return p.DOT
    if kind in ("convolution", "dynamic_conv"):
        return p.CONVOLUTION
    if kind in REDUCTIONS:
        return p.REDUCE
    if kind in INDEXING:
        return p.INDEXING
    if kind in OTHERS:
        return p.OTHER
    if kind in OPAQUE:
        return p.OPAQUE
    if kind.startswith("chlo.") and kind not in CHLO_ELEMENTWISE:
        return p.OTHER
    if "." in kind and not kind.startswith("chlo."):
        return p.OPAQUE
    return p.ELEMENTWISE
