"""Hand a text to the browser as a file: at once, or when a job that makes it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn
from panel.custom import JSComponent

from toast_lab.app import assets, look
from toast_lab.errors import ToastError
from toast_lab.files import file_name


class Saver(JSComponent):
    """An invisible component; ``hand_over`` makes the browser download a text."""

    _esm = assets.script("download") + assets.script("saver")

    def __init__(self, say: Callable[..., None], **params: Any) -> None:
        """``say`` takes messages about what cannot be saved."""
        super().__init__(**params)
        self.say = say

    def hand_over(self, file: str, text: str) -> None:
        """Download ``text`` as ``file``.

        It is sent as a message: a parameter would keep its value, and the page's answer to a change
        of one could become another download.
        """
        self._send_msg([file, text])


def saver(say: Callable[..., None]) -> Saver:
    """A saver that takes no space; ``say`` takes its messages."""
    size: Any = {"width": 0, "height": 0, "margin": 0, "sizing_mode": "fixed"}
    return Saver(say, styles={"position": "absolute"}, **size)


def csv_button(save: Saver, name: Callable[[], str], frame: Callable[[], Any]) -> Any:
    """A small button that saves a table as CSV, with all rows, in SI units.

    Args:
        save: the saver that hands the text over.
        name: gives the name of the file, without its ending.
        frame: gives the table.
    """

    def press() -> None:
        try:
            save.hand_over(f"{file_name(name())}.csv", frame().to_csv(index=False))
        except ToastError as error:
            save.say(str(error), "error")

    return look.button(
        "CSV",
        press,
        width=46,
        height=26,
        margin=(2, 4),
        description="save this table as CSV, all rows, in SI units",
        stylesheets=[look.BUTTON + SMALL],
    )


def heading(words: Any, *buttons: Any) -> pn.Row:
    """The heading of a figure or a table, with its buttons on the right."""
    return look.row(words, *buttons, height=30)


SMALL = assets.sheet("small_button")
ONE_LINE = ".bk-btn { white-space: nowrap; padding: 4px 8px; font-size: 12px; }"
