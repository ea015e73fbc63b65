"""The analysis computes on whole arrays; plain loops must give the same.

The tests repeat its definitions as loops over ops and dims.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import analysed, small_transformer, traced
from toast_lab.conflicts.analysis import Analysis
from toast_lab.conflicts.use_keys import use_keys
from toast_lab.sharding.mesh import make_mesh
from toast_lab.sharding.space import build_space


def awkward() -> Analysis:
    def f(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
        y = jnp.sort(jnp.cumsum(x @ w, axis=0), axis=1)
        merged = jnp.tanh(x.reshape(8, 8, 4, 8).transpose(1, 0, 3, 2)).reshape(64, 32) @ w
        square = (x @ x.T) @ (x @ x.T).T
        # Merged dims on both ends of an edge
        again = jnp.tanh(x.reshape(8, 8, 32)).reshape(64, 32).reshape(8, 8, 32)
        return (
            again,
            y.reshape(-1),
            merged.reshape(16, 4, 32),
            jnp.tanh(merged.reshape(16, 4, 32)),
            square + square.T,
            y[:1],
        )

    return traced(
        f, jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((32, 32), jnp.float32)
    )


PROGRAMS = {
    "awkward": awkward,
    "attention": lambda: analysed("attention"),
    "xxt": lambda: analysed("xxt"),
    "transformer": lambda: small_transformer(layers=2, kv_heads=2),
}


@pytest.fixture(params=PROGRAMS)
def analysis(request: pytest.FixtureRequest) -> Analysis:
    return PROGRAMS[request.param]()


def test_edges_of_m(analysis: Analysis) -> None:
    program, size = analysis.program, analysis.program.factor_size
    edges = set()
    for use in range(program.n_uses):
        value = int(program.use_value[use])
        if program.value_is_constant[value]:
            continue
        for dim, extent in enumerate(program.dims(value)):
            def_factor = program.def_dim_minor[program.shape_ptr[value] + dim]
            use_factors = program.use_dim_factors[program.use_dim_ptr[use] + dim]
            if extent > 1 and [size[f] for f in def_factor] == [size[f] for f in use_factors]:
                edges.update(zip(def_factor, use_factors, strict=True))
            elif extent > 1:
                edges.add((def_factor[0], use_factors[0]))
    names = analysis.names
    assert list(zip(names.source.tolist(), names.target.tolist(), strict=True)) == sorted(edges)
    rows = [names.successor[names.ptr[n] : names.ptr[n + 1]].tolist() for n in range(names.n)]
    assert [(n, t) for n, row in enumerate(rows) for t in row] == sorted(edges)


def test_conflicts_and_their_places(analysis: Analysis) -> None:
    program, colour, size = analysis.program, analysis.colour, analysis.names.size
    places_of: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
    rows = [
        (v, -1, program.def_names(v))
        for v in range(program.n_values)
        if not program.value_is_constant[v]
    ]
    rows += [(int(program.use_value[u]), u, program.use_names(u)) for u in range(program.n_uses)]
    for value, use, row in rows:
        for i, a in enumerate(row):
            for j, b in enumerate(row[i + 1 :], i + 1):
                if a != b and colour[a] == colour[b] and size[a] > 1 and size[b] > 1:
                    places_of[min(a, b), max(a, b)].append((value, use, i, j))
    assert (
        dict(zip(analysis.pairs, (list(map(tuple, p)) for p in analysis.places), strict=True))
        == places_of
    )
    assert list(analysis.pairs) == sorted(places_of)


def test_groups_and_texts(analysis: Analysis) -> None:
    dims = analysis.names
    for c in analysis.colours:
        names = np.flatnonzero(analysis.colour == c.index)
        assert c.names.tolist() == names.tolist()
        assert (c.size, c.shardable) == (dims.size[names].max(), dims.shardable[names].any())
        assert [analysis.name_text[n] for n in names] == [
            f"{c.name}#{k}" for k in range(len(names))
        ]
    for g in analysis.groups:
        names = np.flatnonzero(analysis.group[analysis.colour] == g.index)
        assert (g.size, g.shardable) == (dims.size[names].max(), dims.shardable[names].any())
        assert g.n_names == (dims.size[names] > 1).sum()
        assert g.name == analysis.colour_name[g.colours[0]]
    assert len(set(analysis.colour_name)) == len(analysis.colour_name)


def test_values_used_alike_have_equal_keys(analysis: Analysis) -> None:
    program = analysis.program
    base: list[Any] = [(program.dims(v), program.value_dtype[v]) for v in range(program.n_values)]
    current = base
    for depth, keys in enumerate(use_keys(program, (1, 2, 3)), 1):
        uses: list[list[Any]] = [[] for _ in base]
        for op in range(program.n_ops):
            start = int(program.factor_ptr[op])
            for use in range(int(program.use_ptr[op]), int(program.use_ptr[op + 1])):
                row = tuple(f - start for f in program.use_names(use))
                results = tuple(current[r] for r in program.results(op))
                use_description = (
                    program.kind[op],
                    program.detail[op],
                    use - int(program.use_ptr[op]),
                    row,
                    results,
                )
                uses[program.use_value[use]].append(hash(use_description))
        current = [hash((base[v], tuple(sorted(u)))) for v, u in enumerate(uses)]
        alike = {(a, b) for a, b in zip(current, keys.tolist(), strict=True)}
        assert len(alike) == len(set(current)) == len(set(keys.tolist())), f"depth {depth}"


def test_moves_of_the_action_space(analysis: Analysis) -> None:
    program, dims, space = analysis.program, analysis.names, build_space(analysis, make_mesh("2x2"))
    group_of = analysis.group[analysis.colour]
    assert set(space.group.tolist()) == {g.index for g in analysis.groups if g.shardable}
    for move, group in enumerate(space.group.tolist()):
        ops = space.op_effects.rows(move)
        for op, name in zip(
            space.op_effects.target[ops].tolist(), space.op_effects.cut[ops].tolist(), strict=True
        ):
            assert dims.op[name] == op
            assert group_of[name] == group
            assert dims.shardable[name]
        effects, values = space.value_effects, space.value_effects.rows(move)
        assert effects.target[values].tolist() == [
            v
            for v in range(program.n_values)
            if not program.value_is_constant[v]
            and any(
                group_of[n] == group and s > 1
                for n, s in zip(program.def_names(v), program.dims(v), strict=True)
            )
        ]
        for value, dim, size in zip(
            effects.target[values].tolist(),
            effects.cut[values].tolist(),
            effects.size[values].tolist(),
            strict=True,
        ):
            assert size == program.dims(value)[dim] > 1
            assert group_of[program.def_names(value)[dim]] == group
    # Where two names of a group meet, the bits decide, and actions for both sides exist.
    for conflict in analysis.conflicts:
        place = conflict.places[0]
        group = int(analysis.group[conflict.colour])
        if place.use >= 0 or not analysis.groups[group].shardable:
            continue
        offered = {
            int(cut)
            for move in np.flatnonzero(space.group == group)
            for rows in [space.value_effects.rows(move)]
            for cut in space.value_effects.cut[rows][
                space.value_effects.target[rows] == place.value
            ]
        }
        assert offered == {place.first_dim, place.second_dim}


def test_use_keys_look_through_a_loop_to_the_op_that_uses_a_round_s_slice() -> None:
    """Stacked weights are told apart by the ops that use a round's slice of them.

    The stacked weights themselves are only used by the loop.
    """

    def body(h: jax.Array, w: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        return jnp.tanh(h @ w[0]) + jnp.tanh(h @ w[1]) + jnp.sin(w[2].sum(0)), None

    def fn(a: jax.Array, b: jax.Array, c: jax.Array, h: jax.Array) -> jax.Array:
        return jax.lax.scan(body, h, (a, b, c))[0]

    stacked, h = jax.ShapeDtypeStruct((3, 8, 8), "float32"), jax.ShapeDtypeStruct((4, 8), "float32")
    program = traced(fn, stacked, stacked, stacked, h).program
    a, b, c = use_keys(program, (1,))[0][:3].tolist()
    assert a == b
    assert a != c
