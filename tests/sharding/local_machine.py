"""A tiny machine that runs device-local steps on numpy arrays, one array a device.

It does not use XLA: collectives see only the devices of their group, and ops only local shards. If
the steps of a plan gather too little, or over the wrong axis, data is missing and the run
fails.
"""

from __future__ import annotations

import itertools
from functools import reduce

import numpy as np

from toast_lab.ir import program as p
from toast_lab.ir.program import Program
from toast_lab.sharding import steps as st
from toast_lab.sharding.step_kinds import ALL_REDUCE, COMPUTE, PERMUTE, REDUCE_SCATTER, SLICE

_ELEMENTWISE = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "tanh": np.tanh,
    "sine": np.sin,
    "exponential": np.exp,
    "negate": np.negative,
    "minimum": np.minimum,
}
_COMBINE = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}


class LocalMachine:
    """Runs ``program`` on a mesh of ``sizes``, following the steps of a plan."""

    def __init__(
        self, program: Program, op_factor: np.ndarray, value_dim: np.ndarray, sizes: tuple[int, ...]
    ) -> None:
        self.program, self.op_factor, self.sizes = program, op_factor, sizes
        self.steps = st.lower(program, op_factor, value_dim, np.asarray(sizes))
        self.tables = st.tables(program)
        self.wants = st.wants_of(self.tables, op_factor)
        self.devices = list(itertools.product(*(range(s) for s in sizes)))

    def block(
        self, shape: tuple[int, ...], layout: int, device: tuple[int, ...]
    ) -> tuple[slice, ...]:
        """Return the part of a global tensor that a device holds."""
        slices = []
        for size, axes in zip(shape, st.unpack(layout, len(shape), len(self.sizes)), strict=True):
            index, ways = 0, 1
            for a in axes:
                index, ways = index * self.sizes[a] + device[a], ways * self.sizes[a]
            step = size // ways
            slices.append(slice(index * step, (index + 1) * step))
        return tuple(slices)

    def group(self, device: tuple[int, ...], mask: int) -> list[tuple[int, ...]]:
        """Return the devices that a collective over the axes in ``mask`` joins with ``device``."""
        free = [range(s) if mask >> a & 1 else (device[a],) for a, s in enumerate(self.sizes)]
        return list(itertools.product(*free))

    def move(self, shape, locals_, before, after, mask, combine=None, permute=0):
        """Assemble each device's new block from the blocks that its group holds.

        With ``combine``, first reduce over ``mask``.
        """
        blocks = {}
        for device in self.devices:
            whole = np.full(shape, np.nan)
            for other in self.group(device, permute if combine else mask | permute):
                shard = (
                    reduce(combine, [locals_[peer] for peer in self.group(other, mask)])
                    if combine
                    else locals_[other]
                )
                whole[self.block(shape, before, other)] = shard
            blocks[device] = whole[self.block(shape, after, device)]
            assert not np.isnan(blocks[device]).any(), (
                "a device needed data that its group does not hold"
            )
        return blocks

    def run(self, arguments: list[np.ndarray]) -> list[np.ndarray]:
        """Run the device-local program; return the global results."""
        program, s = self.program, self.steps
        held: dict[int, dict] = {}
        for a, array in enumerate(arguments):
            held[a] = {d: array[self.block(array.shape, int(s.layout[a]), d)] for d in self.devices}
        copies: dict[int, dict] = {}
        source: dict = {}
        permute = 0
        for i in range(len(s.kind)):
            kind, op, value, use = int(s.kind[i]), int(s.op[i]), int(s.value[i]), int(s.use[i])
            if kind == COMPUTE:
                self.compute(op, held, copies)
                continue
            if i == 0 or not self.same_chain(i - 1, i):
                source, permute = held[value], self.permute_of_chain(i)
            shape = program.dims(value)
            mask = int(s.axes[i])
            if kind == PERMUTE and s.before[i] == s.after[i]:
                # The exchange after it reads from the devices of both groups.
                new = source
            elif kind in (ALL_REDUCE, REDUCE_SCATTER):
                combine = _COMBINE[p.MONOIDS[program.monoid[op]]]
                new = self.move(
                    shape, source, int(s.before[i]), int(s.after[i]), mask, combine, permute
                )
            else:
                group = 0 if kind == SLICE else mask
                new = self.move(
                    shape, source, int(s.before[i]), int(s.after[i]), group, None, permute
                )
            source = new
            copies[i] = new
            if use < 0:
                held[value] = new
        return [self.whole(int(v), held[int(v)]) for v in program.outputs]

    def same_chain(self, i: int, j: int) -> bool:
        s = self.steps
        return s.kind[i] != COMPUTE and (s.use[i], s.value[i], s.op[i]) == (
            s.use[j],
            s.value[j],
            s.op[j],
        )

    def permute_of_chain(self, start: int) -> int:
        """Return the axes along which shards also move as the order of axes on a dim changes.

        The mask is 0 if there are none.
        """
        i, s, mask = start, self.steps, 0
        while i < len(s.kind) and self.same_chain(i, start):
            if s.kind[i] == PERMUTE:
                mask |= int(s.axes[i])
            i += 1
        return mask

    def whole(self, value: int, locals_: dict) -> np.ndarray:
        shape = self.program.dims(value)
        array = np.full(shape, np.nan)
        for device in self.devices:
            array[self.block(shape, int(self.steps.layout[value]), device)] = locals_[device]
        return array

    def operand(self, use: int, device, held, copies) -> np.ndarray:
        value = int(self.program.use_value[use])
        if self.program.value_is_constant[value]:
            wanted = int(self.wants[use])
            return constant(self.program, value)[
                self.block(self.program.dims(value), int(wanted), device)
            ]
        row = int(self.steps.copy[use])
        return (copies[row] if row >= 0 else held[value])[device]

    def compute(self, op: int, held, copies) -> None:
        program = self.program
        (value,) = program.results(op)
        if program.value_is_constant[value]:
            return
        uses = range(int(program.use_ptr[op]), int(program.use_ptr[op + 1]))
        local_size = {}
        for name in program.factors(op):
            ways = [self.sizes[a] for a in range(len(self.sizes)) if self.op_factor[op, a] == name]
            local_size[name] = int(program.factor_size[name]) // int(np.prod(ways, initial=1))
        held[value] = {
            d: local_op(program, op, [self.operand(u, d, held, copies) for u in uses], local_size)
            for d in self.devices
        }


