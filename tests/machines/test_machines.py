"""Machines, their files, and where a mesh's axes run."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import stat
import string
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import analysed, plan
from tests.machines.plain import PLAIN
from toast_lab.cost.problem import Problem, price
from toast_lab.errors import InvalidProblem, NotSaved
from toast_lab.machines import catalogue
from toast_lab.machines.catalogue import MACHINES, machine
from toast_lab.machines.links import Link
from toast_lab.machines.machine_model import COMPILERS, LARGEST_BYTES, Machine
from toast_lab.machines.topology import LATENCY, RATE, lay_out
from toast_lab.sharding.mesh import Mesh, make_mesh

NAMES = ["tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "p100", "a100", "h100"]
NAMES += ["h200", "b200", "cpu"]


def laid(name: str, mesh: str):
    return lay_out(MACHINES[name], make_mesh(mesh))


# -- the table -------------------------------------------------------------------------------------


def test_the_table_has_the_machines_of_the_design():
    assert sorted(MACHINES) == sorted(NAMES)


def test_every_built_in_machine_is_a_file_and_every_file_is_listed():
    assert sorted(path.name for path in catalogue.BUILTIN_FOLDER.iterdir()) == sorted(
        f"{n}.toml" for n in MACHINES
    )
    assert [machine.name for machine in MACHINES.values()] == list(MACHINES)


def test_a_built_in_machine_is_read_when_it_is_first_asked_for(tmp_path):
    (tmp_path / "good.toml").write_text(PLAIN.toml())
    (tmp_path / "bad.toml").write_text("name = 5")
    machines = catalogue.MachineCatalogue(tmp_path, ("good", "bad"))
    assert list(machines) == ["good", "bad"]
    assert "bad" in machines
    assert machines["good"] == PLAIN
    assert machines["good"] is machines["good"]
    with pytest.raises(InvalidProblem, match=r"(?s)bad\.toml: .*memory_bytes is missing"):
        machines["bad"]
    with pytest.raises(KeyError):
        machines["other"]


def test_a_whole_side_of_a_matrix_unit_is_written_as_one():
    assert "tile = 128\n" in MACHINES["tpu-v5e"].toml()
    assert "tile = 256\n" in MACHINES["tpu-v6e"].toml()


@pytest.mark.parametrize("name", NAMES)
def test_every_machine_has_sources_and_prices_a_program(name):
    named_machine = MACHINES[name]
    assert "all" in named_machine.sources or {"flops", "memory", "op_overhead_s"} <= set(
        named_machine.sources
    )
    assert all(len(link.source) > 20 for link in named_machine.links)
    problem = Problem(analysed("attention"), {"a": 4}, name)
    cost = price(problem, plan(problem, ("S", "a", 1)))
    assert 0 < cost.comm_s < cost.time_s < math.inf


def test_lower_precision_dots_are_faster_where_the_machine_is():
    for dtype, expected in (
        ("bf16", 312e12),
        ("f16", 312e12),
        ("f32", 156e12),
        ("f64", 19.5e12),
        ("i32", 156e12),
    ):
        assert MACHINES["a100"].peak_flops(dtype) == expected


def test_unknown_machines_suggest_one():
    with pytest.raises(InvalidProblem, match=r'did you mean .*"tpu-v5e".*machines: tpu-v5e'):
        machine("tpu-v5")


def test_impossible_machines_list_every_number():
    link = dataclasses.replace(PLAIN.links[0], bytes_per_s=math.nan, latency_s=-1.0)
    with pytest.raises(InvalidProblem) as caught:
        dataclasses.replace(
            PLAIN, memory_bytes_per_s=0.0, flops={"bf16": math.inf}, links=(link,), overlap=1.5
        )
    for text in (
        "memory_bytes_per_s = 0",
        "bytes_per_s = nan",
        "latency_s = -1",
        "flops.bf16 = inf",
        '"f32"',
        "1.5",
    ):
        assert text in str(caught.value)


def test_levels_must_nest():
    inner, outer = Link("inner", "switch", 1.0, 0.0, 8), Link("outer", "switch", 1.0, 0.0, 12)
    with pytest.raises(InvalidProblem, match=r"join \[8, 12\] devices"):
        dataclasses.replace(PLAIN, links=(inner, outer))
    with pytest.raises(InvalidProblem, match="every level but the outermost"):
        dataclasses.replace(PLAIN, links=(dataclasses.replace(inner, devices=None), outer))
    with pytest.raises(InvalidProblem, match="hold 4 devices, fewer than devices = 8"):
        dataclasses.replace(PLAIN, links=(Link("t", "torus", 1.0, 0.0, 8, (2, 2)),))


# -- layout ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mesh", "slice_", "rates_gb", "hops"),
    [
        ("tpu-v5e", "4x4", (4, 4), (45, 45), (3, 3)),  # lines: only a dim of 16 wraps around
        ("tpu-v5e", "16x16", (16, 16), (90, 90), (8, 8)),
        ("tpu-v5e", "16", (4, 4), (90,), (6,)),  # two lines, both dims' links at once
        ("tpu-v5e", "8", (2, 4), (90,), (4,)),
        ("tpu-v5e", "2x2x2", (4, 2), (22.5, 45, 45), (2, 1, 1)),  # the first two share a dim
        ("tpu-v5e", "17", (17,), (45,), (16,)),  # one path through the torus
        ("tpu-v4", "4x4x4", (4, 4, 4), (90, 90, 90), (2, 2, 2)),
        ("tpu-v4", "2x4x4", (2, 4, 4), (45, 45, 45), (1, 3, 3)),  # below a cube nothing wraps
        ("tpu-v4", "16", (2, 2, 4), (135,), (5,)),
        # Small axes share a dim, the large one gets two dims
        ("tpu-v4", "2x32x2", (4, 4, 8), (45, 180, 45), (2, 6, 1)),
        ("tpu-v5p", "16x20x28", (16, 20, 28), (180, 180, 180), (8, 10, 14)),
        ("tpu-v3", "4x2", (2, 2), (82, 225), (2, 1)),  # the minor axis is the two cores of a chip
        ("a100", "2x8", (), (25, 300), (1, 3)),
        ("a100", "8x2", (), (100, 300), (2.2, 1)),  # straddles: 4 ports to 2 nodes for each ring
        ("a100", "16", (), (200,), (2.8,)),
        ("h100", "16x4", (), (100, 450), (3.6, 2)),
    ],
)
def test_layouts_by_hand(name, mesh, slice_, rates_gb, hops):
    links = laid(name, mesh)
    assert links.slice == slice_
    assert links.shape[:, RATE] / 1e9 == pytest.approx(rates_gb)
    assert links.shape[:, 0] == pytest.approx(hops)


def test_texts_say_where_axes_run():
    assert laid("tpu-v4", "4x4x4").where[0] == "ICI torus dim 0 (ring of 4, wraps)"
    assert laid("tpu-v5e", "2x2x2").where[0] == "ICI torus dim 0 (line of 2, stride 2)"
    assert laid("a100", "2x8").where == ("InfiniBand between 2 groups", "NVLink, 8 devices")
    assert laid("a100", "16").where == ("NVLink, 8 devices and InfiniBand between 2 groups of 8",)
    assert laid("tpu-v5e", "1x4").where[0] == "nowhere, size 1"


def test_an_all_to_all_saves_nothing_across_nodes():
    """Of 16 GPUs in 2 nodes, each sends half of its data to the other node.

    For these 8 of 16 destinations a device has 25 GB/s.
    """
    links = laid("a100", "16")
    seconds_for_a_byte = links.shape[0, 1] / links.shape[0, RATE]
    assert seconds_for_a_byte == pytest.approx(8 / 16 / 25e9)


@pytest.mark.parametrize(
    ("name", "fits", "too_large", "most"),
    [
        ("tpu-v5e", "16x16", "2x128x2", 256),
        ("tpu-v6e", "16x16", "257", 256),
        ("tpu-v3", "64x32", "64x64", 2048),
        ("tpu-v4", "2x32x2x32", "4097", 4096),
        ("tpu-v5p", "8960", "2x8960", 8960),
    ],
)
def test_meshes_larger_than_the_pod_are_refused(name, fits, too_large, most):
    assert np.all(laid(name, fits).shape[:, RATE] > 0)
    with pytest.raises(
        InvalidProblem,
        match=rf"has {make_mesh(too_large).n_devices} devices, but {name} joins .* {most}",
    ):
        Problem(analysed("mlp"), too_large, name)


def test_gpus_have_no_limit():
    assert laid("h100", "64x64x8").shape[0, RATE] == 50e9


sizes = st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 8, 16, 32]), min_size=1, max_size=6)


@settings(max_examples=300)
@given(st.sampled_from(NAMES), sizes)
def test_every_mesh_that_fits_has_a_sound_layout(name, sizes):
    named_machine = MACHINES[name]
    mesh = Mesh(tuple(f"a{i}" for i in range(len(sizes))), tuple(sizes))
    if named_machine.max_devices is not None and mesh.n_devices > named_machine.max_devices:
        with pytest.raises(InvalidProblem, match=str(mesh.n_devices)):
            lay_out(named_machine, mesh)
        return
    links = lay_out(named_machine, mesh)
    fastest = sum(link.bytes_per_s * max(1, len(link.extents)) for link in named_machine.links)
    for i, size in enumerate(sizes):
        assert links.where[i]
        if size > 1:
            assert 0 < links.shape[i, RATE] <= fastest
            assert links.shape[i, LATENCY] > 0
            assert links.shape[i, 0] >= 1 or len(named_machine.links) > 1  # hops
            assert links.shape[i, 1] > 0  # spread
    if links.slice and len(links.slice) == len(named_machine.links[-1].extents):
        assert math.prod(links.slice) * 2 >= mesh.n_devices  # v3: two cores a chip
        assert all(
            n <= e
            for n, e in zip(
                sorted(links.slice), sorted(named_machine.links[-1].extents), strict=True
            )
        )


def test_inner_levels_are_no_slower_for_minor_axes():
    """On machines with levels, an axis of the same size is never faster further out."""
    for name in ("a100", "h100", "p100"):
        rates = laid(name, "2x2x2x2x2").shape[:, RATE]
        assert list(rates) == sorted(rates), name


def test_the_overlap_coefficient_hides_that_share():
    full = Problem(analysed("attention"), {"a": 4}, "tpu-v5e")
    half_machine = dataclasses.replace(full.machine, overlap=0.5)
    none_machine = dataclasses.replace(full.machine, overlap=0.0)
    costs = [
        price(p, plan(p, ("S", "a", 1)))
        for p in (
            full,
            *(Problem(analysed("attention"), {"a": 4}, m) for m in (half_machine, none_machine)),
        )
    ]
    assert costs[0].overlapped_s < costs[0].time_s
    assert costs[1].overlapped_s == pytest.approx((costs[0].overlapped_s + costs[0].time_s) / 2)
    assert costs[2].overlapped_s == costs[2].time_s


# -- machine files ---------------------------------------------------------------------------------

GOOD = """
memory_bytes = 1e9
memory_bytes_per_s = 1e10
op_overhead_s = 0
[flops]
f32 = 1e12
[[links]]
name = "ICI"
topology = "torus"
bytes_per_s = 1e9
latency_s = 1e-6
extents = [4, 4]
"""


def written(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_machines_survive_a_file(name, tmp_path):
    MACHINES[name].to_toml(tmp_path / "m.toml", "a comment\nof two lines")
    assert Machine.from_toml(tmp_path / "m.toml") == MACHINES[name]
    assert os.listdir(tmp_path) == ["m.toml"]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_compiler_survives_a_file(compiler, tmp_path):
    changed = dataclasses.replace(PLAIN, compiler=compiler)
    changed.to_toml(tmp_path / "m.toml")
    assert f'compiler = "{compiler}"' in (tmp_path / "m.toml").read_text().splitlines()
    assert Machine.from_toml(tmp_path / "m.toml") == changed
    assert changed.as_dict()["compiler"] == compiler


def test_a_file_that_names_no_compiler_means_the_cpus(tmp_path):
    assert machine(written(tmp_path, GOOD)).compiler == "cpu"
    assert machine(written(tmp_path, f'compiler = "tpu"{GOOD}')).compiler == "tpu"


@pytest.mark.parametrize("name", NAMES)
def test_machines_are_compiled_for_by_their_makers(name):
    expected = "tpu" if name.startswith("tpu") else "cpu" if name == "cpu" else "gpu"
    assert MACHINES[name].compiler == expected


def test_unknown_compilers_are_refused_with_the_choices():
    with pytest.raises(
        InvalidProblem, match=r"machine plain: .*compiler = 'xla' \(one of cpu, gpu, tpu\)"
    ):
        dataclasses.replace(PLAIN, compiler="xla")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=100)
@given(st.text(string.printable, min_size=1).filter(str.strip), texts, texts)
def test_any_text_survives_a_file(name, key, value):
    import tomllib

    changed = dataclasses.replace(PLAIN, name=name, sources={key: value})
    assert Machine.from_data(tomllib.loads(changed.toml()), "f.toml") == changed


def test_a_problem_takes_a_machine_file(tmp_path):
    path = written(tmp_path, GOOD)
    for given_as in (str(path), path):
        problem = Problem(analysed("mlp"), "2x2", given_as)
        assert problem.machine.name == "mine"
        assert problem.links.shape[:, RATE].tolist() == [5e8, 5e8]


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (("memory_bytes = 1e9", "memory_bytes = 0"), ["memory_bytes = 0.0 (must be above 0)"]),
        (("memory_bytes_per_s = 1e10", "memory_bytes_per_s = nan"), ["memory_bytes_per_s = nan"]),
        (("f32 = 1e12", "bf16 = -1"), ["flops.bf16 = -1", 'no "f32" entry']),
        (
            ("op_overhead_s", "op_overhed_s"),
            ['op_overhed_s: no such key (did you mean "op_overhead_s"', "is missing"],
        ),
        (
            ("bytes_per_s = 1e9", "bytes_per_s = '1e9'"),
            ["links[0].bytes_per_s = '1e9' is not a number"],
        ),
        (('"torus"', '"tours"'), ["links[0].topology = 'tours'"]),
        (("extents = [4, 4]", "extents = [4, 0]"), ["links[0].extents = [4, 0]"]),
        (
            ("extents = [4, 4]", "extents = [4.5]"),
            ["links[0].extents = [4.5] is not whole numbers"],
        ),
        (("extents = [4, 4]", ""), ["links[0].extents = [] (a torus has 1 to 6 dims)"]),
        (
            ("[[links]]", "[[link]]"),
            ['link: no such key (did you mean "links"?)', "[[links]] is missing"],
        ),
        (("memory_bytes = 1e9", f"memory_bytes = {'9' * 400}"), ["memory_bytes = inf"]),
        (
            ("latency_s = 1e-6", "latency_s = true\nwarp = 9"),
            ["latency_s = True is not a number", "links[0].warp"],
        ),
        (("[flops]", 'compiler = "xla"\n[flops]'), ["compiler = 'xla' (one of cpu, gpu, tpu)"]),
        (("[flops]", 'compiler = "TPU"\n[flops]'), ["compiler = 'TPU' (one of cpu, gpu, tpu)"]),
        (("[flops]", "compiler = 3\n[flops]"), ["compiler = 3 (one of cpu, gpu, tpu)"]),
        (("[flops]", 'compiler = ["tpu"]\n[flops]'), ["compiler = ['tpu'] (one of cpu, gpu, tpu)"]),
        (
            ("[flops]", 'compilr = "tpu"\n[flops]'),
            ['compilr: no such key (did you mean "compiler"'],
        ),
        (("[flops]", "[flops"), ["not TOML"]),
        (("[flops]", "flops = 3\n[other]"), ["flops = 3 is not a table", "other: no such key"]),
    ],
)
def test_wrong_files_are_refused_with_every_offender(tmp_path, change, texts):
    assert change[0] in GOOD
    path = written(tmp_path, GOOD.replace(*change, 1))
    with pytest.raises(InvalidProblem) as caught:
        machine(path)
    for text in [*texts, str(path)]:
        assert text in str(caught.value)


def test_one_error_lists_all_mistakes(tmp_path):
    text = (
        GOOD.replace("1e10", "-1")
        .replace("f32", "f16")
        .replace("1e-6", "-5")
        .replace("name", "nam")
    )
    with pytest.raises(InvalidProblem, match="5 mistakes") as caught:
        machine(written(tmp_path, text))
    assert str(caught.value).count("\n  ") == 5


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidProblem, match="No such file"):
        machine(tmp_path / "absent.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InvalidProblem, match="directory"):
        machine(tmp_path / "folder.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidProblem, match="not TOML"):
        machine(tmp_path / "bytes.toml")
    (tmp_path / "huge.toml").write_bytes(b"#" * (LARGEST_BYTES + 1))
    with pytest.raises(InvalidProblem, match="too many"):
        machine(tmp_path / "huge.toml")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = written(tmp_path, GOOD)

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(
        NotSaved, match=r"mine.toml: the machine file could not be written: disk full"
    ):
        PLAIN.to_toml(path)
    assert path.read_text() == GOOD
    assert os.listdir(tmp_path) == ["mine.toml"]


def test_files_are_readable_by_others_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        PLAIN.to_toml(tmp_path / "m.toml")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "m.toml").stat().st_mode) == 0o640


# -- docs/machines.md ------------------------------------------------------------------------------

DOCS = (Path(__file__).parents[2] / "docs" / "machines.md").read_text()


def test_the_file_in_the_docs_loads(tmp_path):
    (text,) = re.findall(r"^```toml\n(.*?)^```$", DOCS, re.MULTILINE | re.DOTALL)
    loaded = machine(written(tmp_path, text))
    assert loaded.max_devices is None
    links = lay_out(loaded, make_mesh("2x16x16"))
    assert links.shape[:, RATE].tolist() == [3.125e9, 90e9, 90e9]


@pytest.mark.parametrize("name", NAMES)
def test_the_table_in_the_docs_is_the_tables(name):
    (row,) = [line for line in DOCS.splitlines() if line.startswith(f"| `{name}` |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    named_machine = MACHINES[name]
    unit = 2**30 if cells[4].endswith("GiB") else 1e9
    assert float(cells[2]) == named_machine.peak_flops("bf16")
    assert float(cells[3]) == named_machine.peak_flops("f32")
    assert float(cells[4].split()[0]) * unit == named_machine.memory_bytes
    assert float(cells[5].split()[0]) * 1e9 == named_machine.memory_bytes_per_s
    for link in named_machine.links:
        assert f"{link.bytes_per_s / 1e9:g} GB/s" in cells[6]
    assert cells[7] == (
        "any" if named_machine.max_devices is None else str(named_machine.max_devices)
    )
