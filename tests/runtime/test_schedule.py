"""The compiler's schedule is read, replayed, searched for exposed time, and kept.

The texts are XLA's own, for ``small_step`` (v6e, H100) and for four layers in a loop (B200),
without the parts that are not read (shapes, layouts, literals).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_compile import needs_libtpu, scanned
from tests.runtime.test_gpu_compile import needs_wheels, result
from tests.runtime.test_run import MESH, plan_of, small_step
from toast_lab import isolate
from toast_lab.errors import RunFailed
from toast_lab.runtime import hlo_text, schedule_steps, schedule_text
from toast_lab.runtime.compile import compile_plan
from toast_lab.runtime.compiled import Compiled
from toast_lab.runtime.schedule import (
    COMPUTE,
    DONE,
    LOOP,
    MAX_MEMORY_POINTS,
    START,
    SYNC,
    Schedule,
    ScheduleStep,
    replay,
)

TEXTS = Path(__file__).parent / "hlo_texts"
ACTIONS = [("batch", "d"), ("inner", "d")]


def text_of(name: str) -> schedule_text.ScheduleText:
    text, why = schedule_text.parse((TEXTS / f"{name}.schedule.txt").read_text())
    assert text is not None, why
    return text


def replayed(name: str, price_s: Any = lambda _: None) -> Schedule:
    module = hlo_text.parse((TEXTS / f"{name}.hlo").read_text())
    if "v6e" in name:
        clocks = schedule_steps.tpu_clocks(module, 1.75e9)
    else:
        architecture = "sm_90" if "h100" in name else "sm_100"
        clocks = schedule_steps.gpu_clocks(module, architecture, 8)
    mesh = {"d": 8} if name.startswith("scan") else MESH
    return replay(schedule_steps.steps_of(text_of(name), module, mesh, clocks=clocks), price_s)


# -- the text --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["step_v6e", "scheduled_h100"])
def test_every_scheduled_instruction_has_its_name_its_op_and_its_times(name: str) -> None:
    raw = (TEXTS / f"{name}.schedule.txt").read_text()
    text = text_of(name)
    rows = text.scheduled[text.entry]
    assert len(rows) == raw.count("peak_memory_after") > 20
    assert text.cycle_s == {"step_v6e": 1e-6 / 1750, "scheduled_h100": 1e-6}[name]
    assert all(row.end_s >= row.start_s for row in rows)
    gathers = [row for row in rows if row.instruction.opcode.startswith("all-gather")]
    assert gathers
    assert all(row.instruction.op == 4 for row in gathers)
    assert max(row.memory_bytes or 0 for row in rows) > 1000


def test_the_names_of_the_schedule_are_those_of_the_compiled_text() -> None:
    module = hlo_text.parse((TEXTS / "scheduled_h100.hlo").read_text())
    compiled = module.computations[module.entry].by_name
    text = text_of("scheduled_h100")
    starts = [row.instruction for row in text.scheduled[text.entry]]
    names = {each.name for each in starts if each.opcode.endswith("-start")}
    assert len(names) == 4
    assert names <= set(compiled)


def test_a_program_that_is_one_loop_has_the_order_of_its_entry() -> None:
    """XLA schedules only computations with asynchronous parts, so the entry keeps its order."""
    text = text_of("scan_b200")
    opcodes = [row.instruction.opcode for row in text.scheduled[text.entry]]
    assert "while" in opcodes
    assert all(row.memory_bytes is None for row in text.scheduled[text.entry])


def test_a_text_that_is_cut_off_anywhere_gives_no_schedule_and_a_reason() -> None:
    lines = (TEXTS / "scheduled_h100.schedule.txt").read_text().splitlines()
    for end in (*range(0, len(lines) - 1, 7), len(lines) - 1):
        text, why = schedule_text.parse("\n".join(lines[:end]))
        assert text is None, end
        assert why.startswith("the compiler's schedule cannot be read: "), end


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("cycles_per_microsecond: 1", "cycles_per_second: 1", "does not say how long a cycle is"),
        ("cycles_per_microsecond: 1", "cycles_per_microsecond: nan", "has no number: 'nan'"),
        ("entry_computation_id", "entry_id", "no schedule of the program's entry computation"),
        ("hlo_module {", "hlo_module {\n}\n}", "closes what was never opened"),
        ("  name:", "  <binary>\n  name:", "is not a field: '<binary>'"),
        ("end_timestamp_cycles: ", "end_timestamp_cycles: -", "ends before it starts"),
        ("computation_schedules", "schedules", "no schedule of the program's entry computation"),
        ("operand_ids: ", "operand_ids: x", "has no whole number: 'x"),
    ],
)
def test_a_text_of_another_version_gives_no_schedule_and_a_reason(
    old: str, new: str, words: str
) -> None:
    raw = (TEXTS / "scheduled_h100.schedule.txt").read_text()
    assert old in raw
    text, why = schedule_text.parse(raw.replace(old, new, 1 if "{" in new else -1))
    assert text is None
    assert words in why


def test_an_instruction_that_the_module_has_not_is_no_schedule() -> None:
    raw = (TEXTS / "scheduled_h100.schedule.txt").read_text()
    broken = raw.rpartition("    id: ")
    text, why = schedule_text.parse(broken[0] + "    id: 9" + broken[2])
    assert text is None
    assert "which it does not define" in why


# -- with clocks -----------------------------------------------------------------------------------


def test_on_tpus_computing_is_the_estimated_cycles() -> None:
    """Estimated cycles are used, since the schedule gives every little fusion 3,600 cycles."""
    module = hlo_text.parse((TEXTS / "step_v6e.hlo").read_text())
    cycles = [
        int(instruction.field("estimated_cycles") or 0)
        for instruction in module.computations[module.entry].instructions
    ]
    schedule = replayed("step_v6e")
    assert schedule.compute_s == pytest.approx(sum(cycles) / 1.75e9, rel=2e-3)
    assert schedule.time_s == pytest.approx(schedule.compute_s + schedule.exposed_s)
    kinds = {event.kind for event in schedule.events if event.lane == "collective"}
    assert kinds == {"all_gather", "all_reduce", "collective_permute"}


def test_on_tpus_our_links_price_every_collective() -> None:
    """Even the schedule's own times are replaced, since it takes lines of chips for rings."""
    asked: list[ScheduleStep] = []

    def price_s(step: ScheduleStep) -> float:
        asked.append(step)
        return 1e-3

    schedule = replayed("step_v6e", price_s)
    lengths = [event.end_s - event.start_s for event in schedule.events if event.lane != COMPUTE]
    assert lengths == [pytest.approx(1e-3)] * len(asked)
    assert asked
    assert all(step.bytes > 0 and step.axes for step in asked)


