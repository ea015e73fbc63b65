"""Meshes, actions, state keys and plans.

Laws that hold for any sequence of actions, and refusals that give the numbers.
"""

import errno
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import analysed, plan, small_transformer, traced
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan, InvalidProblem, NotSaved, ToastError
from toast_lab.pipeline import replicated
from toast_lab.plan_verbs import Plan
from toast_lab.sharding.mesh import make_mesh
from toast_lab.sharding.space import parse_action
from toast_lab.sharding.state import State, apply_move, legal_actions

MESHES = [{"a": 2, "b": 4}, {"a": 8}, {"a": 2, "b": 2, "c": 2}, {"a": 3, "b": 2}]
PROGRAMS = {
    "attention": lambda: analysed("attention"),
    "forward": lambda: small_transformer(mode="forward"),
    "train": lambda: small_transformer(mode="train"),
}


def walk(problem, choices):
    """Take the legal action at each position; return the state and the actions."""
    state = State(problem.space)
    taken = []
    for choice in choices:
        actions = legal_actions(state)
        if not actions:
            break
        action = actions[choice % len(actions)]
        assert state.apply(action) > 0, "a legal action must change something"
        taken.append(action)
    return state, taken


sequences = st.lists(st.integers(0, 10_000), max_size=8)


@settings(max_examples=60)
@given(st.sampled_from(sorted(PROGRAMS)), st.sampled_from(MESHES), sequences)
def test_no_action_sequence_breaks_a_plan(name, mesh, choices):
    problem = Problem(PROGRAMS[name](), mesh)
    state, taken = walk(problem, choices)
    reached_plan = Plan.from_state(state, taken)
    reached_plan.check()
    for value, spec in enumerate(reached_plan.value_specs()):
        for size, axes in zip(reached_plan.program.dims(value), spec, strict=True):
            assert size % int(np.prod([problem.mesh.size(a) for a in axes], initial=1)) == 0
        used = [a for axes in spec for a in axes]
        assert len(set(used)) == len(used), "one axis cannot cut two dims of one tensor"


@settings(max_examples=60)
@given(st.sampled_from(sorted(PROGRAMS)), st.sampled_from(MESHES), sequences)
def test_the_key_is_a_function_of_the_sharding_alone(name, mesh, choices):
    problem = Problem(PROGRAMS[name](), mesh)
    state, taken = walk(problem, choices)
    again = State(problem.space)
    for action in reversed(taken):
        again.apply(action)
    same = np.array_equal(state.op_factor, again.op_factor) and np.array_equal(
        state.value_dim, again.value_dim
    )
    assert (state.key == again.key) == same


@pytest.mark.parametrize("part", ["ops", "values"])
def test_both_how_ops_are_split_and_how_values_are_kept_enter_the_key(part):
    problem = Problem(analysed("attention"), {"a": 2})
    space, state = problem.space, State(problem.space)
    other = "value_span" if part == "ops" else "op_span"
    moves = space.moves._replace(**{other: np.zeros_like(getattr(space.moves, other))})
    changed = apply_move(moves, state.ops, state.values, state._key, 0, 0, False)
    assert changed > 0
    assert state.key != State(space).key


@settings(max_examples=40)
@given(st.sampled_from(sorted(PROGRAMS)), sequences)
def test_taking_an_action_twice_changes_nothing_the_second_time(name, choices):
    problem = Problem(PROGRAMS[name](), {"a": 2, "b": 2})
    state, taken = walk(problem, choices)
    key = state.key
    for action in taken:
        assert state.apply(action) == 0
    assert state.key == key


@settings(max_examples=40)
@given(st.sampled_from(sorted(PROGRAMS)), sequences)
def test_saved_plans_come_back_the_same(tmp_path_factory, name, choices):
    problem = Problem(PROGRAMS[name](), {"a": 2, "b": 2})
    reached_plan = Plan.from_state(*walk(problem, choices))
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    reached_plan.save(path)
    back = Plan.load(path, problem)
    assert np.array_equal(reached_plan.op_factor, back.op_factor)
    assert np.array_equal(reached_plan.value_dim, back.value_dim)
    assert (reached_plan.key, reached_plan.actions, reached_plan.mesh) == (
        back.key,
        back.actions,
        back.mesh,
    )
    assert price(problem, reached_plan).score == price(problem, back).score


