"""How programs are executed and timed: the options of ``run``, ``compare`` and ``replay``.

Each of these functions takes the fields of one class of this module as keyword arguments:
``tl.run(model, plan, repeats=3, seed=1)`` makes an ``Execution``.

An instance is validated on construction and is sent to the child process unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from toast_lab import checks
from toast_lab.errors import InvalidProblem
from toast_lab.ir.program import Program
from toast_lab.runtime import agreement

#: The smallest allowed values of the integer options.
_LEAST = {"repeats": 1, "warmup": 0, "seed": 0, "rounds": 1, "processes": 1}


@dataclasses.dataclass(frozen=True, eq=False)
class Timing:
    """How often a program runs.

    Attributes:
        repeats: timed executions, at least 1.
        warmup: untimed executions before them.
        seed: of the made-up inputs.
        time_limit_s: limit in seconds for everything together.

    Raises (on construction):
        InvalidProblem: options of the wrong type or out of range; all of them are listed.
    """

    repeats: int = 10
    warmup: int = 2
    seed: int = 0
    time_limit_s: float = 600.0

    def __post_init__(self) -> None:
        offences = [
            f"{field.name} {offence}"
            for field in dataclasses.fields(self)
            if (offence := _offence(field, getattr(self, field.name)))
        ]
        if offences:
            raise InvalidProblem("; ".join(offences))
        object.__setattr__(self, "seed", int(self.seed))  # NumPy integers are not JSON


@dataclasses.dataclass(frozen=True, eq=False)
class Execution(Timing):
    """How a plan is executed and compared with the unsharded program.

    Attributes:
        inputs: arrays to use in place of made-up ones, one for each argument leaf in order.
        reference: run the unsharded program on the same inputs and compare the results.
        tolerance: largest relative error that counts as agreement; None derives it from the
            program's types and sums, see ``agreement``.
    """

    inputs: Sequence[Any] | None = None
    reference: bool = True
    tolerance: float | None = None

    def tolerance_for(self, program: Program) -> float:
        """The largest relative error that counts as agreement."""
        return agreement.tolerance(program) if self.tolerance is None else float(self.tolerance)


@dataclasses.dataclass(frozen=True, eq=False)
class Turns(Execution):
    """How several plans are executed in turns. ``time_limit_s`` holds for all of them together.

    Attributes:
        rounds: number of rounds that the repeats are divided into; None means 5, or 3 where each
            round compiles anew, see ``apart``.
        gradients: also compare loss, gradients and a step of gradient descent with those of the
            unsharded program, after all timing is done.
        processes: number of processes on this machine that the virtual devices are divided among.
        apart: use a separate process for each plan and round, one at a time, for devices whose
            memory does not hold all plans at once; None does so on accelerators only.
        plan_time_limit_s: seconds for one plan; None: an equal share of ``time_limit_s`` for each
            plan and the unsharded program.
    """

    rounds: int | None = None
    gradients: bool = True
    processes: int = 1
    apart: bool | None = None
    plan_time_limit_s: float | None = None


def interquartile_range(times_s: Sequence[float]) -> float:
    """Interquartile range of the step times, 0 for fewer than 2."""
    low, high = np.percentile(times_s, [25, 75])
    return float(high - low)


def _offence(field: dataclasses.Field[Any], value: Any) -> str:
    """Says what is wrong with the value of an option; empty if nothing is."""
    if value is None and field.default is None:
        return ""
    if field.name in _LEAST:
        most = checks.MOST_SEED if field.name == "seed" else checks.MOST_COUNT
        return checks.whole_offence(value, _LEAST[field.name], most)
    if field.name.endswith("_s"):
        return checks.number_offence(value, above=0.0, most=checks.MOST_SECONDS)
    return checks.number_offence(value, 0.0) if field.name == "tolerance" else ""
