"""From the text of a schedule to steps with clocks; see ``schedule.replay`` for what follows.

The scheduler's own order is kept, its clocks only where no better one is known:

* computing on TPUs: ``estimated_cycles`` of the compiled text, by the instruction's name.  What was
  renamed after scheduling shares the cycles of what is new, in proportion to the times of the
  schedule, so that all of it adds up to the estimated cycles.  (The schedule's own times of
  computing are inflated: a fusion of a few numbers takes 3,600 cycles there.)
* computing on GPUs: XLA's own times, of which those that mean nothing are left out as in
  ``gpu_times``; products among them leave the step without a time.
* collectives on TPUs: our links.  The schedule takes every axis for a closed ring, which the dims
  of small slices are not, has none if nothing is asynchronous, and gives next to no time to sums in
  loops; so its times would favour one plan of a program over another.  They count only where the
  schedule does not tell what is sent, and between whom.  A collective that is fused into a product
  runs beside it.
* collectives on GPUs: XLA's measured tables; outside of them our links.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toast_lab.runtime import gpu_times, hlo, hlo_text, schedule_collectives
from toast_lab.runtime.gpu_fusions import DeviceMemory
from toast_lab.runtime.schedule import COMPUTE, DONE, FREE, LOOP, START, SYNC, ScheduleStep
from toast_lab.runtime.schedule_text import Scheduled, ScheduleText, TextInstruction

_FREE = frozenset(
    """parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id
    optimization-barrier add-dependency copy-start copy-done slice-start slice-done
    async-update send recv send-done recv-done infeed outfeed""".split()
)
#: What XLA hands to libraries: its schedule has a microsecond for each
_HEAVY = ("custom-call", "fft")
_PRODUCTS = ("dot", "convolution")
_INSIDE = ("while", "conditional", "call")
_TALKS = (SYNC, START)
COUNTER_S = 1e-6  #: a condition that takes less does no more than look at a counter


class Clocks(NamedTuple):
    """Seconds that are better than the schedule's, by the name of an instruction."""

    #: None: its time means nothing, and the schedule's no more
    compute_s: Mapping[str, float | None]
    collective_s: Mapping[str, float | None]  #: None: to be priced by our links
    #: our links price all collectives, and what was renamed shares what is left of computing
    of_tpu: bool = False


def tpu_clocks(module: hlo_text.Module, clock_hz: float) -> Clocks:
    """Estimated cycles of a compiled text."""
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
    """XLA's own times of a compiled text, those that mean something."""
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
        elif row.instruction.opcode in _HEAVY:
            compute_s[name] = None  # a step without its convolutions is no step
    return Clocks(compute_s, collective_s)


