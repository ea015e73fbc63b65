"""Turn the text of a schedule into steps with clocks, which ``schedule.replay`` then runs.

The scheduler's own order is kept, its clocks only where no better ones are known:

* computing on TPUs: ``estimated_cycles`` of the compiled text, by the name of the instruction.
  Instructions that were renamed after scheduling share the cycles of the new names, in proportion
  to their times in the schedule, so that the sum is that of the estimated cycles. (The schedule's
  own times of computing are inflated: a fusion of a few numbers takes 3,600 cycles there.)
* computing on GPUs: XLA's own times, without the meaningless ones that ``gpu_times`` leaves out; a
  matrix product among those leaves the whole step without a time.
* collectives on TPUs: the machine model's links. The schedule assumes that every axis is a closed
  ring, which the dims of small slices are not, does not exist if nothing is asynchronous, and gives
  next to no time to sums in loops; so its times would favour one plan of a program over another.
  They count only where the schedule does not say how many bytes are sent or between which devices.
  A collective that is fused into a product overlaps with it.
* collectives on GPUs: XLA's measured tables, and outside of them the machine model's links.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toast_lab.runtime import gpu_times, hlo, hlo_text, schedule_collectives
from toast_lab.runtime.gpu_fusions import DeviceMemory
from toast_lab.runtime.schedule import COMPUTE, DONE, FREE, LOOP, START, SYNC, ScheduleStep
from toast_lab.runtime.schedule_text import ScheduledInstruction, ScheduleText, TextInstruction

_FREE = frozenset(
    """parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id
    optimization-barrier add-dependency copy-start copy-done slice-start slice-done
    async-update send recv send-done recv-done infeed outfeed""".split()
)
#: Opcodes that XLA leaves to libraries: its schedule has a microsecond for each.
_LIBRARY_CALLS = ("custom-call", "fft")
_PRODUCTS = ("dot", "convolution")
_CALLERS = ("while", "conditional", "call")
_COMMUNICATES = (SYNC, START)
COUNTER_S = 1e-6  #: a loop condition that takes less only compares a counter


class Clocks(NamedTuple):
    """Times in seconds that are better than the schedule's, by the name of an instruction."""

    #: None: neither this time nor the schedule's means anything
    compute_s: Mapping[str, float | None]
    collective_s: Mapping[str, float | None]  #: None: priced by the machine model's links
    #: links price all collectives, and renamed instructions share the remaining computing time
    of_tpu: bool = False


def tpu_clocks(module: hlo_text.Module, clock_hz: float) -> Clocks:
    """Clocks from the estimated cycles of a compiled text."""
    compute_s: dict[str, float | None] = {}
    for place in hlo_text.executed(module):
        for instruction in () if place.fused else place.computation.instructions:
            cycles = hlo.estimated_cycles(instruction)
            if cycles:
                compute_s[instruction.name] = cycles / clock_hz
    return Clocks(compute_s, {}, of_tpu=True)


def gpu_clocks(
    module: hlo_text.Module,
    architecture: str,
    n_devices: int,
    hosts: int = 1,
    memory: DeviceMemory | None = None,
) -> Clocks:
    """Clocks from XLA's own times in a compiled text, without meaningless ones."""
    compute_s: dict[str, float | None] = {}
    collective_s: dict[str, float | None] = {}
    for row in gpu_times.timed(module, architecture, n_devices, hosts=hosts, memory=memory):
        name = row.instruction.name
        if row.is_collective:
            collective_s[name] = None if row.reason else row.time_s
        elif not row.reason:
            compute_s[name] = row.time_s
        elif row.reason in (gpu_times.PRODUCT_TYPES, gpu_times.TRITON, gpu_times.NO_TABLES):
            compute_s[name] = None
        elif row.instruction.opcode in _LIBRARY_CALLS:
            compute_s[name] = None  # without its convolutions the step has no time
    return Clocks(compute_s, collective_s)


