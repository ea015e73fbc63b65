"""Step 1: choose a model, and see its graph, its arguments and how much of it can be sharded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import panel as pn

from toast_lab.app import assets, look
from toast_lab.app.figure_export import figure_menu
from toast_lab.app.gallery import BILLIONS, SOLVED, SolvedCase, card_text
from toast_lab.app.model_loading import refuse_file
from toast_lab.app.pages.audit_section import AuditReport, AuditSection, TableReport
from toast_lab.app.problem_pane import ProblemPane
from toast_lab.app.session import Session
from toast_lab.app.welcome import OWN_HELP, Welcome
from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.coverage import coverage
from toast_lab.cost.problem import Problem
from toast_lab.jobs.job import JobState
from toast_lab.models import registry
from toast_lab.views import report_tables
from toast_lab.views.graph_layout import graph_layout
from toast_lab.views.graph_plot import GraphPlot
from toast_lab.views.markup import facts, h, join, quiet
from toast_lab.views.report_tables import (
    Note,
    coverage_frame,
    notes,
    sizes_frame,
    whole_arguments_frame,
)
from toast_lab.views.summary import arguments_frame, program_facts

SHOWN_SIZES = 14


class LoadPage:
    """The gallery on the left, the program in the centre, the problem and facts on the right."""

    def __init__(self, session: Session, offered: str = "", refusal: str = "") -> None:
        self.session, self.offered = session, offered
        self._which = ""
        self._inputs: dict[str, Any] = {}
        self._cards = {name: self._model_card(name, card_text(name)) for name in registry.MODELS}
        self._solved = [
            _card(f"Solved: {case.words}", functools.partial(self._open, case)) for case in SOLVED
        ]
        if offered:
            self._cards[offered] = self._model_card(
                offered, f"{_short(offered)} — the model that this server was started with"
            )
        self.welcome = Welcome(
            session,
            self._dropped,
            self._refused,
            show_billions=lambda: self._open(BILLIONS),
            python_help=refusal or OWN_HELP,
        )
        self.left = self._make_left()
        self.centre = self._make_centre()
        self.right = self._make_right()
        self._loading_shown, self._note, self._drawn = "", "", None
        self._is_stale = self._is_new_audit = False
        # Users who follow a link, reload the page or bring their own model want to see that model
        self._arrived = (
            bool(offered)
            or session.is_begun
            or session.step != "load"
            or bool(session.hand.actions)
            or session.audits.outcome is not None
        )
        look.watch(session.loaded, self._changed, "analysis", "problem")
        look.watch(session, self._shown, "step")
        look.watch(session.audits, self._audited, "outcome")
        look.watch(session.work, self.tick, "changes", "job")
        self.refresh()
        self.tick()

    def _make_left(self) -> Any:
        """The models that can be loaded."""
        own_model = [self._cards[self.offered]] if self.offered else []
        own_model.append(_card("A file, or StableHLO pasted …", self.welcome.toggle_own))
        gallery = [self._cards[name] for name in registry.MODELS]
        return look.side(
            look.text(h("h2", "your own model")),
            *own_model,
            look.text(h("h2", "solved cases")),
            *self._solved,
            look.text(h("h2", "gallery")),
            *gallery,
            width=290,
        )

    def _make_centre(self) -> Any:
        """The program's graph above the reports on it."""
        self._graph = look.figure(least_px=160)
        # The box hides the figure: a figure put into a hidden pane would be visible.
        self._graph_box = look.filled_column(self._graph, stylesheets=[look.FILL])
        self._title = look.text(height=24)
        self._reports = {
            name: TableReport(columns, REPORT_WIDTHS[name])
            for name, columns in REPORT_COLUMNS.items()
        }
        self._audit = AuditReport(self.session)
        self._tabs = look.tabs(*[(name, report.view()) for name, report in self._reports.items()])
        self.session.choices.keep("load, tab", self._tabs, "active")
        look.watch(self._tabs, self._open_report, "active")
        self.full = look.button(
            "In full",
            lambda: self.show_full(self._graph_box.visible),
            width=70,  # five tabs have room beside it
            height=26,
            margin=0,
            styles={"position": "absolute", "right": "0", "top": "2px"},
            stylesheets=[look.SLIM_BUTTON],
        )
        self._below = look.withhold(
            look.filled_column(styles={"position": "relative"}, stylesheets=[BELOW], visible=False),
            lambda: [self._tabs, self.full],
        )
        look.watch(self._below, self._open_report, "visible")
        self._menu = figure_menu("dimension graph")
        head = look.row(self._title, self._menu)
        self._stages = look.text(visible=False, margin=(12, 0))
        return look.canvas(self.welcome, head, self._stages, self._graph_box, self._below)

    def _make_right(self) -> Any:
        """The problem, the model's sizes, and facts."""
        self._sizes = look.column()
        self._apply = look.button(
            "Load with these sizes",
            lambda: self.session.load(self._which, self.chosen_sizes()),
            visible=False,
        )
        self._facts = look.text(margin=(10, 0, 0, 0))
        self.go = look.button(
            "Open the graph and its conflicts →", lambda: setattr(self.session, "step", "graph")
        )
        self._worth_knowing = look.text(margin=(10, 0, 0, 0))
        self.problem = ProblemPane(self.session)
        self.audit = AuditSection(self.session)
        return look.side(
            self.go,
            self.problem,
            self.audit,
            self._sizes,
            self._apply,
            self._facts,
            self._worth_knowing,
            width=300,
        )

    def _leave_welcome(self) -> None:
        """Once a model is chosen, replace the welcome with the model's reports."""
        self.session.is_begun = True
        self.welcome.leave()
        self.go.button_type = "primary"
        self._below.visible = not self.session.loading

    def show_full(self, full: bool) -> None:
        """Give the reports the whole centre, or bring the graph back."""
        self._graph_box.visible = not full
        self.full.name = "Graph" if full else "In full"
        self._below.stylesheets = [look.FILL if full else BELOW]

    # -- files -------------------------------------------------------------------------------------
    def _dropped(self, name: str, content: bytes) -> None:
        if name.casefold().endswith(".toml"):
            self.problem.drop(name, content)
        else:
            self.session.load_file(name, content)

    def _refused(self, name: str, nbytes: int) -> None:
        with self.session.notices.guarded():
            refuse_file(name, nbytes)

    # -- progress ----------------------------------------------------------------------------------
    def tick(self) -> None:
        """Show a loading job's stages with their seconds, in place of the previous model.

        The previous model comes back if the job does not succeed.
        """
        loading = self.session.loading
        if loading:
            self._stages.object = h("p", stages_text(self.session.work.job), role="status")
        if loading != self._loading_shown:
            self._loading_shown = loading
            self._make_room()

    def _make_room(self) -> None:
        """Hide the previous model while another one is loading."""
        loading, model_chosen = self.session.loading, not self.welcome.doors.visible
        self.show_full(False)
        self._stages.visible = bool(loading)
        for pane in (self._graph_box, self._menu, self._facts, self._worth_knowing):
            pane.visible = not loading
        self._below.visible = model_chosen and not loading
        self.go.disabled = bool(loading)
        self.problem.check()
        job, loaded = self.session.work.job, self.session.loaded
        # There is no job if another model was chosen meanwhile, whose sizes are shown then
        is_cancelled = not loading and job is not None and job.state is JobState.CANCELLED
        if is_cancelled and loaded.which in registry.MODELS:
            self._show_sizes(loaded.which, loaded.sizes)
        self._mark_card()
        self._show_title()

    def _open(self, case: SolvedCase) -> None:
        self._leave_welcome()

        def show(session: Session) -> None:
            with session.notices.guarded():
                session.hand.take(list(case.actions))
            session.solved = case
            if session.step == "load":  # unless the user has moved on meanwhile
                session.step = "hand"

        sizes = dict(case.sizes) or registry.WORTHWHILE_SIZES.get(case.model)
        self.session.load(case.model, sizes, then=show, leads_to="hand", mesh=case.mesh)

    def _model_card(self, name: str, text: str) -> pn.widgets.Button:
        return _card(text, lambda: self._choose(name))

    def _choose(self, name: str) -> None:
        self._leave_welcome()
        if ":" in name:
            self._which, self._inputs = name, {}
            self._sizes.objects, self._apply.visible = [], False
        else:
            self._show_sizes(name, registry.WORTHWHILE_SIZES.get(name))
        self.session.load(name, registry.WORTHWHILE_SIZES.get(name))

    @property
    def _offered_is_loaded(self) -> bool:
        """Is the user's own model loaded, so that its code may be run again with other sizes?"""
        model = self.session.loaded.model
        return bool(self.offered) and model is not None and model.source == self.offered

    def _show_sizes(self, name: str, current: dict[str, Any] | None = None) -> None:
        """Show fields for the sizes of a built-in model, or of the user's own that is loaded."""
        is_built_in = name in registry.MODELS
        sizes = registry.sizes(name) if is_built_in else self.session.loaded.model.sizes
        shown = dict(list(sizes.items())[:SHOWN_SIZES])
        values = {key: (current or {}).get(key, value) for key, value in shown.items()}
        if name == self._which and self._inputs:
            # Existing fields stay: replacing one would lose what the user is typing into it
            for key, value in values.items():
                self._inputs[key].value = _field_value(value)
        else:
            self._which = name
            self._make_fields(values)

    def _make_fields(self, values: dict[str, Any]) -> None:
        name, self._inputs = self._which, {}
        is_built_in = name in registry.MODELS
        choices = registry.choices(name) if is_built_in else {}
        least = 1 if is_built_in else None  # a user's parameter may mean anything
        for key, value in values.items():
            common: dict[str, Any] = {
                "name": key,
                "sizing_mode": "stretch_width",
                "margin": (1, 3),
                "stylesheets": [look.INPUT],
            }
            if key in choices:
                self._inputs[key] = pn.widgets.Select(
                    value=value, options=list(choices[key]), **common
                )
            elif isinstance(value, bool):  # before int, since bool is a subclass of int
                self._inputs[key] = pn.widgets.Checkbox(value=value, **common)
            elif isinstance(value, int):
                self._inputs[key] = pn.widgets.IntInput(value=value, start=least, **common)
            elif isinstance(value, float):
                self._inputs[key] = pn.widgets.FloatInput(value=value, **common)
            elif isinstance(value, tuple):
                self._inputs[key] = _Numbers(value=_field_value(value), **common)
            else:
                self._inputs[key] = pn.widgets.TextInput(value=_field_value(value), **common)
        widgets = list(self._inputs.values())
        rows = [look.row(*widgets[i : i + 2]) for i in range(0, len(widgets), 2)]
        head = [look.text(h("h2", f"sizes of {_short(name)}"))] if rows else []
        self._sizes.objects = [*head, *rows]
        self._apply.visible = bool(values)

    def chosen_sizes(self) -> dict[str, Any]:
        """The sizes that are in the fields."""
        return {
            key: value.numbers() if isinstance(value, _Numbers) else value.value
            for key, value in self._inputs.items()
        }

    def _changed(self) -> None:
        """Handle a change of the model or the problem; a hidden page waits until it is shown."""
        self._is_stale = True
        self._shown()

    def _shown(self) -> None:
        if self._is_stale and self.session.step == "load":
            self.refresh()

    def refresh(self) -> None:
        """Show the loaded model."""
        self._is_stale = False
        session = self.session
        analysis, model = session.loaded.analysis, session.loaded.model
        if analysis is None or model is None:
            self._title.object = quiet("Choose a model from the gallery.")
            return
        if self._offered_is_loaded:
            self._show_sizes(self.offered)
        elif session.loaded.which not in registry.MODELS:
            self._inputs, self._sizes.objects, self._apply.visible = {}, [], False
        elif not self._inputs or self._which != session.loaded.which:
            self._show_sizes(session.loaded.which, session.loaded.sizes)
        self._mark_card()
        if analysis is not self._drawn:
            if self._drawn is not None or self._arrived:
                self._leave_welcome()
            self._drawn = analysis
            layout = graph_layout(analysis)
            self._note = f"  dimension graph · {layout.note}"
            self._graph.object = GraphPlot(layout).figure
            self._facts.object = join(
                h("h2", "program"), facts(program_facts(analysis, model.source))
            )
        self._show_title()
        problem = session.loaded.problem
        if problem is not None and problem.analysis is analysis:
            self._show_reports(analysis, problem)

    def _mark_card(self) -> None:
        """Highlight the card of the model that is loaded or loading."""
        session, model = self.session, self.session.loaded.model
        marked = {session.loaded.which, model.source if model is not None else ""}
        if session.loading:
            marked = {session.loading_built_in[0], session.loading.removeprefix("loading ")}
        for name, card in self._cards.items():
            card.button_type = "primary" if name in marked else "default"

    def _show_title(self) -> None:
        model, loading = self.session.loaded.model, self.session.loading
        if loading:
            self._title.object = h("p", h("b", loading), cls="one")
        elif model is not None:
            self._title.object = h(
                "p",
                h("b", model.name),
                h("span", self._note, cls="quiet"),
                cls="one",
                title=self._note.strip(),
            )
        else:
            self._title.object = quiet("Choose a model from the gallery.")

    def _show_reports(self, analysis: Analysis, problem: Problem) -> None:
        """Fill the tables below the graph, with row counts as titles; empty ones say so."""
        covered, divisibility = coverage(analysis), problem.divisibility()
        contents = {
            "Arguments": (arguments_frame(analysis), ""),
            "Coverage": (coverage_frame(covered), _verdict(covered)),
            "Sizes": (sizes_frame(divisibility), _verdict(divisibility)),
            "Whole arguments": (whole_arguments_frame(divisibility), ""),
        }
        titled_views = []
        for name, report in self._reports.items():
            frame, verdict = contents[name]
            sentence = REPORT_HELP[name] if len(frame) else REPORT_EMPTY[name]
            report.show(frame, sentence.format(mesh=problem.mesh), verdict)
            titled_views.append((f"{name} ({len(frame)})", report.view()))
        if self.session.audits.outcome is not None:
            self._audit.show_outcome()
            titled_views.append((self._audit.title, self._audit.view()))
        last = len(titled_views) - 1
        self._tabs.active = min(self._tabs.active, last)
        self._tabs[:] = titled_views
        if self._is_new_audit:
            self._is_new_audit = False
            self._leave_welcome()
            self._tabs.active = last
            self.show_full(True)
        self._open_report()
        remarks = [Note(note) for note in getattr(self.session.loaded.model, "notes", ())]
        remarks += notes(covered, divisibility)
        self._worth_knowing.object = join(
            h("h2", "worth knowing"),
            h("ul", *[h("li", remark.text, cls=remark.level) for remark in remarks], cls="log"),
        )

    def _audited(self) -> None:
        """Show an audit that has ended in the whole middle, or remove one of another program."""
        self._is_new_audit = self.session.audits.outcome is not None
        self._changed()

    def _open_report(self) -> None:
        if self._below.visible:
            reports: list[TableReport] = [*self._reports.values(), self._audit]
            reports[self._tabs.active].open()


