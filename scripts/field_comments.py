"""Give the fields of public types their descriptions in the reference.

The package describes a field, with its shape and unit, in a ``#:`` comment behind it or on the
lines above. mkdocstrings reads only docstrings, so this extension of griffe turns these comments
into docstrings. ``mkdocs.yml`` names this file.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

BEHIND = re.compile(r"#: ?(.*)$")
ABOVE = re.compile(r"^\s*#: ?(.*)$")


def comment_of(lines: list[str], first: int, last: int) -> str:
    """The ``#:`` comment of the field on lines ``first`` to ``last``, counted from 1."""
    above: list[str] = []
    number = first - 2
    while number >= 0 and (match := ABOVE.match(lines[number])):
        above.insert(0, match.group(1))
        number -= 1
    behind = BEHIND.search(lines[last - 1])
    return " ".join([*above, behind.group(1)] if behind else above).strip()


class FieldComments(griffe.Extension):
    """Uses ``#:`` comments as docstrings of attributes that have none."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **unused: Any) -> None:
        """Called for each attribute that griffe has read."""
        if attr.docstring is not None or attr.lineno is None:
            return
        text = comment_of(attr.lines_collection[attr.filepath], attr.lineno, attr.endlineno or 0)
        if text:
            # Capitalised like a sentence, because the reference lists it as one
            attr.docstring = griffe.Docstring(text[0].upper() + text[1:], parent=attr)
