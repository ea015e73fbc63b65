"""``ProgramPrices``: everything that prices need of a program on a mesh of a machine.

It does not depend on pins.

All of it is computed on first use, once for a problem and every copy of it with other pins.

Start reading at ``ProgramPrices.totals``. Reference: TOAST section 4.5.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np

from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost import price_inputs
from toast_lab.cost.fold import fold
from toast_lab.cost.price_list import NO_PRICES, PriceList
from toast_lab.cost.price_rule import PriceRule
from toast_lab.cost.price_rules import rules_named
from toast_lab.cost.rule_prices import RulePrices
from toast_lab.cost.rule_prices import Totals as Totals
from toast_lab.machines.machine_model import Machine
from toast_lab.machines.topology import AxisLinks, lay_out
from toast_lab.prepare import prepare
from toast_lab.sharding.alike import Alike
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.shard_map_mesh import check_mesh
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.space import Space, build_space


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramPrices:
    """An analysed program on a mesh of a machine, and what is derived from these alone.

    Raises:
        InvalidProblem: the mesh has more devices than the machine connects, or is not the one that
            the program's shard_maps were written for.
    """

    analysis: Analysis
    mesh: Mesh
    machine: Machine
    #: Price dot and convolution only, as the paper does.
    paper_mode: bool
    #: Times that replace those of the rules.
    price_list: PriceList = NO_PRICES
    #: Rules that do not count.
    without: tuple[PriceRule, ...] = ()
    #: The links under each mesh axis.
    links: AxisLinks = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        # Not lazily: a mesh that the program or the machine cannot be on is refused at once.
        check_mesh(self.analysis.program, self.mesh)
        object.__setattr__(self, "links", lay_out(self.machine, self.mesh))

    def of_analysis(self, analysis: Analysis) -> ProgramPrices:
        """These prices for an analysis that differs only in the names of colours."""
        prices = dataclasses.replace(self, analysis=analysis)
        for name in ("inputs", "rules", "op_class", "baseline"):
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
    def rules(self) -> RulePrices:
        """The same without the price list and the action space."""
        return RulePrices(
            program=self.analysis.program,
            mesh=self.mesh,
            machine=self.machine,
            links=self.links,
            paper_mode=self.paper_mode,
            without=self.without,
        )

    @property
    def by_rule(self) -> price_inputs.PriceInputs:
        """``inputs`` without the price list."""
        return self.rules.inputs

    def folded(self, alike: Alike) -> price_inputs.PriceInputs:
        """The program with one op for each class of ops of equal price, see ``fold``."""
        return fold(self.analysis.program, alike, self.inputs)

    def on_mesh(self, mesh: Mesh) -> ProgramPrices:
        """The same program on another mesh, by rule; what does not depend on the mesh is shared.

        Raises:
            InvalidProblem: the mesh has more devices than the machine connects.
        """
        copy = ProgramPrices(
            self.analysis, mesh, self.machine, self.paper_mode, without=self.without
        )
        copy.__dict__["rules"] = self.rules.on_mesh(mesh, copy.links)
        copy.__dict__["baseline"] = self.baseline
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
        for name in ("space", "rules", "op_class", "baseline"):
            # Cached properties keep their values in ``__dict__``.
            copy.__dict__[name] = getattr(self, name)
        return copy

    def without_rules(self, names: Iterable[str]) -> ProgramPrices:
        """The same program without some rules of the price, and without a price list.

        Raises:
            InvalidProblem: there is no rule of such a name.
        """
        rules = rules_named(names)
        copy = dataclasses.replace(self, price_list=NO_PRICES, without=(*self.without, *rules))
        copy.__dict__["rules"] = self.rules.without_rules(rules)
        if "space" in self.__dict__:
            copy.__dict__["space"] = self.space
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
        return self.rules.totals(self.inputs, Sharding(op_factor, value_dim))
