"""Drafts as Shardy itself propagates them.

``WrittenPropagation`` imitates Shardy so that a search can try thousands of drafts. Those that it
ends with go through the passes that JAX runs, with the user's own constraints in place.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from toast_lab import isolate
from toast_lab.cost.problem import Problem
from toast_lab.ir.model import Model
from toast_lab.sharding.plan import Spec
from toast_lab.sharding.sharding import Sharding
from toast_lab.written.annotated import Edits, numbered
from toast_lab.written.drafts import Draft, Drafts, drop_uneven
from toast_lab.written.propagating import ReadAhead, propagate_all


class Shardy:
    """Propagates drafts of one program.

    Args:
        problem: the one that the drafts are of.
        model: the problem's model.
        drafts: of the problem.
        ahead: a child that has read the program, for the first call alone.
    """

    def __init__(
        self, problem: Problem, model: Model, drafts: Drafts, ahead: ReadAhead | None = None
    ) -> None:
        self.problem, self.model, self.drafts, self.ahead = problem, model, drafts, ahead

    @functools.cached_property
    def _text(self) -> str:
        return numbered(self.model.stablehlo, self.problem.analysis, self.problem.mesh)

    def propagated(
        self,
        drafts: Sequence[Draft],
        *,
        time_limit_s: float = 120.0,
        cancel: isolate.Cancel | None = None,
    ) -> list[Sharding | None]:
        """The sharding that each draft leads to; None: Shardy refuses it, or time was over."""
        program, mesh = self.problem.analysis.program, self.problem.mesh
        edits = [self._edits(draft) for draft in drafts]
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            specs = ahead.propagate_all(edits, time_limit_s=time_limit_s, cancel=cancel)
        else:
            specs = propagate_all(
                self._text, program, mesh, edits, time_limit_s=time_limit_s, cancel=cancel
            )
        return [
            None if row is None else self._sharding(draft, row)
            for draft, row in zip(drafts, specs, strict=True)
        ]

    def _edits(self, draft: Draft) -> Edits:
        drafts, program = self.drafts, self.problem.analysis.program
        return Edits(
            arguments=tuple(enumerate(drafts.argument_specs(draft, range(program.n_arguments)))),
            results=tuple(drafts.result_specs(draft).items()),
            constraints=tuple(
                (value, drafts.spec(layout, len(program.dims(value))))
                for value, layout in drafts.constrained(draft).items()
            ),
        )

    def _sharding(self, draft: Draft, specs: Sequence[Spec]) -> Sharding:
        """The sharding of ops and values, from the specs in which ops make them."""
        drafts, mesh, program = self.drafts, self.problem.mesh, self.problem.analysis.program
        sharding = Sharding.whole(program, len(mesh.axes))
        computed = sharding.value_dim
        for value, spec in enumerate(specs):
            if not program.value_is_constant[value]:
                computed[value] = mesh.cut_dims(spec)
        kept = computed.copy()
        for value, layout in (drafts.own_constraints | drafts.constrained(draft)).items():
            kept[value] = layout
        drafts.propagation.splits.split(computed, kept, mesh.array(), sharding.op_factor)
        for number, role in drafts.results.items():
            value = int(program.outputs[number])
            if not program.value_is_constant[value]:
                kept[value] = draft.roles[role]
        computed[:] = kept
        drop_uneven(program, mesh, sharding)
        return sharding
