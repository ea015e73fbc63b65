"""Run all cases in child processes with virtual devices."""

from __future__ import annotations

import functools
import os
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from evaluation.certification.rules import certify
from evaluation.certification.rules.certify import Outcome
from evaluation.certification.rules.single_op import SingleOp
from toast_lab import isolate
from toast_lab.runtime import devices

if TYPE_CHECKING:
    from evaluation.certification.rules.cases import Case

PARTS = 2  # child processes
WAYS = 4  # the most pieces that a factor is cut into


@functools.lru_cache(maxsize=2)
def outcomes(full: bool) -> tuple[list[Outcome], list[str]]:
    """Outcomes of all cases, and a text for each failure.

    Two child processes share the cases, one on each core.
    """
    environment = devices.environment(devices.Devices("cpu", WAYS))

    def child(part: int) -> tuple[list[Outcome], list[str]]:
        return isolate.run_in_child(
            "evaluation.certification.rules.session:run_cases",
            full,
            part=part,
            time_limit_s=4 * 3600 if full else 590,
            env=environment,
            activity="certifying sharding rules",
        )

    with ThreadPoolExecutor(PARTS) as pool:
        parts = list(pool.map(child, range(PARTS)))
    return [o for found, _ in parts for o in found], [f for _, failures in parts for f in failures]


def run_cases(
    full: bool, only: str = "", part: int | None = None
) -> tuple[list[Outcome], list[str]]:
    """Run all cases, or one part of them, over drawn sizes. This function runs in the child."""
    from evaluation.certification.rules.cases import CASES

    all_outcomes: list[Outcome] = []
    failures: list[str] = []
    for number, case in enumerate(CASES):
        if only in case.name and part in (None, number % PARTS):
            outcomes_of_case, failure = run_case(case, full)
            all_outcomes += outcomes_of_case
            if failure:
                failures.append(f"{case.name}: {failure}")
    return all_outcomes, failures


def draws(case: Case, full: bool) -> int:
    """Number of draws of a case; element-wise ops need few, since little of them varies."""
    if full:
        return 3 if case.label == "pointwise" else 12
    return 1 if case.label == "pointwise" else short_draws()


def short_draws() -> int:
    """Number of draws of a case in the short form; ``TOAST_LAB_RULE_DRAWS`` sets it."""
    return int(os.environ.get("TOAST_LAB_RULE_DRAWS", "2"))


def run_case(case: Case, full: bool) -> tuple[list[Outcome], str]:
    """Run one case; gives its outcomes and the smallest failure found as text, "" if none."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    from evaluation.certification.rules.draw import Draw

    tried: list[Outcome] = []

    def once(data: Any) -> None:
        single = case.draw(Draw(data))
        certified = certify_all(single, case, full)
        tried.extend(certified)
        wrong = [o for o in certified if not o.ok]
        assert not wrong, "\n".join([*map(str, wrong), single.text])

    test = settings(
        max_examples=draws(case, full),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink] if full else [Phase.generate],
    )(given(st.data())(once))
    try:
        test()
    except Exception as error:
        places = traceback.extract_tb(error.__traceback__)
        ours = [p for p in places if "certification" in p.filename] or places
        return tried, (
            f"{type(error).__name__}: {str(error)[:3000]} ({ours[-1].filename}:{ours[-1].lineno})"
        )
    return tried, ""


def certify_all(single: SingleOp, case: Case, full: bool) -> list[Outcome]:
    """Certify every factor that may be sharded, cut into 4 pieces, or 2 if 4 does not divide it.

    With ``full``, each is cut into 4 and into 2.
    """
    factors = certify.shardable_factors(single)
    if not case.sharded:
        assert not factors, f"{case.name}: factors {factors} may be sharded"
    first = single.program.factors(single.op)[0] if factors else 0
    found = []
    for factor in factors:
        size = int(single.program.factor_size[factor])
        ways = [w for w in (WAYS, 2) if size % w == 0]
        for w in ways if full else ways[:1]:
            local, compiled = single.kind not in certify.NOT_ON_SHARDS, single.reference is None
            compiled = compiled and case.name not in certify.NOT_COMPILED
            found.append(
                certify.certify(
                    single, case.name, factor - first, w, local=local, compiled=compiled
                )
            )
    return found
