"""The options of the built-in methods, as fields with their ranges.

``methods`` makes a method of each class. They are apart from ``methods`` because the code of a
method reads its options and ``methods`` runs that code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toast_lab.search.grains import GRAINS, grains_offence
from toast_lab.search.options import option

#: Limits on memory, since every action of a trajectory and every thread takes some.
MOST_DEPTH, MOST_THREADS = 10_000, 1024


def _min_names() -> Any:
    return option(None, "smallest colour group to act on; by default 10, fewer for tiny programs")


@dataclasses.dataclass(frozen=True)
class MctsOptions:
    """Options of ``methods.Mcts``."""

    trajectories: int | None = option(
        None,
        "trajectories a round; by default 64 for each action of the root, and no fewer than 512",
        at_least=1,
    )
    patience: int = option(1, "rounds without improvement before a new start", at_least=1)
    depth: int = option(30, "longest trajectory", at_least=1, at_most=MOST_DEPTH)
    exploration: float = option(0.3, "weight of the confidence bound against the value", at_least=0)
    length_penalty: float = option(0.0001, "reward lost per action", at_least=0)
    prior_visits: float = option(
        2.0, "weight of an action's mean reward elsewhere in the tree, in visits", above=0
    )
    vary: float = option(
        0.7,
        "share of the trajectories that vary the best ones of this start",
        at_least=0,
        at_most=1,
    )
    boldness: float = option(
        0.4, "chance of each further change to a varied trajectory", at_least=0, at_most=1
    )
    restarts: int = option(
        3, "fruitless starts in a row that are allowed; one more ends the search early", at_least=0
    )
    refine: int = option(
        40,
        "changes priced per row when the best plans of a start are refined; 0 turns off refinement "
        "and solve, so that every plan is a sequence of actions",
        at_least=0,
    )
    solve: bool = option(True, "improve the best refined plan of each start with integer programs")
    min_names: int | None = _min_names()
    threads: int | None = option(
        None,
        "threads that price plans, all cores by default; the result does not depend on it",
        at_least=1,
        at_most=MOST_THREADS,
        steers=False,
    )


@dataclasses.dataclass(frozen=True)
class AutomapOptions:
    """Options of ``methods.Automap``."""

    trajectories: int | None = option(
        None,
        "simulations a round; by default 16 for each action of the root, and no fewer than 256",
        at_least=1,
    )
    patience: int = option(4, "rounds without improvement after which to stop", at_least=1)
    depth: int = option(30, "longest trajectory", at_least=1)
    exploration: float = option(0.3, "weight of the confidence bound against the value")
    length_penalty: float = option(0.002, "reward lost per action")
    min_names: int | None = option(
        None,
        "fewest ops and values that an action by itself must reach; by default 10, fewer for tiny "
        "programs",
    )


@dataclasses.dataclass(frozen=True)
class AlpaOptions:
    """Options of ``methods.Alpa``."""

    grains: str = option(
        "colours,roles",
        f"how finely ops are told apart: one pass for each grain listed, of {', '.join(GRAINS)}",
        check=grains_offence,
    )
    max_strategies: int = option(
        128,
        "most strategies of an op (the quickest) and most layouts of a value (the most split) that "
        "are considered",
        at_least=2,
    )
    mip_gap: float = option(1e-3, "relative gap at which HiGHS may stop", at_least=0)
    solve_seconds: float = option(
        60.0,
        "time limit of one call of HiGHS; nodes and columns are limited too if the budget counts "
        "evaluations",
        above=0,
    )
    memory_rounds: int = option(
        8, "most rounds of memory constraints before the best plan so far is taken", at_least=0
    )


@dataclasses.dataclass(frozen=True)
class BeamOptions:
    """Options of ``methods.Beam``."""

    width: int | None = option(
        None,
        "states of each length that the beam keeps; by default 16 to 1, the fewer the more actions",
        at_least=1,
    )
    depth: int = option(30, "longest sequence of actions", at_least=1)
    patience: int = option(24, "restarts without improvement after which to stop", at_least=1)
    min_names: int | None = _min_names()


@dataclasses.dataclass(frozen=True)
class RandomWalkOptions:
    """Options of ``methods.RandomWalk``."""

    depth: int = option(
        30,
        "longest walk; lengths are drawn uniformly from 1 to this, or to one more than the longest "
        "walk so far",
        at_least=1,
    )
    patience: int = option(
        1000, "walks in a row without a new sharding after which to stop", at_least=1
    )
    min_names: int | None = _min_names()


@dataclasses.dataclass(frozen=True)
class ExhaustiveOptions:
    """Options of ``methods.Exhaustive``."""

    depth: int | None = option(None, "longest action sequence; by default no limit", at_least=1)
    min_names: int | None = _min_names()
    bounded: bool = option(True, "skip states that a lower bound rules out")


@dataclasses.dataclass(frozen=True)
class ManualOptions:
    """Options of ``methods.Manual``."""

    actions: Sequence[object] = option(
        (), "taken in order; the result is the state after all of them, whatever its price"
    )
    plans: Mapping[str, Iterable[Sequence[Any]]] | None = option(
        None,
        "sequences of (colour, role) or (colour, role, bits) by name; the result is the best of "
        "them over all assignments of mesh axes to the roles",
    )
