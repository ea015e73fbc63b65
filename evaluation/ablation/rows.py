"""Prices of compiled plans without a rule: a row for each program, target and rule.

A row has the state of the code that priced it. The row of no rule (``ALL_RULES``) has the plans,
and the seconds of ops for which the compiler gives no time; rows without a rule that changes no
price have nothing else.
"""

from __future__ import annotations

import collections
import datetime
import functools
import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from evaluation.compiled_rows import program_digest
from evaluation.corpus import compiled, plans, programs
from evaluation.corpus.priced import is_clocked
from evaluation.corpus.targets import CLOCKED, target
from evaluation.row_files import Row, append_rows, read_rows
from toast_lab import cost, machines
from toast_lab.cost.price_rules import RULES
from toast_lab.cost.problem import Problem
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.step_kinds import COMPUTE

ROWS = Path(__file__).parent / "ablation.jsonl"
ALL_RULES = ""  #: the name of no rule
#: Rules that are left out together, by the name of the set.
SETS: dict[str, tuple[str, ...]] = {
    "what times alone defend": (
        "narrow_bytes",
        "memory_sustained",
        "out_of_products",
        "several_results",
        "runs_with_first",
    ),
}


@functools.cache
def state() -> str:
    """A digest of the sources of prices; rows of other states are of other prices."""
    digest = hashlib.sha256()
    for room in (cost, machines):
        folder = Path(str(room.__file__)).parent
        for path in sorted((*folder.rglob("*.py"), *folder.rglob("*.toml"))):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def subjects(compiler: str) -> dict[str, tuple[str, ...]]:
    """What is left out, by name: nothing, each rule that acts for a compiler, and the sets."""
    names = [rule.name for rule in RULES if compiler in rule.compilers]
    sets = {
        name: tuple(filter(names.__contains__, members))
        for name, members in SETS.items()
        if set(members) & set(names)
    }
    return {ALL_RULES: (), **{name: (name,) for name in names}, **sets}


def generate(
    names: Collection[str] = (), topologies: Sequence[str] = CLOCKED, rules: Collection[str] = ()
) -> None:
    """Append the rows that are missing.

    Args:
        names: names of programs; none: all of the corpus.
        topologies: targets.
        rules: names of rules and sets; none: all.
    """
    known = {_key(row) for row in read_rows(ROWS)}
    members = collections.defaultdict(list)
    for row in compiled.rows():
        if "error" not in row and row["topology"] in topologies:
            members[row["program"]].append(row)
    for name in names or members:
        traced = programs.traced(name)
        if traced is None:
            continue
        for topology in topologies:
            where = target(topology)
            problem = Problem(traced[1], where.mesh, where.machine)
            digest = program_digest(problem.analysis.model)
            head = {
                "program": name,
                "digest": digest,
                "topology": topology,
                "state": state(),
                "date": datetime.date.today().isoformat(),
            }
            own = [row for row in members[name] if digest == row["digest"]]
            own = [row for row in own if row["topology"] == topology]
            wanted = subjects(problem.machine.compiler)
            missing = {
                rule: left_out
                for rule, left_out in wanted.items()
                if (not rules or rule in rules or rule == ALL_RULES)
                and _key({**head, "rule": rule}) not in known
            }
            if own and missing:
                missing[ALL_RULES] = ()
                for row in _rows(problem, own, missing):
                    if _key({**head, **row}) not in known:
                        append_rows(ROWS, [{**head, **row}])
            print(f"{name} {topology}: {len(own)} plans, {len(missing)} rows", flush=True)


def _key(row: Row) -> tuple[str, ...]:
    return row["state"], row["program"], row["digest"], row["topology"], row["rule"]


def _rows(
    problem: Problem, members: Sequence[Row], wanted: dict[str, tuple[str, ...]]
) -> Iterator[Row]:
    """Rows of one program on one target, that of all rules first."""
    decoded = [plans.decoded(problem, row["sharding"]) for row in members]
    base = _prices(problem, decoded)
    kind = problem.analysis.program.kind
    topology = members[0]["topology"]
    told_s = [
        sum(
            time_s
            for op, time_s in row.get("compute_s_by_op", {}).items()
            if int(op) >= 0 and not is_clocked(kind[int(op)], topology)
        )
        for row in members
    ]
    yield {
        "rule": ALL_RULES,
        "plans": [row["plan"] for row in members],
        "told_unclocked_s": [_short(value) for value in told_s],
        **base,
    }
    for rule, left_out in wanted.items():
        if rule != ALL_RULES:
            prices = _prices(problem.without_rules(*left_out), decoded)
            yield {"rule": rule, **({} if prices == base else prices)}


def _prices(problem: Problem, decoded: Sequence[ShardingPlan]) -> Row:
    """Seconds of plans, those of ops for which the compiler gives none, and peaks in bytes."""
    names = problem.analysis.program.kind
    is_tpu = problem.machine.compiler == "tpu"
    topology = next(name for name in CLOCKED if name.startswith("tpu") == is_tpu)
    unclocked = np.asarray([not is_clocked(kind, topology) for kind in names])
    row: Row = {"time_s": [], "unclocked_s": [], "peak_bytes": []}
    for plan in decoded:
        totals = problem.prices.totals(plan.op_factor, plan.value_dim)
        kind, op = totals.steps.kind[: totals.n_steps], totals.steps.op[: totals.n_steps]
        is_left_out = (kind == COMPUTE) & unclocked[op]
        row["time_s"].append(_short(totals.time_s))
        row["unclocked_s"].append(_short(totals.each.time_s[: totals.n_steps][is_left_out].sum()))
        row["peak_bytes"].append(round(totals.peak_bytes))
    return row


def _short(value: float) -> float:
    return float(f"{value:.7g}")