def test_on_gpus_collectives_take_what_the_tables_say() -> None:
    """In the schedule itself, every no-op instruction would hide a microsecond of them."""
    schedule = replayed("scheduled_h100", lambda step: 3e-6 if step.bytes == 4 else None)
    taken = {
        event.name: event.end_s - event.start_s
        for event in schedule.events
        if event.lane == "collective"
    }
    raw = (TEXTS / "scheduled_h100.hlo").read_text()
    for name in ("all-gather-start", "all-reduce-start"):
        line = next(row for row in raw.splitlines() if f"%{name} = " in row)
        told_us = float(line.partition('"exec_time_us":')[2].partition(",")[0])
        assert told_us > 1
        assert taken[name] == pytest.approx(told_us * 1e-6)
    assert taken["all-reduce-start.1"] == pytest.approx(3e-6)  # 4 bytes: XLA's time is almost 0
    assert schedule.notes == ("priced by our links: 1 all_reduce",)


def test_what_nobody_prices_leaves_the_step_without_a_time() -> None:
    schedule = replayed("scheduled_h100")
    assert schedule.time_s is None
    assert schedule.exposed_s > 0
    assert schedule.notes == ("without any clock: 1 all_reduce; so a step has no time",)


def test_a_step_without_the_time_of_a_library_call_has_no_time() -> None:
    """XLA has no time for convolutions, and its schedule's microsecond must not stand in for it."""
    raw = (TEXTS / "scheduled_h100.hlo").read_text()
    line = next(row for row in raw.splitlines() if "%custom-call.2 = " in row)
    module = hlo_text.parse(raw.replace(line, re.sub(r'"reification_cost":\[[^]]*\]', "", line)))
    clocks = schedule_steps.gpu_clocks(module, "sm_90", 8)
    steps = schedule_steps.steps_of(text_of("scheduled_h100"), module, MESH, clocks=clocks)
    schedule = replay(steps, lambda _: 1e-6)
    assert schedule.time_s is None
    assert "without any clock: 1 custom-call; so a step has no time" in schedule.notes
    assert replayed("scheduled_h100", lambda _: 1e-6).time_s is not None


