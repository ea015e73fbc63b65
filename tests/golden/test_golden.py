"""Golden texts, reviewed as diffs: what the analysis says and what plans become.

``pytest tests/golden --snapshot-update`` rewrites them; no timings, hashes or dictionary orders are
in them.
"""

import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from tests.helpers import analysed, plan, small_transformer
from toast_lab.conflicts.analysis import annotated_listing, names_listing
from toast_lab.cost.problem import Problem
from toast_lab.lowering.listing import listing


class Text(SingleFileSnapshotExtension):
    """One .txt file a snapshot."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"


@pytest.fixture
def golden(snapshot):
    return snapshot.use_extension(Text)


def conflicts_text(analysis):
    """Sets, their conflicts with sides, and where they stand."""
    program, lines = analysis.program, []
    for s in analysis.compatibility_sets:
        lines.append(
            f"set {s.index}: colour {analysis.colour_name[s.colour]}, resolution {s.resolution}, "
            f"flipped {s.flipped}"
        )
        for k in s.conflicts:
            conflict = analysis.conflicts[k]
            place = conflict.places[0]
            where = "definition" if place.use < 0 else "use"
            sides = " | ".join(analysis.name_text[n] for n in conflict.sides)
            lines.append(f"  {sides}  at the {where} of {program.value_name[place.value]}")
    return "\n".join(lines)


def forward():
    return small_transformer(mode="forward")


@pytest.mark.parametrize("model", ["mlp", "xxt", "attention"])
def test_names(model, golden):
    assert names_listing(analysed(model)) == golden


def test_transformer_colours(golden):
    assert annotated_listing(forward()) == golden


def test_transformer_conflicts(golden):
    assert conflicts_text(forward()) == golden


PLANS = {
    "data": [("batch", "d")],
    "megatron": [("batch", "d"), ("hidden", "m"), ("heads", "m"), ("vocab", "m")],
    "sequence": [("batch", "d"), ("sequence", "m", 1)],
}


@pytest.mark.parametrize("name", PLANS)
def test_transformer_plans(name, golden):
    problem = Problem(forward(), {"d": 2, "m": 4})
    assert listing(problem, plan(problem, *PLANS[name])) == golden
