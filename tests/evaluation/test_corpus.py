"""The corpus is wide, its plans survive being written down, and figures follow from its rows."""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from evaluation.compiled_rows import ASSIGNED_PEAKS, key, program_digest
from evaluation.corpus import (
    autosharding,
    compiled,
    figures,
    fit,
    goals,
    judged_plans,
    plans,
    priced,
    programs,
    rivals,
    tables,
)
from evaluation.corpus.program import Program
from evaluation.corpus.targets import TARGETS, target
from evaluation.row_files import read_rows, write_rows
from toast_lab.conflicts.analysis import analyse
from toast_lab.cost.problem import Problem, price
from toast_lab.frontends.tracing import from_jax
from toast_lab.ir.model import Model

TPU = "tpu:v5e:4x4"


def test_it_is_wide_and_mostly_by_others() -> None:
    families = programs.families()
    assert len(programs.PROGRAMS) >= 40
    assert len(families) >= 12
    assert 2 * sum(bool(program.package) for program in programs.PROGRAMS.values()) >= 40
    assert set(programs.HELD_OUT) <= set(families)
    assert len(programs.HELD_OUT) == pytest.approx(len(families) / 3, abs=1)
    # Held-out families have programs by others as well.
    held_out = [program for family in programs.HELD_OUT for program in families[family]]
    assert any(program.package for program in held_out)


@pytest.fixture(scope="module")
def model() -> Model:
    return programs.PROGRAMS["moe_sorted"].make()


@pytest.fixture(scope="module")
def problem(model: Model) -> Problem:
    where = target(TPU)
    return Problem(analyse(model), where.mesh, where.machine)


def test_plans_survive_being_written_down_and_equal_ones_are_named(
    model: Model, problem: Problem
) -> None:
    names = (*plans.EXPERTS, *plans.RANDOM)
    drafts = list(plans.drafts(model, problem, TPU, names, {}))
    assert len({draft.plan.key for draft in drafts}) >= 5
    first: dict[int, str] = {}
    for draft in drafts:
        assert draft.same_as == first.get(draft.plan.key, "")
        first.setdefault(draft.plan.key, draft.name)
        again = plans.decoded(problem, plans.encoded(draft.plan))
        assert again.sharding.same_as(draft.plan.sharding)
        assert price(problem, again).time_s == price(problem, draft.plan).time_s


def test_random_plans_are_the_same_in_every_run(model: Model, problem: Problem) -> None:
    names = tuple(plans.RANDOM)
    first, second = (list(plans.drafts(model, problem, TPU, names, {})) for _ in range(2))
    assert [draft.plan.key for draft in first] == [draft.plan.key for draft in second]


def test_what_is_known_is_not_made_again_and_spare_plans_fill_up(
    model: Model, problem: Problem
) -> None:
    names = (*plans.EXPERTS, *plans.RANDOM, *plans.SPARE)
    every = list(plans.drafts(model, problem, TPU, names, {}))
    spare = [draft for draft in every if draft.name in plans.SPARE]
    others = {draft.name: draft.plan for draft in every if draft.name not in plans.SPARE}
    missing = plans.ENOUGH - len({plan.key for plan in others.values()})
    assert 0 < missing <= len(spare) + 1, "else nothing is seen here"
    assert not any(draft.same_as for draft in spare)
    (again,) = plans.drafts(model, problem, TPU, ("data", "random 3"), {"data": others["data"]})
    assert again.name == "random 3"
    # A plan that is known under another name is recognised.
    (same,) = plans.drafts(model, problem, TPU, ("data",), {"alpa": others["data"]})
    assert (same.name, same.same_as) == ("data", "alpa")
    read = plans.decoded(problem, plans.encoded(others["data"]))
    (same,) = plans.drafts(model, problem, TPU, ("data",), {"alpa": read})
    assert (same.name, same.same_as) == ("data", "alpa"), "however it came to be"
    enough = {str(number): draft.plan for number, draft in enumerate(every)}
    assert list(plans.drafts(model, problem, TPU, tuple(plans.SPARE), enough)) == []


