"""The result of a comparison, as rows."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from toast_lab.files import PathLike, write_whole
from toast_lab.runtime import agreement
from toast_lab.runtime.hlo import Collective, counts_text
from toast_lab.runtime.measuring import interquartile_range
from toast_lab.text import JsonObject, as_html, bytes_text, csv_text, plain_data, table


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What was compared with the unsharded program on the same inputs.

    Errors are ``max|found - expected| / max|expected|`` by path, the worst of all shards of all
    devices.
    """

    outputs: Mapping[str, float] | None  #: of the program
    #: of the loss, its gradients and the arguments after a step
    gradients: Mapping[str, float] | None
    tolerance: float
    checked: tuple[str, ...]  #: what was compared, one sentence each
    not_checked: tuple[str, ...]  #: what was not, and why
    #: of the unsharded program's, by inputs that are nudged, see ``agreement``
    changes: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def worst(self) -> agreement.Worst:
        """The error that is the largest, measured by what rounding explains."""
        errors = {**(self.outputs or {}), **(self.gradients or {})}
        return agreement.worst(errors, self.tolerance, self.changes)

    @property
    def max_relative_error(self) -> float | None:
        """The error of ``worst``; NaN if a part of what was checked has no finite values."""
        return self.worst.error

    @property
    def passed(self) -> bool | None:
        """Is everything that was checked within what rounding explains? None: nothing was."""
        return agreement.agrees(*self.worst)

    def __str__(self) -> str:
        verdict = agreement.verdict(*self.worst)
        lines = [
            verdict,
            *(f"  checked: {sentence}" for sentence in self.checked),
            *(f"  not checked: {sentence}" for sentence in self.not_checked),
        ]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Predicted:
    """The price of a plan (``tl.price``)."""

    machine: str
    time_s: float
    overlapped_s: float
    peak_bytes: float
    collective_counts: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class ComparisonRow:
    """The measurements of one plan.

    Bytes are those of one device; numbers are None if the plan ended before they were measured.
    """

    name: str
    status: str  #: "ok", "failed", "crashed", "out of memory", "timeout" or "cancelled"
    message: str  #: why the status is not "ok"
    mesh: str
    devices: str  #: "cpu:8"
    device_kind: str
    n_devices: int
    n_processes: int
    batches_s: tuple[tuple[float, ...], ...]  #: times of the steps of each round
    compile_s: float | None
    argument_bytes: int | None
    output_bytes: int | None
    temp_bytes: int | None
    peak_bytes: int | None  #: see ``runtime.Run``
    allocator_peak_bytes: int | None
    collectives: tuple[Collective, ...]  #: of the compiled program
    certificate: Certificate | None = None  #: None for the unsharded program itself
    predicted: Predicted | None = None
    plan: Mapping[str, Any] | None = None  #: as from ``Plan.to_json``

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """All timed steps, in order."""
        return tuple(time_s for batch in self.batches_s for time_s in batch)

    @property
    def median_s(self) -> float | None:
        """Median of a step."""
        return float(np.median(self.step_times_s)) if self.batches_s else None

    @property
    def spread_s(self) -> float | None:
        """Interquartile range of the steps, 0 for fewer than 2."""
        return interquartile_range(self.step_times_s) if self.batches_s else None

    @property
    def collective_counts(self) -> dict[str, int]:
        """Number of compiled collectives by kind."""
        return dict(collections.Counter(collective.kind for collective in self.collectives))

    @property
    def judgement(self) -> JsonObject:
        """Columns from the certificate and the prediction, None where there is none."""
        certificate, predicted = self.certificate, self.predicted
        return {
            "passed": certificate.passed if certificate else None,
            "max_relative_error": certificate.max_relative_error if certificate else None,
            "predicted_time_s": predicted.time_s if predicted else None,
            "predicted_peak_bytes": predicted.peak_bytes if predicted else None,
        }

    def to_json(self) -> JsonObject:
        """All fields as plain data, with the derived ones.

        Numbers that are not finite become None.
        """
        data = dataclasses.asdict(self)
        data["collectives"] = [collective.to_json() for collective in self.collectives]
        data["median_s"], data["spread_s"] = self.median_s, self.spread_s
        data["collective_counts"] = self.collective_counts
        if self.certificate is not None:
            data["certificate"]["passed"] = self.certificate.passed
            data["certificate"]["max_relative_error"] = self.certificate.max_relative_error
        plain: dict[str, Any] = plain_data(data)
        return plain


