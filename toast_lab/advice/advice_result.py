"""``Advice``: the set-ups that were looked at, the best first, and what they answer.

A set-up is a slice of a machine, a mesh shape on it, the parts of a batch and what layers keep; its
row has the best plan that is known for it. Rows come while the work goes on.
"""

from __future__ import annotations

import dataclasses
import functools
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from toast_lab.advice import priced
from toast_lab.advice.advice_task import SEARCH, PricedPlan
from toast_lab.advice.program_choices import ProgramChoice
from toast_lab.advice.recomputation import AS_WRITTEN
from toast_lab.advice.set_ups import alike, links_text, mesh_shapes, shape_text
from toast_lab.advice.why_not import WhyNot
from toast_lab.confirm.judge_targets import judge_targets
from toast_lab.confirm.judges import judge_named
from toast_lab.confirm.verdict import Judgement
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.errors import InvalidProblem
from toast_lab.files import PathLike
from toast_lab.machines.machine_model import Machine
from toast_lab.sharding.mesh import Mesh
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.text import JsonObject, as_html, bytes_text, counted, shortened, table
from toast_lab.written.screen import time_text

MOST_ROWS = 12  #: of a printed table
WIDTH = 80  #: columns of a printed table


@dataclasses.dataclass(frozen=True)
class Terms:
    """What all rows of an advice share.

    Attributes:
        machine: the machine.
        memory_limit_bytes: of a device.
        examples: of a step; None: unknown.
        price_per_device_hour: in any currency; None: no price was given.
        finish: gives users a plan with methods.
    """

    machine: Machine
    memory_limit_bytes: float
    examples: int | None
    price_per_device_hour: float | None
    finish: Callable[[ShardingPlan], Any] = lambda plan: plan


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class AdviceRow:
    """A set-up with the best plan that is known for it.

    Attributes:
        choice: its program: what layers keep, and the parts of a batch.
        mesh: axes and sizes.
        priced: the plan with the price of one run of the program.
        stage: how far the ladder took it: "expert plans", "short search" or "long search".
        terms: what all rows share.
    """

    choice: ProgramChoice
    mesh: Mesh
    priced: PricedPlan
    stage: str
    terms: Terms

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.mesh.n_devices

    @property
    def shape(self) -> str:
        """Sizes of the axes: ``16x16``."""
        return shape_text(self.mesh)

    @property
    def links(self) -> str:
        """Where each axis of the mesh runs."""
        return links_text(self.terms.machine, self.mesh)

    @property
    def batch(self) -> int | None:
        """Examples that run at once; None: unknown."""
        return self.choice.batch

    @property
    def batch_text(self) -> str:
        """``16``, or ``4 x 4`` for four parts of four examples; ``whole`` if it is not known."""
        if self.batch is None:
            return "whole"
        return f"{self.batch}" if self.parts == 1 else f"{self.batch} x {self.parts}"

    @property
    def parts(self) -> int:
        """Parts of the batch that run one after the other."""
        return self.choice.parts

    @property
    def keeps(self) -> str:
        """What layers keep for the backward pass."""
        return self.choice.keeps

    @property
    def time_s(self) -> float:
        """Estimated time of a step: of all parts of the batch."""
        return self.priced.time_s * self.choice.parts

    @property
    def peak_bytes(self) -> float:
        """Most memory that one device has in use, with gradients of earlier parts."""
        return self.priced.peak_bytes

    @property
    def fits(self) -> bool:
        """Is that within the memory limit?"""
        return self.priced.fits

    @property
    def device_s(self) -> float:
        """Seconds of all devices together for one example, or for a step without a known batch."""
        return self.devices * self.time_s / (self.terms.examples or 1)

    @property
    def price_per_example(self) -> float | None:
        """Price of one example, or of a step without a known batch; None: no price was given."""
        hourly = self.terms.price_per_device_hour
        return None if hourly is None else hourly * self.device_s / 3600.0

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem of the row: its program on its mesh."""
        return self.choice.problem(self.mesh)

    @functools.cached_property
    def plan(self) -> Any:
        """The plan, with what users can do with one."""
        return self.terms.finish(self.priced.plan(self.problem))

    @functools.cached_property
    def cost(self) -> Cost:
        """The price of the plan with every term, of one run of the program."""
        return price(self.problem, self.plan)

    @property
    def origin(self) -> str:
        """The name of the expert plan, or that a search found it."""
        return self.priced.name

    def written(self, **options: Any) -> Any:
        """The plan in rules and constraints, as ``Plan.written`` gives it with these options."""
        return self.plan.written(problem=self.problem, **options)

    def confirm(
        self,
        topology: str | None = None,
        *,
        time_limit_s: float = 600.0,
        store: bool | PathLike = True,
        cancel: Callable[[], bool] | None = None,
    ) -> ConfirmedRow:
        """Ask the compiler of the row's devices, which need not be attached.

        Args:
            topology: as ``tl.compile`` takes it; None: that of the row's machine and devices.
            time_limit_s: for the compiler.
            store: of compiled results, as ``tl.compile`` takes it.
            cancel: polled; True ends the compile.

        Raises:
            InvalidProblem: no compiler is known for these devices, or it is not installed.
            Cancelled: ``cancel`` said so.
        """
        if topology is None:
            target = judge_targets(self.problem)[0]
            if not target.possible or target.is_other_machine:
                raise InvalidProblem(target.refusal or target.warning)
            topology = target.topology
        judge = judge_named(
            self.problem,
            self.problem.analysis.model,
            topology,
            time_limit_s=time_limit_s,
            store=store,
            cancel=cancel,
        )
        return ConfirmedRow(self, topology, judge(self.plan))

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key, see ``priced.rank``."""
        return priced.rank(self)

    def to_json(self) -> JsonObject:
        """The row as plain data; the plan as its actions."""
        return {
            "devices": self.devices,
            "mesh": dict(zip(self.mesh.axes, self.mesh.sizes, strict=True)),
            "links": self.links,
            "batch": self.batch,
            "parts": self.parts,
            "keeps": self.keeps,
            "time_s": self.time_s,
            "peak_bytes": self.peak_bytes,
            "fits": self.fits,
            "device_s": self.device_s,
            "price_per_example": self.price_per_example,
            "plan": self.origin,
            "actions": list(self.priced.actions),
            "stage": self.stage,
        }

    def flat(self) -> dict[str, Any]:
        """The row for a table or a map: texts and numbers by column."""
        return {
            **self.to_json(),
            "mesh": self.shape,
            "axes": len(self.mesh.split_axes),
            "last_axis": self.mesh.sizes[-1],
            "keeps": self.choice.policy or "all",
            "batch": self.batch_text,
            "set_up": str(self),
        }

    def __repr__(self) -> str:
        return f"<AdviceRow {self}>"

    def __str__(self) -> str:
        fits = (
            "" if self.fits else f", over the limit of {bytes_text(self.terms.memory_limit_bytes)}"
        )
        choice = "" if (self.keeps, self.parts) == (AS_WRITTEN, 1) else f", {self.choice}"
        return (
            f"{counted(self.devices, 'device')} as {self.mesh}{choice}: {time_text(self.time_s)}, "
            f"{bytes_text(self.peak_bytes)}{fits} ({_origin_text(self)})"
        )


