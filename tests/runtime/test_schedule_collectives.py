"""The scheduler's text and the compiled text describe the same collectives."""

from __future__ import annotations

from pathlib import Path

import pytest

from toast_lab.runtime import hlo, hlo_text, schedule_collectives, schedule_steps, schedule_text
from toast_lab.runtime.schedule import START, ScheduleStep

TEXTS = Path(__file__).parent / "hlo_texts"


def read(name: str) -> tuple[schedule_text.ScheduleText, hlo_text.Module]:
    text, why = schedule_text.parse((TEXTS / f"{name}.schedule.txt").read_text())
    assert text is not None, why
    return text, hlo_text.parse((TEXTS / f"{name}.hlo").read_text())


@pytest.mark.parametrize("name", ["step_v6e", "scheduled_h100"])
def test_groups_are_those_of_the_compiled_text(name: str) -> None:
    text, module = read(name)
    compiled = {
        instruction.name: instruction
        for computation in module.computations.values()
        for instruction in computation.instructions
    }
    compared = 0
    for one in text.instructions.values():
        same = compiled.get(one.name)
        if one.block and same is not None and "permute" not in one.opcode:
            groups = schedule_collectives.device_groups(one.block, 8)
            assert sorted(map(sorted, groups)) == sorted(map(sorted, hlo.device_groups(same, 8)))
            compared += 1
    assert compared >= 3


@pytest.mark.parametrize(
    ("block", "groups"),
    [
        ({}, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ({"replica_groups": [{"replica_ids": ["0", "2"]}, {"replica_ids": ["1", "3"]}]}, None),
        (
            {
                "iota_replica_group_list": [
                    {
                        "num_replica_groups": ["2"],
                        "num_devices_per_group": ["4"],
                        "iota_reshape_dims": ["4", "2"],
                        "iota_transpose_perm": ["1", "0"],
                    }
                ]
            },
            [[0, 2, 4, 6], [1, 3, 5, 7]],
        ),
        (
            {
                "mesh_axes_replica_group_list": [
                    {
                        "mesh": [{"axes": [{"size": ["4"]}, {"size": ["2"]}]}],
                        "axes": [{}],  # the first axis, since zeros are omitted
                    }
                ]
            },
            [[0, 2, 4, 6], [1, 3, 5, 7]],
        ),
        (
            {
                "mesh_axes_replica_group_list": [
                    {
                        "mesh": [{"axes": [{"size": ["8"]}]}],
                        # [1, 2, 4]: the major half of the axis
                        "axes": [{"sub_axis_info": [{"pre_size": ["1"], "size": ["2"]}]}],
                    }
                ]
            },
            [[0, 4], [1, 5], [2, 6], [3, 7]],
        ),
        ({"source_target_pairs": [{"target": ["1"]}, {"source": ["1"]}]}, [[0, 1], [1, 0]]),
    ],
)
def test_every_form_of_groups_is_read(
    block: schedule_collectives.Block, groups: list[list[int]] | None
) -> None:
    assert schedule_collectives.device_groups(block, 8) == (groups or [[0, 2], [1, 3]])


def test_the_larger_side_counts_and_several_arrays_add_up() -> None:
    def array(kind: str, *dims: int) -> dict[str, list[object]]:
        return {"element_type": [kind], "dimensions": [str(size) for size in dims]}

    several = {
        "tuple_shapes": [
            {"tuple_shapes": [array("BF16", 4, 2), array("F32", 8)]},
            {"tuple_shapes": [array("BF16", 16, 2), array("F32", 32)]},
        ]
    }
    assert schedule_collectives.local_bytes({"shape": [several]}) == 16 * 2 * 2 + 32 * 4
    assert schedule_collectives.local_bytes({"shape": [array("PRED", 3)]}) == 3
    assert schedule_collectives.local_bytes({}) == 0


SHAPE = """
      shape {
        element_type: TUPLE
        tuple_shapes {
          element_type: BF16
          dimensions: 16
          dimensions: 64
          layout {
            minor_to_major: 1
            tiles {
              dimensions: 8
              dimensions: 128
            }
          }
        }
        tuple_shapes {
          element_type: BF16
          dimensions: 32
          dimensions: 64
        }
      }"""


def test_a_collective_that_was_renamed_after_scheduling_can_still_be_priced() -> None:
    """Its bytes are read from the schedule, so that it is priced by them.

    Without bytes it would be taken to last as long as all that hides it.
    """
    raw = (TEXTS / "scheduled_h100.schedule.txt").read_text()
    head = '      opcode: "all-gather-start"'
    text, why = schedule_text.parse(raw.replace(head, head + SHAPE, 1))
    assert text is not None, why
    compiled = (TEXTS / "scheduled_h100.hlo").read_text()
    steps = schedule_steps.steps_of(
        text,
        hlo_text.parse(compiled.replace("all-gather-start", "all-gather-start.renamed")),
        {"d": 2, "m": 4},
        clocks=schedule_steps.Clocks({}, {}),
    )
    (gather,) = (step for step in steps if step.role == START and step.kind == "all_gather")
    assert gather.time_s is None
    assert (gather.bytes, gather.axes) == (32 * 64 * 2, ("d",))


def permute_of(schedule: str, compiled: str) -> ScheduleStep:
    """The permute of a schedule beside a compiled text."""
    text, why = schedule_text.parse(schedule)
    assert text is not None, why
    steps = schedule_steps.steps_of(
        text,
        hlo_text.parse(compiled),
        {"d": 2, "m": 4},
        clocks=schedule_steps.Clocks({}, {}),
    )
    (permute,) = (step for step in steps if step.role == START and "permute" in step.kind)
    return permute


def test_a_name_that_the_compiled_text_gives_to_another_collective_describes_nothing() -> None:
    """XLA makes names anew after scheduling; groups of a sum are no pairs of a permute."""
    schedule = (TEXTS / "scheduled_h100.schedule.txt").read_text()
    compiled = (TEXTS / "scheduled_h100.hlo").read_text()
    known = permute_of(schedule, compiled)
    assert (known.bytes, known.axes, len(known.pairs)) == (16 * 64 * 4, ("d", "m"), 8)
    pairs = "{{0,0},{1,1},{4,2},{5,3},{2,4},{3,5},{6,6},{7,7}}"
    reused = compiled.replace("(f32[16,64]{1,0}, f32[16,64]{1,0}) collective-permute-start(", "X(")
    reused = reused.replace("X(", "f32[16,64]{1,0} all-reduce-start(").replace(
        f"source_target_pairs={pairs}", "replica_groups={{0,1,2,3},{4,5,6,7}}"
    )
    assert reused.count("%collective-permute-start = f32[16,64]{1,0} all-reduce-start(") == 1
    unknown = permute_of(schedule, reused)
    assert (unknown.time_s, unknown.bytes, unknown.pairs) == (None, 0.0, ())


def test_a_permute_without_pairs_sends_nothing() -> None:
    schedule = (TEXTS / "scheduled_h100.schedule.txt").read_text()
    head = '      opcode: "collective-permute-start"'
    permute = permute_of(
        schedule.replace(head, head + SHAPE, 1),
        (TEXTS / "scheduled_h100.hlo").read_text().replace("collective-permute-start", "gone"),
    )
    assert (permute.bytes, permute.axes, permute.pairs) == (32 * 64 * 2, (), ())
