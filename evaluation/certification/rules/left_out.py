"""Op kinds that are not certified, with the reason for each.

They have no factor that may be sharded, or no meaning of their own.
"""

from __future__ import annotations

from toast_lab.ir.op_kinds import kinds_where

_CONTROL = "control flow: its factors are those of its values; certified with whole plans"
_CONSTANT = "made of nothing: every use has a copy of its own, so no plan shards it"
_DYNAMIC = "dynamic shapes are refused, and JAX emits this only for them"
_HANDS = "only inside a shard_map, which no plan splits; refused elsewhere"
_HOST = "no rule: it talks to the host or another program, whole"
_OLD = "no rule, stays whole: JAX does not emit it"

LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(("while", "case", "if", "composite", "return"), _CONTROL),
    **dict.fromkeys(("constant", "iota", "create_token", "chlo.constant"), _CONSTANT),
    **dict.fromkeys(
        (
            "dynamic_broadcast_in_dim",
            "dynamic_conv",
            "dynamic_gather",
            "dynamic_iota",
            "dynamic_pad",
            "dynamic_reshape",
            "real_dynamic_slice",
            "get_dimension_size",
            "set_dimension_size",
        ),
        _DYNAMIC,
    ),
    **dict.fromkeys((*kinds_where("per_device"), "shard_map"), _HANDS),
    **dict.fromkeys(
        ("infeed", "outfeed", "send", "recv", "after_all", "async_start", "async_done"), _HOST
    ),
    **dict.fromkeys(
        (
            "batch_norm_grad",
            "batch_norm_inference",
            "batch_norm_training",
            "einsum",
            "unary_einsum",
            "torch_index_select",
            "uniform_quantize",
            "uniform_dequantize",
            "tuple",
            "get_tuple_element",
            "chlo.scan",
        ),
        _OLD,
    ),
    "rng": "no rule: each shard would draw numbers of its own",
    "chlo._asin_acos_kernel": "element by element; its result is defined for the expansion of "
    "asin and acos only",
}

# All chlo.broadcast_* share one rule; these two are certified for it.
BROADCASTING = ("chlo.broadcast_add", "chlo.broadcast_multiply")


def all_kinds() -> set[str]:
    """Every op kind of StableHLO and CHLO that this jaxlib has."""
    from toast_lab._jaxlib import chlo, stablehlo

    names = {
        getattr(item, "OPERATION_NAME", "")
        for dialect in (stablehlo, chlo)
        for item in vars(dialect).values()
        if isinstance(getattr(item, "OPERATION_NAME", None), str)
    }
    return {name.removeprefix("stablehlo.") for name in names if name}
