"""The programs of the corpus by name and family, and which families are held aside."""

from __future__ import annotations

from tests.corpus import own_programs, package_programs
from tests.corpus.program import Program

#: No rule is read off these families and nothing is fitted to them; figures give them apart.
HELD_ASIDE = (
    "attention decoding",
    "recurrent",
    "Fourier",
    "diffusion",
    "linear algebra",
    "recommendation",
)
PROGRAMS: dict[str, Program] = {
    program.name: program for program in (*own_programs.PROGRAMS, *package_programs.PROGRAMS)
}


def families() -> dict[str, list[Program]]:
    """The programs of each family."""
    by_family: dict[str, list[Program]] = {}
    for program in PROGRAMS.values():
        by_family.setdefault(program.family, []).append(program)
    return by_family