def test_a_search_of_today_takes_the_place_of_an_earlier_one_which_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = target(TPU)
    name, _, mlp, digest = next(programs.each_problem(["mlp"], [where]))
    (poor,) = plans.drafts(mlp.analysis.model, mlp, TPU, ["random 1"], {})
    head = {"program": name, "digest": digest, "topology": TPU}
    earlier = {**head, "plan": "mcts", "sharding": plans.encoded(poor.plan), "time_s": 1.0}
    monkeypatch.setattr(compiled, "ROWS", tmp_path / "rows.jsonl")
    monkeypatch.setattr(plans, "SEARCHES", {"mcts": 300})
    monkeypatch.setattr(
        compiled, "_compiled", lambda *args: {"sharding": plans.encoded(args[2].plan)}
    )
    named = {**head, "plan": "automap", "same_as": "mcts"}
    elsewhere = {**earlier, "topology": "tpu:v6e:4x4"}
    write_rows(compiled.ROWS, [earlier, named, elsewhere])
    for _ in range(2):  # the second search finds the same plan
        compiled.search(["mlp"], [where])
        aside, other, untouched, ours = read_rows(compiled.ROWS)
        assert aside == {**earlier, "plan": "earlier search 1"}
        assert other == {**named, "same_as": "earlier search 1"}
        assert untouched == elsewhere
        assert ours["plan"] == "mcts"
        found = price(mlp, plans.decoded(mlp, ours["sharding"]))
        assert found.time_s < price(mlp, poor.plan).time_s


def test_rows_of_another_text_of_a_program_make_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Cholesky is another program on TPUs than on the host, and rows are of that one
    factor = jax.jit(lambda x: jnp.linalg.cholesky(x @ x.T + 64 * jnp.eye(64)))
    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    monkeypatch.setitem(
        programs.PROGRAMS,
        "factor",
        Program("factor", "linear algebra", lambda: from_jax(factor, shape)),
    )
    monkeypatch.setattr(compiled, "ROWS", tmp_path / "rows.jsonl")
    monkeypatch.setattr(
        compiled, "_compiled", lambda *args: {"sharding": plans.encoded(args[2].plan)}
    )
    _, analysis, digest_here = programs.traced("factor") or pytest.fail("it does not trace")
    older = {"program": "factor", "digest": digest_here, "topology": TPU, "sharding": "x"}
    elsewhere = {**older, "topology": "tpu:v6e:4x4", "plan": "random 1"}
    rival = {**older, "plan": plans.RIVAL}
    monkeypatch.delenv(autosharding.VARIABLE, raising=False)
    write_rows(compiled.ROWS, [{**older, "plan": "random 1"}, elsewhere, rival])
    compiled.generate(["factor"], [target(TPU)], ("random 1",))
    *kept, fresh = read_rows(compiled.ROWS)
    assert kept == [elsewhere, rival]  # no plan of AutoSharding can be made here
    lowered = analysis.lowered_for("tpu").model
    assert fresh["plan"] == "random 1"
    assert fresh["digest"] == program_digest(lowered) != digest_here
    compiled.generate(["factor"], [target(TPU)], ("random 1",))
    assert read_rows(compiled.ROWS) == [elsewhere, rival, fresh]


def test_an_earlier_search_that_found_what_another_did_leaves_no_row() -> None:
    head = {"program": "mlp", "digest": "1", "topology": TPU}
    rows = [{**head, "plan": "data", "sharding": "x"}, {**head, "plan": "mcts", "same_as": "data"}]
    assert compiled.set_aside(rows, head, "mcts") == rows[:1]


