"""Fields of public types in the reference, with the comments that describe them.

The package describes a field behind ``#:``, on its own line or on the lines above it, where shapes
and units stand.  mkdocstrings reads only docstrings; this extension of griffe gives it the
comments as such.  ``mkdocs.yml`` names this file.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

BEHIND = re.compile(r"#: ?(.*)$")
ABOVE = re.compile(r"^\s*#: ?(.*)$")


def comment_of(lines: list[str], first: int, last: int) -> str:
    """The ``#:`` comment of what stands on the lines ``first`` to ``last``, counted from 1."""
    above: list[str] = []
    number = first - 2
    while number >= 0 and (match := ABOVE.match(lines[number])):
        above.insert(0, match.group(1))
        number -= 1
    behind = BEHIND.search(lines[last - 1])
    return " ".join([*above, behind.group(1)] if behind else above).strip()


class FieldComments(griffe.Extension):
    """Takes ``#:`` comments for docstrings of attributes that have none."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **unused: Any) -> None:
        """Called for each attribute that griffe has read."""
        if attr.docstring is not None or attr.lineno is None:
            return
        text = comment_of(attr.lines_collection[attr.filepath], attr.lineno, attr.endlineno or 0)
        if text:
            # As a sentence, since it stands in a list of its own
            attr.docstring = griffe.Docstring(text[0].upper() + text[1:], parent=attr)
