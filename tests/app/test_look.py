"""Messages reach the browser in order, and a table row can be clicked anywhere."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from types import SimpleNamespace
from typing import Any

import pandas as pd
import panel as pn
from bokeh.document import Document
from bokeh.models import ColumnDataSource
from bokeh.protocol import Protocol
from panel.io import document as panel_queue
from panel.io.state import set_curdoc, state
from panel.models.tabulator import CellClickEvent, SelectionEvent

from toast_lab.app import look


class Connection:
    """A stand-in for a browser, with what Panel's queue of messages needs."""

    def __init__(self) -> None:
        self.protocol, self._socket = Protocol(), None


def test_a_change_of_a_plot_does_not_overtake_what_panel_has_still_to_send() -> None:
    document, source = Document(), ColumnDataSource({"x": [0]})
    document.add_root(source)
    at_once: list[Any] = []
    document.on_change(at_once.append)
    connection = Connection()
    session = SimpleNamespace(_subscribed_connections=[connection])
    context: Any = SimpleNamespace(session=session)
    document._session_context = lambda: context
    panel_queue._WRITE_BLOCK[document] = True  # messages wait until the socket is free
    state._loaded[document] = True

    async def act() -> list[Any]:
        with set_curdoc(document):
            state._thread_id = threading.get_ident()
            look.later(lambda: source.update(data={"x": [1]}))
            (put_off,) = document.session_callbacks
            at_once.clear()
            put_off.callback()
            return list(panel_queue._WRITE_MSGS[document][connection])

    # In a new thread: a browser test may have left an event loop running in this one.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        (message,) = thread.submit(asyncio.run, act()).result()
    assert [event for event in at_once if hasattr(event, "model")] == []
    assert message.content["events"][0]["model"] == {"id": source.id}


def test_a_row_is_clicked_beside_its_last_cell_too() -> None:
    table = look.table(pd.DataFrame({"a": ["x", "y", "z"]}))
    rows: list[int] = []
    look.on_row(table, rows.append)
    model: Any = None

    def click(row: int, *, in_cell: bool) -> None:
        if in_cell:
            table._process_event(CellClickEvent(model, "a", row))
        table._process_event(SelectionEvent(model, [row], selected=True, flush=True))

    click(1, in_cell=True)
    assert rows == [1], "told twice, taken once"
    click(2, in_cell=False)
    click(2, in_cell=True)
    click(0, in_cell=False)
    assert rows == [1, 2, 2, 0]


def test_other_columns_are_another_table_and_wider_ones_are_not() -> None:
    table = look.table(pd.DataFrame({"a": ["x"]}))
    root = pn.Column(table).get_root()
    first = root.children[0]
    table.value = pd.DataFrame({"a": ["a text that is longer than the column"]})
    assert root.children[0] is first
    columns = list(first.columns)
    assert first.columns[-1].width > 100
    table.value = pd.DataFrame({"b": ["x"]})
    assert root.children[0] is not first
    assert [column.field for column in root.children[0].columns][-1] == "b"
    assert list(first.columns) == columns, "the list of a drawn table never changes"
    table._manual_update((), first, None, root, root, None)  # as if this had been put off until now
    table.value = pd.DataFrame({"c": ["x"]})
    assert [column.field for column in root.children[0].columns][-1] == "c"


def test_a_long_table_is_one_page() -> None:
    """Split into pages, it would show only the rows that fit its pane, one or two in a low one."""
    table = look.table(["argument"])
    table.value = pd.DataFrame({"argument": map(str, range(1000))})
    assert table.pagination is None
    assert len(table.get_root().source.data["argument"]) == 1000