class _Maker(NamedTuple):
    text: ScheduleText
    module: hlo_text.Module
    mesh: Mapping[str, int]
    rounds: hlo_text.Rounds
    clocks: Clocks
    #: of computing that was renamed: seconds for each second of the schedule
    scale: float
    compiled: Mapping[str, tuple[hlo_text.Computation, hlo_text.Instruction]]  #: by name
    served: Mapping[str, int]  #: op of ours that a collective of the compiled text serves

    def steps(self, computation: int) -> tuple[ScheduleStep, ...]:
        """The steps of one scheduled computation."""
        rows = self.text.scheduled[computation]
        waits = self._waits(rows)
        return tuple(step for row in rows for step in self._steps(row, waits))

    def _waits(self, rows: list[Scheduled]) -> dict[str, float]:
        """By first half: how long until its second half begins."""
        waits: dict[str, float] = {}
        ended: dict[int, float] = {}
        for row in rows:
            ended[id(row.instruction)] = row.end_s
            first = self._first_half(row.instruction)
            if first is not None and id(first) in ended:
                waits[first.name] = max(0.0, row.start_s - ended[id(first)])
        return waits

    def _first_half(self, instruction: TextInstruction) -> TextInstruction | None:
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
        """Kind of a collective, also of one that an asynchronous call or a fusion wraps."""
        stem = instruction.opcode.removesuffix("-start").removesuffix("-done")
        if stem in ("async", "fusion"):
            inside = [member.opcode for member in self._members(instruction)]
            stem = next(filter(hlo.kind_of_opcode, inside), "")
            if stem == "all-reduce" and "dynamic-slice" in inside:
                stem = "reduce-scatter"
        return hlo.kind_of_opcode(stem)

    def _op(self, instruction: TextInstruction) -> int:
        if instruction.op >= 0 or instruction.opcode not in ("fusion", "async-start"):
            return instruction.op
        ops = [member.op for member in self._members(instruction) if member.op >= 0]
        return max(ops, key=lambda op: (ops.count(op), op)) if ops else -1

    def _steps(self, row: Scheduled, waits: Mapping[str, float]) -> tuple[ScheduleStep, ...]:
        step, instruction = self._step(row, waits), row.instruction
        kind = self._kind(instruction) if self.clocks.of_tpu and step.role == COMPUTE else ""
        if not kind or instruction.opcode != "fusion":
            return (step,)
        collective = self._sized(step._replace(kind=kind, own_s=step.time_s or 0.0), instruction)
        return beside(self.clocked(collective, None), step)

    def _step(self, row: Scheduled, waits: Mapping[str, float]) -> ScheduleStep:
        instruction, length_s = row.instruction, row.end_s - row.start_s
        name, opcode = instruction.name, instruction.opcode
        op, kind = self._op(instruction), self._kind(instruction)
        op = self.served.get(name, op) if op < 0 else op
        step = ScheduleStep(FREE, name, kind or opcode, op, memory_bytes=row.memory_bytes)
        if opcode in _FREE:
            return step
        if opcode in _INSIDE:
            return self._inside(step, instruction, length_s)
        first = self._first_half(instruction)
        if first is not None:
            return step._replace(role=DONE, start=first.name) if self._kind(first) else step
        if opcode.endswith("-start"):
            if not kind:
                return step
            span_s = waits.get(name, math.inf)
            step = self._sized(step._replace(role=START), instruction)
            if not self.clocks.of_tpu:
                return self.clocked(step, self.clocks.collective_s.get(name))
            return self.clocked(step._replace(own_s=span_s), None)
        if kind and not (opcode == "fusion" and self._multiplies(instruction)):
            step = step._replace(role=SYNC)
            if not self.clocks.of_tpu:
                return self.clocked(step, self.clocks.collective_s.get(name))
            return self.clocked(self._sized(step, instruction)._replace(own_s=length_s), None)
        if name in self.clocks.compute_s:
            return step._replace(role=COMPUTE, time_s=self.clocks.compute_s[name])
        # One cycle is what the scheduler gives to everything that it has no time for
        idle = length_s <= self.text.cycle_s or name in self.compiled
        return step._replace(role=COMPUTE, time_s=length_s if idle else length_s * self.scale)

    def _multiplies(self, instruction: TextInstruction) -> bool:
        """Is this a product that a collective is fused into?  Then it computes all along."""
        return any(member.opcode in _PRODUCTS for member in self._members(instruction))

    def _sized(self, step: ScheduleStep, instruction: TextInstruction) -> ScheduleStep:
        """A collective with bytes and axes as the scheduler describes it."""
        inside = [
            member
            for member in self._members(instruction)
            if schedule_collectives.is_collective(member.opcode)
        ]
        described = next((one for one in (*inside, instruction) if "shape" in one.block), None)
        if described is None:
            return step
        groups = schedule_collectives.device_groups(described.block, math.prod(self.mesh.values()))
        size = schedule_collectives.local_bytes(described.block)
        if described.opcode == "reduce-scatter":
            # Its shape is what it gives; an all-reduce of which a part is kept has the whole
            size *= max(map(len, groups), default=1)
        return step._replace(bytes=size, **self._where(step.kind, groups))

    def _where(self, kind: str, groups: list[list[int]]) -> dict[str, Any]:
        """Fields of a collective's step: between which devices it runs."""
        if kind != "collective_permute":
            return {"axes": hlo.group_axes(groups, self.mesh)}
        pairs = tuple((source, target) for source, target in groups)
        return {"axes": hlo.permute_axes(groups, self.mesh), "pairs": pairs}

    def clocked(self, step: ScheduleStep, time_s: float | None) -> ScheduleStep:
        """A collective with its time, or with what it takes to price it."""
        if time_s is not None:
            return step._replace(time_s=time_s)
        _, instruction = self.compiled.get(step.name, (None, None))
        if instruction is not None and instruction.opcode in ("async-start", "fusion"):
            wrapped = self.module.computations.get(instruction.called("calls"))
            inside = wrapped.instructions if wrapped is not None else ()
            instruction = next(filter(hlo.kind_of, inside), None)
        if instruction is None or not hlo.kind_of(instruction):
            return step._replace(time_s=None)
        groups = hlo.device_groups(instruction, math.prod(self.mesh.values()))
        size = hlo.local_bytes(instruction, max(map(len, groups), default=1))
        return step._replace(time_s=None, bytes=float(size), **self._where(step.kind, groups))

    def _inside(
        self, step: ScheduleStep, instruction: TextInstruction, length_s: float
    ) -> ScheduleStep:
        """A loop, a call, or the branches of a condition."""
        bodies = [
            self.steps(called) for called in instruction.called_ids if called in self.text.scheduled
        ]
        if not bodies:
            return step._replace(role=COMPUTE, time_s=length_s)
        if instruction.opcode == "conditional":
            return equally_often(step, bodies)
        # Of a loop also its condition is scheduled
        *others, body = sorted(bodies, key=lambda steps: (_length_s(steps), len(steps)))
        rounds = 1.0
        if instruction.opcode == "while":
            computation, loop = self.compiled.get(step.name, (None, None))
            if computation is not None and loop is not None:
                rounds = hlo_text.loop_rounds(self.module, computation, loop, self.rounds)
        return tested(step._replace(role=LOOP, rounds=rounds, body=body), *others)


