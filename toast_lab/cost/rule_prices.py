"""``RulePrices``: a program on a mesh of a machine, priced by rule, without an action space.

The body of a ``shard_map`` is such a program: local shapes, nothing to split, and collectives whose
time depends on no plan. What one run of it takes is the price of the op in the program around it.

Start reading at ``RulePrices.totals``. Reference: TOAST section 4.5.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from toast_lab.cost import kernel, price_inputs
from toast_lab.cost.buffers import Memory
from toast_lab.cost.compiler_styles import STYLES
from toast_lab.cost.lifetimes import live_bytes
from toast_lab.cost.live_ranges import whole_ranges
from toast_lab.cost.matrix_tiles import products
from toast_lab.cost.price_rule import COLUMNS, PriceRule, neutral
from toast_lab.cost.program_facts import (
    GivenPrices,
    ProgramFacts,
    make_program_facts,
    none_given,
    with_neutral_columns,
)
from toast_lab.ir import program as p
from toast_lab.machines.collectives import named_time_s
from toast_lab.machines.gpu_products import FEATURES
from toast_lab.machines.machine_model import Machine
from toast_lab.machines.topology import AxisLinks
from toast_lab.sharding import steps as st
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.step_kinds import COMPUTE, PERMUTE, STEP_KINDS


class Totals(NamedTuple):
    """Price of a whole program, with its steps and what each of them costs."""

    time_s: float
    compute_s: float
    comm_s: float
    peak_bytes: float
    overlapped_s: float
    start_s: np.ndarray  #: start of each step if all that can overlap does
    peak_op: int
    #: Only the first ``n_steps`` rows are filled.
    steps: st.Steps
    n_steps: int
    each: price_inputs.StepPrices
    prices: price_inputs.Prices
    lives: price_inputs.Lifetimes


class Entry(NamedTuple):
    """A value that a ``shard_map`` takes or leaves with its axes in another order than the mesh's.

    Its parts move between devices before or after the body runs.
    """

    value: int
    axes: tuple[str, ...]
    local_bytes: float
    time_s: float
    after: bool  #: a result


#: Names of collectives as steps have them.
_STEP_NAMES = {
    **{kind: kind for kind in STEP_KINDS},
    "collective_permute": STEP_KINDS[PERMUTE],
}


class InsideRow(NamedTuple):
    """Something that takes time inside a ``shard_map``; numbers are those of one run."""

    kind: str  #: of the op or collective
    axes: tuple[str, ...] | None  #: of a collective; None: an op
    value: str
    where: str
    flops: float
    bytes: float  #: an op moves them in all its rounds, a collective in each
    time_s: float  #: of all its rounds
    times: float  #: its rounds


class BodyPrice(NamedTuple):
    """What one run of the body of a ``shard_map`` takes on one device."""

    shard_map: p.ShardMap
    totals: Totals
    inside: dict[int, p.WrittenCollective]  #: collectives of the body, by op
    entries: tuple[Entry, ...]

    @property
    def time_s(self) -> float:
        """Seconds of one run."""
        return self.totals.time_s + sum(entry.time_s for entry in self.entries)

    @property
    def comm_s(self) -> float:
        """Seconds of one run that are spent in collectives."""
        return self.totals.comm_s + sum(entry.time_s for entry in self.entries)

    @property
    def held_bytes(self) -> float:
        """Most bytes of its own that one run holds beside its operands and results."""
        body = self.shard_map.body
        # A result that is an operand handed on is in memory once in the body, twice around it.
        outside = {*range(body.n_arguments), *body.outputs.tolist()}
        return max(0.0, self.totals.peak_bytes - sum(map(body.nbytes, outside)))

    def rows(self, program: p.Program) -> Iterator[InsideRow]:
        """What takes time in one run, in order; ``program`` is the one around it."""
        yield from self._entry_rows(program, after=False)
        body, steps, each = self.shard_map.body, self.totals.steps, self.totals.each
        for row in range(self.totals.n_steps):
            op, time_s = int(steps.op[row]), float(each.time_s[row])
            collective, times = self.inside.get(op), float(each.times[row])
            if collective is None and time_s == 0.0 == each.flops[row]:
                continue
            results, moved_bytes = body.results(op), float(each.bytes[row])
            if collective is not None and times:
                moved_bytes /= times
            yield InsideRow(
                kind=body.kind[op] if collective is None else _STEP_NAMES[collective.kind],
                axes=None if collective is None else collective.axes,
                value=self.shard_map.name_inside(results[0]) if results else "",
                where=body.where(op),
                flops=float(each.flops[row]),
                bytes=moved_bytes,
                time_s=time_s,
                times=times,
            )
        yield from self._entry_rows(program, after=True)

    def _entry_rows(self, program: p.Program, *, after: bool) -> Iterator[InsideRow]:
        for entry in self.entries:
            if entry.after == after:
                yield InsideRow(
                    kind=STEP_KINDS[PERMUTE],
                    axes=entry.axes,
                    value=program.value_name[entry.value],
                    where=program.where(self.shard_map.op),
                    flops=0.0,
                    bytes=entry.local_bytes,
                    time_s=entry.time_s,
                    times=1.0,
                )


@dataclasses.dataclass(frozen=True, eq=False)
class RulePrices:
    """A program on a mesh of a machine."""

    program: p.Program
    mesh: Mesh
    machine: Machine
    links: AxisLinks  #: the links under each mesh axis
    #: Price dot and convolution only, as the paper does.
    paper_mode: bool
    #: Rules that do not count.
    without: tuple[PriceRule, ...] = ()

    def on_mesh(self, mesh: Mesh, links: AxisLinks) -> RulePrices:
        """The same program on another mesh; what does not depend on the mesh is shared."""
        copy = dataclasses.replace(self, mesh=mesh, links=links)
        if not self.program.shard_maps:
            copy.__dict__["facts"] = self.facts
        return copy

    def without_rules(self, rules: tuple[PriceRule, ...]) -> RulePrices:
        """The same program without some more rules; facts that they do not touch are shared."""
        copy = dataclasses.replace(self, without=(*self.without, *rules))
        if not self.program.shard_maps and all(rule.is_of_columns for rule in rules):
            facts, memory = self.facts
            columns = {place: copy._neutral(place) for place in COLUMNS}
            copy.__dict__["facts"] = with_neutral_columns(facts, columns), memory
        return copy

    def _neutral(self, place: str) -> dict[str, Any]:
        return neutral(self.without, place, self.machine.compiler)

    @functools.cached_property
    def priced_machine(self) -> Machine:
        """The machine, with neutral numbers for rules that do not count."""
        return dataclasses.replace(self.machine, **self._neutral("machine"))

    @functools.cached_property
    def inputs(self) -> price_inputs.PriceInputs:
        """The program op by op, on the machine, as kernels read it."""
        program, tables = self.program, st.tables(self.program)
        facts, memory = self.facts
        machine = self.priced_machine
        products = machine.products
        rates = price_inputs.MachineRates(
            memory_bytes_per_s=machine.memory_bytes_per_s,
            product_bytes_per_s=machine.product_bytes_per_s,
            link_shape=self.links.shape,
            op_overhead_s=machine.op_overhead_s,
            paper_mode=self.paper_mode,
            tile=float(machine.tile),
            multiprocessors=float(products.multiprocessors) if products else 0.0,
            sustained=float(products.sustained) if products else 1.0,
            product_start_s=float(products.start_s) if products else 0.0,
            waiting_room_bytes=price_inputs.WAITING_SHARE * float(machine.memory_bytes),
            near_bytes=price_inputs.NEAR_SHARE * float(machine.vector_memory_bytes),
            near_room_bytes=price_inputs.ROOM_SHARE * float(machine.vector_memory_bytes),
            near_bytes_per_s=float(machine.vector_memory_bytes_per_s) or np.inf,
            combined_sum_bytes=float(machine.combined_sum_bytes),
            ring_devices=float(machine.collective_matmul),
            # A dim of a torus has links both ways.
            ring_bytes_per_s=0.5 * machine.links[0].bytes_per_s,
            transposed_numbers_per_s=float(machine.transposed_numbers_per_s) or np.inf,
            shifted_numbers_per_s=float(machine.shifted_numbers_per_s) or np.inf,
            gathered_ahead=0.0 if self.paper_mode else float(machine.gathered_ahead),
            ahead_of=1.0,
        )
        return price_inputs.PriceInputs(
            tables=tables,
            facts=facts,
            memory=memory,
            ranges=whole_ranges(memory),
            times=np.ones(program.n_ops),
            rates=rates,
            axis_size=self.mesh.array(),
            listed=price_inputs.no_listed_times(program.n_ops),
        )

    @functools.cached_property
    def facts(self) -> tuple[ProgramFacts, Memory]:
        """The facts that do not depend on the plan; only shard_maps let them depend on the mesh."""
        program, machine = self.program, self.priced_machine
        shapes = products(program)
        peak_flops = []
        for op in range(program.n_ops):
            values = [*program.operands(op), *program.results(op)]
            dtype = program.value_dtype[values[0]] if values else "f32"
            peak = machine.peak_flops(dtype)
            units = machine.products
            if units is not None and program.op_class[op] == p.DOT:
                if dtype == "f32" and program.detail[op] == "highest" and units.full_f32_flops:
                    peak = units.full_f32_flops
                # The kernel multiplies every type by the share ``sustained``.
                peak *= units.share_of(dtype) / units.sustained
            elif units is not None and program.op_class[op] == p.CONVOLUTION:
                features = min(shapes.depth[op], shapes.columns[op])
                peak *= units.convolution_share(features or FEATURES)
            peak_flops.append(peak)
        facts, memory = make_program_facts(
            program,
            st.tables(program),
            peak_flops,
            STYLES[machine.compiler]._replace(**self._neutral("style")),
            given=self._given(),
            has_bfloat16="bf16" in machine.flops,
            memory_bytes_per_s=machine.memory_bytes_per_s,
            vector_memory_bytes=float(machine.vector_memory_bytes),
        )
        columns = {place: self._neutral(place) for place in COLUMNS}
        return with_neutral_columns(facts, columns), memory

    @functools.cached_property
    def bodies(self) -> dict[int, BodyPrice]:
        """Prices of the bodies of all shard_maps, by op."""
        prices = {}
        for shard_map in self.program.shard_maps:
            body = dataclasses.replace(self, program=shard_map.body)
            totals = body.totals(body.inputs, Sharding.whole(body.program, len(self.mesh.axes)))
            prices[shard_map.op] = BodyPrice(
                shard_map=shard_map,
                totals=totals,
                inside={row.op: row for row in shard_map.body.collectives},
                entries=tuple(self._entries(shard_map)),
            )
        return prices

    def _entries(self, shard_map: p.ShardMap) -> list[Entry]:
        """Operands and results whose axes are in another order than the mesh's."""
        program, mesh, entries = self.program, self.mesh, []
        results = list(program.results(shard_map.op))
        values = [*program.operands(shard_map.op), *results]
        specs = (*shard_map.operand_specs, *shard_map.result_specs)
        for position, (value, spec) in enumerate(zip(values, specs, strict=True)):
            axes = tuple(
                axis
                for dim in spec
                if list(dim) != sorted(dim, key=mesh.axes.index)
                for axis in dim
            )
            if axes:
                used = [axis for dim in spec for axis in dim]
                local_bytes = program.nbytes(value) / mesh.ways(used)
                entries.append(
                    Entry(
                        value=value,
                        axes=axes,
                        local_bytes=local_bytes,
                        time_s=self._collective_s("collective_permute", axes, local_bytes),
                        after=position >= len(values) - len(results),
                    )
                )
        return entries

    def _collective_s(self, kind: str, axes: tuple[str, ...], local_bytes: float) -> float:
        """Seconds of a collective; ``local_bytes`` is the larger of operand and result."""
        time_s = named_time_s(kind, axes, local_bytes, mesh=self.mesh, links=self.links)
        assert time_s is not None, kind
        return time_s

    def _given(self) -> GivenPrices:
        """Prices of the ops that no plan changes."""
        program, given = self.program, none_given(self.program.n_ops)
        for op, body in self.bodies.items():
            given.time_s[op] = body.time_s
            given.moved_bytes[op] = float(body.totals.each.bytes[: body.totals.n_steps].sum())
            given.held_bytes[op] = body.held_bytes
        for collective in program.collectives:
            values = (program.operands(collective.op), program.results(collective.op))
            local_bytes = max(sum(map(program.nbytes, row)) for row in values)
            given.time_s[collective.op] = self._collective_s(
                collective.kind, collective.axes, local_bytes
            )
            given.moved_bytes[collective.op] = local_bytes
        return given

    def totals(self, inputs: price_inputs.PriceInputs, sharding: Sharding) -> Totals:
        """Price a sharding over the whole program, every op and every step by itself.

        ``inputs`` are those of this program, with or without a price list.
        """
        op_factor, value_dim = sharding
        tables = inputs.tables
        steps, n_steps = st.lower_all(tables, op_factor, value_dim, inputs.axis_size)
        each, prices = price_inputs.step_prices(len(steps.kind)), price_inputs.prices(tables)
        lives = price_inputs.lifetimes(inputs)
        kernel.price_steps(inputs, st.real_ops(tables), steps, n_steps, each, prices)
        start_s = np.zeros(len(steps.kind))
        compute_s, comm_s, overlapped_s = kernel.clocks(
            tables, steps, n_steps, each.time_s, start_s
        )
        inside_s = self._comm_inside_s(steps, n_steps, each.time_s)
        compute_s, comm_s = compute_s - inside_s, comm_s + inside_s
        peak_bytes, peak_op = live_bytes(inputs, steps, prices, lives)
        return Totals(
            time_s=compute_s + comm_s,
            compute_s=compute_s,
            comm_s=comm_s,
            peak_bytes=peak_bytes,
            overlapped_s=overlapped_s,
            start_s=start_s,
            peak_op=peak_op,
            steps=steps,
            n_steps=n_steps,
            each=each,
            prices=prices,
            lives=lives,
        )

    def _comm_inside_s(self, steps: st.Steps, n_steps: int, time_s: np.ndarray) -> float:
        """Seconds that collectives take inside ops: those that the user wrote."""
        share = dict.fromkeys((row.op for row in self.program.collectives), 1.0)
        share |= {op: body.comm_s / body.time_s for op, body in self.bodies.items() if body.time_s}
        if not share:
            return 0.0
        return sum(
            share.get(int(steps.op[row]), 0.0) * float(time_s[row])
            for row in np.flatnonzero(steps.kind[:n_steps] == COMPUTE).tolist()
        )
