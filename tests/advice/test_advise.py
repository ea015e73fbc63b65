"""Advice on slices, mesh shapes, parts of a batch and recomputation."""

from __future__ import annotations

import itertools
import json
import logging
import math
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import toast_lab as tl
from toast_lab.advice import advisor
from toast_lab.advice.advice_result import Advice, AdviceRow, advice_text
from toast_lab.advice.set_ups import alike, device_counts, mesh_shapes
from toast_lab.errors import InvalidProblem
from toast_lab.machines.catalogue import machine
from toast_lab.sharding.mesh import Mesh
from toast_lab.sweep.run_sweep import SweepProgress

SIZES = {"layers": 2, "batch": 16, "sequence": 256, "d_model": 64, "hidden": 128, "vocab": 128}
QUICK: dict[str, Any] = {"evaluations": 30, "workers": 0}


def transformer(**sizes: Any) -> tl.Model:
    return tl.load("transformer", **{**SIZES, "heads": 4, **sizes})


def advised(model: tl.Model, *given: Any, **options: Any) -> Advice:
    return tl.advise(model, *given, **{**QUICK, **options})


@pytest.fixture(scope="module")
def roomy() -> Advice:
    model = tl.load("transformer", layers=2, batch=16)
    return advised(model, "tpu-v5e", 8, price_per_device_hour=1.2, evaluations=200)


@pytest.fixture(scope="module")
def tight() -> Advice:
    """Advice under a limit that the program as written does not keep to on few devices."""
    model = transformer()
    base = tl.Problem(tl.analyse(model), {"data": 8})
    data = tl.Plan.from_actions(base, ["batch->data"])
    limit = 0.8 * tl.price(base, data).peak_bytes
    return advised(model, "tpu-v5e", [4], memory_limit_bytes=limit)


def every_shape(count: int) -> list[dict[str, int]]:
    """Every ordered way to write ``count`` as a product of 1 to 3 factors, as a mesh."""
    names = ("data", "model", "axis2")
    sizes = range(1, count + 1)
    shapes = {
        tuple(size for size in shape if size > 1) or (1,)
        for shape in itertools.product(sizes, repeat=3)
        if math.prod(shape) == count
    }
    return [dict(zip(names, shape, strict=False)) for shape in shapes]


@pytest.mark.parametrize("where", ["tpu-v5e", "h100"])
@pytest.mark.parametrize("name", ["transformer", "attention", "mlp"])
def test_the_first_row_is_no_worse_than_expert_plans_on_every_mesh_shape(
    name: str, where: str
) -> None:
    models = {
        "transformer": transformer,
        "attention": lambda: tl.load("attention", sequence=4096, d_model=512),
        "mlp": lambda: tl.load("mlp", batch=2048, inputs=512, hidden=4096, outputs=512),
    }
    model = models[name]()
    counts = [1, 8, 16] if where == "h100" else [4, 8]
    # Searches of one plan do not help: expert plans alone have to keep the promise
    advice = advised(model, where, counts, evaluations=1)
    analysis = tl.analyse(model)
    priced = 0
    for count in counts:
        for shape in every_shape(count):
            problem = tl.Problem(analysis, shape, where)
            plans = [tl.replicated(problem)]
            if count > 1:
                plans += [
                    tl.Plan.from_actions(problem, actions)
                    for actions in tl.usual_plans(problem).values()
                ]
            for plan in plans:
                cost = tl.price(problem, plan)
                priced += 1
                assert cost.fits
                assert advice.rows[0].time_s <= cost.time_s * (1 + 1e-9), (shape, plan.actions)
    assert priced > 15
    assert advice.rows[0].fits


def test_rows_are_plans_at_their_prices(roomy: Advice, tight: Advice) -> None:
    assert {row.origin for row in roomy.rows} == {"search", "unsharded"}
    assert any(row.priced.packed for row in roomy.rows), "no refined plan was kept"
    for row in (*roomy.rows, *tight.rows):
        cost = tl.price(row.problem, row.plan)
        assert cost.time_s * row.parts == pytest.approx(row.time_s, rel=1e-9), str(row)
        if row.parts == 1:
            assert cost.peak_bytes == pytest.approx(row.peak_bytes, rel=1e-9), str(row)
        assert row.fits == (row.peak_bytes <= row.terms.memory_limit_bytes)
        assert row.plan.mesh == row.mesh


