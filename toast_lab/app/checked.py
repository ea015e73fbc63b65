"""A text field that checks its text while it is typed, and says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn

from toast_lab.app import look
from toast_lab.errors import ToastError
from toast_lab.views.markup import h


class CheckedField(look.Pane):
    """A field whose text is parsed at every keystroke.

    Attributes:
        value: the parsed text; the last valid value while the text is wrong.
        error: why the text is wrong; empty if it is right.
    """

    def __init__(
        self,
        name: str,
        text: str,
        parse: Callable[[str], Any],
        on_value: Callable[[Any], None] | None = None,
        *,
        on_check: Callable[[], None] | None = None,
        placeholder: str = "",
        description: str | None = None,
    ) -> None:
        super().__init__()
        self._parse, self._on_value, self._on_check = parse, on_value, on_check
        self.input = pn.widgets.TextInput(
            name=name, value=text, placeholder=placeholder, description=description, **look.FIELD
        )
        self._words = look.text(visible=False)
        self.value: Any = None
        self.error = ""
        self._check(text)
        look.watch_value(self.input, self._check, "value_input")
        look.watch_value(self.input, self._entered)
        self.view = look.column(self.input, self._words)

    def _check(self, text: str) -> None:
        self._typed = text
        try:
            self.value, error = self._parse(text.strip()), ""
        except (ToastError, ValueError, OverflowError) as failure:
            error = str(failure)
        if error != self.error:
            self.error = error
            self._words.object = h("p", error, cls="red", role="alert") if error else ""
            self._words.visible = bool(error)
        if self._on_check is not None:
            self._on_check()

    def _entered(self, text: str) -> None:
        self._check(text)
        if not self.error and self._on_value is not None:
            self._on_value(self.value)

    def put(self, text: str) -> None:
        """Replace the text."""
        if self.input.value != text:
            self.input.value = text

    def recheck(self) -> None:
        """Check the text once more, since what it is checked against has changed."""
        self._check(self._typed)


def number(
    least: float, most: float, *, whole: bool = False, unit: str = "", empty: str | None = None
) -> Callable[[str], float | int | None]:
    """A parser of numbers from ``least`` to ``most``.

    ``empty`` says what an empty text means; None refuses it.

    >>> number(0.5, 100, unit=" seconds")("20")
    20.0
    >>> number(0, 9, whole=True)("1.5")
    Traceback (most recent call last):
    ValueError: '1.5' is not a whole number; give one from 0 to 9
    >>> number(1, 9, unit=" GiB", empty="the machine's")("")
    """
    span = f"from {least:,g} to {most:,g}{unit}"
    kind = "whole number" if whole else "number"

    def parse(text: str) -> float | int | None:
        if not text:
            if empty is None:
                raise ValueError(f"give a {kind} {span}")
            return None
        plain = text.replace(",", "").replace("_", "")
        try:
            value = int(plain) if whole else float(plain)
        except ValueError:
            raise ValueError(f"{text!r} is not a {kind}; give one {span}") from None
        if not least <= value <= most:
            or_none = f", or leave it empty: {empty}" if empty else ""
            raise ValueError(f"{text} is out of range; give a {kind} {span}{or_none}")
        return value

    return parse
