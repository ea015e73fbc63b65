"""Collectives and times of programs compiled for GPUs are read correctly from kept texts.

``step_h100.hlo`` and ``step_p100.hlo`` are one training step of a product of bfloat16 matrices, a
second product with a float32 result, and the gradient of the first, on a mesh d=2, m=4;
``scan_h100.hlo`` is a loop of four layers whose weights are split over the dim that is summed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from toast_lab import records
from toast_lab.runtime import gpu_times, hlo, hlo_text
from toast_lab.runtime.gpu_fusions import DeviceMemory
from toast_lab.runtime.gpu_times import CompilerTimes, NotTimed

TEXTS = Path(__file__).parent / "hlo_texts"
MESH = {"d": 2, "m": 4}


def text_of(name: str) -> str:
    return (TEXTS / f"{name}.hlo").read_text()


def read(text: str, architecture: str = "sm_90", hosts: int = 1) -> CompilerTimes:
    found = gpu_times.read(hlo_text.parse(text), architecture, 8, hosts)
    assert found is not None
    return found


def us(seconds: float) -> float:
    return round(seconds * 1e6, 4)


@pytest.mark.parametrize("name", ["step_h100", "step_p100"])
def test_asynchronous_collectives_have_their_bytes_axes_and_ops(name: str) -> None:
    """Collectives are the same in both texts, which differ only in the schedule."""
    found = hlo.collectives(text_of(name), MESH)
    assert sorted((c.op, c.kind, c.bytes, c.axes, c.parts[0].dtype) for c in found) == [
        (3, "all_gather", 512 * 256 * 2, ("d",), "bf16"),
        (5, "all_reduce", 1024 * 256 * 4, ("m",), "f32"),
        (8, "all_reduce", 4, ("d",), "f32"),
        # The bytes are its operand's, twice its result; it has lost its name
        (14, "reduce_scatter", 512 * 256 * 4, ("d",), "f32"),
        (18, "all_reduce", 4, ("d",), "f32"),
    ]
    scattered = next(c for c in found if c.kind == "reduce_scatter")
    assert (scattered.op_name, scattered.group_size) == ("jit(step)/dot_general", 2)
    assert scattered.source.startswith("step.py:")


def test_times_of_a_step_on_h100() -> None:
    """Fusions and measured products are summed; products with float32 results are left out.

    XLA's time for the latter is 64 times too long.
    """
    times = read(text_of("step_h100"))
    assert {op: us(s) for op, s in times.collective_s_by_op.items()} == {3: 12.64, 5: 43.456}
    compute_us = {
        3: 6.144,
        4: 0.78375,
        8: 0.31475 + 0.03275,
        11: 0.79225,
        12: 0.94025,
        14: 11.232,
        16: 0.157,
    }
    found = {op: seconds * 1e6 for op, seconds in times.compute_s_by_op.items()}
    assert found == pytest.approx(compute_us)
    assert times.total_s * 1e6 == pytest.approx(sum(compute_us.values()) + 12.64 + 43.456)
    left_out = {(row.op, row.kind, row.reason) for row in times.left_out}
    assert left_out == {
        (5, "product bf16 x bf16 -> f32", gpu_times.PRODUCT_TYPES),
        (8, "all_reduce", gpu_times.TOO_SMALL),
        (18, "all_reduce", gpu_times.TOO_SMALL),
        (14, "reduce_scatter", gpu_times.NO_TIME),
        (-1, "copy", gpu_times.NO_TIME),
    }
    assert times.doubtful == ()
    assert times.left_out_by_reason()[gpu_times.NO_TIME] == 2
    assert records.of_plain(times.to_json(), CompilerTimes) == times


def test_what_crosses_hosts_was_not_measured() -> None:
    """Collectives between hosts have no time, since XLA's numbers ignore hosts.

    Here axis d crosses the two hosts, and m does not.
    """
    times = read(text_of("step_h100"), hosts=2)
    assert list(times.collective_s_by_op) == [5]
    crossing = {row.op for row in times.left_out if row.reason == gpu_times.BETWEEN_HOSTS}
    assert crossing == {3, 8, 18}


def test_a_loop_counts_its_times_by_its_rounds() -> None:
    text = text_of("scan_h100")
    times = read(text)
    assert {us(s) for s in times.collective_s_by_op.values()} == {round(4 * (15.232 + 13.915), 4)}
    (product,) = [op for op, s in times.compute_s_by_op.items() if us(s) >= 4 * 0.696]
    assert {c.times for c in hlo.collectives(text, MESH)} == {4.0}
    assert [c.op for c in hlo.collectives(text, MESH)] == [product, product]


def test_a_gpu_without_measured_tables_has_no_times() -> None:
    module = hlo_text.parse(text_of("step_p100"))
    memory = DeviceMemory(bytes_per_s=7e11, near_bytes=4e6)
    assert gpu_times.read(module, "sm_60", 8) is None
    assert gpu_times.read(module, "sm_60", 8, memory=memory) is None
    # With tables of a user's own in the flags, XLA gives numbers of unknown origin
    forced = read(text_of("step_h100"), "sm_80")
    assert forced.collective_s_by_op == {}
    assert {row.kind for row in forced.left_out if row.reason == gpu_times.NO_TABLES} == {
        "all_gather",
        "all_reduce",
        "reduce_scatter",
        "product bf16 x bf16 -> bf16",
        "product bf16 x bf16 -> f32",
        "product f32 x f32 -> f32",
    }


COST = '"reification_cost":[{"exec_time_us":1.5,"name":""},{"exec_time_us":%s,"name":"sol"}]'


@pytest.mark.parametrize(
    ("line", "compute_us", "reason", "doubt"),
    [
        ("%f = f32[8] fusion(%x), kind=kLoop, calls=%c, COST", 7.5, "", ""),
        (
            '%p = f32[8] custom-call(%x, %y), custom_call_target="__cublas$gemm", '
            'backend_config={"precision_config":{"operand_precision":["HIGHEST","HIGHEST"]},COST}',
            0.0,
            gpu_times.FULL_FLOAT32,
            "",
        ),
        (
            "%g = f32[8] fusion(%x), kind=kCustom, calls=%c, "
            'backend_config={"fusion_backend_config":{"kind":"__triton_gemm"},COST}',
            0.0,
            gpu_times.TRITON,
            "",
        ),
        ('%s = f32[8] custom-call(%x), custom_call_target="cub", COST', 7.5, "", ""),
        ('%s = f32[8] custom-call(%x), custom_call_target="cub"', 0.0, gpu_times.NO_TIME, ""),
        ("%s = f32[8] sort(%x), to_apply=%c", 0.0, gpu_times.NO_TIME, ""),
        (
            '%p = f16[8] custom-call(%x, %y), custom_call_target="__cublas$lt$matmul$f8", COST',
            0.0,
            gpu_times.PRODUCT_TYPES,
            "",
        ),
        ("%f = f32[8] fusion(%x), kind=kLoop, calls=%c, BROKEN", 0.0, gpu_times.NO_TIME, ""),
        ("%b = f32[8] bitcast(%x)", 0.0, "", ""),
    ],
)
def test_one_instruction(line: str, compute_us: float, reason: str, doubt: str) -> None:
    broken = COST.replace("7.5", "x") % '"nan"'
    line = line.replace("COST", COST % "7.5").replace("BROKEN", broken)
    dtype = "f32" if line.startswith("%p = f32") else "bf16"
    times = read(f"%x = {dtype}[8] iota()\n%y = {dtype}[8] iota()\n{line}")
    assert us(times.compute_s) == compute_us
    assert [row.reason for row in times.left_out] == [reason] * bool(reason)
    assert [row.reason for row in times.doubtful] == [doubt] * bool(doubt)


@pytest.mark.parametrize(
    ("left", "right", "result", "time_us"),
    [
        # An argument is read whatever its size, even through a bitcast to another shape
        ("bf16[8,4096] iota()", "bf16[4096,4096] parameter(0)", "bf16[8,4096]", 33.554432),
        ("bf16[8,4096] iota()", "bf16[4096,4096] bitcast(%z)", "bf16[8,4096]", 33.554432),
        # A value computed before may be in the cache, up to the size of the cache
        ("bf16[8,4096] iota()", "bf16[4096,4096] iota()", "bf16[8,4096]", 7.5),
        ("bf16[8,4096] iota()", "bf16[4096,8192] iota()", "bf16[8,8192]", 67.108864),
        # The table's time is longer than the traffic
        ("bf16[8,1024] parameter(1)", "bf16[1024,1024] parameter(0)", "bf16[8,1024]", 7.5),
        # A result larger than the cache is written to memory, a workspace is not
        (
            "bf16[8192,64] iota()",
            "bf16[64,8192] iota()",
            "(bf16[8192,8192], s8[33554432])",
            134.217728,
        ),
        ("bf16[4096,64] iota()", "bf16[64,4096] iota()", "(bf16[4096,4096], s8[33554432])", 7.5),
    ],
)
def test_a_product_takes_as_long_as_its_traffic(
    left: str, right: str, result: str, time_us: float
) -> None:
    product = f'%p = {result} custom-call(%x, %y), custom_call_target="__cublas$gemm", '
    lines = ["%z = bf16[4096,4096] parameter(0)", f"%x = {left}", f"%y = {right}"]
    text = "\n".join([*lines, product + COST % "7.5"])
    memory = DeviceMemory(bytes_per_s=1e12, near_bytes=4e7)
    times = gpu_times.read(hlo_text.parse(text), "sm_90", 8, memory=memory)
    assert times is not None
    assert times.compute_s * 1e6 == pytest.approx(time_us)
    doubts = [row.reason for row in times.doubtful]
    assert doubts == [gpu_times.FROM_MEMORY] * (time_us > 7.5)
    assert us(read(text).compute_s) == 7.5, "nothing is known of the memory"


@pytest.mark.parametrize(
    ("size", "group", "architecture", "reason"),
    [
        (255, "[1,8]<=[8]", "sm_90", gpu_times.TOO_SMALL),
        (256, "[1,8]<=[8]", "sm_90", ""),
        (256, "[1,8]<=[8]", "sm_60", gpu_times.NO_TABLES),
    ],
)
def test_one_collective(size: int, group: str, architecture: str, reason: str) -> None:
    cost = COST % "7.5"
    line = f"%r = f32[{size}] all-reduce-start(%x), replica_groups={group}, to_apply=%a, {cost}"
    times = read(f"%x = f32[{size}] iota()\n{line}", architecture)
    assert us(times.collective_s) == (0.0 if reason else 7.5)
    wanted = (NotTimed(-1, "all_reduce", 1.0, reason),) if reason else ()
    assert times.left_out == wanted


def test_a_group_larger_than_any_measured_is_left_out() -> None:
    line = f"%r = f32[512] all-reduce-start(%x), replica_groups=[1,16]<=[16], {COST % '7.5'}"
    module = hlo_text.parse(f"%x = f32[512] iota()\n{line}")
    found = gpu_times.read(module, "sm_90", 16)
    assert found is not None
    assert [row.reason for row in found.left_out] == [gpu_times.LARGE_GROUP]
    wider = gpu_times.read(module, "sm_103", 16)
    assert wider is not None
    assert us(wider.collective_s) == 7.5


def test_large_permutes_are_doubtful() -> None:
    line = (
        f"%p = (f32[2097152], f32[2097152]) collective-permute-start(%x), "
        f"source_target_pairs={{{{0,1}},{{1,0}}}}, {COST % '60'}"
    )
    times = read(f"%x = f32[2097152] iota()\n{line}")
    assert us(times.collective_s) == 60.0
    assert times.doubtful == (NotTimed(-1, "collective_permute", 1.0, gpu_times.PERMUTE),)
