"""Device tiles on the page.

Which part of a chosen tensor each device holds under the plan by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.app.figure_export import figure_menu
from toast_lab.conflicts.analysis import Analysis
from toast_lab.ir.program import Program
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan, Spec
from toast_lab.views.markup import h
from toast_lab.views.tiles import MAX_DRAWN, MAX_ROWS, TilesPlot, dim_texts, parts, parts_frame

MAX_TENSORS = 60


def tensors_of(
    analysis: Analysis, names: tuple[int, ...], conflicts: tuple[int, ...] = ()
) -> list[int]:
    """Values whose dims have the given names, those of the conflicts first.

    They are results of the names' ops, or else their operands.

    Without names, they are the arguments. At most ``MAX_TENSORS``.
    """
    program = analysis.program
    if not names:
        return large_arguments(program)
    values = dict.fromkeys(
        place.value
        for conflict in conflicts[:MAX_TENSORS]
        for place in analysis.conflicts[conflict].places
    )
    n_conflicting = len(values)
    for name in names:
        op = int(analysis.names.op[name])
        written = [value for value in program.results(op) if name in program.def_names(value)]
        read = [
            int(program.use_value[use])
            for use in program.uses(op)
            if name in program.use_names(use)
        ]
        values |= dict.fromkeys(written or read)
        if len(values) >= MAX_TENSORS:
            break
    return [*list(values)[:n_conflicting], *sorted(list(values)[n_conflicting:])][:MAX_TENSORS]


def large_arguments(program: Program) -> list[int]:
    """The first ``MAX_TENSORS`` arguments that are no scalars."""
    return [value for value in range(program.n_arguments) if program.dims(value)][:MAX_TENSORS]


def tensor_text(program: Program, value: int) -> str:
    """Name and shape of a value: ``x [32, 8]``."""
    return f"{program.value_name[value]} [{', '.join(map(str, program.dims(value)))}]"


class TilesPane(look.Pane):
    """The picture on the left, the same facts as a table on the right.

    Above them are the choices of the tensor and of the two dims that are drawn.
    """

    def __init__(
        self, plan: Callable[[], ShardingPlan | None], tensors: Callable[[], Sequence[int]]
    ) -> None:
        """``plan`` gives the plan that cuts tensors, and ``tensors`` the values to choose from."""
        super().__init__()
        self._plan, self._tensors = plan, tensors
        self._quiet = False
        self._shown: Any = None
        self._layouts: tuple[Any, Any] = (None, None)
        self.plot: TilesPlot | None = None
        field_options: dict[str, Any] = {
            "margin": (0, 6, 0, 0),
            "height": 28,
            "stylesheets": [look.INPUT],
        }
        self.tensor = pn.widgets.Select(options={}, sizing_mode="stretch_width", **field_options)
        self.down = pn.widgets.Select(options={}, width=86, **field_options)
        self.across = pn.widgets.Select(options={}, width=100, **field_options)
        self._words = look.text()
        self._pane = look.figure(least_px=150)
        self.table = look.table(
            parts_frame(Mesh(("d",), (1,)), []), min_height=100, selectable=False
        )
        for widget in (self.tensor, self.down, self.across):
            look.watch(widget, lambda: None if self._quiet else self.draw(), "value")
        menu = figure_menu("device tiles")
        self.view = look.filled_column(
            look.row(self.tensor, self.down, self.across, menu, margin=(4, 0), height=30),
            self._words,
            look.filled_row(self._pane, self.table),
        )

    def refresh(self) -> None:
        """Offer the tensors; keep the one that is shown if it is among them."""
        plan = self._plan()
        if plan is None:
            return
        tensors = self._tensors()
        options = {tensor_text(plan.program, value): value for value in tensors}
        if options != self.tensor.options:
            self._quiet = True
            kept = self.tensor.value in tensors
            value = self.tensor.value if kept else next(iter(tensors), None)
            self.tensor.param.update(options=options, value=value)
            self._quiet = False
        self.draw()

    def spec(self) -> tuple[tuple[int, ...], Spec] | None:
        """(shape, mesh axes of each dim) of the chosen tensor in the plan; None: no tensor."""
        plan, value = self._plan(), self.tensor.value
        if plan is None or value is None or value >= plan.program.n_values:
            return None
        if self._layouts[0] is not plan:
            self._layouts = (plan, plan.kept_layouts())
        shape = plan.program.dims(int(value))
        return shape, plan.spec(int(self._layouts[1][int(value)]), len(shape))

    def draw(self) -> None:
        """Draw the chosen tensor."""
        layout, plan = self.spec(), self._plan()
        if layout is None or plan is None:
            return
        mesh = plan.mesh
        shape, spec = layout
        self._offer_dims(len(shape))
        dims = tuple(
            int(widget.value) for widget in (self.down, self.across) if widget.value is not None
        )
        drawn = (str(mesh), self.tensor.value, shape, spec, dims)
        if drawn == self._shown:
            return
        self._shown = drawn
        if self.plot is None or mesh != self.plot.mesh:
            self.plot = TilesPlot(mesh)
            self.plot.show(shape, spec, dims)
            self._pane.object = self.plot.figure
        else:
            look.later(self.plot.show, shape, spec, dims)
        rows = parts(mesh, shape, spec)
        self.table.value = parts_frame(mesh, rows[:MAX_ROWS])
        dims_text = "; ".join(dim_texts(mesh, shape, spec)) or "a scalar, whole on every device"
        omitted_note = ""
        if len(rows) > MAX_DRAWN:
            omitted_note = f"; the first {MAX_DRAWN} of {len(rows)} devices are drawn"
        self._words.object = h("p", dims_text + omitted_note, cls="quiet one", title=dims_text)

    def _offer_dims(self, rank: int) -> None:
        """Offer the dims to draw down and across: two different ones, or a vector's only one."""
        self._quiet = True
        dim_by_text = {str(dim): dim for dim in range(rank)}
        for widget, direction, default_dim in ((self.down, "down", 0), (self.across, "across", 1)):
            options = (
                {f"{direction} {dim_text}": dim for dim_text, dim in dim_by_text.items()}
                if rank > 1 or (rank and direction == "across")
                else {}
            )
            if options != widget.options:
                kept_dim = widget.value if widget.value in options.values() else None
                widget.param.update(
                    options=options,
                    value=min(default_dim, rank - 1) if kept_dim is None and options else kept_dim,
                )
            widget.visible = bool(options)
        if rank > 1 and self.down.value == self.across.value:
            self.across.value = (int(self.down.value or 0) + 1) % rank
        self._quiet = False
