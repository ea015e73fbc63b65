"""Saved plans applied to related programs: more layers, other sizes, another mesh."""

import collections
import json

import numpy as np
import pytest

from evaluation.certification.draw import problems, random_plans
from evaluation.certification.programs import programs
from tests.helpers import analysed, small_transformer, traced
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidPlan
from toast_lab.pipeline import search
from toast_lab.plan_verbs import Plan
from toast_lab.search.contract import Budget
from toast_lab.sharding import portable
from toast_lab.sharding.plan import ShardingPlan
from toast_lab.sharding.sharding import Sharding
from toast_lab.sharding.state import State, legal_actions

MESH = {"data": 2, "model": 4}
SMALL_GNS = {"nodes": 64, "edges": 256, "latent": 32, "hidden": 16, "features": 8}


def random_state(problem, seed, length=10):
    rng, state = np.random.default_rng(seed), State(problem.space)
    taken = []
    while len(taken) < length and len(actions := legal_actions(state)):
        taken.append(actions[rng.integers(len(actions))])
        state.apply(taken[-1])
    return state, taken


def same_actions(problem, state, taken):
    """Take the same actions on another program, by the names of their colours."""
    return Plan.from_actions(problem, [state.space.text(a) for a in taken])


def saved(plan):
    return json.loads(portable.text(plan.to_json()))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "few", "many"),
    [
        ("transformer", {"layers": 4}, {"layers": 18}),
        ("transformer", {"layers": 4, "batch": 16}, {"layers": 3, "batch": 8}),
        ("transformer", {"layers": 2, "remat": True}, {"layers": 5, "remat": True}),
        ("gns", {**SMALL_GNS, "steps": 3}, {**SMALL_GNS, "steps": 7}),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_colour_plans_go_to_other_numbers_of_layers_as_their_actions_do(name, few, many, seed):
    source, target = Problem(analysed(name, **few), MESH), Problem(analysed(name, **many), MESH)
    state, taken = random_state(source, seed)
    plan = Plan.from_state(state, taken)
    transferred = Plan.from_json(saved(plan), target)
    expected = same_actions(target, state, taken)
    assert transferred.notes == ()
    assert transferred.history == plan.history
    assert (transferred.op_factor == expected.op_factor).all()
    assert (transferred.value_dim == expected.value_dim).all()
    assert (expected.op_factor >= 0).any()


def test_refined_plans_of_four_layers_go_to_eighteen():
    sizes = {"batch": 16, "vocab": 4096, "sequence": 1024}
    source = Problem(analysed("transformer", layers=4, **sizes), {"data": 8, "model": 2}, "tpu-v3")
    target = Problem(analysed("transformer", layers=18, **sizes), {"data": 8, "model": 2}, "tpu-v3")
    budget = Budget(seconds=None, evaluations=30_000)
    plan = search(source, seed=1, budget=budget, restarts=0, solve=False, actions_within=0.0).plan
    assert "refined" in plan.refinements[-1]
    transferred = Plan.from_json(saved(plan), target)
    assert transferred.notes == ()
    # Every layer has the same work and the same collectives; outside the layers nothing
    # changes.
    few, many = price(source, plan), price(target, transferred)
    counts = [
        collections.Counter((c.kind, c.axes) for c in cost.collectives) for cost in (few, many)
    ]
    middle_cost = price(
        Problem(analysed("transformer", layers=11, **sizes), {"data": 8, "model": 2}, "tpu-v3"),
        Plan.from_json(saved(plan), analysed("transformer", layers=11, **sizes)),
    )
    middle = collections.Counter((c.kind, c.axes) for c in middle_cost.collectives)
    assert {k: 2 * middle[k] for k in middle} == {k: counts[0][k] + counts[1][k] for k in middle}
    # Approximately, as sums that are combined wait less each
    assert many.time_s + few.time_s == pytest.approx(2 * middle_cost.time_s, rel=1e-4)
    unsharded = price(target, Plan.from_state(State(target.space)))
    assert many.time_s < 0.3 * unsharded.time_s


def test_through_loops():
    source = Problem(small_transformer(layers=2, scan=True), MESH)
    target = Problem(small_transformer(layers=6, scan=True, batch=16), MESH)
    for seed in range(4):
        state, taken = random_state(source, seed)
        plan = Plan.from_state(state, taken)
        assert (Plan.from_json(saved(plan), source).op_factor == plan.op_factor).all()
        transferred = Plan.from_json(saved(plan), target)
        if any("layers" in state.space.text(a) for a in taken):
            continue  # 2 layers split over 2, but 6 do not over 4
        expected = same_actions(target, state, taken)
        assert (transferred.value_dim == expected.value_dim).all()


def test_what_does_not_divide_is_left_out_and_said():
    source = Problem(small_transformer(layers=2, batch=8), {"data": 8, "model": 2})
    plan = Plan.from_actions(source, [("batch", "data"), ("hidden", "model")])
    transferred = Plan.from_json(
        saved(plan), Problem(small_transformer(layers=2, batch=4), {"data": 8, "model": 2})
    )
    assert any(
        'axis "data" left out' in note and "size 4 is not divisible by 8" in note
        for note in transferred.notes
    )
    assert not any('"model"' in note for note in transferred.notes)
    specs = transferred.argument_specs()
    assert specs["params['layers'][1]['w_up']"] == ((), ("model",))
    assert not any("data" in axes for spec in specs.values() for axes in spec)
    transferred.check()


def test_another_mesh_with_the_same_axes():
    source = Problem(small_transformer(), {"data": 8, "model": 2})
    plan = Plan.from_actions(source, [("batch", "data"), ("hidden", "model")])
    target = Problem(small_transformer(), {"data": 2, "model": 4, "rest": 3})
    transferred = Plan.from_json(saved(plan), target)
    assert (transferred.mesh, transferred.notes) == (target.mesh, ())
    assert transferred.argument_specs() == plan.argument_specs()
    with pytest.raises(InvalidPlan, match="shards over 'data', the mesh has batch, model"):
        Plan.from_json(saved(plan), Problem(small_transformer(), {"batch": 4, "model": 2}))


def test_what_the_plan_knows_nothing_of_is_said():
    import jax
    import jax.numpy as jnp

    S = jax.ShapeDtypeStruct

    def old(x, w):
        for i in range(4):
            x = jnp.tanh(x @ w[i])
        return x

    def new(x, w):
        return jnp.sort(old(x, w), axis=-1)

    shapes = S((16, 8), jnp.float32), [S((8, 8), jnp.float32)] * 4
    source, target = (Problem(traced(f, *shapes), {"data": 4}) for f in (old, new))
    plan = Plan.from_specs(source, {"x": ("data", None)})
    transferred = Plan.from_json(saved(plan), target)
    assert len(transferred.notes) == 1
    assert "nothing in the plan resembles them" in transferred.notes[0]
    assert "1 sort" in transferred.notes[0]
    assert "tanh" not in transferred.notes[0]
    assert transferred.argument_specs()["x"] == (("data",), ())


def test_names_do_not_depend_on_the_process_or_the_numbers_in_them():
    few, many = analysed("transformer", layers=4).program, analysed("transformer", layers=9).program
    labels = [portable.labels(p) for p in (few, many)]
    assert set(labels[0][1].tolist()) == set(labels[1][1].tolist())
    assert len(set(labels[0][1].tolist())) > 50
    # The label of one op is fixed, since users' files contain it
    program = analysed("mlp").program
    entry = portable.to_json(
        program,
        Problem(analysed("mlp"), {"a": 2}).mesh,
        Sharding.whole(program, 1),
    )["ops"][0]
    assert entry["labels"][0] == "4adf4367f96e584f"


def test_the_file_is_small_and_a_line_for_each_kind_of_op():
    problem = Problem(analysed("transformer", layers=18), MESH)
    state, taken = random_state(problem, 0)
    text = portable.text(Plan.from_state(state, taken).to_json())
    assert len(text) < 600_000
    assert json.loads(text)["arguments"]["params['layers'][7]['wq']"] is not None
    assert max(map(len, text.splitlines())) < 2000


# -- on its own program ----------------------------------------------------------------------------


def reread(plan, problem, path):
    Plan.of(plan).save(path)
    return Plan.load(path, problem)


def assert_exact(plan, problem, path):
    reloaded = reread(plan, problem, path)
    assert reloaded.notes == ()
    np.testing.assert_array_equal(reloaded.op_factor, plan.op_factor)
    np.testing.assert_array_equal(reloaded.value_dim, plan.value_dim)
    assert (reloaded.actions, reloaded.key, reloaded.mesh) == (plan.actions, plan.key, plan.mesh)
    assert price(problem, reloaded).time_s == price(problem, plan).time_s


CASES = {case.name: case for case in programs()}
#: Programs that once failed: with arguments that are kept in one sharding and handed on in another,
#: and loops whose results an integer program shards otherwise than the loop; also one program of
#: each other kind.
QUICK = ("crossed_transpose", "gns_forward", "scan_gradient", "checkpointed_mlp", "cond_and_switch")


def plans_of(problem, mesh, seeds, seconds):
    plans = random_plans(problem, mesh, 3, seed=seeds[0])
    for seed in seeds:
        budget = Budget(seconds=seconds, evaluations=4000)
        plans += [
            search(problem, seed=seed, restarts=0, budget=budget, solve=solve).plan
            for solve in (False, True)
        ]
    return plans


@pytest.mark.parametrize("name", QUICK)
def test_random_and_refined_plans_come_back_exactly(name, tmp_path):
    for mesh, problem in problems(CASES[name].model()).items():
        for plan in plans_of(problem, mesh, [1], 1.0):
            assert_exact(plan, problem, tmp_path / "plan.json")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_plans_of_every_program_come_back_exactly(name, tmp_path):
    for mesh, problem in problems(CASES[name].model()).items():
        for plan in plans_of(problem, mesh, [1, 2, 3], 3.0):
            assert_exact(plan, problem, tmp_path / "plan.json")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["crossed_transpose", "scan_gradient", "cond_and_switch"])