def test_what_a_compiler_has_no_clock_for_is_on_neither_side() -> None:
    one = pair("mlp", "data", 1.0, 1.4)
    one.priced["unclocked_s"] = [0.5, 0.1]
    assert one.ratio("time_s") == pytest.approx(0.9 / 0.9)
    assert not priced.is_clocked("gather", TPU)
    assert priced.is_clocked("gather", "gpu:h100:8")
    assert priced.is_clocked("dot_general", TPU)


def test_the_committed_rows_are_whole_and_the_page_is_made_from_them() -> None:
    rows = compiled.rows()
    assert rows
    shardings = [
        (row["program"], row["digest"], row["topology"], row["sharding"])
        for row in rows
        if "error" not in row
    ]
    assert len(set(shardings)) == len(shardings), "one is the same as another"
    assert len({key(row) for row in rows}) == len(rows)
    assert {row["topology"] for row in rows} <= {one.topology for one in TARGETS}
    assert {row["program"] for row in rows} <= set(programs.PROGRAMS)
    assert {key(row) for row in priced.rows()} <= {key(row) for row in rows}
    every = judged_plans.pairs()
    assert figures.page(every) == figures.PAGE.read_text(), (
        "python -m evaluation corpus figures makes it"
    )
    assert tables.by_program(every) == figures.BY_PROGRAM.read_text()
    text = rivals.README.read_text()
    assert rivals.readme(every, text) == text, "python -m evaluation corpus figures makes it anew"


def pair(program: str, plan: str, time_s: float, priced_s: float) -> judged_plans.Pair:
    row = {"time_s": time_s, "compute_s": time_s, "peak_bytes": 100, "fits": True}
    ours = {"time_s": priced_s, "compute_s": priced_s, "peak_bytes": 110, "fits": True}
    return judged_plans.Pair(program, "tpu:v5e:4x4", plan, row, json.loads(json.dumps(ours)))


def test_peaks_that_were_read_too_large_are_compared_with_nothing() -> None:
    one = pair("mlp", "data", 1.0, 1.0)
    assert one.ratio("peak_bytes") is None
    one.compiled["reading"] = ASSIGNED_PEAKS
    assert one.ratio("peak_bytes") == pytest.approx(1.1)
    assert one._replace(topology="gpu:h100:8").ratio("peak_bytes") == pytest.approx(1.1)


def test_regret_is_against_the_best_judged_plan() -> None:
    rows = [pair("mlp", "mcts", 1.2, 1.0), pair("mlp", "data", 1.0, 1.1)]
    assert judged_plans.regrets(rows) == [pytest.approx(0.2)]
    # No ratio is given for a program whose search was not judged.
    assert (
        judged_plans.regrets([pair("mlp", "data", 1.0, 1.0), pair("mlp", "alpa", 1.0, 1.0)]) == []
    )
    # A search that found another plan's sharding has no row of its own.
    same = pair("mlp", "data", 1.1, 1.0)._replace(other_names=("mcts",))
    assert judged_plans.regrets([same, pair("mlp", "alpa", 1.0, 1.0)]) == [pytest.approx(0.1)]


def test_a_rival_that_does_not_fit_is_none() -> None:
    rows = [pair("mlp", "mcts", 0.004, 1.0), pair("mlp", "autosharding", 0.002, 1.0)]
    rows.append(pair("mlp", "fsdp", 0.001, 1.0))
    rows[-1].compiled["fits"] = False
    (line,) = rivals.table(rows)[2:]
    assert line == "| mlp | tpu:v5e:4x4 | 4 | - | - | - | - | - | - | - | 2 | - | - | 0.50 |"
    assert len(rivals.table(rows[:1])) == 2, "nobody to compare with"


def test_the_page_begins_with_what_its_tables_come_to() -> None:
    rows = [pair("mlp", "mcts", 1.0, 1.1), pair("mlp", "data both", 0.8, 1.0)]
    rows += [pair("gns", "mcts", 1.0, 1.5), pair("gns", "data both", 0.995, 1.5)]
    rows += [pair("haiku_gru", "mcts", 1.0, 1.3), pair("itx", "data", 1.0, 1.4)]
    by_target, _, by_kind, by_rules, against = figures.findings(rows)
    assert by_target.startswith(f"- **{TPU}**")
    assert "time is off by 35%" in by_target
    assert "smallest for dense " in by_kind
    assert "and largest for graph " in by_kind
    assert "is off by 30%, on the others by 40%" in by_rules
    assert "In 1 of 2 cases" in against
    assert against.endswith("(its time over ours) mlp on tpu:v5e:4x4 (0.80).")