def test_a_loop_counts_by_its_rounds_and_shows_its_first() -> None:
    schedule = replayed("scan_b200", lambda _: 9e-6)
    scatter = next(event for event in schedule.events if event.kind == "reduce_scatter")
    assert scatter.times == 4.0
    assert scatter.op >= 0
    assert schedule.exposed_s_by_op[scatter.op] == pytest.approx(4 * scatter.exposed_s)
    loop = next(event for event in schedule.events if event.lane == "loop")
    in_loop = [event for event in schedule.events if event.times == 4.0]
    first_round = max(e.end_s for e in in_loop) - min(e.start_s for e in in_loop)
    assert loop.end_s - loop.start_s == pytest.approx(3 * first_round, rel=0.01)
    assert schedule.time_s == pytest.approx(schedule.compute_s + schedule.exposed_s)


# -- exposed time ----------------------------------------------------------------------------------


def compute(time_s: float | None, op: int = 0) -> ScheduleStep:
    return ScheduleStep(COMPUTE, f"fusion.{op}", "fusion", op, time_s)


def start(name: str, time_s: float | None, op: int = 1) -> ScheduleStep:
    return ScheduleStep(START, name, "all_gather", op, time_s)


def done(name: str) -> ScheduleStep:
    return ScheduleStep(DONE, f"{name}-done", "all_gather", -1, start=name)


@pytest.mark.parametrize(
    ("steps", "time_s", "exposed_s_by_op"),
    [
        # No computing beside the collective
        (
            [compute(2.0), ScheduleStep(SYNC, "ar", "all_reduce", 1, 3.0), compute(1.0)],
            6.0,
            {1: 3.0},
        ),
        # A hidden collective
        ([start("a", 3.0), compute(4.0), done("a"), compute(1.0)], 5.0, {1: 0.0}),
        # A collective as long as the computing that hides it
        ([start("a", 4.0), compute(4.0), done("a")], 4.0, {1: 0.0}),
        # A partly hidden collective
        ([start("a", 3.0), compute(1.0), done("a"), compute(1.0)], 4.0, {1: 2.0}),
        # Two in flight: the wait for the first also counts for the second
        (
            [start("a", 3.0), start("b", 5.0, 2), compute(1.0), done("a"), done("b")],
            5.0,
            {1: 2.0, 2: 2.0},
        ),
        # A collective that is never waited for
        ([start("a", 3.0), compute(1.0)], 1.0, {1: 0.0}),
        # A collective beside an asynchronous one
        (
            [start("a", 3.0), ScheduleStep(SYNC, "ar", "all_reduce", 2, 2.0), done("a")],
            3.0,
            {1: 1.0, 2: 2.0},
        ),
        ([done("unknown"), compute(1.0)], 1.0, {}),
        ([], 0.0, {}),
    ],
)
def test_exposed_is_what_the_compute_lane_waits_for(
    steps: list[ScheduleStep], time_s: float, exposed_s_by_op: dict[int, float]
) -> None:
    schedule = replay(steps)
    assert schedule.exposed_s_by_op == pytest.approx(exposed_s_by_op)
    assert schedule.time_s == pytest.approx(time_s)
    assert schedule.exposed_s == pytest.approx(sum(exposed_s_by_op.values()))
    assert schedule.time_s == pytest.approx(schedule.compute_s + schedule.exposed_s)
    ends = [event.end_s for event in schedule.events if event.exposed_s]
    assert all(end <= time_s + 1e-9 for end in ends)


def test_the_schedules_own_time_counts_where_there_is_no_price() -> None:
    without_clock = start("a", None)._replace(own_s=2.0)
    priced = replay([without_clock, done("a")], lambda _: 5.0)
    assert priced.exposed_s == 5.0
    assert any("priced by our links" in note for note in priced.notes)
    assert replay([without_clock, done("a")]).exposed_s == 2.0
    assert replay([without_clock._replace(own_s=math.inf), done("a")]).time_s is None