def test_the_three_answers(roomy: Advice) -> None:
    fastest, cheapest, smallest = roomy.fastest, roomy.cheapest, roomy.smallest
    assert fastest is not None
    assert cheapest is not None
    assert smallest is not None
    rows = [row for row in roomy.rows if row.fits]
    assert fastest.time_s == min(row.time_s for row in rows)
    assert cheapest.device_s == min(row.devices * row.time_s / 16 for row in rows)
    assert cheapest.price_per_example == pytest.approx(1.2 * cheapest.device_s / 3600)
    assert smallest.devices == 1
    text = str(roomy)
    assert max(map(len, text.splitlines())) <= 80
    for sentence in roomy.answers:
        assert sentence.split()[0] in text
    assert json.loads(json.dumps(roomy.to_json()))["fastest"]["devices"] == fastest.devices


@pytest.mark.parametrize("where", ["tpu-v5e", "h100"])
def test_meshes_that_are_alike_have_plans_of_the_same_price(where: str) -> None:
    analysis = tl.analyse(transformer())
    tried = 0
    for group in alike(machine(where), mesh_shapes(16)):
        if len(group) == 1:
            continue
        costs = []
        for mesh in group:
            # Sizes are told apart, so the axis of a size has the same part on each of them
            axes = sorted(mesh.axes, key=mesh.size)
            if len(set(mesh.sizes)) < len(mesh.sizes):
                continue
            problem = tl.Problem(analysis, mesh, where)
            plan = tl.Plan.from_actions(
                problem, [f"batch->{axes[-1]}", *(f"hidden->{axis}" for axis in axes[:-1])]
            )
            costs.append(tl.price(problem, plan))
        for cost in costs[1:]:
            tried += 1
            assert cost.time_s == pytest.approx(costs[0].time_s)
            assert cost.peak_bytes == pytest.approx(costs[0].peak_bytes)
    assert tried >= (1 if where == "tpu-v5e" else 0)


def test_mesh_shapes_are_all_there_and_differ_in_their_links() -> None:
    def sizes(meshes: Any) -> list[tuple[int, ...]]:
        return sorted(mesh.sizes for mesh in meshes)

    assert sizes(mesh_shapes(12)) == sorted(tuple(shape.values()) for shape in every_shape(12))
    hosts = alike(machine("h100"), mesh_shapes(16))
    assert ((2, 8),) in [tuple(mesh.sizes for mesh in group) for group in hosts]
    assert ((8, 2),) in [tuple(mesh.sizes for mesh in group) for group in hosts]
    torus = alike(machine("tpu-v5e"), mesh_shapes(16))
    assert ((2, 8), (8, 2)) in [tuple(mesh.sizes for mesh in group) for group in torus]


