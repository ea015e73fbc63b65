from __future__ import annotations

import pytest

from toast_lab.runtime.hlo import Collective, collectives, group_axes, permute_axes, replica_groups

MESH = {"d": 2, "m": 4}

TABLES = """
FileNames
1 "/a/model.py"
2 "/a/other.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=4 end_column=9}
2 {file_name_id=2 function_name_id=1 line=7 end_line=7 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}

"""


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "  %ag = f32[2,16]{0,1} all-gather(%w), channel_id=1, "
            "replica_groups=[4,2]<=[2,4]T(1,0), dimensions={1}, "
            'use_global_device_ids=true, metadata={op_name="jit(f)/dot_general" stack_frame_id=2}',
            Collective("all_gather", 128, 2, ("d",), "jit(f)/dot_general", "/a/other.py:7"),
        ),
        (
            "  ROOT %ar = bf16[8,16]{1,0} all-reduce(%x), channel_id=2, "
            "replica_groups={{0,1,2,3},{4,5,6,7}}, "
            'to_apply=%add, metadata={op_name="jit(f)/sum" source_file="m.py" source_line=3}',
            Collective("all_reduce", 256, 4, ("m",), "jit(f)/sum", "m.py:3"),
        ),
        (
            "  rs = f32[4]{0} reduce-scatter(x), replica_groups=[1,8]<=[8], dimensions={0}, "
            "to_apply=add",
            Collective("reduce_scatter", 128, 8, ("d", "m"), "", ""),
        ),
        (
            "  %a2a = f32[2,8,4]{2,1,0} all-to-all(%x), "
            "replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, "
            "dimensions={1}",
            Collective("all_to_all", 256, 4, ("m",), "", ""),
        ),
        (
            "  %cp = s32[6]{0} collective-permute(%x), source_target_pairs={{0,4},{4,0}}",
            Collective("collective_permute", 24, 2, ("d",), "", ""),
        ),
        (
            "  %t = (f32[8]{0}, f32[2,2]{1,0}) all-reduce(%x, %y), "
            "replica_groups={}, to_apply=%add",
            Collective("all_reduce", 48, 8, ("d", "m"), "", ""),
        ),
        (
            "  %s = (f32[4]{0}, f32[16]{0}) all-gather-start(%x), replica_groups=[2,4]<=[8], "
            "dimensions={0}",
            Collective("all_gather", 64, 4, ("m",), "", ""),
        ),
        (
            "  %s = (f32[6]{0}, f32[6]{0}, u32[], u32[]) collective-permute-start(%x), "
            "source_target_pairs={{0,1},{1,0}}",
            Collective("collective_permute", 24, 2, ("m",), "", ""),
        ),
        (
            "  %s = f32[8]{0} all-reduce-start(%x), replica_groups={{0,3},{1,2},{4,5},{6,7}}, "
            "to_apply=%add",
            Collective("all_reduce", 32, 2, None, "", ""),
        ),
        (
            "  %s = ((f32[16]{0:T(8,128)}), f32[4]{0}) reduce-scatter-start(%x), "
            "replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add",
            Collective("reduce_scatter", 64, 4, ("m",), "", ""),
        ),
        (
            "  %s = ((f32[16]{0}, f32[8]{0}), (f32[4]{0}, f32[2]{0}), u32[]) "
            "reduce-scatter-start(%x, %y), replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%a",
            Collective("reduce_scatter", 96, 4, ("m",), "", ""),
        ),
        (
            "  %s = ((bf16[8,4]{1,0}), bf16[8,4]{1,0}) all-to-all-start(%x), "
            "replica_groups=[2,4]<=[8], dimensions={0}",
            Collective("all_to_all", 64, 4, ("m",), "", ""),
        ),
        (
            "  %s = ((f32[4]{0}, f32[2]{0}), (f32[16]{0}, f32[8]{0})) all-gather-start(%x, %y), "
            "replica_groups=[2,4]<=[8], dimensions={0}",
            Collective("all_gather", 96, 4, ("m",), "", ""),
        ),
        (
            "  %s = (f32[8]{0}, f32[2]{0}) all-reduce-start(%x, %y), "
            "replica_groups=[2,4]<=[8], to_apply=%add",
            Collective("all_reduce", 40, 4, ("m",), "", ""),
        ),
        (
            "  %s = ((f32[6]{0}, s32[2]{0}), (f32[6]{0}, s32[2]{0})) "
            "collective-permute-start(%x, %y), source_target_pairs={{0,1},{1,0}}",
            Collective("collective_permute", 32, 2, ("m",), "", ""),
        ),
        (
            "  %p = pred[16]{0} all-gather(%x), "
            "replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, dimensions={0}",
            Collective("all_gather", 16, 1, (), "", ""),
        ),
        (
            "  %q = s4[16]{0:E(4)} all-gather(%x), replica_groups=[4,2]<=[2,4]T(1,0), "
            "dimensions={0}",
            Collective("all_gather", 8, 2, ("d",), "", ""),
        ),
    ],
)
def test_one_collective(line: str, wanted: Collective) -> None:
    assert [c._replace(parts=()) for c in collectives(TABLES + line, MESH)] == [wanted]


