"""``Problem``: an analysed program on a mesh of a machine, ready to price plans.

Start reading at ``price``. Reference: TOAST section 4.5.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toast_lab import checks
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost.host_traffic import HostTraffic, host_traffic
from toast_lab.cost.peak import Held, held_at
from toast_lab.cost.price_inputs import PriceInputs
from toast_lab.cost.price_list import RULE, SOURCES, PriceList
from toast_lab.cost.program_prices import ProgramPrices, Totals
from toast_lab.cost.ragged_products import ragged_notes
from toast_lab.cost.reprice import Repricer
from toast_lab.ir.program_notes import program_notes
from toast_lab.machines.catalogue import machine as find_machine
from toast_lab.machines.machine_model import Machine
from toast_lab.machines.topology import AxisLinks
from toast_lab.prepare import prepare
from toast_lab.sharding.annotation_pins import keep_annotations
from toast_lab.sharding.divisibility import Divisibility, divisibility
from toast_lab.sharding.mesh import Mesh, make_mesh
from toast_lab.sharding.pins import Pins, make_pins
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.space import Space
from toast_lab.sharding.state import State
from toast_lab.sharding.step_kinds import COMPUTE, SLICE, STEP_KINDS
from toast_lab.sharding.wishes import Wish, given_as, read_all
from toast_lab.text import bytes_text


class CollectiveRow(NamedTuple):
    """One collective of a plan with its price."""

    kind: str
    axes: tuple[str, ...]
    value: str
    op: int
    where: str
    local_bytes: float  #: bytes on a device before or after it, whichever are more
    time_s: float
    source: str = RULE  #: where the time comes from, one of ``price_list.SOURCES``
    times: float = 1.0  #: how often it runs in one step of the program
    by_hand: bool = False  #: the user wrote it, inside the ``shard_map`` that is ``op``


class OpRow(NamedTuple):
    """One op of a plan with its price; ops inside a ``shard_map`` have rows of their own."""

    op: int
    kind: str
    result: str
    where: str
    flops: float
    moved_bytes: float
    time_s: float
    source: str = RULE  #: where the time comes from, one of ``price_list.SOURCES``


class _CostRows(NamedTuple):
    """Rows of a ``Cost`` under construction, and when each starts."""

    ops: list[OpRow]
    op_start_s: list[float]
    collectives: list[CollectiveRow]
    collective_start_s: list[float]


@dataclasses.dataclass(frozen=True, eq=False)
class Cost:
    """Price of one plan: estimates for one device, none of them measured.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> plan = tl.Plan.from_actions(problem, ["S@0->data"])
        >>> cost = tl.price(problem, plan)
        >>> cost.time_s < tl.price(problem, tl.replicated(problem)).time_s
        True
        >>> sorted({row.kind for row in cost.collectives}), cost.count("all_gather")
        (['all_gather', 'all_reduce'], 2)
        >>> cost.fits, cost.peak_bytes < problem.memory_limit_bytes
        (True, True)
    """

    time_s: float  #: compute and collectives one after the other
    #: critical path if collectives run beside compute as far as the machine lets them
    overlapped_s: float
    compute_s: float
    comm_s: float
    peak_bytes: float
    memory_limit_bytes: float
    relative_time: float  #: RT(s): time over unsharded time
    memory_penalty: float  #: MP(s)
    score: float  #: C(s) = RT(s) + MP(s), what searches minimise
    collectives: tuple[CollectiveRow, ...]
    ops: tuple[OpRow, ...]
    peak_op: int  #: op at which memory peaks
    at_peak: tuple[Held, ...]  #: contents of memory there, largest first; add up to ``peak_bytes``
    host: HostTraffic  #: what is in host memory and crosses the link to it, beside all the others
    timeline_bytes: np.ndarray  #: [O+1] bytes alive at each op
    #: start of each of ``ops`` in the schedule that takes ``overlapped_s``
    op_start_s: np.ndarray
    collective_start_s: np.ndarray  #: the same for each of ``collectives``
    notes: tuple[str, ...] = ()  #: sentences on what is assumed, and on ragged products

    def __repr__(self) -> str:
        return f"<Cost {self}>"

    def __str__(self) -> str:
        fits = "fits" if self.fits else f"over the limit of {bytes_text(self.memory_limit_bytes)}"
        return (
            f"{self.time_s * 1e3:.3f} ms ({self.compute_s * 1e3:.3f} compute, "
            f"{self.comm_s * 1e3:.3f} in "
            f"{len(self.collectives)} collectives), {bytes_text(self.peak_bytes)}, {fits}; C(s) "
            f"{self.score:.4f}"
            + (f"; {self.host}" if self.host.held_bytes else "")
            + "".join(f"; {note}" for note in self.notes)
        )

    @property
    def fits(self) -> bool:
        """Does the plan stay within the memory limit?"""
        return self.peak_bytes <= self.memory_limit_bytes

    @property
    def priced_by(self) -> str:
        """Where the time comes from: "rule", or "62% compiled, 38% rule"."""
        times_s = dict.fromkeys(reversed(SOURCES), 0.0)
        for source, time_s in (
            *((row.source, row.time_s) for row in self.ops),
            *((row.source, row.time_s) for row in self.collectives),
        ):
            times_s[source] += time_s
        total_s = sum(times_s.values())
        if times_s[RULE] == total_s:
            return RULE
        return ", ".join(
            f"{time_s / total_s:.0%} {source}" for source, time_s in times_s.items() if time_s
        )

    @property
    def sent_bytes(self) -> float:
        """Bytes of one device that go into collectives, or come out of them, in one step."""
        return sum(row.local_bytes * row.times for row in self.collectives)

    def count(self, kind: str, axis: str | None = None) -> int:
        """Number of collectives of ``kind`` (over ``axis``)."""
        return sum(
            collective.kind == kind and (axis is None or axis in collective.axes)
            for collective in self.collectives
        )


class Quick(NamedTuple):
    """The figures of a state that a search needs."""

    score: float
    time_s: float
    peak_bytes: float
    fits: bool


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class Problem:
    """An analysed program, a mesh, a machine and a memory limit.

    Everything else is derived from the fields on first use: here if it depends on the pins, else in
    ``prices``, which a problem shares with its copies that have other pins.

    Where JAX lowers the function differently for the machine's platform, ``analysis`` becomes that
    of the program for it (``Model.lowered_for``), and plans of the problem are plans of that one.

    Args:
        analysis: result of the static analysis.
        mesh: ``{"data": 4, "model": 2}``, ``"4x2"`` or a Mesh.
        machine: name, machine file (ends in ``.toml``) or Machine.
        memory_limit_bytes: per device; the machine's memory by default.
        memory_weight: the constant C of the paper's memory penalty.
        paper_mode: price dot and convolution only, as the paper does.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("mlp", batch=64)
        >>> problem = tl.Problem(tl.analyse(model), {"data": 2, "model": 2})
        >>> problem
        <Problem mlp on data=2,model=2 of tpu-v5e, 16 GiB a device>
        >>> time_s, peak_bytes = problem.baseline  # of one device that runs all of it
        >>> problem.pin(("B", "data")).pins is None
        False
        >>> tl.Problem(problem.analysis, {"data": 0})
        Traceback (most recent call last):
            ...
        toast_lab.errors.InvalidProblem: bad mesh: axis data has size 0, must be a whole ...
    """

    analysis: Analysis
    mesh: Mesh
    machine: Machine
    #: Per device; infinity: no limit.
    memory_limit_bytes: float
    memory_weight: float
    paper_mode: bool
    #: Requirements that every plan of a search meets.
    pins: Pins | None
    #: Everything that is derived from the fields above, pins apart.
    prices: ProgramPrices

    def __init__(
        self,
        analysis: Analysis,
        mesh: Mesh | Mapping[str, int] | str,
        machine: str | Path | Machine = "tpu-v5e",
        *,
        memory_limit_bytes: float | None = None,
        memory_weight: float = 10.0,
        paper_mode: bool = False,
    ) -> None:
        mesh, machine = make_mesh(mesh), find_machine(machine)
        analysis = analysis.lowered_for(machine.compiler)
        prices = ProgramPrices(analysis, mesh, machine, paper_mode)
        if memory_limit_bytes is None:
            memory_limit_bytes = machine.memory_bytes
        elif memory_limit_bytes == np.inf:
            memory_limit_bytes = float("inf")
        else:
            memory_limit_bytes = checks.number("memory_limit_bytes", memory_limit_bytes, above=0.0)
        self._hold(
            analysis=analysis,
            mesh=mesh,
            machine=machine,
            memory_limit_bytes=memory_limit_bytes,
            memory_weight=checks.number("memory_weight", memory_weight, 0.0),
            paper_mode=paper_mode,
            pins=None,
            prices=prices,
        )

    def __repr__(self) -> str:
        limit = self.memory_limit_bytes
        memory = "no memory limit" if limit == float("inf") else f"{bytes_text(limit)} a device"
        pins = "" if self.pins is None else ", with pins"
        name = self.analysis.program.name
        return f"<Problem {name} on {self.mesh} of {self.machine.name}, {memory}{pins}>"

    def _hold(self, **fields: object) -> None:
        """Set fields, although the dataclass is frozen."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    # -- derived ----------------------------------------------------------------------------------
    @property
    def links(self) -> AxisLinks:
        """The links under each mesh axis."""
        return self.prices.links

    @property
    def baseline(self) -> tuple[float, float]:
        """Unsharded (time_s, peak_bytes), the denominators of RT and MP."""
        return self.prices.baseline

    @property
    def price_list(self) -> PriceList:
        """Times that replace those of the rules."""
        return self.prices.price_list

    def with_prices(self, price_list: PriceList) -> Problem:
        """This problem with another price list.

        C(s) stays relative to the unsharded program priced without a list, so that scores can be
        compared.

        Raises:
            InvalidProblem: the list belongs to another program.
        """
        return self._copy(prices=self.prices.with_prices(price_list))

    def without_rules(self, *names: str) -> Problem:
        """This problem priced without some rules of the price, and without a price list.

        Args:
            names: names of ``price_rules.RULES``, such as ``"combined_sums"``.

        Raises:
            InvalidProblem: there is no rule of such a name.

        Examples:
            >>> import toast_lab as tl
            >>> problem = tl.Problem(tl.analyse(tl.load("mlp")), {"data": 4})
            >>> without = problem.without_rules("memory_sustained")
            >>> tl.price(without, tl.replicated(without)).time_s < problem.baseline[0]
            True
        """
        return self._copy(prices=self.prices.without_rules(names))

    def on_mesh(self, mesh: Mesh | Mapping[str, int] | str) -> Problem:
        """This problem on another mesh, without pins and priced by rule.

        Raises:
            InvalidProblem: the mesh is invalid or has more devices than the machine connects.
        """
        mesh = make_mesh(mesh)
        return self._copy(mesh=mesh, pins=None, prices=self.prices.on_mesh(mesh))

    def of_program(self, analysis: Analysis) -> Problem:
        """This problem of another program, with its mesh, machine, limit and pins; priced by rule.

        Raises:
            InvalidProblem: a pin cannot be kept; all are listed.
        """
        own = Problem(
            analysis,
            self.mesh,
            self.machine,
            memory_limit_bytes=self.memory_limit_bytes,
            memory_weight=self.memory_weight,
            paper_mode=self.paper_mode,
        )
        return own if self.pins is None else own._keeping_to(self.pins.wishes)

    @functools.cached_property
    def space(self) -> Space:
        """The action space.

        Shardings that pins fix are set from the start, and actions that they rule out are left out.
        """
        return self.prices.space if self.pins is None else self.pins.narrowed(self.prices.space)

    @functools.cached_property
    def folded(self) -> PriceInputs:
        """The program with one op for each class of ops of equal price."""
        return self.prices.folded(self.space.alike)

    # -- what if ----------------------------------------------------------------------------------
    def pin(self, target: object, spec: object = None) -> Problem:
        """This problem with one more requirement that every plan meets.

        Args:
            target: an action as ``Plan.from_actions`` takes it, or the path of an argument or
                result.
            spec: spec of the argument or result, one entry a dim: None (whole), an axis, several,
                or ``"*"`` (open).

        Raises:
            InvalidProblem: the pins contradict each other, change nothing or do not divide; all are
                listed, with sizes.
        """
        return self._with(
            read_all(self.analysis, self.mesh, [(target,) if spec is None else (target, spec)], [])
        )

    def forbid(self, target: object, axis: str | None = None) -> Problem:
        """This problem with one more action or cut that no plan may have.

        Args:
            target: an action, forbidden in all its resolutions unless it gives one; or the path
                of an argument or result.
            axis: the axis over which the argument or result may not be cut.

        Raises:
            InvalidProblem: as ``pin``.
        """
        return self._with(
            read_all(self.analysis, self.mesh, [], [(target,) if axis is None else (target, axis)])
        )

    def what_if(self, pins: Iterable[object] = (), forbids: Iterable[object] = ()) -> Problem:
        """This problem with several pins and forbidden actions or cuts at once.

        Each is an action, or a tuple: (path, spec) for pins, (path, axis) for forbidden cuts.

        Strings are accepted too: ``"batch->data"`` and ``"params['w']=data,-"`` as pins,
        ``"params['w']->data"`` as a forbidden cut.
        """
        requests = [
            [given_as(self.analysis, request) for request in items] for items in (pins, forbids)
        ]
        return self._with(read_all(self.analysis, self.mesh, *requests))

    def keep_annotations(self, *, strict: bool = True) -> Problem:
        """This problem with the shardings that the user wrote into the program as pins.

        These shardings are the program's ``tl.annotations``.

        Those that name an axis missing from this mesh, do not divide or contradict each other
        cannot be kept.

        Args:
            strict: refuse if there are any such; else they are left out, and ``problem.pins.notes``
                says which and why.

        Raises:
            InvalidProblem: some cannot be kept; all are listed.
        """
        before = () if self.pins is None else self.pins.wishes
        wishes, left_out = keep_annotations(self.prices.space, before, strict=strict)
        return self._keeping_to(wishes, left_out)

    def _with(self, wishes: Sequence[Wish]) -> Problem:
        return self._keeping_to([*(() if self.pins is None else self.pins.wishes), *wishes])

    def _keeping_to(self, wishes: Sequence[Wish], notes: Sequence[str] = ()) -> Problem:
        notes = (*(() if self.pins is None else self.pins.notes), *notes)
        return self._pinned(
            make_pins(self.prices.space, wishes, notes) if wishes or notes else None
        )

    def _pinned(self, pins: Pins | None) -> Problem:
        """A copy with other pins, which shares all that does not depend on them."""
        return self._copy(pins=pins)

    def _copy(self, **changed: object) -> Problem:
        copy = object.__new__(Problem)
        copy._hold(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})
        copy._hold(**changed)
        return copy

    def renamed(self, names: Mapping[str, str]) -> Problem:
        """This problem with some colours renamed: ``problem.renamed({"x_rows": "batch"})``.

        Its plans keep the new names when they are saved.

        Raises:
            ToastError: a colour does not exist, or a new name is taken or cannot be written in an
                action; the message lists every offence.
        """
        return self.named_as_in(self.analysis.renamed(names))

    def named_as_in(self, analysis: Analysis) -> Problem:
        """This problem with the names that colours have in another analysis of its program."""
        if self.analysis is analysis:
            return self
        return self._copy(analysis=analysis, prices=self.prices.of_analysis(analysis))

    @property
    def unpinned(self) -> Problem:
        """This problem without any pins."""
        return self if self.pins is None else self._pinned(None)

    def divisibility(self, plan: ShardingPlan | None = None) -> Divisibility:
        """Report which dims and arguments this mesh cannot cut.

        With ``plan``, the arguments that it keeps whole.
        """
        return divisibility(self.analysis, self.mesh, plan)

    def pricer(self) -> Pricer:
        """A pricer, for any number of threads."""
        return Pricer(self)

    def describe(self) -> str:
        """One line that tells users what the problem is."""
        pins_text = "" if self.pins is None else f", {'; '.join(self.pins.texts)}"
        return f"{self.analysis.program.name} on {self.mesh} of {self.machine.name}{pins_text}"


