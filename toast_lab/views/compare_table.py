"""Plans side by side.

Columns have the estimates of the cost model, the numbers of a compiler, the measurements of a run,
and their ratios.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from toast_lab.text import history_text
from toast_lab.views.palette import ColourStyle, style

GiB = 2.0**30
COLUMNS = (
    "plan",
    "actions",
    "time_s",
    "peak_bytes",
    "free_bytes",
    "fits",
    "size",
    "collectives",
    "compiled_peak_bytes",
    "compiled_peak_ratio",
    "compiled_collectives",
    "compiled_for",
    "priced_on",
    "measured_s",
    "spread_s",
    "steps",
    "ratio",
    "measured_peak_bytes",
    "max_relative_error",
    "devices",
    "shown",
)


class PlanEntry(NamedTuple):
    """A plan with its price and, if it was compiled or executed, the outcome."""

    name: str
    actions: tuple[str, ...]
    #: toast_lab.cost.problem.Cost
    cost: Any
    #: toast_lab.compare.result.ComparisonRow, toast_lab.runtime.run.Run or the same fields
    run: Any = None
    #: toast_lab.runtime.compiled.Compiled
    compiled: Any = None
    #: whether it is in the pictures
    shown: bool = True
    #: its row in the table, which decides how it is drawn
    number: int = 0
    #: name of the machine that the price is for
    machine: str = ""
    #: rules and constraints of the plan as it is written; None: it was not written yet
    size: int | None = None

    @property
    def style(self) -> ColourStyle:
        """How the plan is drawn in every picture."""
        return style(self.number)

    @property
    def error(self) -> float | None:
        """Largest relative error against the unsharded program; None if nothing was compared."""
        certificate = getattr(self.run, "certificate", None) or self.run
        return getattr(certificate, "max_relative_error", None)

    @property
    def compiled_peak_bytes(self) -> float | None:
        """Peak memory of the compiled program, or what a refused one would need.

        It is that of ``compiled``, or else of the program that ran.
        """
        if self.compiled is not None:
            return self.compiled.total_needed_bytes
        return getattr(self.run, "peak_bytes", None)


def collectives_text(cost: Any) -> str:
    """``8 all_reduce, 2 all_gather``; ``none`` for a plan without communication."""
    return _counts_text(Counter(collective.kind for collective in cost.collectives))


def _counts_text(counts: Mapping[str, float]) -> str:
    largest_first = sorted(
        ((kind, count) for kind, count in counts.items() if count),
        key=lambda pair: (-pair[1], pair[0]),
    )
    return ", ".join(f"{count:g} {kind}" for kind, count in largest_first) or "none"


COLLECTIVE_ABBREVIATIONS = {
    "all_gather": "AG",
    "all_reduce": "AR",
    "reduce_scatter": "RS",
    "all_to_all": "A2A",
    "collective_permute": "CP",
    "permute": "CP",
}


def _short(collectives: str) -> str:
    for long_name, short_name in COLLECTIVE_ABBREVIATIONS.items():
        collectives = collectives.replace(long_name, short_name)
    return collectives


def counts_text(counts: Mapping[str, float]) -> str:
    """``8 AR, 2 AG``; ``none`` if there is nothing to count."""
    return _short(_counts_text(counts))


def compare_frame(entries: Iterable[PlanEntry]) -> pd.DataFrame:
    """One row per plan, in SI units; what was not compiled or executed is missing, never zero.

    ``ratio`` is measured over estimated time, if both are of one kind of device;
    ``compiled_peak_ratio`` compiled over estimated memory.
    """
    table_rows = []
    for entry in entries:
        run, compiled = entry.run, entry.compiled
        program, compiled_peak = compiled or run, entry.compiled_peak_bytes or None
        time_s, peak_bytes = float(entry.cost.time_s), float(entry.cost.peak_bytes)
        measured = getattr(run, "median_s", None) or None
        # The costs of a saved comparison have no memory limit
        memory_limit = getattr(entry.cost, "memory_limit_bytes", None)
        allocator = getattr(run, "allocator_peak_bytes", None)
        held_bytes = allocator or (run.peak_bytes if run is not None else None)
        table_rows.append(
            {
                "plan": entry.name,
                "actions": history_text(entry.actions) or "none",
                "time_s": time_s,
                "peak_bytes": peak_bytes,
                "free_bytes": None if memory_limit is None else memory_limit - peak_bytes,
                "fits": bool(entry.cost.fits),
                "size": entry.size,
                "collectives": collectives_text(entry.cost),
                "compiled_peak_bytes": compiled_peak,
                "compiled_peak_ratio": _ratio(compiled_peak, peak_bytes),
                "compiled_collectives": None if program is None else compiled_text(program),
                "compiled_for": ""
                if program is None
                else str(getattr(program, "topology", "") or run.devices),
                "priced_on": entry.machine,
                "measured_s": measured,
                "spread_s": getattr(run, "spread_s", None),
                "steps": len(getattr(run, "step_times_s", ())) or None,
                "ratio": None
                if run is not None and of_other_machine(str(run.devices), entry.machine)
                else _ratio(measured, time_s),
                "measured_peak_bytes": held_bytes or None,
                "max_relative_error": entry.error,
                "devices": str(run.devices) if run is not None else "",
                "shown": entry.shown,
            }
        )
    return pd.DataFrame(table_rows, columns=COLUMNS)


def _ratio(value: float | None, estimate: float) -> float | None:
    return value / estimate if value and estimate else None


def of_other_machine(devices: str, machine: str) -> bool:
    """Whether devices, such as ``cpu:8``, are of another kind than the machine of a price.

    >>> of_other_machine("cpu:8", "tpu-v5e"), of_other_machine("gpu:8", "a100")
    (True, False)
    """
    kind, priced_kind = devices.partition(":")[0], machine.partition("-")[0]
    if not kind or not priced_kind or kind == priced_kind:
        return False
    return kind == "cpu" or priced_kind in ("cpu", "tpu")


def compiled_text(program: Any) -> str:
    """Collectives of a compiled program, by kind; ``refused`` if the compiler refused it."""
    if getattr(program, "refused", False):
        return "refused"
    counts: Counter[str] = Counter()
    for collective in getattr(program, "collectives", ()):
        counts[collective.kind] += collective.times if collective.axes != () else 0
    return counts_text(counts)


def seconds_text(value: float | None) -> str:
    """Time with a unit that fits: ``12.3 ms``.

    >>> seconds_text(0.0123), seconds_text(3e-6), seconds_text(None)
    ('12.3 ms', '3 µs', '–')
    """
    if value is None or value != value:
        return "–"
    unit, scale = _unit(value, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)))
    return f"{value / scale:.3g} {unit}"


def spread_text(spread_s: float | None) -> str:
    """The spread of a median: half the interquartile range, as behind a ±.

    >>> spread_text(0.002), spread_text(None)
    ('± 1 ms', '–')
    """
    if spread_s is None or spread_s != spread_s:
        return "–"
    return f"± {seconds_text(spread_s / 2)}"


def bytes_text(value: float | None) -> str:
    """Bytes with a binary unit.

    >>> bytes_text(3 * 2**20), bytes_text(None)
    ('3.00 MiB', '–')
    >>> bytes_text(-3 * 2**20)
    '-3.00 MiB'
    """
    if value is None or value != value:
        return "–"
    if abs(value) < 2**10:
        return f"{value:.0f} B"
    unit, scale = byte_unit(abs(value))
    return f"{value / scale:.2f} {unit}"


def ratio_text(ratio: float) -> str:
    """A ratio as text.

    >>> ratio_text(0.7751), ratio_text(2134.0)
    ('0.775×', '2,134×')
    """
    return f"{ratio:,.0f}×" if ratio >= 999.5 else f"{ratio:.3g}×"


def time_unit(seconds: float) -> tuple[str, float]:
    """A unit in which ``seconds`` is easy to read, and its size.

    >>> time_unit(8e-6)
    ('µs', 1e-06)
    """
    return _unit(seconds, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)))


def byte_unit(value: float) -> tuple[str, float]:
    """A unit in which a number of bytes is easy to read, and its size.

    >>> byte_unit(5e6)
    ('MiB', 1048576.0)
    """
    return _unit(value, (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)))


def flop_unit(count: float) -> tuple[str, float]:
    """A unit in which a number of floating-point operations is easy to read, and its size.

    >>> flop_unit(1.61e12)
    ('TFLOP', 1000000000000.0)
    """
    return _unit(count, (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)))


def _unit(value: float, units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """The first of ``units`` that ``value`` reaches, else the last."""
    return next((unit for unit in units if value >= unit[1]), units[-1])


def shown_frame(entries: Iterable[PlanEntry]) -> pd.DataFrame:
    """``compare_frame`` as text for display.

    ``GROUPS`` and ``TITLES`` say where each number comes from.
    """
    all_entries = list(entries)
    frame = compare_frame(all_entries)

    def column_texts(column: str, formatter: Any) -> list[str]:
        return ["–" if cell is None or cell != cell else formatter(cell) for cell in frame[column]]

    return pd.DataFrame(
        {
            "show": [
                f"{'☑' if entry.shown else '☐'} {entry.style.symbol}" for entry in all_entries
            ],
            "plan": frame["plan"],
            "step": column_texts("time_s", seconds_text),
            "peak": column_texts("peak_bytes", bytes_text),
            "fits": column_texts("free_bytes", room_text),
            "size": ["-" if entry.size is None else str(entry.size) for entry in all_entries],
            "compiled": column_texts("compiled_peak_bytes", bytes_text),
            "compiled ratio": [
                ratio + _elsewhere(entry)
                for ratio, entry in zip(
                    column_texts("compiled_peak_ratio", ratio_text), all_entries, strict=True
                )
            ],
            "measured": column_texts("measured_s", seconds_text),
            "spread": column_texts("spread_s", spread_text),
            "steps": column_texts("steps", "{:.0f}".format),
            "ratio": column_texts("ratio", ratio_text),
            "error": column_texts("max_relative_error", "{:.1e}".format),
            "on": [devices or "–" for devices in frame["devices"]],
            "collectives": column_texts("collectives", _short),
            "compiled collectives": column_texts("compiled_collectives", str),
        }
    )


def _elsewhere(entry: PlanEntry) -> str:
    """The topology that a plan was compiled for, if its price is for another machine."""
    remark = getattr(entry.compiled, "priced_elsewhere", None)
    elsewhere = entry.machine and remark is not None and remark(entry.machine)
    return f" for {entry.compiled.topology}" if elsewhere else ""


def room_text(free_bytes: float) -> str:
    """How much memory a plan leaves free, or needs beyond the limit.

    >>> room_text(2**30), room_text(-(2**20))
    ('1.00 GiB free', 'NO: 1.00 MiB over')
    """
    if free_bytes < 0:
        return f"NO: {bytes_text(-free_bytes)} over"
    return f"{bytes_text(free_bytes)} free"


GROUPS = {
    "estimated": ["step", "peak", "fits"],
    "written": ["size"],
    "compiled, × est.": ["compiled", "compiled ratio"],
    "measured, median": ["measured", "spread", "steps", "ratio", "error", "on"],
    "collectives": ["collectives", "compiled collectives"],
}
TITLES = {
    "compiled": "peak",
    "compiled ratio": "×",
    "measured": "step",
    "steps": "n",
    "ratio": "×",
    "collectives": "estimated",
    "compiled collectives": "compiled",
}
