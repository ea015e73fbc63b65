"""The targets that the corpus is compiled for."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """A topology, the mesh of its devices, and the machine whose prices are judged."""

    topology: str
    mesh: dict[str, int]
    machine: str


TARGETS = (
    Target("tpu:v5e:4x4", {"d": 4, "m": 4}, "tpu-v5e"),
    Target("gpu:h100:8", {"d": 2, "m": 4}, "h100"),
    Target("tpu:v6e:4x4", {"d": 4, "m": 4}, "tpu-v6e"),
    Target("tpu:v3:2x2", {"d": 2, "m": 4}, "tpu-v3"),
    Target("gpu:a100:8", {"d": 2, "m": 4}, "a100"),
    Target("gpu:p100:8", {"d": 2, "m": 4}, "p100"),
    Target("gpu:p100:2x8", {"d": 4, "m": 4}, "p100"),
)

#: The target on which rules are judged.
JUDGED_ON = "tpu:v5e:4x4"
#: Targets whose compilers give times for many plans.
CLOCKED = (JUDGED_ON, "gpu:h100:8")
#: Targets that only a dozen programs were compiled for, to confirm searches there.
FEW_PROGRAMS = ("tpu:v3:2x2",)


def target(topology: str) -> Target:
    """The target with a topology."""
    return next(target for target in TARGETS if target.topology == topology)
