"""``ProgramPrices``: everything that prices need of a program on a mesh of a machine.

It does not depend on pins.

All of it is computed on first use, once for a problem and every copy of it with other pins.

Start reading at ``ProgramPrices.totals``. Reference: TOAST section 4.5.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost import kernel, price_inputs
from toast_lab.cost.buffers import Memory
from toast_lab.cost.fold import fold
from toast_lab.cost.lifetimes import live_bytes
from toast_lab.cost.live_ranges import whole_ranges
from toast_lab.cost.matrix_tiles import products
from toast_lab.cost.price_list import NO_PRICES, PriceList
from toast_lab.cost.program_facts import ProgramFacts, make_program_facts
from toast_lab.ir import program as p
from toast_lab.machines.gpu_products import FEATURES
from toast_lab.machines.machine_model import Machine
from toast_lab.machines.topology import AxisLinks, lay_out
from toast_lab.prepare import prepare
from toast_lab.sharding import steps as st
from toast_lab.sharding.alike import Alike
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.space import Space, build_space


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


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramPrices:
    """An analysed program on a mesh of a machine, and what is derived from these alone.

    Raises:
        InvalidProblem: the mesh has more devices than the machine connects.
    """

    analysis: Analysis
    mesh: Mesh
    machine: Machine
    #: Price dot and convolution only, as the paper does.
    paper_mode: bool
    #: Times that replace those of the rules.
    price_list: PriceList = NO_PRICES
    #: The links under each mesh axis.
    links: AxisLinks = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        # Not lazily: a mesh that the machine cannot hold is refused at once.
        object.__setattr__(self, "links", lay_out(self.machine, self.mesh))

    def of_analysis(self, analysis: Analysis) -> ProgramPrices:
        """These prices for an analysis that differs only in the names of colours."""
        prices = dataclasses.replace(self, analysis=analysis)
        for name in ("inputs", "by_rule", "_program_facts", "op_class", "baseline"):
            if name in self.__dict__:
                prices.__dict__[name] = self.__dict__[name]
        if "space" in self.__dict__:
            prices.__dict__["space"] = dataclasses.replace(self.space, analysis=analysis)
        return prices

    @functools.cached_property
    def space(self) -> Space:
        """The action space without pins."""
        return build_space(self.analysis, self.mesh)

    @functools.cached_property
    def inputs(self) -> price_inputs.PriceInputs:
        """The program op by op, on the machine, as kernels read it."""
        if self.price_list == NO_PRICES:
            return self.by_rule
        listed = self.price_list.listed_times(self.op_class)
        return self.by_rule._replace(listed=listed)

    @functools.cached_property
    def op_class(self) -> np.ndarray:
        """[O] class of each op; ops of one class cost the same under every plan of the space."""
        return fold(self.analysis.program, self.space.alike, self.by_rule).memory.like_op

    @functools.cached_property
    def by_rule(self) -> price_inputs.PriceInputs:
        """``inputs`` without the price list."""
        program, tables = self.analysis.program, st.tables(self.analysis.program)
        facts, memory = self._program_facts
        products = self.machine.products
        rates = price_inputs.MachineRates(
            memory_bytes_per_s=self.machine.memory_bytes_per_s,
            product_bytes_per_s=self.machine.product_bytes_per_s,
            link_bytes_per_s=self.links.bytes_per_s,
            link_latency_s=self.links.latency_s,
            switched=self.links.switched,
            link_shape=self.links.shape,
            op_overhead_s=self.machine.op_overhead_s,
            paper_mode=self.paper_mode,
            tile=float(self.machine.tile),
            multiprocessors=float(products.multiprocessors) if products else 0.0,
            sustained=float(products.sustained) if products else 1.0,
            product_start_s=float(products.start_s) if products else 0.0,
            waiting_room_bytes=price_inputs.WAITING_SHARE * float(self.machine.memory_bytes),
            near_bytes=price_inputs.NEAR_SHARE * float(self.machine.vector_memory_bytes),
            near_room_bytes=price_inputs.ROOM_SHARE * float(self.machine.vector_memory_bytes),
            near_bytes_per_s=price_inputs.NEAR_BYTES_PER_S,
            ring_devices=float(self.machine.collective_matmul),
            # A dim of a torus has links both ways.
            ring_bytes_per_s=0.5 * self.machine.links[0].bytes_per_s,
            transposed_numbers_per_s=float(self.machine.transposed_numbers_per_s) or np.inf,
            unfused_numbers_per_s=float(self.machine.unfused_numbers_per_s) or np.inf,
            vector_steps_per_s=float(self.machine.vector_steps_per_s) or np.inf,
            gathered_ahead=0.0 if self.paper_mode else float(self.machine.gathered_ahead),
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
    def _program_facts(self) -> tuple[ProgramFacts, Memory]:
        """The facts that do not depend on the mesh."""
        program = self.analysis.program
        shapes = products(program)
        peak_flops = []
        for op in range(program.n_ops):
            values = [*program.operands(op), *program.results(op)]
            dtype = program.value_dtype[values[0]] if values else "f32"
            peak = self.machine.peak_flops(dtype)
            units = self.machine.products
            if units is not None and program.op_class[op] == p.DOT:
                if dtype == "f32" and program.detail[op] == "highest" and units.full_f32_flops:
                    peak = units.full_f32_flops
                # The kernel multiplies every type by the share ``sustained``.
                peak *= units.share_of(dtype) / units.sustained
            elif units is not None and program.op_class[op] == p.CONVOLUTION:
                features = min(shapes.depth[op], shapes.columns[op])
                peak *= units.convolution_share(features or FEATURES)
            peak_flops.append(peak)
        return make_program_facts(
            program,
            st.tables(program),
            peak_flops,
            self.machine.compiler,
            has_bfloat16="bf16" in self.machine.flops,
            memory_bytes_per_s=self.machine.memory_bytes_per_s,
            vector_memory_bytes=float(self.machine.vector_memory_bytes),
        )

    def folded(self, alike: Alike) -> price_inputs.PriceInputs:
        """The program with one op for each class of ops of equal price, see ``fold``."""
        return fold(self.analysis.program, alike, self.inputs)

    def on_mesh(self, mesh: Mesh) -> ProgramPrices:
        """The same program on another mesh, by rule; what does not depend on the mesh is shared.

        Raises:
            InvalidProblem: the mesh has more devices than the machine connects.
        """
        copy = ProgramPrices(self.analysis, mesh, self.machine, self.paper_mode)
        for name in ("_program_facts", "baseline"):
            copy.__dict__[name] = getattr(self, name)
        return copy

    @functools.cached_property
    def _entry_sources(self) -> list[str]:
        return self.price_list.sources(self.op_class)

    def source(self, entry: int, *, computing: bool) -> str:
        """Where the time of a step comes from, by the step's entry in ``StepPrices``."""
        if entry >= 0:
            return self._entry_sources[entry]
        return self.price_list.rule_source(computing=computing)

    def with_prices(self, price_list: PriceList) -> ProgramPrices:
        """The same program with another price list; what does not depend on it is shared."""
        copy = dataclasses.replace(self, price_list=price_list)
        for name in ("space", "by_rule", "op_class", "baseline"):
            # Cached properties keep their values in ``__dict__``.
            copy.__dict__[name] = getattr(self, name)
        return copy

    @functools.cached_property
    def baseline(self) -> tuple[float, float]:
        """Unsharded (time_s, peak_bytes), the denominators of RT and MP."""
        prepare("price")
        totals = self.totals(*Sharding.whole(self.analysis.program, len(self.mesh.axes)))
        return totals.time_s, totals.peak_bytes

    def totals(self, op_factor: np.ndarray, value_dim: np.ndarray) -> Totals:
        """Price a sharding, given by its arrays, over the whole program.

        Every op and every step is priced by itself.
        """
        inputs, tables = self.inputs, self.inputs.tables
        steps, n_steps = st.lower_all(tables, op_factor, value_dim, inputs.axis_size)
        each, prices = price_inputs.step_prices(len(steps.kind)), price_inputs.prices(tables)
        lives = price_inputs.lifetimes(inputs)
        kernel.price_steps(inputs, st.real_ops(tables), steps, n_steps, each, prices)
        start_s = np.zeros(len(steps.kind))
        compute_s, comm_s, overlapped_s = kernel.clocks(
            tables, steps, n_steps, each.time_s, start_s
        )
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
