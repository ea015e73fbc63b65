"""Grows the flat arrays of a ``Program`` op by op.  Start reading at ``Builder.add``."""

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


class Origin(NamedTuple):
    """Where in the user's source an op comes from."""

    location: str = ""  #: "file.py:12", innermost frame first, frames joined by " < "
    name_stack: str = ""
    frame: source_names.SourceRange | None = None  #: the range of its expression
    variable: str = ""  #: the variable or argument path that holds its result


class NewOp(NamedTuple):
    """One op to be added to a program."""

    kind: str
    operands: list[int]  #: values that it uses
    results: list[TensorType]
    rule: rules.Rule
    origin: Origin
    detail: str = ""
    monoid: int = 0  #: index into MONOIDS
    flops: float = 0.0
    #: The op whose factors ``rule`` refers to, -1: its own.  That op may be added later; ``rule``
    #: then brings no factors.
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

        A product that sums over nothing is an elementwise one: so do XLA's compilers compute it.
        """
        cost_class = op_kind(self.kind).cost_class
        if self.kind == "dot_general" and not self.rule.missing and not self._sums:
            return ELEMENTWISE
        return OPAQUE if self.rule.missing and cost_class == ELEMENTWISE else cost_class


class Builder:
    """Grows the arrays that number values, uses and factors; ``finish`` makes the others."""

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
        # By an owner that is still to come: the rows of use_dim that refer to its factors
        self.waiting: dict[int, list[tuple[int, int]]] = {}

    def add(self, new: NewOp) -> range:
        """Add one op; returns the values that it defines."""
        op, base = len(self.ops), len(self.factor_size)
        rule, owner = new.rule, new.owner
        if owner >= 0:
            base = self.factor_ptr[owner] if owner < op else 0
            if owner > op:
                start = len(self.use_dim)
                self.waiting.setdefault(owner, []).append(
                    (start, start + sum(len(dims) for dims in rule.operands))
                )
        self.ops.append(new)

        def numbered(dims: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
            return [tuple(base + factor for factor in factors) for factors in dims]

        for start, end in self.waiting.pop(op, ()):
            self.use_dim[start:end] = numbered(self.use_dim[start:end])
        self.factor_size.extend(rule.sizes)
        # A reduction with an unknown combiner cannot be split: nothing combines its partial
        # results.
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
        constant = is_constant(new.kind) or (
            bool(new.operands)
            and all(self.constant[value] for value in new.operands)
            and op_kind(new.kind).cost_class not in (OPAQUE, CONTROL)
        )
        for tensor, dims in zip(new.results, rule.results, strict=True):
            self.tensor.append(tensor)
            self.value_op.append(op)
            self.constant.append(constant)
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
    """Freeze what was built."""
    trips = np.ones(len(regions) + 1)
    # Outer ones come first; the last entry stands for no region
    for i, region in enumerate(regions):
        trips[i] = trips[region.parent] * region.times

    ints = functools.partial(np.asarray, dtype=np.int32)
    ops = build.ops
    locations: dict[str, int] = {}
    op_regions = ints([op.region for op in ops])
    return Program(
        name=name,
        shape_ptr=ints(build.shape_ptr),
        shape=np.asarray(build.shape, dtype=np.int64),
        itemsize=ints([itemsize(tensor.element) for tensor in build.tensor]),
        value_op=ints(build.value_op),
        value_is_constant=np.asarray(build.constant, dtype=bool),
        value_dtype=tuple(tensor.element for tensor in build.tensor),
        value_name=_unique(_source_names(build)),
        kind=tuple(op.kind for op in ops),
        op_class=ints([op.cost_class for op in ops]),
        result_ptr=ints(build.result_ptr),
        use_ptr=ints(build.use_ptr),
        use_value=ints(build.use_value),
        monoid=ints([op.monoid for op in ops]),
        flops=np.asarray([op.flops for op in ops], dtype=np.float64),
        trips=trips[op_regions],
        owner=ints([op.owner if op.owner >= 0 else number for number, op in enumerate(ops)]),
        region=op_regions,
        location=ints([locations.setdefault(op.origin.location, len(locations)) for op in ops]),
        locations=tuple(locations),
        name_stack=tuple(op.origin.name_stack for op in ops),
        detail=tuple(op.detail for op in ops),
        regions=regions,
        factor_ptr=ints(build.factor_ptr),
        factor_size=np.asarray(build.factor_size, dtype=np.int64),
        factor_class=ints(build.factor_class),
        use_dim_ptr=ints(build.use_dim_ptr),
        use_dim_factor=ints([factors[0] for factors in build.use_dim]),
        use_dim_factors=tuple(build.use_dim),
        def_dim_factor=ints([factors[0] for factors in build.def_dim]),
        def_dim_minor=tuple(build.def_dim),
        hidden=np.zeros(len(build.shape), dtype=bool),
        n_arguments=n_arguments,
        outputs=ints(outputs),
        output_paths=output_paths,
        donated=np.asarray(donated, dtype=bool),
        missing_rules=tuple(
            (number, op.rule.missing) for number, op in enumerate(ops) if op.rule.missing
        ),
    )


def _source_names(build: Builder) -> list[str]:
    """Variable name of each value, kept only on the last op of the expression assigned to it."""
    frames = [build.ops[op].origin.frame for op in build.value_op]
    inner = {
        used
        for op in build.ops
        if op.results and op.origin.frame is not None
        for used in op.operands
        if frames[used] == op.origin.frame
    }
    names = []
    for number, op in enumerate(build.ops):
        variable = op.origin.variable
        for position, value in enumerate(build.results(number)):
            suffix = f"_{position}" if variable and len(op.results) > 1 else ""
            names.append("" if value in inner else variable + suffix)
    return names


def _unique(names: list[str]) -> tuple[str, ...]:
    """Number repeated names, and name values without one by their position."""
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
