"""Compile the corpus and keep the results, each row as soon as it is known.

``compiled.jsonl`` has a row for each plan of a program on a target, found again by program, digest,
target and name of the plan. If a plan is the same sharding as another, its row only names that one.
An interrupted run continues where it stopped; the compiler's full results stay in the store of
compiled results.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from evaluation.compiled_rows import compiled_row, key
from evaluation.corpus import plans, programs
from evaluation.corpus.targets import Target
from evaluation.row_files import Row, append_rows, read_rows, write_rows
from toast_lab.cost.problem import Problem
from toast_lab.runtime.compile import reading_of
from toast_lab.runtime.compiled import Compiled
from toast_lab.sharding.plan import ShardingPlan

ROWS = Path(__file__).parent / "compiled.jsonl"
SHARE = 0.98  # share of the computing time that rows list op by op


def generate(
    names: Iterable[str],
    targets: Sequence[Target],
    plan_names: tuple[str, ...] | None = None,
    *,
    time_limit_s: float = 400.0,
) -> None:
    """Compile the plans that have no row yet, program by program.

    Args:
        names: names of programs.
        targets: targets that each program is compiled for.
        plan_names: names of plans; None for all.
        time_limit_s: time limit of one compile.
    """
    known = read_rows(ROWS)
    for name, target, problem, digest in programs.each_problem(names, targets):
        head = {"program": name, "digest": digest, "topology": target.topology}
        wanted = plan_names or plans.names(target.topology)
        row_of_plan = {row["plan"]: row for row in known if head.items() <= row.items()}
        missing = [plan for plan in wanted if plan not in row_of_plan]
        if not missing:
            continue
        known_plans = _decoded(problem, row_of_plan)
        model = problem.analysis.model
        for draft in plans.drafts(model, problem, target.topology, missing, known_plans):
            if draft.same_as:
                row: Row = {"same_as": draft.same_as}
            else:
                row = _compiled(problem, target, draft, time_limit_s)
            append_rows(ROWS, [{**head, "plan": draft.name, **row}])
        write_rows(ROWS, without_older(read_rows(ROWS), head))


def without_older(every: Iterable[Row], head: Row) -> list[Row]:
    """All rows but those of a program on a target that were made of another text of the program.

    A rival's plan stays where it cannot be made here.
    """
    kept = "" if plans.RIVAL in plans.names(head["topology"]) else plans.RIVAL
    return [
        row
        for row in every
        if row["program"] != head["program"]
        or row["topology"] != head["topology"]
        or row["digest"] == head["digest"]
        or row["plan"] == kept
    ]


def again(names: Iterable[str], targets: Sequence[Target], *, time_limit_s: float = 400.0) -> None:
    """Compile the plans of rows anew that an older version of our HLO reader made.

    The plans stay the same, since a search of today might find others.
    """
    all_rows = read_rows(ROWS)
    topologies = {target.topology for target in targets}

    def is_stale(row: Row) -> bool:
        return (
            row["topology"] in topologies
            and "sharding" in row
            and row.get("reading") != reading_of(row["topology"])
        )

    stale = {row["program"] for row in all_rows if is_stale(row)}
    named = filter(stale.__contains__, names)
    for name, target, problem, digest in programs.each_problem(named, targets):
        for number, row in enumerate(all_rows):
            if (row["program"], row["topology"]) != (name, target.topology) or not is_stale(row):
                continue
            if row["digest"] != digest:
                print(f"{name}: the program is another one today", flush=True)
                continue
            draft = plans.Draft(row["plan"], plans.decoded(problem, row["sharding"]))
            fresh = _compiled(problem, target, draft, time_limit_s)
            head = {field: row[field] for field in ("program", "digest", "topology", "plan")}
            all_rows[number] = {**head, **fresh, "actions": row["actions"]}
            write_rows(ROWS, all_rows)


def search(names: Iterable[str], targets: Sequence[Target], *, time_limit_s: float = 400.0) -> None:
    """Search anew with the prices of today, and compile the plans that differ from earlier ones.

    This is done for programs and targets for which a plan of our search was judged before. The
    plans of earlier searches stay among the judged ones.
    """
    for name, target, problem, digest in programs.each_problem(names, targets):
        head = {"program": name, "digest": digest, "topology": target.topology}
        model = problem.analysis.model
        for method in plans.SEARCHES:
            all_rows = read_rows(ROWS)
            row_of_plan = {row["plan"]: row for row in all_rows if head.items() <= row.items()}
            if plans.OURS not in row_of_plan:
                break
            known = _decoded(problem, row_of_plan)
            before = known.get(row_of_plan.get(method, {}).get("same_as", method))
            known.pop(method, None)
            draft = next(plans.drafts(model, problem, target.topology, [method], known), None)
            if draft is None or (
                before is not None and before.sharding.key() == draft.plan.sharding.key()
            ):
                continue
            row: Row = {"same_as": draft.same_as}
            if not draft.same_as:
                row = _compiled(problem, target, draft, time_limit_s)
            kept = set_aside(all_rows, head, method)
            write_rows(ROWS, [*kept, {**head, "plan": method, **row}])


def _decoded(problem: Problem, own: Mapping[str, Row]) -> dict[str, ShardingPlan]:
    """Plans of the rows in ``own`` that hold a sharding, by name."""
    return {
        name: plans.decoded(problem, row["sharding"])
        for name, row in own.items()
        if "sharding" in row
    }


def set_aside(every: Iterable[Row], head: Row, method: str) -> list[Row]:
    """All rows, with the plan that ``method`` found for a program renamed to an earlier search's.

    If that plan was the same sharding as another one's, the row that says so is left out.
    """
    every = list(every)
    taken = {row["plan"] for row in every if head.items() <= row.items()}
    names = (f"{plans.EARLIER} {number}" for number in itertools.count(1))
    name = next(name for name in names if name not in taken)
    kept = list[Row]()
    for row in every:
        if not head.items() <= row.items():
            kept.append(row)
        elif row["plan"] != method:
            kept.append({**row, "same_as": name} if row.get("same_as") == method else row)
        elif "same_as" not in row:
            kept.append({**row, "plan": name})
    return kept


def rows() -> list[Row]:
    """The rows of ``compiled.jsonl`` that hold a compiler's results."""
    return [row for row in read_rows(ROWS) if "same_as" not in row]


