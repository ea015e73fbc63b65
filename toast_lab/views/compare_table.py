"""Plans side by side.

What the cost model says, what a compiler made of them, what was measured, and the ratios.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from toast_lab.views.palette import Style, style

GiB = 2.0**30
COLUMNS = (
    "plan",
    "actions",
    "time_s",
    "peak_bytes",
    "free_bytes",
    "fits",
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


class Entry(NamedTuple):
    """A plan with its price and, once it was compiled or executed, what came out."""

    name: str
    actions: tuple[str, ...]
    cost: Any  #: toast_lab.cost.problem.Cost
    run: Any = None  #: toast_lab.compare.result.Row, toast_lab.runtime.run.Run or the same fields
    compiled: Any = None  #: toast_lab.runtime.compiled.Compiled
    shown: bool = True  #: in the pictures
    number: int = 0  #: of the plan in the table, which decides how it is drawn
    machine: str = ""  #: that the price is of

    @property
    def style(self) -> Style:
        """How the plan is drawn in every picture."""
        return style(self.number)

    @property
    def error(self) -> float | None:
        """Largest relative error against the unsharded program; None if nothing was compared."""
        found = getattr(self.run, "certificate", None) or self.run
        error = getattr(found, "max_relative_error", None)
        return None if error is None else float(error)

    @property
    def compiled_peak_bytes(self) -> float | None:
        """Peak of the compiled program, or what a refused one needs.

        It is that of the compilation, or else of what was executed.
        """
        if self.compiled is not None:
            return self.compiled.total_needed_bytes
        return getattr(self.run, "peak_bytes", None)


def collectives_text(cost: Any) -> str:
    """``8 all_reduce, 2 all_gather``; ``none`` for a plan without communication."""
    counts = Counter(c.kind for c in cost.collectives)
    return (
        ", ".join(
            f"{n} {kind}" for kind, n in sorted(counts.items(), key=lambda kv: (-kv[1], kv[0]))
        )
        or "none"
    )


SHORT = {
    "all_gather": "AG",
    "all_reduce": "AR",
    "reduce_scatter": "RS",
    "all_to_all": "A2A",
    "collective_permute": "CP",
    "permute": "CP",
}


def _short(text: str) -> str:
    for long, short in SHORT.items():
        text = text.replace(long, short)
    return text


def counts_text(counts: Mapping[str, float]) -> str:
    """``8 AR, 2 AG``; ``none`` if there is nothing to count."""
    found = sorted(((k, n) for k, n in counts.items() if n), key=lambda kv: (-kv[1], kv[0]))
    return ", ".join(f"{n:g} {_short(kind)}" for kind, n in found) or "none"


def compare_frame(entries: Iterable[Entry]) -> pd.DataFrame:
    """One row a plan, in SI units; what was not compiled or executed is missing, never zero.

    ``ratio`` is measured over estimated time, ``compiled_peak_ratio`` compiled over estimated
    memory.
    """
    rows = []
    for e in entries:
        run, compiled = e.run, e.compiled
        made, peak = compiled if compiled is not None else run, e.compiled_peak_bytes
        measured = getattr(run, "median_s", None)
        limit = getattr(e.cost, "memory_limit_bytes", None)  # a saved comparison knows no machine
        allocator = getattr(run, "allocator_peak_bytes", None)
        held = allocator or (run.peak_bytes if run is not None else None)
        rows.append(
            {
                "plan": e.name,
                "actions": ", ".join(e.actions) or "none",
                "time_s": float(e.cost.time_s),
                "peak_bytes": float(e.cost.peak_bytes),
                "free_bytes": None if limit is None else float(limit) - float(e.cost.peak_bytes),
                "fits": bool(e.cost.fits),
                "collectives": collectives_text(e.cost),
                "compiled_peak_bytes": float(peak) if peak else None,
                "compiled_peak_ratio": float(peak) / float(e.cost.peak_bytes)
                if peak and e.cost.peak_bytes
                else None,
                "compiled_collectives": None if made is None else compiled_text(made),
                "compiled_for": ""
                if made is None
                else str(getattr(made, "topology", "") or run.devices),
                "priced_on": e.machine,
                "measured_s": float(measured) if measured else None,
                "spread_s": getattr(run, "spread_s", None),
                "steps": len(getattr(run, "step_times_s", ())) or None,
                "ratio": float(measured) / float(e.cost.time_s)
                if measured and e.cost.time_s
                else None,
                "measured_peak_bytes": float(held) if held else None,
                "max_relative_error": e.error,
                "devices": str(run.devices) if run is not None else "",
                "shown": e.shown,
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def compiled_text(made: Any) -> str:
    """Collectives of what was compiled, by kind; ``refused`` if it was."""
    if getattr(made, "refused", False):
        return "refused"
    counts: Counter[str] = Counter()
    for c in getattr(made, "collectives", ()):
        counts[c.kind] += c.times if c.axes != () else 0
    return counts_text(counts)


def seconds_text(value: float | None) -> str:
    """Time with a unit that fits: ``12.3 ms``.

    >>> seconds_text(0.0123), seconds_text(3e-6), seconds_text(None)
    ('12.3 ms', '3 µs', '–')
    """
    if value is None or value != value:
        return "–"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def bytes_text(value: float | None) -> str:
    """Bytes with a binary unit.

    >>> bytes_text(3 * 2**20), bytes_text(None)
    ('3.00 MiB', '–')
    """
    if value is None or value != value:
        return "–"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value:.0f} B"


def time_unit(seconds: float) -> tuple[str, float]:
    """A unit in which ``seconds`` is easy to read, and its size.

    >>> time_unit(8e-6)
    ('µs', 1e-06)
    """
    return next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("µs", 1e-6))


def byte_unit(value: float) -> tuple[str, float]:
    """The same for bytes.

    >>> byte_unit(5e6)
    ('MiB', 1048576.0)
    """
    return next(
        ((u, s) for u, s in (("GiB", 2.0**30), ("MiB", 2.0**20)) if value >= s), ("KiB", 2.0**10)
    )


def shown_frame(entries: Iterable[Entry]) -> pd.DataFrame:
    """``compare_frame`` as people read it.

    ``GROUPS`` and ``TITLES`` say where each number comes from.
    """
    every = list(entries)
    frame = compare_frame(every)

    def texts(column: str, write: Any) -> list[str]:
        return [write(v) for v in frame[column].tolist()]

    def number(form: str) -> Any:
        return lambda v: "–" if v is None or v != v else form.format(v)

    return pd.DataFrame(
        {
            "show": [f"{'☑' if e.shown else '☐'} {e.style.symbol}" for e in every],
            "plan": frame["plan"],
            "step": texts("time_s", seconds_text),
            "peak": texts("peak_bytes", bytes_text),
            "fits": texts("free_bytes", room_text),
            "compiled": texts("compiled_peak_bytes", bytes_text),
            "compiled ratio": [
                number("{:.3g}×")(ratio) + _elsewhere(e)
                for ratio, e in zip(frame["compiled_peak_ratio"].tolist(), every, strict=True)
            ],
            "measured": texts("measured_s", seconds_text),
            "spread": texts(
                "spread_s", lambda v: "–" if v is None or v != v else f"± {seconds_text(v / 2)}"
            ),
            "steps": texts("steps", number("{:.0f}")),
            "ratio": texts("ratio", number("{:.3g}×")),
            "error": texts("max_relative_error", number("{:.1e}")),
            "on": [d or "–" for d in frame["devices"]],
            "collectives": [_short(c) for c in frame["collectives"]],
            "compiled collectives": [c or "–" for c in frame["compiled_collectives"]],
        }
    )


def _elsewhere(entry: Entry) -> str:
    """What a plan was compiled for, if that is another machine than the one it is priced on."""
    said = getattr(entry.compiled, "priced_elsewhere", None)
    other = entry.machine and said is not None and said(entry.machine)
    return f" for {entry.compiled.topology}" if other else ""


def room_text(free_bytes: float) -> str:
    """By how much a plan fits or not.

    >>> room_text(2**30), room_text(-(2**20))
    ('1.00 GiB free', 'NO: 1.00 MiB over')
    """
    return (
        f"{bytes_text(free_bytes)} free"
        if free_bytes >= 0
        else (f"NO: {bytes_text(-free_bytes)} over")
    )


GROUPS = {
    "estimated": ["step", "peak", "fits"],
    "compiled, × est.": ["compiled", "compiled ratio"],
    "measured: median ± half IQR, × est.": ["measured", "spread", "steps", "ratio", "error", "on"],
    "collectives": ["collectives", "compiled collectives"],
}
TITLES = {
    "compiled": "peak",
    "compiled ratio": "×",
    "measured": "step",
    "spread": "spread",
    "steps": "n",
    "ratio": "×",
    "error": "error",
    "collectives": "estimated",
    "compiled collectives": "compiled",
}
