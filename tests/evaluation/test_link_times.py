"""Fitted times of collectives and products predict points that the fit has not seen."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.accuracy import link_times, tpu_links
from evaluation.accuracy.command import main
from toast_lab.machines.catalogue import MACHINES

MIB = link_times.MIB


@pytest.mark.parametrize("name", [*link_times.MEASURED, *link_times.SCALED])
def test_machine_files_have_the_terms_of_the_fit(name: str) -> None:
    assert MACHINES[name].links[0].collectives == link_times.fitted_terms(name)


@pytest.mark.parametrize("gpu", link_times.MEASURED)
@pytest.mark.parametrize("title", link_times.LEFT_OUT)
def test_points_that_were_left_out_are_predicted(gpu: str, title: str) -> None:
    """From 64 MiB on, median errors are below 5% between fitted points, and below 10% beyond."""
    points, errors = link_times.left_out_errors(gpu, link_times.LEFT_OUT[title])
    kept = [
        (point.size_bytes, error)
        for point, error in zip(points, errors, strict=True)
        if point.what != "permute"
    ]
    assert len(kept) >= 70
    from_1_mib = [error for size, error in kept if size >= MIB]
    from_64_mib = [error for size, error in kept if size >= 64 * MIB]
    assert np.median(from_1_mib) < 0.15
    assert np.median(from_64_mib) < (0.05 if title in link_times.INSIDE else 0.1)


@pytest.mark.parametrize("gpu", link_times.MEASURED)
def test_products_in_waves_are_nearer_than_a_roofline(gpu: str) -> None:
    rows = [row for row in link_times.products(gpu) if row.dtype == "bf16"]
    assert len(rows) > 150
    assert np.median(link_times.product_errors(MACHINES[gpu], rows)) < 0.06


def test_how_much_of_its_peak_an_h100_reaches() -> None:
    """Products reach the shares of 989 TFLOP/s that XLA's table shows: 4, 26, 65 and 79%."""
    reached = [
        2 * side**3 / 989e12 / link_times.product_s(MACHINES["h100"], _square(side))
        for side in (512.0, 1024.0, 2048.0, 4096.0)
    ]
    assert reached == pytest.approx([0.04, 0.26, 0.65, 0.79], rel=0.12)


def _square(side: float) -> link_times.Product:
    return link_times.Product("bf16", 1.0, side, side, side, 0.0)


def test_the_command_prints_tables_and_terms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["links", "--fit"]) == 0
    text = capsys.readouterr().out
    assert text.count("all_gather = { start_s = ") == 5
    assert main(["links"]) == 0
    text = capsys.readouterr().out
    assert "| h100 | all_reduce | 64 MiB on |" in text
    assert "| b200 | bf16 | 4 GFLOP on |" in text


SCHEDULE = """hlo_module {
  name: "jit_step"
  entry_computation_id: 1
  computations {
    id: 1
    instructions {
      name: "all-gather-start"
      opcode: "all-gather-start"
      id: 11
    }
    instructions {
      name: "all-gather-done"
      opcode: "all-gather-done"
      id: 12
      operand_ids: 11
    }
    instructions {
      name: "psum"
      opcode: "all-reduce"
      id: 13
    }
  }
}
computation_schedules {
  computation_id: 1
  instructions {
    id: 11
    start_timestamp_cycles: 10
    end_timestamp_cycles: 11
  }
  instructions {
    id: 13
    start_timestamp_cycles: 12
    end_timestamp_cycles: 812
  }
  instructions {
    id: 12
    start_timestamp_cycles: 1009
    end_timestamp_cycles: 1010
  }
  cycles_per_microsecond: 1000
}
"""


def test_a_schedules_own_times_of_collectives() -> None:
    """The time of an asynchronous collective runs from its start to the end of its "done"."""
    gather, reduce = (tpu_links.Case("tpu:v5e:4x4", kind, 16) for kind in tpu_links.KINDS)
    assert tpu_links.own_time_s(SCHEDULE, gather) == pytest.approx(1e-6)
    assert tpu_links.own_time_s(SCHEDULE, reduce) == pytest.approx(0.8e-6)


def test_a_line_takes_longer_than_a_closed_ring() -> None:
    line, ring = (
        tpu_links.ours_s(tpu_links.Case(topology, "all_gather", 64))
        for topology in tpu_links.SLICES
    )
    assert line > 1.5 * ring
