"""Ragged arrays keep rows of different lengths in one array."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from toast_lab.ragged import Ragged, gather, row_numbers, row_starts

ROWS = st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=6)


def ragged(rows):
    flat = np.asarray([number for row in rows for number in row], int)
    return Ragged(row_starts([len(row) for row in rows]), flat)


@given(ROWS, st.lists(st.integers(0, 5), max_size=8))
def test_rows_come_out_as_they_went_in(rows, wanted):
    packed = ragged(rows)
    assert [packed.row(i).tolist() for i in range(len(rows))] == rows
    assert packed.lengths.tolist() == [len(row) for row in rows]
    assert packed.row_numbers.tolist() == [i for i, row in enumerate(rows) for _ in row]
    wanted = [i for i in wanted if i < len(rows)]
    part = packed.take(wanted)
    assert [part.row(i).tolist() for i in range(len(wanted))] == [rows[i] for i in wanted]


def test_gather_gives_positions_of_whole_rows():
    packed = ragged([[1, 2], [3], [], [4, 5, 6]])
    assert gather(packed.ptr, [3, 2, 0]).tolist() == [3, 4, 5, 0, 1]
    assert row_numbers(packed.ptr).tolist() == [0, 0, 1, 3, 3, 3]


@given(st.lists(st.integers(0, 4), max_size=20))
def test_by_key_has_the_positions_of_every_key_in_order(keys):
    positions = Ragged.by_key(np.asarray(keys, int), 5)
    assert [positions.row(key).tolist() for key in range(5)] == [
        [i for i, other in enumerate(keys) if other == key] for key in range(5)
    ]
