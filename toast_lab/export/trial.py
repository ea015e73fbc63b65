"""Try sets of constraints; runs in a child process, since passes and compilers may abort.

The goal is a set of units (a unit: the constraints at one place of the source, on all its layers)
under which the program becomes the plan.  Two judges decide that:

* Shardy's propagation: every op reads and leaves its tensors in the shardings that it has in the
  fully annotated program.  The compiler then receives the same program, except for redundant
  constraints;
* the compiler itself, on virtual CPU devices: the same collectives, no more work and no more
  memory.  It is the more lenient judge, since partitioners often insert a reshard by themselves
  just where the plan has it.

The search starts from the places where the plan changes a sharding.  Unless the compiler agrees
with these already, it adds the units that propagation gets wrong, in program order, until the judge
agrees.  Then it removes units, in halves and quarters down to single ones, as long as the judge
still agrees.  So no single unit of the result is superfluous; that no other set is smaller is not
proven.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toast_lab import fork_server, isolate
from toast_lab.lowering import sparse
from toast_lab.lowering.annotate import annotate
from toast_lab.lowering.propagated import TensorPlace, propagated
from toast_lab.prepare import load_present
from toast_lab.sharding.plan import ShardingPlan, Spec


def before_fork() -> None:
    """Done once for all children that are forked to search and to try (``fork_server``)."""
    fork_server.import_jax()
    load_present()


# XLA counts slightly more or fewer element-wise operations where it fuses differently
FLOPS_TOLERANCE = 1.005
PEAK_TOLERANCE = 1.02
#: Flags of XLA: only what it makes of the program is looked at, and machine code takes longest
NO_CODE: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
}
# Of the time, where a compiler judges as well
PROPAGATION_SHARE = 0.4


#: Numbers of units that are tried together.
UnitSet = frozenset[int]


class Unit(NamedTuple):
    """Constraints that come and go together."""

    results: Mapping[int, tuple[Spec, ...]]
    operands: Mapping[int, Spec]
    reshards: bool  #: the plan changes a sharding here
    #: also pins ops that read the value otherwise, since the source cannot tell them apart
    blunt: bool
    cost: float  #: the least welcome go first: backward passes, then operands


class Signature(NamedTuple):
    """The compiled program of one device, as far as it is compared."""

    #: (kind, axes, bytes) -> how often
    collectives: Mapping[tuple[str, tuple[str, ...] | None, int], float]
    flops: float
    peak_bytes: int


class TrialProgress(NamedTuple):
    """One step of the search."""

    stage: str
    units: int  #: in the best set so far
    tried: int


@dataclasses.dataclass(frozen=True, eq=False)
class TrialRequest:
    """Everything that the child needs to know."""

    text: str
    plan: ShardingPlan
    units: tuple[Unit, ...]
    compiled: bool
    seconds: float


class TrialResult(NamedTuple):
    """The smallest set found."""

    chosen: tuple[int, ...]
    #: (op, operand or result, is it a result) that propagation gets wrong
    wrong: tuple[TensorPlace, ...]
    target: Signature | None  #: of the fully annotated program
    reached: Signature | None
    tried: int
    seconds: float
    complete: bool  #: False: time ran out before every unit was tried

    @property
    def compiled(self) -> tuple[Signature, Signature] | None:
        """Signatures of the target and of the set; None if the compiler was not asked."""
        return None if self.target is None or self.reached is None else (self.target, self.reached)


def search(request: TrialRequest) -> TrialResult:
    """Find a small set of units; the entry point of the child."""
    return _Trials(request).run()


class _OutOfTime(Exception):
    pass


class _Trials:
    def __init__(self, request: TrialRequest) -> None:
        self.request, self.plan, self.units = request, request.plan, request.units
        self.began, self.tried, self.complete = time.monotonic(), 0, True
        self.deadline = self.began + request.seconds
        self.best: UnitSet = frozenset()
        self.signatures: dict[UnitSet, Signature] = {}
        self.mistakes: dict[UnitSet, set[TensorPlace]] = {}
        self.full = annotate(request.text, self.plan, numbered=True)
        self.target = propagated(self.full)
        self.goal: Signature | None = None

    def run(self) -> TrialResult:
        try:
            self.steps()
        except _OutOfTime:
            self.complete = False
        self.deadline = float("inf")  # the result is judged even when time is up
        reached = self.signature(self.best) if self.goal else None
        wrong = tuple(sorted(self.wrong(self.best)))
        spent = time.monotonic() - self.began
        return TrialResult(
            chosen=tuple(sorted(self.best)),
            wrong=wrong,
            target=self.goal,
            reached=reached,
            tried=self.tried,
            seconds=spent,
            complete=self.complete,
        )

    def steps(self) -> None:
        nothing: UnitSet = frozenset()
        if self.request.compiled:
            self.goal = _compiled(self.full, self.plan)
            if not self.distance(nothing):
                return
        elif not self.wrong(nothing):
            return
        everything = frozenset(range(len(self.units)))
        sharp = frozenset(i for i in everything if not self.units[i].blunt)
        self.best = sharp
        allowed_sets = dict.fromkeys((sharp, everything))
        if self.goal is None:
            self.best = min(map(self.propagated, allowed_sets), key=self.gap)
            return
        # A compiler that makes the plan of its changes of sharding alone makes the rest superfluous
        changes = self.changes(sharp)
        if not self.distance(changes):
            self.best = changes
        else:
            self.propagate(allowed_sets)
        self.best = self.without(self.best, self.no_worse)

    def changes(self, allowed: UnitSet) -> UnitSet:
        """Those of some units where the plan changes a sharding."""
        return frozenset(i for i in allowed if self.units[i].reshards)

    def propagate(self, allowed_sets: Iterable[UnitSet]) -> None:
        """Make that the best set to which propagation leads from any, up to one that agrees."""
        for allowed in allowed_sets:
            self.deadline = time.monotonic() + PROPAGATION_SHARE / 2 * self.request.seconds
            try:
                fewer = self.propagated(allowed)
            except _OutOfTime:
                self.complete, fewer = False, allowed
            self.deadline = self.began + self.request.seconds
            self.best = min(
                (self.best, fewer, allowed), key=lambda chosen: (self.distance(chosen), len(chosen))
            )
            if not self.distance(self.best):
                break

    def propagated(self, allowed: UnitSet) -> UnitSet:
        """A few of the allowed units with which propagation agrees as far as with all of them."""
        enough = self.enough(allowed)
        most = self.gap(enough)
        return self.without(enough, lambda chosen: self.gap(chosen) <= most, keep=False)

    def enough(self, allowed: UnitSet) -> UnitSet:
        """Units with which propagation agrees as far as it can."""
        chosen = self.changes(allowed)
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
        self, chosen: UnitSet, agrees: Callable[[UnitSet], bool], *, keep: bool = True
    ) -> UnitSet:
        """``chosen`` without superfluous units; with ``keep``, each step becomes the best set."""
        size = max(1, len(chosen) // 2)
        while chosen:
            order = sorted(chosen, key=lambda i: (-self.units[i].cost, i))
            went = False
            for start in range(0, len(order), size):
                dropped = chosen.intersection(order[start : start + size])
                if dropped and agrees(chosen - dropped):
                    chosen, went = chosen - dropped, True
                    self.best = chosen if keep else self.best
                self.say("taking away", chosen)
            if size == 1 and not went:
                break
            size = max(1, size // 2)
        return chosen

    # -- judges -----------------------------------------------------------------------------------
    def gap(self, chosen: UnitSet) -> int:
        """Number of tensors that propagation gets wrong, counted per operand and result."""
        return len(self.wrong(chosen))

    def wrong(self, chosen: UnitSet) -> set[TensorPlace]:
        """(op, number of the operand or result, is it a result) of those tensors."""
        if chosen not in self.mistakes:
            self.tried += 1
            shardings = propagated(self.text(chosen, numbered=True))
            program, mistakes = self.plan.program, set()
            for (op, i, result), spec in shardings.items():
                if spec != self.target.get((op, i, result), spec):
                    values = program.results(op) if result else program.operands(op)
                    if i < len(values) and not program.value_is_constant[values[i]]:
                        mistakes.add((op, i, result))
            self.mistakes[chosen] = mistakes
        return self.mistakes[chosen]

    def no_worse(self, chosen: UnitSet) -> bool:
        """Is the compiled program of ``chosen`` no worse than that of the best set?"""
        assert self.goal is not None
        if self.distance(chosen) > self.distance(self.best):
            return False
        now, before, goal = self.signature(chosen), self.signature(self.best), self.goal
        most_flops = max(before.flops, FLOPS_TOLERANCE * goal.flops)
        most_bytes = max(before.peak_bytes, PEAK_TOLERANCE * goal.peak_bytes)
        return now.flops <= most_flops and now.peak_bytes <= most_bytes

    def distance(self, chosen: UnitSet) -> float:
        """Bytes of collectives that only one program has, plus one if work or memory is wasted."""
        assert self.goal is not None
        now, goal = self.signature(chosen), self.goal
        wasted = (
            now.flops > FLOPS_TOLERANCE * goal.flops
            or now.peak_bytes > PEAK_TOLERANCE * goal.peak_bytes
        )
        return difference_bytes(now, goal) + wasted

    def signature(self, chosen: UnitSet) -> Signature:
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

    def say(self, stage: str, chosen: UnitSet) -> None:
        self.check_time()
        isolate.report(TrialProgress(stage, len(chosen), self.tried))


def difference_bytes(first: Signature, second: Signature) -> float:
    """Bytes of the collectives that only one of the two signatures has."""
    return sum(
        abs(first.collectives.get(key, 0.0) - second.collectives.get(key, 0.0)) * key[2]
        for key in {*first.collectives, *second.collectives}
    )


def _compiled(text: str, plan: ShardingPlan) -> Signature:
    """Compile for as many virtual devices as the mesh has."""
    import jax

    from toast_lab.runtime import _jax_private, hlo

    executable = _jax_private.compile_module(text, jax.devices()[: plan.mesh.n_devices], NO_CODE)
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
