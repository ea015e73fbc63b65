"""The structure of HLO texts is read correctly: calls, trip counts and the compiler's estimates.

The texts are written by hand.
"""

from __future__ import annotations

import pytest

from toast_lab.runtime import hlo, hlo_text
from toast_lab.runtime.compile_child import cycles, loops
from toast_lab.runtime.schedule_steps import tpu_clocks

MESH = {"d": 2, "m": 2}
CYCLES = 'backend_config={"window_config":{"estimated_cycles":"%d"}}'

PROGRAM = """HloModule m, entry_computation_layout={(f32[8]{0:T(8)})->f32[8]{0:T(8)}}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%inside (p: f32[8]) -> f32[8] {
  %p = f32[8]{0:T(8)} parameter(0)
  ROOT %n = f32[8]{0:T(8)} negate(%p), metadata={op_name="toast.7/jit(f)/neg"}
}

%scatters (q: f32[8]) -> f32[4] {
  %q = f32[8]{0} parameter(0)
  %ar.3 = f32[8]{0} all-reduce(%q), channel_id=3, replica_groups={{0,2},{1,3}}, to_apply=%add
  %zero = u32[] constant(0)
  ROOT %cut = f32[4]{0} dynamic-slice(%ar.3, %zero), dynamic_slice_sizes={4}
}

%piece.0 (w: f32[4]) -> f32[8] {
  %w = f32[4]{0} parameter(0)
  ROOT %ag.0 = f32[8]{0} all-gather(%w), channel_id=9, replica_groups=[2,2]<=[4], dimensions={0}, FRONT
}

%piece.1 (w: f32[4]) -> f32[8] {
  %w = f32[4]{0} parameter(0)
  ROOT %ag.1 = f32[8]{0} all-gather(%w), channel_id=9, replica_groups=[2,2]<=[4], dimensions={0}, FRONT
}

%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %t = (s32[]{:T(128)}, f32[8]{0:T(8)}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %two = s32[] constant(2)
  %next = s32[] add(%i, %two)
  %x = f32[8]{0:T(8)} get-tuple-element(%t), index=1
  %f = f32[8]{0:T(8)} fusion(%x), kind=kLoop, calls=%inside, INSIDE
  %r = f32[8]{0:T(8)} all-reduce(%f), channel_id=1, replica_groups=[2,2]<=[4], to_apply=%add, NAMED
  ROOT %out = (s32[], f32[8]{0:T(8)}) tuple(%next, %r)
}

%test (t: (s32[], f32[8])) -> pred[] {
  %t = (s32[], f32[8]{0:T(8)}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %limit = s32[] constant(11)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0:T(8)} parameter(0)
  %start = s32[] constant(1)
  %init = (s32[], f32[8]{0:T(8)}) tuple(%start, %x)
  %loop = (s32[], f32[8]{0:T(8)}) while(%init), condition=%test, body=%body, metadata={op_name="toast.4/while"}
  %y = f32[8]{0:T(8)} get-tuple-element(%loop), index=1
  %rs = f32[4]{0} fusion(%y), kind=kCustom, calls=%scatters, metadata={op_name="toast.20/jit(f)/dot"}, OWN
  %begin = f32[8]{0} fusion(%rs), kind=kCustom, calls=%piece.0, metadata={op_name="toast.30/jit(f)/dot"}
  %end = f32[8]{0} fusion(%rs), kind=kCustom, calls=%piece.1, metadata={op_name="toast.30/jit(f)/dot"}
  ROOT %copied = f32[8]{0:T(8)} copy(%end), COPY
}
"""  # noqa: E501


def program(inside: int = 100, own: int = 0) -> str:
    return (
        PROGRAM.replace("FRONT", 'frontend_attributes={chain_id="0"}')
        .replace("INSIDE", CYCLES % inside)
        .replace(
            "NAMED", 'metadata={op_name="toast.6/jit(f)/sum" source_file="m.py" source_line=3}'
        )
        .replace("OWN", CYCLES % own)
        .replace("COPY", CYCLES % 7)
    )


def test_a_loop_counts_from_its_start_by_its_step() -> None:
    """The counter takes the values 1, 3, 5, 7 and 9: five rounds below 11."""
    module = hlo_text.parse(program())
    times = {e.computation.name: e.times for e in hlo_text.executed(module)}
    assert times == {
        "main": 1.0,
        "test": 6.0,
        "body": 5.0,
        "inside": 5.0,
        "scatters": 1.0,
        "piece.0": 1.0,
        "piece.1": 1.0,
    }


def test_what_a_condition_sums_over_devices_runs_once_more_than_the_body() -> None:
    """A loop that runs until all devices have converged tests its condition once more."""
    summed = (
        "  %most = s32[] all-reduce(%i), channel_id=4, replica_groups={{0,2},{1,3}}, "
        'to_apply=%max, metadata={op_name="toast.3/while/cond/reduce_max"}\n'
        "  ROOT %less = pred[] compare(%most, %limit)"
    )
    text = program().replace("  ROOT %less = pred[] compare(%i, %limit)", summed)
    assert text != program()
    (found,) = [c for c in hlo.collectives(text, MESH, lambda _: 5.0) if c.op == 3]
    assert (found.kind, found.axes, found.times) == ("all_reduce", ("d",), 6.0)