class Pricer:
    """Prices states and plans of one problem. May be used by several threads at once."""

    def __init__(self, problem: Problem) -> None:
        prepare("price")
        self.problem = problem
        self._baseline = problem.baseline

    @functools.cached_property
    def repricer(self) -> Repricer:
        """The repricer of states that are given by classes; see ``quick``."""
        return Repricer(self.problem.folded)

    def totals(self, op_factor: np.ndarray, value_dim: np.ndarray) -> Totals:
        """Price a state given by its arrays over the whole program, every op and step by itself."""
        return self.problem.prices.totals(op_factor, value_dim)

    def score(self, time_s: float, peak_bytes: float) -> tuple[float, float, float]:
        """(C(s), RT(s), MP(s)) of the paper."""
        base_time, base_peak = self._baseline
        relative = time_s / base_time if base_time > 0 else 1.0
        excess_bytes = peak_bytes - self.problem.memory_limit_bytes
        penalty = (
            self.problem.memory_weight * excess_bytes / base_peak
            if excess_bytes > 0 and base_peak > 0
            else 0.0
        )
        return relative + penalty, relative, penalty

    def quick(self, state: State) -> Quick:
        """Price a search state.

        Only ops that changed since the last state priced on the way to it are priced anew.
        """
        before = state.priced
        if type(before) is not tuple or before[0] is not self:
            before = (self, None)
        time_s, peak_bytes, _, after = self.repricer.price(state.ops, state.values, before[1])
        state.priced = (self, after)
        return self.judged(time_s, peak_bytes)

    def of_sharding(self, op_factor: np.ndarray, value_dim: np.ndarray) -> Quick:
        """Price a sharding of the whole program, given by its arrays."""
        totals = self.totals(op_factor, value_dim)
        return self.judged(totals.time_s, totals.peak_bytes)

    def judged(self, time_s: float, peak_bytes: float) -> Quick:
        """Figures of a sharding, from its time and its peak memory."""
        score, _, _ = self.score(time_s, peak_bytes)
        return Quick(score, time_s, peak_bytes, peak_bytes <= self.problem.memory_limit_bytes)

    def full(self, plan: ShardingPlan) -> Cost:
        """Price a plan, with every term kept apart."""
        totals = self.totals(plan.op_factor, plan.value_dim)
        score, relative, penalty = self.score(totals.time_s, totals.peak_bytes)
        hidden_s = self.problem.machine.overlap * (totals.time_s - totals.overlapped_s)
        program, rows = self.problem.analysis.program, self._rows(totals)
        memory = self.problem.prices.inputs.memory
        at_peak = held_at(
            program=program,
            memory=memory,
            prices=totals.prices,
            lives=totals.lives,
            op=totals.peak_op,
        )
        return Cost(
            time_s=totals.time_s,
            overlapped_s=totals.time_s - hidden_s,
            compute_s=totals.compute_s,
            comm_s=totals.comm_s,
            peak_bytes=totals.peak_bytes,
            memory_limit_bytes=self.problem.memory_limit_bytes,
            relative_time=relative,
            memory_penalty=penalty,
            score=score,
            collectives=tuple(rows.collectives),
            ops=tuple(rows.ops),
            peak_op=totals.peak_op,
            at_peak=tuple(at_peak),
            host=host_traffic(program, plan, self.problem.machine.host_link_bytes_per_s),
            timeline_bytes=totals.lives.live[: program.n_ops + 1],
            op_start_s=np.asarray(rows.op_start_s),
            collective_start_s=np.asarray(rows.collective_start_s),
            notes=(
                *program_notes(program),
                *ragged_notes(program, self.problem.machine.compiler),
            ),
        )

    def _rows(self, totals: Totals) -> _CostRows:
        """The rows of all steps that take time, in order."""
        program, mesh = self.problem.analysis.program, self.problem.mesh
        steps, each, source = totals.steps, totals.each, self.problem.prices.source
        start_s = _starts(totals, self.problem.machine.overlap)
        bodies = self.problem.prices.rules.bodies
        rows = _CostRows([], [], [], [])
        for row in range(totals.n_steps):
            kind, op = int(steps.kind[row]), int(steps.op[row])
            if kind == COMPUTE and op in bodies:
                self._rows_inside(totals, row, float(start_s[row]), rows)
            elif kind in (COMPUTE, SLICE):
                if each.time_s[row] > 0 or each.flops[row] > 0:
                    rows.op_start_s.append(float(start_s[row]))
                    rows.ops.append(self._op_row(totals, row))
            else:
                axes = mesh.axes_in(int(steps.axes[row]))
                rows.collective_start_s.append(float(start_s[row]))
                rows.collectives.append(
                    CollectiveRow(
                        kind=STEP_KINDS[kind],
                        axes=axes,
                        value=program.value_name[int(steps.value[row])],
                        op=op,
                        where=program.where(op),
                        local_bytes=float(each.bytes[row]),
                        time_s=float(each.time_s[row]),
                        source=source(int(each.entry[row]), computing=False),
                        times=float(each.times[row]),
                    )
                )
        return rows

    def _rows_inside(self, totals: Totals, row: int, start_s: float, rows: _CostRows) -> None:
        """Add the rows of a ``shard_map``: those of its body, one after the other."""
        each, op = totals.each, int(totals.steps.op[row])
        price, times = self.problem.prices.rules.bodies[op], float(each.times[row])
        source = self.problem.prices.source(int(each.entry[row]), computing=True)
        # The step's time has the rounds of loops around it, and may be from a price list.
        scale = float(each.time_s[row]) / price.time_s if price.time_s else 0.0
        for inside in price.rows(self.problem.analysis.program):
            time_s = inside.time_s * scale
            if inside.axes is None:
                rows.op_start_s.append(start_s)
                rows.ops.append(
                    OpRow(
                        op=op,
                        kind=inside.kind,
                        result=inside.value,
                        where=inside.where,
                        flops=inside.flops * times,
                        moved_bytes=inside.bytes * times,
                        time_s=time_s,
                        source=source,
                    )
                )
            else:
                rows.collective_start_s.append(start_s)
                rows.collectives.append(
                    CollectiveRow(
                        kind=inside.kind,
                        axes=inside.axes,
                        value=inside.value,
                        op=op,
                        where=inside.where,
                        local_bytes=inside.bytes,
                        time_s=time_s,
                        source=source,
                        times=inside.times * times,
                        by_hand=True,
                    )
                )
            start_s += time_s

    def _op_row(self, totals: Totals, row: int) -> OpRow:
        """The row of a step that computes: an op, or the slice of a part that a product reads."""
        program, steps, each = self.problem.analysis.program, totals.steps, totals.each
        kind, op = int(steps.kind[row]), int(steps.op[row])
        results = program.results(op)
        value = int(steps.value[row]) if kind == SLICE else results[0] if results else -1
        return OpRow(
            op=op,
            kind=STEP_KINDS[SLICE] if kind == SLICE else program.kind[op],
            result=program.value_name[value] if value >= 0 else "",
            where=program.where(op),
            flops=float(each.flops[row]),
            moved_bytes=float(each.bytes[row]),
            time_s=float(each.time_s[row]),
            source=self.problem.prices.source(int(each.entry[row]), computing=True),
        )


def _starts(totals: Totals, overlap: float) -> np.ndarray:
    """Start of each step if the share ``overlap`` of the possible overlap happens.

    Starts are interpolated between strictly sequential steps and full overlap, just as the total
    time is. So no two steps of a lane overlap, and the last one ends at ``overlapped_s``.
    """
    time_s = totals.each.time_s[: totals.n_steps]
    sequential_s = np.cumsum(time_s) - time_s
    return sequential_s + overlap * (totals.start_s[: totals.n_steps] - sequential_s)


def price(problem: Problem, plan: ShardingPlan) -> Cost:
    """Price ``plan``. Raises InvalidPlan if it belongs to another program or mesh.

    Examples:
        >>> import toast_lab as tl
        >>> problem = tl.Problem(tl.analyse(tl.load("attention", sequence=4096)), {"data": 4})
        >>> plan = tl.Plan.from_actions(problem, ["S@0->data"])
        >>> cost = tl.price(problem, plan)
        >>> cost.time_s < cost.time_s / cost.relative_time  # the unsharded program's
        True
        >>> cost.count("all_gather")
        2
    """
    plan.check_is_of(problem.analysis.program, problem.mesh)
    return problem.pricer().full(plan)
