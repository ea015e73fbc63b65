"""The collectives of a random plan per mesh and program are Shardy's, or differ for a reason."""

from __future__ import annotations

import pytest

from evaluation.certification import oracle
from evaluation.certification.programs import programs

CASES = {c.name: c for c in programs()}
FEW = {
    "mlp",
    "xxt",
    "attention",
    "transformer_forward",
    "scan_gradient",
    "embedding_gradient",
    "kv_cache",
    "reshapes",
    "glue",
    "conv_net_step",
    "mixture_of_experts",
    "layer_norm_mlp_step",
    "dropout",
    "cholesky_as_op",
}


@pytest.mark.parametrize("name", sorted(FEW))
def test_every_difference_from_shardy_has_a_reason(name: str) -> None:
    rows = oracle.compare(CASES[name], oracle.SHORT)
    assert len(rows) == 3
    assert not [r.failure for r in rows if r.failure]
