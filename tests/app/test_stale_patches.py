"""What is not sent to a page: changes of models that it no longer has."""

from __future__ import annotations

import types
from typing import Any

from bokeh.document import Document
from bokeh.models import Column, Div

from toast_lab.app import stale_patches


def changes_of_a_page() -> tuple[Document, list[Any]]:
    """A child that comes, changes and goes, and one that stays; and the events of all that."""
    document, root = Document(), Column()
    document.add_root(root)
    events: list[Any] = []
    document.on_change(events.append)
    gone, kept = Div(text="first"), Div(text="first")
    root.children = [gone]
    gone.text = "second"
    root.children = [kept]
    kept.text = "second"
    return document, events


def test_changes_of_a_model_that_is_gone_are_told_apart() -> None:
    document, events = changes_of_a_page()
    (root,) = document.roots
    (kept,) = root.children
    assert len(events) == 4
    known = [event for event in events if stale_patches.is_known(event)]
    assert [(event.model, event.attr) for event in known] == [
        (root, "children"),
        (root, "children"),
        (kept, "text"),
    ]


def test_what_is_no_model_s_change_is_kept() -> None:
    document, events = changes_of_a_page()
    document.title = "another"
    assert stale_patches.is_known(events[-1])


def test_a_function_is_given_what_is_kept_however_often_that_is_asked() -> None:
    module = types.SimpleNamespace(write=lambda place, numbers, run=True: (place, numbers, run))
    for _ in range(2):
        stale_patches._filter(module, "write", 1, lambda number: number % 2 == 0)
    assert module.write("here", [1, 2, 3, 4], run=False) == ("here", [2, 4], False)
    assert module.write.__wrapped__("here", [1], run=True) == ("here", [1], True)


def test_the_functions_of_bokeh_and_panel_that_are_there_are_wrapped() -> None:
    from bokeh.server import session
    from panel.io import document

    stale_patches.leave_out()
    for module, marker, name in (
        (session, "_serialize_patches", "_serialize_patches"),
        (document, "schedule_write_events", "write_events"),
    ):
        if hasattr(module, marker):
            assert hasattr(getattr(module, name), "__wrapped__")
