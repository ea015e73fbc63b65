"""The tour on the page.

It is a strip between the status line and the body, covers nothing, and outlines its targets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pandas as pd
import panel as pn

from toast_lab.app import assets, look
from toast_lab.app.items import MANUAL
from toast_lab.app.session import Session
from toast_lab.app.tour.tour import BY_KEY, CHAPTERS, FIGURES, STEPS, Tour
from toast_lab.views.markup import Safe, h, join, quiet

INDEX_HEIGHT = 300

#: What a step can point at: page ("" is the frame) and attribute path of the component.
TARGETS: dict[str, tuple[str, str]] = {
    "pages": ("", "nav"),
    "drawer": ("", "drawer"),
    "code": ("", "strip.code_box"),
    "sizes": ("load", "left"),
    "graph": ("graph", "graph.centre"),
    "inspector": ("graph", "right"),
    "colours": ("graph", "left"),
    "sides": ("graph", "graph.inspector.sides.view"),
    "actions": ("graph", "graph.inspector.actions.view"),
    "plan": ("graph", "graph.inspector.plan"),
    "board": ("hand", "upper"),
    "lower": ("hand", "lower"),
    "search": ("search", "left"),
    "curves": ("search", "centre"),
    "execute": ("compare", "right.verbs.execute"),
}


def rich(text: str) -> Safe:
    """Markup of a text with `code` and **strong** words.

    >>> rich("`a<b` is **so**")
    '<code>a&lt;b</code> is <b>so</b>'
    """
    elements: list[Any] = []
    for piece in re.split(r"(`[^`]+`|\*\*[^*]+\*\*)", text):
        if piece.startswith("`"):
            elements.append(h("code", piece[1:-1]))
        elif piece.startswith("**"):
            elements.append(h("b", piece[2:-2]))
        else:
            elements.append(piece)
    return join(*elements)


def start_button(session: Session, name: str, **kwargs: Any) -> pn.widgets.Button:
    """A button that begins the tour."""
    return look.button(
        name, lambda: setattr(session, "tour", session.tour or STEPS[0].key), **kwargs
    )


class TourStrip(look.Pane):
    """Place and title on the left, text and question in the middle, buttons on the right.

    The index of figures opens below them.
    """

    def __init__(self, tour: Tour, find: Callable[[str, str], Any]) -> None:
        """``find(page, way)`` gives a component of a page, or None if it is not there."""
        super().__init__()
        self.tour, self._find = tour, find
        self._outlined: list[Any] = []
        self._seen: Any = None
        self._quiet = False
        self._place = look.text(stylesheets=[look.TEXT + PLACE], width=212)
        self._text = look.text(stylesheets=[look.TEXT + WORDS])
        # Below the options, which an answer must not move
        self._remark = look.text(stylesheets=[look.TEXT + WORDS])
        self.quiz = look.switch(
            options=["-"],
            value=None,
            height=28,
            margin=(2, 0, 0, 0),
            visible=False,
            sizing_mode="stretch_width",
            max_width=620,
            stylesheets=[look.BUTTON + QUIZ],
        )
        self.quiz.param.watch(
            lambda event: None if self._quiet or event.new is None else tour.choose(str(event.new)),
            "value",
        )
        self._code = look.text(sizing_mode=None)
        self.code_box = pn.Column(
            self._code,
            width=430,
            height=128,
            scroll=True,
            margin=(0, 0, 0, 8),
            visible=False,
            styles={
                "background": "var(--tl-soft, #eef3f9)",
                "border-radius": "6px",
                "padding": "4px 8px",
            },
        )
        button_options: dict[str, Any] = {
            "sizing_mode": "stretch_width",
            "height": 28,
            "margin": (0, 2, 4, 2),
        }
        self.back = look.button("← Back", tour.back, **button_options)
        self.forward = look.button("Next →", tour.next, button_type="primary", **button_options)
        self.do = look.button("Do it for me", self._do, **button_options)
        self.index = look.button("Figures", self._toggle_index, **button_options)
        self.again = look.button("Restart", tour.restart, **button_options)
        self.leave = look.button("Leave", tour.leave, **button_options)

        buttons = pn.Column(
            look.row(self.back, self.forward),
            look.row(self.index, self.again, self.leave),
            self.do,
            width=216,
            margin=(0, 0, 0, 8),
        )
        middle = look.column(
            self._text, self.quiz, self._remark, margin=(0, 0, 0, 10), styles={"min-width": "300px"}
        )
        upper = look.row(self._place, middle, self.code_box, buttons, stylesheets=[UPPER])
        self.figures = look.withhold(look.column(visible=False), lambda: [self._figures_table()])
        self.view = look.withhold(
            look.column(visible=False, stylesheets=[_strip(LOW)]), lambda: [upper, self.figures]
        )
        look.watch(tour, self.refresh, "changes")

    # -- showing -----------------------------------------------------------------------------------
    def refresh(self) -> None:
        """Show the tour's step in its present state."""
        tour, step = self.tour, self.tour.step
        self.view.visible = step is not None
        if step is None:
            self._outline([])
            self._seen = None
            return
        chapter, chapters, step_number, step_count = tour.place
        done = (step.task is not None or step.quiz is not None) and tour.done
        bar = h(
            "div",
            h("div", "", style=f"width:{100 * step_number / step_count:.0f}%"),
            cls="bar",
            role="presentation",
        )
        self._place.object = join(
            h("div", f"Tour {chapter} of {chapters}: {tour.chapter.title}", cls="quiet one"),
            h("div", step.title, cls="title"),
            h(
                "div",
                h("span", step.paper, cls="tag"),
                f" step {step_number} of {step_count}",
                cls="quiet one",
            ),
            bar,
        )
        self._show_words(done)
        # A wrong answer takes one line, for which there is room from the start
        self._remark.min_height = REMARK_LINE if step.quiz is not None else 0
        shows_code = step.code is not None and tour.is_ready
        if shows_code and step.code is not None:
            self._code.object = h("pre", step.code(tour.session))
        self.code_box.visible = shows_code
        self._show_quiz(done)
        self.do.name = "Take me there" if tour.away else "✓ done" if done else "Do it for me"
        self.do.disabled = not tour.away and tour.done
        self.do.visible = bool(tour.away) or step.task is not None or step.quiz is not None
        self.back.disabled = step is STEPS[0]
        self.forward.name = "Finish" if step is STEPS[-1] else "Next →"
        self._set_height()
        self._point(step)

    def _show_words(self, done: bool) -> None:
        tour, step = self.tour, self.tour.step
        assert step is not None
        paragraphs: list[Any] = []
        if tour.preparing:
            paragraphs.append(
                quiet(f"One moment: {step.scene.model} is being traced and analysed.")
            )
        elif tour.away:
            paragraphs.append(h("p", tour.away, " ", "Press “Take me there”.", cls="away"))
        if tour.text:
            paragraphs.append(h("p", rich(tour.text)))
        if tour.is_ready and step.task is not None and not done:
            paragraphs.append(h("p", "→ ", rich(step.task.ask(tour.session)), cls="ask"))
        if tour.is_ready and step.quiz is not None:
            paragraphs.append(h("p", "? ", step.quiz.question, cls="ask"))
        self._text.object = h("div", *paragraphs, cls="words")
        message = h(
            "p",
            "✓ " if done else "",
            rich(tour.remark),
            cls="said" if done else "away",
            role="status",
        )
        self._remark.object = h("div", message, cls="words") if tour.remark else ""

    def _show_quiz(self, done: bool) -> None:
        step = self.tour.step
        is_shown = step is not None and step.quiz is not None and self.tour.is_ready
        self._quiet = True
        if is_shown and step is not None and step.quiz is not None:
            options = step.quiz.options(self.tour.session)
            if options != self.quiz.options:
                self.quiz.options = options
            self.quiz.value = self.tour.answer or None
            self.quiz.disabled = done
        self.quiz.visible = is_shown
        self._quiet = False

    def _set_height(self) -> None:
        step = self.tour.step
        is_tall = step is not None and (
            step.code is not None or step.quiz is not None or step.task is not None
        )
        sheets = [_strip(ROOMY if is_tall else LOW)]
        if self.view.stylesheets != sheets:
            self.view.stylesheets = sheets

    def _point(self, step: Any) -> None:
        """Outline the targets of the step and set the page's views for it, once for each visit."""
        visit = (step.key, self.tour.session.step, self.tour.is_ready)
        if visit == self._seen:
            return
        self._seen = visit
        in_place = (
            not self.tour.preparing and self.tour.is_ready and self.tour.session.step == step.page
        )
        self._outline([self._find(*TARGETS[key]) for key in step.target] if in_place else [])
        if in_place:
            show_parts(step, self.tour.session, self._find)

    def _outline(self, objects: list[Any]) -> None:
        for component in self._outlined:
            # A style that is removed stays on the page
            component.styles = {**component.styles, "outline": "none"}
        self._outlined = []
        for component in objects:
            if component is not None:
                self._outlined.append(component)
                is_inside = any(
                    look.CANVAS in str(sheet) or look.SIDE in str(sheet)
                    for sheet in component.stylesheets
                )
                component.styles = {**component.styles, **(OUTLINE if is_inside else AROUND)}

    def _figures_table(self) -> pn.widgets.Tabulator:
        table = look.table(_index(), height=INDEX_HEIGHT - 24)
        look.on_row(table, self._jump)
        return table

    # -- doing -------------------------------------------------------------------------------------
    def _do(self) -> None:
        self._seen = None
        if self.tour.away:
            self.tour.establish()
        else:
            self.tour.do()

    def _toggle_index(self) -> None:
        self.figures.visible = not self.figures.visible
        self.index.name = "Close" if self.figures.visible else "Figures"

    def _jump(self, row: int) -> None:
        self._toggle_index()
        self.tour.go(FIGURES[row].step)