@pytest.mark.parametrize(("sent_s", "exposed_s"), [(3.0, 1.0), (1.5, 0.0)])
def test_a_collective_that_is_fused_into_a_product_runs_beside_it(
    sent_s: float, exposed_s: float
) -> None:
    collective = ScheduleStep(SYNC, "all-reduce.1", "all_reduce", 5, sent_s)
    schedule = replay([*schedule_steps.overlapped(collective, compute(2.0)), compute(1.0)])
    assert (schedule.compute_s, schedule.exposed_s_by_op) == (3.0, {5: exposed_s})
    assert schedule.time_s == 3.0 + exposed_s


FUSED = """HloModule m, entry_computation_layout={(f32[8,16]{1,0}, f32[16,8]{1,0})->f32[8,8]{1,0}}

%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add = f32[] add(%x, %y)
}

%fused (a: f32[8,16], b: f32[16,8]) -> f32[8,8] {
  %a = f32[8,16]{1,0} parameter(0)
  %b = f32[16,8]{1,0} parameter(1)
  %dot.1 = f32[8,8]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %all-reduce.1 = f32[8,8]{1,0} all-reduce(%dot.1), replica_groups={{0,1},{2,3}}, to_apply=%sum
}

ENTRY %main (p: f32[8,16], q: f32[16,8]) -> f32[8,8] {
  %p = f32[8,16]{1,0} parameter(0)
  %q = f32[16,8]{1,0} parameter(1)
  ROOT %fusion.1 = f32[8,8]{1,0} fusion(%p, %q), kind=kOutput, calls=%fused, CYCLES
}
"""


def test_a_text_without_a_schedule_has_both_sides_of_such_a_fusion() -> None:
    cycles = 'backend_config={"window_config":{"estimated_cycles":"1000"}}'
    module = hlo_text.parse(FUSED.replace("CYCLES", cycles))
    clocks = schedule_steps.tpu_clocks(module, 1e9)
    steps = schedule_steps.in_order(module, {"d": 2, "m": 2}, clocks)
    (sent,) = (step for step in steps if step.role == START)
    assert (sent.kind, sent.bytes, sent.axes) == ("all_reduce", 8 * 8 * 4, ("m",))
    schedule = replay(steps, lambda _: 3e-6)
    assert schedule.compute_s == pytest.approx(1e-6)
    assert schedule.exposed_s == pytest.approx(2e-6)


CONDITION = """HloModule m, entry_computation_layout={(f32[8,8]{1,0}, s32[])->f32[8,8]{1,0}}

%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add = f32[] add(%x, %y)
}

%summed (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  %sine = f32[8,8]{1,0} sine(%a), backend_config={"window_config":{"estimated_cycles":"2000"}}
  ROOT %all-reduce.1 = f32[8,8]{1,0} all-reduce(%sine), replica_groups={{0,1},{2,3}}, to_apply=%sum
}

%left (b: f32[8,8]) -> f32[8,8] {
  %b = f32[8,8]{1,0} parameter(0)
  ROOT %cos = f32[8,8]{1,0} cosine(%b), backend_config={"window_config":{"estimated_cycles":"600"}}
}

ENTRY %main (p: f32[8,8], i: s32[]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %conditional = f32[8,8]{1,0} conditional(%i, %p, %p), branch_computations={%summed, %left}
}
"""


def test_each_branch_of_a_condition_counts_as_often_as_in_a_price() -> None:
    module = hlo_text.parse(CONDITION)
    clocks = schedule_steps.tpu_clocks(module, 1e9)
    steps = schedule_steps.in_order(module, {"d": 2, "m": 2}, clocks)
    schedule = replay(steps, lambda _: 3e-6)
    assert schedule.compute_s == pytest.approx(0.5 * (2e-6 + 0.6e-6))
    assert schedule.exposed_s == pytest.approx(0.5 * 3e-6)
    assert schedule.time_s == pytest.approx(schedule.compute_s + schedule.exposed_s)
    times = {place.computation.name: place.times for place in hlo_text.executed(module)}
    assert (times["main"], times["summed"], times["left"]) == (1.0, 0.5, 0.5)


