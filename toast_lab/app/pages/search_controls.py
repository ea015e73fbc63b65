"""The settings and buttons of a search: the left column of its page."""

from __future__ import annotations

import io
from collections.abc import Callable

import panel as pn

from toast_lab.app import keys, look
from toast_lab.app.pages.confirm_settings import ConfirmSettings
from toast_lab.app.pages.search_settings import SearchSettings
from toast_lab.app.session import Session
from toast_lab.views.markup import h, quiet

RUN = "Run the search"


class SearchControls:
    """Settings and buttons.

    Attributes:
        settings: problem, method, budget, seed and options.
        confirm_settings: the judge, and how many plans it judges.
        view: everything but the fields of the problem, which ``settings.problem_box`` holds.
    """

    def __init__(
        self, session: Session, on_check: Callable[[], None], on_begin: Callable[[str], None]
    ) -> None:
        """Create the column.

        Args:
            session: the session whose searches are run.
            on_check: called when a field was checked, also while the column is being created.
            on_begin: called with "search" or "confirm" once such a search starts or resumes.
        """
        self.session, self._on_begin = session, on_begin
        self.settings = SearchSettings(session, on_check)
        self.confirm_settings = ConfirmSettings(session, on_check)
        self._make_buttons()
        self._why_not = look.text(visible=False)
        gap = pn.Spacer(width=6)
        self.view = look.column(
            self.settings.search_box,
            self.confirm_settings,
            # Visible without scrolling, even on a low screen
            self.run,
            self._why_not,
            look.row(self.pause, gap, self.step, gap.clone(), self.round),
            self.stop,
            self.confirm_settings.details,
            self.settings.options_box,
            self.confirm_settings.reasons,
            look.row(self.resume, gap.clone(), self.save),
            look.text(quiet("or resume a saved search:"), margin=(6, 0, 0, 0)),
            self.file,
        )

    def _make_buttons(self) -> None:
        searches = self.session.searches
        self.run = look.button(
            RUN, self.run_now, button_type="primary", description=keys.tip("run")
        )
        self.pause = look.button("Pause", searches.pause, disabled=True)
        self.step = look.button("Step", self.step_now, description=keys.tip("step"))
        self.round = look.button(
            "Round",
            lambda: self.step_now(whole_round=True),
            description="run one round of simulations, then pause",
        )
        self.stop = look.button(
            "Stop and keep the best",
            searches.stop,
            disabled=True,
            description=keys.tip("stop"),
        )
        self.resume = look.button(
            "Resume",
            self._resume,
            disabled=True,
            description="resume the last search with the budget above",
        )
        self.save = pn.widgets.FileDownload(
            callback=self._saved,
            filename="search.json",
            label="Save the search",
            button_type="default",
            disabled=True,
            sizing_mode="stretch_width",
            margin=(2, 0),
            stylesheets=[look.BUTTON],
        )
        self.file = pn.widgets.FileInput(
            accept=".json", sizing_mode="stretch_width", margin=(2, 0), stylesheets=[look.INPUT]
        )
        look.watch_value(self.file, self._resume_saved)

    @property
    def errors(self) -> list[str]:
        """Errors that prevent a search from starting."""
        return self.settings.errors + self.confirm_settings.errors

    def run_now(self) -> None:
        """Run the search with these settings."""
        self.settings.apply()
        if self.confirm_settings.apply():
            self.session.confirmations.start()
            self._on_begin("confirm")
        else:
            self.session.searches.start()
            self._on_begin("search")

    def step_now(self, *, whole_round: bool = False) -> None:
        """Do one simulation, or one round of them, then pause."""
        is_new = not self.session.work.busy
        if is_new:
            self.settings.apply()
        if whole_round:
            self.session.searches.step_round()
        else:
            self.session.searches.step()
        if is_new:
            self._on_begin("search")

    def _resume(self) -> None:
        self.settings.apply_budget()
        self.session.searches.resume()
        self._on_begin("search")

    def _resume_saved(self, file: bytes | None) -> None:
        if file:
            self.settings.apply_budget()
            self.session.searches.resume_saved(file)
            self._on_begin("search")

    def _saved(self) -> io.BytesIO:
        """The content of the file of the last search; empty if there is none."""
        saved = self.session.searches.saved
        return io.BytesIO(b"" if saved is None else saved.text().encode())

    def refresh(self) -> None:
        """Update which buttons are enabled, and the reason why the search cannot be run."""
        work, errors = self.session.work, self.errors
        is_searching, is_confirming = work.runs("search"), work.runs("confirm")
        self.run.name = "Run and confirm" if self.confirm_settings.judge.value else RUN
        self.run.disabled = work.busy or bool(errors)
        self.pause.disabled = not is_searching
        self.pause.name = "Go on" if is_searching and work.paused else "Pause"
        self.stop.disabled = not (is_searching or is_confirming)
        self.step.disabled = self.round.disabled = not is_searching and (work.busy or bool(errors))
        ended = self.session.searches.ended
        self.resume.disabled = work.busy or ended is None
        self.save.disabled = ended is None
        self.file.disabled = work.busy
        if ended is not None:
            self.save.filename = f"search-{ended.method}-{ended.seed}.json"
        refusal = f"Not yet: {errors[0]}." if errors and not work.busy else ""
        if self._why_not.visible != bool(refusal) or refusal:
            self._why_not.object, self._why_not.visible = h("p", refusal, cls="red"), bool(refusal)