def test_mirrored_actions_reach_every_layer():
    analysis = small_transformer(layers=3, mode="forward")
    problem = Problem(analysis, {"m": 4})
    specs = plan(problem, ("hidden", "m")).argument_specs()
    for layer in range(3):
        assert specs[f"params['layers'][{layer}]['w_up']"] == ((), ("m",))
        assert specs[f"params['layers'][{layer}]['w_down']"] == (("m",), ())


def test_mirrored_colours_may_be_named_one_by_one():
    """Names of one group repeat the same action; only the same name twice is an error."""
    analysis = small_transformer(layers=3)
    problem = Problem(analysis, {"m": 4})
    group = analysis.groups[analysis.group_index("hidden")]
    names = [analysis.colour_name[c] for c in group.colours]
    assert len(names) == 3
    mirrored_plan = plan(problem, *((name, "m") for name in names))
    assert mirrored_plan.key == plan(problem, ("hidden", "m")).key
    assert mirrored_plan.actions == ("hidden->m",)
    with pytest.raises(InvalidPlan, match="hidden->m changes nothing"):
        plan(problem, (names[0], "m"), (names[1], "m"), (names[0], "m"))


def test_from_specs_spreads_argument_shardings():
    problem = Problem(analysed("mlp"), {"b": 4, "m": 4})
    from_specs = Plan.from_specs(problem, {"x": ("b", None), "w1": (None, ("m",))})
    assert from_specs.key == plan(problem, ("B", "b"), ("U", "m")).key


def test_a_spec_that_changes_nothing_more_is_taken_and_one_that_lost_is_noted():
    """A momentum has the sharding of its weight already, and its other cut loses to that."""

    def step(weight, momentum, x):
        gradient = jax.grad(lambda w: jnp.tanh(x @ w).sum())(weight)
        momentum = 0.9 * momentum + gradient
        return weight - 0.1 * momentum, momentum

    weight = jax.ShapeDtypeStruct((16, 32), "float32")
    analysis = traced(step, weight, weight, jax.ShapeDtypeStruct((8, 16), "float32"))
    problem = Problem(analysis, {"d": 2})
    cuts = {"x": ("d", None), "weight": ("d", None), "momentum": ("d", None)}
    whole = Plan.from_specs(problem, cuts)
    assert whole.notes == ()
    assert {path: whole.argument_specs()[path][0] for path in cuts} == dict.fromkeys(cuts, ("d",))
    lost = Plan.from_specs(problem, {**cuts, "momentum": (None, "d")})
    assert lost.sharding.same_as(whole.sharding)
    assert lost.notes == ("momentum is [d, -]: dim 1 is not on d, since dim 0 has it first",)
    with pytest.raises(InvalidPlan, match=r"x: dim 0 has size 8, not divisible by 3 \(d\)"):
        Plan.from_specs(Problem(analysis, {"d": 3}), cuts)


def test_an_unsharded_plan_says_so_everywhere():
    problem = Problem(analysed("mlp"), {"b": 4})
    assert set(replicated(problem).argument_specs().values()) == {((), ())}


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("4x2", {"data": 4, "model": 2}),
        ("d=4,m=2", {"d": 4, "m": 2}),
        ("8", {"data": 8}),
        ({"a": 3}, {"a": 3}),
    ],
)
def test_meshes_are_read(text, axes):
    mesh = make_mesh(text)
    assert dict(zip(mesh.axes, mesh.sizes, strict=True)) == axes