def test_slices_are_those_that_can_be_rented() -> None:
    assert device_counts(machine("tpu-v5e"), 64) == (1, 4, 8, 16, 32, 64)
    assert device_counts(machine("h100"), 24) == (1, 2, 4, 8, 16, 24)
    assert device_counts(machine("h100"), [24, 6]) == (6, 24)
    assert device_counts(machine("tpu-v5e"))[-1] == 256


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"devices": 0}, "devices must be at least 1, got 0"),
        ({"devices": [8, -2]}, "devices must be at least 1, got -2"),
        ({"devices": 512}, "512 devices: tpu-v5e joins at most 256"),
        ({"devices": []}, "an empty list"),
        ({"price_per_device_hour": 0}, "price_per_device_hour must be above 0, got 0"),
        ({"price_per_device_hour": -1.5}, "price_per_device_hour must be above 0, got -1.5"),
        ({"seconds": 0}, "seconds must be above 0"),
        ({"batch": 3}, "3 does not divide 16"),
        ({"batch": [8, 0]}, "0 must be at least 1"),
        ({"second": 3}, "advise has no option second .did you mean .seconds."),
        ({"machine": "tpu-v5"}, "no machine is called 'tpu-v5'"),
    ],
)
def test_what_is_not_possible_is_refused_at_once(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        tl.advise(transformer(), **{"devices": 4, **given})


def of_a_function() -> tl.Model:
    def loss(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w).sum()

    shapes = (jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((256, 64), "float32"))
    return tl.from_jax(jax.grad(loss), *shapes, name="own")


def test_a_model_whose_batch_is_not_known_is_refused_for_that_choice_alone() -> None:
    model = of_a_function()
    with pytest.raises(InvalidProblem, match="the batch of own is not known: load it by name"):
        advised(model, "tpu-v5e", 4, batch=8)
    advice = advised(model, "tpu-v5e", [4], memory_limit_bytes=20_000, recompute=False)
    assert advice.rows
    reasons = [text for text in advice.left_out if text.startswith("No choice of the batch:")]
    assert len(reasons) == 1
    assert "the batch of own is not known" in reasons[0]


def test_nothing_is_advised_for_what_is_no_model() -> None:
    with pytest.raises(InvalidProblem, match="takes a model or its analysis, not str"):
        tl.advise("transformer")  # type: ignore[arg-type]


def test_where_memory_binds_layers_keep_less_or_the_batch_comes_in_parts(tight: Advice) -> None:
    fitting = [row for row in tight.rows if row.fits]
    assert {row.choice.policy for row in tight.rows} >= {"", "inputs"}
    assert {row.parts for row in tight.rows} >= {1, 2}
    assert any(row.choice.policy or row.parts > 1 for row in fitting)
    for row in tight.rows:
        assert (row.batch or 0) * row.parts == 16


def test_parts_of_a_batch_add_up_and_hold_their_gradients() -> None:
    advice = advised(transformer(), "tpu-v5e", [4], batch=[8], recompute=False)
    parts = [row for row in advice.rows if row.parts == 2]
    assert {row.shape for row in parts} == {"4", "2x2"}
    for row in parts:
        assert row.batch == 8
        assert [8, 256] in [
            list(row.problem.analysis.program.dims(value))
            for value in range(row.problem.analysis.program.n_arguments)
        ]
        cost = tl.price(row.problem, row.plan)
        program, mesh = row.problem.analysis.program, row.mesh
        weights = [
            value
            for value in range(program.n_arguments)
            if program.value_name[value].startswith("params[")
        ]
        held = sum(
            program.nbytes(value)
            / mesh.ways(
                axis
                for axis, dim in zip(mesh.axes, row.plan.value_dim[value], strict=True)
                if dim >= 0
            )
            for value in weights
        )
        assert held > 0
        assert row.peak_bytes == pytest.approx(cost.peak_bytes + held)
        assert row.time_s == pytest.approx(2 * cost.time_s)


def test_a_part_of_one_example_has_no_batch_for_experts_to_cut() -> None:
    advice = advised(transformer(batch=2), "tpu-v5e", [4], batch=[1], recompute=False)
    assert not any("could not be priced" in text for text in advice.dropped)
    parts = [row for row in advice.rows if row.parts == 2]
    assert {row.shape for row in parts} == {"4", "2x2"}


def test_what_is_fixed_is_in_all_rows() -> None:
    advice = advised(transformer(), "tpu-v5e", [4], recompute="inputs", batch=False)
    assert {row.choice.policy for row in advice.rows} == {"inputs"}
    assert not advice.left_out


def test_bounds_are_below_every_plan(roomy: Advice, tight: Advice) -> None:
    for advice in (roomy, tight):
        for choice, plan in advice.experts:
            count = make(plan.mesh).n_devices
            assert choice.compute_s / count <= plan.time_s * choice.parts
            assert choice.resident_bytes / count <= plan.peak_bytes
        for row in advice.rows:
            assert 0 < row.choice.compute_s / row.devices <= row.time_s
            assert 0 < row.choice.resident_bytes / row.devices <= row.peak_bytes


def make(mesh: str) -> Mesh:
    return Mesh(
        *zip(*((a, int(n)) for a, n in (p.split("=") for p in mesh.split(","))), strict=True)
    )


def test_slices_on_which_the_weights_do_not_fit_are_left_out_and_said() -> None:
    model = tl.load("mlp", batch=64, inputs=1024, hidden=4096, outputs=512)
    base = tl.Problem(tl.analyse(model), {"data": 1})
    resident = tl.price(base, tl.replicated(base)).timeline_bytes[0]
    advice = advised(
        model, "tpu-v5e", 4, memory_limit_bytes=resident * 0.9, batch=False, recompute=False
    )
    assert advice.fastest is not None
    assert all(row.devices > 1 for row in advice.rows)
    assert any("1 set-up of up to 1 device left out" in text for text in advice.dropped)


def test_if_nothing_fits_it_says_by_how_much_and_what_would() -> None:
    advice = advised(transformer(), "tpu-v5e", [4], memory_limit_bytes=2**20, recompute=False)
    assert advice.fastest is advice.cheapest is advice.smallest is None
    nearest = advice.nearest
    assert nearest is not None
    assert nearest.peak_bytes == min(row.peak_bytes for row in advice.rows)
    assert advice.rows[0] is nearest
    lacking = nearest.peak_bytes - 2**20
    assert f"{lacking / 2**20:.3g} MiB" in advice.answers[0]
    assert advice.reasons is not None
    assert advice.reasons.changes
    assert not nearest.fits
    fitting = [change for change in advice.reasons.changes if change.fits]
    assert ("with one change" in " ".join(advice.answers)) == bool(fitting)


def test_rows_on_disk_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = transformer()
    first = advised(model, "tpu-v5e", 8, store=tmp_path)
    lines = (tmp_path / "rows.jsonl").read_text()

    def refuse(*given: Any, **options: Any) -> Any:
        raise AssertionError("a row was computed again")

    monkeypatch.setattr("toast_lab.sweep.local.SameProcess.submit", refuse)
    again = advised(model, "tpu-v5e", 8, store=tmp_path)
    assert (tmp_path / "rows.jsonl").read_text() == lines
    assert [row.to_json() for row in again.rows] == [row.to_json() for row in first.rows]
    assert again.n_searched == first.n_searched


def test_processes_of_this_machine_give_the_same_rows() -> None:
    model = transformer()
    alone, together = (advised(model, "tpu-v5e", 4, workers=workers) for workers in (0, 2))
    assert [row.to_json() for row in alone.rows] == [row.to_json() for row in together.rows]


def test_a_damaged_row_is_computed_again(tmp_path: Path) -> None:
    model = transformer()
    first = advised(model, "tpu-v5e", [4], store=tmp_path)
    path = tmp_path / "rows.jsonl"
    lines = path.read_text().splitlines()
    row = json.loads(lines[-1])
    row["plans"][0]["time_s"] = "fast"
    path.write_text("\n".join([*lines[:-1], json.dumps(row)]) + "\n")
    again = advised(model, "tpu-v5e", [4], store=tmp_path)
    assert len(path.read_text().splitlines()) == len(lines) + 1
    assert again.rows[0].time_s == first.rows[0].time_s


def test_a_stopped_advice_keeps_its_rows_and_goes_on(tmp_path: Path) -> None:
    model, seen = transformer(), list[AdviceRow]()

    def cancel() -> bool:
        return len(seen) >= 2

    stopped = advised(model, "tpu-v5e", 8, store=tmp_path, on_row=seen.append, cancel=cancel)
    assert stopped.message.startswith("Stopped")
    assert 2 <= len(stopped.rows)
    kept = len((tmp_path / "rows.jsonl").read_text().splitlines())
    whole = advised(model, "tpu-v5e", 8, store=tmp_path)
    assert whole.message == "Done."
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert len(lines) > kept
    digests = [json.loads(line)["digest"] for line in lines]
    assert len(digests) == len(set(digests))


def test_rows_come_while_the_work_goes_on() -> None:
    advice = advised(transformer(), "tpu-v5e", 8, wait=False)
    assert advice.running
    best: dict[tuple[str, str], tuple[bool, float]] = {}
    count = 0
    for row in advice.live():
        key = (row.choice.digest, str(sorted(row.mesh.sizes)))
        assert key not in best or row.rank <= best[key]
        best[key] = row.rank
        count += 1
        if count == 1:
            assert advice.running
            assert "devices" in str(advice)
    assert not advice.running
    assert advice.wait().rows[0].rank == min(best.values())


def test_an_error_of_the_work_is_raised(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(tl.ToastError, match="rows cannot be kept here"):
        advised(transformer(), "tpu-v5e", [4], store=tmp_path)


def test_a_task_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    real = advisor.run_sweep

    def failing(tasks: Any, store: Any, *given: Any, on_progress: Any, **options: Any) -> Any:
        done = real(tasks, store, *given, on_progress=lambda event: None, **options)
        for row in done.rows:
            if row["mesh"] == "data=4":
                row.update(plans=[], message="no such luck", status="FAILED")
            on_progress(SweepProgress(1, 1, row, ()))
        return done

    monkeypatch.setattr(advisor, "run_sweep", failing)
    advice = advised(transformer(), "tpu-v5e", [4], batch=False, recompute=False)
    assert "1 set-up could not be priced: no such luck." in advice.dropped
    assert {row.shape for row in advice.rows} == {"2x2"}


def test_workers_of_a_scheduler(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    model = transformer()
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=logging.ERROR
    ) as cluster:
        remote = advised(model, "tpu-v5e", [4], scheduler=cluster.scheduler_address)
    here = advised(model, "tpu-v5e", [4])
    assert [row.to_json() for row in remote.rows] == [row.to_json() for row in here.rows]


def test_a_row_is_written_and_confirmed() -> None:
    pytest.importorskip("libtpu")
    model = tl.load("mlp", batch=2048, inputs=512, hidden=4096, outputs=512)
    advice = advised(model, "tpu-v5e", [4])
    row = advice.rows[0]
    written = row.written()
    assert written.plan.mesh == row.mesh
    confirmed = row.confirm(store=False)
    assert confirmed.topology == "tpu:v5e:2x2"
    assert confirmed.time_s is not None
    assert confirmed.time_s > 0
    assert f"{confirmed.time_s / row.time_s - 1:+.0%}" in str(confirmed)
    with pytest.raises(InvalidProblem, match="no slice of tpu-v5e has 3 devices"):
        advised(model, "tpu-v5e", [3]).rows[0].confirm()


def test_a_table_has_what_differs_between_rows(roomy: Advice, tight: Advice) -> None:
    assert "keeps" not in advice_text(roomy)
    header = next(line for line in advice_text(tight).splitlines() if "devices  mesh" in line)
    assert ("keeps" in header) == any(row.choice.policy for row in tight.best_of_slices)
    assert max(map(len, advice_text(tight).splitlines())) <= 80


def test_a_map_has_the_best_row_of_each_cell(roomy: Advice) -> None:
    hv = pytest.importorskip("holoviews")
    chart = tl.charts.choices(roomy)
    (heat,) = chart.traverse(lambda part: part, [hv.HeatMap])
    cells = heat.dframe()
    rows = roomy.flat_rows()
    # Alike meshes have the same prices, and are in the map, too
    assert {row["mesh"] for row in rows} > {row.shape for row in roomy.rows}
    assert len(cells) == len({(row["devices"], row["last_axis"]) for row in rows})
    for _, cell in cells.iterrows():
        of_cell = [
            row
            for row in rows
            if (str(row["last_axis"]), str(row["devices"])) == (cell.x_choice, cell.y_choice)
        ]
        best = min(of_cell, key=lambda row: (not row["fits"], row["time_s"]))
        assert (cell["value"], cell["name"]) == (best["time_s"], best["set_up"])
    assert list(cells["y_choice"].drop_duplicates()) == ["1", "4", "8"]
    memory = tl.charts.choices(roomy, "mesh", "keeps", "peak_bytes")
    (heat,) = memory.traverse(lambda part: part, [hv.HeatMap])
    assert set(heat.dframe()["x_choice"]) == {row["mesh"] for row in rows}
    with pytest.raises(tl.ToastError, match=r"no column 'device' .did you mean .devices."):
        tl.charts.choices(roomy, "device", "mesh")


def test_a_map_follows_the_work() -> None:
    hv = pytest.importorskip("holoviews")
    advice = advised(transformer(), "tpu-v5e", 8, wait=False)
    chart = tl.charts.choices(advice)
    assert isinstance(chart, hv.DynamicMap)
    plot = hv.renderer("bokeh").get_plot(chart)
    advice.wait()

    def shown() -> set[tuple[str, str]]:
        (heat,) = chart[()].traverse(lambda part: part, [hv.HeatMap])
        return set(zip(*heat.dframe()[["x_choice", "y_choice"]].to_numpy().T, strict=True))

    wanted = {(str(row.mesh.sizes[-1]), str(row.devices)) for row in advice.rows}
    end = time.monotonic() + 20
    # Another thread gives the map its last rows, and draws the plot after that
    while shown() != wanted or not {x for x, _ in wanted} <= set(plot.state.x_range.factors):
        assert time.monotonic() < end
        time.sleep(0.1)
