"""Try sets of constraints; runs in a child process, since passes and compilers may abort.

The goal is a small set of units with which the program becomes the plan. A unit is the constraints
at one place of the source, on all its layers. Two judges can decide whether a set is enough:

* Shardy's propagation: every op reads and leaves its tensors in the shardings that they have in the
  fully annotated program. The compiler then receives the same program, except for redundant
  constraints;
* the compiler itself, on virtual CPU devices: the same collectives, no more work and no more
  memory. It is the more lenient judge, since partitioners often insert a reshard by themselves
  where the plan has one.

The search starts from the places where the plan changes a sharding. Unless the compiler agrees
with these already, it adds the units that propagation gets wrong, in program order, until the judge
agrees. Then it removes units, in halves and quarters down to single ones, as long as the judge
still agrees. So no single unit of the result is superfluous, but a smaller set may exist.
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
    """Load what all children that are forked to search need (see ``fork_server``)."""
    fork_server.import_jax()
    load_present()


# XLA counts slightly more or fewer element-wise operations where it fuses differently
FLOPS_TOLERANCE = 1.005
PEAK_TOLERANCE = 1.02
#: XLA flags that shorten code generation, the slowest part; only the optimised HLO is read
NO_CODE: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
}
# Share of the time limit for propagation, if a compiler judges as well
PROPAGATION_SHARE = 0.4


#: Numbers of units that are tried together.
UnitSet = frozenset[int]


class Unit(NamedTuple):
    """Constraints that are added and removed together."""

    results: Mapping[int, tuple[Spec, ...]]  #: value -> specs that it takes in turn
    operands: Mapping[int, Spec]  #: use -> spec in which it reads its value
    reshards: bool  #: the plan changes a sharding here
    #: also pins ops that read the value in another sharding, since they have the same source place
    pins_other_readers: bool
    cost: float  #: units of higher cost are removed first: backward passes, then operands


class Signature(NamedTuple):
    """The properties of one device's compiled program that are compared."""

    #: (kind, axes, bytes) -> number of such collectives
    collectives: Mapping[tuple[str, tuple[str, ...] | None, int], float]
    flops: float
    peak_bytes: int


class TrialProgress(NamedTuple):
    """One step of the search."""

    stage: str
    units: int  #: in the current set
    tried: int  #: sets judged so far


@dataclasses.dataclass(frozen=True, eq=False)
class TrialRequest:
    """The input of the child process."""

    text: str
    plan: ShardingPlan
    units: tuple[Unit, ...]
    compiled: bool
    seconds: float


class TrialResult(NamedTuple):
    """The smallest set found."""

    chosen: tuple[int, ...]  #: numbers of units
    #: (op, operand or result number, is it a result) of tensors that propagation gets wrong
    wrong: tuple[TensorPlace, ...]
    target: Signature | None  #: of the fully annotated program
    reached: Signature | None  #: of the program with the chosen units
    tried: int  #: sets judged
    seconds: float  #: spent
    complete: bool  #: False: time ran out before every unit was tried

    @property
    def compiled(self) -> tuple[Signature, Signature] | None:
        """Signatures of the target and of the chosen set; None if nothing was compiled."""
        return None if self.target is None or self.reached is None else (self.target, self.reached)


