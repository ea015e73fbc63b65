"""What a search has come to: the right column of its page."""

from __future__ import annotations

from toast_lab.app import look
from toast_lab.app.plan_facts import Lookup, is_action, steps_worth
from toast_lab.app.plan_words import cut_arguments, step_words
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

STARTING = "The worker starts; the first simulations come in a few seconds."
BEFORE = (
    "Run the search, or step it one simulation at a time. The curves show the best plan so far; "
    "grey dots are what was tried."
)


class SearchFacts:
    """Numbers of a search and its best plan, line by line.

    Attributes:
        view: the column.
        waits_for_prices: whether the lines will have more to tell once their prices are there.
    """

    def __init__(self, session: Session, state: TreeState) -> None:
        self.session, self.state = session, state
        self.waits_for_prices = False
        self._prices = Lookup()
        self._facts, self._details = look.text(), look.text()
        go = look.button("Compare with other plans →", lambda: setattr(session, "step", "compare"))
        # The way on stays in view, however long the plan is
        self.view = look.column(self._facts, go, self._details)

    def refresh(self) -> None:
        """Tell how the search stands."""
        self.waits_for_prices = False
        self._facts.object, self._details.object = self._words()

    def _words(self) -> tuple[Safe, Safe]:
        """What the search has come to, and its best plan."""
        session, problem = self.session, self.session.loaded.problem
        searches, is_searching = session.searches, session.work.runs("search")
        if problem is None or not searches.points:
            return join([h("h2", "search"), quiet(STARTING if is_searching else BEFORE)]), join([])
        best = searches.points[-1]
        seen = self.state.best() if self.state.at is not None else None
        actions = searches.best_actions if seen is None else seen.actions
        details = join(
            [
                h("h2", "actions of the best plan"),
                numbered(self._lines(actions, best if seen is None else None))
                if actions
                else quiet("none: unsharded is the best so far"),
                self._cuts() if seen is None else join([]),
                quiet(searches.note),
            ]
        )
        return join([h("h2", "search ", ESTIMATED), facts(self._rows(best, seen))]), details

    def _rows(self, best: CurvePoint, seen: Simulation | None) -> Facts:
        """How the search stands in numbers.

        Args:
            best: how it stands now.
            seen: the best plan as of an earlier simulation, if that is looked at.
        """
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
            ("best step", f"{seconds_text(best_s)}{speed}" if best_s else "–"),
            ("best peak", f"{bytes_text(best_bytes)} of {bytes_text(problem.memory_limit_bytes)}"),
            ("unsharded", f"{seconds_text(unsharded_s)}, {bytes_text(unsharded_bytes)}"),
        ]
        if seen is not None:
            as_of = f"simulation {self.state.shown:,}, best found by number {seen.index:,}"
            rows.insert(0, ("as of", as_of))
        elif searches.gap is not None:
            rows.insert(1, ("proof", gap_text(searches.gap)))
        return rows

    def _cuts(self) -> Safe:
        """What the plan that a search has found does with the arguments, in words."""
        plan = self.session.searches.best_plan
        if plan is None:
            return join([])
        return join([h("h2", "what it does with the arguments"), cut_arguments(plan)])

    def _lines(self, actions: tuple[str, ...], best: CurvePoint | None) -> list[Safe | str]:
        """The best plan line by line, each with the step that it leads to.

        Args:
            actions: of the plan.
            best: its price; None: an earlier plan, which the tree has the prices of.
        """
        problem, taken = self.session.loaded.problem, tuple(filter(is_action, actions))
        if problem is None or best is None or self.session.work.busy:
            return list(map(step_words, actions))
        priced = self._prices.get(problem, taken)
        self.waits_for_prices = priced is None
        if priced is None or len(priced.steps) < len(taken):
            return list(map(step_words, actions))
        judged = problem.pricer().judged
        unsharded, reached = judged(*problem.baseline), judged(best.best_s, best.best_bytes)
        worth = steps_worth(actions, priced.steps, unsharded, reached)
        return [
            join([step_words(line), h("span", f"  {price}", cls="quiet")])
            for line, price in zip(actions, worth, strict=True)
        ]
