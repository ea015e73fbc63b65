"""Device tiles: the parts that devices hold, compared with JAX, and how they are drawn."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from tests.helpers import analysed, plan
from toast_lab.cost.problem import Problem
from toast_lab.sharding.mesh import Mesh, make_mesh
from toast_lab.views.tiles import (
    MAX_DRAWN,
    TilesPlot,
    dim_texts,
    grid,
    parts,
    parts_frame,
    tile_columns,
)

MESH = make_mesh({"a": 2, "b": 3, "c": 2})
SPECS = [
    ((12, 8), (("a",), ("c",))),
    ((12, 8), ((), ("a", "c"))),
    ((24, 8), (("a", "b", "c"), ())),
    ((6, 4, 2), (("b",), (), ("c",))),
    ((12,), ((),)),
    ((), ()),
]


@pytest.mark.parametrize(("shape", "spec"), SPECS)
def test_the_size_of_every_part_is_jaxs(shape, spec):
    sharding = NamedSharding(
        AbstractMesh(MESH.sizes, MESH.axes, axis_types=(jax.sharding.AxisType.Auto,) * 3),
        PartitionSpec(*spec),
    )
    device_parts = parts(MESH, shape, spec)
    assert len(device_parts) == MESH.n_devices
    for part in device_parts:
        assert tuple(stop - start for start, stop in part.ranges) == sharding.shard_shape(shape)


@pytest.mark.parametrize(("shape", "spec"), SPECS)
def test_parts_are_those_of_an_array_cut_axis_by_axis(shape, spec):
    """Splitting an array one mesh axis at a time gives the same parts.

    The first axis of a dim is the outermost.
    """
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    device_parts = parts(MESH, shape, spec)
    assert [p.device for p in device_parts] == list(range(12))
    assert [p.place for p in device_parts] == list(itertools.product(range(2), range(3), range(2)))
    for part in device_parts:
        piece = whole
        for dim, axes in enumerate(spec):
            for axis in axes:  # coarsest first
                index = part.place[MESH.axes.index(axis)]
                piece = np.split(piece, MESH.size(axis), axis=dim)[index]
        assert np.array_equal(whole[tuple(slice(*r) for r in part.ranges)], piece)


def test_parts_of_a_plan_cover_each_tensor_and_agree_with_its_specs():
    problem = Problem(analysed("attention"), {"d": 4, "m": 2})
    sharded = plan(problem, "S@1->d", "H2->m")
    program = problem.analysis.program
    for value, spec in enumerate(sharded.value_specs()):
        shape = program.dims(value)
        device_parts = parts(problem.mesh, shape, spec)
        count = np.zeros(shape, int)
        for part in device_parts:
            count[tuple(slice(*r) for r in part.ranges)] += 1
        copies = problem.mesh.n_devices // int(np.prod([problem.mesh.ways(axes) for axes in spec]))
        assert (count == copies).all()


def test_the_table_has_every_device_and_dim():
    frame = parts_frame(MESH, parts(MESH, (12, 8), (("a",), ("c",))))
    assert frame.columns.tolist() == ["device", "a", "b", "c", "dim 0", "dim 1"]
    assert frame.iloc[7].tolist() == [7, 1, 0, 1, "6:12", "4:8"]


def test_the_filled_part_is_the_share_of_its_cell():
    mesh = make_mesh({"d": 4, "m": 2})
    columns = tile_columns(mesh, (64, 8, 2), (("d",), (), ("m",)), (0, 2))
    assert columns["text"][3] == "3  16:32, 1:2"
    assert columns["part"][3] == "16:32, 0:8, 1:2"
    assert columns["at"][3] == "d 1, m 1"
    for i in range(8):
        wide = columns["right"][i] - columns["left"][i]
        high = columns["bottom"][i] - columns["top"][i]
        d, m = divmod(i, 2)
        assert columns["held_left"][i] - columns["left"][i] == pytest.approx(m / 2 * wide)
        assert columns["held_top"][i] - columns["top"][i] == pytest.approx(d / 4 * high)
        assert columns["held_bottom"][i] - columns["held_top"][i] == pytest.approx(high / 4)
    assert len(set(columns["hue"])) == 8
    same = tile_columns(mesh, (64, 8, 2), (("d",), (), ()), (0, 1))["hue"]
    assert same[0] == same[1] != same[2], "devices that hold the same have one hue"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((4, 2), (4, 2)), ((8,), (2, 4)), ((4,), (1, 4)), ((7,), (1, 7)), ((2, 2, 2), (4, 2))],
)
def test_devices_stand_in_rows_of_the_last_axis(sizes, expected):
    mesh = Mesh(tuple("abc"[: len(sizes)]), sizes)
    assert grid(mesh) == expected


def test_large_meshes_are_drawn_in_part():
    mesh = make_mesh({"d": 64, "m": 64})
    plot = TilesPlot(mesh)
    plot.show((64, 64), (("d",), ("m",)), (0, 1))
    assert len(plot.source.data["left"]) == MAX_DRAWN
    assert len(parts(mesh, (64, 64), (("d",), ("m",)))) == 4096


def test_every_dim_is_named_in_words():
    assert dim_texts(MESH, (12, 8), ((), ("a", "c"))) == [
        "dim 0 of 12: whole",
        "dim 1 of 8: 4 parts (a, c)",
    ]
