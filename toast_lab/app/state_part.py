"""A part of a session: its state is its parameters, so that a copy of them copies the state."""

from __future__ import annotations

import param


class StatePart(param.Parameterized):
    """A part of the state of a page.

    Whatever a page reads of it is a parameter, or computed from parameters. Other attributes are
    the parts that it needs, and memos.
    """

    def follow(self, other: StatePart) -> None:
        """Take over the state of the same part of another page.

        Only what grows in place is copied, and all of that has a method ``copy``.
        """
        state = {name: value for name, value in other.param.values().items() if name != "name"}
        self.param.update(
            **{
                name: value.copy() if hasattr(value, "copy") else value
                for name, value in state.items()
            }
        )