class _StepMaker(NamedTuple):
    text: ScheduleText
    module: hlo_text.Module
    mesh: Mapping[str, int]
    rounds: hlo_text.Rounds
    clocks: Clocks
    #: factor on the schedule's times of renamed computing instructions
    scale: float
    compiled: Mapping[str, tuple[hlo_text.Computation, hlo_text.Instruction]]  #: by name
    served: Mapping[str, int]  #: index of the op that a collective of the compiled text serves

    def steps(self, computation: int) -> tuple[ScheduleStep, ...]:
        """The steps of one scheduled computation."""
        rows = self.text.scheduled[computation]
        waits = self._waits(rows)
        return tuple(step for row in rows for step in self._steps(row, waits))

    def _waits(self, rows: list[ScheduledInstruction]) -> dict[str, float]:
        """Seconds from the end of each start to the beginning of its done, by name of the start."""
        waits: dict[str, float] = {}
        ended: dict[int, float] = {}
        for row in rows:
            ended[id(row.instruction)] = row.end_s
            start = self._start_of(row.instruction)
            if start is not None and id(start) in ended:
                waits[start.name] = max(0.0, row.start_s - ended[id(start)])
        return waits

    def _start_of(self, instruction: TextInstruction) -> TextInstruction | None:
        if not instruction.opcode.endswith("-done") or not instruction.operand_ids:
            return None
        return self.text.instructions.get(instruction.operand_ids[0])

    def _members(self, instruction: TextInstruction) -> list[TextInstruction]:
        """The instructions of the computations that an instruction calls."""
        return [
            self.text.instructions[member]
            for called in instruction.called_ids
            for member in self.text.members.get(called, ())
            if member in self.text.instructions
        ]

    def _kind(self, instruction: TextInstruction) -> str:
        """Kind of a collective, also of one inside an asynchronous call or a fusion; else ""."""
        stem = instruction.opcode.removesuffix("-start").removesuffix("-done")
        if stem in ("async", "fusion"):
            opcodes = [member.opcode for member in self._members(instruction)]
            stem = next(filter(hlo.kind_of_opcode, opcodes), "")
            if stem == "all-reduce" and "dynamic-slice" in opcodes:
                stem = "reduce-scatter"
        return hlo.kind_of_opcode(stem)

    def _op(self, instruction: TextInstruction) -> int:
        if instruction.op >= 0 or instruction.opcode not in ("fusion", "async-start"):
            return instruction.op
        ops = [member.op for member in self._members(instruction) if member.op >= 0]
        return max(ops, key=lambda op: (ops.count(op), op)) if ops else -1

    def _steps(
        self, row: ScheduledInstruction, waits: Mapping[str, float]
    ) -> tuple[ScheduleStep, ...]:
        step, instruction = self._step(row, waits), row.instruction
        kind = self._kind(instruction) if self.clocks.of_tpu and step.role == COMPUTE else ""
        if not kind or instruction.opcode != "fusion":
            return (step,)
        collective = self._sized(step._replace(kind=kind, own_s=step.time_s or 0.0), instruction)
        return overlapped(self.clocked(collective, None), step)

    def _step(self, row: ScheduledInstruction, waits: Mapping[str, float]) -> ScheduleStep:
        instruction, length_s = row.instruction, row.end_s - row.start_s
        name, opcode = instruction.name, instruction.opcode
        op, kind = self._op(instruction), self._kind(instruction)
        op = self.served.get(name, op) if op < 0 else op
        step = ScheduleStep(FREE, name, kind or opcode, op, memory_bytes=row.memory_bytes)
        if opcode in _FREE:
            return step
        if opcode in _CALLERS:
            return self._inside(step, instruction, length_s)
        start = self._start_of(instruction)
        if start is not None:
            return step._replace(role=DONE, start=start.name) if self._kind(start) else step
        if opcode.endswith("-start"):
            if not kind:
                return step
            span_s = waits.get(name, math.inf)
            step = self._sized(step._replace(role=START), instruction)
            if not self.clocks.of_tpu:
                return self.clocked(step, self.clocks.collective_s.get(name))
            return self.clocked(step._replace(own_s=span_s), None)
        if kind and not (opcode == "fusion" and self._multiplies(instruction)):
            step = self._sized(step._replace(role=SYNC), instruction)
            if not self.clocks.of_tpu:
                return self.clocked(step, self.clocks.collective_s.get(name))
            return self.clocked(step._replace(own_s=length_s), None)
        if name in self.clocks.compute_s:
            return step._replace(role=COMPUTE, time_s=self.clocks.compute_s[name])
        # The scheduler gives one cycle to every instruction that it has no time for
        unscaled = length_s <= self.text.cycle_s or name in self.compiled
        return step._replace(role=COMPUTE, time_s=length_s if unscaled else length_s * self.scale)

    def _multiplies(self, instruction: TextInstruction) -> bool:
        """Is this a product that a collective is fused into, so that it computes meanwhile?"""
        return any(member.opcode in _PRODUCTS for member in self._members(instruction))

    def _sized(self, step: ScheduleStep, instruction: TextInstruction) -> ScheduleStep:
        """The step of a collective, with bytes and axes from the scheduler's description."""
        wrapped_collectives = [
            member
            for member in self._members(instruction)
            if schedule_collectives.is_collective(member.opcode)
        ]
        described = next(
            (
                candidate
                for candidate in (*wrapped_collectives, instruction)
                if "shape" in candidate.block
            ),
            None,
        )
        if described is None or not _is_same(step.kind, hlo.kind_of_opcode(described.opcode)):
            return step
        groups = schedule_collectives.device_groups(
            described.block,
            math.prod(self.mesh.values()),
            is_permute=step.kind == "collective_permute",
        )
        size = schedule_collectives.local_bytes(described.block)
        if described.opcode == "reduce-scatter":
            # Its shape is that of the result; an all-reduce that is sliced has the whole shape
            size *= max(map(len, groups), default=1)
        return step._replace(bytes=size, **self._where(step.kind, groups))

    def _where(self, kind: str, groups: list[list[int]]) -> dict[str, Any]:
        """Fields of a collective's step that say between which devices it runs."""
        if kind != "collective_permute":
            return {"axes": hlo.group_axes(groups, self.mesh)}
        pairs = tuple((source, target) for source, target in groups)
        return {"axes": hlo.permute_axes(groups, self.mesh), "pairs": pairs}

    def clocked(self, step: ScheduleStep, time_s: float | None) -> ScheduleStep:
        """The step of a collective with its time, or with the bytes and axes to price it."""
        if time_s is not None:
            return step._replace(time_s=time_s)
        _, instruction = self.compiled.get(step.name, (None, None))
        if instruction is not None and instruction.opcode in ("async-start", "fusion"):
            wrapped = self.module.computations.get(instruction.called("calls"))
            instructions = wrapped.instructions if wrapped is not None else ()
            instruction = next(filter(hlo.kind_of, instructions), None)
        # XLA may give the name of a scheduled instruction to another one afterwards
        if instruction is None or not _is_same(step.kind, hlo.kind_of(instruction)):
            return step._replace(time_s=None)
        groups = hlo.device_groups(instruction, math.prod(self.mesh.values()))
        size = hlo.local_bytes(instruction, max(map(len, groups), default=1))
        return step._replace(time_s=None, bytes=float(size), **self._where(step.kind, groups))

    def _inside(
        self, step: ScheduleStep, instruction: TextInstruction, length_s: float
    ) -> ScheduleStep:
        """The step of a loop, a call or a conditional, with its body."""
        bodies = [
            self.steps(called) for called in instruction.called_ids if called in self.text.scheduled
        ]
        if not bodies:
            return step._replace(role=COMPUTE, time_s=length_s)
        if instruction.opcode == "conditional":
            return equally_weighted(step, bodies)
        # A loop's condition is scheduled too
        *conditions, body = sorted(bodies, key=lambda steps: (_length_s(steps), len(steps)))
        rounds = 1.0
        if instruction.opcode == "while":
            computation, loop = self.compiled.get(step.name, (None, None))
            if computation is not None and loop is not None:
                rounds = hlo_text.loop_rounds(self.module, computation, loop, self.rounds)
        return with_condition(step._replace(role=LOOP, rounds=rounds, body=body), *conditions)


