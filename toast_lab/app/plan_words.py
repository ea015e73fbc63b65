"""Lines of a searched plan in words."""

from __future__ import annotations

from toast_lab.search.action_path import INTEGER_PROGRAMS, method_of
from toast_lab.sharding.plan import is_action

MORE = "Its rules and constraints: page 4, Use."


def step_words(line: str) -> str:
    """A line of a searched plan in words, for people who do not know the method."""
    if is_action(line):
        return line
    if not line.startswith("refined"):
        return "the whole program at once, by an integer program"
    programs = ", by integer programs" if method_of([line]) == INTEGER_PROGRAMS else ""
    return f"single ops and values, not whole colours{programs}"
