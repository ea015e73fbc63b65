"""Factors that Shardy shards although the op is not local along them; execution refutes each.

The claims are those of Shardy in jaxlib 0.10.2, or of a rule that JAX wrote. ``refute`` claims the
factor as Shardy does and certifies it. That must fail: by a wrong result on shards, by a wrong
result of the compiled op, or by communication that no step would show.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evaluation.certification.rules.certify import certify
from evaluation.certification.rules.single_op import SingleOp, cut_out
from toast_lab import _jaxlib
from toast_lab.ir import canonical
from toast_lab.ir import program as p

RNG = np.random.default_rng(0)


class Narrowed(NamedTuple):
    """A claim of Shardy's about a factor that our rules do not follow."""

    make: Callable[[], SingleOp]
    operand: int  #: operand whose dim ``dim`` has the factor
    dim: int
    role: str = "pass"
    ways: int = 2


def _single(
    fn: Any, kind: str, *arguments: np.ndarray, platform: str = "cpu", target: str = ""
) -> SingleOp:
    text = (
        jax.jit(fn, keep_unused=True)
        .trace(*arguments)
        .lower(lowering_platforms=(platform,))
        .as_text()
    )
    return cut_out(text, kind, arguments, target)


def _floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def _symmetric() -> np.ndarray:
    x = _floats(4, 8, 8)
    return x + x.swapaxes(-1, -2)


def _kernel_gradient() -> SingleOp:
    def conv(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def gradient(x: Any, k: Any, g: Any) -> Any:
        return jax.vjp(lambda k: conv(x, k), k)[1](g)[0]

    return _single(
        gradient, "convolution", _floats(4, 8, 8, 4), _floats(3, 3, 4, 8), _floats(4, 8, 8, 8)
    )


CLAIMS: dict[str, Narrowed] = {
    # Every shard adds the init value, in the compiled program too.
    "reduce from an init that is not neutral": Narrowed(
        lambda: _single(
            lambda x: lax.reduce(x, np.float32(5), lax.add, (0,)), "reduce", _floats(8, 4)
        ),
        0,
        0,
        "reduction",
    ),
    "reduce from an init that is an argument": Narrowed(
        lambda: _single(
            lambda x, i: lax.reduce(x, i, lax.mul, (0,)), "reduce", _floats(8, 4), np.float32(2)
        ),
        0,
        0,
        "reduction",
    ),
    # No collective combines integers bit by bit.
    "bitwise and of integers": Narrowed(
        lambda: _single(
            lambda x: lax.reduce_and(x, axes=(0,)), "reduce", RNG.integers(0, 99, (8, 4), np.int32)
        ),
        0,
        0,
        "reduction",
    ),
    # Elements move to the places of their neighbours.
    "pad that shifts": Narrowed(
        lambda: _single(
            lambda x: lax.pad(x, np.float32(0), ((0, 0, 0), (1, -1, 0))), "pad", _floats(4, 8)
        ),
        0,
        1,
    ),
    # The two sides of the reshape share no factor, and neither side's own factor carries over.
    "reshape with nothing in common": Narrowed(
        lambda: _single(lambda x: x.reshape(9, 4), "reshape", _floats(4, 9)), 0, 0
    ),
    "columns of an eigendecomposition": Narrowed(
        lambda: _single(
            jnp.linalg.eigh, "custom_call", _symmetric(), platform="tpu", target="Eigh"
        ),
        0,
        2,
    ),
    "rows of a QR decomposition": Narrowed(
        lambda: _single(jnp.linalg.qr, "custom_call", _floats(4, 8, 8), target="lapack_sgeqrf_ffi"),
        0,
        1,
    ),
    "approximate top-k of everything": Narrowed(
        lambda: _single(
            lambda x: lax.approx_max_k(x, 8), "custom_call", _floats(4, 8), target="ApproxTopK"
        ),
        0,
        1,
    ),
    # Overlapping windows need the elements of neighbours.
    "spatial dim of a kernel's gradient": Narrowed(_kernel_gradient, 0, 1, "reduction"),
    # The update may straddle two shards; XLA gathers the operand.
    "update of more than one element": Narrowed(
        lambda: _single(
            lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)),
            "dynamic_update_slice",
            _floats(8, 4),
            _floats(3, 4),
            np.int32(3),
        ),
        0,
        0,
    ),
}


def factor_of(claim: Narrowed, single: SingleOp) -> int:
    """The factor that the claim is about, counted within the op."""
    use = int(single.program.use_ptr[single.op]) + claim.operand
    return single.program.use_names(use)[claim.dim] - int(single.program.factor_ptr[single.op])


def shardy_role(claim: Narrowed, single: SingleOp) -> str:
    """The factor's role in the rule that Shardy puts on the op."""
    context = _jaxlib.make_context()
    module = _jaxlib.parse_module(context, single.text)
    _jaxlib.populate_rules(module)
    for op in canonical.main_function(module).operation.regions[0].blocks[0].operations:
        rule = _jaxlib.rule_of(op.operation) if canonical.short_kind(op) == single.kind else None
        if rule is not None:
            factor = rule["operands"][claim.operand][claim.dim][0]
            if factor in (*rule["need_replication"], *rule["permutation"]):
                return "whole"
            return "reduction" if factor in rule["reduction"] else "pass"
    return "none"


def refute(name: str) -> tuple[str, str, str]:
    """(Shardy's role of the factor, our role, the error if the factor is sharded).

    This function runs in a child with virtual devices.
    """
    claim = CLAIMS[name]
    single = claim.make()
    own = factor_of(claim, single)
    ours = p.FACTOR_CLASSES[single.program.factor_class[single.program.factors(single.op)[own]]]
    classes = single.program.factor_class.copy()
    classes[single.program.factors(single.op)[own]] = p.FACTOR_CLASSES.index(claim.role)
    monoid = single.program.monoid.copy()
    forced = dataclasses.replace(
        single, program=dataclasses.replace(single.program, factor_class=classes, monoid=monoid)
    )
    try:
        outcome = certify(forced, name, own, claim.ways)
        wrong = outcome.local_error or outcome.compiled_error or ""
    # No such op exists for local shapes, or XLA refuses to compile it
    except Exception as error:
        wrong = f"{type(error).__name__}: {str(error)[:200]}"
    return shardy_role(claim, single), ours, wrong


def refute_all() -> dict[str, tuple[str, str, str]]:
    """``refute`` for every claim."""
    return {name: refute(name) for name in CLAIMS}
