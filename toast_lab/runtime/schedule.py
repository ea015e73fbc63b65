"""A compiler's schedule as a timeline of one step: computing, communication and waiting.

``replay`` runs the steps of a schedule through a device of two lanes: one computes, the other
carries collectives. Steps run in the compiler's order. An asynchronous collective overlaps with the
steps between its start and its done instruction, and at the done instruction the device waits for
whatever is left of it. This waiting, and the whole of a collective that is not asynchronous, is
*exposed*: the compute lane is idle meanwhile. At any moment the device waits for only one
collective, so exposed times add up, and

    time of a step = computing + exposed communication

Reference for the scheduler itself: XLA's ``latency_hiding_scheduler``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from toast_lab import records

#: Roles of steps.
FREE, COMPUTE, SYNC, START, DONE, LOOP = "free", "compute", "sync", "start", "done", "loop"
#: Lane of events, besides ``COMPUTE`` and ``LOOP``.
COLLECTIVE = "collective"
#: Most events that a schedule keeps: the most exposed, then the longest.
MAX_EVENTS = 4000
MAX_MEMORY_POINTS = 1500


class ScheduleStep(NamedTuple):
    """One instruction of a schedule."""

    role: str  #: FREE, COMPUTE, SYNC (a collective that blocks), START, DONE or LOOP
    name: str  #: of the instruction
    kind: str  #: opcode, or kind of a collective
    op: int  #: op index, -1 if unknown
    #: COMPUTE and SYNC: time of the step; START: time of its collective; None: no clock
    time_s: float | None = 0.0
    #: upper limit by the schedule, used for a collective without a clock and without a price
    own_s: float = math.inf
    memory_bytes: float | None = None  #: in use after the step
    start: str = ""  #: DONE: name of its START
    bytes: float = 0.0  #: collective without a clock: the larger of its operand and its result
    axes: tuple[str, ...] | None = None  #: of a collective, None if unknown
    #: of a permute: (source, target) positions in the mesh's device order
    pairs: tuple[tuple[int, int], ...] = ()
    rounds: float = 1.0  #: LOOP: of the body
    body: tuple[ScheduleStep, ...] = ()


class ScheduleEvent(NamedTuple):
    """One bar of the timeline.

    The first round of a loop is drawn with all its events; one event in lane "loop" stands for the
    other rounds.
    """

    lane: str  #: "compute", "collective" or "loop"
    kind: str  #: opcode, "fusion", or kind of a collective
    name: str  #: of the instruction
    op: int  #: op index, -1 if unknown
    start_s: float
    end_s: float
    exposed_s: float = 0.0  #: of a collective: seconds at its end in which the compute lane idles
    times: float = 1.0  #: how often it runs: the rounds of the loops around it
    source: str = ""  #: "model.py:12", "" if unknown


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Timeline of one step on one device."""

    events: tuple[ScheduleEvent, ...]  #: in the order of their starts
    #: (seconds, bytes in use from then on), as the scheduler counts them
    memory: tuple[tuple[float, float], ...]
    time_s: float | None  #: of one step; None if a step of the schedule has no clock at all
    compute_s: float
    exposed_s: float
    collective_s: float  #: all collectives, exposed or not
    exposed_s_by_op: Mapping[int, float]  #: -1: unknown
    left_out: int = 0  #: events beyond ``MAX_EVENTS``; all sums include them
    left_out_s: float = 0.0  #: total time of those, counting every round of loops
    notes: tuple[str, ...] = ()

    def exposed_s_by_source(self) -> dict[str, float]:
        """Exposed communication by source line, longest first; "" stands for unknown lines."""
        by_source: dict[str, float] = {}
        source_of = {event.op: event.source for event in self.events}
        for op, exposed_s in self.exposed_s_by_op.items():
            source = source_of.get(op, "")
            by_source[source] = by_source.get(source, 0.0) + exposed_s
        return dict(sorted(by_source.items(), key=lambda row: -row[1]))

    def most_exposed(self) -> list[tuple[str, str, float]]:
        """(source line, kinds, exposed seconds), longest first."""
        kinds: dict[str, list[str]] = {}
        for event in self.events:
            line_kinds = kinds.setdefault(event.source, [])
            if event.exposed_s > 0 and event.kind not in line_kinds:
                line_kinds.append(event.kind)
        return [
            (source, ", ".join(kinds.get(source, ())), exposed_s)
            for source, exposed_s in self.exposed_s_by_source().items()
            if exposed_s > 0
        ]

    def located(self, where: Callable[[int], str]) -> Schedule:
        """The same schedule with the source lines that ``where`` gives for ops now."""
        events = tuple(
            event._replace(source=where(event.op) if event.op >= 0 else "") for event in self.events
        )
        return dataclasses.replace(self, events=events)

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data, each event as a list of its fields."""
        return {
            **records.plain(self),
            "event_fields": list(ScheduleEvent._fields),
            "events": [list(event) for event in self.events],
            "exposed_s_by_source": self.exposed_s_by_source(),
        }

    @staticmethod
    def plain_fields(data: Mapping[str, Any]) -> dict[str, Any]:
        """The data of ``to_json``, as ``records.of_plain`` reads it."""
        names, events = data["event_fields"], data["events"]
        return {**data, "events": [dict(zip(names, event, strict=True)) for event in events]}


class _Lanes:
    """The state of the two lanes while steps run through them."""

    def __init__(self, price_s: Callable[[ScheduleStep], float | None]) -> None:
        self.price_s = price_s
        self.events: list[ScheduleEvent] = []
        self.memory: list[tuple[float, float]] = []
        self.compute_s = self.exposed_s = self.collective_s = 0.0
        self.exposed_s_by_op: dict[int, float] = {}
        self.unclocked: dict[str, int] = {}
        self.priced: dict[str, int] = {}

    def run(self, steps: Iterable[ScheduleStep], now: float, times: float) -> float:
        """Run steps from time ``now``, each ``times`` times; gives the time at which they end."""
        in_flight: dict[str, tuple[float, float]] = {}
        start_steps: dict[str, ScheduleStep] = {}
        for step in steps:
            if step.role == COMPUTE:
                end = now + self._clock(step)
                self.compute_s += (end - now) * times
                if end > now:
                    self._bar(COMPUTE, step, now, end, times=times)
                now = end
            elif step.role == SYNC:
                end = now + self._clock(step)
                self._collective(step, now, end, exposed_s=end - now, times=times)
                now = end
            elif step.role == START:
                in_flight[step.name] = now, now + self._clock(step)
                start_steps[step.name] = step
            elif step.role == DONE and step.start in in_flight:
                begin, ready = in_flight.pop(step.start)
                waited_s = max(0.0, ready - now)
                self._collective(
                    start_steps[step.start], begin, ready, exposed_s=waited_s, times=times
                )
                now += waited_s
            elif step.role == LOOP:
                now = self._loop(step, now, times)
            if step.memory_bytes is not None and times == 1.0:
                self.memory.append((now, step.memory_bytes))
        for name, (begin, ready) in in_flight.items():  # no step waits for these
            self._collective(start_steps[name], begin, ready, exposed_s=0.0, times=times)
        return now

    def _loop(self, step: ScheduleStep, now: float, times: float) -> float:
        first_end = self.run(step.body, now, times * step.rounds)
        end = now + (first_end - now) * step.rounds
        if end > first_end:
            self._bar(LOOP, step, first_end, end, times=times)
        return end

    def _clock(self, step: ScheduleStep) -> float:
        """Seconds of a step; for a collective without a time, its price or else its limit."""
        if step.time_s is not None:
            return step.time_s
        price_s = self.price_s(step) if step.role in (SYNC, START) else None
        if price_s is not None:
            self.priced[step.kind] = self.priced.get(step.kind, 0) + 1
            return price_s
        if math.isfinite(step.own_s):
            return step.own_s
        self.unclocked[step.kind] = self.unclocked.get(step.kind, 0) + 1
        return 0.0

    def _collective(
        self, step: ScheduleStep, begin: float, end: float, *, exposed_s: float, times: float
    ) -> None:
        self.collective_s += (end - begin) * times
        self.exposed_s += exposed_s * times
        exposed_before_s = self.exposed_s_by_op.get(step.op, 0.0)
        self.exposed_s_by_op[step.op] = exposed_before_s + exposed_s * times
        self._bar(COLLECTIVE, step, begin, end, exposed_s=exposed_s, times=times)

    def _bar(
        self,
        lane: str,
        step: ScheduleStep,
        begin: float,
        end: float,
        *,
        times: float,
        exposed_s: float = 0.0,
    ) -> None:
        self.events.append(
            ScheduleEvent(
                lane=lane,
                kind=step.kind,
                name=step.name,
                op=step.op,
                start_s=begin,
                end_s=end,
                exposed_s=exposed_s,
                times=times,
            )
        )


def replay(
    steps: Iterable[ScheduleStep],
    price_s: Callable[[ScheduleStep], float | None] = lambda _: None,
    *,
    notes: Iterable[str] = (),
    max_events: int = MAX_EVENTS,
) -> Schedule:
    """Run ``steps`` through the two lanes.

    Args:
        steps: steps of the program's entry computation, in the order in which they run.
        price_s: gives the seconds of a collective without a compiler's time; None if it has no
            price.
        notes: caveats for reading the times.
        max_events: events beyond this number are left out, the least exposed and shortest first.
    """
    lanes = _Lanes(price_s)
    end_s = lanes.run(steps, 0.0, 1.0)
    kept_events = lanes.events
    left_out: list[ScheduleEvent] = []
    if len(kept_events) > max_events:
        by_length = sorted(kept_events, key=_weight, reverse=True)
        kept_events, left_out = by_length[:max_events], by_length[max_events:]
    remarks = [*notes]
    if lanes.priced:
        remarks.append(f"priced by our links: {_counts(lanes.priced)}")
    if lanes.unclocked:
        remarks.append(f"without any clock: {_counts(lanes.unclocked)}; so a step has no time")
    return Schedule(
        events=tuple(sorted(kept_events, key=lambda event: (event.start_s, event.end_s))),
        memory=_thinned(lanes.memory),
        time_s=None if lanes.unclocked else end_s,
        compute_s=lanes.compute_s,
        exposed_s=lanes.exposed_s,
        collective_s=lanes.collective_s,
        exposed_s_by_op=lanes.exposed_s_by_op,
        left_out=len(left_out),
        left_out_s=math.fsum((event.end_s - event.start_s) * event.times for event in left_out),
        notes=tuple(remarks),
    )


def _weight(event: ScheduleEvent) -> tuple[float, float]:
    """Sort key of the events to keep: exposed communication, then length."""
    return event.exposed_s * event.times, (event.end_s - event.start_s) * event.times


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def _thinned(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most ``MAX_MEMORY_POINTS``, with the largest size of each stretch, so no peak is lost."""
    size_at: dict[float, float] = {}
    for at_s, size in points:  # of steps that take no time, the largest
        size_at[at_s] = max(size, size_at.get(at_s, 0.0))
    points = list(size_at.items())
    if len(points) <= MAX_MEMORY_POINTS:
        return tuple(points)
    stretch_length = -(-len(points) // MAX_MEMORY_POINTS)
    stretches = [points[i : i + stretch_length] for i in range(0, len(points), stretch_length)]
    return tuple((stretch[0][0], max(size for _, size in stretch)) for stretch in stretches)