def _length_s(steps: tuple[ScheduleStep, ...]) -> float:
    return sum((step.time_s or 0.0) + step.rounds * _length_s(step.body) for step in steps)


def tested(loop: ScheduleStep, *conditions: tuple[ScheduleStep, ...]) -> ScheduleStep:
    """A loop with its condition, which runs once more than its body.

    One that asks no other device and only looks at a counter is left out.
    """
    tests = [
        loop._replace(rounds=loop.rounds + 1, body=steps)
        for steps in conditions
        if any(step.role in _TALKS for step in steps) or _length_s(steps) > COUNTER_S
    ]
    return loop._replace(rounds=1.0, body=(*tests, loop)) if tests else loop


def equally_often(step: ScheduleStep, branches: Sequence[tuple[ScheduleStep, ...]]) -> ScheduleStep:
    """A condition: nobody knows which branch runs, and a price counts each as often."""
    share = 1.0 / len(branches)
    parts = (step._replace(role=LOOP, rounds=share, body=branch) for branch in branches)
    return step._replace(role=LOOP, body=tuple(parts))


def beside(collective: ScheduleStep, product: ScheduleStep) -> tuple[ScheduleStep, ...]:
    """A product that a collective is fused into: one runs beside the other, part by part.

    What the product does not hide is waited for behind it.
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
        mesh: that it was compiled for.
        clocks: what is known better than the schedule knows.
        rounds: asked for a loop's number of rounds where the text does not tell.
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
) -> _Maker:
    return _Maker(
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
    """Op of ours by the name of a collective, or of the asynchronous call around it."""
    served: dict[str, int] = {}
    for place in hlo_text.executed(module):
        for instruction in () if place.fused else place.computation.instructions:
            if hlo.kind_of(instruction):
                op = hlo.served(module, place, instruction)[0]
                served[instruction.name] = op
                if place.via and place.via[-1].opcode == "async-start":
                    served[place.via[-1].name] = op
    return served


def _scale(maker: _Maker) -> float:
    """Estimated seconds of what has new names, for each second of what has lost its name."""
    if not maker.clocks.of_tpu:
        return 1.0
    rows = [row for rows in maker.text.scheduled.values() for row in rows]
    known = {row.instruction.name for row in rows}
    new_s = sum(s or 0.0 for name, s in maker.clocks.compute_s.items() if name not in known)
    lost_s = sum(
        row.end_s - row.start_s
        for row in rows
        if row.instruction.name not in maker.compiled
        and row.instruction.opcode == "fusion"
        and row.end_s - row.start_s > maker.text.cycle_s
    )
    return new_s / lost_s if lost_s else 1.0


def is_asynchronous(module: hlo_text.Module) -> bool:
    """Does any collective of a compiled text run beside something else?"""
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
    """The steps of a compiled text in its own order, which is the one that it runs in.

    For programs without asynchronous collectives, of which no schedule is written.  On TPUs there
    is no clock for collectives then.
    """
    text = ScheduleText(entry=0, scheduled={}, instructions={}, members={}, cycle_s=0.0)
    maker = _maker(text, module, mesh, clocks=clocks, rounds=rounds)

    def steps(computation: hlo_text.Computation) -> tuple[ScheduleStep, ...]:
        return tuple(
            each
            for instruction in computation.instructions
            for each in fused(instruction) or (step(computation, instruction),)
        )

    def fused(instruction: hlo_text.Instruction) -> tuple[ScheduleStep, ...]:
        """The steps of a collective that is fused with what it serves."""
        inside = module.computations.get(instruction.called("calls"))
        if instruction.opcode != "fusion" or inside is None:
            return ()
        wrapped = next(filter(hlo.kind_of, inside.instructions), None)
        if wrapped is None:
            return ()
        op = hlo.op_of(instruction)
        op = hlo.op_inside(module, instruction) if op < 0 else op
        whole = ScheduleStep(SYNC, instruction.name, hlo.kind_of(wrapped), op)
        collective = maker.clocked(whole, clocks.collective_s.get(wrapped.name))
        compute_s = clocks.compute_s.get(instruction.name)
        if compute_s is None or not any(one.opcode in _PRODUCTS for one in inside.instructions):
            return (collective,)
        product = ScheduleStep(COMPUTE, instruction.name, "fusion", op, time_s=compute_s)
        return beside(collective, product)

    def step(computation: hlo_text.Computation, instruction: hlo_text.Instruction) -> ScheduleStep:
        name, kind = instruction.name, hlo.kind_of(instruction)
        op = hlo.op_of(instruction)
        if instruction.opcode == "fusion" and instruction.called("calls") in module.computations:
            op = hlo.op_inside(module, instruction) if op < 0 else op
        body = module.computations.get(instruction.called("body"))
        if body is not None:
            count = hlo_text.loop_rounds(module, computation, instruction, rounds)
            loop = ScheduleStep(LOOP, name, "while", op, rounds=count, body=steps(body))
            condition = module.computations.get(instruction.called("condition"))
            return tested(loop, steps(condition)) if condition is not None else loop
        if instruction.opcode in ("conditional", "call"):
            bodies = [
                steps(module.computations[called])
                for called in hlo_text.called_by(instruction)
                if called in module.computations
            ]
            whole = ScheduleStep(FREE, name, instruction.opcode, op)
            return equally_often(whole, bodies) if bodies else whole
        if kind:
            whole = ScheduleStep(SYNC, name, kind, maker.served.get(name, op))
            return maker.clocked(whole, clocks.collective_s.get(name))
        if name in clocks.compute_s:
            step_s = clocks.compute_s[name]
            return ScheduleStep(COMPUTE, name, instruction.opcode, op=op, time_s=step_s)
        return ScheduleStep(FREE, name, instruction.opcode, op)

    return steps(module.computations[module.entry])