def test_loops_inside_loops_multiply() -> None:
    inner = ScheduleStep(LOOP, "w2", "while", -1, rounds=3.0, body=(start("a", 2.0), done("a")))
    outer = ScheduleStep(LOOP, "w1", "while", -1, rounds=2.0, body=(compute(1.0), inner))
    schedule = replay([outer, compute(1.0)])
    assert (schedule.time_s, schedule.compute_s, schedule.exposed_s) == (15.0, 3.0, 12.0)
    assert schedule.exposed_s_by_op == {1: 12.0}


CONVERGING = """HloModule m
%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %t = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%t), index=1
  %i = s32[] get-tuple-element(%t), index=0
  %y = f32[8]{0} fusion(%x), kind=kLoop, calls=%f, backend_config={"estimated_cycles":"1000"}
  ROOT %o = (s32[], f32[8]{0}) tuple(%i, %y)
}
%test (t: (s32[], f32[8])) -> pred[] {
  %t = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %m = s32[] copy(%i), backend_config={"estimated_cycles":"2"}
  SUMMED
  %c = s32[] constant(9)
  ROOT %less = pred[] compare(%m, %c), direction=NE
}
ENTRY %main (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %t = (s32[], f32[8]{0}) parameter(0)
  ROOT %w = (s32[], f32[8]{0}) while(%t), condition=%test, body=%body
}
"""
SUMMED = "%m.1 = s32[] all-reduce(%m), channel_id=1, replica_groups={{0,1}}, to_apply=%f"


@pytest.mark.parametrize("is_summed", [True, False])
def test_a_condition_that_asks_other_devices_takes_its_time_in_each_round(is_summed: bool) -> None:
    module = hlo_text.parse(CONVERGING.replace("SUMMED", SUMMED if is_summed else ""))
    clocks = schedule_steps.tpu_clocks(module, 1e9)
    steps = schedule_steps.in_order(module, {"d": 2}, clocks, lambda _: 4.0)
    schedule = replay(steps, lambda _: 3e-6)
    assert schedule.compute_s == pytest.approx(4 * 1e-6 + is_summed * 5 * 2e-9)
    assert schedule.exposed_s == pytest.approx(is_summed * 5 * 3e-6)
    assert [event.times for event in schedule.events if event.lane == "collective"] == (
        [5.0] if is_summed else []
    )


def test_a_condition_that_reads_all_of_a_value_takes_its_time_too() -> None:
    text = CONVERGING.replace("SUMMED", "").replace('cycles":"2"', 'cycles":"2000"')
    module = hlo_text.parse(text)
    clocks = schedule_steps.tpu_clocks(module, 1e9)
    schedule = replay(schedule_steps.in_order(module, {"d": 2}, clocks, lambda _: 4.0))
    assert schedule.compute_s == pytest.approx(4 * 1e-6 + 5 * 2e-6)


def test_of_many_events_the_shortest_are_left_out_and_counted() -> None:
    steps = [compute(1.0 + i % 7, op=i) for i in range(100)]
    steps += [ScheduleStep(SYNC, "ar", "all_reduce", 200, 0.5)]
    whole, part = replay(steps), replay(steps, max_events=30)
    assert len(part.events) == 30
    assert part.left_out == 71
    assert any(event.op == 200 for event in part.events)  # exposed communication stays
    assert (part.time_s, part.exposed_s_by_op) == (whole.time_s, whole.exposed_s_by_op)
    shown_s = sum(event.end_s - event.start_s for event in part.events)
    assert shown_s + part.left_out_s == pytest.approx(whole.time_s)
    assert part.located(lambda op: f"m.py:{op}").exposed_s_by_source() == {"m.py:200": 0.5}


def test_a_thinned_memory_curve_keeps_its_peak() -> None:
    steps = [compute(1.0)._replace(memory_bytes=float(i == 5001)) for i in range(9000)]
    memory = replay(steps).memory
    assert len(memory) <= MAX_MEMORY_POINTS
    assert max(size for _, size in memory) == 1.0


# -- results ---------------------------------------------------------------------------------------


def test_a_result_keeps_its_schedule() -> None:
    schedule = replayed("scan_b200", lambda _: 9e-6).located(lambda op: f"model.py:{op}")
    compiled = dataclasses.replace(result("gpu:b200:8", 2**20), schedule=schedule)
    again = Compiled.from_json(json.loads(json.dumps(compiled.to_json())))
    assert again == compiled
    assert again.time_s == compiled.time_s == schedule.time_s
    parts = again.time_parts
    assert parts is not None
    assert sum(parts.values()) == pytest.approx(again.time_s)
    assert "ms of exposed communication" in str(again)


