"""The audit of a model that is sharded already: its settings, and the report on it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd
import panel as pn

from toast_lab.app import assets, look
from toast_lab.app.pages.compare_run import progress, topologies
from toast_lab.app.session import Session
from toast_lab.audit.asked import checked_mesh
from toast_lab.errors import InvalidProblem
from toast_lab.ir.model import Model
from toast_lab.runtime.topologies import is_installed
from toast_lab.sharding.mesh import Mesh
from toast_lab.text import counted
from toast_lab.views.audit_tables import FINDING_COLUMNS, changes, figures, findings_frame
from toast_lab.views.markup import Safe, h, join, quiet

PRICE_ALONE = "nothing: price alone"


class AuditSection(look.Pane):
    """The number of a model's own shardings, and the button that audits them.

    It is hidden for a model without shardings.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._written = look.text()
        self.topology = pn.widgets.Select(
            name="compile for", options={PRICE_ALONE: ""}, **look.FIELD
        )
        self.search = pn.widgets.Checkbox(
            name="and search for a better plan, 10 s",
            value=session.audits.search,
            **look.FIELD,
        )
        self.start = look.button("Audit it as it is sharded", session.audits.start)
        self._progress = look.text()
        self._asked = look.column(self.topology, self.search, self.start, self._progress)
        self.view = look.column(self._written, self._asked, visible=False, margin=(10, 0, 0, 0))
        look.watch(session.loaded, self.follow, "problem")
        look.watch(session.work, self.show_job, "changes", "job")
        look.watch_value(self.topology, lambda chosen: self._choose(topology=chosen))
        look.watch_value(self.search, lambda wanted: self._choose(search=wanted))
        self.follow()

    def _choose(self, **settings: Any) -> None:
        self.session.audits.param.update(**settings)

    def follow(self) -> None:
        """Show the shardings of the loaded model, and offer what they can be compiled for."""
        loaded = self.session.loaded
        model, problem = loaded.model, loaded.problem
        shown = model is not None and problem is not None and bool(_shardings(model))
        self.view.visible = shown
        if not shown:
            return
        heading = h("h2", "sharded already")
        try:
            mesh = checked_mesh(model, None)
        except InvalidProblem as error:  # on several meshes
            self._asked.visible = False
            self._written.object = join(heading, h("p", str(error), cls="red"))
            return
        self._asked.visible = True
        self._written.object = join(heading, quiet(_count_text(model, mesh)))
        self._offer(topologies(mesh.n_devices, problem.machine.name), problem.machine.name)
        self.show_job()

    def _offer(self, targets: dict[str, str], machine: str) -> None:
        """Offer targets; at first the machine's own is chosen, if its compiler is installed."""
        audits = self.session.audits
        options = {PRICE_ALONE: "", **targets}
        chosen = audits.topology
        if chosen not in options.values():
            first = next(iter(targets.values()))
            is_own = machine == "cpu" or first.startswith(("tpu:", "gpu:"))
            chosen = first if is_own and is_installed(first) else ""
        self.topology.param.update(options=options, value=chosen)
        audits.topology = chosen

    def show_job(self) -> None:
        """Show the stage of a running audit; while any job runs, no audit can be started."""
        work = self.session.work
        self.start.disabled = work.busy
        self._progress.object = progress(work.job, "") if work.runs("audit") else ""


class TableReport:
    """One table below the graph, with a line above it that explains it.

    Long texts wrap, so that none is cut off.
    """

    scrolls = False
    options: Mapping[str, Any] = MappingProxyType({"selectable": False})  #: of the table

    def __init__(self, columns: list[str], widths: dict[str, int]) -> None:
        self._columns, self._widths = columns, widths
        self._head, self._below = look.text(), list[Any]()
        self._frame = pd.DataFrame(columns=columns)
        self._table: Any = None  #: created when the tab is first opened
        self.view()

    def view(self) -> pn.Column:
        """A column for a tab, empty until the tab is opened.

        Each call creates a new one, since Panel redraws a tab's title only with its content.
        """
        self._body = look.filled_column(scroll=self.scrolls)
        return self._body

    def open(self) -> None:
        """Fill the tab when it is opened."""
        if self._table is None:
            self._table = look.table(
                self._columns,
                layout="fit_data_stretch",
                widths=self._widths,
                wraps=True,
                **self.options,
            )
            look.on_row(self._table, self.open_row)
            self._fill()
        if not len(self._body):
            self._body.objects = [self._head, self._table, *self._below]

    def _fill(self) -> None:
        self._table.value = self._frame
        self._table.visible = bool(len(self._frame))

    def show(self, frame: pd.DataFrame, sentence: str, verdict: str) -> None:
        """Show ``frame`` below ``verdict`` and ``sentence``; an empty table is hidden."""
        self._head.object = quiet(h("b", verdict), " " if verdict else "", sentence)
        self._put(frame)

    def open_row(self, row: int) -> None:
        """Show what a row is about, once it is clicked; of most tables nothing."""

    def _put(self, frame: pd.DataFrame) -> None:
        self._frame = frame
        if self._table is not None:
            self._fill()


class AuditReport(TableReport):
    """The findings as a table, the figures above it and the changes below; a tab of the page."""

    scrolls = True
    options = MappingProxyType({"sizing_mode": "stretch_width"})  # as high as its rows

    def __init__(self, session: Session) -> None:
        super().__init__(FINDING_COLUMNS, WIDTHS)
        self.session = session
        sheets = [look.TEXT + assets.sheet("audit_report")]
        self._head = look.text(margin=(4, 0), stylesheets=sheets)
        self._changes = look.text(margin=(8, 0), stylesheets=sheets)
        self._below = [self._changes]

    @property
    def title(self) -> str:
        """The title of the tab."""
        return f"Audit ({len(self._frame)})"

    def show_outcome(self) -> None:
        """Show the outcome of the session's audit."""
        outcome = self.session.audits.outcome
        self._put(findings_frame(outcome.findings, outcome.shares))
        target = f", compiled for {outcome.compiled_for}" if outcome.compiled_for else ""
        sentence = CLICK if outcome.findings else CLEAN
        self._head.object = join(
            h("p", h("b", f"On {outcome.mesh}, priced for {outcome.machine}{target}.")),
            figures(outcome.contenders),
            *(quiet(f"Note: {note}") for note in outcome.notes),
            quiet(sentence),
        )
        self._changes.object = (
            join(h("h2", "what to write"), quiet(COPY), changes(outcome.findings))
            if outcome.findings
            else Safe("")
        )

    def open_row(self, row: int) -> None:
        """Select a finding's op, or its arguments, and show it in the graph."""
        session, finding = self.session, self.session.audits.outcome.findings[row]
        if finding.op >= 0:
            session.selection.select_op(finding.op)
        else:
            session.selection.select_values(finding.values)
        session.step = "graph"


def _shardings(model: Model) -> int:
    return sum(bool(annotation.mesh) for annotation in model.annotations)


def _count_text(model: Model, mesh: Mesh) -> str:
    by_hand = len(model.program.shard_maps)
    beside = f" and {counted(by_hand, 'shard_map')}" if by_hand else ""
    return f"{counted(_shardings(model), 'sharding')}{beside} of its own, on {mesh}."


WIDTHS = {"": 26, "finding": 140, "line": 88, "costs": 80, "saves": 96}
CLICK = "A click on a finding shows its op in the graph."
CLEAN = "Clean: its shardings need all collectives, and no change that was tried saves anything."
COPY = "A click on a line selects all of it, to be copied."
