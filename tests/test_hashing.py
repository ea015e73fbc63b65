"""Classes of equal rows are exact, even if hashes collide."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toast_lab import hashing
from toast_lab.ragged import Ragged, row_starts

ROWS = st.lists(
    st.tuples(
        st.integers(-2, 2), st.sampled_from([0.0, 0.5]), st.lists(st.integers(0, 2), max_size=3)
    )
)


def ragged(rows):
    return Ragged(
        row_starts([len(row) for row in rows]), np.asarray([x for row in rows for x in row], int)
    )


@pytest.mark.parametrize("colliding", [False, True])
@given(ROWS)
def test_classes_are_those_of_equal_tuples(colliding, items):
    columns = (
        np.asarray([i[0] for i in items], int),
        np.asarray([i[1] for i in items], float),
        ragged([i[2] for i in items]),
    )
    with pytest.MonkeyPatch.context() as patch:
        if colliding:
            patch.setattr(hashing, "mix", lambda x: x & np.uint64(1))
        classes = hashing.classes(len(items), *columns)
    keys = {}
    expected = [keys.setdefault((i[0], i[1], tuple(i[2])), len(keys)) for i in items]
    assert classes.label.tolist() == expected
    assert classes.first.tolist() == [expected.index(k) for k in range(len(keys))]
    assert classes.sizes.tolist() == [expected.count(k) for k in range(len(keys))]


def test_rows_of_a_slice_are_hashed_as_they_stand():
    packed = ragged([[1, 2], [3], [1, 2], []])
    whole = hashing.rows(packed.ptr, packed.flat)
    part = hashing.rows(packed.ptr[1:], packed.flat)
    assert whole[1:].tolist() == part.tolist()
    assert whole[0] == whole[2] != whole[1]
