"""Edited annotations, propagated and priced. Start reading at ``Trials``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.cost.problem import Cost, Problem
from toast_lab.sharding.plan import Spec
from toast_lab.written.annotated import NO_EDITS, Edits, numbered
from toast_lab.written.meaning import Meaning, plan_of_values
from toast_lab.written.propagating import ValueSpecs, propagate_all


class Outcome(NamedTuple):
    """What some edits lead to."""

    edits: Edits
    specs: ValueSpecs  #: of all values
    meaning: Meaning
    cost: Cost
    padding_s: float  #: computing on padding, which ``cost`` leaves out

    @property
    def time_s(self) -> float:
        """Time of a step in seconds, padding included."""
        return self.cost.time_s + self.padding_s

    @property
    def score(self) -> float:
        """C(s), padding included."""
        share = self.time_s / self.cost.time_s if self.cost.time_s else 1.0
        return self.cost.relative_time * share + self.cost.memory_penalty


class Trials:
    """Propagates and prices edits of one program, each once."""

    def __init__(self, problem: Problem, stablehlo: str) -> None:
        self.problem = problem
        self.numbered_text = numbered(stablehlo, problem.analysis, problem.mesh)
        self.outcomes: dict[Edits, Outcome | None] = {}
        self._by_sharding: dict[tuple[int, int], tuple[Cost, float]] = {}

    def run(
        self,
        edits: Iterable[Edits],
        *,
        time_limit_s: float,
        on_event: Callable[[Any], None] | None = None,
        cancel: isolate.Cancel | None = None,
    ) -> None:
        """Try all of ``edits`` that were not tried yet, in order, until time is up."""
        new = [edit for edit in dict.fromkeys(edits) if edit not in self.outcomes]
        problem = self.problem
        tried = propagate_all(
            self.numbered_text,
            problem.analysis.program,
            problem.mesh,
            new,
            time_limit_s=time_limit_s,
            on_event=on_event,
            cancel=cancel,
        )
        for edit, specs in zip(new, tried, strict=True):
            self.outcomes[edit] = None if specs is None else self._outcome(edit, specs)

    def as_written(self, **options: Any) -> Outcome:
        """What the annotations lead to as they are."""
        self.run([NO_EDITS], **options)
        outcome = self.outcomes[NO_EDITS]
        assert outcome is not None
        return outcome

    def _returned(self, edits: Edits) -> dict[int, Spec]:
        """The specs in which results are returned, where the user or an edit says so."""
        program = self.problem.analysis.program
        closed = {
            row.value: row.spec
            for row in program.annotations
            if row.kind == "result" and not row.trouble and not any("*" in d for d in row.spec)
        }
        for number, spec in edits.results:
            value = int(program.outputs[number])
            closed.pop(value, None)
            if spec is not None:
                closed[value] = spec
        return closed

    def _outcome(self, edits: Edits, specs: ValueSpecs) -> Outcome:
        meaning = plan_of_values(
            self.problem.analysis, self.problem.mesh, specs, self._returned(edits)
        )
        key = (meaning.plan.key, len(meaning.uneven))
        if key not in self._by_sharding:
            cost = self.problem.pricer().full(meaning.plan)
            self._by_sharding[key] = cost, padding_s(meaning, cost)
        cost, padded_s = self._by_sharding[key]
        return Outcome(edits, specs, meaning, cost=cost, padding_s=padded_s)


def padding_s(meaning: Meaning, cost: Cost) -> float:
    """Seconds in which devices compute on the padding of uneven dims."""
    program, mesh = meaning.plan.program, meaning.plan.mesh
    if not meaning.uneven:
        return 0.0
    total_s = 0.0
    for row in cost.ops:
        larger = 1.0
        for factor in {*meaning.plan.op_factor[row.op].tolist()} - {-1}:
            axes = [
                axis
                for axis, name in enumerate(mesh.axes)
                if meaning.plan.op_factor[row.op, axis] == factor
            ]
            ways = mesh.ways(mesh.axes[axis] for axis in axes)
            size = int(program.factor_size[factor])
            larger *= -(-size // ways) * ways / size
        total_s += row.time_s * (larger - 1.0)
    return total_s
