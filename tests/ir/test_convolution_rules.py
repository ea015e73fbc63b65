"""Cut along any factor that a convolution's rule allows, shards give what the whole gives."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toast_lab.frontends import from_jax
from toast_lab.ir.program import PASS, REDUCTION

IMAGE = ("NHWC", "HWIO", "NHWC")
# The batch is summed, and the output's pixels slide over the input's
KERNEL_GRADIENT = ("CHWN", "IHWO", "HWNC")


def conv(
    dims: tuple[str, str, str], padding: object, **options: object
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    strides = options.pop("strides", (1, 1))
    return lambda x, w: jax.lax.conv_general_dilated(
        x,
        w,
        strides,  # type: ignore[arg-type]
        padding,  # type: ignore[arg-type]
        dimension_numbers=dims,
        **options,  # type: ignore[arg-type]
    )


same, valid = [(1, 1), (1, 1)], [(0, 0), (0, 0)]
CASES = {
    "3x3": (conv(IMAGE, same), (4, 8, 8, 4), (3, 3, 4, 6), 3),
    "strided": (conv(IMAGE, same, strides=(2, 2)), (4, 8, 8, 4), (3, 3, 4, 6), 3),
    "depthwise": (conv(IMAGE, same, feature_group_count=4), (4, 8, 8, 4), (3, 3, 1, 4), 1),
    "smaller than the kernel": (conv(IMAGE, same), (4, 2, 2, 4), (3, 3, 4, 6), 3),
    "kernel gradient": (conv(KERNEL_GRADIENT, same), (4, 8, 8, 4), (4, 8, 8, 6), 3),
    "strided kernel gradient": (
        conv(KERNEL_GRADIENT, [(1, 0), (1, 0)], rhs_dilation=(2, 2)),
        (4, 8, 8, 4),
        (4, 4, 4, 6),
        3,
    ),
    "one position": (conv(IMAGE, valid), (4, 8, 8, 4), (8, 8, 4, 6), 5),
    "one position, off centre": (
        conv(IMAGE, [(1, 0), (1, 0)], strides=(2, 2)),
        (4, 8, 8, 4),
        (8, 8, 4, 6),
        3,
    ),
    "one position, 1x1 kernel gradient": (
        conv(KERNEL_GRADIENT, valid),
        (4, 8, 8, 4),
        (4, 8, 8, 6),
        5,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_shards_give_the_whole(case: str) -> None:
    fn, left, right, n_factors = CASES[case]
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in (left, right)]
    program = from_jax(fn, *shapes).program
    (op,) = [o for o in program.ops() if program.kind[o] == "convolution"]
    (value,) = program.results(op)
    uses = [program.use_names(u) for u in range(program.use_ptr[op], program.use_ptr[op + 1])]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (left, right)]
    whole = np.asarray(fn(*arrays))
    cut = 0
    for factor in program.factors(op):
        size, role = int(program.factor_size[factor]), program.factor_class[factor]
        if (
            size == 1
            or role not in (PASS, REDUCTION)
            or (case == "depthwise" and factor in uses[1])
        ):
            # A depthwise convolution cut along its channels has fewer groups, which ``fn`` cannot
            # express
            continue
        parts = []
        for half in range(2):
            local = [
                np.split(array, 2, axis=names.index(factor))[half] if factor in names else array
                for array, names in zip(arrays, uses, strict=True)
            ]
            parts.append(np.asarray(fn(*local)))
        row = program.def_names(value)
        joined = (
            parts[0] + parts[1]
            if role == REDUCTION
            else np.concatenate(parts, axis=row.index(factor))
        )
        np.testing.assert_allclose(joined, whole, rtol=1e-3, atol=1e-4)
        cut += 1
    assert cut == n_factors
