"""Plans on programs with loops and conditionals are listed and annotated correctly.

Bodies must not share converted copies of values with the code outside.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import toast_lab as tl
from toast_lab.lowering.annotate import annotate
from toast_lab.sharding import steps as st
from toast_lab.sharding.step_kinds import ALL_GATHER

F32 = "float32"


def leaf(*shape: int, dtype: str = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def scanned(ws: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]


def made(fn: Any, *args: Any, mesh: dict[str, int] | None = None) -> tuple[tl.Model, tl.Problem]:
    model = tl.from_jax(fn, *args)
    return model, tl.Problem(tl.analyse(model), mesh or {"d": 2, "m": 2})


def test_a_listing_shows_rounds_and_what_is_carried() -> None:
    _, problem = made(scanned, leaf(6, 8, 8), leaf(4, 8))
    listing = tl.listing(problem, tl.Plan.from_actions(problem, [("x.0", "d")]))
    lines = [line for line in listing.splitlines()]
    start = next(i for i, line in enumerate(lines) if "loop, 6 rounds:" in line)
    assert lines[start].startswith("  loop")
    assert any(
        "= carry(x)" in line and line.startswith("    ") and "[4{d}, 8]" in line
        for line in lines[start:]
    )
    body = next(i for i, line in enumerate(lines) if line == "    body:")
    assert any(line.startswith("      ") and "matmul" in line for line in lines[body:])
    assert any(line.strip().startswith("next ") for line in lines[body:])
    assert any("= carried(" in line and line.startswith("  %") for line in lines[body:])
    assert str(problem.analysis).count("loop, 6 rounds:") == 1


def test_a_listing_shows_branches() -> None:
    _, problem = made(
        lambda c, x: jax.lax.cond(c, jnp.sin, jnp.cos, x), leaf(dtype="bool"), leaf(8, 4)
    )
    listing = tl.listing(problem, tl.Plan.from_actions(problem, [("x.0", "d")]))
    for text in ("  switch ", "  branch 0:", "  branch 1:", "    yield ", "one_of("):
        assert text in listing, text


def test_what_a_loop_carries_has_one_sharding_all_the_way() -> None:
    _, problem = made(scanned, leaf(6, 8, 8), leaf(4, 8))
    program = problem.analysis.program
    for actions in (
        [("x.0", "d")],
        [("ws.1", "d", "0")],
        [("ws.1", "d", "1"), ("x.0", "m")],
        [("ws.1", "m", "0")],
    ):
        plan = tl.Plan.from_actions(problem, actions)
        kept, used = plan.value_specs(), plan.lowered.used
        owners = {int(program.owner[op]) for op in program.ops() if program.owner[op] != op}
        assert owners, "nothing is carried"
        assert any(kept[int(program.results(op)[0])] != ((), ()) for op in owners)
        for op in program.ops():
            if program.owner[op] == op and program.kind[op] != "while.enter":
                continue
            enter = int(program.owner[op])
            (inside,) = program.results(enter)
            for value in program.results(op):
                assert kept[value] == kept[inside]
            for use in range(program.use_ptr[op], program.use_ptr[op + 1]):
                assert used[use] == kept[inside]


def test_a_copy_made_in_a_branch_serves_that_branch_only() -> None:
    def fn(c: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
        y = jax.lax.cond(c, lambda: w @ x, lambda: jnp.sin(w @ x))
        return y + jnp.cos(w @ x) + jnp.tanh(w @ x)

    model, problem = made(fn, leaf(dtype="bool"), leaf(8, 4), leaf(8, 8))
    program = problem.analysis.program
    x = program.value_name.index("x")
    plan = tl.Plan.from_actions(problem, [("x.1", "m")])
    value_dim = plan.value_dim.copy()
    value_dim[x, 0] = 0  # kept cut along the dim that every matmul reads whole
    shifted = dataclasses.replace(plan, sharding=plan.sharding._replace(value_dim=value_dim))
    steps = st.lower(program, plan.op_factor, value_dim, plan.mesh.array())
    rows = [
        i for i in range(len(steps.kind)) if steps.value[i] == x and steps.kind[i] == ALL_GATHER
    ]
    assert len(rows) == 3  # one for each branch, and one for both matmuls after them
    regions = [int(program.region[steps.op[i]]) for i in rows]
    assert [program.regions[r].kind if r >= 0 else "" for r in regions] == ["branch", "branch", ""]
    # The annotated program is right, too: using a branch's copy outside is invalid StableHLO.
    text = annotate(model, shifted)
    assert text.count("sdy.sharding_constraint %arg1") == 3


def test_annotations_stand_inside_the_loop() -> None:
    model, problem = made(scanned, leaf(6, 8, 8), leaf(4, 8))
    text = annotate(model, tl.Plan.from_actions(problem, [("x.0", "d")]))
    body = text[text.index(" do {") :]
    assert "sdy.sharding_constraint" in body
    assert "stablehlo.while" in text
    header = next(line for line in text.splitlines() if "stablehlo.while" in line)
    assert "sdy.sharding" not in header


@pytest.mark.parametrize(
    "actions", [[("x.0", "d")], [("ws.1", "d", "0")], [("ws.1", "d", "1"), ("x.0", "m")]]
)
def test_a_sharded_scan_runs_to_the_same_result(actions: list[Any]) -> None:
    model, problem = made(scanned, leaf(6, 8, 8), leaf(4, 8))
    run = tl.run(model, tl.Plan.from_actions(problem, actions), devices="cpu:4")
    assert run.max_relative_error is not None
    assert run.max_relative_error < 1e-5
