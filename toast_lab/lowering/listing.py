"""The device-local listing of a plan, in the paper's notation.

``x : [256{b}, 32]`` is a tensor whose first dim is cut along axis ``b``. Collectives are listed
where a device runs them, with their axes in braces. The lines are exactly the steps that the cost
model prices. The body of a ``shard_map`` follows it, indented, with the shapes of one device.

Reference: TOAST section 2.1 and figure 5b.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.annotated_listing import op_text, outline, shown_ops, value_text
from toast_lab.cost.problem import Problem
from toast_lab.errors import InvalidPlan
from toast_lab.ir.program import ShardMap
from toast_lab.sharding import steps as st
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.step_kinds import COMPUTE, PERMUTE, SLICE, STEP_KINDS

_PRINTED = {PERMUTE: "collective_permute"}


class ListingLine(NamedTuple):
    """One line of the body of a listing."""

    op: int  #: op of the line; a copy belongs to the op that makes or uses it
    depth: int  #: number of loops and branches around the line
    name: str  #: of the line's results; empty for headings of loops and branches
    dims: str  #: ``[256{b}, 32]``
    right: str  #: right-hand side
    collective: bool

    @property
    def text(self) -> str:
        """The line, without indentation."""
        return f"{self.name} : {self.dims} = {self.right}" if self.name else self.right


def listing(problem: Problem, plan: ShardingPlan, *, dims: str = "sizes") -> str:
    """The device-local program of ``plan``.

    Args:
        problem: the problem that the plan belongs to.
        plan: the plan.
        dims: "sizes" prints global sizes (``256{b}``), "names" prints colours (``S{s}``).

    Raises:
        InvalidPlan: the plan belongs to another program.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> plan = tl.Plan.from_actions(problem, ["B->data", "U->model"])
        >>> print(tl.listing(problem, plan))
        def mlp(x : [64{data}, 32],
                w1 : [32, 64{model}],
                w2 : [64{model}, 16]) {
          y  : [64{data}, 64{model}] = matmul(x, w1)
          z  : [64{data}, 64{model}] = max(y, 0)
          w_ : [64{data}, 16] = matmul(z, w2)
          w  : [64{data}, 16] = all_reduce {model} w_
          return w
        }
    """
    plan.check_is_of(problem.analysis.program)
    if dims not in ("sizes", "names"):
        raise InvalidPlan(f'dims must be "sizes" or "names", not {dims!r}')
    return _Listing(problem.analysis, plan, dims == "names").text()


def listing_lines(problem: Problem, plan: ShardingPlan) -> list[ListingLine]:
    """``listing`` with global sizes as separate lines, arguments first.

    Raises InvalidPlan as ``listing`` does.
    """
    plan.check_is_of(problem.analysis.program)
    listing, program = _Listing(problem.analysis, plan, False), plan.program
    listing.write()
    arguments = [
        ListingLine(
            op=argument,
            depth=0,
            name=program.value_name[argument],
            dims=listing.shape(argument, int(listing.steps.layout[argument])),
            right="argument",
            collective=False,
        )
        for argument in range(program.n_arguments)
    ]
    return [*arguments, *listing.lines]


class _Listing:
    def __init__(self, analysis: Analysis, plan: ShardingPlan, names: bool) -> None:
        self.analysis, self.program, self.plan, self.names = analysis, plan.program, plan, names
        self.steps = st.lower(plan.program, *plan.sharding, plan.mesh.array())
        self.lines: list[ListingLine] = []
        self.depth, self.labels = outline(self.program)
        self.outside = set(self.program.value_name)
        self.taken = set(self.outside)
        self.shard_maps = {row.op: row for row in self.program.shard_maps}
        self.copy_name: dict[int, str] = {}  # step row -> name of its output

    def shape(self, value: int, layout: int) -> str:
        program = self.program
        names = program.def_names(value)
        axes_by_dim = self.plan.spec(layout, len(names))
        bases = map(self.analysis.dim_text, names) if self.names else map(str, program.dims(value))
        dims = [
            f"{base}{{{','.join(axes)}}}" if axes else base
            for base, axes in zip(bases, axes_by_dim, strict=True)
        ]
        return f"[{', '.join(dims)}]"

    def fresh(self, base: str) -> str:
        name = base + "_"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def chain(self, rows: list[int], source: str, last_name: str | None) -> str:
        """Add lines for consecutive steps on one value, and give the name of the last result.

        The last result is named ``last_name``, or gets a fresh name if that is None.
        """
        steps = self.steps
        for i, row in enumerate(rows):
            value, kind = int(steps.value[row]), int(steps.kind[row])
            name = last_name if i == len(rows) - 1 else None
            name = name or self.fresh(self.program.value_name[value])
            self.copy_name[row] = name
            verb = _PRINTED.get(kind, STEP_KINDS[kind])
            op, dims = int(steps.op[row]), self.shape(value, int(steps.after[row]))
            axes = ",".join(self.plan.mesh.axes_in(int(steps.axes[row])))
            right = f"{verb} {{{axes}}} {source}"
            line = ListingLine(
                op, self.depth[op], name, dims=dims, right=right, collective=kind != SLICE
            )
            self.lines.append(line)
            source = name
        return source

    def text(self) -> str:
        self.write()
        return self.layout_text()

    def write(self) -> None:
        """Fill ``lines``."""
        program, steps = self.program, self.steps
        shown = set(shown_ops(program))
        i, step_count = 0, len(steps.kind)
        while i < step_count:
            op = int(steps.op[i])
            labels = self.labels.get(op, ())
            self.lines.extend(
                ListingLine(op, depth, "", dims="", right=label, collective=False)
                for depth, label in labels
            )
            while i < step_count and steps.kind[i] != COMPUTE:  # copies for this op's operands
                use = int(steps.use[i])
                rows = []
                while i < step_count and steps.kind[i] != COMPUTE and steps.use[i] == use:
                    rows.append(i)
                    i += 1
                self.chain(rows, program.value_name[int(steps.value[rows[0]])], None)
            i += 1  # the compute step
            result_rows: dict[int, list[int]] = {}
            while (
                i < step_count
                and steps.op[i] == op
                and steps.kind[i] != COMPUTE
                and steps.use[i] < 0
            ):
                result_rows.setdefault(int(steps.value[i]), []).append(i)
                i += 1
            if op in shown:
                self.compute(op, result_rows)

    def compute(self, op: int, result_rows: dict[int, list[int]]) -> None:
        program, steps = self.program, self.steps
        operands = []
        for use in program.uses(op):
            copy = self.copy_name.get(int(steps.copy[use]))
            operands.append(copy or value_text(program, int(program.use_value[use])))
        results = program.results(op)
        names, shapes = [], []
        for result in results:
            rows, name = result_rows.get(result), program.value_name[result]
            layout = steps.before[rows[0]] if rows else steps.layout[result]
            names.append(self.fresh(name) if rows else name)
            shapes.append(self.shape(result, int(layout)))
        right = op_text(program, op, operands)
        if results and all(program.value_is_constant[result] for result in results):
            right += "  # constant"  # recomputed in the layout that each use needs
        self.lines.append(
            ListingLine(
                op=op,
                depth=self.depth[op],
                name=", ".join(names),
                dims=", ".join(shapes),
                right=right,
                collective=False,
            )
        )
        if op in self.shard_maps:
            self.inside(self.shard_maps[op], operands)
        for result, name in zip(results, names, strict=True):
            if result in result_rows:
                self.chain(result_rows[result], name, program.value_name[result])

    def inside(self, shard_map: ShardMap, operands: list[str]) -> None:
        """Add lines for the body of a ``shard_map``, with the shapes that a device has."""
        body, outer = shard_map.body, self.depth[shard_map.op] + 1
        depth, headings = outline(body)
        axes_of = {row.op: ",".join(row.axes) for row in body.collectives}

        def text_of(value: int) -> str:
            if value < body.n_arguments:
                return operands[value]
            text = value_text(body, value)
            # Both programs number their nameless values.
            return f"{text}'" if text in self.outside else text

        def add(depth: int, name: str, dims: str, right: str, is_collective: bool) -> None:
            line = ListingLine(
                shard_map.op, outer + depth, name, dims=dims, right=right, collective=is_collective
            )
            self.lines.append(line)

        pending = collections.deque(sorted(headings))
        for op in shown_ops(body):
            while pending and pending[0] <= op:
                for level, heading in headings[pending.popleft()]:
                    add(level, "", "", heading, False)
            texts = [text_of(value) for value in body.operands(op)]
            right = (
                f"{body.kind[op]} {{{axes_of[op]}}} {', '.join(texts)}"
                if op in axes_of
                else op_text(body, op, texts)
            )
            results = body.results(op)
            name = ", ".join(map(text_of, results))
            dims = ", ".join(f"[{', '.join(map(str, body.dims(result)))}]" for result in results)
            add(depth[op], name, dims, right, op in axes_of)
        outputs = ", ".join(text_of(int(value)) for value in body.outputs)
        add(0, "", "", f"out {outputs}", False)

    def layout_text(self) -> str:
        program = self.program
        arguments = [
            f"{program.value_name[argument]} : {self.shape(argument, layout)}"
            for argument, layout in enumerate(self.steps.layout[: program.n_arguments].tolist())
        ]
        indent = " " * (len(program.name) + 5)
        width = max((len(line.name) for line in self.lines), default=0)
        body = [
            "  " * (line.depth + 1) + line._replace(name=line.name and line.name.ljust(width)).text
            for line in self.lines
        ]
        results = ", ".join(value_text(program, int(output)) for output in program.outputs)
        return "\n".join(
            [
                f"def {program.name}(" + f",\n{indent}".join(arguments) + ") {",
                *body,
                f"  return {results}",
                "}",
            ]
        )
