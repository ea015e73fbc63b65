"""A judge's findings on a plan, with the plan's price."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple

from toast_lab.sharding.plan import PlanT, ShardingPlan
from toast_lab.text import JsonObject, bytes_text
from toast_lab.written.written_plan import WrittenPlan


class Judgement(NamedTuple):
    """The findings of a compiler, or of attached devices, on one plan."""

    #: time of one step by the judge's clock; None: it has no clock, or the plan has failed
    time_s: float | None
    peak_bytes: float | None
    fits: bool
    failure: str = ""  #: why the plan does not compile or run; empty: it does
    compile_s: float = 0.0
    cached: bool = False  #: the result of an earlier compile was used
    evidence: Any = None  #: a ``Compiled`` or a ``Run``, from which prices can be learned
    #: share by which the clock's own times vary; 0 for compilers, which are deterministic
    noise: float = 0.0
    #: a sentence if clock and price are of different machines, and so not compared; else empty
    elsewhere: str = ""
    #: the plan's compile was killed or took too long, which says nothing about the plan: it is
    #: worth judging again with a time limit above this, in seconds; None: it was not interrupted
    interrupted_at_s: float | None = None

    @property
    def refused(self) -> bool:
        """Does no compiler take the plan, or do the devices not run it?"""
        return bool(self.failure) and self.interrupted_at_s is None


#: Judges one plan, whole or as it is written. Raises InvalidProblem if it cannot judge any plan.
Judge = Callable[[ShardingPlan | WrittenPlan], Judgement]

#: The key of a sharding, and whether the plan is judged as written. A whole plan and a written one
#: that propagation makes the same are compiled from different texts.
CandidateKey = tuple[int, bool]


@dataclasses.dataclass(frozen=True, eq=False)
class Verdict(Generic[PlanT]):
    """A plan that was judged."""

    plan: PlanT
    round: int  #: round of the search in which it was judged, from 1
    priced_s: float  #: time of one step by the prices of that round
    priced_bytes: float  #: peak memory by these prices
    judgement: Judgement
    name: str = ""  #: of a plan that is not from the search, such as "data parallel"
    #: it was judged as written, and ``plan`` is what propagation makes of it; None: ``plan`` was
    #: judged whole, with every op as it says
    written: WrittenPlan | None = None

    @property
    def key(self) -> CandidateKey:
        """What was judged."""
        return self.plan.sharding.key(), self.written is not None

    @property
    def title(self) -> str:
        """Its name, and how it is written; empty for a whole plan of the search."""
        if self.written is None:
            return self.name
        if self.name and not self.written.constraints:
            return f"{self.name} as argument shardings alone"
        return ", ".join(filter(None, (self.name, f"written in {self.written.size}")))

    @property
    def time_s(self) -> float | None:
        """Time of one step by the judge's clock; None: it has no clock, or the plan has failed."""
        return self.judgement.time_s

    @property
    def ratio(self) -> float | None:
        """The clock's time over the priced one; None: no time, or one of another machine."""
        if self.time_s is None or self.judgement.elsewhere:
            return None
        return self.time_s / self.priced_s

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Sort key, the best first: plans that run, then plans that fit, then fast ones."""
        judgement = self.judgement
        without_clock = judgement.time_s is None
        time_s = self.priced_s if judgement.time_s is None else judgement.time_s
        return bool(judgement.failure) or without_clock, not judgement.fits, time_s

    @property
    def stands(self) -> bool:
        """Does the plan run, fit and have a time?"""
        return self.rank[:2] == (False, False)

    @property
    def remark(self) -> str:
        """The reason why the plan does not stand; empty if it does."""
        judgement = self.judgement
        if judgement.failure:
            return f"dropped: {judgement.failure}"
        if not judgement.fits:
            peak = judgement.peak_bytes
            return "does not fit" + (f" ({bytes_text(peak)})" if peak is not None else "")
        return "no clock" if judgement.time_s is None else ""

    def to_json(self) -> JsonObject:
        """The verdict as plain data, with the plan's key for the plan and without the evidence."""
        judgement = self.judgement
        return {
            "round": self.round,
            "plan": f"{self.plan.sharding.key():016x}",
            "name": self.name,
            "size": None if self.written is None else self.written.size._asdict(),
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


def best_of(verdicts: Iterable[Verdict[PlanT]]) -> Verdict[PlanT] | None:
    """The best verdict; None if there is none."""
    return min(verdicts, key=lambda verdict: verdict.rank, default=None)


class JudgeEvent(NamedTuple):
    """Progress of a confirmed search."""

    #: "searching", "searched", "judging", "judged" or "learned"
    stage: str
    round: int
    compiles: int  #: plans judged so far
    most_compiles: int
    #: only at stage "judged"
    verdict: Verdict[Any] | None = None
    best: Verdict[Any] | None = None  #: of the best plan judged so far
    priced_s: float | None = None  #: price of ``plan``
    plan: Any = None  #: the plan that is judged, or that the search gave
