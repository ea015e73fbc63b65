"""``Compiled``: the result of compiling a plan, as plain data that can be saved and loaded."""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toast_lab import records
from toast_lab.errors import InvalidPlan
from toast_lab.files import PathLike, write_whole
from toast_lab.runtime.compiler_messages import Allocation, Rematerialised
from toast_lab.runtime.gpu_times import CompilerTimes
from toast_lab.runtime.hlo import Collective, counts_text
from toast_lab.runtime.schedule import Schedule

FORMAT = 1  # version of the JSON; other versions are not read


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One compiled plan; bytes and cycles are those of one device and one step.

    ``peak_bytes`` comes from XLA's own buffer assignment. When the compiler refuses the program,
    ``fits`` is False and the sizes are None, apart from ``needed_bytes``. Cycles are the TPU
    compiler's own estimates; it has none for collectives, asynchronous copies, gathers and
    scatters. On CPU and GPU there are none at all.

    The compiler for GPUs that need not be attached never refuses a program for its memory. For
    these TOAST Lab decides ``fits``: is the peak within the share of memory that JAX's allocator
    takes by default (``default_memory_bytes``, 75%)? ``fits_all_memory`` compares it with the whole
    memory of the device.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> compiled = tl.compile(model, plan, topology="cpu:4", store=False)
        >>> compiled.fits, compiled.peak_bytes > 0
        (True, True)
        >>> compiled.counts_by_kind()
        {'all_reduce': 1.0}
    """

    program: str  #: digest of the program
    plan_key: int  #: of the plan
    mesh: Mapping[str, int]
    topology: str  #: "tpu:v5e:4x4"
    device_kind: str  #: what the device calls itself
    device_order: str  #: how mesh positions were assigned to devices
    fits: bool  #: False: refused for lack of memory, or larger than ``default_memory_bytes``
    peak_bytes: int | None  #: arguments + outputs - aliases + temporaries
    argument_bytes: int | None
    output_bytes: int | None
    alias_bytes: int | None  #: part of the outputs that reuses donated arguments
    temp_bytes: int | None
    code_bytes: int | None  #: generated code, not part of the peak
    needed_bytes: float | None  #: needed memory, as the refusing compiler states it
    limit_bytes: float | None  #: available memory, as the refusing compiler states it
    needed_temporaries_only: bool  #: ``needed_bytes`` leaves out arguments and results
    allocations: tuple[Allocation, ...]  #: the largest ones that a refusal names
    refusal: str  #: the compiler's message, "" if it did not refuse
    collectives: tuple[Collective, ...]
    loops: tuple[tuple[int, float], ...]  #: (op index or -1, rounds) of loops left in the program
    #: estimated cycles by op index, times the rounds of loops around it; -1: unknown op
    cycles_by_op: Mapping[int, float]
    clock_hz: float | None  #: cycles a second, see topologies.CHIPS
    rematerialised: tuple[Rematerialised, ...]
    compile_s: float
    versions: Mapping[str, str]  #: of jax, jaxlib, libtpu
    flags: Mapping[str, str]  #: environment variables that change how compilers work
    #: name of the machine model of these devices, "" if none is known
    machine: str = ""
    device_memory_bytes: float | None = None  #: of a described GPU, by its data sheet
    default_memory_bytes: float | None = None  #: of it, for JAX's allocator
    times: CompilerTimes | None = None  #: the GPU compiler's own times
    notes: tuple[str, ...] = ()  #: caveats for reading the other fields
    schedule: Schedule | None = None  #: of one step; None: the compiler gives none, see notes
    cached: bool = dataclasses.field(default=False, compare=False)  #: came from the store
    #: why the result could not be kept; empty if it was, or was not to be
    not_kept: str = dataclasses.field(default="", compare=False)

    @property
    def cycles(self) -> float | None:
        """Estimated cycles of one step on the core; None if the compiler makes no estimates."""
        return sum(self.cycles_by_op.values()) if self.cycles_by_op else None

    @property
    def compute_s(self) -> float | None:
        """``cycles`` in seconds, without collectives; None without cycles or a clock."""
        return None if self.cycles is None or not self.clock_hz else self.cycles / self.clock_hz

    @property
    def compute_s_by_op(self) -> dict[int, float]:
        """Seconds of computing in one step, by op index (-1: unknown); empty without a clock."""
        if self.times is not None:
            return dict(self.times.compute_s_by_op)
        if not self.clock_hz:
            return {}
        return {op: cycles / self.clock_hz for op, cycles in self.cycles_by_op.items()}

    @property
    def time_s(self) -> float | None:
        """The best estimate of one step: computing plus exposed communication.

        Computing is the compiler's estimate for its final program: cycles on TPUs, XLA's times on
        GPUs (matrix products from measured tables). The compiler's schedule, replayed with these
        clocks, decides what overlaps. The machine model's links price all collectives on TPUs, and
        on GPUs those that XLA's measured tables do not have; ``schedule.notes`` counts them. A TPU
        collective without a price takes the schedule's time. None if there is no schedule, or if a
        step of it has no clock at all, such as a product of types that XLA never measured.
        """
        return None if self.schedule is None else self.schedule.time_s

    @property
    def time_parts(self) -> dict[str, float] | None:
        """The parts that add up to ``time_s``; None if that is None."""
        if self.schedule is None or self.schedule.time_s is None:
            return None
        return {"compute_s": self.schedule.compute_s, "exposed_s": self.schedule.exposed_s}

    @property
    def total_needed_bytes(self) -> float | None:
        """Peak bytes, or bytes that a refused program needs; None if the compiler did not say."""
        return self.needed_bytes if self.refused else self.peak_bytes

    @property
    def refused(self) -> bool:
        """Did the compiler refuse the program? Then there is no compiled program to inspect."""
        return self.peak_bytes is None or (self.default_memory_bytes is None and not self.fits)

    @property
    def fits_all_memory(self) -> bool | None:
        """Is the peak within the whole memory of the device? None if that is not known."""
        if self.device_memory_bytes is None or self.peak_bytes is None:
            return None
        return self.peak_bytes <= self.device_memory_bytes

    def priced_elsewhere(self, machine: str) -> str:
        """Says so if ``machine`` is not the machine that this was compiled for; else ""."""
        if machine == self.machine:
            return ""
        kind = f" ({self.device_kind})" if self.device_kind not in self.topology else ""
        return f"compiled for {self.topology}{kind}, priced on the machine {machine}"

    def bytes_by_kind(self) -> dict[str, float]:
        """Bytes of collectives in one step by kind, counting every run."""
        return self._totals([row.bytes * row.times for row in self.collectives])

    def counts_by_kind(self) -> dict[str, float]:
        """Number of runs of collectives in one step, by kind."""
        return self._totals([row.times for row in self.collectives])

    def _totals(self, amounts: Sequence[float]) -> dict[str, float]:
        total: dict[str, float] = collections.defaultdict(float)
        for collective, amount in zip(self.collectives, amounts, strict=True):
            total[collective.kind] += amount
        return dict(total)

    def to_json(self) -> dict[str, Any]:
        """All fields and derived numbers as plain data."""
        data = records.plain(self)
        data["plan_key"] = f"{self.plan_key:016x}"
        data["times"] = None if self.times is None else self.times.to_json()
        data["schedule"] = None if self.schedule is None else self.schedule.to_json()
        del data["cached"], data["not_kept"]
        return {
            "format": FORMAT,
            **data,
            "cycles": self.cycles,
            "compute_s": self.compute_s,
            "time_s": self.time_s,
            "time_parts": self.time_parts,
            "fits_all_memory": self.fits_all_memory,
            "bytes_by_kind": self.bytes_by_kind(),
            "counts_by_kind": self.counts_by_kind(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Compiled:
        """The inverse of ``to_json``.

        Raises:
            InvalidPlan: the data is not a compiled result.
        """
        try:
            if data["format"] != FORMAT:
                raise InvalidPlan(
                    f"this compiled result has format {data['format']}, but this version reads "
                    f"format {FORMAT}"
                )
            schedule = data.get("schedule")
            changed = {
                "plan_key": int(data["plan_key"], 16),
                "schedule": None if schedule is None else Schedule.plain_fields(schedule),
            }
            compiled: Compiled = records.of_plain({**data, **changed}, cls)
            return compiled
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidPlan(
                f"this is not a compiled result written by save: {type(error).__name__}: {error}"
            ) from None

    def save(self, path: PathLike) -> None:
        """Write it as JSON, whole or not at all. Raises NotSaved if it cannot be written."""
        write_whole(path, _readable(self.to_json()), "the compiled result")

    @classmethod
    def load(cls, path: PathLike) -> Compiled:
        """Read what ``save`` wrote.

        Raises:
            InvalidPlan: the file cannot be read or is not a compiled result.
        """
        try:
            data = json.loads(Path(path).read_text())
        except OSError as error:
            raise InvalidPlan(f"cannot read {path}: {error.strerror}") from None
        except ValueError:
            raise InvalidPlan(f"{path} is not a compiled result: it is not JSON") from None
        return cls.from_json(data)

    def __str__(self) -> str:
        if self.refused:
            if self.needed_bytes is None:
                return f"{self.topology}: refused for lack of memory"
            need = "temporaries alone need" if self.needed_temporaries_only else "needs"
            limit = f" of {self.limit_bytes / 2**30:.2f} GiB" if self.limit_bytes else ""
            return f"{self.topology}: refused, {need} {self.needed_bytes / 2**30:.2f} GiB{limit}"
        time_text = (
            f", {self.compute_s * 1e3:.3f} ms of compute" if self.compute_s is not None else ""
        )
        peak = self.peak_bytes or 0
        size = f"{peak / 2**30:.3g} GiB" if peak >= 2**30 else f"{peak / 2**20:.3g} MiB"
        if self.times is not None:
            time_text = f", {self.times.total_s * 1e3:.3f} ms by XLA's own times"
            if self.times.left_out:
                time_text += f" without {len(self.times.left_out)} instructions"
        if self.schedule is not None and self.schedule.time_s is not None:
            time_text += (
                f", {self.schedule.time_s * 1e3:.3f} ms a step with "
                f"{self.schedule.exposed_s * 1e3:.3f} ms of exposed communication"
            )
        counts = counts_text(self.counts_by_kind()) or "no collectives"
        notes = "".join(f"; {note}" for note in self.notes)
        return (
            f"{self.topology}: {size} peak a device{self._fits_text()}{time_text}, {counts}{notes}"
        )

    def _fits_text(self) -> str:
        if self.default_memory_bytes is None or self.device_memory_bytes is None:
            return ""
        jax_gib, all_gib = self.default_memory_bytes / 2**30, self.device_memory_bytes / 2**30
        if self.fits:
            return f", within the {jax_gib:.3g} GiB that JAX takes of {all_gib:.3g}"
        if self.fits_all_memory:
            return f", more than the {jax_gib:.3g} GiB that JAX takes of {all_gib:.3g} by default"
        return f", more than the {all_gib:.3g} GiB of the device"


def _readable(data: Mapping[str, Any]) -> str:
    """JSON for people to read: each bar of a schedule is on one line."""
    indented = json.dumps(data, indent=1)
    return re.sub(
        r"\n   \[\n {4}[^\[\]{}]*?\n   \]",
        lambda row: "\n   " + json.dumps(json.loads(row[0])),
        indented,
    )
