"""Invalid entries of a sharding are named; the quick check agrees with one op by op."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import small_transformer
from toast_lab.ir.program import Program
from toast_lab.sharding.mesh import make_mesh
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.validity import offenders

MESH = make_mesh({"a": 2, "b": 3, "c": 4})


def program() -> Program:
    return small_transformer(layers=1, mode="train").program


def one_by_one(op_factor: np.ndarray, value_dim: np.ndarray) -> int:
    """Return the number of ops and values with an invalid entry."""
    ops, values = set(), set()
    for op, a in np.argwhere(op_factor >= 0):
        name = int(op_factor[op, a])
        ways = np.prod([MESH.sizes[b] for b in range(3) if op_factor[op, b] == name])
        if (
            name not in program().factors(int(op))
            or program().factor_size[name] % ways
            or program().factor_class[name] > 1
        ):
            ops.add(int(op))
    for v, a in np.argwhere(value_dim >= 0):
        dim, shape = int(value_dim[v, a]), program().dims(int(v))
        ways = np.prod([MESH.sizes[b] for b in range(3) if value_dim[v, b] == dim])
        if dim >= len(shape) or shape[dim] % ways:
            values.add(int(v))
    return len({program().kind[o] + program().where(o) for o in ops}) + len(
        {program().value_name[v] for v in values}
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_same_ops_and_values_as_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    op_factor = np.full((program().n_ops, 3), -1, np.int32)
    value_dim = np.full((program().n_values, 3), -1, np.int8)
    for op in rng.integers(0, program().n_ops, 12):
        own = program().factors(int(op))
        for a in rng.integers(0, 3, 2):
            if len(own):
                op_factor[op, a] = (
                    rng.choice(own) if rng.random() < 0.9 else rng.integers(0, program().n_factors)
                )
    for v in rng.integers(0, program().n_values, 12):
        value_dim[v, rng.integers(0, 3)] = rng.integers(0, len(program().dims(int(v))) + 1)
    offences = offenders(program(), MESH, Sharding(op_factor, value_dim))
    named = {
        text.partition("): ")[0] if "): " in text else text.partition(": ")[0] for text in offences
    }
    assert len(named) == one_by_one(op_factor, value_dim)


def test_numbers_are_in_the_text() -> None:
    op_factor = np.full((program().n_ops, 3), -1, np.int32)
    value_dim = np.full((program().n_values, 3), -1, np.int8)
    value_dim[0] = [0, 0, 9]
    offences = offenders(program(), MESH, Sharding(op_factor, value_dim))
    size = program().dims(0)[0]
    assert any(f"dim 0 has size {size}, not divisible by 6" in text for text in offences)
    assert any("no dim 9, its rank is 2" in text for text in offences)
    value_dim[0] = -1
    assert offenders(program(), MESH, Sharding(op_factor, value_dim)) == []
