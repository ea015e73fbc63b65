"""Options of search methods: type, default, range and description, written once as a field.

    @dataclasses.dataclass(frozen=True)
    class Beam(Method):
        depth: int = option(30, "longest sequence of actions", at_least=1)

Everything that shows or checks options reads these fields: a search before it starts, ``--option``
and ``--help`` of the command line, the explorer's form, and the code that resumes a search. This
module imports nothing heavy, since ``--help`` has to be quick.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

from toast_lab import checks

_OPTION = "toast_lab option"
KINDS = (bool, int, float, str)


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a method.

    Attributes:
        name: as in ``--option name=value``.
        kind: bool, int, float or str; ``object`` for values that only Python callers can give.
        nullable: may it be None?
        default: the value if the option is not given.
        description: a line on what the option sets.
        at_least: smallest value; None: no limit.
        at_most: largest value; None: no limit.
        above: value that it has to exceed; None: no limit.
        check: gives the offence of a value of the right kind, empty if there is none.
        steers: does what a search finds depend on the value?
    """

    name: str
    kind: type
    nullable: bool
    default: Any
    description: str
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    check: Callable[[Any], str] | None = None
    steers: bool = True

    @staticmethod
    def is_plain(value: Any) -> bool:
        """Can a file hold this value?"""
        return isinstance(value, int | float | str | bool | type(None))

    def offence(self, value: Any) -> str:
        """A sentence on what is wrong with a value, naming the option; empty if nothing is."""
        if value is None and self.nullable:
            return ""
        if text := self._kind_offence(value):
            return f"option {self.name} {text}"
        if text := self._range_offence(value):
            return f"{self.name}={value} {text}"
        return self.check(value) if self.check is not None else ""

    @property
    def range_text(self) -> str:
        """The values allowed, such as "1 to 10000" or "above 0"; empty if all of its kind are."""
        if self.above is not None:
            return f"above {self.above:g}"
        if self.at_least is None:
            return "" if self.at_most is None else f"at most {self.at_most:g}"
        if self.at_most is None:
            return f"at least {self.at_least:g}"
        return f"{self.at_least:g} to {self.at_most:g}"

    def __str__(self) -> str:
        allowed = f" ({self.range_text})" if self.range_text else ""
        return f"{self.name}={self.default}: {self.description}{allowed}"

    def _kind_offence(self, value: Any) -> str:
        if self.kind is bool:
            return "" if isinstance(value, bool) else f"must be true or false, got {value!r:.60}"
        if self.kind is int:
            return checks.whole_offence(value, -checks.MOST_COUNT, checks.MOST_COUNT)
        if self.kind is float:
            return checks.number_offence(value)
        if self.kind is str:
            return "" if isinstance(value, str) else f"must be a text, got {value!r:.60}"
        return ""

    def _range_offence(self, value: Any) -> str:
        too_low = self.at_least is not None and value < self.at_least
        too_high = self.at_most is not None and value > self.at_most
        if self.above is not None and not value > self.above:
            return f"must be above {self.above:g}"
        if not too_low and not too_high:
            return ""
        if (self.at_least, self.at_most) == (0, 1):
            return "must be from 0 to 1"
        if too_high:
            return f"must be at most {self.at_most:g}"
        return (
            "must not be negative" if self.at_least == 0 else f"must be at least {self.at_least:g}"
        )


def option(
    default: Any,
    description: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    check: Callable[[Any], str] | None = None,
    steers: bool = True,
) -> Any:
    """A field of a method's dataclass; see ``Option`` for the arguments."""
    unnamed = Option(
        name="",
        kind=object,
        nullable=False,
        default=default,
        description=description,
        at_least=at_least,
        at_most=at_most,
        above=above,
        check=check,
        steers=steers,
    )
    return dataclasses.field(default=default, metadata={_OPTION: unnamed})


def options_of(cls: type) -> Mapping[str, Option]:
    """The options of a dataclass by name, in the order of its fields.

    Raises:
        TypeError: a field was not made by ``option``, so that it has no description.
    """
    hints = typing.get_type_hints(cls)
    options = {}
    for field in dataclasses.fields(cls):
        unnamed = field.metadata.get(_OPTION)
        if not isinstance(unnamed, Option):
            raise TypeError(
                f"{cls.__name__}.{field.name}: make this field with toast_lab.search.options.option"
            )
        members: Collection[Any] = typing.get_args(hints[field.name]) or (hints[field.name],)
        options[field.name] = dataclasses.replace(
            unnamed,
            name=field.name,
            kind=next((kind for kind in KINDS if kind in members), object),
            nullable=type(None) in members,
        )
    return options
