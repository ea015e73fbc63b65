"""Products are split along the axes that XLA's partitioner splits them along."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests import eight_devices
from toast_lab.conflicts.analysis import analyse
from toast_lab.frontends.tracing import from_jax
from toast_lab.sharding.mesh import make_mesh
from toast_lab.sharding.split_ops import OpSplits

SIZES = {"b": 16, "s": 32, "h": 128, "f": 64}
AXES = {"d": 2, "m": 4}
OUT, IN, WEIGHT = "bsh,hf->bsf", "bsf,fh->bsh", "bsf,bsh->fh"
BOTH = ("d", "m")
#: einsum, specs of both operands and of the result
PRODUCTS: dict[str, tuple[str, Any, Any, Any]] = {
    "tensor parallel": (OUT, P("d", None, "m"), P("m"), P("d")),
    "scattered along positions": (OUT, P("d", None, "m"), P("m", "d"), P("d", "m")),
    "scattered along features": (OUT, P("d", None, "m"), P("m"), P("d", None, "m")),
    "scattered along examples": (OUT, P("d", None, "m"), P("m"), P(BOTH)),
    "... and weights are stored in parts": (OUT, P("d", None, "m"), P("m", "d"), P(BOTH)),
    "... along the major axis": (OUT, P("m", None, "d"), P("d"), P(BOTH)),
    "weights gathered": (OUT, P("d"), P(None, "d"), P("d")),
    "more examples in parts": (OUT, P("d"), P(None, "d"), P(BOTH)),
    "examples gathered": (IN, P(BOTH), P("d", "m"), P("d", None, "m")),
    "gradient": (WEIGHT, P("d"), P("d", None, "m"), P("d", "m")),
    "gradient of examples in more parts": (WEIGHT, P(BOTH), P("d", None, "m"), P(None, "m")),
    "... that is kept in parts": (WEIGHT, P(BOTH), P("d", None, "m"), P("d", "m")),
    "... of one operand": (WEIGHT, P(BOTH), P("d"), P("d")),
    "... that is whole": (WEIGHT, P(BOTH), P("d"), P()),
    "one operand in parts": (OUT, P(None, None, "m"), P(), P()),
    "... and the other as well, in fewer": (OUT, P(None, None, BOTH), P("m"), P()),
    "... in data parallelism": (OUT, P("d", None, "m"), P(), P("d")),
    "gradient along positions": (WEIGHT, P("d", "m"), P("d", None, "m"), P("d", "m")),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_split_as_xla_splits_it(name: str) -> None:
    einsum, *specs = PRODUCTS[name]
    model = from_jax(lambda left, right: jnp.einsum(einsum, left, right), *_operands(einsum))
    program, mesh = model.program, make_mesh(AXES)
    assert program.kind[-1] == "dot_general"
    cut = np.full((program.n_values, len(AXES)), -1, np.int8)
    for value, spec in zip([0, 1, int(program.outputs[0])], specs, strict=True):
        cut[value] = mesh.cut_dims(tuple(_axes(entry) for entry in spec))
    op_factor = np.full((program.n_ops, len(AXES)), -1, np.int32)
    OpSplits(program, analyse(model).names.shardable).split(cut, cut, mesh.array(), op_factor)
    ways = np.prod(np.where(op_factor[-1] >= 0, mesh.array(), 1))
    whole = 2 * np.prod([*SIZES.values()])
    compiled = eight_devices.call(f"{__name__}:compiled_flops", name)
    # Sums over devices are a few more
    assert whole / ways <= compiled < 1.2 * whole / ways


def compiled_flops(name: str) -> float:
    """FLOPs of the compiled product on each of eight devices."""
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES))
    einsum, *specs = PRODUCTS[name]
    *placed, result = (NamedSharding(mesh, spec) for spec in specs)
    product = jax.jit(
        lambda left, right: jnp.einsum(einsum, left, right),
        in_shardings=tuple(placed),
        out_shardings=result,
    )
    return float(product.lower(*_operands(einsum)).compile().cost_analysis()["flops"])


def _operands(einsum: str) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct([SIZES[dim] for dim in dims], "float32")
        for dims in einsum.partition("->")[0].split(",")
    ]


def _axes(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