@pytest.mark.parametrize(
    ("old", "new", "rounds"),
    [
        ("direction=LT", "direction=LE", 6.0),
        ("constant(11)", "constant(10)", 5.0),
        ("constant(11)", "constant(1)", 0.0),
        ("%start = s32[] constant(1)", "%start = s32[] constant(5)", 3.0),
        ("%start = s32[] constant(1)", "%start = s32[] custom-call()", None),
        ("body=%body,", 'body=%body, backend_config={"known_trip_count":{"n":"42"}},', 42.0),
        ("%next = s32[] add(%i, %two)", "%next = s32[] multiply(%i, %two)", None),
        ("direction=LT", "direction=NE", None),
    ],
)
def test_trip_counts(old: str, new: str, rounds: float | None) -> None:
    text = program().replace(old, new)
    assert text != program()
    module = hlo_text.parse(text)
    entry = module.computations[module.entry]
    assert hlo_text.trip_count(module, entry, entry.by_name["loop"]) == rounds


def test_a_loop_whose_rounds_the_text_does_not_tell_is_asked_for_by_op() -> None:
    module = hlo_text.parse(program().replace("direction=LT", "direction=NE"))
    ours = {4: 12.0}
    assert list(loops(module, lambda i: ours.get(hlo.op_of(i)))) == [(4, 12.0)]
    assert list(loops(module)) == [(4, 1.0)]


def test_cycles_are_added_up_by_op_and_round() -> None:
    """A fusion that names no op itself counts for the op of its instructions."""
    assert cycles(hlo_text.parse(program(inside=100, own=30))) == {7: 500.0, 20: 30.0, -1: 7.0}


def test_cycles_that_the_compiler_cannot_tell_are_none() -> None:
    module = hlo_text.parse(program(inside=(1 << 63) - 1, own=30))
    assert cycles(module) == {20: 30.0, -1: 7.0}
    assert set(tpu_clocks(module, 1e9).compute_s.values()) == {30e-9, 7e-9}


def test_an_all_reduce_that_is_only_sliced_in_its_fusion_is_a_reduce_scatter() -> None:
    found = {c.op: c for c in hlo.collectives(program(), MESH)}
    assert (found[20].kind, found[20].bytes, found[20].axes, found[20].op_name) == (
        "reduce_scatter",
        32,
        ("d",),
        "jit(f)/dot",
    )
    assert (found[6].kind, found[6].times, found[6].source) == ("all_reduce", 5.0, "m.py:3")


def test_a_sliced_all_reduce_that_is_also_used_whole_is_none() -> None:
    text = program().replace("  ROOT %cut = ", "  %kept = f32[8]{0} negate(%ar.3)\n  ROOT %cut = ")
    assert {c.op: c.kind for c in hlo.collectives(text, MESH)}[20] == "all_reduce"


def test_the_pieces_of_a_spread_gather_are_one() -> None:
    gathers = [c for c in hlo.collectives(program(), MESH) if c.kind == "all_gather"]
    assert [(c.op, c.bytes, c.axes, c.parts) for c in gathers] == [
        (30, 32, ("m",), (hlo.CollectivePart(30, 32, "f32"),))
    ]


def test_a_merged_collective_is_taken_apart_by_what_makes_its_arrays() -> None:
    text = """ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0:T(8)} parameter(0)
  %one = f32[8]{0:T(8)(2,1)} negate(%x), metadata={op_name="toast.3/neg"}
  %b = f32[2,4]{1,0} bitcast(%one)
  %two = bf16[4]{0} convert(%x), metadata={op_name="toast.5/convert"}
  %both = (f32[2,4]{1,0:T(8,128)}, bf16[4]{0}) all-reduce(%b, %two), replica_groups={}, metadata={op_name="toast.5/x"}
  ROOT %g = f32[2,4]{1,0} get-tuple-element(%both), index=0
}"""  # noqa: E501
    (found,) = hlo.collectives(text, MESH)
    assert (found.bytes, found.op) == (40, 5)
    assert found.parts == (hlo.CollectivePart(3, 32, "f32"), hlo.CollectivePart(5, 8, "bf16"))


def test_a_merged_gather_is_taken_apart_by_what_reads_it() -> None:
    text = """ENTRY %main (x: f32[8]) -> f32[16] {
  %x = f32[8]{0} parameter(0)
  %y = f32[4]{0} parameter(1)
  %both = (f32[16]{0}, f32[8]{0}) all-gather(%x, %y), replica_groups=[2,2]<=[4], metadata={op_name="toast.1/x"}
  %g = f32[16]{0} get-tuple-element(%both), index=0
  %h = f32[8]{0} get-tuple-element(%both), index=1
  %n = f32[8]{0} negate(%h), metadata={op_name="toast.9/neg"}
  ROOT %m = f32[16]{0} negate(%g), metadata={op_name="toast.8/neg"}
}"""  # noqa: E501
    (found,) = hlo.collectives(text, MESH)
    assert found.parts == (hlo.CollectivePart(8, 64, "f32"), hlo.CollectivePart(9, 32, "f32"))