def search(request: TrialRequest) -> TrialResult:
    """Find a small set of units; the entry point of the child process."""
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
        seconds = time.monotonic() - self.began
        return TrialResult(
            chosen=tuple(sorted(self.best)),
            wrong=wrong,
            target=self.goal,
            reached=reached,
            tried=self.tried,
            seconds=seconds,
            complete=self.complete,
        )

    def steps(self) -> None:
        no_units: UnitSet = frozenset()
        if self.request.compiled:
            self.goal = _compiled(self.full, self.plan)
            if not self.distance(no_units):
                return
        elif not self.wrong(no_units):
            return
        all_units = frozenset(range(len(self.units)))
        precise_units = frozenset(i for i in all_units if not self.units[i].pins_other_readers)
        self.best = precise_units
        allowed_sets = dict.fromkeys((precise_units, all_units))
        if self.goal is None:
            self.best = min(map(self.propagated, allowed_sets), key=self.gap)
            return
        # If the compiler reaches the plan from the changes of sharding alone, they are enough
        changes = self.changes(precise_units)
        if not self.distance(changes):
            self.best = changes
        else:
            self.propagate(allowed_sets)
        self.best = self.without(self.best, self.no_worse)

    def changes(self, allowed: UnitSet) -> UnitSet:
        """The units in ``allowed`` at which the plan changes a sharding."""
        return frozenset(i for i in allowed if self.units[i].reshards)

    def propagate(self, allowed_sets: Iterable[UnitSet]) -> None:
        """Improve the best set by propagation in each allowed set until the compiler agrees."""
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
        """A small subset of ``allowed`` that propagation judges as good as ``enough(allowed)``."""
        enough = self.enough(allowed)
        largest_gap = self.gap(enough)
        return self.without(enough, lambda chosen: self.gap(chosen) <= largest_gap, keep=False)

    def enough(self, allowed: UnitSet) -> UnitSet:
        """The changes in ``allowed``, and all units that correct what propagation gets wrong."""
        chosen = self.changes(allowed)
        unit_at_result: dict[int, int] = {}
        unit_at_operand: dict[int, int] = {}
        for i in sorted(allowed):
            unit_at_result.update(dict.fromkeys(self.units[i].results, i))
            unit_at_operand.update(dict.fromkeys(self.units[i].operands, i))
        program = self.plan.program
        while True:
            self.check_time()
            missing_unit = None
            for op, i, result in sorted(self.wrong(chosen)):
                tensor = (program.result_ptr if result else program.use_ptr)[op] + i
                missing_unit = (unit_at_result if result else unit_at_operand).get(int(tensor))
                if missing_unit is not None and missing_unit not in chosen:
                    break
                missing_unit = None
            if missing_unit is None:
                return chosen
            chosen |= {missing_unit}
            self.say("adding", chosen)

    def without(
        self, chosen: UnitSet, agrees: Callable[[UnitSet], bool], *, keep: bool = True
    ) -> UnitSet:
        """``chosen`` without superfluous units; with ``keep``, each step becomes the best set."""
        size = max(1, len(chosen) // 2)
        while chosen:
            order = sorted(chosen, key=lambda i: (-self.units[i].cost, i))
            has_dropped = False
            for start in range(0, len(order), size):
                dropped = chosen.intersection(order[start : start + size])
                if dropped and agrees(chosen - dropped):
                    chosen, has_dropped = chosen - dropped, True
                    self.best = chosen if keep else self.best
                self.say("taking away", chosen)
            if size == 1 and not has_dropped:
                break
            size = max(1, size // 2)
        return chosen

    # -- judges -----------------------------------------------------------------------------------
    def gap(self, chosen: UnitSet) -> int:
        """Number of tensors that propagation gets wrong, counted per operand and result."""
        return len(self.wrong(chosen))

    def wrong(self, chosen: UnitSet) -> set[TensorPlace]:
        """(op, operand or result number, is it a result) of tensors that propagation gets wrong."""
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
        chosen_signature, best_signature, goal = (
            self.signature(chosen),
            self.signature(self.best),
            self.goal,
        )
        most_flops = max(best_signature.flops, FLOPS_TOLERANCE * goal.flops)
        most_bytes = max(best_signature.peak_bytes, PEAK_TOLERANCE * goal.peak_bytes)
        return chosen_signature.flops <= most_flops and chosen_signature.peak_bytes <= most_bytes

    def distance(self, chosen: UnitSet) -> float:
        """Bytes of collectives that only one program has, plus 1 if work or memory is wasted."""
        assert self.goal is not None
        reached, goal = self.signature(chosen), self.goal
        wasted = (
            reached.flops > FLOPS_TOLERANCE * goal.flops
            or reached.peak_bytes > PEAK_TOLERANCE * goal.peak_bytes
        )
        return difference_bytes(reached, goal) + wasted

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
    """Compile for as many virtual CPU devices as the mesh has."""
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
    # XLA counts -1 where it does not know, as for approximate top-k
    flops = max(0.0, float(costs.get("flops", 0.0)))
    return Signature(counts, flops, _jax_private.memory_stats(executable)["peak"])