def _origin_text(row: AdviceRow) -> str:
    return "found by search" if row.origin == SEARCH else row.origin


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ConfirmedRow:
    """A row with what a compiler makes of its plan; ``judgement.evidence`` has all of it."""

    row: AdviceRow
    topology: str
    judgement: Judgement  #: of one run of the program

    @property
    def time_s(self) -> float | None:
        """Time of a step by the compiler's clock, all parts of the batch; None: it has no clock."""
        clock_s = self.judgement.time_s
        return None if clock_s is None else clock_s * self.row.parts

    def __repr__(self) -> str:
        return f"<ConfirmedRow {self}>"

    def __str__(self) -> str:
        judgement, row = self.judgement, self.row
        if judgement.failure:
            return f"{self.topology}: {judgement.failure}"
        clock = "it has no clock"
        if self.time_s is not None:
            error = self.time_s / row.time_s - 1.0
            clock = f"{time_text(self.time_s)}, {error:+.0%} against {time_text(row.time_s)} priced"
        memory = "memory unknown"
        if judgement.peak_bytes is not None:
            fits = "fits" if judgement.fits else "does not fit"
            memory = f"{bytes_text(judgement.peak_bytes)}, {fits}"
        return f"{self.topology}: {clock}; {memory}"


class Advice:
    """Rows over slices, mesh shapes, parts of a batch and recomputation, and what they answer.

    It is filled while the work goes on; ``wait`` waits for its end, ``stop`` ends it and keeps what
    it has, and iterating over ``live()`` gives rows as they come.

    Attributes:
        terms: what all rows share.
        name: of the model.
        n_shapes: number of mesh shapes over all slices.
        n_set_ups: number of set-ups that differ, alike meshes counted once.
        experts: every plan that was priced without a search, with its number of parts.
        left_out: choices that could not be tried, with the reason.
        message: how the work ended; empty while it goes on.

    Examples:
        >>> import toast_lab as tl
        >>> model = tl.load("transformer", layers=2, batch=16)
        >>> advice = tl.advise(model, "h100", [2, 4], evaluations=50, price_per_device_hour=2.5)
        >>> advice.cheapest.devices, advice.cheapest.price_per_example < 1e-6
        (2, True)
        >>> row = advice.rows[0]
        >>> row.shape, row.links, row.fits
        ('4', 'data: NVLink, 4 devices', True)
        >>> row.plan.mesh == row.problem.mesh
        True
    """

    def __init__(self, name: str, terms: Terms) -> None:
        self.name, self.terms = name, terms
        self.n_shapes = self.n_set_ups = self.n_searched = 0
        self.experts: list[tuple[ProgramChoice, PricedPlan]] = []
        self.left_out: list[str] = []
        self.message, self.stage = "", "loading"
        self.error: BaseException | None = None
        self.reasons: WhyNot | None = None
        self._dropped: Counter[str] = Counter()
        self._rows: dict[tuple[str, str], AdviceRow] = {}
        self._events: list[AdviceRow] = []
        self._news = threading.Condition()
        self._stopped = threading.Event()

    # -- filled by the advisor --------------------------------------------------------------------
    def put(self, key: tuple[str, str], row: AdviceRow) -> bool:
        """Keep a row if its plan is the best that is known for its set-up; was it kept?"""
        with self._news:
            known = self._rows.get(key)
            if known is not None and known.rank <= row.rank:
                if known.stage != row.stage and row.origin == SEARCH:
                    self._rows[key] = dataclasses.replace(known, stage=row.stage)
                return False
            self._rows[key] = row
            self._events.append(row)
            self._news.notify_all()
            return True

    def drop(self, why: str, count: int = 1) -> None:
        """Count set-ups that were dropped for one reason."""
        self._dropped[why] += count

    def end(self, message: str) -> None:
        """Say how the work ended."""
        with self._news:
            self.message = message
            self._news.notify_all()

    # -- while it goes on -------------------------------------------------------------------------
    @property
    def running(self) -> bool:
        """Does the work still go on?"""
        return not self.message

    @property
    def stopped(self) -> bool:
        """Was it asked to end?"""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the work; what is known stays."""
        self._stopped.set()

    def wait(self, seconds: float | None = None) -> Advice:
        """Wait for the end of the work, at most so long; Ctrl-C ends the work.

        Raises what the work raised.
        """
        with self._news:
            try:
                self._news.wait_for(lambda: not self.running, seconds)
            except KeyboardInterrupt:
                self.stop()
                raise
        if self.error is not None:
            raise self.error
        return self

    def live(self) -> Iterator[AdviceRow]:
        """Rows as they come, each better than those before it of the same set-up."""
        seen = 0
        while True:
            with self._news:
                while len(self._events) == seen and self.running:
                    self._news.wait()
                new, ended = self._events[seen:], not self.running
            yield from new
            seen += len(new)
            if ended and not new:
                return

    # -- answers ----------------------------------------------------------------------------------
    @property
    def rows(self) -> tuple[AdviceRow, ...]:
        """The best row of each set-up: the quickest that fits first."""
        return tuple(sorted(self.by_set_up.values(), key=lambda row: (*row.rank, row.devices)))

    @property
    def by_set_up(self) -> dict[tuple[str, str], AdviceRow]:
        """The best row by set-up: the digest of its program, and its group of alike meshes."""
        with self._news:
            return dict(self._rows)

    @property
    def fitting(self) -> tuple[AdviceRow, ...]:
        """The rows that fit, the quickest first."""
        return tuple(row for row in self.rows if row.fits)

    @property
    def fastest(self) -> AdviceRow | None:
        """The row that runs a step fastest; None: nothing fits."""
        return next(iter(self.fitting), None)

    @property
    def cheapest(self) -> AdviceRow | None:
        """The row with the fewest device seconds an example; None: nothing fits."""
        return min(self.fitting, key=lambda row: row.device_s, default=None)

    @property
    def smallest(self) -> AdviceRow | None:
        """The quickest row of the fewest devices on which a plan fits; None: nothing fits."""
        return min(self.fitting, key=lambda row: (row.devices, row.time_s), default=None)

    @property
    def nearest(self) -> AdviceRow | None:
        """The row that needs the least memory."""
        return min(self.rows, key=lambda row: row.peak_bytes, default=None)

    @property
    def best_of_slices(self) -> tuple[AdviceRow, ...]:
        """The best row of each number of devices, in the order of ``rows``."""
        best: dict[int, AdviceRow] = {}
        for row in self.rows:
            best.setdefault(row.devices, row)
        return tuple(best.values())

    @property
    def dropped(self) -> tuple[str, ...]:
        """What was not searched and why, in sentences."""
        return tuple(
            why.format(set_ups=counted(count, "set-up")) for why, count in self._dropped.items()
        )

    def flat_rows(self) -> list[dict[str, Any]]:
        """The rows for a table or a map, also those of meshes that are alike.

        Axes of alike meshes have the same links in another order, so that they have plans at the
        same price; a row says which of them was searched.
        """
        machine, rows = self.terms.machine, self.rows
        groups = {
            mesh: group
            for count in {row.devices for row in rows}
            for group in alike(machine, mesh_shapes(count))
            for mesh in group
        }
        return [
            {**row.flat(), "mesh": shape_text(mesh), "last_axis": mesh.sizes[-1]}
            for row in rows
            for mesh in groups.get(row.mesh, (row.mesh,))
        ]

    def best_expert(self, mesh: Mesh | str) -> tuple[ProgramChoice, PricedPlan] | None:
        """The best plan on a mesh that anybody gets without a search, of the whole batch."""
        plans = [
            (choice, plan)
            for choice, plan in self.experts
            if plan.mesh == str(mesh) and choice.parts == 1
        ]
        return min(plans, key=lambda pair: priced.rank(pair[1]), default=None)

    # -- text -------------------------------------------------------------------------------------
    @property
    def answers(self) -> tuple[str, ...]:
        """The three answers in sentences; or by how much nothing fits, and what would."""
        fastest, cheapest, smallest = self.fastest, self.cheapest, self.smallest
        if fastest is None or cheapest is None or smallest is None:
            return self._nothing_fits()
        return (
            f"Fastest: {fastest}.",
            f"Cheapest: {self._money(cheapest)} with {cheapest}.",
            f"Smallest slice that fits: {smallest}.{self._below(smallest)}",
        )

    def _money(self, row: AdviceRow) -> str:
        unit = "an example" if self.terms.examples else "a step"
        if row.price_per_example is None:
            return f"{time_text(row.device_s)} of a device {unit}"
        return f"{row.price_per_example:.3g} {unit}"

    def _below(self, smallest: AdviceRow) -> str:
        below = [row for row in self.rows if row.devices < smallest.devices]
        if not below:
            return ""
        count = max(row.devices for row in below)
        nearest = min(
            (row for row in below if row.devices == count), key=lambda row: row.peak_bytes
        )
        return f" On {count} the least known is {bytes_text(nearest.peak_bytes)} a device."

    def _nothing_fits(self) -> tuple[str, ...]:
        nearest = self.nearest
        if nearest is None:
            return ("No set-up was priced.",)
        limit = self.terms.memory_limit_bytes
        over = nearest.peak_bytes - limit
        sentences = [
            f"Nothing fits into {bytes_text(limit)}: the nearest lacks {bytes_text(over)}, "
            f"{nearest}."
        ]
        if self.reasons is not None:
            fitting = next((change for change in self.reasons.changes if change.fits), None)
            parts = self.reasons.parts
            if parts:
                sentences.append(f"{bytes_text(parts[0].bytes)} of it are {parts[0].kind}.")
            sentences.append(
                f"It would fit with one change: {fitting}."
                if fitting is not None
                else "No single change that was tried makes it fit."
            )
        return tuple(sentences)

    def __repr__(self) -> str:
        return f"<Advice {self.name}, {counted(len(self._rows), 'row')}>"

    def __str__(self) -> str:
        return advice_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def to_json(self) -> JsonObject:
        """Everything as plain data, the best row first."""
        best = {"fastest": self.fastest, "cheapest": self.cheapest, "smallest": self.smallest}
        return {
            "model": self.name,
            "machine": self.terms.machine.name,
            "memory_limit_bytes": self.terms.memory_limit_bytes,
            "examples": self.terms.examples,
            "price_per_device_hour": self.terms.price_per_device_hour,
            "mesh_shapes": self.n_shapes,
            "set_ups": self.n_set_ups,
            "searched": self.n_searched,
            **{name: None if row is None else row.to_json() for name, row in best.items()},
            "answers": list(self.answers),
            "rows": [row.to_json() for row in self.rows],
            "dropped": list(self.dropped),
            "left_out": list(self.left_out),
            "why_not": None if self.reasons is None else self.reasons.to_json(),
            "message": self.message,
        }


def advice_text(advice: Advice, limit: int = MOST_ROWS) -> str:
    """The best row of each slice, the answers, and what was dropped, in 80 columns."""
    terms = advice.terms
    lines = [
        f"{advice.name} on {terms.machine.name}, {bytes_text(terms.memory_limit_bytes)} a device: "
        f"{advice.n_shapes} mesh shapes, {advice.n_searched} searches",
        f"The best of each slice; {_cost_words(terms)}:",
        advice_table(advice.best_of_slices, limit),
    ]
    sentences = [*advice.answers, *advice.dropped, *advice.left_out, advice.message]
    lines += [line for sentence in sentences if sentence for line in _wrapped(sentence)]
    return "\n".join(lines)


def _cost_words(terms: Terms) -> str:
    one = "an example" if terms.examples else "a step"
    return f"cost is that of {one}" + (
        ", in seconds of a device" if terms.price_per_device_hour is None else ""
    )


def advice_table(rows: Sequence[AdviceRow], limit: int = MOST_ROWS) -> str:
    """Rows as a table of at most 80 columns."""
    if not rows:
        return "no rows yet"
    has_parts = any(row.parts > 1 for row in rows)
    has_policies = any(row.choice.policy for row in rows)
    columns = [">devices", "mesh", ">step", ">memory", "fits", ">cost"]
    columns += ["keeps"] * has_policies + ["batch"] * has_parts
    cells = []
    for row in rows:
        amount = row.price_per_example
        cell: list[object] = [
            row.devices,
            row.shape,
            time_text(row.time_s),
            bytes_text(row.peak_bytes),
            "yes" if row.fits else "no",
            time_text(row.device_s) if amount is None else f"{amount:.3g}",
        ]
        cell += [row.choice.policy or "all"] * has_policies
        cells.append(cell + [row.batch_text] * has_parts)
    used = max(map(len, table(columns, cells, limit).splitlines()))
    origins = [shortened(row.origin, max(WIDTH - used - 2, 8)) for row in rows]
    with_plans = [[*cell, origin] for cell, origin in zip(cells, origins, strict=True)]
    return table([*columns, "plan"], with_plans, limit)


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(
        sentence, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
