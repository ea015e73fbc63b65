from __future__ import annotations

import pytest

from toast_lab.runtime.compiler_messages import refusal, rematerialised

FULL = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space \
hbm. Used 17.50G of 15.75G hbm. Exceeded hbm capacity by 1.75G.

Total hbm usage >= 18.00G:
    reserved        256.00M
    program          15.50G
    arguments         2.00G

Program hbm requirement 15.50G:
    HLO temp         15.50G (100.0% utilization: Unpadded (15.50G) Padded (15.50G), \
0.0% fragmentation (0B))

  Largest program allocations in hbm:

  1. Size: 512.00M
     Operator: op_name="toast.4/jit(f)/exp"
     Shape: f32[16,8,1024,1024]{3,2,1,0:T(8,128)}
     Unpadded size: 512.00M
     XLA label: fusion.2 = fusion(...)
     Allocation type: HLO temp
     ==========================

  2. Size: 2.00G
     Operator: op_name="toast.12/jit(f)/dot_general"
     Shape: f32[16,1024,32768]{2,1,0:T(8,128)}
     Unpadded size: 2.00G
     XLA label: fusion.1 = fusion(...)
     Allocation type: HLO temp
     ==========================
"""


def test_a_full_refusal_tells_sizes_and_the_largest_allocations() -> None:
    found = refusal(FULL)
    assert found is not None
    assert (found.needed_bytes, found.limit_bytes) == (17.5 * 2**30, 15.75 * 2**30)
    assert not found.only_temporaries
    assert [(a.bytes, a.op, a.op_name, a.kind) for a in found.allocations] == [
        (2.0 * 2**30, 12, "jit(f)/dot_general", "HLO temp"),
        (512.0 * 2**20, 4, "jit(f)/exp", "HLO temp"),
    ]
    assert found.allocations[0].shape.startswith("f32[16,1024,32768]")


@pytest.mark.parametrize(
    ("text", "needed", "limit", "temporaries"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (28.00G) "
            "exceeds available HBM (15.75G).",
            28.0 * 2**30,
            15.75 * 2**30,
            True,
        ),
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
            2.0**34,
            None,
            False,
        ),
        ("RESOURCE_EXHAUSTED: no words for it", None, None, False),
    ],
)
def test_short_refusals(
    text: str, needed: float | None, limit: float | None, temporaries: bool
) -> None:
    found = refusal(text)
    assert found is not None
    assert (found.needed_bytes, found.limit_bytes, found.only_temporaries) == (
        needed,
        limit,
        temporaries,
    )
    assert found.allocations == ()


def test_another_error_is_no_refusal() -> None:
    assert refusal("INVALID_ARGUMENT: bad shape") is None


def test_involuntary_rematerialisations_are_read_with_their_op_each_once() -> None:
    line = (
        "W1121 07:00:00.000000 1 spmd_partitioner.cc:1] [SPMD] Involuntary full "
        "rematerialization. The compiler "
        "was not able to go from sharding {devices=[1,2]0,1} to {devices=[2,1]0,1} efficiently "
        "for HLO operation "
        "%c = f32[8]{0} copy(%x), "
        'metadata={op_name="toast.31/jit(f)/add"}.'
    )
    found = rematerialised(f"noise\n{line}\nnoise\n{line}\n")
    assert [(r.op, r.op_name) for r in found] == [(31, "jit(f)/add")]
    assert "devices=[1,2]0,1" in found[0].text
