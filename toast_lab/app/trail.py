"""Undo and redo: the current version, the earlier ones, and those that were undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Actions = tuple[str, ...]
MAX_PAST = 200


class Trail(NamedTuple):
    """Versions of an action list.

    >>> trail = Trail().to(("a",)).to(("a", "b")).undo()
    >>> trail.now, trail.redo().now, trail.to(("a", "c")).future
    (('a',), ('a', 'b'), ())
    """

    now: Actions = ()
    past: tuple[Actions, ...] = ()  #: oldest first
    future: tuple[Actions, ...] = ()  #: the one that was undone last stands last
    before: Actions | None = None  #: the version from which the last move came

    def to(self, actions: Actions) -> Trail:
        """Move on to another version; versions that were undone are forgotten.

        The same version again changes nothing.
        """
        if actions == self.now:
            return self
        return Trail(actions, (*self.past, self.now)[-MAX_PAST:], before=self.now)

    def changed(self, change: Callable[[str], str]) -> Trail:
        """The same trail with every action changed."""

        def of(actions: Actions) -> Actions:
            return tuple(map(change, actions))

        before = None if self.before is None else of(self.before)
        return Trail(of(self.now), (*map(of, self.past),), (*map(of, self.future),), before)

    def undo(self) -> Trail:
        """The trail one version back, if there is one."""
        return (
            Trail(self.past[-1], self.past[:-1], (*self.future, self.now), self.now)
            if self.past
            else self
        )

    def redo(self) -> Trail:
        """The trail one version forward again, if there is one."""
        return (
            Trail(self.future[-1], (*self.past, self.now), self.future[:-1], self.now)
            if self.future
            else self
        )
