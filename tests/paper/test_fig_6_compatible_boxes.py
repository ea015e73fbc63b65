"""Figure 6: compatible conflicts form a box; paths that cross the box make them incompatible."""

import jax
import jax.numpy as jnp

from tests.helpers import traced
from toast_lab.conflicts.compatibility import CROSSED, JOINED

S = jax.ShapeDtypeStruct((8, 4), jnp.float32)


def boxes(fn):
    analysis = traced(fn, S, dim_names={"x": ("S", "T")})
    return analysis, [box.outcome for box in analysis.sets.boxes]


def test_left_a_plain_use_is_compatible():
    def fn(x):
        z = x @ x.T
        return jnp.sin(z)

    analysis, outcomes = boxes(fn)
    assert outcomes == [JOINED]
    assert len(analysis.compatibility_sets) == 1


def row_sums_as_columns(x):
    """Link the row name of z to the sum's column name, through reduction and broadcast."""
    z = x @ x.T
    return z + jnp.sum(z, axis=1)[None, :]


def test_middle_a_path_across_the_box_makes_the_conflicts_incompatible():
    analysis, outcomes = boxes(row_sums_as_columns)
    assert CROSSED in outcomes
    assert len(analysis.compatibility_sets) == 2


def test_right_a_path_across_the_other_way():
    def fn(x):
        z = x @ x.T
        return z + jnp.sum(z, axis=0)[:, None]

    analysis, outcomes = boxes(fn)
    assert CROSSED in outcomes
    assert len(analysis.compatibility_sets) == 2


def test_separated_sets_are_resolved_independently():
    analysis, _ = boxes(row_sums_as_columns)
    group = analysis.groups[analysis.group_index("S")]
    assert len(group.resolutions) == 2


def test_a_crossed_box_may_still_be_joined_round_a_corner():
    """In z + z.T the direct box is crossed, but the boxes through the transpose are not.

    The closure is transitive, so they join the conflicts.

    The sides of the set then say that rows of z go with columns of the sum.
    """

    def fn(x):
        z = x @ x.T
        return z + z.T

    analysis, outcomes = boxes(fn)
    assert CROSSED in outcomes
    (only,) = analysis.compatibility_sets
    first, last = analysis.conflicts[only.conflicts[0]], analysis.conflicts[only.conflicts[-1]]
    assert first.sides[0] < first.sides[1]
    assert last.sides[0] > last.sides[1]