@pytest.mark.parametrize(
    "line",
    [
        "  %d = f32[8]{0} all-reduce-done(%s)",
        "  %d = f32[8]{0} all-gather-done(%all-gather-start)",
        "  %f = f32[8]{0} fusion(%all-gather), kind=kLoop, calls=%c",
        '  %c = f32[8]{0} custom-call(%x), metadata={op_name="all-reduce(x)"}',
        "%all-reduce.1 (x: f32[]) -> f32[] {",
    ],
)
def test_what_only_mentions_a_collective_is_none(line: str) -> None:
    assert collectives(line, MESH) == []


def test_a_program_counts_every_collective_once_in_order() -> None:
    text = """
    %s = (f32[4]{0}, f32[16]{0}) all-gather-start(%x), replica_groups=[2,4]<=[8], dimensions={0}
    %d = f32[16]{0} all-gather-done(%s)
    %r = f32[16]{0} all-reduce(%d), replica_groups=[2,4]<=[8], to_apply=%add
    """
    assert [c.kind for c in collectives(text, MESH)] == ["all_gather", "all_reduce"]


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[4]", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
        ("replica_groups=[2,4]<=[2,2,2]T(1,0,2)", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("replica_groups={}", [[0, 1, 2, 3]]),
        ("", [[0, 1, 2, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=(3,2,1,0) {'b'}", [[3, 2], [1, 0]]),
        (
            "replica_groups=mesh['a'=1,'b'=2,'c'=2], device_ids=([2,2]T(1,0)) {'b'}",
            [[0, 1], [2, 3]],
        ),
        ("replica_groups=mesh['a'=4], device_ids=([4]) {'a'}", [[0, 1, 2, 3]]),
    ],
)
def test_groups_in_every_spelling(text: str, groups: list[list[int]]) -> None:
    assert sorted(replica_groups(text, 4)) == sorted(groups)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ([[0, 4], [1, 5], [2, 6], [3, 7]], ("a",)),
        ([[0, 2], [1, 3], [4, 6], [5, 7]], ("b",)),
        ([[1, 0], [2, 3], [4, 5], [6, 7]], ("c",)),
        ([[0, 1, 4, 5], [2, 3, 6, 7]], ("a", "c")),
        ([[0], [1], [2], [3], [4], [5], [6], [7]], ()),
        ([[0, 7], [1, 6], [2, 5], [3, 4]], None),
        ([[0, 1]], None),
    ],
)
def test_axes_of_groups(groups: list[list[int]], axes: tuple[str, ...] | None) -> None:
    assert group_axes(groups, {"a": 2, "b": 2, "one": 1, "c": 2}) == axes


