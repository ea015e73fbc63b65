"""The choice of a search's judge: a compiler for its machine, attached devices, or none."""

from __future__ import annotations

from collections.abc import Callable

import panel as pn

from toast_lab.app import look
from toast_lab.app.checked import CheckedField, number
from toast_lab.app.searches import TIME_LIMIT_S
from toast_lab.app.session import Session
from toast_lab.confirm.judge_targets import JudgeTarget, judge_targets
from toast_lab.text import counted
from toast_lab.views.markup import Safe, h, join, quiet

NO_JUDGE = "no judge: plans are only priced"
SENTENCE = (
    "Good plans that differ are compiled (or executed), prices learn from the clock, and the "
    "search starts again until the best plan is confirmed. Seconds and plans above apply to each "
    "search."
)
MOST_COMPILES = 200


class ConfirmSettings(look.Pane):
    """The choice of a judge.

    Attributes:
        targets: all judge targets for the problem, whether possible or not.
        details: the limits of a judge, and what it does.
        reasons: text that says why the remaining targets cannot judge here.
    """

    def __init__(self, session: Session, on_check: Callable[[], None]) -> None:
        super().__init__()
        self.session, self._on_check = session, on_check
        self.targets: list[JudgeTarget] = []
        self.judge = pn.widgets.Select(name="confirm with", options={NO_JUDGE: ""}, **look.FIELD)
        self.compiles = CheckedField(
            "plans at most",
            str(session.confirmations.compiles),
            number(1, MOST_COMPILES, whole=True, unit=" plans"),
            on_check=self._checked,
            description="Each takes seconds to minutes to compile; results are kept.",
        )
        limit_s = session.confirmations.confirm_seconds
        self.seconds = CheckedField(
            "seconds in all",
            "" if limit_s is None else f"{limit_s:g}",
            number(1, TIME_LIMIT_S, unit=" seconds", empty="no limit"),
            on_check=self._checked,
            placeholder="no limit",
            description="Time for all searches, compiles and runs together.",
        )
        self._limits = look.row(self.compiles, pn.Spacer(width=8), self.seconds)
        self._meaning, self.reasons = look.text(), look.text()
        # Below the buttons, which must not move when a judge is chosen
        self.details = look.column(self._limits, self._meaning)
        self.view = self.judge
        look.watch(session.loaded, self.follow, "problem")
        look.watch(self.judge, self._chosen, "value")
        self.follow()

    def follow(self) -> None:
        """Offer the targets that can judge plans of the current problem."""
        problem = self.session.loaded.problem
        self.targets = [] if problem is None else judge_targets(problem)
        options = {
            target.title
            + (" (another machine)" if target.is_other_machine else ""): target.topology
            for target in self.targets
            if target.possible
        }
        chosen = self.session.confirmations.judge
        if chosen not in options.values():
            chosen = ""
        self.judge.param.update(options={NO_JUDGE: "", **options}, value=chosen)
        self._chosen()

    def _chosen(self) -> None:
        self.session.confirmations.judge = str(self.judge.value or "")
        self._limits.visible = bool(self.judge.value)
        self._meaning.object, self.reasons.object = self._say(), self._say_why_not()
        self._on_check()

    def _checked(self) -> None:
        if hasattr(self, "seconds"):
            self._on_check()

    def _say(self) -> Safe:
        """The warning about the chosen judge, or how a confirmed search works."""
        target = next((row for row in self.targets if row.topology == self.judge.value), None)
        if target is None or not self.judge.value:
            return join()
        return h("p", target.warning, cls="red") if target.warning else quiet(SENTENCE)

    def _say_why_not(self) -> Safe:
        """The reasons why other targets are not offered."""
        paragraphs: list[Safe] = []
        missing = [row for row in self.targets if not row.possible]
        if missing:
            preferred = self.targets[0]
            if not preferred.possible and not self.judge.value:
                paragraphs.append(
                    quiet(h("b", preferred.title), f" is not available here: {preferred.refusal}")
                )
            titles: dict[str, list[str]] = {}
            for row in missing:
                titles.setdefault(row.refusal, []).append(row.title)
            rows = [
                h("li", h("b", ", ".join(names)), f": {refusal}")
                for refusal, names in titles.items()
            ]
            summary = f"{counted(len(missing), 'judge')} not available here, and why"
            paragraphs.append(h("details", h("summary", summary), h("ul", *rows), cls="quiet"))
        return join(*paragraphs)

    @property
    def errors(self) -> list[str]:
        """Errors that prevent a confirmed search from starting."""
        fields = (self.compiles, self.seconds) if self.judge.value else ()
        return [field.error for field in fields if field.error]

    def apply(self) -> bool:
        """Store the fields in the session; gives whether a judge is chosen."""
        judge = str(self.judge.value or "")
        self.session.confirmations.param.update(
            judge=judge, compiles=int(self.compiles.value), confirm_seconds=self.seconds.value
        )
        return bool(judge)
