"""The device-local listing of a plan, in the paper's notation.

``x : [256{b}, 32]`` is a tensor whose first dim is cut along axis ``b``; collectives stand where a
device runs them, with the axes in braces.  The lines are exactly the steps that the cost model
prices.

Reference: TOAST section 2.1 and figure 5b.
"""

from __future__ import annotations

from typing import NamedTuple

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.listing import op_text, outline, shown_ops, value_text
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan
from toast_lab.sharding import steps as st
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.step_kinds import COMPUTE, PERMUTE, SLICE, STEP_KINDS

_PRINTED = {PERMUTE: "collective_permute"}


class ListingLine(NamedTuple):
    """One line of the body of a listing."""

    op: int  #: that the line belongs to; a copy belongs to the op that makes or uses it
    depth: int  #: of loops and branches around it
    name: str  #: what the line makes; empty for the headings of loops and branches
    dims: str  #: ``[256{b}, 32]``
    right: str  #: right-hand side
    collective: bool

    @property
    def text(self) -> str:
        """The line, not indented."""
        return f"{self.name} : {self.dims} = {self.right}" if self.name else self.right


def listing(problem: Problem, plan: ShardingPlan, *, dims: str = "sizes") -> str:
    """Device-local program of ``plan``.

    Args:
        problem: the problem that the plan belongs to.
        plan: the plan.
        dims: "sizes" prints global sizes (``256{b}``), "names" prints colours (``S{s}``).

    Raises:
        InvalidPlan: the plan belongs to another program.
    """
    plan.check_is_of(problem.analysis.program)
    if dims not in ("sizes", "names"):
        raise InvalidPlan(f'dims must be "sizes" or "names", not {dims!r}')
    return _Listing(problem.analysis, plan, dims == "names").text()


def listing_lines(problem: Problem, plan: ShardingPlan) -> list[ListingLine]:
    """``listing`` with global sizes, line by line, arguments first.

    Raises InvalidPlan as that does.
    """
    plan.check_is_of(problem.analysis.program)
    writer, program = _Listing(problem.analysis, plan, False), plan.program
    writer.write()
    arguments = [
        ListingLine(
            argument,
            0,
            program.value_name[argument],
            writer.shape(argument, int(writer.steps.layout[argument])),
            "argument",
            False,
        )
        for argument in range(program.n_arguments)
    ]
    return [*arguments, *writer.lines]


class _Listing:
    def __init__(self, analysis: Analysis, plan: ShardingPlan, names: bool) -> None:
        self.analysis, self.program, self.plan, self.names = analysis, plan.program, plan, names
        self.steps = st.lower(plan.program, *plan.sharding, plan.mesh.array())
        self.lines: list[ListingLine] = []
        self.depth, self.labels = outline(self.program)
        self.taken = set(self.program.value_name)
        self.copy_name: dict[int, str] = {}  # step row -> name of its output

    def shape(self, value: int, layout: int) -> str:
        program = self.program
        names = program.def_names(value)
        cut = self.plan.spec(layout, len(names))
        parts = []
        for d, axes in enumerate(cut):
            base = self.analysis.dim_text(names[d]) if self.names else str(program.dims(value)[d])
            parts.append(base + (f"{{{','.join(axes)}}}" if axes else ""))
        return "[" + ", ".join(parts) + "]"

    def fresh(self, base: str) -> str:
        name = base + "_"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def axes(self, mask: int) -> str:
        return "{" + ",".join(a for i, a in enumerate(self.plan.mesh.axes) if mask >> i & 1) + "}"

    def chain(self, rows: list[int], source: str, last: str | None) -> str:
        """Print consecutive steps on one value.

        The last one is called ``last`` or gets a fresh name.
        """
        s = self.steps
        for i, row in enumerate(rows):
            value, kind = int(s.value[row]), int(s.kind[row])
            name = (
                last
                if last is not None and i == len(rows) - 1
                else self.fresh(self.program.value_name[value])
            )
            self.copy_name[row] = name
            verb = _PRINTED.get(kind, STEP_KINDS[kind])
            op, dims = int(s.op[row]), self.shape(value, int(s.after[row]))
            right = f"{verb} {self.axes(int(s.axes[row]))} {source}"
            self.lines.append(ListingLine(op, self.depth[op], name, dims, right, kind != SLICE))
            source = name
        return source

    def text(self) -> str:
        self.write()
        return self.layout_text()

    def write(self) -> None:
        """Fill ``lines``."""
        program, s = self.program, self.steps
        shown = set(shown_ops(program))
        i, n = 0, len(s.kind)
        while i < n:
            op = int(s.op[i])
            labels = self.labels.get(op, ())
            self.lines.extend(ListingLine(op, depth, "", "", text, False) for depth, text in labels)
            while i < n and s.kind[i] != COMPUTE:  # copies for this op's operands
                use = int(s.use[i])
                rows = [i]
                while i + 1 < n and s.kind[i + 1] != COMPUTE and s.use[i + 1] == use:
                    i += 1
                    rows.append(i)
                self.chain(rows, program.value_name[int(s.value[rows[0]])], None)
                i += 1
            i += 1  # the compute step
            after: dict[int, list[int]] = {}
            while i < n and s.op[i] == op and s.kind[i] != COMPUTE and s.use[i] < 0:
                after.setdefault(int(s.value[i]), []).append(i)
                i += 1
            if op in shown:
                self.compute(op, after)

    def compute(self, op: int, after: dict[int, list[int]]) -> None:
        program, s = self.program, self.steps
        operands = []
        for use in range(int(program.use_ptr[op]), int(program.use_ptr[op + 1])):
            row = int(s.copy[use])
            operands.append(
                self.copy_name[row]
                if row >= 0
                else value_text(program, int(program.use_value[use]))
            )
        names, shapes = [], []
        for v in program.results(op):
            rows = after.get(v)
            names.append(self.fresh(program.value_name[v]) if rows else program.value_name[v])
            shapes.append(self.shape(v, int(s.before[rows[0]]) if rows else int(s.layout[v])))
        right = op_text(program, op, operands)
        if all(program.value_is_constant[v] for v in program.results(op)) and program.results(op):
            right += "  # constant"  # recomputed in the layout that each use wants
        self.lines.append(
            ListingLine(op, self.depth[op], ", ".join(names), ", ".join(shapes), right, False)
        )
        for v, name in zip(program.results(op), names, strict=True):
            if v in after:
                self.chain(after[v], name, program.value_name[v])

    def layout_text(self) -> str:
        program = self.program
        arguments = [
            f"{program.value_name[a]} : {self.shape(a, int(self.steps.layout[a]))}"
            for a in range(program.n_arguments)
        ]
        indent = " " * (len(program.name) + 5)
        width = max((len(line.name) for line in self.lines), default=0)
        body = [
            "  " * (line.depth + 1)
            + (f"{line.name:<{width}} : {line.dims} = {line.right}" if line.name else line.right)
            for line in self.lines
        ]
        results = ", ".join(value_text(program, int(v)) for v in program.outputs)
        return "\n".join(
            [
                f"def {program.name}(" + f",\n{indent}".join(arguments) + ") {",
                *body,
                f"  return {results}",
                "}",
            ]
        )