def test_axes_of_permutes() -> None:
    assert permute_axes([[0, 1], [4, 5]], MESH) == ("m",)
    assert permute_axes([[0, 4], [1, 1]], MESH) == ("d",)
    assert permute_axes([[0, 5]], MESH) == ("d", "m")
    assert permute_axes([[0, 8]], MESH) is None


def test_a_gather_that_is_named_after_an_argument_serves_the_op_that_reads_it() -> None:
    text = """HloModule m
ENTRY %main (p: f32[16,64], x: f32[8,32]) -> f32[8,64] {
  %p = f32[16,64]{1,0} parameter(0), metadata={op_name="w"}
  %x = f32[8,32]{1,0} parameter(1), metadata={op_name="x"}
  %ag = f32[32,64]{1,0} all-gather(%p), replica_groups={{0,1}}, dimensions={0}, metadata={op_name="w"}
  %c = f32[32,64]{1,0} copy(%ag)
  ROOT %d = f32[8,64]{1,0} dot(%x, %c), metadata={op_name="toast.4/jit(f)/dot_general" source_file="m.py" source_line=7}
}
"""  # noqa: E501
    (found,) = collectives(text, {"d": 2})
    assert (found.op, found.op_name, found.source) == (4, "jit(f)/dot_general", "m.py:7")
    assert found.parts[0].op == 4


def test_an_all_to_all_of_an_array_for_each_device_is_one_of_one_array() -> None:
    """Without a dim attribute, the arrays are pieces of one array.

    With one, they would be several merged collectives, each of them cut along that dim.
    """
    line = (
        "  %a2a = (f32[1,8]{1,0}, f32[1,8]{1,0}, f32[1,8]{1,0}, f32[1,8]{1,0}) "
        "all-to-all(%w, %x, %y, %z), replica_groups=[2,4]<=[8]"
    )
    (whole,) = collectives(TABLES + line, MESH)
    assert [(part.bytes, part.dtype) for part in whole.parts] == [(128, "f32")]
    (merged,) = collectives(TABLES + line + ", dimensions={1}", MESH)
    assert [part.bytes for part in merged.parts] == [32] * 4


LOST = """HloModule m
%fused (a: f32[64]) -> f32[64] {
  %a = f32[64]{0} parameter(0)
  ROOT %t = f32[64]{0} tanh(%a), metadata={op_name="toast.2/jit(f)/tanh"}
}
ENTRY %main (p: f32[64], q: f32[64]) -> f32[64] {
  %p = f32[64]{0} parameter(0)
  %q = f32[64]{0} parameter(1)
  %made = MADE
  %b = f32[64]{0} bitcast(%made)
  %rs = ((f32[64]{0}), f32[32]{0}) reduce-scatter-start(%b), replica_groups={{0,1}}, to_apply=%s
  %rd = f32[32]{0} reduce-scatter-done(%rs)
  ROOT %n = f32[32]{0} negate(%rd), metadata={op_name="toast.9/jit(f)/neg"}
}
"""


@pytest.mark.parametrize(
    ("made", "op", "name"),
    [
        ('f32[64]{0} dot(%p, %q), metadata={op_name="toast.4/jit(f)/dot"}', 4, "jit(f)/dot"),
        ("f32[64]{0} fusion(%p), kind=kLoop, calls=%fused", 2, ""),
        ("f32[64]{0} add(%p, %q)", 9, "jit(f)/neg"),
    ],
)
def test_a_sum_that_lost_its_name_serves_what_makes_it_or_else_what_reads_it(
    made: str, op: int, name: str
) -> None:
    (found,) = collectives(LOST.replace("MADE", made), {"d": 2})
    assert (found.kind, found.bytes, found.op, found.op_name) == ("reduce_scatter", 256, op, name)
    assert found.parts[0].op == op
