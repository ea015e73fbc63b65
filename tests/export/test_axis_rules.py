"""Logical-axis rules are those of flax, and say what they cannot give."""

from __future__ import annotations

import ast
import importlib.util

import jax
import jax.numpy as jnp
import pytest

import toast_lab as tl
from tests.helpers import SMALL
from toast_lab.errors import InvalidProblem
from toast_lab.export.axis_rules import AxisRules, axis_rules, resolve
from toast_lab.frontends.traced import build
from toast_lab.frontends.tracing import trace

MESH = {"data": 2, "model": 2}


def test_axis_rules_are_resolved_as_flax_does() -> None:
    rules = (
        ("embed", "data"),
        ("mlp", "model"),
        ("vocab", ("data", "model")),
        ("batch", "data"),
        ("embed", None),
    )
    cases = [
        ("batch", "embed"),
        ("embed", "mlp"),
        ("vocab", "embed"),
        ("mlp", None),
        ("heads",),
        ("batch", None, "mlp"),
    ]
    specs = [resolve(names, rules) for names in cases]
    assert specs[0] == ((), ("data",))  # the rule for embed comes first and takes the axis
    assert specs[2] == ((), ("data",))
    if importlib.util.find_spec("flax"):
        from flax import linen

        for names, spec in zip(cases, specs, strict=True):
            flax_spec = linen.logical_to_mesh_axes(names, rules)
            assert [*spec] == [
                () if a is None else (a,) if isinstance(a, str) else tuple(a) for a in flax_spec
            ]


def test_axis_rules_give_the_plan_and_name_what_they_cannot_give() -> None:
    model = tl.load("transformer", **{**SMALL, "layers": 1, "mode": "forward"})
    problem = tl.Problem(tl.analyse(model), MESH, "cpu")
    plan = tl.Plan.from_actions(
        problem, [("batch", "data"), ("hidden", "model"), ("heads", "model"), ("d_model", "data")]
    )
    exact = axis_rules(plan)
    assert not exact.wrong
    assert {("hidden", "model"), ("heads", "model"), ("d_model", "data")} <= set(exact.rules)
    specs = plan.argument_specs()
    unlike = tl.Plan.from_specs(problem, {"params['layers'][0]['w_up']": ("data", None)})
    rules = axis_rules(unlike, {"w_up": ("a", "b"), "wq": ("a", "b", "c"), "embed": ("v", "a")})
    assert specs != unlike.argument_specs()
    assert all("instead of" in text for text in rules.wrong)
    with pytest.raises(InvalidProblem, match="2 names for 3 dims"):
        axis_rules(unlike, {"wq": ("a", "b")})
    with pytest.raises(InvalidProblem, match="no argument has names"):
        axis_rules(unlike, {})


def test_rules_in_files_of_settings() -> None:
    rules = AxisRules((("batch", ("data", "fsdp")), ("embed", "model"), ("norm", None)), ("w: no",))
    *lines, remark = rules.as_yaml().splitlines()
    name, _, value = "\n".join(lines).partition(": ")
    assert name == "logical_axis_rules"
    assert ast.literal_eval(value) == [
        ["batch", ["data", "fsdp"]],
        ["embed", ["model"]],
        ["norm", []],
    ]
    assert remark == "# not as planned: w: no"


@pytest.mark.skipif(importlib.util.find_spec("flax") is None, reason="flax is not installed")
def test_names_on_the_boxes_of_flax_are_known_where_the_function_is_not() -> None:
    from flax import linen as nn

    start = nn.with_logical_partitioning(nn.initializers.ones_init(), ("embed", "mlp"))
    net = nn.Dense(32, kernel_init=start, use_bias=False)
    x = jnp.ones((8, 16))
    variables = jax.eval_shape(net.init, jax.random.key(0), x)
    traced = trace(net.apply, (variables, x), ())
    model = build(traced._replace(function=None, lower=None), "net", {}, "another process")
    problem = tl.Problem(tl.analyse(model), MESH, "cpu")
    (path,) = [path for path in model.dim_names if "kernel" in path]
    plan = tl.Plan.from_specs(problem, {path: (None, "model")})
    rules = axis_rules(plan)
    assert ("mlp", "model") in rules.rules
    assert not rules.wrong
