"""An advice in a child process, which tells the page each set-up as soon as its plan is priced.

The child sends programs and rows; ``taken_in`` rebuilds the advice from them on the page's side.
Start reading at ``run_advise``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toast_lab import isolate
from toast_lab.advice.advice_result import Advice, AdviceRow, Terms
from toast_lab.advice.advice_task import PricedPlan
from toast_lab.advice.advisor import advise
from toast_lab.advice.program_choices import ProgramChoice
from toast_lab.conflicts.analysis import Analysis
from toast_lab.ir.model import Model
from toast_lab.jobs.orders import CurrentOrder
from toast_lab.machines.machine_model import Machine
from toast_lab.plan_verbs import Plan
from toast_lab.prepare import load_present
from toast_lab.sharding.mesh import Mesh

#: Run once in the fork server, for all children forked from it (``fork_server``).
before_fork = load_present

RUN_ADVISE = "toast_lab.jobs.advise_job:run_advise"
REPORT_EVERY_S = 0.25


class AdviceStage(NamedTuple):
    """What the work does now."""

    text: str


class FoundProgram(NamedTuple):
    """A program of which there is a row."""

    choice: ProgramChoice  #: without its parcel
    model: Model  #: of its analysis, with what the analysis loses on its way


class FoundRow(NamedTuple):
    """The best plan so far of a set-up."""

    key: tuple[str, str]  #: digest of its program, and its group of alike meshes
    mesh: Mesh
    priced: PricedPlan
    stage: str


class AdviceEnd(NamedTuple):
    """What the whole work gave beside its rows."""

    answers: tuple[str, ...]
    remarks: tuple[str, ...]  #: what was dropped and left out, in sentences
    message: str


def run_advise(
    model: Model,
    analysis: Analysis,
    machine: Machine,
    devices: int | Sequence[int],
    options: Mapping[str, Any],
) -> AdviceEnd:
    """Advise as ``tl.advise`` does, obeying the parent's order to stop.

    Args:
        model: the model; its function may be a recipe.
        analysis: that of the model; it has lost its function on the way.
        machine: the machine.
        devices: the most devices, or a list of numbers.
        options: of ``tl.advise``.

    Raises:
        InvalidProblem: as ``tl.advise`` does.
    """
    isolate.report("preparing")
    order = CurrentOrder()
    advice = advise(
        analysis.of_model(model),
        machine,
        devices,
        wait=False,
        cancel=lambda: order().kind == "stop",
        finish=Plan.of,
        **options,
    )
    sent: dict[tuple[str, str], AdviceRow] = {}
    isolate.report(advice.terms)
    while advice.running:
        _report(advice, sent)
        time.sleep(REPORT_EVERY_S)
    advice.wait()
    _report(advice, sent)
    return AdviceEnd(advice.answers, (*advice.dropped, *advice.left_out), advice.message)


def _report(advice: Advice, sent: dict[tuple[str, str], AdviceRow]) -> None:
    """Send the stage, and what is new in the rows."""
    isolate.report(AdviceStage(advice.stage))
    for key, row in advice.by_set_up.items():
        if sent.get(key) is row:
            continue
        if not any(program == key[0] for program, _ in sent):
            # The page makes problems of it, and needs no parcel for that
            choice = dataclasses.replace(row.choice, data=b"")
            model = choice.base.analysis.model
            # Its function is a recipe there, since pages trace nothing
            isolate.report(FoundProgram(choice, dataclasses.replace(model, function=model.recipe)))
        sent[key] = row
        isolate.report(FoundRow(key, row.mesh, row.priced, row.stage))


class PageAdvice:
    """An advice as a page has it, filled by the events of its job.

    Attributes:
        model: the model that it is about.
        advice: the rows so far; None until the child has begun.
        stage: what the work does now.
        end: what it gave beside its rows; None until it is over.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.advice: Advice | None = None
        self.stage = ""
        self.end: AdviceEnd | None = None
        self._programs: dict[str, FoundProgram] = {}

    def take(self, event: Any) -> None:
        """Store an event; one that is stored already changes nothing."""
        if isinstance(event, AdviceStage):
            self.stage = event.text
        elif isinstance(event, str):
            self.stage = event
        elif isinstance(event, Terms):
            self.advice = self.advice or Advice(self.model.name, event)
        elif isinstance(event, FoundProgram):
            self._programs.setdefault(event.choice.digest, event)
        elif isinstance(event, FoundRow) and self.advice is not None:
            choice = self._programs[event.key[0]].choice
            row = AdviceRow(choice, event.mesh, event.priced, event.stage, terms=self.advice.terms)
            self.advice.put(event.key, row)

    def finish(self, end: AdviceEnd) -> None:
        """Store how the work ended."""
        self.end, self.stage = end, ""

    def model_of(self, row: AdviceRow) -> Model:
        """The model of a row's program, with its text."""
        return self._programs[row.choice.digest].model

    @property
    def rows(self) -> tuple[AdviceRow, ...]:
        """The best row of each set-up so far, as ``Advice.rows`` gives them."""
        return () if self.advice is None else self.advice.rows
