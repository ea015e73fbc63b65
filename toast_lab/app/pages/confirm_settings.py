"""Who confirms a search: a compiler of the problem's machine, attached devices, or nobody."""

from __future__ import annotations

from collections.abc import Callable

import panel as pn

from toast_lab.app import look
from toast_lab.app.checked import CheckedField, number
from toast_lab.app.session import Session
from toast_lab.confirm.judge_targets import JudgeTarget, judge_targets
from toast_lab.views.markup import Safe, h, join, quiet

NOBODY = "nobody: plans are only priced"
SENTENCE = (
    "Good plans that differ are compiled (or executed), prices learn from what the clock says, and "
    "the search starts again, until the best plan is confirmed. Seconds and plans above are those "
    "of each search."
)
MOST_COMPILES = 200


class ConfirmSettings(look.Pane):
    """The choice of a judge.

    Attributes:
        targets: that there are for the problem, possible or not.
        reasons: why others than those that are offered cannot judge here.
    """

    def __init__(self, session: Session, on_check: Callable[[], None]) -> None:
        super().__init__()
        self.session, self._on_check = session, on_check
        self.targets: list[JudgeTarget] = []
        self.judge = pn.widgets.Select(name="confirm with", options={NOBODY: ""}, **look.FIELD)
        self.compiles = CheckedField(
            "plans judged at most",
            str(session.confirmations.compiles),
            number(1, MOST_COMPILES, whole=True, unit=" plans"),
            on_check=self._checked,
            description="Each takes a compile, of seconds to minutes; what was compiled is kept.",
        )
        self._meaning, self.reasons = look.text(), look.text()
        self.view = look.column(self.judge, self.compiles, self._meaning)
        look.watch(session.loaded, self.follow, "problem")
        look.watch(self.judge, self._chosen, "value")
        self.follow()

    def follow(self) -> None:
        """Offer what can judge the plans of the problem as it is now."""
        problem = self.session.loaded.problem
        self.targets = [] if problem is None else judge_targets(problem)
        options = {
            target.title + (" (another machine)" if target.elsewhere else ""): target.topology
            for target in self.targets
            if target.possible
        }
        chosen = self.session.confirmations.judge
        if chosen not in options.values():
            chosen = ""
        self.judge.param.update(options={NOBODY: "", **options}, value=chosen)
        self._chosen()

    def _chosen(self) -> None:
        self.session.confirmations.judge = str(self.judge.value or "")
        self.compiles.view.visible = bool(self.judge.value)
        self._meaning.object, self.reasons.object = self._say(), self._say_why_not()
        self._on_check()

    def _checked(self) -> None:
        if hasattr(self, "compiles"):
            self._on_check()

    def _say(self) -> Safe:
        """What the choice means."""
        chosen = next((row for row in self.targets if row.topology == self.judge.value), None)
        if chosen is None or not self.judge.value:
            return join([])
        return h("p", chosen.warning, cls="red") if chosen.warning else quiet(SENTENCE)

    def _say_why_not(self) -> Safe:
        """Why other targets are not offered."""
        parts: list[Safe] = []
        missing = [row for row in self.targets if not row.possible]
        if missing:
            first = self.targets[0]
            if not first.possible and not self.judge.value:
                parts.append(quiet(h("b", first.title), f" cannot judge here: {first.refusal}"))
            titles: dict[str, list[str]] = {}
            for row in missing:
                titles.setdefault(row.refusal, []).append(row.title)
            rows = [
                h("li", h("b", ", ".join(names)), f": {refusal}")
                for refusal, names in titles.items()
            ]
            summary = f"{len(missing)} that cannot judge here, and why"
            parts.append(h("details", h("summary", summary), h("ul", *rows), cls="quiet"))
        return join(parts)

    @property
    def errors(self) -> list[str]:
        """What keeps a confirmed search from being started."""
        return [self.compiles.error] if self.judge.value and self.compiles.error else []

    def apply(self) -> bool:
        """Give the session what the fields say; gives whether anybody is to judge."""
        judge = str(self.judge.value or "")
        self.session.confirmations.param.update(judge=judge, compiles=int(self.compiles.value))
        return bool(judge)