def _is_same(kind: str, described_kind: str) -> bool:
    """May a collective of this kind be described as one of the other?

    A reduce-scatter may be an all-reduce with a slice.
    """
    sums = ("all_reduce", "reduce_scatter")
    return kind == described_kind or (kind in sums and described_kind in sums)


def _length_s(steps: tuple[ScheduleStep, ...]) -> float:
    return sum((step.time_s or 0.0) + step.rounds * _length_s(step.body) for step in steps)


def with_condition(loop: ScheduleStep, *conditions: tuple[ScheduleStep, ...]) -> ScheduleStep:
    """A loop with its condition, which runs once more than its body.

    A condition that does not communicate and only compares a counter is left out.
    """
    tests = [
        loop._replace(rounds=loop.rounds + 1, body=steps)
        for steps in conditions
        if any(step.role in _COMMUNICATES for step in steps) or _length_s(steps) > COUNTER_S
    ]
    return loop._replace(rounds=1.0, body=(*tests, loop)) if tests else loop


def equally_weighted(
    step: ScheduleStep, branches: Sequence[tuple[ScheduleStep, ...]]
) -> ScheduleStep:
    """A conditional whose branches count equally often, as in a price: which runs is unknown."""
    share = 1.0 / len(branches)
    weighted_branches = (step._replace(role=LOOP, rounds=share, body=branch) for branch in branches)
    return step._replace(role=LOOP, body=tuple(weighted_branches))


