"""The total of XLA's memory report is read; it gives the peak of a compiled program."""

from __future__ import annotations

from pathlib import Path

import pytest

from toast_lab.runtime import compile_child
from toast_lab.runtime.memory_report import assigned_bytes

# This is the form of libtpu 0.0.42.1; reports for GPUs begin in the same way.
REPORT = """\
Memory Space: default (color=0)
Total bytes: {main} (863.16MiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
  256.00MiB( 28%);  256.00MiB;    425525248;                1; f32[8192,32,256]

Memory Space: vmem (color=1)
Total bytes: 987654321 (83.19MiB)
"""


def dumped(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.after_optimizations-memory-usage-report.txt").write_text(text)


def test_the_largest_module_counts_and_only_the_memory_of_the_device(tmp_path: Path) -> None:
    dumped(tmp_path, "module_0000.jit_step", REPORT.format(main=905088000))
    dumped(tmp_path, "module_0001.helper", REPORT.format(main=4096))
    (tmp_path / "module_0000.jit_step.schedule.txt").write_text(REPORT.format(main=10**12))
    assert assigned_bytes(str(tmp_path)) == 905088000


@pytest.mark.parametrize("text", ["", "Memory Space: vmem (color=1)\nTotal bytes: 5 (5B)\n", "?"])
def test_without_a_total_there_is_none(tmp_path: Path, text: str) -> None:
    assert assigned_bytes("") is None
    assert assigned_bytes(str(tmp_path)) is None
    dumped(tmp_path, "module_0000", text)
    assert assigned_bytes(str(tmp_path)) is None


@pytest.mark.parametrize("is_dumped", [True, False])
def test_the_peak_is_that_of_the_report_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dumped: bool
) -> None:
    sizes = {"argument": 5, "output": 3, "alias": 3, "temp": 7, "code": 1, "peak": 12}
    monkeypatch.setattr(compile_child._jax_private, "memory_stats", lambda _: dict(sizes))
    request = compile_child.CompileRequest(
        stablehlo="",
        mesh=None,  # type: ignore[arg-type]
        topology=None,  # type: ignore[arg-type]
        rounds_by_op={},
        dump_folder=str(tmp_path),
    )
    if is_dumped:
        dumped(tmp_path, "module_0000", REPORT.format(main=9))
    peak = 9 if is_dumped else 12
    assert compile_child._memory(request, None) == {**sizes, "peak": peak}
