"""docs/measured.md from the kept rows; needs neither a GPU nor packages nor compilers."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.accuracy import link_times
from tests.accuracy.judge import spearman
from tests.corpus import compiled, plans, priced
from tests.measured import rows, told
from toast_lab.files import write_whole
from toast_lab.text import csv_text

PAGE = Path(__file__).parents[2] / "docs" / "measured.md"
OPS = PAGE.parent / "measured" / "ops.csv"
PLANS = PAGE.parent / "measured" / "plans.csv"
FEWEST = 4  # plans that can be ranked
_BEGIN, _END = "<!-- tables -->", "<!-- end of tables -->"


class Held(NamedTuple):
    """A share as it was measured, beside what was said of it before."""

    row: rows.Row
    measured_s: float  #: kernels of a step, without stand-ins
    priced_s: float
    told_s: float | None  #: by XLA's clock as we read it; None where something has no time
    priced_bytes: float | None
    compiled_bytes: float | None

    @property
    def program(self) -> str:
        """The program, or the single op."""
        return str(self.row["program"])


def single_ops() -> list[Held]:
    """The single ops."""
    said = told.read()
    held = []
    for row in rows.rows():
        other = said.get(rows.key(row))
        if row["plan"] in rows.PLAN_NAMES and other is not None:
            whole = other.get("told_s") and not other.get("left_out")
            held.append(
                Held(
                    row=row,
                    measured_s=row["kernels_s"] - row["stand_in_s"],
                    priced_s=other["priced_s"],
                    told_s=other["told_s"] if whole else None,
                    priced_bytes=other["peak_bytes"],
                    compiled_bytes=None,
                )
            )
    return held


def plan_shares() -> list[Held]:
    """Plans of the corpus, by the names that they have there today."""
    prices = {compiled.key(row): row for row in priced.rows()}
    judged = {
        (row["program"], row["digest"], plans.sharding_id(row["sharding"])): row
        for row in compiled.rows()
        if row["topology"] == rows.TOPOLOGY and compiled.key(row) in prices
    }
    held = []
    for row in rows.rows():
        own = judged.get((row["program"], row["digest"], row["sharding_id"]))
        if own is not None:
            price = prices[compiled.key(own)]
            held.append(
                Held(
                    row={**row, "plan": own["plan"]},
                    measured_s=row["kernels_s"] - row["stand_in_s"],
                    priced_s=price["compute_s"],
                    told_s=own["compute_s"],
                    priced_bytes=price["peak_bytes"],
                    compiled_bytes=own["peak_bytes"],
                )
            )
    return held


def write() -> None:
    """Write the tables into the page, and the files beside it."""
    ops, shares = single_ops(), plan_shares()
    text = PAGE.read_text()
    begin, end = text.index(_BEGIN) + len(_BEGIN), text.index(_END)
    lines = tables(ops, shares)
    write_whole(PAGE, text[:begin] + "\n\n" + "\n".join(lines) + "\n" + text[end:])
    OPS.parent.mkdir(exist_ok=True)
    for file, columns, cells in (
        (OPS, _OP_COLUMNS, map(_op_row, ops)),
        (PLANS, _PLAN_COLUMNS, map(_plan_row, shares)),
    ):
        rows_of_file = (dict(zip(columns, row, strict=True)) for row in cells)
        write_whole(file, csv_text(columns, rows_of_file))


def tables(ops: list[Held], shares: list[Held]) -> list[str]:
    """The lines of all tables."""
    return [
        *_summary(ops, shares),
        *_families(ops),
        *_transposes(ops),
        *_programs(shares),
        *_steps(shares),
    ]


def ratios(held: Iterable[Held], *, by_xla: bool = False) -> list[float]:
    """Said over measured seconds, of those of which something is said."""
    pairs = [(one.told_s if by_xla else one.priced_s, one.measured_s) for one in held]
    return [said_s / measured_s for said_s, measured_s in pairs if said_s is not None]


def error(values: Sequence[float], share: float = 0.5) -> float:
    """A quantile of how far ratios are off, 0.1 for 10%."""
    off = sorted(abs(value - 1.0) for value in values)
    return off[min(len(off) - 1, int(share * len(off)))] if share != 0.5 else statistics.median(off)


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _both(values: list[float]) -> list[str]:
    if not values:
        return ["-", "-"]
    return [f"{statistics.median(values):.2f}", _percent(error(values))]


def _summary(ops: list[Held], shares: list[Held]) -> list[str]:
    groups: dict[str, list[Held]] = {
        "single ops that rules were read off": [o for o in ops if o.row["plan"] == "op"],
        "single ops of other sizes": [o for o in ops if o.row["plan"] == "fresh op"],
        "plans of the corpus": shares,
    }
    lines = []
    for name, held in groups.items():
        if held:
            for who, values in (("price", ratios(held)), ("XLA", ratios(held, by_xla=True))):
                if values:
                    ninth = _percent(error(values, 0.9))
                    lines.append([name, who, str(len(values)), *_both(values), ninth])
    head = ("what", "whose seconds", "number", "said / measured", "median error", "90th percentile")
    return ["## How far off", "", link_times.table(head, lines), ""]


def _families(ops: list[Held]) -> list[str]:
    by_family: dict[str, dict[str, list[Held]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for one in ops:
        by_family[one.row["digest"]][one.row["plan"]].append(one)
    lines = [
        [
            family,
            *(
                cell
                for plan_name in rows.PLAN_NAMES
                for cell in (
                    str(len(members.get(plan_name, [])) or "-"),
                    *_both(ratios(members.get(plan_name, []))),
                    *_both(ratios(members.get(plan_name, []), by_xla=True)),
                )
            ),
        ]
        for family, members in by_family.items()
    ]
    each = ("number", "price / measured", "error", "XLA / measured", "error")
    head = ("family", *each, *(f"{word}, other sizes" for word in each))
    note = "Medians. XLA: its cost model as we read it, where it has a time for all of an op."
    return ["## Single ops", "", note, "", link_times.table(head, lines), ""]


def _transposes(ops: list[Held]) -> list[str]:
    lines = [
        [
            one.program.removeprefix("transpose "),
            f"{one.measured_s * 1e6:.1f}",
            f"{one.priced_s * 1e6:.1f}",
            "-" if one.told_s is None else f"{one.told_s * 1e6:.1f}",
        ]
        for one in ops
        if one.row["digest"] == "transpose"
    ]
    head = ("transpose", "measured, us", "priced, us", "XLA as read, us")
    return ["## Transposes", "", link_times.table(head, lines), ""]


def _by_program(shares: list[Held]) -> Mapping[str, list[Held]]:
    by_program: dict[str, list[Held]] = collections.defaultdict(list)
    for one in shares:
        by_program[one.program].append(one)
    return dict(sorted(by_program.items()))


def _rank(members: list[Held], said: Callable[[Held], float | None]) -> str:
    values = [said(one) for one in members]
    known = [value for value in values if value is not None]
    if len(members) < FEWEST or len(known) < len(members):
        return "-"
    return f"{spearman(known, [one.measured_s for one in members], FEWEST):.2f}"


def _programs(shares: list[Held]) -> list[str]:
    lines = []
    for name, members in _by_program(shares).items():
        times_ms = [one.measured_s * 1e3 for one in members]
        peaks = [
            (one.priced_bytes or 0.0) / one.row["peak_bytes"]
            for one in members
            if one.row["peak_bytes"]
        ]
        lines.append(
            [
                name,
                str(len(members)),
                f"{min(times_ms):.3g} to {max(times_ms):.3g}",
                *_both(ratios(members)),
                _rank(members, lambda one: one.priced_s),
                *_both(ratios(members, by_xla=True)),
                _rank(members, lambda one: one.told_s),
                *_both(peaks),
            ]
        )
    head = (
        "program", "plans", "kernels, ms", "price / measured", "error", "rank", "XLA / measured",
        "error", "rank", "priced peak / that of the local program", "error",
    )  # fmt: skip
    return ["## Plans of the corpus", "", link_times.table(head, lines), ""]


def _steps(shares: list[Held]) -> list[str]:
    lines = []
    for name, members in _by_program(shares).items():
        waits = [one.row["host_s"] / one.row["kernels_s"] for one in members]
        kernels = [one.row["n_kernels"] for one in members]
        each_us = [one.row["kernels_s"] * 1e6 / one.row["n_kernels"] for one in members]
        lines.append(
            [
                name,
                f"{statistics.median(kernels):.0f}",
                f"{statistics.median(each_us):.1f}",
                f"{statistics.median(waits):.2f}",
            ]
        )
    head = ("program", "kernels a step", "us a kernel", "step by the host's clock / kernels")
    return ["## Steps and kernels", "", link_times.table(head, lines), ""]


_OP_COLUMNS = (
    "family", "op", "fresh", "measured_s", "priced_s", "xla_s", "kernels", "device", "jax",
)  # fmt: skip
_PLAN_COLUMNS = (
    "program", "plan", "measured_s", "priced_s", "xla_s", "step_s", "host_s", "kernels",
    "local_peak_bytes", "priced_peak_bytes", "compiled_peak_bytes", "products_tuned", "device",
    "jax",
)  # fmt: skip


def _op_row(one: Held) -> list[object]:
    row = one.row
    return [
        row["digest"], row["program"], row["plan"] == "fresh op", one.measured_s, one.priced_s,
        one.told_s, row["n_kernels"], row["device"], row["jax"],
    ]  # fmt: skip


def _plan_row(one: Held) -> list[object]:
    row = one.row
    return [
        row["program"], row["plan"], one.measured_s, one.priced_s, one.told_s, row["step_s"],
        row["host_s"], row["n_kernels"], row["peak_bytes"], one.priced_bytes, one.compiled_bytes,
        row["tuned"], row["device"], row["jax"],
    ]  # fmt: skip
