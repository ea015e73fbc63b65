"""The built-in machines, and machines by name or file.

Each built-in machine is a machine file in ``builtin/``, with a public source for every number. The
link rates of a TPU are nine tenths of the nominal rate, which is what line encoding leaves, as the
JAX team's book "How to scale your model" (2025) tabulates them; one torus dim has two links, one
each way. Latencies of a hop and the overhead of starting an op are round estimates everywhere: no
data sheet gives them, and ``toast-lab calibrate`` measures them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from toast_lab.errors import InvalidProblem, did_you_mean
from toast_lab.machines.machine_model import Machine

BUILTIN_FOLDER = Path(__file__).parent / "builtin"
#: Built-in machines, in the order in which lists show them; the first is the default.
BUILTIN_NAMES = (
    "tpu-v5e",
    "tpu-v3",
    "tpu-v4",
    "tpu-v5p",
    "tpu-v6e",
    "p100",
    "a100",
    "h100",
    "h200",
    "b200",
    "cpu",
)


class MachineCatalogue(Mapping[str, Machine]):
    """The machine files of a folder by name; each is read on first access."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self._folder = folder
        self._machines: dict[str, Machine | None] = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Machine:
        machine = self._machines[name]
        if machine is None:
            machine = self._machines[name] = Machine.from_toml(self._folder / f"{name}.toml")
        return machine

    def __contains__(self, name: object) -> bool:
        return name in self._machines

    def __iter__(self) -> Iterator[str]:
        return iter(self._machines)

    def __len__(self) -> int:
        return len(self._machines)


MACHINES = MachineCatalogue(BUILTIN_FOLDER, BUILTIN_NAMES)


def machine(which: str | Path | Machine) -> Machine:
    """A machine by name, or from a machine file (a name that ends in ``.toml``).

    Raises:
        InvalidProblem: there is no such machine (the message has the closest names), or the file
            is wrong (the message lists every offending key).
    """
    if isinstance(which, Machine):
        return which
    if str(which).endswith(".toml"):
        return Machine.from_toml(which)
    name = str(which)
    if name not in MACHINES:
        raise InvalidProblem(
            f"no machine is called {name!r}{did_you_mean(name, MACHINES)}; machines: "
            f"{', '.join(MACHINES)}; a machine file's name ends in .toml"
        )
    return MACHINES[name]
