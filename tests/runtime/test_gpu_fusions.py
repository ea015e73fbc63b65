"""XLA's times of fusions are corrected before they are used; expected times are worked by hand."""

from __future__ import annotations

import pytest

from toast_lab.runtime import gpu_fusions, hlo_text
from toast_lab.runtime.gpu_fusions import KERNEL_S, DeviceMemory

MEMORY = DeviceMemory(bytes_per_s=1e12, near_bytes=4e7)
MIB = 2**20


def cost(operations_us: float, memory_us: float, name: str = "") -> str:
    whole = max(operations_us, memory_us)
    return (
        f'{{"exec_time_us":{whole},"compute_time_us":{operations_us},'
        f'"memory_access_time_us":{memory_us},"name":"{name}"}}'
    )


def time_us(inside: str, outside: str, *costs: str) -> float | None:
    """Microseconds beyond those of any kernel; ``outside`` is the fusion up to its attributes."""
    text = f"""
%fused (p: f32[1024]) -> f32[1024] {{
{inside}
}}

ENTRY %main (x: f32[1048576]) -> f32[1048576] {{
  %x = f32[1048576] parameter(0)
  %table = bf16[4,1048576] parameter(1)
  ROOT {outside}, kind=kLoop, calls=%fused, "reification_cost":[{",".join(costs)}]
}}
"""
    module = hlo_text.parse(text)
    computation = module.computations["main"]
    fusion = computation.root
    assert gpu_fusions.is_believed(fusion)
    seconds = gpu_fusions.time_s(module, computation, fusion, MEMORY)
    return None if seconds is None else (seconds - KERNEL_S) * 1e6


PLAIN = "  ROOT %y = f32[1048576] negate(%p)"
FUSION = "%f = f32[1048576] fusion(%x)"
#: Microseconds to move the operand and result of ``FUSION`` once at 1 TB/s.
ONCE_US = 2 * 4 * MIB / 1e6


@pytest.mark.parametrize(
    ("inside", "costs", "expected_us"),
    [
        # Memory time decides; operations are hidden behind it
        (PLAIN, [cost(10, 6)], 6.0),
        ("  ROOT %y = f32[1048576] sine(%p)", [cost(100, 6)], 20.0),
        # Operations on random bits are counted correctly
        ("  ROOT %y = u32[1048576] xor(%p, %p)", [cost(20, 6)], 20.0),
        # Repeated reads come from the cache, except those of windows
        (PLAIN, [cost(1, 50)], ONCE_US),
        ("  ROOT %y = f32[1048576] reduce-window(%p)", [cost(1, 50)], 0.35 * 50),
        # The first model does not cover Triton fusions
        (PLAIN, [cost(1, 90_000), cost(1, 7, "indexing-cost-model"), cost(0, 0.01, "sol")], 7.0),
        (PLAIN, [cost(0, 0.01, "sol")], None),
        ("  ROOT %y = f32[1048576] sort(%p)", [cost(1, 6)], None),
    ],
)
def test_a_fusion(inside: str, costs: list[str], expected_us: float | None) -> None:
    found = time_us(inside, FUSION, *costs)
    assert found == (expected_us if expected_us is None else pytest.approx(expected_us))


@pytest.mark.parametrize(
    ("dtype", "expected_us"),
    [
        # Updates and indices are read; the places of updates are read and written
        ("f32", (3 * 4 * 1024 * 64 + 4 * 1024) / 1e6),
        # Narrow types are updated by exchanging whole words
        ("bf16", gpu_fusions.NARROW_SUM_S * 1024 * 64 * 1e6),
    ],
)
def test_a_scatter_changes_its_operand_in_place(dtype: str, expected_us: float) -> None:
    inside = f"""
  %table = {dtype}[16384,64] parameter(0)
  %places = s32[1024,1] parameter(1)
  %updates = {dtype}[1024,64] parameter(2)
  ROOT %y = {dtype}[16384,64] scatter(%table, %places, %updates), to_apply=%add"""
    outside = f"%f = {dtype}[16384,64] fusion(%table, %x, %x)"
    assert time_us(inside, outside, cost(0.1, 5000)) == pytest.approx(expected_us)


def test_a_copy_has_no_time_of_xla() -> None:
    module = hlo_text.parse("%x = f32[1048576] parameter(0)\n%c = f32[1048576] copy(%x)")
    (computation,) = module.computations.values()
    copy = computation.by_name["c"]
    assert gpu_fusions.is_believed(copy)
    seconds = gpu_fusions.time_s(module, computation, copy, MEMORY)
    assert seconds == pytest.approx(ONCE_US / 1e6 + KERNEL_S)


def test_what_is_not_believed() -> None:
    lines = [
        '%g = f32[8] fusion(%x), kind=kCustom, "fusion_backend_config":{"kind":"__triton_gemm"}',
        '%p = f32[8] custom-call(%x), custom_call_target="__cublas$gemm"',
    ]
    for line in lines:
        (computation,) = hlo_text.parse(line).computations.values()
        assert not gpu_fusions.is_believed(computation.root)


@pytest.mark.parametrize(
    "broken",
    ['[{"exec_time_us":"x","name":""}]', '[{"name":""}]', "[3]", '[{"exec_time_us":-1,"name":""}]'],
)
def test_costs_that_cannot_be_read(broken: str) -> None:
    (computation,) = hlo_text.parse(
        f'%f = f32[8] fusion(%x), "reification_cost":{broken}'
    ).computations.values()
    assert gpu_fusions.costs(computation.root) == {}
