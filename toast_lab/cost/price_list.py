"""``PriceList``: times of steps from better sources than the rules of ``kernel``.

An entry gives the seconds that one step of a class of ops takes under one local layout, and where
the number comes from. A search meets few distinct steps, so an entry may cost milliseconds or a
compile to make; kernels only look it up. A step without an entry has the price of the rules, scaled
by the ratio of a judge's clock to the rules for the program as a whole, so that judged and unjudged
steps can be compared. ``runtime.compiled_prices`` makes the list from a compiler's verdicts.

Entries name their op by its index in the program, and hold for every op of its class (ops whose
price is the same under every plan, see ``fold``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from toast_lab.cost.price_inputs import ListedTimes
from toast_lab.errors import InvalidProblem

FORMAT = 1  # version of the JSON
#: Where a price may come from, the most reliable source last.
RULE, FITTED, COMPILED, MEASURED = SOURCES = ("rule", "fitted", "compiled", "measured")


class PriceEntry(NamedTuple):
    """The time of one step of one class of ops under one local layout."""

    op: int  #: one op of the class
    code: int  #: ``price_codes.step_code`` of the step
    time_s: float  #: of one device and one step of the program, trips of loops included
    source: str  #: one of ``SOURCES`` other than ``RULE``
    subject: str = ""  #: a description of the step, for users


@dataclasses.dataclass(frozen=True)
class PriceList:
    """Entries for one program on one mesh of one machine; of two for one step the later one holds.

    Raises:
        InvalidProblem: a scale or an entry is invalid; the message lists every such entry.
    """

    entries: tuple[PriceEntry, ...] = ()
    compute_scale: float = 1.0  #: factor on the rules' times of computing
    moving_scale: float = 1.0  #: factor on the rules' times of collectives

    def __post_init__(self) -> None:
        scales = (self.compute_scale, self.moving_scale)
        if not all(0.0 < scale < float("inf") for scale in scales):
            raise InvalidProblem(f"scales of a price list must be above 0, not {scales}")
        offences = [
            f"op {entry.op}: {entry.time_s} s from {entry.source!r}"
            for entry in self.entries
            if not (0.0 <= entry.time_s < float("inf"))
            or entry.source not in SOURCES[1:]
            or entry.op < 0
        ]
        if offences:
            raise InvalidProblem(
                "entries of a price list need a finite time of 0 s or more, one of the sources "
                f"{', '.join(SOURCES[1:])}, and an op from 0: {'; '.join(offences)}"
            )

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        counts = {
            source: sum(entry.source == source for entry in self.entries) for source in SOURCES
        }
        texts = [f"{count} {source}" for source, count in counts.items() if count]
        return (
            f"{len(self)} prices: {', '.join(texts)}"
            if texts
            else "no entries: all prices follow the rules"
        )

    def listed_times(self, op_class: np.ndarray) -> ListedTimes:
        """The list as kernels read it.

        Args:
            op_class: [O] class of each op.

        Raises:
            InvalidProblem: an entry names an op that the program does not have.
        """
        foreign = [entry.op for entry in self.entries if entry.op >= len(op_class)]
        if foreign:
            raise InvalidProblem(
                f"this price list is for another program: it has prices of ops "
                f"{sorted(set(foreign))}, but this program has {len(op_class)} ops, numbered from 0"
            )
        rows = self._latest(op_class)
        classes = np.asarray([op_class[entry.op] for entry in rows], np.int64)
        return ListedTimes(
            begin=np.searchsorted(classes, op_class, "left").astype(np.int32),
            end=np.searchsorted(classes, op_class, "right").astype(np.int32),
            code=np.asarray([entry.code for entry in rows], np.int64),
            time_s=np.asarray([entry.time_s for entry in rows], np.float64),
            compute_scale=float(self.compute_scale),
            moving_scale=float(self.moving_scale),
        )

    def rule_source(self, *, computing: bool) -> str:
        """Source of a step without an entry."""
        scale = self.compute_scale if computing else self.moving_scale
        return RULE if scale == 1.0 else FITTED

    def sources(self, op_class: np.ndarray) -> list[str]:
        """Source of each row of ``listed_times``."""
        return [entry.source for entry in self._latest(op_class)]

    def _latest(self, op_class: np.ndarray) -> list[PriceEntry]:
        """The latest entry for each class and code, in their order."""
        latest = {(int(op_class[entry.op]), entry.code): entry for entry in self.entries}
        return [latest[key] for key in sorted(latest)]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "format": FORMAT,
            "compute_scale": self.compute_scale,
            "moving_scale": self.moving_scale,
            "entries": [list(entry) for entry in self.entries],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PriceList:
        """The inverse of ``to_json``.

        Raises:
            InvalidProblem: the data is not a price list of this format.
        """
        try:
            if data["format"] != FORMAT:
                raise InvalidProblem(
                    f"this price list has format {data['format']}, but this version reads "
                    f"format {FORMAT}"
                )
            return cls(
                tuple(
                    PriceEntry(
                        op=int(op),
                        code=int(code),
                        time_s=float(time_s),
                        source=str(source),
                        subject=str(subject),
                    )
                    for op, code, time_s, source, subject in data["entries"]
                ),
                float(data["compute_scale"]),
                float(data["moving_scale"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidProblem(
                f"this is not a price list ({type(error).__name__}: {error}); PriceList.to_json "
                "makes one"
            ) from None


NO_PRICES = PriceList()