def test_a_target_is_met_or_missed_by_what_no_rule_was_read_off() -> None:
    names = [f"random {i}" for i in range(1, 6)]
    unseen = [pair("video", name, 1.0, 1.3) for name in names]
    seen = [pair("mlp", name, 1.0, 1.0) for name in names]
    lines = {line.split("|")[1].strip(): line for line in goals.targets([*unseen, *seen])[2:]}
    line = lines["time off by at most 15% in the median"]
    assert "| 30% | 15% | missed | video 30% (convolutions of three channels" in line
    assert "| missed |" not in lines["no plan called fitting that the compiler refuses"]
    unseen[0].compiled["fits"] = False
    (line,) = (line for line in goals.targets(unseen) if "refuses" in line)
    assert "| 1 plans | 1 plans | missed |" in line.replace("| |", "|")


def test_classes_are_told_of_where_they_have_a_share() -> None:
    rows = [pair("mlp", f"random {i}", 1.0, 1.0) for i in range(6)]
    for row in rows:
        row.priced["compute_s_by_class"] = {"product": 0.9, "movement": 0.9}
        row.priced["compiled_s_by_class"] = {"product": 1.8, "movement": 0.1}
    (line,) = tables.by_class(rows)[2:]
    assert line == f"| {TPU} | product | 6 | 0.50 | 50% | 50% |"


def test_ranks_are_of_one_program_on_one_target() -> None:
    rows = [pair("mlp", f"random {i}", float(i), float(i)) for i in range(1, 7)]
    rows += [pair("gns", f"random {i}", float(i), float(-i)) for i in range(1, 7)]
    assert judged_plans.ranks(rows) == [pytest.approx(1.0), pytest.approx(-1.0)]
    assert judged_plans.ranks(rows[:3]) == []


def test_factors_are_judged_on_the_family_that_was_left_out() -> None:
    """Factors correct an error that all families share, but not one that varies by family."""

    def pairs(products: list[float]) -> list[judged_plans.Pair]:
        made = []
        names = ("mlp", "itx", "gns", "transformer")
        for name, factor in zip(names, products, strict=True):
            for share in (0.2, 0.5, 0.8):
                row = pair(name, f"random {share}", 1.0, 1.0)
                row.compiled["compute_s"] = share * factor + (1.0 - share)
                row.priced["compute_s_by_class"] = {"product": share, "elementwise": 1.0 - share}
                made.append(row)
        return made

    def classes(by_class: Mapping[str, float]) -> list[float]:
        return [by_class["product"], by_class["elementwise"]]

    rules, fitted = fit.ratios(pairs([2.0] * 4), classes)
    assert abs(rules - 1.0).max() > 0.4
    assert abs(fitted - 1.0).max() < 0.05
    rules, fitted = fit.ratios(pairs([3.0, 1.0, 1.0, 1.0]), classes)
    assert abs(fitted[:3] - 1.0).max() == pytest.approx(abs(rules[:3] - 1.0).max(), abs=0.1)
    assert abs(fitted[3:] - 1.0).max() > abs(rules[3:] - 1.0).max()


def test_plans_of_a_program_reach_a_compiler_alike() -> None:
    """All plans are compiled with the same kind of constraints.

    A rival with a constraint behind every op would lose by that alone.
    """
    ways = collections.defaultdict(set)
    for pair in judged_plans.pairs():
        ways[pair.program, pair.topology].add(pair.has_needed_constraints)
    assert not [case for case, found in ways.items() if len(found) > 1]
