"""The selection in words, and what can be done with it.

It has facts, source line, the sides of a conflict, actions, the plan by hand, chain and legend.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from toast_lab.app import keys, look
from toast_lab.app.action_buttons import ActionButtons
from toast_lab.app.legend import LEGEND, legend
from toast_lab.app.session import Session
from toast_lab.app.sides_pane import SidesPane
from toast_lab.conflicts.analysis import Analysis
from toast_lab.views import selection_facts
from toast_lab.views.graph_layout import lane_groups
from toast_lab.views.graph_rows import op_label
from toast_lab.views.markup import (
    ESTIMATED,
    Safe,
    bytes_text,
    facts,
    h,
    join,
    numbered,
    quiet,
    seconds_text,
)
from toast_lab.views.overlay import Overlay

STEPS_SHOWN = 14  #: steps of a chain, at most


class GraphInspector:
    """The right side of the page that shows the graph or the board."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._facts = look.text()
        self.sides = SidesPane(session)
        self.actions = ActionButtons(session)
        self.plan = look.text()
        hand = session.hand
        slim: dict[str, Any] = {
            "width": 52,
            "height": 26,
            "margin": (2, 0, 0, 4),
            "stylesheets": [look.SLIM_BUTTON],
        }
        self.undo = look.button("Undo", hand.undo, description=keys.tip("undo"), **slim)
        self.redo = look.button("Redo", hand.redo, description=keys.tip("redo"), **slim)
        self._why = look.text()
        self.legend = look.text(stylesheets=[look.TEXT + LEGEND], name="legend")
        self.view = look.side(
            self._facts,
            self.sides,
            self.actions,
            # Beside the heading, where they are seen above an open drawer, too
            look.row(look.text(h("h2", "plan by hand ", ESTIMATED)), self.undo, self.redo),
            self.plan,
            self._why,
            self.legend,
            width=340,
        )

    def show_selection(self) -> None:
        """Show the facts of the selection."""
        analysis = self.session.loaded.analysis
        if analysis is not None:
            self._facts.object = self._words()
            self._why.object = chain_words(analysis, self.chain())
            self.show_actions()

    def show_legend(self, folded: bool, overlay: Overlay | None) -> None:
        """Show what the marks of the picture mean."""
        self.legend.object = legend(folded, overlay)

    def chain(self) -> list[int]:
        """The shortest chain that causes the selected conflict."""
        analysis = self.session.loaded.analysis
        if not self.session.selection.conflicts or analysis is None:
            return []
        return selection_facts.chain(analysis, self.session.selection.conflicts[0])

    def show_actions(self) -> None:
        """Show what sharding the selected colour would cost, and the plan by hand so far."""
        self.sides.refresh()
        self.actions.refresh()
        # With one bit, a colour's actions are the sides
        self.actions.view.visible = not self.sides.offers_all
        session = self.session
        item, base = session.plans.named("manual"), session.plans.named("unsharded")
        lines: list[Any] = []
        if item is not None and base is not None and item.plan.actions:
            lines.append(numbered(item.plan.actions))
            ratio = base.cost.time_s / item.cost.time_s if item.cost.time_s else 0
            step = f"{seconds_text(item.cost.time_s)} ({ratio:.2f}× unsharded speed)"
            lines.append(h("p", f"{step}, {bytes_text(item.cost.peak_bytes)}"))
        else:
            lines.append(quiet("Nothing is sharded yet."))
        self.plan.object = join(*lines)
        trail = session.hand.trail
        self.undo.disabled, self.redo.disabled = not trail.past, not trail.future

    def _words(self) -> Safe:
        session, analysis = self.session, self.session.loaded.analysis
        if session.selection.conflicts:
            conflict = session.selection.conflicts[0]
            more_count = len(session.selection.conflicts) - 1
            more_text = f" (and {more_count} more)" if more_count else ""
            return join(
                h("h2", f"conflict{more_text}"),
                facts(selection_facts.conflict_facts(analysis, conflict)),
            )
        if len(session.selection.names) == 1:
            return join(
                h("h2", "dimension name"),
                facts(selection_facts.name_facts(analysis, session.selection.names[0])),
            )
        if session.selection.names:
            return join(
                h("h2", f"{len(session.selection.names):,} names"),
                facts(_names_facts(analysis, session.selection.names)),
            )
        hint = (
            "Click a marker, a red conflict, a line of the listing or a row of the conflict table "
            "below."
        )
        return join(h("h2", "nothing selected"), quiet(hint))


def chain_words(analysis: Analysis, names: list[int]) -> Safe:
    """The names of a chain that causes a conflict, each with its op; empty without a chain."""
    if not names:
        return Safe("")
    steps = [
        h("li", f"{analysis.name_text[name]}  {op_label(analysis, int(analysis.names.op[name]))}")
        for name in names[:STEPS_SHOWN]
    ]
    omitted_count = len(names) - STEPS_SHOWN
    return join(
        h("h2", "why both dims have one colour"),
        h("ol", *steps, cls="chain mono"),
        quiet(f"… {omitted_count} more") if omitted_count > 0 else "",
    )


def _names_facts(analysis: Any, names: Any) -> list[tuple[str, str]]:
    """Facts of several names: of the op that they share, if any, and of their colours."""
    groups = Counter(analysis.group[analysis.colour[list(names)]].tolist())
    ops = set(analysis.names.op[list(names)].tolist())
    rows = []
    if len(ops) == 1:
        rows = selection_facts.op_facts(analysis, next(iter(ops)))
    if len(groups) == 1:
        return [*rows, *_group_facts(analysis, analysis.groups[next(iter(groups))])]
    colour_texts = [
        f"{analysis.groups[group].name} ({count:,})" for group, count in groups.most_common(6)
    ]
    return [
        *rows,
        (
            "colours",
            ", ".join(colour_texts) + (f" and {len(groups) - 6} more" if len(groups) > 6 else ""),
        ),
    ]


def _group_facts(analysis: Any, group: Any) -> list[tuple[str, str]]:
    conflict_count = sum(
        1 for conflict in analysis.conflicts if analysis.group[conflict.colour] == group.index
    )
    arguments = [analysis.program.value_name[argument] for argument in group.arguments]
    return [
        ("colour", group.name),
        ("size", str(group.size)),
        ("names", f"{group.n_names:,}"),
        ("mirrored colours", str(len(group.colours))),
        ("conflicts", f"{conflict_count}, {len(group.resolutions)} independent bits"),
        (
            "arguments",
            ", ".join(arguments[:3])
            + (f" and {len(arguments) - 3} more" if len(arguments) > 3 else "")
            or "none",
        ),
        ("lane", "shown" if group.index in lane_groups(analysis) else "hidden"),
    ]