def same_plans() -> dict[tuple[str, str, str, str], str]:
    """For each row whose plan is the same sharding as another, the name of that other plan."""
    return {key(row): row["same_as"] for row in read_rows(ROWS) if "same_as" in row}


def _compiled(problem: Problem, target: Target, draft: plans.Draft, time_limit_s: float) -> Row:
    fields = compiled_row(
        problem.analysis.model,
        draft.plan,
        target.topology,
        name=draft.name,
        fields=_judged,
        time_limit_s=time_limit_s,
    )
    return {"sharding": plans.encoded(draft.plan), **fields}


def _judged(result: Compiled) -> Row:
    """Fields of a compiled plan's row that this comparison needs; times in seconds."""
    by_op = result.compute_s_by_op
    compute_s = sum(by_op.values())
    shown, covered = {}, 0.0
    for op, seconds in sorted(by_op.items(), key=lambda item: -item[1]):
        if covered >= SHARE * compute_s:
            break
        shown[str(op)] = float(f"{seconds:.4g}")
        covered += seconds
    schedule = result.schedule
    return {
        "time_s": result.time_s,
        # Without a time of the step, the compiler gives no time for some of the computing
        "compute_s": compute_s if by_op and result.time_s is not None else None,
        "exposed_s": None if schedule is None else schedule.exposed_s,
        "collective_s": None if schedule is None else schedule.collective_s,
        "left_out": 0 if result.times is None else len(result.times.left_out),
        "compute_s_by_op": shown,
        "collectives": [
            [row.kind, row.axes, part.bytes, part.dtype, row.times, part.op]
            for row in result.collectives
            for part in row.parts
        ],
    }
