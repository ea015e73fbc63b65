"""A guard for continuous integration: a plan's collectives, memory and time against a budget file.

A budget is a TOML file in the repository of the model, beside its plan. It needs no devices:

    model = "my_package.model:make"       # as ``tl.load`` takes it
    mesh = "data=4,model=2"
    machine = "tpu-v5e"
    plan = "plan.json"                    # beside the budget; or actions = ["batch->data", ...]
    sizes = { layers = 2 }                # optional
    topology = "tpu:v5e:4x2"              # optional: whose compiler is asked with ``compiled=True``

    [limits]
    time_s = 0.0123
    peak_bytes = 1_500_000_000
    unsharded_bytes = 1_000_000           # of weights and states that are whole on every device
    [limits.collectives]
    all_reduce = { count = 5, bytes = 2_000_000 }
    [limits.compiled]                     # only looked at with ``compiled=True``
    time_s = 0.0140
    peak_bytes = 1_600_000_000

A kind of collective without a line may not occur. ``python -m pytest`` can hold a model to it:

    def test_the_sharding_stays_within_its_budget():
        tl.check("budget.toml").raise_if_exceeded()

Reference: none in TOAST.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from toast_lab import checks
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Cost, Problem, price
from toast_lab.errors import InvalidInput, ToastError, did_you_mean, join_offenders
from toast_lab.files import PathLike, write_whole
from toast_lab.frontends import load
from toast_lab.sharding import plan_file
from toast_lab.sharding.plan import ShardingPlan, plan_of_actions
from toast_lab.text import bytes_text, table
from toast_lab.written.parts import program_parts
from toast_lab.written.screen import time_text

ROOM = 0.01  #: share above a limit that is still within it: prices change a little by version
_KEYS = ("model", "mesh", "machine", "plan", "actions", "sizes", "topology", "limits")
_LIMITS = ("time_s", "peak_bytes", "unsharded_bytes", "collectives", "compiled")


class BudgetExceeded(ToastError):
    """A plan is over its budget; the message has every line that is."""


class BudgetRow(NamedTuple):
    """One line of a budget."""

    what: str
    limit: float | None  #: None: the file has no limit for it
    now: float
    unit: str  #: "s", "bytes" or "", for a number of collectives

    @property
    def is_exceeded(self) -> bool:
        """Is it over its limit, by more than ``ROOM``?"""
        return self.limit is not None and self.now > self.limit * (1.0 + ROOM)

    def text(self, value: float | None) -> str:
        """A value of this line with its unit."""
        if value is None:
            return "-"
        return {"s": time_text, "bytes": bytes_text}.get(self.unit, "{:g}".format)(value)


@dataclasses.dataclass(frozen=True)
class Checked:
    """A budget compared with the plan of today."""

    file: str
    plan: str  #: actions, or the file of the plan
    rows: tuple[BudgetRow, ...]

    @property
    def exceeded(self) -> tuple[BudgetRow, ...]:
        """The lines that are over their limits."""
        return tuple(row for row in self.rows if row.is_exceeded)

    @property
    def passed(self) -> bool:
        """Is every line within its limit?"""
        return not self.exceeded

    def __str__(self) -> str:
        verdict = (
            f"{self.file}: within the budget"
            if self.passed
            else f"{self.file}: {len(self.exceeded)} of {len(self.rows)} lines exceeded"
        )
        cells = [
            (
                "!" if row.is_exceeded else "",
                row.what,
                row.text(row.limit),
                row.text(row.now),
                _change(row),
            )
            for row in self.rows
        ]
        return f"{verdict}\n{table(('', 'line', '>limit', '>now', '>change'), cells, len(cells))}"

    def raise_if_exceeded(self) -> None:
        """Raise BudgetExceeded with the whole table, for tests."""
        if not self.passed:
            raise BudgetExceeded(str(self))


def _change(row: BudgetRow) -> str:
    if not row.limit:
        return "new" if row.is_exceeded else ""
    return f"{row.now / row.limit - 1.0:+.1%}" if row.now != row.limit else ""


def check(file: PathLike, *, compiled: bool = False) -> Checked:
    """Compare the plan of a budget file with its limits.

    Args:
        file: the budget, see above.
        compiled: also compile the plan for the budget's topology, which needs that compiler.

    Raises:
        InvalidInput: the file cannot be read, or has mistakes (all are listed).
        FrontendError, InvalidPlan, InvalidProblem: the model, mesh or plan is not valid.

    Examples:
        >>> import pathlib, tempfile, toast_lab as tl
        >>> lines = ['model = "mlp"', 'mesh = "d=2"', 'actions = ["B->d"]', "sizes = {batch = 64}"]
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "budget.toml"
        >>> _ = file.write_text(chr(10).join(lines))
        >>> tl.check(file).passed  # no limits yet
        True
    """
    budget = _read(Path(file))
    plan, cost, problem = _planned(budget, Path(file).parent)
    limits = budget.get("limits", {})
    rows = [*_priced_rows(limits, problem, plan, cost)]
    if compiled:
        rows += _compiled_rows(budget, plan)
    return Checked(str(file), str(budget.get("plan") or ", ".join(budget["actions"])), tuple(rows))


def update(file: PathLike, *, compiled: bool = False) -> Checked:
    """Write what holds today into the budget's limits; all else in the file stays as it is.

    Raises what ``check`` raises, and NotSaved.
    """
    now = check(file, compiled=compiled)
    text = Path(file).read_text(encoding="utf-8")
    head = text.partition("[limits")[0].rstrip()
    values = {row.what: row.now for row in now.rows}
    lines = [head, "", "[limits]"]
    lines += [f"{key} = {values[key]!r}" for key in ("time_s", "peak_bytes", "unsharded_bytes")]
    lines += ["[limits.collectives]"]
    kinds = [what.removesuffix(" bytes") for what in values if what.endswith(" bytes")]
    lines += [
        f"{kind} = {{ count = {values[kind]:g}, bytes = {values[f'{kind} bytes']!r} }}"
        for kind in kinds
        if values[kind]
    ]
    if compiled:
        lines += ["[limits.compiled]"]
        lines += [
            f"{what.removeprefix('compiled ')} = {value!r}"
            for what, value in values.items()
            if what.startswith("compiled ")
        ]
    write_whole(file, "\n".join(lines) + "\n", "the budget")
    return check(file, compiled=compiled)


def _read(file: Path) -> dict[str, Any]:
    try:
        budget = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"{file} is not a TOML file: {error}") from None
    offences = [f"unknown key {key!r}{did_you_mean(key, _KEYS)}" for key in budget.keys() - _KEYS]
    offences += [
        f"{key} is missing" for key in ("model", "mesh") if not isinstance(budget.get(key), str)
    ]
    if ("plan" in budget) == ("actions" in budget):
        offences.append("either plan or actions must be given")
    actions = budget.get("actions", [])
    if not isinstance(actions, list) or not all(isinstance(text, str) for text in actions):
        offences.append("actions must be a list of texts")
    limits = budget.get("limits", {})
    if not isinstance(limits, dict):
        offences.append("limits must be a table")
    else:
        offences += _limit_offences(limits)
    if offences:
        raise InvalidInput(f"{file}:\n{join_offenders(sorted(offences))}")
    return budget


def _limit_offences(limits: Mapping[str, Any]) -> Iterator[str]:
    for key, value in limits.items():
        if key not in _LIMITS:
            yield f"unknown limit {key!r}{did_you_mean(key, _LIMITS)}"
        elif key in ("collectives", "compiled"):
            rows = value.values() if isinstance(value, dict) else [None]
            flat = [
                number
                for row in rows
                for number in (row.values() if isinstance(row, dict) else [row])
            ]
            if any(checks.number_offence(number, 0.0) for number in flat):
                yield f"limits.{key} must hold numbers of at least 0"
        elif offence := checks.number_offence(value, 0.0):
            yield f"limits.{key} {offence}"


def _planned(budget: Mapping[str, Any], folder: Path) -> tuple[ShardingPlan, Cost, Problem]:
    model = load(budget["model"], **budget.get("sizes", {}))
    problem = Problem(analyse(model), budget["mesh"], budget.get("machine", "tpu-v5e"))
    if "plan" in budget:
        plan = plan_file.load(folder / budget["plan"], problem.analysis, problem.mesh)
    else:
        plan = plan_of_actions(problem.space, budget["actions"])
    return plan, price(problem, plan), problem


def _priced_rows(
    limits: Mapping[str, Any], problem: Problem, plan: ShardingPlan, cost: Cost
) -> Iterator[BudgetRow]:
    yield BudgetRow("time_s", limits.get("time_s"), cost.time_s, "s")
    yield BudgetRow("peak_bytes", limits.get("peak_bytes"), cost.peak_bytes, "bytes")
    whole_bytes = _unsharded_bytes(problem, plan)
    yield BudgetRow("unsharded_bytes", limits.get("unsharded_bytes"), whole_bytes, "bytes")
    budgeted = limits.get("collectives")
    kinds = {row.kind for row in cost.collectives} | set(budgeted or {})
    for kind in sorted(kinds):
        rows = [row for row in cost.collectives if row.kind == kind]
        own = None if budgeted is None else budgeted.get(kind, {"count": 0, "bytes": 0})
        count = sum(row.times for row in rows)
        sent_bytes = sum(row.local_bytes * row.times for row in rows)
        yield BudgetRow(kind, own and own.get("count"), count, "")
        yield BudgetRow(f"{kind} bytes", own and own.get("bytes"), sent_bytes, "bytes")


def _unsharded_bytes(problem: Problem, plan: ShardingPlan) -> float:
    """Bytes of weights and states that every device holds whole."""
    parts, program = program_parts(problem.analysis), problem.analysis.program
    return float(
        sum(
            program.nbytes(argument)
            for argument in (*parts.parameters, *parts.states)
            if (plan.value_dim[argument] < 0).all()
        )
    )


def _compiled_rows(budget: Mapping[str, Any], plan: ShardingPlan) -> Iterator[BudgetRow]:
    from toast_lab.runtime.compile import compile_plan

    topology = budget.get("topology")
    if topology is None:
        raise InvalidInput('a compiled budget needs topology = "tpu:v5e:4x2" or the like')
    assert plan.analysis is not None
    done = compile_plan(plan.analysis.model, plan, topology)
    limits = budget.get("limits", {}).get("compiled", {})
    if done.time_s is not None:
        yield BudgetRow("compiled time_s", limits.get("time_s"), done.time_s, "s")
    if done.peak_bytes is not None:
        peak_bytes = float(done.peak_bytes)
        yield BudgetRow("compiled peak_bytes", limits.get("peak_bytes"), peak_bytes, "bytes")
