"""``PriceRule``: one thing that a price takes into account, with a name by which it is left out.

A rule acts through switches: habits of a compiler (``style.*``, see ``compiler_styles``), numbers
of a machine (``machine.*``, see ``machine_model``), and columns of facts about ops, uses and values
(``op.*``, ``use.*``, ``value.*``, see ``program_facts``). ``off`` has the neutral value of each:
with these values a price is what it would be if nobody had thought of the rule.

A new rule is a module with a ``PriceRule``, its line in ``price_rules``, and a line where a kernel
reads its column or ``make_program_facts`` its switch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from toast_lab.cost.fused_program import FusedProgram

#: Columns of facts by ``place.name``, such as ``op.sums_together``: an array for all ops, uses or
#: values.
Columns = Mapping[str, np.ndarray]
COLUMNS = ("op", "use", "value")  #: places of switches that are columns of facts
FAMILIES = ("computing", "fusion", "layouts", "loops", "collectives", "memory")


@dataclasses.dataclass(frozen=True)
class PriceRule:
    """A rule of the price."""

    name: str
    family: str  #: one of ``FAMILIES``
    says: str  #: one sentence
    source: str  #: what it was read off
    compilers: tuple[str, ...]  #: on whose programs it acts: "tpu", "gpu", "cpu"
    off: Mapping[str, Any]  #: neutral value of each of its switches, as ``place.name``
    #: Makes its columns, which are then declared by ``off``; None: it switches what others make
    columns: Callable[[FusedProgram], Columns] | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.says}"

    @property
    def is_of_columns(self) -> bool:
        """Does it act through columns of facts alone?"""
        return all(key.partition(".")[0] in COLUMNS for key in self.off)

    def switches(self, place: str) -> dict[str, Any]:
        """Neutral values of its switches in one place, by name."""
        return {
            key.removeprefix(f"{place}."): value
            for key, value in self.off.items()
            if key.startswith(f"{place}.")
        }


def neutral(rules: Iterable[PriceRule], place: str, compiler: str) -> dict[str, Any]:
    """Neutral values of what some rules switch in one place, for a machine's compiler."""
    values: dict[str, Any] = {}
    for rule in rules:
        if compiler in rule.compilers:
            values |= rule.switches(place)
    return values
