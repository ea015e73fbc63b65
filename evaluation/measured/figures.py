"""Make docs/measured.md from the kept rows; needs neither a GPU nor packages nor compilers."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from evaluation import pages
from evaluation.accuracy.judge import spearman
from evaluation.compiled_rows import key
from evaluation.corpus import compiled, plans, priced
from evaluation.measured import rows, told
from evaluation.row_files import Row
from toast_lab.files import write_whole
from toast_lab.text import csv_text

PAGE = pages.DOCS / "measured.md"
OPS = PAGE.parent / "measured" / "ops.csv"
PLANS = PAGE.parent / "measured" / "plans.csv"
FEWEST = 4  # least number of plans that are ranked


class Held(NamedTuple):
    """A measured share beside the times that our price and XLA's cost model give it."""

    row: Row
    measured_s: float  #: kernels of one step, without stand-ins
    priced_s: float
    told_s: float | None  #: XLA's time as we read it; None if an op has no time
    priced_bytes: float | None
    compiled_bytes: float | None

    @property
    def program(self) -> str:
        """Name of the program or of the single op."""
        return str(self.row["program"])


def single_ops() -> list[Held]:
    """The measured single ops."""
    told_rows = told.read()
    held = []
    for row in rows.rows():
        told_row = told_rows.get(rows.key(row))
        if row["plan"] in rows.PLAN_NAMES and told_row is not None:
            whole = told_row.get("told_s") and not told_row.get("left_out")
            held.append(
                Held(
                    row=row,
                    measured_s=row["kernels_s"] - row["stand_in_s"],
                    priced_s=told_row["priced_s"],
                    told_s=told_row["told_s"] if whole else None,
                    priced_bytes=told_row["peak_bytes"],
                    compiled_bytes=None,
                )
            )
    return held


def plan_shares() -> list[Held]:
    """The measured plans of the corpus, under the names that they have there today."""
    prices = {key(row): row for row in priced.rows()}
    judged = {
        (row["program"], row["digest"], plans.sharding_id(row["sharding"])): row
        for row in compiled.rows()
        if row["topology"] == rows.TOPOLOGY and key(row) in prices
    }
    held = []
    for row in rows.rows():
        judged_row = judged.get((row["program"], row["digest"], row["sharding_id"]))
        if judged_row is not None:
            price = prices[key(judged_row)]
            held.append(
                Held(
                    row={**row, "plan": judged_row["plan"]},
                    measured_s=row["kernels_s"] - row["stand_in_s"],
                    priced_s=price["compute_s"],
                    told_s=judged_row["compute_s"],
                    priced_bytes=price["peak_bytes"],
                    compiled_bytes=judged_row["peak_bytes"],
                )
            )
    return held


def write() -> None:
    """Write the tables into the page, and the CSV files beside it."""
    ops, shares = single_ops(), plan_shares()
    lines = ["", *tables(ops, shares)]
    write_whole(PAGE, pages.with_part(PAGE.read_text(), "tables", lines))
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
    """Priced seconds (or XLA's) over measured ones, of the shares that have both."""
    pairs = [(share.told_s if by_xla else share.priced_s, share.measured_s) for share in held]
    return [said_s / measured_s for said_s, measured_s in pairs if said_s is not None]


def error(values: Sequence[float], share: float = 0.5) -> float:
    """A quantile of the errors of ratios; 0.1 is 10%."""
    errors = sorted(abs(value - 1.0) for value in values)
    return (
        errors[min(len(errors) - 1, int(share * len(errors)))]
        if share != 0.5
        else statistics.median(errors)
    )


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
    return ["## How far off", "", *pages.table(head, lines), ""]


