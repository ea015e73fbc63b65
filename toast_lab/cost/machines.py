"""Machines by name or file.

Start reading at ``Machine`` in ``machine_model.py``; the numbers are in ``machine_table.py``.
"""

from __future__ import annotations

from pathlib import Path

from toast_lab.cost.machine_model import Link, Machine
from toast_lab.cost.machine_table import MACHINES
from toast_lab.errors import InvalidProblem, did_you_mean

__all__ = ["MACHINES", "Link", "Machine", "machine"]


def machine(which: str | Path | Machine) -> Machine:
    """A machine by name, or from a machine file (a name that ends in ``.toml``).

    Raises:
        InvalidProblem: no such machine, with the closest names; or the file is wrong, with every offending key.
    """
    if isinstance(which, Machine):
        return which
    if str(which).endswith(".toml"):
        return Machine.from_toml(which)
    if which not in MACHINES:
        raise InvalidProblem(
            f"no machine is called {str(which)!r}{did_you_mean(str(which), MACHINES)}; "
            f"machines: {', '.join(MACHINES)}; a machine file's name ends in .toml"
        )
    return MACHINES[str(which)]