def _card(text: str, act: Callable[[], None]) -> pn.widgets.Button:
    return look.button(text, act, left=True, button_style="outline", button_type="default")


def _short(which: str) -> str:
    """A model as it is called on the page: ``net.py:make``, without its folder."""
    return which.rpartition("/")[2]


def _field_value(value: Any) -> Any:
    """The value of a size as its field shows it: text, unless a widget takes the value's type."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return value if isinstance(value, int | float | str) else str(value)


class _Numbers(pn.widgets.TextInput):
    """A field for whole numbers separated by blanks or commas."""

    def numbers(self) -> tuple[int, ...] | str:
        """The numbers, or the unchanged text if it has anything else, for the model to refuse."""
        number_texts = str(self.value).replace(",", " ").split()
        return (
            tuple(map(int, number_texts))
            if number_texts and all(word.isdecimal() for word in number_texts)
            else str(self.value)
        )


def stages_text(job: Any) -> str:
    """The stages of a loading job so far, with the seconds of each, the last up to now.

    As in ``starting a process 1.2 s · tracing 0.8 s · lowering 0.3 s …``.
    """
    reported = [event for event in job.events if isinstance(event.data, str)]
    begins = [("starting a process", 0.0), *((str(event.data), event.at_s) for event in reported)]
    ends = [begin_s for _, begin_s in begins[1:]] + [job.elapsed_s]
    stages = [
        f"{name} {end - begin_s:.1f} s" for (name, begin_s), end in zip(begins, ends, strict=True)
    ]
    return " · ".join(stages) + " …"


def _verdict(report: Any) -> str:
    headline = report.headline()
    return f"{headline[:1].upper()}{headline[1:]}."


BELOW = assets.sheet("below")

REPORT_COLUMNS = {
    "Arguments": ["argument", "type", "colours", "size", "donated"],
    "Coverage": report_tables.COVERAGE_COLUMNS,
    "Sizes": report_tables.DIMS_COLUMNS,
    "Whole arguments": report_tables.ARGUMENT_COLUMNS,
}
REPORT_WIDTHS = {
    "Arguments": {"argument": 200, "type": 150, "colours": 130, "size": 80},
    "Coverage": {
        "op": 96,
        "count": 48,
        "FLOPs": 54,
        "bytes": 52,
        "finding": 100,
        "colours": 80,
        "source": 124,
        "why": 300,
    },
    "Sizes": {
        "colour": 80,
        "size": 56,
        "names": 56,
        "bytes": 56,
        "divided by": 90,
        "remedy": 190,
        "arguments": 160,
    },
    "Whole arguments": {"argument": 160, "type": 130, "size": 80, "of all": 56, "why": 300},
}
REPORT_HELP = {
    "Arguments": "The program's arguments. An action shards a colour.",
    "Coverage": "Ops that no action can split, and ops at which an action on some colours stops.",
    "Sizes": "Sizes that an axis of {mesh} does not divide, and the remedy for each.",
    "Whole arguments": "Arguments over 2% of the bytes that no action on {mesh} can cut.",
}
REPORT_EMPTY = {
    "Arguments": "The program has no arguments.",
    "Coverage": "Every op can be split along every dim.",
    "Sizes": "Every axis of {mesh} divides every size.",
    "Whole arguments": "An action on {mesh} can cut each argument of more than 2% of the bytes.",
}