def test_any_arrays_that_can_be_carried_out_come_back_exactly(name, seed, tmp_path):
    """Any plan that a method may write can be read back.

    Every op and every value is sharded at random, as far as sizes divide.
    """
    for problem in problems(CASES[name].model()).values():
        program = problem.analysis.program
        rng = np.random.default_rng(seed)
        n_axes = len(problem.mesh.axes)
        op_factor = np.full((program.n_ops, n_axes), -1, np.int32)
        value_dim = np.full((program.n_values, n_axes), -1, np.int8)
        for op in range(program.n_ops):
            places = list(portable._places(program, op))
            for axis, size in enumerate(problem.mesh.sizes):
                free = [
                    n for n in places if program.factor_class[n] <= 1 and n not in op_factor[op]
                ]
                free = [n for n in free if program.factor_size[n] % size == 0]
                own = [n for n in free if program.factor_ptr[op] <= n < program.factor_ptr[op + 1]]
                if own and rng.random() < 0.5:
                    op_factor[op, axis] = rng.choice(own)
        for value in range(program.n_values):
            for axis, size in enumerate(problem.mesh.sizes):
                shape = program.dims(value)
                free = [
                    d
                    for d in range(len(shape))
                    if shape[d] % size == 0 and d not in value_dim[value]
                ]
                if free and rng.random() < 0.5:
                    value_dim[value, axis] = rng.choice(free)
        plan = ShardingPlan(
            program, problem.mesh, Sharding(op_factor, value_dim), ("at random",), 5
        )
        plan.check()
        reloaded = reread(plan, problem, tmp_path / "plan.json")
        np.testing.assert_array_equal(reloaded.op_factor, plan.op_factor)
        np.testing.assert_array_equal(reloaded.value_dim, plan.value_dim)