def _families(ops: list[Held]) -> list[str]:
    by_family: dict[str, dict[str, list[Held]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for share in ops:
        by_family[share.row["digest"]][share.row["plan"]].append(share)
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
    columns = ("number", "price / measured", "error", "XLA / measured", "error")
    head = ("family", *columns, *(f"{word}, other sizes" for word in columns))
    note = "Medians. XLA: its cost model as we read it, where it has a time for all of an op."
    return ["## Single ops", "", note, "", *pages.table(head, lines), ""]


def _transposes(ops: list[Held]) -> list[str]:
    lines = [
        [
            share.program.removeprefix("transpose "),
            f"{share.measured_s * 1e6:.1f}",
            f"{share.priced_s * 1e6:.1f}",
            "-" if share.told_s is None else f"{share.told_s * 1e6:.1f}",
        ]
        for share in ops
        if share.row["digest"] == "transpose"
    ]
    head = ("transpose", "measured, us", "priced, us", "XLA as read, us")
    return ["## Transposes", "", *pages.table(head, lines), ""]


def _by_program(shares: list[Held]) -> Mapping[str, list[Held]]:
    by_program: dict[str, list[Held]] = collections.defaultdict(list)
    for share in shares:
        by_program[share.program].append(share)
    return dict(sorted(by_program.items()))


def _rank(members: list[Held], seconds_of: Callable[[Held], float | None]) -> str:
    values = [seconds_of(share) for share in members]
    known = [value for value in values if value is not None]
    if len(members) < FEWEST or len(known) < len(members):
        return "-"
    return f"{spearman(known, [share.measured_s for share in members], FEWEST):.2f}"


def _programs(shares: list[Held]) -> list[str]:
    lines = []
    for name, members in _by_program(shares).items():
        times_ms = [share.measured_s * 1e3 for share in members]
        peaks = [
            (share.priced_bytes or 0.0) / share.row["peak_bytes"]
            for share in members
            if share.row["peak_bytes"]
        ]
        lines.append(
            [
                name,
                str(len(members)),
                f"{min(times_ms):.3g} to {max(times_ms):.3g}",
                *_both(ratios(members)),
                _rank(members, lambda share: share.priced_s),
                *_both(ratios(members, by_xla=True)),
                _rank(members, lambda share: share.told_s),
                *_both(peaks),
            ]
        )
    head = (
        "program", "plans", "kernels, ms", "price / measured", "error", "rank", "XLA / measured",
        "error", "rank", "priced peak / that of the local program", "error",
    )  # fmt: skip
    return ["## Plans of the corpus", "", *pages.table(head, lines), ""]


def _steps(shares: list[Held]) -> list[str]:
    lines = []
    for name, members in _by_program(shares).items():
        waits = [share.row["host_s"] / share.row["kernels_s"] for share in members]
        kernels = [share.row["n_kernels"] for share in members]
        each_us = [share.row["kernels_s"] * 1e6 / share.row["n_kernels"] for share in members]
        lines.append(
            [
                name,
                f"{statistics.median(kernels):.0f}",
                f"{statistics.median(each_us):.1f}",
                f"{statistics.median(waits):.2f}",
            ]
        )
    head = ("program", "kernels a step", "us a kernel", "step by the host's clock / kernels")
    return ["## Steps and kernels", "", *pages.table(head, lines), ""]


_OP_COLUMNS = (
    "family", "op", "fresh", "measured_s", "priced_s", "xla_s", "kernels", "device", "jax",
)  # fmt: skip
_PLAN_COLUMNS = (
    "program", "plan", "measured_s", "priced_s", "xla_s", "step_s", "host_s", "kernels",
    "local_peak_bytes", "priced_peak_bytes", "compiled_peak_bytes", "products_tuned", "device",
    "jax",
)  # fmt: skip


def _op_row(share: Held) -> list[object]:
    row = share.row
    return [
        row["digest"], row["program"], row["plan"] == "fresh op", share.measured_s, share.priced_s,
        share.told_s, row["n_kernels"], row["device"], row["jax"],
    ]  # fmt: skip


def _plan_row(share: Held) -> list[object]:
    row = share.row
    return [
        row["program"], row["plan"], share.measured_s, share.priced_s, share.told_s, row["step_s"],
        row["host_s"], row["n_kernels"], row["peak_bytes"], share.priced_bytes,
        share.compiled_bytes, row["tuned"], row["device"], row["jax"],
    ]  # fmt: skip