@pytest.mark.parametrize(
    "bad", ["", "4y2", "d=four", {"a": 0}, {"a": 2.5}, {}, {"1a": 2}, "a=2,a=2", {"a": True}]
)
def test_bad_meshes_are_refused(bad):
    with pytest.raises(InvalidProblem, match=r"mesh"):
        make_mesh(bad)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (("Z", "b"), "no colour is called 'Z'"),
        (("B", "model"), "no mesh axis is called 'model'"),
        (("B", "b", 1), "B has 0 independent resolutions"),
        ("B b", 'write "colour->axis"'),
        ("B@2->b", "must be 0s and 1s"),
        ("B@x->b", "must be 0s and 1s"),
        (("B",), "cannot read the action"),
    ],
)
def test_bad_actions_are_refused(action, message):
    problem = Problem(analysed("mlp"), {"b": 4})
    state = State(problem.space)
    with pytest.raises(ToastError, match=message):
        state.apply(parse_action(problem.analysis, problem.mesh, action))


def test_an_action_that_does_not_divide_names_the_sizes():
    problem = Problem(analysed("mlp"), {"b": 3})
    with pytest.raises(InvalidPlan, match='B has size 256, not divisible by mesh axis "b" = 3'):
        plan(problem, ("B", "b"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format": 1}',
        '{"format": 2}',
        '{"format": 2, "program": "x", "mesh": {"b": 4}, "arguments": {}, "ops": [3]}',
        '{"format": 2, "program": "x", "mesh": {"b": 4}, "arguments": {"x": []}, "ops": []}',
        '{"format": 2, "program": "x", "mesh": {"b": 4}, "arguments": {},'
        ' "ops": [{"labels": ["0", "0", "0", "0", "0", "0", "0", "0"], "runs": [[1e30]]}]}',
    ],
)
def test_files_that_are_no_plans_are_refused(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InvalidPlan, match="plan"):
        Plan.load(path, analysed("mlp"))


def test_plans_of_other_programs_and_meshes_are_refused(tmp_path):
    mlp, attention = Problem(analysed("mlp"), {"b": 4}), Problem(analysed("attention"), {"b": 4})
    mlp_plan = plan(mlp, ("B", "b"))
    mlp_plan.save(tmp_path / "plan.json")
    with pytest.raises(
        InvalidPlan,
        match=(
            r"not for attn: beyond their kind it recognises only 25% of its 4 arguments "
            r"and 0% of its 10"
        ),
    ):
        Plan.load(tmp_path / "plan.json", attention)
    with pytest.raises(InvalidPlan, match="this plan is for the program mlp"):
        price(attention, mlp_plan)
    with pytest.raises(InvalidPlan, match="for the mesh b=4, not for c=4"):
        price(Problem(analysed("mlp"), {"c": 4}), mlp_plan)


def test_damaged_plans_are_refused_with_every_offender(tmp_path):
    problem = Problem(analysed("mlp"), {"b": 4})
    data = plan(problem, ("B", "b")).to_json()
    data["arguments"]["w2"] = {"b": 5}
    dot = next(entry for entry in data["ops"] if entry["op"] == "dot_general")
    dot["runs"][0][1]["b"] = "o1.7"
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(InvalidPlan) as caught:
        Plan.load(tmp_path / "plan.json", problem)
    assert "w2 has no dim 5" in str(caught.value)
    assert "dot_general" in str(caught.value)
    assert "has no such dim" in str(caught.value)


def test_saving_leaves_no_half_written_file(tmp_path, monkeypatch):
    problem = Problem(analysed("mlp"), {"b": 4})
    saved_plan = plan(problem, ("B", "b"))
    target = tmp_path / "plan.json"
    target.write_text("precious")

    def full(descriptor):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        NotSaved, match=r"plan.json: the plan could not be written: .* make room below your quota"
    ):
        saved_plan.save(target)
    assert target.read_text() == "precious"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_texts_of_other_changes_than_actions_are_all_named() -> None:
    problem = Problem(analysed("attention"), {"data": 4})
    texts = ["S@0->data", "S: by an integer program", "wq on data, refined"]
    with pytest.raises(InvalidPlan, match="no actions") as caught:
        Plan.from_actions(problem, texts)
    assert all(text in str(caught.value) for text in texts[1:])
    assert "S@0->data" not in str(caught.value)