# -- the checksum ----------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path):
    problem = Problem(small_transformer(), {"data": 2, "model": 2})
    plan = Plan.from_actions(problem, [("batch", "data"), ("hidden", "model")])
    path = tmp_path / "plan.json"
    Plan.of(plan).save(path)
    return problem, plan, path


def test_a_file_that_was_damaged_is_refused(kept):
    """It is refused even if it is still a plan, with another dim or axis or one op fewer."""
    problem, _, path = kept
    contents = path.read_text()
    rng = np.random.default_rng(0)
    spots = [
        i
        for i, letter in enumerate(contents)
        if letter.isdigit() and i > contents.index('"program"')
    ]
    for spot in rng.choice(spots, 60, replace=False):
        digit = contents[spot]
        path.write_text(contents[:spot] + str((int(digit) + 1) % 10) + contents[spot + 1 :])
        with pytest.raises(InvalidPlan) as caught:
            Plan.load(path, problem)
        message = str(caught.value)
        assert str(path) in message
        assert "its checksum is sha256:" in message or "cannot read this plan" in message, (
            "1 may become 01, which is no JSON"
        )


def test_spaces_do_not_matter(kept):
    problem, plan, path = kept
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert Plan.load(path, problem).key == plan.key


def test_an_edit_on_purpose_takes_the_checksum_out(kept):
    problem, _, path = kept
    edited = path.read_text().replace('"batch->data"', '"by->hand"')
    path.write_text(edited)
    with pytest.raises(
        InvalidPlan, match='if it was edited on purpose, remove the line with "checksum"'
    ):
        Plan.load(path, problem)
    lines = edited.splitlines(keepends=True)
    assert [i for i, line in enumerate(lines) if "checksum" in line] == [2]
    path.write_text("".join(line for line in lines if "checksum" not in line))
    assert Plan.load(path, problem).actions[0] == "by->hand"


def test_a_file_of_an_earlier_version_has_none_and_is_read(kept):
    problem, plan, path = kept
    path.write_text(portable.text(plan.to_json()))
    assert "checksum" not in path.read_text()
    assert (Plan.load(path, problem).op_factor == plan.op_factor).all()
