"""Builds the flat arrays of a ``Program`` op by op. Start reading at ``Builder.add``."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from toast_lab.ir import rules, source_names
from toast_lab.ir.attributes import TensorType, itemsize
from toast_lab.ir.op_kinds import is_constant, op_kind
from toast_lab.ir.program import (
    CONTROL,
    ELEMENTWISE,
    NEED_REPLICATION,
    OPAQUE,
    REDUCTION,
    Program,
    Region,
)
from toast_lab.ir.rounds import op_trips


class Origin(NamedTuple):
    """The place in the user's source that an op comes from."""

    location: str = ""  #: "file.py:12", innermost frame first, frames joined by " < "
    name_stack: str = ""
    frame: source_names.SourceRange | None = None  #: source range of its expression
    variable: str = ""  #: the variable or argument path that names its result


class NewOp(NamedTuple):
    """One op, ready to be added to a program."""

    kind: str
    operands: list[int]  #: values that it uses
    results: list[TensorType]
    rule: rules.Rule
    origin: Origin
    detail: str = ""
    monoid: int = 0  #: index into MONOIDS
    flops: float = 0.0
    moved_bytes: float | None = None  #: as in ``Program.moved_bytes``
    without_cost: str = ""  #: as in ``Program.without_cost``; empty if there is a cost
    #: The op whose factors ``rule`` refers to, -1: this one. An owner may be added later; ``rule``
    #: has no factors of its own then.
    owner: int = -1
    region: int = -1  #: innermost region, -1 outside all

    @property
    def _sums(self) -> bool:
        return any(
            factor_class == REDUCTION and size > 1
            for factor_class, size in zip(self.rule.classes, self.rule.sizes, strict=True)
        )

    @property
    def cost_class(self) -> int:
        """Index into CLASSES; an op of unknown kind without a rule is opaque.

        A ``dot_general`` that sums over nothing counts as elementwise, since XLA's compilers
        compute it that way.
        """
        cost_class = op_kind(self.kind).cost_class
        if self.kind == "dot_general" and not self.rule.missing and not self._sums:
            return ELEMENTWISE
        return OPAQUE if self.rule.missing and cost_class == ELEMENTWISE else cost_class