UNSHARDED = "(unsharded)"  #: name of the row of the program itself, on one device
CSV_COLUMNS = (
    "name",
    "status",
    "median_s",
    "spread_s",
    "compile_s",
    "peak_bytes",
    "allocator_peak_bytes",
    "collectives",
    "passed",
    "max_relative_error",
    "predicted_time_s",
    "predicted_peak_bytes",
    "mesh",
    "devices",
    "device_kind",
    "n_processes",
    "steps",
    "message",
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Rows in the order of the plans, and the unsharded program beside them.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> rows = tl.compare(model, {"mine": plan}, "cpu:4", repeats=2, rounds=1)
        >>> rows["mine"].certificate.passed
        True
        >>> [row.name for row in rows.rows]
        ['mine']
    """

    model: str
    program_digest: str
    rows: tuple[ComparisonRow, ...]
    #: the unsharded program on one device; None if it was not asked for
    reference: ComparisonRow | None
    inputs: str  #: "normal", "non-negative" or "given", see ``runtime.Run``
    seed: int
    order: str  #: how the plans took turns, in words
    notes: tuple[str, ...] = ()
    stored_as: tuple[int, ...] = ()  #: numbers of the rows in the store

    @property
    def all_rows(self) -> list[ComparisonRow]:
        """The rows of the plans, then that of the unsharded program."""
        return [*self.rows, self.reference] if self.reference else list(self.rows)

    @property
    def fastest(self) -> ComparisonRow | None:
        """The row with the lowest median among those that are ok.

        Rows that differ from the unsharded program are left out.
        """
        valid_rows = [
            row
            for row in self.rows
            if row.status == "ok"
            and (row.certificate is None or row.certificate.passed is not False)
        ]
        return min(valid_rows, key=lambda row: row.median_s or math.inf, default=None)

    def __getitem__(self, name: str) -> ComparisonRow:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(
            f"no plan is called {name!r}; there are {', '.join(row.name for row in self.rows)}"
        )

    @property
    def failures(self) -> list[str]:
        """One line for each row that is not ok."""
        return [
            f"{row.name}: {row.status}: {row.message}"
            for row in self.all_rows
            if row.status != "ok"
        ]

    def to_json(self) -> JsonObject:
        """Everything as plain data."""
        return {
            **vars(self),
            "fastest": self.fastest.name if self.fastest else None,
            "rows": [row.to_json() for row in self.rows],
            "reference": self.reference.to_json() if self.reference else None,
            "notes": list(self.notes),
            "stored_as": list(self.stored_as),
        }

    def to_csv(self, path: PathLike | None = None) -> str:
        """CSV text with one line for each plan; also written to ``path`` if given."""
        content = csv_text(CSV_COLUMNS, map(_csv, self.rows))
        if path is not None:
            write_whole(path, content, "the table")
        return content

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.rows)} plans of {self.model}>"

    def _repr_html_(self) -> str:
        return as_html(self)

    def __str__(self) -> str:
        lines = [table(COLUMNS, map(cells, self.all_rows)), self.order, *self.failures]
        unchecked = {row.name: row.certificate.not_checked for row in self.rows if row.certificate}
        if len(set(unchecked.values())) == 1:
            lines += [f"not checked: {reason}" for reason in next(iter(unchecked.values()))]
        else:
            lines += [
                f"{name}: not checked: {reason}"
                for name, reasons in unchecked.items()
                for reason in reasons
            ]
        return "\n".join([*lines, *self.notes])


COLUMNS = (
    "plan",
    "status",
    ">step",
    ">spread",
    ">compile",
    ">memory",
    "collectives",
    "unsharded",
    ">predicted",
    ">memory",
)


def cells(row: ComparisonRow) -> tuple[str, ...]:
    """The cells of a row, by ``COLUMNS``; the last two are from the prediction."""
    counts = counts_text(row.collective_counts)
    certificate, predicted = row.certificate, row.predicted
    error = None if certificate is None else certificate.max_relative_error
    agreement_text = "-"
    if certificate is not None and error is not None:
        agreement_text = f"{'agrees' if certificate.passed else 'DIFFERS'} {error:.0e}"
    memory = row.allocator_peak_bytes or row.peak_bytes
    return (
        row.name,
        row.status,
        _time(row.median_s),
        _spread(row.spread_s),
        _time(row.compile_s),
        "-" if memory is None else bytes_text(memory),
        counts or ("none" if row.compile_s is not None else "-"),
        agreement_text,
        _time(predicted.time_s if predicted else None),
        bytes_text(predicted.peak_bytes) if predicted else "-",
    )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _spread(spread_s: float | None) -> str:
    """Half the interquartile range, as in the explorer."""
    return "-" if spread_s is None else f"± {_time(spread_s / 2)}"


def _csv(row: ComparisonRow) -> JsonObject:
    counts = sorted(row.collective_counts.items())
    derived = {
        "collectives": " ".join(f"{kind}={count}" for kind, count in counts),
        "steps": len(row.step_times_s),
        **row.judgement,
    }
    plain_columns = [column for column in CSV_COLUMNS if column not in derived]
    return {column: getattr(row, column) for column in plain_columns} | derived
