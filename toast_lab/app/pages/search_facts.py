"""The results of a search: the right column of its page."""

from __future__ import annotations

from toast_lab.app import look
from toast_lab.app.items import PlanItem
from toast_lab.app.plan_facts import Lookup, ranked
from toast_lab.app.plan_pane import PlanPane
from toast_lab.app.plan_words import MORE, step_words
from toast_lab.app.session import Session
from toast_lab.app.tree_state import TreeState
from toast_lab.search.trace import Simulation
from toast_lab.text import gap_text
from toast_lab.views.markup import (
    ESTIMATED,
    Facts,
    Safe,
    bytes_text,
    facts,
    h,
    join,
    numbered,
    quiet,
    seconds_text,
)
from toast_lab.views.search_curves import CurvePoint
from toast_lab.written.choices import saves

STARTING = "The worker is starting; the first simulations will appear in a few seconds."
BEFORE = (
    "Run the search, or step it one simulation at a time. The curves show the best plan so far; "
    "grey dots are the plans tried."
)


class SearchFacts:
    """Numbers of a search and its best plan, line by line.

    Attributes:
        view: the column.
        waits_for_prices: whether the lines still wait for their prices.
    """

    def __init__(self, session: Session, state: TreeState) -> None:
        self.session, self.state = session, state
        self.waits_for_prices = False
        self._choices = Lookup(ranked)
        self._facts, self._details, self.panel = look.text(), look.text(), PlanPane()
        go = look.button("Compare with other plans →", lambda: setattr(session, "step", "compare"))
        # The button above the plan stays visible, however long the plan is
        self.view = look.column(self._facts, go, self.panel, self._details)

    def refresh(self) -> None:
        """Show the state of the search."""
        self.waits_for_prices = False
        self._facts.object, self._details.object = self._words()
        self.panel.show_plan(self._best_item(), self.session.plans.items)

    def _words(self) -> tuple[Safe, Safe]:
        """The numbers of the search, and its best plan."""
        session, problem = self.session, self.session.loaded.problem
        searches, is_searching = session.searches, session.work.runs("search")
        if problem is None or not searches.points:
            return join(h("h2", "search"), quiet(STARTING if is_searching else BEFORE)), join()
        best = searches.points[-1]
        seen = self.state.best() if self.state.at is not None else None
        actions = searches.best_actions if seen is None else seen.actions
        details = join(
            h("h2", "actions of the best plan"),
            numbered(self._lines(actions, seen is None))
            if actions
            else quiet("none: unsharded is the best so far"),
            quiet(searches.note),
            quiet("" if self._best_item() is None else MORE),
        )
        return join(h("h2", "search ", ESTIMATED), facts(self._rows(best, seen))), details

    def _rows(self, best: CurvePoint, seen: Simulation | None) -> Facts:
        """The search in numbers as of its point ``best``; ``seen``: an earlier best, if shown."""
        session, problem = self.session, self.session.loaded.problem
        assert problem is not None
        searches, job = session.searches, session.work.job
        best_s, best_bytes, best_score = best.best_s, best.best_bytes, best.best_score
        if seen is not None:
            best_s, best_bytes = seen.best_time_s, seen.best_peak_bytes
            best_score = seen.best_score
        unsharded_s, unsharded_bytes = problem.baseline
        is_searching = session.work.runs("search")
        is_held = is_searching and session.work.paused
        state = searches.held_state if is_held else "searching" if is_searching else "ended"
        speed = f", {unsharded_s / best_s:.2f}× unsharded speed" if best_s else ""
        rows: Facts = [
            ("state", f"{state}, {job.worked_s:.1f} s" if job is not None else state),
            ("simulations", f"{searches.simulations:,}"),
            ("best C(s)", f"{best_score:.4f}"),
        ]
        item = self._best_item()
        if item is None:  # else the panel says it
            limit_text = bytes_text(problem.memory_limit_bytes)
            rows += [
                ("best step", f"{seconds_text(best_s)}{speed}" if best_s else "–"),
                ("best peak", f"{bytes_text(best_bytes)} of {limit_text}"),
                ("unsharded", f"{seconds_text(unsharded_s)}, {bytes_text(unsharded_bytes)}"),
            ]
        else:
            if item.cost.score > best_score:
                actions_alone = f"{item.cost.score:.4f}, of actions alone"
                rows.append(("C(s) of the plan", actions_alone))
            written = session.plans.written(item)
            rows.append(("written", "-" if written is None else str(written.size)))
        if seen is not None:
            as_of = f"simulation {self.state.shown:,}, best plan from simulation {seen.index:,}"
            rows.insert(0, ("as of", as_of))
        elif searches.gap is not None:
            rows.insert(1, ("proof", gap_text(searches.gap)))
        return rows

    def _best_item(self) -> PlanItem | None:
        """The best plan of a search that has ended, unless the page shows an earlier simulation."""
        session = self.session
        if self.state.at is not None or session.work.runs("search"):
            return None
        best = session.searches.best_plan
        return next((item for item in session.plans.items if item.plan is best), None)

    def _lines(self, actions: tuple[str, ...], is_last: bool) -> list[Safe | str]:
        """The plan of ``actions``, each with what it saves; ``is_last``: the search's best plan."""
        words = list(map(step_words, actions))
        problem, plan = self.session.loaded.problem, self.session.searches.best_plan
        if problem is None or plan is None or not is_last or self.session.work.busy:
            return list(words)
        rows = self._choices.get(plan, problem)
        self.waits_for_prices = rows is None
        if rows is None or isinstance(rows, str):
            return list(words)
        saved = {row.text: saves(row) for row in rows if row.kind != "side"}
        return [
            join(word, h("span", f"  {saved.get(line, '')}", cls="quiet"))
            for word, line in zip(words, actions, strict=True)
        ]
