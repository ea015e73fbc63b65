"""Tries out sets of constraints; runs in a child process, since passes and compilers may abort.

What is looked for: a set of units (constraints at one place of the source, on all its layers) under
which the program becomes what the plan says.  Two judges say so:

* Shardy's propagation: every op reads and leaves its tensors in the shardings that it has in the
  fully annotated program.  Then the compiler is given the same program, constraints that say
  nothing new aside;
* the compiler itself, on virtual CPU devices: the same collectives, no more work and no more
  memory.  It is the more lenient one, since partitioners insert many a reshard by themselves just
  where the plan has it.

Search: start from the places where the plan changes a sharding, add what propagation gets wrong, in
program order, until it agrees; then take away what is not needed, in halves and quarters down to
single units, as long as the judge agrees.  So no unit of the result can go alone; that no other,
smaller set exists is not proven.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toast_lab import _jaxlib, isolate
from toast_lab.ir import canonical
from toast_lab.lowering import sparse
from toast_lab.lowering.annotate import OP_NUMBER, annotate
from toast_lab.sharding.plan import ShardingPlan, Spec

# XLA counts a few element-wise operations more or less where it fuses otherwise
FLOPS_TOLERANCE = 1.005
PEAK_TOLERANCE = 1.02
PROPAGATION_SHARE = 0.4  # of the time, where a compiler judges as well


class Unit(NamedTuple):
    """Constraints that come and go together."""

    results: Mapping[int, tuple[Spec, ...]]
    operands: Mapping[int, Spec]
    reshards: bool  #: the plan changes a sharding here
    #: pins also ops that read the value otherwise, since the source cannot tell them apart
    blunt: bool
    cost: float  #: those that a user likes least go first: backward passes, then operands


class Signature(NamedTuple):
    """What the compiler made of a program, for one device."""

    #: (kind, axes, bytes) -> how often
    collectives: Mapping[tuple[str, tuple[str, ...] | None, int], float]
    flops: float
    peak_bytes: int


class Progress(NamedTuple):
    """One step of the search."""

    stage: str
    units: int  #: in the best set so far
    tried: int


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """Everything that the child needs to know."""

    text: str
    plan: ShardingPlan
    units: tuple[Unit, ...]
    compiled: bool
    seconds: float


class Found(NamedTuple):
    """The smallest set found."""

    chosen: tuple[int, ...]
    #: (op, operand or result, is it a result) that propagation gets wrong
    wrong: tuple[tuple[int, int, bool], ...]
    target: Signature | None  #: of the fully annotated program
    reached: Signature | None
    tried: int
    seconds: float
    complete: bool  #: False: time ran out before every unit was tried

    @property
    def compiled(self) -> tuple[Signature, Signature] | None:
        """Target and what was reached; None if the compiler was not asked."""
        return None if self.target is None or self.reached is None else (self.target, self.reached)


def search(request: Request) -> Found:
    """Find a small set of units; the entry point of the child."""
    return _Trials(request).run()


class _OutOfTime(Exception):
    pass


class _Trials:
    def __init__(self, request: Request) -> None:
        self.request, self.plan, self.units = request, request.plan, request.units
        self.began, self.tried, self.complete = time.monotonic(), 0, True
        self.deadline = self.began + request.seconds
        self.best: frozenset[int] = frozenset()
        self.signatures: dict[frozenset[int], Signature] = {}
        self.mistakes: dict[frozenset[int], set[tuple[int, int, bool]]] = {}
        self.full = annotate(request.text, self.plan, numbered=True)
        self.target = _propagated(self.full)
        self.goal: Signature | None = None

    def run(self) -> Found:
        try:
            self.steps()
        except _OutOfTime:
            self.complete = False
        self.deadline = float("inf")  # what is given is judged, whatever time it is
        reached = self.signature(self.best) if self.goal else None
        wrong = tuple(sorted(self.wrong(self.best)))
        spent = time.monotonic() - self.began
        return Found(
            tuple(sorted(self.best)), wrong, self.goal, reached, self.tried, spent, self.complete
        )

    def steps(self) -> None:
        nothing: frozenset[int] = frozenset()
        if self.request.compiled:
            self.goal = _compiled(self.full, self.plan)
            if not self.distance(nothing):
                return
        elif not self.wrong(nothing):
            return
        everything = frozenset(range(len(self.units)))
        sharp = frozenset(i for i in everything if not self.units[i].blunt)
        self.best = sharp
        if self.goal is None:
            self.best = min(
                (self.propagated(some) for some in dict.fromkeys((sharp, everything))), key=self.gap
            )
            return
        for some in dict.fromkeys((sharp, everything)):
            self.deadline = time.monotonic() + PROPAGATION_SHARE / 2 * self.request.seconds
            try:
                fewer = self.propagated(some)
            except _OutOfTime:
                self.complete, fewer = False, some
            self.deadline = self.began + self.request.seconds
            self.best = min(
                (self.best, fewer, some), key=lambda chosen: (self.distance(chosen), len(chosen))
            )
            if not self.distance(self.best):
                break
        self.best = self.without(self.best, self.no_worse)

    def propagated(self, allowed: frozenset[int]) -> frozenset[int]:
        """A few of the allowed units that do as well as all of them.

        With them, propagation agrees as far as it does with every allowed unit.
        """
        enough = self.enough(allowed)
        most = self.gap(enough)
        return self.without(enough, lambda chosen: self.gap(chosen) <= most, keep=False)

    def enough(self, allowed: frozenset[int]) -> frozenset[int]:
        """Units with which propagation agrees as far as it can."""
        chosen = frozenset(i for i in allowed if self.units[i].reshards)
        at_result: dict[int, int] = {}
        at_operand: dict[int, int] = {}
        for i in sorted(allowed):
            at_result.update(dict.fromkeys(self.units[i].results, i))
            at_operand.update(dict.fromkeys(self.units[i].operands, i))
        program = self.plan.program
        while True:
            self.check_time()
            more = None
            for op, i, result in sorted(self.wrong(chosen)):
                number = (program.result_ptr if result else program.use_ptr)[op] + i
                more = (at_result if result else at_operand).get(int(number))
                if more is not None and more not in chosen:
                    break
                more = None
            if more is None:
                return chosen
            chosen |= {more}
            self.say("adding", chosen)

    def without(
        self, chosen: frozenset[int], agrees: Callable[[frozenset[int]], bool], *, keep: bool = True
    ) -> frozenset[int]:
        """What is left of ``chosen`` when everything is gone that can go.

        With ``keep``, each step is the best so far.
        """
        size = max(1, len(chosen) // 2)
        while chosen:
            order = sorted(chosen, key=lambda i: (-self.units[i].cost, i))
            went = False
            for start in range(0, len(order), size):
                part = frozenset(order[start : start + size]) & chosen
                if part and agrees(chosen - part):
                    chosen, went = chosen - part, True
                    self.best = chosen if keep else self.best
                self.say("taking away", chosen)
            if size == 1 and not went:
                break
            size = max(1, size // 2)
        return chosen

    # -- judges -----------------------------------------------------------------------------------
    def gap(self, chosen: frozenset[int]) -> int:
        """How many tensors propagation gets wrong, counted where they are read or left."""
        return len(self.wrong(chosen))

    def wrong(self, chosen: frozenset[int]) -> set[tuple[int, int, bool]]:
        """(op, operand or result, is it a result) of those tensors."""
        if chosen not in self.mistakes:
            self.tried += 1
            axes_at = _propagated(self.text(chosen, numbered=True))
            program, wrong = self.plan.program, set()
            for (op, position, result), spec in axes_at.items():
                if spec != self.target.get((op, position, result), spec):
                    value = int(program.result_ptr[op]) + position if result else -1
                    if not result and program.use_ptr[op] + position < program.use_ptr[op + 1]:
                        value = int(program.use_value[program.use_ptr[op] + position])
                    if value >= 0 and not program.value_is_constant[value]:
                        wrong.add((op, position, result))
            self.mistakes[chosen] = wrong
        return self.mistakes[chosen]

    def no_worse(self, chosen: frozenset[int]) -> bool:
        """Does the compiler make no worse of ``chosen`` than of the best set?"""
        assert self.goal is not None
        if self.distance(chosen) > self.distance(self.best):
            return False
        now, before, goal = self.signature(chosen), self.signature(self.best), self.goal
        return now.flops <= max(
            before.flops, FLOPS_TOLERANCE * goal.flops
        ) and now.peak_bytes <= max(before.peak_bytes, PEAK_TOLERANCE * goal.peak_bytes)

    def distance(self, chosen: frozenset[int]) -> float:
        """Bytes of collectives that are in one program and not in the other.

        What is computed or held in vain counts as well.
        """
        assert self.goal is not None
        now, goal = self.signature(chosen), self.goal
        moved = difference_bytes(now, goal)
        in_vain = (
            now.flops > FLOPS_TOLERANCE * goal.flops
            or now.peak_bytes > PEAK_TOLERANCE * goal.peak_bytes
        )
        return moved + in_vain

    def signature(self, chosen: frozenset[int]) -> Signature:
        if chosen not in self.signatures:
            self.check_time()
            self.tried += 1
            self.signatures[chosen] = _compiled(self.text(chosen), self.plan)
        return self.signatures[chosen]

    def text(self, chosen: Iterable[int], *, numbered: bool = False) -> str:
        results: dict[int, tuple[Spec, ...]] = {}
        operands: dict[int, Spec] = {}
        for i in chosen:
            results.update(self.units[i].results)
            operands.update(self.units[i].operands)
        return sparse.constrain(self.request.text, self.plan, results, operands, numbered=numbered)

    def check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise _OutOfTime

    def say(self, stage: str, chosen: frozenset[int]) -> None:
        self.check_time()
        isolate.report(Progress(stage, len(chosen), self.tried))


def difference_bytes(a: Signature, b: Signature) -> float:
    """Bytes that collectives of one signature handle and those of the other do not, both ways."""
    keys = {*a.collectives, *b.collectives}
    return sum(abs(a.collectives.get(k, 0.0) - b.collectives.get(k, 0.0)) * k[2] for k in keys)


def _propagated(text: str) -> dict[tuple[int, int, bool], Any]:
    """Axes per dim of every operand and result of every numbered op, as propagation leaves them."""
    context = _jaxlib.make_context()
    module = _jaxlib.parse_module(context, text)
    _jaxlib.propagate(module)
    main = canonical.main_function(module)
    axes_at = {
        (op, position, True): spec
        for (op, position), spec in _jaxlib.numbered_axes(main, OP_NUMBER).items()
    }
    axes_at |= {
        (op, position, False): spec
        for (op, position), spec in _jaxlib.numbered_reads(main, OP_NUMBER).items()
    }
    return axes_at


def _compiled(text: str, plan: ShardingPlan) -> Signature:
    """Compile for as many virtual devices as the mesh has."""
    import jax

    from toast_lab.runtime import _jax_private, hlo

    executable = _jax_private.compile_module(text, jax.devices()[: plan.mesh.n_devices])
    sizes = dict(zip(plan.mesh.axes, plan.mesh.sizes, strict=True))
    return signature_of(executable, hlo.collectives(_jax_private.optimised_hlo(executable), sizes))


def signature_of(executable: Any, collectives: Sequence[Any]) -> Signature:
    """The signature of a compiled program."""
    from toast_lab.runtime import _jax_private

    counts: collections.Counter[Any] = collections.Counter()
    for collective in collectives:
        for part in collective.parts or (collective,):
            counts[collective.kind, collective.axes, int(part.bytes)] += collective.times
    costs = executable.cost_analysis()
    costs = costs[0] if isinstance(costs, list) else costs
    return Signature(
        counts, float(costs.get("flops", 0.0)), _jax_private.memory_stats(executable)["peak"]
    )