def overlapped(collective: ScheduleStep, product: ScheduleStep) -> tuple[ScheduleStep, ...]:
    """A product that a collective is fused into: the two overlap, piece by piece.

    After the product, the device waits for the part of the collective that it does not hide.
    """
    start = collective._replace(role=START, name=f"{product.name} (sent)", memory_bytes=None)
    done = ScheduleStep(DONE, f"{product.name} (waited)", start.kind, start.op, start=start.name)
    return start, product, done


def steps_of(
    text: ScheduleText,
    module: hlo_text.Module,
    mesh: Mapping[str, int],
    *,
    clocks: Clocks,
    rounds: hlo_text.Rounds = hlo_text.unknown,
) -> tuple[ScheduleStep, ...]:
    """The steps of a schedule with their clocks.

    Args:
        text: the schedule.
        module: the compiled text of the same program.
        mesh: axis sizes of the mesh that it was compiled for.
        clocks: times that are better than the schedule's.
        rounds: gives a loop's number of rounds where the text does not state it.
    """
    maker = _maker(text, module, mesh, clocks=clocks, rounds=rounds)
    return maker._replace(scale=_scale(maker)).steps(text.entry)


def _maker(
    text: ScheduleText,
    module: hlo_text.Module,
    mesh: Mapping[str, int],
    *,
    clocks: Clocks,
    rounds: hlo_text.Rounds,
) -> _StepMaker:
    return _StepMaker(
        text=text,
        module=module,
        mesh=mesh,
        rounds=rounds,
        clocks=clocks,
        scale=1.0,
        compiled={
            instruction.name: (computation, instruction)
            for computation in module.computations.values()
            for instruction in computation.instructions
        },
        served=_served(module),
    )


def _served(module: hlo_text.Module) -> dict[str, int]:
    """Op index by the name of a collective, or of the asynchronous call around it."""
    served: dict[str, int] = {}
    for place in hlo_text.executed(module):
        for instruction in () if place.fused else place.computation.instructions:
            if hlo.kind_of(instruction):
                op = hlo.served_op(module, place, instruction)[0]
                served[instruction.name] = op
                if place.via and place.via[-1].opcode == "async-start":
                    served[place.via[-1].name] = op
    return served