def show_parts(step: Any, session: Session, find: Callable[[str, str], Any]) -> None:
    """Set the graph's level, the tab and tensor by hand and the search's view for a step."""
    toggle = find("", "toggle_drawer")
    if toggle is not None:
        toggle(step.drawer)
    if step.page == "graph" and step.level:
        level = find("graph", "graph.controls.level")
        if level is not None:
            level.value = step.level
    if step.page == "hand" and step.tab:
        tabs, tiles = find("hand", "tabs"), find("hand", "tiles")
        if tabs is not None:
            tabs.active = ("listing", "plan", "collectives", "devices", "beside").index(step.tab)
        if tiles is not None and step.tensor is not None:
            _show_tensor(tiles, step.tensor(session))
    if step.page == "compare":
        session.plans.wanted = MANUAL
    if step.page == "search":
        view = find("search", "view")
        if view is not None:
            view.value = "race" if step.tab == "race" else "curves"


def _show_tensor(tiles: Any, name: str) -> None:
    matches = [value for key, value in tiles.tensor.options.items() if key.startswith(f"{name} [")]
    if matches:
        tiles.tensor.value = matches[0]


def _index() -> pd.DataFrame:
    title = {
        step.key: f"{number}. {chapter.title} · {step.title}"
        for number, chapter in enumerate(CHAPTERS, 1)
        for step in chapter.steps
    }
    rows = [
        {
            "in the paper": figure.figure,
            "what it shows": figure.shows,
            "step of the tour": title[figure.step],
        }
        for figure in FIGURES
    ]
    assert all(figure.step in BY_KEY for figure in FIGURES)
    return pd.DataFrame(rows)


def _strip(least_px: int) -> str:
    return assets.sheet("strip") + f":host {{ min-height: {least_px}px; }}"


OUTLINE = {"outline": "3px solid var(--tl-accent, #1f6feb)", "outline-offset": "-3px"}
AROUND = {"outline": "3px solid var(--tl-accent, #1f6feb)", "outline-offset": "3px"}
#: least heights in px; a step with a task has room for the remark when it is done
LOW, ROOMY = 112, 146
REMARK_LINE = 24
UPPER = "@media (max-width: 1100px) { :host { flex-wrap: wrap; } }"
PLACE = assets.sheet("tour_place")
WORDS = assets.sheet("tour_words")
QUIZ = assets.sheet("quiz")
