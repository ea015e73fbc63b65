"""Each rule of the price has a name, and a problem can be priced without it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toast_lab as tl
from tests.helpers import traced
from toast_lab.conflicts.analysis import Analysis
from toast_lab.cost import price_rules
from toast_lab.cost.compiler_styles import STYLES
from toast_lab.cost.price_rule import COLUMNS, neutral
from toast_lab.cost.price_rules import RULES
from toast_lab.errors import InvalidProblem
from toast_lab.machines.machine_model import Machine

MACHINES = {"tpu": "tpu-v5e", "gpu": "h100", "cpu": "cpu"}


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    def step(x: jax.Array, w: jax.Array, back: jax.Array) -> jax.Array:
        return jax.nn.softmax(jnp.tanh(x @ w) @ back)

    return traced(step, *(jax.ShapeDtypeStruct((2048, 2048), "bfloat16") for _ in range(3)))


def test_names_are_told_apart_and_sentences_end() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.says.endswith("."), rule.name
        assert ". " not in rule.says, rule.name
        assert rule.source, rule.name
        assert rule.off, rule.name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_acts_by_switches_that_exist(
    rule: price_rules.PriceRule, analysis: Analysis
) -> None:
    assert set(rule.compilers) <= set(STYLES)
    places = {key.partition(".")[0] for key in rule.off}
    assert places <= {*COLUMNS, "style", "machine"}
    assert rule.switches("machine").keys() <= {field.name for field in dataclasses.fields(Machine)}
    for compiler in rule.compilers:
        style = STYLES[compiler]
        assert all(
            getattr(style, name) != value for name, value in rule.switches("style").items()
        ), f"{compiler} does not do it"
        problem = tl.Problem(analysis, {"d": 4}, MACHINES[compiler]).without_rules(rule.name)
        facts = problem.prices.by_rule.facts
        for place in COLUMNS:
            for name, value in rule.switches(place).items():
                assert (getattr(getattr(facts, place), name) == value).all(), name


@pytest.mark.parametrize(("compiler", "other"), [("tpu", "gpu"), ("gpu", "tpu")])
def test_rules_of_other_compilers_change_nothing(
    analysis: Analysis, compiler: str, other: str
) -> None:
    problem = tl.Problem(analysis, {"d": 4}, MACHINES[compiler])
    plan = tl.replicated(problem)
    names = [rule.name for rule in RULES if rule.compilers == (other,)]
    assert names
    without = problem.without_rules(*names)
    assert tl.price(without, plan).time_s == tl.price(problem, plan).time_s


def test_a_problem_without_a_rule_is_priced_without_it(analysis: Analysis) -> None:
    problem = tl.Problem(analysis, {"d": 4}, "tpu-v5e")
    plan = tl.replicated(problem)
    without = problem.without_rules("narrow_bytes")
    assert tl.price(without, plan).time_s < tl.price(problem, plan).time_s
    both = without.without_rules("memory_sustained")
    assert both.prices.without == price_rules.rules_named(["narrow_bytes", "memory_sustained"])
    assert tl.price(both, plan).time_s < tl.price(without, plan).time_s
    # Pins, meshes and the folded program of a search keep it
    assert without.on_mesh({"d": 2}).prices.without == without.prices.without
    assert not without.folded.facts.op.narrow_bytes.any()
    assert problem.folded.facts.op.narrow_bytes.any()
    pinned = without.pin(("x_rows", "d"))
    assert pinned.prices is without.prices


def test_unknown_names_are_listed(analysis: Analysis) -> None:
    problem = tl.Problem(analysis, {"d": 4})
    with pytest.raises(InvalidProblem, match=r"'narrow_byte' .did you mean .narrow_bytes..+'wide'"):
        problem.without_rules("narrow_byte", "wide", "bfloat16")


def test_columns_are_declared_by_their_neutral_value(analysis: Analysis) -> None:
    facts = tl.Problem(analysis, {"d": 4}, "cpu").prices.by_rule.facts
    for place in COLUMNS:
        for name, value in price_rules.declared_columns(place).items():
            column = getattr(getattr(facts, place), name)
            expected = {bool: np.bool_, int: np.int32, float: np.float64}[type(value)]
            assert column.dtype == expected, name
    with pytest.raises(AttributeError, match="no_such_column"):
        _ = facts.op.no_such_column


def test_a_rule_is_neutral_only_where_it_acts() -> None:
    (rule,) = price_rules.rules_named(["gathered_ahead"])
    assert neutral([rule], "machine", "tpu") == {"gathered_ahead": 0.0}
    (waves,) = price_rules.rules_named(["gpu_waves"])
    assert neutral([waves], "machine", "tpu") == {}
