"""Packs: compiled code reads the values that Python wrote.

Values that do not fit the annotations are refused.
"""

from __future__ import annotations

import pickle
import threading
from typing import NamedTuple

import numpy as np
import pytest

from tests.helpers import from_python
from toast_lab import kernels
from toast_lab.cost import kernel as cost_kernel
from toast_lab.kernels import helper
from toast_lab.packs import (
    BoolArray,
    Field,
    Float64Matrix,
    Int32Array,
    PackMaker,
    UInt64,
    fields,
    packed,
    size,
)
from toast_lab.search.mcts.tree import slot


@packed
class Inner(NamedTuple):
    """A pack within a pack."""

    flags: BoolArray
    scale: float


@packed
class Outer(NamedTuple):
    """A pack with every kind of field."""

    rows: Float64Matrix
    inner: Inner
    seed: UInt64
    count: int
    yes: bool
    place: Int32Array


@helper
def _total(o: Outer) -> float:
    """Read every field and write to one array."""
    found = 0.0
    for i in range(o.rows.shape[0]):
        for j in range(o.rows.shape[1]):
            found += o.rows[i, j] * (i + 1)
    for k in range(o.place.shape[0]):
        o.place[k] += k
        if o.inner.flags[k]:
            found += o.inner.scale
    return found + o.count + (1000.0 if o.yes else 0.0) + float(o.seed >> np.uint64(60))


total = from_python(_total)


def made(**changes: object) -> Outer:
    inner = Inner(np.array([True, False, True]), 0.5)
    whole = Outer(np.arange(6.0).reshape(2, 3), inner, 2**63 + 5, -7, True, np.zeros(3, np.int32))
    return whole._replace(**changes)


def test_compiled_code_reads_and_writes_what_python_sees() -> None:
    outer = made()
    assert total(outer) == (0 + 1 + 2) + 2 * (3 + 4 + 5) + 2 * 0.5 - 7 + 1000 + 8
    assert outer.place.tolist() == [0, 1, 2]


def test_read_only_arrays_are_of_the_same_type() -> None:
    outer = made()
    outer.rows.flags.writeable = False
    total(outer)
    assert len(_total.signatures) == 1


def test_a_pack_is_still_a_named_tuple() -> None:
    outer = made()
    assert isinstance(outer, tuple)
    assert outer._replace(count=3).count == 3
    assert type(outer._replace(count=3)) is Outer
    total(outer)
    unpickled = pickle.loads(pickle.dumps(outer))
    assert type(unpickled) is Outer
    assert "_buffer_" not in vars(unpickled), "an address of another process"
    assert total(unpickled) == total(outer)


def test_slots_follow_one_another() -> None:
    assert [(f.name, f.slot) for f in fields(Outer)] == [
        ("rows", 0),
        ("inner", 3),
        ("seed", 6),
        ("count", 7),
        ("yes", 8),
        ("place", 9),
    ]
    assert size(Outer) == 11


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": np.zeros((2, 3), np.float32)}, "Outer.rows is float32"),
        ({"rows": np.zeros(3)}, "of rank 2"),
        ({"rows": np.zeros((3, 2)).T}, "not contiguous"),
        ({"inner": Inner(np.zeros(3, np.int8), 1.0)}, "Inner.flags is int8"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        total(made(**change))


def test_threads_that_ask_at_once_get_one_buffer() -> None:
    """Otherwise one thread's buffer would be freed while its kernel reads it."""
    for _ in range(200):
        outer, addresses, go = made(), [], threading.Barrier(4)

        def ask(
            outer: Outer = outer, addresses: list[int] = addresses, go: threading.Barrier = go
        ) -> None:
            go.wait()
            addresses.append(outer._address_)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(addresses) == {outer._address_}


def test_packs_made_after_an_example_are_packs_of_their_own() -> None:
    make = PackMaker(made())
    first, second = make(), make()
    for pack in (first, second):
        assert type(pack) is Outer
        assert type(pack.inner) is Inner
        assert not any(a.any() for a in (pack.rows, pack.place, pack.inner.flags))
        assert all(a.flags.aligned for a in (pack.rows, pack.place))
    first.rows[:] = made().rows
    first.inner.flags[:] = made().inner.flags
    assert total(first) == total(made())
    assert first.place.tolist() == [0, 1, 2]
    assert total(second) == -7 + 1000 + 8
    # An inner pack has its own buffer, and a changed pack is written again
    assert first.inner._address_ != first._address_
    assert total(first._replace(count=3)) == total(made()) + 10
    assert total(pickle.loads(pickle.dumps(first))) == total(made())


def test_arrays_of_another_type_are_refused_before_they_are_misread() -> None:
    keys = np.array([7, 0, 0, 0], np.uint64)
    assert slot(keys, np.uint64(7)) >= 0
    with pytest.raises(
        TypeError, match=r"tree:slot is called with array\(int32.*not array\(uint64"
    ):
        slot(keys.astype(np.int32), np.uint64(7))
    with pytest.raises(TypeError, match=r"1d, A\), not array\(uint64, 1d, C\)"):
        slot(np.zeros(8, np.uint64)[::2], np.uint64(7))


def test_python_is_refused_what_only_kernels_can_call():
    with pytest.raises(TypeError, match=r"test_packs:_total is called by kernels only"):
        _total(made())


@pytest.mark.parametrize(("pack", "name"), [("OpFacts", "narrow_bytes"), ("PriceInputs", "times")])
def test_a_kernel_is_told_apart_by_the_fields_of_its_packs(
    monkeypatch: pytest.MonkeyPatch, pack: str, name: str
) -> None:
    """Rules of the price declare fields outside of the file of the class."""
    digest = kernels._digest(cost_kernel.price_steps)
    dropped = []

    def fewer(of: type) -> tuple[Field, ...]:
        dropped.extend(field for field in fields(of) if (of.__name__, field.name) == (pack, name))
        return tuple(field for field in fields(of) if field not in dropped)

    monkeypatch.setattr(kernels, "fields", fewer)
    assert kernels._digest(cost_kernel.price_steps) != digest
    assert dropped
