"""Grows the flat arrays of a ``Program`` op by op.  Start reading at ``Builder.add``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from toast_lab.ir import program as p
from toast_lab.ir import rules, source_names
from toast_lab.ir.attributes import Tensor, itemsize
from toast_lab.ir.op_kinds import is_constant, op_kind


class Builder:
    """Grows the arrays of a Program op by op."""

    def __init__(self) -> None:
        self.shape_ptr = [0]
        self.use_dim_ptr = [0]
        self.use_ptr = [0]
        self.result_ptr = [0]
        self.factor_ptr = [0]
        self.shape: list[int] = []
        self.tensor: list[Tensor] = []
        self.value_op: list[int] = []
        self.constant: list[bool] = []
        self.variable: list[str] = []
        self.frame: list[source_names.Frame | None] = []  # per value, where its expression stands
        self.kind: list[str] = []
        self.monoid: list[int] = []
        self.flops: list[float] = []
        self.location: list[int] = []
        self.locations: dict[str, int] = {}
        self.name_stack: list[str] = []
        self.detail: list[str] = []
        self.use_value: list[int] = []
        self.factor_size: list[int] = []
        self.factor_class: list[int] = []
        self.use_dim: list[tuple[int, ...]] = []
        self.def_dim: list[tuple[int, ...]] = []
        self.missing: list[tuple[int, str]] = []
        self.owner: list[int] = []
        self.region: list[int] = []
        # By owner to come: rows of use_dim that want its factors
        self.waiting: dict[int, list[tuple[int, int]]] = {}

    def add(
        self,
        kind: str,
        operands: list[int],
        results: list[Tensor],
        rule: rules.Rule,
        *,
        location: str = "",
        variable: str = "",
        frame: source_names.Frame | None = None,
        name_stack: str = "",
        detail: str = "",
        monoid: int = 0,
        flops: float = 0.0,
        owner: int = -1,
        region: int = -1,
    ) -> list[int]:
        """Add one op and give the values it makes.

        With an ``owner`` the rule's factors are that op's, which may be added later; ``rule`` then
        brings none itself.
        """
        op, base = len(self.kind), len(self.factor_size)
        if owner >= 0:
            base = self.factor_ptr[owner] if owner < op else 0
            if owner > op:
                start = len(self.use_dim)
                self.waiting.setdefault(owner, []).append(
                    (start, start + sum(len(dims) for dims in rule.operands))
                )
        self.owner.append(owner if owner >= 0 else op)
        self.region.append(region)
        self.kind.append(kind)
        self.monoid.append(monoid)
        self.flops.append(flops)
        self.location.append(self.locations.setdefault(location, len(self.locations)))
        self.name_stack.append(name_stack)
        self.detail.append(detail)
        if rule.missing:
            self.missing.append((op, rule.missing))
        constant = is_constant(kind) or (
            bool(operands)
            and all(self.constant[v] for v in operands)
            and op_kind(kind).cost_class not in (p.OPAQUE, p.CONTROL)
        )
        for start, end in self.waiting.pop(op, ()):
            self.use_dim[start:end] = [
                tuple(base + f for f in dim) for dim in self.use_dim[start:end]
            ]
        self.factor_size.extend(rule.sizes)
        # A reduction whose combiner is unknown cannot be split: its partial results cannot be
        # combined.
        self.factor_class.extend(
            p.NEED_REPLICATION if c == p.REDUCTION and not monoid else c for c in rule.classes
        )
        self.factor_ptr.append(len(self.factor_size))
        for value, dims in zip(operands, rule.operands, strict=True):
            self.use_value.append(value)
            self.use_dim.extend(tuple(base + f for f in dim) for dim in dims)
            self.use_dim_ptr.append(len(self.use_dim))
        self.use_ptr.append(len(self.use_value))
        made = []
        for i, (tensor, dims) in enumerate(zip(results, rule.results, strict=True)):
            made.append(len(self.tensor))
            self.tensor.append(tensor)
            self.value_op.append(op)
            self.constant.append(constant and kind != "argument")
            self.variable.append(
                variable if len(results) == 1 or not variable else f"{variable}_{i}"
            )
            self.frame.append(frame)
            self.shape.extend(tensor.shape)
            self.shape_ptr.append(len(self.shape))
            self.def_dim.extend(tuple(base + f for f in dim) for dim in dims)
        self.result_ptr.append(len(self.tensor))
        return made


def finish(
    build: Builder,
    *,
    name: str,
    n_arguments: int,
    outputs: list[int],
    output_paths: tuple[str, ...],
    donated: list[bool],
    regions: tuple[p.Region, ...] = (),
) -> p.Program:
    """Freeze what was built."""
    trips = np.ones(len(regions) + 1)
    # Outer ones come first; the last entry stands for no region
    for i, region in enumerate(regions):
        trips[i] = trips[region.parent] * region.times

    def ints(values: Sequence[int], dtype: Any = np.int32) -> np.ndarray:
        return np.asarray(values, dtype=dtype)

    classes = [op_kind(kind).cost_class for kind in build.kind]
    missing_ops = {op for op, _ in build.missing}
    classes = [
        p.OPAQUE if o in missing_ops and c == p.ELEMENTWISE else c for o, c in enumerate(classes)
    ]
    return p.Program(
        name=name,
        shape_ptr=ints(build.shape_ptr),
        shape=ints(build.shape, np.int64),
        itemsize=ints([itemsize(t.element) for t in build.tensor]),
        value_op=ints(build.value_op),
        value_is_constant=np.asarray(build.constant, dtype=bool),
        value_dtype=tuple(t.element for t in build.tensor),
        value_name=_unique(_last_of_expression(build)),
        kind=tuple(build.kind),
        op_class=ints(classes),
        result_ptr=ints(build.result_ptr),
        use_ptr=ints(build.use_ptr),
        use_value=ints(build.use_value),
        monoid=ints(build.monoid),
        flops=np.asarray(build.flops, dtype=np.float64),
        trips=trips[ints(build.region)],
        owner=ints(build.owner),
        region=ints(build.region),
        location=ints(build.location),
        locations=tuple(build.locations),
        name_stack=tuple(build.name_stack),
        detail=tuple(build.detail),
        regions=regions,
        factor_ptr=ints(build.factor_ptr),
        factor_size=ints(build.factor_size, np.int64),
        factor_class=ints(build.factor_class),
        use_dim_ptr=ints(build.use_dim_ptr),
        use_dim_factor=ints([d[0] for d in build.use_dim]),
        use_dim_factors=tuple(build.use_dim),
        def_dim_factor=ints([d[0] for d in build.def_dim]),
        def_dim_minor=tuple(build.def_dim),
        hidden=np.zeros(len(build.shape), dtype=bool),
        n_arguments=n_arguments,
        outputs=ints(outputs),
        output_paths=output_paths,
        donated=np.asarray(donated, dtype=bool),
        missing_rules=tuple(build.missing),
    )


def _last_of_expression(build: Builder) -> list[str]:
    """Variable names, kept only on the last op of the expression that was assigned."""
    inner = set()
    for op in range(len(build.kind)):
        made = range(build.result_ptr[op], build.result_ptr[op + 1])
        for use in build.use_value[build.use_ptr[op] : build.use_ptr[op + 1]]:
            if made and build.frame[use] is not None and build.frame[use] == build.frame[made[0]]:
                inner.add(use)
    return ["" if v in inner else name for v, name in enumerate(build.variable)]


def _unique(names: list[str]) -> tuple[str, ...]:
    """Number repeated names, and values without one by their position."""
    seen: dict[str, int] = {}
    out = []
    for i, name in enumerate(names):
        if not name:
            out.append(f"%{i}")
            continue
        count = seen.get(name, 0)
        seen[name] = count + 1
        candidate = name if not count else f"{name}_{count}"
        while candidate != name and candidate in seen:
            count += 1
            candidate = f"{name}_{count}"
        seen.setdefault(candidate, 1)
        out.append(candidate)
    return tuple(out)
