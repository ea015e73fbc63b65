"""What a judge says of a plan, beside what the plan was priced at."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, NamedTuple

from toast_lab.sharding.plan import PlanT
from toast_lab.text import JsonObject, bytes_text


class Judgement(NamedTuple):
    """What a compiler, or a device, makes of one plan."""

    #: of one step by its clock; None: it has none, or the plan has failed
    time_s: float | None
    peak_bytes: float | None
    fits: bool
    failure: str = ""  #: why there is nothing to run; empty: there is
    compile_s: float = 0.0
    cached: bool = False  #: it was compiled before
    evidence: Any = None  #: what prices can be learned from: a ``Compiled`` or a ``Run``
    #: by which share the clock differs from itself; 0 for compilers, which say the same again
    noise: float = 0.0
    #: why clock and price are not of one machine, and are not compared; empty: they are of one
    elsewhere: str = ""


#: Judges one plan.  Raises InvalidProblem if it cannot judge any.
Judge = Callable[[Any], Judgement]


@dataclasses.dataclass(frozen=True, eq=False)
class Verdict(Generic[PlanT]):
    """A plan that was judged."""

    plan: PlanT
    round: int  #: of the search that gave it, counted from 1
    priced_s: float  #: one step by the prices of that round
    priced_bytes: float  #: peak by these prices
    judgement: Judgement
    name: str = ""  #: of a plan that no search gave, such as "data parallel"

    @property
    def time_s(self) -> float | None:
        """One step by the judge's clock; None: the judge has none, or the plan has failed."""
        return self.judgement.time_s

    @property
    def ratio(self) -> float | None:
        """The clock's time over the priced one; None: no time, or that of another machine."""
        if self.time_s is None or self.judgement.elsewhere:
            return None
        return self.time_s / self.priced_s

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """A key to sort by, the best first: what runs, what fits, what is quick."""
        judgement = self.judgement
        without_clock = judgement.time_s is None
        time_s = self.priced_s if judgement.time_s is None else judgement.time_s
        return bool(judgement.failure) or without_clock, not judgement.fits, time_s

    @property
    def stands(self) -> bool:
        """Does it run, fit, and have a time?"""
        return self.rank[:2] == (False, False)

    @property
    def remark(self) -> str:
        """What keeps the plan from standing, empty if nothing does."""
        judgement = self.judgement
        if judgement.failure:
            return f"dropped: {judgement.failure}"
        if not judgement.fits:
            peak = judgement.peak_bytes
            return "does not fit" + (f" ({bytes_text(peak)})" if peak is not None else "")
        return "no clock" if judgement.time_s is None else ""

    def to_json(self) -> JsonObject:
        """Everything but the plan, which is named by its key, and the evidence, as plain data."""
        judgement = self.judgement
        return {
            "round": self.round,
            "plan": f"{self.plan.sharding.key():016x}",
            "name": self.name,
            "priced_s": self.priced_s,
            "priced_peak_bytes": self.priced_bytes,
            "judged_s": self.time_s,
            "judged_peak_bytes": judgement.peak_bytes,
            "ratio": self.ratio,
            "fits": judgement.fits,
            "compile_s": judgement.compile_s,
            "cached": judgement.cached,
            "remark": self.remark,
        }


class JudgeEvent(NamedTuple):
    """A step of a confirmed search."""

    #: "searching", "searched", "judging", "judged" or "learned"
    stage: str
    round: int
    compiles: int  #: plans judged so far
    most_compiles: int
    #: of stage "judged"
    verdict: Verdict[Any] | None = None
    best: Verdict[Any] | None = None  #: the best that was judged so far
    priced_s: float | None = None  #: of the plan that is judged or was searched
    plan: Any = None  #: that one
