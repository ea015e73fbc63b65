"""Compare our times of collectives on TPUs with those of libtpu's own scheduler.

Each case is a program of one collective beside a small gather, which makes libtpu write a schedule
with times for both. libtpu takes every axis for a closed ring; our times are those of the links
that exist. This needs libtpu, but no TPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from evaluation import pages
from toast_lab.machines.catalogue import machine
from toast_lab.machines.collectives import named_time_s
from toast_lab.machines.topology import lay_out
from toast_lab.runtime import schedule_text
from toast_lab.runtime import topologies as top
from toast_lab.sharding.mesh import Mesh, make_mesh

MIB = 2**20
COLUMNS = 128
BESIDE_ROWS = 4096  # rows of the gather that makes libtpu write a schedule
#: For each topology: is each of its axes a closed ring?
SLICES = {"tpu:v5e:4x4": False, "tpu:v5e:16x16": True}
KINDS = ("all_gather", "all_reduce")
SIZES = (16, 64)  # MiB on one device, the larger of input and output
TIME_LIMIT_S = 300.0


class Case(NamedTuple):
    """A collective to compile."""

    topology: str
    kind: str
    mib: int

    @property
    def mesh(self) -> Mesh:
        """The mesh: two axes, each of them a dim of the slice."""
        rows, columns = self.topology.rpartition(":")[2].split("x")
        return make_mesh({"d": int(rows), "m": int(columns)})


def cases() -> Iterator[Case]:
    """All cases of the table."""
    for topology in SLICES:
        for kind in KINDS:
            for mib in SIZES:
                yield Case(topology, kind, mib)


def ours_s(case: Case) -> float:
    """Our seconds of a collective over the first axis, with the formulas that price plans."""
    links = lay_out(machine("tpu-v5e"), case.mesh)
    seconds = named_time_s(case.kind, ("d",), case.mib * MIB, mesh=case.mesh, links=links)
    assert seconds is not None
    return seconds


def libtpu_s(case: Case) -> float:
    """Seconds of a collective in the schedule that libtpu writes, compiled in a child process.

    Raises:
        subprocess.SubprocessError: libtpu is missing, or took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        topology = top.parse(case.topology, case.mesh)
        subprocess.run(
            [sys.executable, "-m", __spec__.name, case.topology, case.kind, str(case.mib)],
            env={**os.environ, **top.environment(topology, folder)},
            check=True,
            capture_output=True,
            timeout=TIME_LIMIT_S,
        )
        files = Path(folder).glob("*.schedule.txt")
        return own_time_s(max(files, key=lambda file: file.stat().st_size).read_text(), case)


def own_time_s(text: str, case: Case) -> float:
    """Seconds of the case's collective in the text of a schedule."""
    schedule, why = schedule_text.parse(text)
    assert schedule is not None, why
    name = case.kind.replace("_", "-")
    rows = schedule.scheduled[schedule.entry]
    started_s = {
        row.instruction.name: row.start_s
        for row in rows
        if row.instruction.opcode == f"{name}-start"
    }
    names = {number: instruction.name for number, instruction in schedule.instructions.items()}
    spans = [
        row.end_s - started_s[names[row.instruction.operand_ids[0]]]
        for row in rows
        if row.instruction.opcode == f"{name}-done"
    ]
    spans += [row.end_s - row.start_s for row in rows if row.instruction.opcode == name]
    return max(spans)  # the gather beside the collective is smaller


def report() -> str:
    """The table as Markdown."""
    rows = []
    for case in cases():
        theirs_s, own_s = libtpu_s(case), ours_s(case)
        axis = "a closed ring" if SLICES[case.topology] else "a line"
        times = (f"{theirs_s * 1e6:.0f} us", f"{own_s * 1e6:.0f} us", f"{own_s / theirs_s:.2f}")
        rows.append((case.topology, f"{axis} of {case.mesh.sizes[0]}", case.kind, case.mib, *times))
    columns = "slice,axis of,collective,>MiB,>libtpu's,>ours,>ours / libtpu's"
    return "\n".join(pages.table(columns.split(","), rows))


def compile_case(case: Case) -> None:
    """Compile for TPUs ahead of time; libtpu writes its schedule to the folder that flags name."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.sharding.Mesh(
        np.asarray(top.devices(top.parse(case.topology, case.mesh), case.mesh)).reshape(
            case.mesh.sizes
        ),
        case.mesh.axes,
    )
    cut, whole = PartitionSpec("d"), PartitionSpec()

    def step(sent: jax.Array, beside: jax.Array) -> tuple[jax.Array, jax.Array]:
        gathered = jax.lax.all_gather(beside, "d", tiled=True)
        if case.kind == "all_gather":
            return jax.lax.all_gather(sent, "d", tiled=True), gathered
        return jax.lax.psum(sent, "d"), gathered

    spec = cut if case.kind == "all_gather" else whole
    arguments = [
        jax.ShapeDtypeStruct((rows, COLUMNS), jnp.float32, sharding=NamedSharding(mesh, own))
        for rows, own in ((case.mib * MIB // (4 * COLUMNS), spec), (BESIDE_ROWS, cut))
    ]
    sharded = jax.shard_map(
        step, mesh=mesh, in_specs=(spec, cut), out_specs=(whole, whole), check_vma=False
    )
    jax.jit(sharded).lower(*arguments).compile()


if __name__ == "__main__":
    compile_case(Case(sys.argv[1], sys.argv[2], int(sys.argv[3])))
