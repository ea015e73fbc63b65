"""The address bar follows the session, and the session follows the back button.

The address is written at most once per tick, however much has changed. Going back changes the
session, whose address is then the one that the browser already shows, so this causes no loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from toast_lab.app import link, look
from toast_lab.app.shell import Shell

#: Seconds that the address of a page may take from a busy server to its browser.
LATE_S = 5.0


class AddressedSteps:
    """The steps that the address of a page has named, and until when."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def name(self, step: str) -> None:
        """The address names another step, once the browser is told."""
        now = time.monotonic()
        self._until = {old: min(until, now) for old, until in self._until.items()}
        self._until[step] = math.inf

    def may_name(self, step: str) -> bool:
        """Might the browser show an address with this step, since it was not told yet?"""
        return self._until.get(step, -math.inf) > time.monotonic() - LATE_S


class Address:
    """The address of one page, made by ``Explorer``; ``known_steps`` are what it can name.

    Attributes:
        extra: fields of the server itself, such as the key of this page's state.
        bound_for: fields of the link that was opened, while its model is loaded; the address keeps
            them, so that a copy or a reload meanwhile leads there, too. ``lead_to`` sets it.
        steps: the steps that it has named.
    """

    def __init__(self, session: Any, shell: Shell, known_steps: Sequence[str]) -> None:
        self.session, self.shell, self._known_steps = session, shell, known_steps
        self.extra: dict[str, str] = {}
        self.bound_for: list[tuple[str, str]] = []
        self.steps = AddressedSteps()
        self._dirty, self._loading = True, ""
        # Model and step of the last address. The view that the page begins with counts, written or
        # not: going back leads to it even if the user left before a busy server had written it.
        self._at: tuple[str, str] | None = None
        if session.loaded.analysis is not None:
            self._stand_at(self._view(link.write(session)))
        for source, names in (
            (session, ["step"]),
            (session.loaded, ["which", "sizes", "problem"]),
            (session.selection, ["names", "conflicts", "level"]),
            (session.plans, ["items"]),
            (session.work, ["job"]),
        ):
            source.param.watch(lambda *_: self._changed(), names)
        look.watch_value(shell, self._arrived, "arrived")

    def _stand_at(self, view: tuple[str, str]) -> None:
        self._at = view
        self.steps.name(view[1])

    def _changed(self) -> None:
        self._dirty = True

    def lead_to(self, asked: list[tuple[str, str]]) -> None:
        """Keep the address of an opened link while its model is still to be loaded.

        Its view counts as the first of this page: going back leads to it even if the user left
        before the address was written.
        """
        self.bound_for = asked
        fields = dict(asked)
        self._stand_at((fields.get("model", ""), fields.get("step") or self._known_steps[0]))

    def flush(self) -> None:
        """Write the address if something changed."""
        session = self.session
        stale = self._dirty or session.loading != self._loading
        if not stale or session.loaded.analysis is None or self.shell.framed:
            return
        is_another = self._loading not in ("", session.loading)
        self._dirty, self._loading = False, session.loading
        if is_another or not session.loading:
            self.bound_for = []
        if not self.bound_for and session.loading_built_in[0]:
            # A copy or a reload meanwhile leads to the requested model, not to the previous one
            self.bound_for = link.to_model(session, *session.loading_built_in)
        pairs = list(self.bound_for or link.write(session))
        job = session.work.job
        if job is not None and job.about is not None:
            pairs.append(("job", job.id))
        query = link.query([*pairs, *self.extra.items()])
        view = self._view(pairs)
        push = self._at is not None and view != self._at
        self._stand_at(view)
        if self.shell.query[:1] != [query]:
            self.shell.query = [query, push]

    def _view(self, pairs: list[tuple[str, str]]) -> tuple[str, str]:
        fields, session = dict(pairs), self.session
        return fields.get("model", session.loaded.which), fields.get("step", session.step)

    def _arrived(self, arrived: list[Any]) -> None:
        """Bring the page to the view of the address, after back or forward."""
        view, _ = link.read(str(arrived[0]) if arrived else "", self._known_steps)
        step = view.step or self._known_steps[0]
        self._stand_at((view.model or self.session.loaded.which, step))
        if view.model and view.model != self.session.loaded.which and not self.session.work.busy:
            link.open_view(self.session, view._replace(step=step))
        else:
            self.session.step = step
        self._dirty = True