class Builder:
    """Collects the arrays that number values, uses and factors; ``finish`` makes the others."""

    def __init__(self) -> None:
        self.ops: list[NewOp] = []
        self.shape_ptr = [0]
        self.use_dim_ptr = [0]
        self.use_ptr = [0]
        self.result_ptr = [0]
        self.factor_ptr = [0]
        self.shape: list[int] = []
        self.tensor: list[TensorType] = []
        self.value_op: list[int] = []
        self.constant: list[bool] = []
        self.use_value: list[int] = []
        self.factor_size: list[int] = []
        self.factor_class: list[int] = []
        self.use_dim: list[tuple[int, ...]] = []
        self.def_dim: list[tuple[int, ...]] = []
        # For each owner that has not been added yet: the rows of use_dim that refer to its factors
        self.waiting: dict[int, list[tuple[int, int]]] = {}

    def add(self, new: NewOp) -> range:
        """Add one op and return the values that it defines."""
        op, first_factor = len(self.ops), len(self.factor_size)
        rule, owner = new.rule, new.owner
        if owner >= 0:
            first_factor = self.factor_ptr[owner] if owner < op else 0
            if owner > op:
                first_row = len(self.use_dim)
                self.waiting.setdefault(owner, []).append(
                    (first_row, first_row + sum(len(dims) for dims in rule.operands))
                )
        self.ops.append(new)

        def numbered(dims: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
            return [tuple(first_factor + factor for factor in factors) for factors in dims]

        for first_row, end_row in self.waiting.pop(op, ()):
            self.use_dim[first_row:end_row] = numbered(self.use_dim[first_row:end_row])
        self.factor_size.extend(rule.sizes)
        # A reduction with an unknown combiner cannot be split, since nothing could combine its
        # partial results.
        self.factor_class.extend(
            NEED_REPLICATION if role == REDUCTION and not new.monoid else role
            for role in rule.classes
        )
        self.factor_ptr.append(len(self.factor_size))
        for value, dims in zip(new.operands, rule.operands, strict=True):
            self.use_value.append(value)
            self.use_dim.extend(numbered(dims))
            self.use_dim_ptr.append(len(self.use_dim))
        self.use_ptr.append(len(self.use_value))
        is_constant_value = is_constant(new.kind) or (
            bool(new.operands)
            and all(self.constant[value] for value in new.operands)
            and op_kind(new.kind).cost_class not in (OPAQUE, CONTROL)
        )
        for tensor, dims in zip(new.results, rule.results, strict=True):
            self.tensor.append(tensor)
            self.value_op.append(op)
            self.constant.append(is_constant_value)
            self.shape.extend(tensor.shape)
            self.shape_ptr.append(len(self.shape))
            self.def_dim.extend(numbered(dims))
        self.result_ptr.append(len(self.tensor))
        return self.results(op)

    def results(self, op: int) -> range:
        """Values that ``op`` defines."""
        return range(self.result_ptr[op], self.result_ptr[op + 1])


def finish(
    build: Builder,
    *,
    name: str,
    n_arguments: int,
    outputs: list[int],
    output_paths: tuple[str, ...],
    donated: list[bool],
    regions: tuple[Region, ...] = (),
) -> Program:
    """Freeze what was built into a ``Program``."""
    int32_array = functools.partial(np.asarray, dtype=np.int32)
    ops = build.ops
    locations: dict[str, int] = {}
    op_regions = int32_array([op.region for op in ops])
    return Program(
        name=name,
        shape_ptr=int32_array(build.shape_ptr),
        shape=np.asarray(build.shape, dtype=np.int64),
        itemsize=int32_array([itemsize(tensor.element) for tensor in build.tensor]),
        value_op=int32_array(build.value_op),
        value_is_constant=np.asarray(build.constant, dtype=bool),
        value_dtype=tuple(tensor.element for tensor in build.tensor),
        value_name=_unique(_source_names(build)),
        kind=tuple(op.kind for op in ops),
        op_class=int32_array([op.cost_class for op in ops]),
        result_ptr=int32_array(build.result_ptr),
        use_ptr=int32_array(build.use_ptr),
        use_value=int32_array(build.use_value),
        monoid=int32_array([op.monoid for op in ops]),
        flops=np.asarray([op.flops for op in ops], dtype=np.float64),
        trips=op_trips(regions, op_regions),
        owner=int32_array(
            [op.owner if op.owner >= 0 else op_index for op_index, op in enumerate(ops)]
        ),
        region=op_regions,
        location=int32_array(
            [locations.setdefault(op.origin.location, len(locations)) for op in ops]
        ),
        locations=tuple(locations),
        name_stack=tuple(op.origin.name_stack for op in ops),
        detail=tuple(op.detail for op in ops),
        regions=regions,
        factor_ptr=int32_array(build.factor_ptr),
        factor_size=np.asarray(build.factor_size, dtype=np.int64),
        factor_class=int32_array(build.factor_class),
        use_dim_ptr=int32_array(build.use_dim_ptr),
        use_dim_factor=int32_array([factors[0] for factors in build.use_dim]),
        use_dim_factors=tuple(build.use_dim),
        def_dim_factor=int32_array([factors[0] for factors in build.def_dim]),
        def_dim_minor=tuple(build.def_dim),
        hidden=np.zeros(len(build.shape), dtype=bool),
        n_arguments=n_arguments,
        outputs=int32_array(outputs),
        output_paths=output_paths,
        donated=np.asarray(donated, dtype=bool),
        missing_rules=tuple(
            (op_index, op.rule.missing) for op_index, op in enumerate(ops) if op.rule.missing
        ),
        moved_bytes=tuple(
            (op_index, op.moved_bytes)
            for op_index, op in enumerate(ops)
            if op.moved_bytes is not None
        ),
        without_cost=tuple(
            (op_index, op.without_cost) for op_index, op in enumerate(ops) if op.without_cost
        ),
    )


def _source_names(build: Builder) -> list[str]:
    """Variable name of each value; only the last op of the assigned expression has one."""
    frames = [build.ops[op].origin.frame for op in build.value_op]
    intermediate_values = {
        operand
        for new_op in build.ops
        if new_op.results and new_op.origin.frame is not None
        for operand in new_op.operands
        if frames[operand] == new_op.origin.frame
    }
    names = []
    for op_index, new_op in enumerate(build.ops):
        variable = new_op.origin.variable
        for position, value in enumerate(build.results(op_index)):
            suffix = f"_{position}" if variable and len(new_op.results) > 1 else ""
            names.append("" if value in intermediate_values else variable + suffix)
    return names


def _unique(names: list[str]) -> tuple[str, ...]:
    """Number repeated names, and name nameless values by their position."""
    uses: dict[str, int] = {}
    unique = []
    for position, name in enumerate(names):
        if not name:
            unique.append(f"%{position}")
            continue
        count = uses.get(name, 0)
        uses[name] = count + 1
        candidate = f"{name}_{count}" if count else name
        while candidate != name and candidate in uses:
            count += 1
            candidate = f"{name}_{count}"
        uses.setdefault(candidate, 1)
        unique.append(candidate)
    return tuple(unique)
