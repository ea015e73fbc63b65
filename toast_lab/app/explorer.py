"""The explorer on one page: header, pages, a drawer with the listing and the log."""

from __future__ import annotations

import time
from operator import attrgetter
from typing import Any

import panel as pn

from toast_lab.app import assets, keys, look, theme
from toast_lab.app.address import Address
from toast_lab.app.listing_pane import listing_pane, packed
from toast_lab.app.pace import IDLE_MS, TICK_MS, ticker
from toast_lab.app.page_stack import PAGES, PageStack, page_of, steps
from toast_lab.app.pages.hand_page import LISTINGS, MANY_OPS
from toast_lab.app.pending import Pending
from toast_lab.app.session import Session
from toast_lab.app.shell import Shell
from toast_lab.app.source_pane import SourcePane
from toast_lab.app.tour.tour import Tour
from toast_lab.app.tour_strip import TourStrip, start_button
from toast_lab.views.markup import h, quiet
from toast_lab.views.selection_facts import CONFLICT_COLUMNS, conflicts_frame


class Explorer(look.Pane):
    """The whole explorer, for a server page or a notebook cell."""

    def __init__(
        self,
        session: Session | None = None,
        *,
        offered: str = "",
        refusal: str = "",
        height: int | None = None,
    ) -> None:
        super().__init__()
        self.session = session or Session()
        self.session.next_turn = look.next_turn
        self._preparing = Pending()
        self._unlisted: Any = None  #: the analysis, until its listing is first looked at
        self._ticker: Any = None
        self._read: Any = None  #: the error that the user dismissed
        self.nav = look.switch(
            options={
                f"{number}  {page.title}": step
                for number, (step, page) in enumerate(PAGES.items(), 1)
            },
            value=page_of(self.session.step),
            height=34,
            stylesheets=[look.BUTTON + NAV],
        )
        look.watch_value(self.nav, self._to_step)
        self._head = look.text(stylesheets=[look.HEADER + HEAD], margin=(6, 12, 0, 0))
        self._job = look.text(stylesheets=[look.HEADER + JOB], width=122, margin=(8, 0, 0, 8))
        self.cancel = look.button(
            "Cancel",
            self.session.cancel,
            width=70,
            height=30,
            disabled=True,
            margin=(2, 0, 0, 8),
        )
        self.shell = Shell(
            framed=height is not None,
            commands=keys.table({step: page.title for step, page in PAGES.items()}),
        )
        self.shell.param.watch(
            lambda event: keys.perform(str(event.new[0]), self) if event.new else None, "command"
        )
        self.address = Address(self.session, self.shell, steps())
        self.tour = Tour(self.session)
        self.strip = TourStrip(self.tour, self.part)
        tour_button = start_button(self.session, "Tour", width=56, height=30, margin=(2, 0, 0, 8))
        self._status = look.text(stylesheets=[look.STATUS], height=30)
        header = look.row(
            self._head,
            self.nav,
            self._job,
            self.cancel,
            self.shell,
            tour_button,
            height=36,
            stylesheets=[BAR],
        )
        self.pages = PageStack(self.session, offered=offered, refusal=refusal)
        look.watch(self.shell, self._at_rest, "rested")
        self.drawer = self._drawer()
        # Panel makes the page as tall as all parts of all pages together, including hidden ones.
        style = {"height": "100vh" if height is None else f"{height}px", "min-height": "0"}
        self.view = look.filled_column(
            header,
            self._status,
            self.strip,
            self.pages,
            self.drawer,
            styles=style,
            stylesheets=[look.ROOT if height is None else look.ROOT + theme.HOST],
        )
        state = self.session
        look.watch(state, self.show_step, "step")
        look.watch(state.loaded, self.show_model, "analysis")
        look.watch(state.loaded, self.show_head, "problem")
        look.watch(state.work, self.show_head, "changes")
        look.watch(state.exports, self.show_head, "changes")
        look.watch(state.notices, self.show_messages, "messages")
        look.watch(state.selection, self.show_selection, "names", "conflicts")
        self.show_model()
        self.show_head()
        self.show_messages()
        self.show_selection()
        was_open = state.choices.values.get("drawer")
        self.show_step()
        if was_open is not None:
            self.toggle_drawer(was_open)
        self.strip.refresh()

    def part(self, page: str, way: str) -> Any:
        """A component of the frame (page "") or of a page, by its attribute path ``way``.

        None if the page has not been made.
        """
        owner: Any = self.pages.by_step.get(page) if page else self
        return None if owner is None else attrgetter(way)(owner)

    # -- drawer ------------------------------------------------------------------------------------
    def _drawer(self) -> Any:
        self.listing = listing_pane()
        self.listing.follow(self.session.selection)
        self.conflicts = look.table(CONFLICT_COLUMNS)
        self.conflicts.on_click(
            lambda event: self.session.selection.select(
                (), (int(self.conflicts.value["conflict"].iloc[event.row]),)
            )
        )
        self.source = SourcePane(self.session)
        self._log = look.text(sizing_mode="stretch_both")
        log = look.filled_column(self._log, scroll=True)
        titled: dict[str, Any] = {
            "Listing": self.listing,
            "Conflicts": self.conflicts,
            "Source": self.source,
            "Log": log,
        }
        self._in_tabs = [(look.filled_column(), content) for content in titled.values()]
        tabs = look.tabs(*zip(titled, [body for body, _ in self._in_tabs], strict=True))
        self.session.choices.keep("drawer, tab", tabs, "active")
        look.watch(tabs, self._draw_tab, "active")
        self.tabs = tabs
        self.fold = look.button(
            "Hide",
            self.toggle_drawer,
            width=64,
            height=26,
            margin=0,
            styles={"position": "absolute", "right": "8px", "top": "6px"},
            stylesheets=[look.SLIM_BUTTON],
        )
        return look.filled_column(
            tabs,
            self.fold,
            styles={"height": DRAWER_HEIGHT},
            stylesheets=[look.CANVAS + ":host { position: relative; flex: 0 0 auto !important; }"],
        )

    def toggle_drawer(self, opened: bool | None = None) -> None:
        """Show or hide the drawer; None toggles it."""
        opened = self.fold.name == "Show" if opened is None else opened
        self.session.choices.values["drawer"] = opened
        self.fold.name = "Hide" if opened else "Show"
        self.drawer.styles = {**self.drawer.styles, "height": DRAWER_HEIGHT if opened else "40px"}
        self._draw_tab()

    def _draw_tab(self) -> None:
        """Fill the open tab once it is seen; behind the fold it would be read aloud."""
        body, content = self._in_tabs[self.tabs.active]
        is_open = self.fold.name == "Hide"
        if is_open and not len(body):
            body.objects = [content]
        body.visible = is_open
        self._list_program()

    def _at_rest(self) -> None:
        """The user is idle: prepare what the next click may ask for."""
        self.pages.make_ahead()
        self._list_program(at_rest=True)

    def _list_program(self, *, at_rest: bool = False) -> None:
        """Begin to list a large program, once its listing is in view or there is time."""
        analysis = self._unlisted
        is_seen = self.fold.name == "Hide" and self._in_tabs[self.tabs.active][1] is self.listing
        if analysis is not None and (is_seen or at_rest):
            self._unlisted = None
            self._preparing.start_next(analysis, lambda: LISTINGS.submit(packed, analysis))

    # -- showing -----------------------------------------------------------------------------------
    def _to_step(self, step: str) -> None:
        """Go to the step of a button in the header.

        If the server has gone to another step meanwhile, that change is still on its way to the
        browser and would press its own button there after this one: so the browser is told again.
        """
        if page_of(step) != page_of(self.session.step):
            views = self.session.choices.values
            self.session.step = views.get("view", step) if step == "graph" else step
        look.later(look.tell_again, self.nav, "active")

    def show_step(self) -> None:
        """Bring the session's step to the front."""
        step = self.session.step
        is_new = step != self.pages.shown
        if page_of(step) == "graph":
            self.session.choices.values["view"] = step
        self.pages.make(step)
        # In one message, so that the browser lays out the page only once
        with pn.io.unlocked():
            self.pages.to_front(step)
            if self.tour.step is not None:
                self.toggle_drawer(self.tour.step.drawer and step == self.tour.step.page)
            elif is_new:
                self.toggle_drawer(step == "graph")
            self.nav.value = page_of(step)

    def show_model(self) -> None:
        """Fill the drawer for a new model."""
        analysis = self.session.loaded.analysis
        if analysis is None:
            return
        if analysis.program.n_ops > MANY_OPS and pn.state.curdoc is not None:
            self._unlisted = analysis
            self._list_program()
        else:
            self._unlisted = None
            self._preparing.drop()
            self.listing.packed = packed(analysis)
        self.conflicts.value = conflicts_frame(analysis)
        self.conflicts.selection = []
        self.show_selection()
        self.show_head()

    def show_head(self) -> None:
        """Show model, mesh, machine and the running job."""
        session = self.session
        subject: list[Any] = []
        model, loading = session.loaded.model, session.loading
        self.shell.title = loading or (model.name if model is not None else "")
        if loading:
            subject.append(h("b", f"{loading} …", cls="model", title=loading))
            if model is not None:
                until_then = f"{model.name} until then"
                subject.append(h("span", until_then, cls="quiet", title=until_then))
        elif model is not None:
            subject.append(h("b", model.name, cls="model", title=model.source))
        if session.loaded.problem is not None and not loading:
            mesh_and_machine = (
                f"{session.loaded.problem.mesh} · {session.loaded.problem.machine.name}"
            )
            subject.append(
                h(
                    "span",
                    mesh_and_machine,
                    cls="quiet",
                    title=f"mesh and machine: {mesh_and_machine}",
                )
            )
        brand = h("span", "TOAST Lab", cls="brand")
        self._head.object = h("div", brand, h("div", *subject, cls="subject"), cls="bar")
        self._show_job()

    def _show_job(self) -> None:
        """Show the running job and its clock."""
        session = self.session
        job = session.job
        self.cancel.disabled = job is None
        text = "no job is running"
        if job is not None:
            is_held = job is session.work.job and session.work.paused
            activity = session.searches.held_state if is_held else DOING[job.kind]
            text = f"{activity}, {job.worked_s:.0f} s"
        self._job.object = h(
            "div",
            text,
            cls="quiet" if job is not None else "quiet idle",
            style="text-align: right",
            title=job.title if job is not None else "no job is running",
        )

    def show_messages(self) -> None:
        """Show the last message under the header, and all of them in the log."""
        messages = self.session.notices.messages
        newest = messages[-1] if messages else None
        if newest is not None and newest is self._read:
            newest = None
        shown_text = (
            newest.text if newest is not None else "" if messages else "Choose a model to begin."
        )
        is_error = newest is not None and newest.level == "error"
        self._status.object = h(
            "div",
            shown_text,
            h("span", " Press Esc to dismiss.", cls="away") if is_error else "",
            cls=f"status {newest.level if newest else ''}",
            title=shown_text,
            role="status",
            aria_live="polite",
        )
        rows = [
            h(
                "li",
                time.strftime("%H:%M:%S  ", time.localtime(message.at)),
                message.text,
                cls=message.level,
            )
            for message in reversed(messages)
        ]
        self._log.object = h("ul", *rows, cls="log") if rows else quiet("Nothing yet.")

    def dismiss(self) -> bool:
        """Dismiss the error under the header; it stays in the log. False if there is none."""
        messages = self.session.notices.messages
        if not messages or messages[-1].level != "error" or messages[-1] is self._read:
            return False
        self._read = messages[-1]
        self.show_messages()
        return True

    def show_selection(self) -> None:
        """Mark the selection in the listing and in the conflict table."""
        session, analysis = self.session, self.session.loaded.analysis
        if analysis is None:
            return
        self.listing.chosen = session.selection.ops

        marked_conflicts = session.selection.conflicts or _conflicts_of(
            analysis, session.selection.names
        )
        if list(self.conflicts.selection) != list(marked_conflicts):
            self.conflicts.selection = list(marked_conflicts)
        if session.selection.conflicts and self.tabs.active == LOG_TAB:
            self.tabs.active = 1

    def page(self, step: str) -> Any:
        """The page of a step that was shown before."""
        return self.pages.by_step[step]

    def tick(self) -> None:
        """Take in the reports of jobs; called every ``TICK_MS`` or ``IDLE_MS``."""
        self.address.flush()
        done = self._preparing.done()
        if done is not None and done.subject is self.session.loaded.analysis:
            self.listing.packed = done.future.result()
        session = self.session
        points = session.tick()
        if self.session.job is not None:
            self._show_job()  # its clock runs even while the job reports nothing
        page = self.pages.by_step.get("search")
        if page is not None and points:
            page.feed(points)
        for step, page in list(self.pages.by_step.items()):
            is_in_front = step == session.step
            # These two have nothing to do behind another page
            if hasattr(page, "tick") and (is_in_front or step not in ("load", "search")):
                page.tick()
        if self.session.leads_to:
            self.pages.make(self.session.leads_to)  # there is time until the model is loaded
        if self.shell.rested == self.shell.awaited_rest and (
            self.pages.has_time or self._unlisted is not None
        ):
            self.shell.awaited_rest += 1  # the browser reports when its user is idle
        self._pace()

    def _pace(self) -> None:
        """Tick fast while a job runs or the search's slider may be moved, slowly otherwise."""
        session = self.session
        busy = session.work.busy or session.exports.busy
        period_ms = TICK_MS if busy or session.step == "search" else IDLE_MS
        if self._ticker is not None and self._ticker.period != period_ms:
            self._ticker.period = period_ms

    def watch(self) -> None:
        """Begin to call ``tick``, once the browser has rendered the page.

        Changes made after the browser has fetched the document and before it has rendered it are
        lost: widgets that receive them reach for elements that do not exist yet, and Panel drops
        changes of our own components, since it assumes that the document is still to be fetched.
        """

        def begin() -> None:
            self._ticker = ticker(self.tick)
            look.watch(self.session, self._pace, "step")
            look.watch(self.session.work, self._pace, "job", "changes")
            look.watch(self.session.exports, self._pace, "job", "changes")

        if pn.state.curdoc is not None:
            # The shell loads the page anew instead: Bokeh would reconnect this page to a server
            # that may know nothing of it.
            pn.state.curdoc.config.update(reconnect_session=False, notify_connection_status=False)
        pn.state.onload(begin)


DRAWER_HEIGHT = "clamp(170px, 27vh, 250px)"
LOG_TAB = 3
MANY_SELECTED = 40
DOING = {
    "load": "loading",
    "search": "searching",
    "run": "executing",
    "race": "racing",
    "confirm": "confirming",
    "compile": "compiling",
    "audit": "auditing",
    "why not": "looking for room",
    "price rules": "pricing",
    "advise": "advising",
    "export": "exporting",
    "write": "writing",
}
HEAD = assets.sheet("head")
BAR = assets.sheet("bar")
JOB = assets.sheet("job")
NAV = assets.sheet("nav")


def _conflicts_of(analysis: Any, names: Any) -> list[int]:
    """Conflicts with a selected name; none if many names are selected."""
    few_names = set(names) if len(names) <= MANY_SELECTED else set()
    return [
        conflict.index
        for conflict in analysis.conflicts
        if not few_names.isdisjoint(conflict.sides)
    ]
