"""How programs are executed and timed: the options of ``run``, ``compare`` and ``replay``.

Each of these functions takes the fields of one class of this module as keyword arguments:
``tl.run(model, plan, repeats=3, seed=1)`` makes an ``Execution``.

An instance is checked when it is made, and travels to the child process as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from toast_lab import checks
from toast_lab.errors import InvalidProblem
from toast_lab.ir.program import Program
from toast_lab.runtime import agreement


@dataclasses.dataclass(frozen=True, eq=False)
class Timing:
    """How often a program runs.

    Attributes:
        repeats: timed executions, at least 1.
        warmup: untimed executions before them.
        seed: of the made-up inputs.
        time_limit_s: seconds for everything together.

    Raises (when it is made):
        InvalidProblem: numbers of the wrong kind or out of range; all of them are listed.
    """

    repeats: int = 10
    warmup: int = 2
    seed: int = 0
    time_limit_s: float = 600.0

    def __post_init__(self) -> None:
        if wrong := list(self.offences()):
            raise InvalidProblem("; ".join(wrong))
        object.__setattr__(self, "seed", int(self.seed))  # numpy's integers are no JSON

    def offences(self) -> Iterator[str]:
        """What is wrong with each option that is wrong, its name first."""
        yield from _whole("repeats", self.repeats, 1)
        yield from _whole("warmup", self.warmup, 0)
        yield from _whole("seed", self.seed, 0, checks.MOST_SEED)
        yield from _seconds("time_limit_s", self.time_limit_s)


@dataclasses.dataclass(frozen=True, eq=False)
class Execution(Timing):
    """How a plan is executed beside the unsharded program.

    Attributes:
        inputs: arrays to use in place of made-up ones, one for each argument leaf in order.
        reference: run the unsharded program on the same inputs and compare the results.
        tolerance: largest relative error that agrees; None: by the program's types and sums, see
            ``agreement``.
    """

    inputs: Sequence[Any] | None = None
    reference: bool = True
    tolerance: float | None = None

    def offences(self) -> Iterator[str]:
        """What is wrong with each option that is wrong, its name first."""
        yield from super().offences()
        if self.tolerance is not None and (wrong := checks.number_offence(self.tolerance, 0.0)):
            yield f"tolerance {wrong}"

    def tolerance_for(self, program: Program) -> float:
        """The largest relative error that agrees."""
        return agreement.tolerance(program) if self.tolerance is None else float(self.tolerance)


@dataclasses.dataclass(frozen=True, eq=False)
class Turns(Execution):
    """How several plans are executed in turns.  ``time_limit_s`` holds for all of them together.

    Attributes:
        rounds: into how many rounds the repeats are divided; None: 5, or 3 where each round
            compiles anew, see ``apart``.
        gradients: also compare loss, gradients and a step of gradient descent with the unsharded
            program's, after all times were taken.
        processes: processes of this machine that the virtual devices are divided among.
        apart: a process for each plan and round, one at a time, for devices whose memory does not
            hold all plans at once; None: on accelerators.
        plan_time_limit_s: seconds for one plan; None: an equal share of ``time_limit_s`` for each
            plan and the unsharded program.
    """

    rounds: int | None = None
    gradients: bool = True
    processes: int = 1
    apart: bool | None = None
    plan_time_limit_s: float | None = None

    def offences(self) -> Iterator[str]:
        """What is wrong with each option that is wrong, its name first."""
        yield from super().offences()
        if self.rounds is not None:
            yield from _whole("rounds", self.rounds, 1)
        yield from _whole("processes", self.processes, 1)
        if self.plan_time_limit_s is not None:
            yield from _seconds("plan_time_limit_s", self.plan_time_limit_s)


def interquartile_range(times_s: Sequence[float]) -> float:
    """The spread of step times, 0 for fewer than 2."""
    low, high = np.percentile(times_s, [25, 75])
    return float(high - low)


def _whole(name: str, value: Any, least: int, most: int = checks.MOST_COUNT) -> Iterator[str]:
    if wrong := checks.whole_offence(value, least, most):
        yield f"{name} {wrong}"


def _seconds(name: str, value: Any) -> Iterator[str]:
    if wrong := checks.number_offence(value, above=0.0, most=checks.MOST_SECONDS):
        yield f"{name} {wrong}"