def test_a_saved_schedule_has_a_line_for_each_event(tmp_path: Path) -> None:
    schedule = replayed("scan_b200", lambda _: 9e-6)
    compiled = dataclasses.replace(result("gpu:b200:8", 2**20), schedule=schedule)
    compiled.save(tmp_path / "c.json")
    assert Compiled.load(tmp_path / "c.json") == compiled
    rows = (tmp_path / "c.json").read_text().splitlines()
    name = next(event.name for event in schedule.events if event.lane == "collective")
    row = next(row for row in rows if f'"{name}"' in row)
    assert json.loads(row.rstrip(","))[:3] == ["collective", "reduce_scatter", name]


def test_a_result_without_a_schedule_is_read_as_before() -> None:
    data = result("gpu:h100:8", 2**20).to_json()
    del data["schedule"]
    again = Compiled.from_json(data)
    assert (again.schedule, again.time_s, again.time_parts) == (None, None, None)


def test_processors_have_no_schedule_and_say_so() -> None:
    model = small_step()
    compiled = compile_plan(model, plan_of(model, MESH, *ACTIONS), "cpu:8", store=False)
    assert compiled.schedule is None
    assert compiled.time_s is None
    assert "no schedule: XLA gives no schedule for cpu:8" in compiled.notes


def test_the_dump_goes_when_the_child_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []

    def die(_: str, request: Any, **__: Any) -> None:
        folders.append(request.dump_folder)
        (Path(request.dump_folder) / "x.schedule.txt").write_text("hlo_module {")
        raise RunFailed("killed")

    monkeypatch.setattr(isolate, "run_in_child", die)
    model = small_step()
    with pytest.raises(RunFailed):
        compile_plan(model, plan_of(model, MESH, *ACTIONS), "cpu:8", store=False)
    assert folders
    assert not os.path.exists(folders[0])


@needs_wheels
@pytest.mark.parametrize("gpu", ["h100", "h200", "b200"])
def test_gpus_that_xla_has_tables_of_have_a_schedule(gpu: str) -> None:
    model = small_step()
    plan = plan_of(model, MESH, *ACTIONS)
    compiled = compile_plan(model, plan, f"gpu:{gpu}:8", store=False)
    schedule = compiled.schedule
    assert schedule is not None, compiled.notes
    assert compiled.time_s is not None
    assert compiled.time_s > 10e-6
    counted = sum(row.times for row in compiled.collectives)
    bars = [event for event in schedule.events if event.lane == "collective"]
    assert sum(event.times for event in bars) == counted
    assert {event.op for event in bars} == {row.op for row in compiled.collectives}
    assert all(event.source.partition(":")[0].endswith(".py") for event in bars)
    assert schedule.memory


@needs_wheels
def test_gpus_without_tables_say_that_they_have_no_schedule() -> None:
    model = small_step()
    compiled = compile_plan(model, plan_of(model, MESH, *ACTIONS), "gpu:a100:8", store=False)
    assert compiled.schedule is None
    assert "no schedule: XLA gives no schedule for a100, for which it has no tables" in (
        compiled.notes
    )


@needs_libtpu
@pytest.mark.parametrize("topology", ["tpu:v5e:2x4", "tpu:v5p:2x2x2", "tpu:v6e:2x4"])
def test_tpus_have_a_schedule(topology: str) -> None:
    model = small_step()
    compiled = compile_plan(model, plan_of(model, MESH, *ACTIONS), topology, store=False)
    assert compiled.schedule is not None, compiled.notes
    parts = compiled.time_parts
    assert parts is not None
    assert compiled.compute_s is not None
    assert parts["compute_s"] == pytest.approx(compiled.compute_s, rel=0.01)


@needs_libtpu
def test_a_loop_on_tpus_counts_by_its_rounds() -> None:
    model = scanned()
    plan = plan_of(model, {"d": 8}, ("in", "d"))
    compiled = compile_plan(model, plan, "tpu:v5p:2x2x2", store=False)
    assert compiled.schedule is not None, compiled.notes
    collectives = [event for event in compiled.schedule.events if event.lane == "collective"]
    assert {event.times for event in collectives} == {4.0}
