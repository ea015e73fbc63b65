"""Fitted times of collectives: their meaning, where they apply, and their machine files."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.machines.plain import without_terms
from tests.machines.test_collectives import KINDS, time_s
from toast_lab.errors import InvalidProblem
from toast_lab.machines.catalogue import MACHINES
from toast_lab.machines.links import COLLECTIVES, CollectiveTerms, Link
from toast_lab.machines.machine_model import Machine
from toast_lab.sharding.step_kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    PERMUTE,
    REDUCE_SCATTER,
    STEP_KINDS,
)

GPUS = ("p100", "a100", "h100", "h200", "b200")
TERMS = CollectiveTerms(
    start_s=1.0, byte_s=1e-3, device_s=10.0, root_byte_s=0.1, byte_over_n_s=4e-3
)
sizes_of_meshes = st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=1, max_size=4)


def hosts(**terms: CollectiveTerms) -> Machine:
    """Return a machine of hosts of 8 with ``terms``, joined by slower links without."""
    inner = Link("inside", "switch", 100.0, 0.5, 8, collectives=terms)
    outer = Link("outside", "switch", 10.0, 2.0)
    return Machine("m", {"f32": 1.0}, 1.0, 1.0, (inner, outer), 0.0)


# -- meaning ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (ALL_GATHER, 30000.0),
        (REDUCE_SCATTER, 30000.0),
        (ALL_TO_ALL, 30000.0),
        (ALL_REDUCE, 60000.0),
        (PERMUTE, 40000.0),
    ],
)
def test_times_are_the_sum_of_the_terms(kind: int, sent: float) -> None:
    machine = hosts(**dict.fromkeys(COLLECTIVES, TERMS))
    start_bytes = 40000.0 / (4 if kind == ALL_GATHER else 1)
    wanted = 1.0 + 3 * 10.0 + 0.1 * math.sqrt(sent) + sent * (1e-3 + 4e-3 / 4)
    assert time_s(kind, machine, [4], start_bytes) == pytest.approx(wanted)
    # Two axes of one switch form one group of all their devices.
    assert time_s(kind, machine, [2, 2], start_bytes) == pytest.approx(wanted)


def test_kinds_without_terms_keep_rate_and_latency() -> None:
    machine = hosts(all_gather=TERMS)
    for kind in KINDS:
        plain = time_s(kind, without_terms(machine), [4], 1e4)
        assert (time_s(kind, machine, [4], 1e4) == plain) == (kind != ALL_GATHER)


def test_the_network_keeps_rate_and_latency() -> None:
    machine = hosts(**dict.fromkeys(COLLECTIVES, TERMS))
    inside = time_s(ALL_GATHER, machine, [1, 8], 1e4)
    outside = time_s(ALL_GATHER, machine, [2, 8], 1e4, mask=1)
    assert outside == pytest.approx(2.0 + 1e4 / 10)
    # 1/16 crosses the network first; then the pairs of chunks are gathered inside the hosts.
    both = time_s(ALL_GATHER, machine, [2, 8], 1e4 / 2)
    assert both == pytest.approx(2.0 + 5e3 / 10 + inside)


@pytest.mark.parametrize("kind", KINDS)
def test_an_axis_that_straddles_takes_the_longer_of_both(kind: int) -> None:
    small = CollectiveTerms(start_s=0.0, byte_s=1e-9)
    large = CollectiveTerms(start_s=1e6, byte_s=1e-9)
    plain = time_s(kind, hosts(), [16], 1e4)
    assert time_s(kind, hosts(**{STEP_KINDS[kind]: small}), [16], 1e4) == pytest.approx(plain)
    assert time_s(kind, hosts(**{STEP_KINDS[kind]: large}), [16], 1e4) == pytest.approx(1e6)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from(GPUS), sizes_of_meshes, st.data())
def test_times_grow_with_bytes_and_are_never_negative(
    kind: int, name: str, sizes: list[int], data: st.DataObject
) -> None:
    mask = data.draw(st.integers(1, (1 << len(sizes)) - 1))
    assume(any(size > 1 for axis, size in enumerate(sizes) if mask >> axis & 1))
    small = data.draw(st.floats(0, 1e10))
    more = data.draw(st.floats(1.01, 100))
    times = [time_s(kind, MACHINES[name], sizes, size, mask) for size in (small, small * more + 1)]
    assert 0 < times[0] < times[1]
    assert times[1] <= times[0] * (more + 1 / max(small, 1e-9)) * (1 + 1e-9)


# -- machine files ---------------------------------------------------------------------------------


def test_terms_and_products_are_written_and_read(tmp_path: Path) -> None:
    for name in GPUS:
        machine = MACHINES[name]
        assert set(machine.links[0].collectives) == set(COLLECTIVES)
        assert not machine.links[1].collectives
        machine.to_toml(tmp_path / "m.toml")
        assert Machine.from_toml(tmp_path / "m.toml") == machine
        shown: Any = machine.as_dict()
        assert shown["links"][0]["collectives"]["permute"]["byte_s"] > 0
        assert shown["products"]["multiprocessors"] > 50


WRONG = """
name = "wrong"
memory_bytes = 1e9
memory_bytes_per_s = 1e9
op_overhead_s = 0
tile = 128
[flops]
f32 = 1e12
[products]
multiprocessors = 0
sustained = 1.5
begin_s = 1
[[links]]
name = "inside"
topology = "ring"
bytes_per_s = 1e9
latency_s = 0
devices = 8
[links.collectives]
all_gather = { start_s = -1, byte_s = 0, device = 3 }
all_reduce = { start_s = "1" }
reduce = { start_s = 0, byte_s = 1 }
permute = 7
[[links]]
name = "outside"
topology = "switch"
bytes_per_s = 1e9
latency_s = 0
collectives = [1]
"""


def test_every_offender_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text(WRONG)
    with pytest.raises(InvalidProblem) as caught:
        Machine.from_toml(tmp_path / "wrong.toml")
    message = str(caught.value)
    for text in (
        "tile = 128 beside [products]",
        "products.multiprocessors = 0.0 (must be above 0)",
        "products.sustained = 1.5 (must be above 0 and at most 1)",
        "products.begin_s: no such key",
        "links[0].collectives.all_gather.start_s = -1.0 (must not be below 0)",
        "links[0].collectives.all_gather.byte_s = 0.0 (must be above 0)",
        'links[0].collectives.all_gather.device: no such key (did you mean "device_s"?)',
        "links[0].collectives.all_reduce.start_s = '1' is not a number",
        "links[0].collectives.all_reduce.byte_s is missing",
        "links[0].collectives.reduce: no such key",
        "links[0].collectives.permute = 7 is not a table",
        "links[0].collectives on topology = 'ring' (only for a switch",
        "links[1].collectives = [1] is not a table",
    ):
        assert text in message
    assert "wrong.toml: 13 mistakes" in message


def test_sources_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    MACHINES["h100"].to_toml(path)
    plain = path.read_text()
    assert "[sources]" in plain
    wrong = "-1", "inf", "[1, 2]"
    lines = "".join(f"s{i} = {text}\n" for i, text in enumerate(wrong))
    path.write_text(plain.replace("[sources]\n", f"[sources]\n{lines}"))
    with pytest.raises(InvalidProblem) as caught:
        Machine.from_toml(path)
    for i, text in enumerate(wrong):
        assert f"sources.s{i} = {text} is not a text" in str(caught.value)


def test_terms_from_code_are_checked_alike() -> None:
    link = dataclasses.replace(
        MACHINES["h100"].links[0],
        collectives={"all_gather": TERMS._replace(start_s=math.nan), "gather": TERMS},
    )
    with pytest.raises(InvalidProblem, match=r"collectives\.gather.*all_gather\.start_s = nan"):
        dataclasses.replace(MACHINES["h100"], links=(link,))


def test_files_without_the_new_keys_stay_valid(tmp_path: Path) -> None:
    plain = dataclasses.replace(without_terms(MACHINES["h100"]), products=None)
    text = plain.toml()
    assert "[links.collectives]" not in text
    assert "[products]" not in text
    (tmp_path / "plain.toml").write_text(text)
    assert Machine.from_toml(tmp_path / "plain.toml") == plain
