"""How finely the integer programs of ``alpa`` tell ops apart; ``terms.grain_rows`` explains each.

They are apart from the code that uses them, so that the option ``grains`` can be checked without
loading that code.
"""

from __future__ import annotations

from toast_lab.errors import did_you_mean

GRAINS = ("colours", "kernels", "roles")


def grains_of(text: str) -> list[str]:
    """The grains of a comma-separated list, in order.

    >>> grains_of("colours, roles")
    ['colours', 'roles']
    """
    return [grain.strip() for grain in text.split(",")]


def grains_offence(text: str) -> str:
    """A sentence on what is wrong with a list of grains; empty if nothing is."""
    return "; ".join(
        f"no grain is called {grain!r}{did_you_mean(grain, GRAINS)}; grains: {', '.join(GRAINS)}"
        for grain in grains_of(text)
        if grain not in GRAINS
    )
