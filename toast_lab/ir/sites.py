"""The places in the user's source at which a constraint can stand.

A *site* is a statement that binds an array to a name, or that returns one, alone or in a tuple. A
constraint there is one statement after it (``x = with_sharding_constraint(x, P(...))``), or one
around what it returns.
It holds for all values that the statement makes: one for each layer, and for each of them its
cotangent, which autodiff constrains alike.
"""

from __future__ import annotations

from typing import NamedTuple


class Site(NamedTuple):
    """A statement of the user's source that binds or returns one array."""

    file: str  #: absolute path
    line: int  #: first line of the statement, from 1
    end_line: int  #: its last line
    name: str  #: what it binds, as written ("x", "self.cache"); empty: it returns the array
    function: str  #: qualified name of the function that it is in
    text: str  #: the statement's first line, without indentation
    rank: int  #: number of dims of its values
    values: tuple[int, ...]  #: values of the forward pass, in program order
    cotangents: tuple[int, ...]  #: their cotangents in the program
    #: why it cannot carry a constraint ("inside vmap, ..."), empty if it can
    refusal: str = ""
    element: int = -1  #: of the tuple that the statement returns; -1: it returns the array alone

    @property
    def target(self) -> str:
        """``x``, ``return`` or, of a tuple, ``return[0]``: what is constrained."""
        return self.name or ("return" if self.element < 0 else f"return[{self.element}]")

    @property
    def where(self) -> str:
        """``model.py:31``."""
        return f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}"


class Sites(NamedTuple):
    """All sites of a program, as plain data."""

    sites: tuple[Site, ...]  #: those with values in the program, in program order
    #: files and the digests of their texts, to notice that a source has changed since
    digests: dict[str, str]

    def nearest(self, value: int) -> Site | None:
        """The first site that can carry a constraint and holds ``value``, if there is one."""
        return next(
            (
                site
                for site in self.sites
                if not site.refusal and value in (*site.values, *site.cotangents)
            ),
            None,
        )