def _scale(maker: _StepMaker) -> float:
    """Estimated seconds of new names, for each scheduled second of names that are gone."""
    if not maker.clocks.of_tpu:
        return 1.0
    rows = [row for rows in maker.text.scheduled.values() for row in rows]
    scheduled_names = {row.instruction.name for row in rows}
    new_s = sum(
        seconds or 0.0
        for name, seconds in maker.clocks.compute_s.items()
        if name not in scheduled_names
    )
    lost_s = sum(
        row.end_s - row.start_s
        for row in rows
        if row.instruction.name not in maker.compiled
        and row.instruction.opcode == "fusion"
        and row.end_s - row.start_s > maker.text.cycle_s
    )
    return new_s / lost_s if lost_s else 1.0


def is_asynchronous(module: hlo_text.Module) -> bool:
    """Does a compiled text have any asynchronous collective?"""
    return any(
        instruction.opcode.endswith("-start") and hlo.kind_of(instruction)
        for computation in module.computations.values()
        for instruction in computation.instructions
    )


def in_order(
    module: hlo_text.Module,
    mesh: Mapping[str, int],
    clocks: Clocks,
    rounds: hlo_text.Rounds = hlo_text.unknown,
) -> tuple[ScheduleStep, ...]:
    """The steps of a compiled text in its own order, in which it runs.

    This is for programs without asynchronous collectives, for which the compiler writes no
    schedule. On TPUs their collectives then have no clock.
    """
    text = ScheduleText(entry=0, scheduled={}, instructions={}, members={}, cycle_s=0.0)
    maker = _maker(text, module, mesh, clocks=clocks, rounds=rounds)

    def steps(computation: hlo_text.Computation) -> tuple[ScheduleStep, ...]:
        return tuple(
            step_part
            for instruction in computation.instructions
            for step_part in fused(instruction) or (step(computation, instruction),)
        )

    def fused(instruction: hlo_text.Instruction) -> tuple[ScheduleStep, ...]:
        """The steps of a fused collective, and of the product in its fusion; else ()."""
        body = module.computations.get(instruction.called("calls"))
        if instruction.opcode != "fusion" or body is None:
            return ()
        wrapped = next(filter(hlo.kind_of, body.instructions), None)
        if wrapped is None:
            return ()
        op = hlo.op_or_inside(module, instruction)
        whole_step = ScheduleStep(SYNC, instruction.name, hlo.kind_of(wrapped), op)
        collective = maker.clocked(whole_step, clocks.collective_s.get(wrapped.name))
        compute_s = clocks.compute_s.get(instruction.name)
        if compute_s is None or not any(member.opcode in _PRODUCTS for member in body.instructions):
            return (collective,)
        product = ScheduleStep(COMPUTE, instruction.name, "fusion", op, time_s=compute_s)
        return overlapped(collective, product)

    def step(computation: hlo_text.Computation, instruction: hlo_text.Instruction) -> ScheduleStep:
        name, kind = instruction.name, hlo.kind_of(instruction)
        op = hlo.op_or_inside(module, instruction)
        body = module.computations.get(instruction.called("body"))
        if body is not None:
            count = hlo_text.loop_rounds(module, computation, instruction, rounds)
            loop = ScheduleStep(LOOP, name, "while", op, rounds=count, body=steps(body))
            condition = module.computations.get(instruction.called("condition"))
            return with_condition(loop, steps(condition)) if condition is not None else loop
        if instruction.opcode in ("conditional", "call"):
            bodies = [
                steps(module.computations[called])
                for called in hlo_text.called_by(instruction)
                if called in module.computations
            ]
            whole_step = ScheduleStep(FREE, name, instruction.opcode, op)
            return equally_weighted(whole_step, bodies) if bodies else whole_step
        if kind:
            whole_step = ScheduleStep(SYNC, name, kind, maker.served.get(name, op))
            return maker.clocked(whole_step, clocks.collective_s.get(name))
        if name in clocks.compute_s:
            step_s = clocks.compute_s[name]
            return ScheduleStep(COMPUTE, name, instruction.opcode, op=op, time_s=step_s)
        return ScheduleStep(FREE, name, instruction.opcode, op)

    return steps(module.computations[module.entry])
