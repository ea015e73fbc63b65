"""Execution certifies every factor of every op's rule.

This is the short form (see ``python -m evaluation certification``).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from evaluation.certification.rules import certify, left_out, narrowed, report, session
from evaluation.certification.rules.cases import CASES
from evaluation.certification.rules.single_op import SingleOp, cut_out
from toast_lab import isolate
from toast_lab.runtime import devices


@pytest.fixture(scope="module")
def outcomes() -> list[certify.Outcome]:
    found, failures = session.outcomes(False)
    print(report.table(found))
    assert not failures, "\n\n".join(failures)
    return found


def test_every_factor_is_certified(outcomes: list[certify.Outcome]) -> None:
    assert len(outcomes) > 200 * session.short_draws()
    assert [o for o in outcomes if not o.ok] == []


def test_every_case_has_a_factor_to_certify(outcomes: list[certify.Outcome]) -> None:
    seen = {o.case for o in outcomes}
    assert [c.name for c in CASES if c.sharded and c.name not in seen] == []
    assert [c.name for c in CASES if not c.sharded and c.name in seen] == []


def test_both_roles_and_both_roads_are_taken(outcomes: list[certify.Outcome]) -> None:
    assert {o.role for o in outcomes} == {"pass", "reduction"}
    assert sum(o.local_error is None for o in outcomes) < len(outcomes) / 20
    assert sum(o.compiled_error is None for o in outcomes) < len(outcomes) / 20


def test_reductions_are_offered_where_partial_results_combine(
    outcomes: list[certify.Outcome],
) -> None:
    kinds = {o.kind for o in outcomes if o.role == "reduction"}
    assert kinds == {
        "dot_general",
        "dot",
        "chlo.ragged_dot",
        "convolution",
        "gather",
        "scatter",
        "reduce",
    }


def test_every_op_kind_is_certified_or_left_out_for_a_reason(
    outcomes: list[certify.Outcome],
) -> None:
    certified = {o.kind for o in outcomes}
    kinds = left_out.all_kinds()
    broadcasting = {k for k in kinds if k.startswith("chlo.broadcast_")}
    assert set(left_out.BROADCASTING) <= certified
    without = kinds - certified - set(left_out.LEFT_OUT) - broadcasting
    assert not without, f"neither certified nor left out for a reason: {', '.join(sorted(without))}"
    assert not certified & set(left_out.LEFT_OUT)


@pytest.fixture(scope="module")
def refuted() -> dict[str, tuple[str, str, str]]:
    environment = devices.environment(devices.Devices("cpu", 2))
    return isolate.run_in_child(
        "evaluation.certification.rules.narrowed:refute_all", env=environment, time_limit_s=300
    )


@pytest.mark.parametrize("name", list(narrowed.CLAIMS))
def test_what_shardy_claims_and_we_do_not_is_wrong(
    name: str, refuted: dict[str, tuple[str, str, str]]
) -> None:
    shardy, ours, wrong = refuted[name]
    # "whole": a later Shardy agrees with us, as that of jaxlib 0.12 does about pads, reshapes and
    # updates.
    assert shardy in (narrowed.CLAIMS[name].role, "whole")
    assert ours in ("need_replication", "permutation"), "neither is ever sharded"
    assert wrong, "certified after all: ours may be taken back"


# -- the certification itself: it must notice errors -----------------------------------------------


def _product() -> SingleOp:
    rng = np.random.default_rng(0)
    arrays = [
        rng.normal(size=(4, 8)).astype(np.float32),
        rng.normal(size=(8, 4)).astype(np.float32),
    ]
    text = """func.func public @main(%a: tensor<4x8xf32>, %b: tensor<8x4xf32>) -> tensor<4x4xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}"""  # noqa: E501
    return cut_out(text, "dot_general", arrays)


def test_a_wrong_monoid_is_noticed() -> None:
    single = _product()
    factor = next(
        f for f in certify.shardable_factors(single) if single.program.factor_class[f] == 1
    )
    assert not certify.local_error(single, factor, 2, "reduction")
    monoid = single.program.monoid.copy()
    monoid[single.op] = 2
    wrong = dataclasses.replace(single, program=dataclasses.replace(single.program, monoid=monoid))
    assert "relative error" in certify.local_error(wrong, factor, 2, "reduction")


def test_a_factor_on_the_wrong_dim_is_noticed() -> None:
    single = _product()
    rows = single.program.use_dim_factor.copy()
    start = int(single.program.use_dim_ptr[single.program.use_ptr[single.op]])
    rows[start], rows[start + 1] = rows[start + 1], rows[start]
    wrong = dataclasses.replace(
        single, program=dataclasses.replace(single.program, use_dim_factor=rows)
    )
    factor = certify.shardable_factors(wrong)[0]
    with pytest.raises(Exception, match=r"contracting|shape|type|size"):
        certify.local_error(wrong, factor, 2, "pass")


def test_differences_are_seen() -> None:
    a = np.ones(4, np.float32)
    assert not certify.difference(a, a * np.float32(1 + 1e-6))
    assert certify.difference(a, a * np.float32(1.001))
    assert certify.difference(np.array([1, np.nan]), np.array([np.nan, 1]))
    assert certify.difference(np.array([1, np.inf]), np.array([1, np.nan]))
    assert certify.difference(np.array([1, 2]), np.array([1, 3]))
    assert certify.difference(a, a[:2])


def test_cases_have_names_of_their_own() -> None:
    names = [(c.name, c.platform) for c in CASES]
    doubled = {n for n in names if names.count(n) > 1} - {("convert/pointwise", "cpu")}
    assert not doubled