def constant(program: Program, value: int) -> np.ndarray:
    op = int(program.value_op[value])
    if program.kind[op] == "constant":
        return np.full(program.dims(value), float(program.detail[op]))
    return np.broadcast_to(
        constant(program, program.operands(op)[0]).reshape(-1)[0], program.dims(value)
    )


def local_op(
    program: Program, op: int, operands: list[np.ndarray], size: dict[int, int]
) -> np.ndarray:
    """Compute one op on local shards, using only its rule."""
    kind = program.kind[op]
    start = program.factor_ptr[op]
    rows = [
        [f - start for f in program.use_names(u)]
        for u in range(int(program.use_ptr[op]), int(program.use_ptr[op + 1]))
    ]
    result = [f - start for f in program.def_names(program.results(op)[0])]
    if kind == "dot_general":
        return np.einsum(operands[0], rows[0], operands[1], rows[1], result)
    if kind in _ELEMENTWISE:
        return _ELEMENTWISE[kind](*operands)
    if kind == "transpose":
        return np.transpose(operands[0], [rows[0].index(f) for f in result])
    if kind == "broadcast_in_dim":
        kept = [f for f in result if f in rows[0]]
        # Dims of size 1 that are broadcast
        stretched = tuple(i for i, f in enumerate(rows[0]) if f not in result)
        row = [f for f in rows[0] if f in result]
        moved = np.transpose(np.squeeze(operands[0], stretched), [row.index(f) for f in kept])
        shape = [moved.shape[kept.index(f)] if f in kept else 1 for f in result]
        return np.broadcast_to(moved.reshape(shape), [size[f + start] for f in result])
    if kind == "reduce":
        dims = tuple(i for i, f in enumerate(rows[0]) if f not in result)
        return _COMBINE[p.MONOIDS[program.monoid[op]]].reduce(operands[0], axis=dims)
    raise AssertionError(f"the local machine does not know {kind}")
