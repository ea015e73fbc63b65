"""Drafts as Shardy itself propagates them.

``WrittenPropagation`` imitates Shardy so that a search can try thousands of drafts. Those that it
ends with go through the passes that JAX runs, with the user's own constraints in place.
"""

from __future__ import annotations

from collections.abc import Sequence

from toast_lab import isolate
from toast_lab.cost.problem import Problem
from toast_lab.ir.model import Model
from toast_lab.sharding.plan import Spec
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.split_ops import OpSplits
from toast_lab.written.annotated import Edits, numbered
from toast_lab.written.drafts import Draft, Drafts, Layout, drop_uneven
from toast_lab.written.propagating import propagate_all


class Shardy:
    """Propagates drafts of one program, each once."""

    def __init__(self, problem: Problem, model: Model, drafts: Drafts) -> None:
        self.problem, self.drafts = problem, drafts
        self.text = numbered(model.stablehlo, problem.analysis, problem.mesh)

    def propagated(
        self,
        drafts: Sequence[Draft],
        *,
        time_limit_s: float = 120.0,
        cancel: isolate.Cancel | None = None,
    ) -> list[Sharding | None]:
        """The sharding that each draft leads to; None: Shardy refuses it, or time was over."""
        program, mesh = self.problem.analysis.program, self.problem.mesh
        specs = propagate_all(
            self.text,
            program,
            mesh,
            [self._edits(draft) for draft in drafts],
            time_limit_s=time_limit_s,
            cancel=cancel,
        )
        return [
            None if row is None else self._sharding(draft, row)
            for draft, row in zip(drafts, specs, strict=True)
        ]

    def _edits(self, draft: Draft) -> Edits:
        drafts, program = self.drafts, self.problem.analysis.program

        def spec(value: int, layout: Layout) -> Spec:
            return drafts.spec(layout, len(program.dims(value)))

        return Edits(
            arguments=tuple(
                (argument, spec(argument, draft.roles[role]))
                for argument, role in enumerate(drafts.role_of.tolist())
            ),
            results=tuple(
                (number, spec(int(program.outputs[number]), draft.roles[role]))
                for number, role in drafts.results.items()
            ),
            constraints=tuple(
                (value, spec(value, layout)) for value, layout in drafts.constrained(draft).items()
            ),
        )

    def _sharding(self, draft: Draft, specs: Sequence[Spec]) -> Sharding:
        """The sharding of ops and values, from the specs in which ops make them."""
        problem, drafts = self.problem, self.drafts
        program, axes = problem.analysis.program, problem.mesh.axes
        sharding = Sharding.whole(program, len(axes))
        computed = sharding.value_dim
        for value, spec in enumerate(specs):
            if not program.value_is_constant[value]:
                for dim, dim_axes in enumerate(spec):
                    for axis in dim_axes:
                        # Parts of axes ("a:(1)2") are left out
                        if axis in axes:
                            computed[value, axes.index(axis)] = dim
        kept = computed.copy()
        for value, layout in (drafts.own_constraints | drafts.constrained(draft)).items():
            kept[value] = layout
        OpSplits(program, problem.analysis.names.shardable).split(
            computed, kept, problem.mesh.array(), sharding.op_factor
        )
        for number, role in drafts.results.items():
            value = int(program.outputs[number])
            if not program.value_is_constant[value]:
                kept[value] = draft.roles[role]
        computed[:] = kept
        drop_uneven(program, problem.mesh, sharding)
        return sharding
