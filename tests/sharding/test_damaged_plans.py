"""A damaged plan file is either refused or still a valid plan of the program.

A refusal says what is wrong, where, and what to do.
"""

from __future__ import annotations

import collections
import json

import numpy as np
import pytest

import toast_lab as tl
from toast_lab.errors import InvalidPlan

MUTATIONS = 300
STRANGE = [
    None,
    -1,
    0,
    1,
    1e308,
    "x",
    "",
    [],
    {},
    True,
    10**30,
    [[1]],
    {"a": 1},
    {"data": -1},
    [0],
    "zz",
    [1, 2, 3],
]


@pytest.fixture(scope="module")
def problem():
    return tl.Problem(tl.analyse(tl.load("attention")), "4x2")


@pytest.fixture(scope="module")
def saved(problem, tmp_path_factory):
    plan = tl.Plan.from_actions(problem, [("D", "data"), ("H1", "model")])
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan.save(path)
    return plan, path.read_bytes()


def without_checksum(data: bytes) -> bytes:
    """Return the file without its checksum, so that only the checks of its content are left."""
    tree = json.loads(data)
    del tree["checksum"]
    return json.dumps(tree, indent=1).encode()


def places(value, at=()):
    """Yield every place in a JSON value, as the sequence of keys that leads to it."""
    yield at
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, below in items:
        yield from places(below, (*at, key))


def mutated(data: bytes, number: int) -> bytes:
    rng = np.random.default_rng(number)
    if number % 3 == 0:
        at = int(rng.integers(len(data)))
        length = int(rng.integers(1, 200))
        kind = int(rng.integers(4))
        if kind == 0:
            return data[:at]
        if kind == 1:
            return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
        return data[:at] + data[at + length :] if kind == 2 else data[: at + length] + data[at:]
    tree = json.loads(data)
    every = [at for at in places(tree) if at]
    at = every[int(rng.integers(len(every)))]
    parent = tree
    for key in at[:-1]:
        parent = parent[key]
    kind = int(rng.integers(4))
    if kind == 0:
        del parent[at[-1]]
    elif kind == 1 and isinstance(parent, dict):
        parent[f"{at[-1]}x"] = parent.pop(at[-1])
    elif kind == 2 and isinstance(parent, list):
        parent.append(parent[at[-1]])
    else:
        parent[at[-1]] = STRANGE[int(rng.integers(len(STRANGE)))]
    return json.dumps(tree).encode()


@pytest.mark.parametrize("checked", [True, False])
def test_three_hundred_damaged_plans_are_refused_or_are_plans(problem, saved, tmp_path, checked):
    plan, data = saved
    data = data if checked else without_checksum(data)
    outcomes: collections.Counter[str] = collections.Counter()
    path = tmp_path / "plan.json"
    for number in range(MUTATIONS):
        path.write_bytes(mutated(data, number))
        loaded, message = None, ""
        try:
            loaded = tl.Plan.load(path, problem)
        except InvalidPlan as error:
            message = str(error)
        if loaded is None:
            assert str(path) in message, number
            assert "Error:" not in message, number
            outcomes["refused"] += 1
            continue
        loaded.check()
        same = np.array_equal(loaded.op_factor, plan.op_factor) and np.array_equal(
            loaded.value_dim, plan.value_dim
        )
        outcomes["the same" if same else "another"] += 1
    print(dict(outcomes))
    assert outcomes["refused"] > MUTATIONS // 2
    assert not checked or not outcomes["another"]
    assert checked or outcomes["the same"] > MUTATIONS // 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d["ops"][3].pop("labels"),
            r"ops, entry 3 \(.*\): labels must be 8 texts of hexadecimal digits",
        ),
        (
            lambda d: d["ops"][0].update(runs=[[-1]]),
            r"run \[-1\]: how many ops it stands for must be at least 1",
        ),
        (
            lambda d: d["ops"][0].update(runs=[[10**7], [1]]),
            "it stands for 10000001 ops, more than 10000000",
        ),
        (
            lambda d: d["mesh"].update(data="4"),
            "mesh must give each axis its size, but it is {'data': '4', 'model': 2}",
        ),
        (lambda d: d.update(key=7), "key must be up to 16 hexadecimal digits, but it is 7"),
        (lambda d: d.update(arguments=[]), "arguments must be an object by path, but it is a list"),
        (lambda d: d["program"].pop("digest"), "program must have a digest, a text"),
        (lambda d: (d.pop("ops"), d.pop("program")), "it lacks program, ops"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(problem, saved, tmp_path, change, message):
    data = json.loads(without_checksum(saved[1]))
    change(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidPlan, match=message) as caught:
        tl.Plan.load(path, problem)
    assert "give another copy of it, or save it again" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "it is not JSON, or is cut off, at line 1, column 2"),
        (b"\xff\xfe", "it is not text: byte 0 is 0xff"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "not a TOAST Lab plan, it has no format"),
    ],
)
def test_what_is_no_plan_at_all_is_refused(problem, tmp_path, content, message):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(InvalidPlan, match=message):
        tl.Plan.load(path, problem)
