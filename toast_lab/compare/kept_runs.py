"""Executions of plans that the store has kept, also those of earlier days and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from toast_lab.compare import provenance
from toast_lab.compare.comparison_store import ComparisonStore
from toast_lab.compare.result import UNSHARDED
from toast_lab.conflicts.analysis import Analysis
from toast_lab.sharding import plan_file
from toast_lab.sharding.plan import ShardingPlan

MAX_RUNS = 8  #: of each plan, the newest
ONE_DEVICE = "one device"  #: how runs of the program itself are called


class KeptRun(NamedTuple):
    """A stored measurement, with the fields of a ``Run`` that the tables of plans read."""

    #: what was executed, a plan's name at that time
    name: str
    median_s: float | None
    spread_s: float | None
    step_times_s: tuple[float, ...]
    #: peak memory of the compiled program, in bytes
    peak_bytes: int | None
    #: peak of an accelerator's allocator, in bytes
    allocator_peak_bytes: int | None
    #: whether its results were those of the unsharded program; None if nothing was compared
    passed: bool | None
    max_relative_error: float | None
    devices: str
    device_kind: str
    time_utc: str


def kept_runs(
    analysis: Analysis, plans: Mapping[str, ShardingPlan]
) -> dict[str, tuple[KeptRun, ...]]:
    """The newest executions of each plan that ended well; those of its program on one device, too.

    A program is executed on one device, as the reference, each time one of its plans is executed;
    that counts as an execution of the plan that shards nothing.

    Raises:
        StoreError: the store cannot be read.
    """
    if not ComparisonStore.default_path().exists():
        return dict.fromkeys(plans, ())
    digest = analysis.program.digest()
    with ComparisonStore(read_only=True) as store:
        rows = [
            row
            for row in store.rows(analysis.model.name)
            if row["program_digest"] == digest and row["status"] == "ok"
        ]
        if not rows:
            return dict.fromkeys(plans, ())
        kept = {}
        for name, plan in plans.items():
            own = plan_digest(plan)
            numbers = [
                row["id"]
                for row in rows
                if row["plan_digest"] == own or (not plan.key and row["name"] == UNSHARDED)
            ]
            kept[name] = tuple(_kept_run(store, number) for number in numbers[:MAX_RUNS])
    return kept


def plan_digest(plan: ShardingPlan) -> str:
    """Digest of a plan's shardings, as the store has it."""
    return provenance.plan_digest(plan_file.to_json(plan))


def _kept_run(store: ComparisonStore, number: int) -> KeptRun:
    row = store.get(number)
    batches = row["measured"].get("batches_s") or ()
    return KeptRun(
        name=ONE_DEVICE if row["name"] == UNSHARDED else row["name"],
        step_times_s=tuple(time_s for batch in batches for time_s in batch),
        **{field: row[field] for field in KeptRun._fields if field not in ("name", "step_times_s")},
    )
