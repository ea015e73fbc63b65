"""The evaluation runs end to end on small sizes.

Its page, tables and charts are computed from rows alone.
"""

from __future__ import annotations

import csv
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluation.__main__ import main
from evaluation.paper import compiled_plans, paper_cases, run, tables, targets
from evaluation.paper.page import Content, page
from evaluation.paper.paper_cases import Choice
from evaluation.paper.sizes import COMPILED_SIZES
from evaluation.paper.tables import CaseResult
from toast_lab.errors import InvalidProblem
from toast_lab.models import registry
from toast_lab.sweep.sweep_store import SweepStore
from toast_lab.sweep.sweep_worker import code_digest

ITX = [
    "--quick",
    "--parts",
    "models",
    "--models",
    "itx",
    "--machines",
    "tpu-v3",
    "--methods",
    "mcts",
    "exhaustive",
]


def content(made: list[CaseResult], **more: Any) -> Content:
    choice = Choice.make()
    return Content(
        choice,
        "python -m evaluation paper",
        made,
        len(made),
        tables.step_times(made),
        tables.search_times(made),
        (),
        0,
        targets.targets(made),
    )._replace(**more)


def some(found: Callable[..., CaseResult]) -> list[CaseResult]:
    return [
        found("UNet", "a100", "mcts", 0.5),
        found("UNet", "a100", "manual", 0.55, own=0.1),
        found("UNet", "a100", "automap", 0.45, fits=False, own=30.0),
        found("UNet", "a100", "alpa", None, status="CRASHED"),
        *(
            found(s.name, "tpu-v3", m, part="scaling", x=s.x)
            for s in paper_cases.SCALING
            for m in ("mcts", "manual")
        ),
        *(
            found(s.name, "tpu-v4", "mcts", part="depth", x=s.x, status="CONVERGED")
            for s in paper_cases.DEPTHS
        ),
    ]


def test_the_command_resumes_and_writes_everything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    pytest.importorskip("matplotlib")
    command = ["paper", *ITX, "--seconds", "0.5", "--out", str(tmp_path), "--json"]
    assert main(command) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["searches"], data["made"], data["missing"]) == (2, 2, 0)
    assert [t["verdict"] for t in data["targets"]] == ["not measured"] * 6
    assert {Path(f).name for f in data["files"]} == {
        "step_times.csv",
        "search_times.csv",
        "scaling.csv",
        "anytime.csv",
        "growth.csv",
        "step_times.svg",
        "search_times.svg",
        "anytime.svg",
        "evaluation.md",
    }
    rows = list(csv.DictReader((tmp_path / "step_times.csv").open()))
    assert [(r["case"], r["method"], r["outcome"]) for r in rows] == [
        ("ITX", "mcts", "ok"),
        ("ITX", "exhaustive", "ok"),
    ]
    text = (tmp_path / "evaluation.md").read_text()
    assert "The numbers mean nothing" in text
    assert f"{float(rows[0]['time_s']) * 1e3:,.2f}" in text
    before = {f: Path(f).read_bytes() for f in data["files"]}
    assert main(command) == 0
    reloaded = json.loads(capsys.readouterr().out)
    assert reloaded["made"] == 0
    assert {f: Path(f).read_bytes() for f in reloaded["files"]} == before, (
        "the same rows give the same files, byte for byte"
    )
    other = Choice.make(["models"], ["gns"], ["tpu-v3"], ["random"], 0.5, quick=True)
    run.run_paper(other, tmp_path, heading=run.Heading("other"), cancel=lambda: True)
    assert Path(data["files"][0]).read_bytes() == before[data["files"][0]], (
        "rows of other parts stay in the tables"
    )
    assert "1 of its 3 are still missing" in (tmp_path / "evaluation.md").read_text()


def test_unknown_names_are_said_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status = main(
        [
            "paper",
            "--out",
            str(tmp_path / "x"),
            "--models",
            "gsn",
            "--machines",
            "tpu-v9",
            "--methods",
            "mtcs",
            "--parts",
            "model",
        ]
    )
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    for part in ("'gsn' (did you mean \"gns\"?)", "'tpu-v9'", "'mtcs'", "'model'"):
        assert part in err
    assert not (tmp_path / "x").exists()


def test_sizes_are_sizes_of_the_models() -> None:
    for case in paper_cases.CASES:
        for sizes in (case.sizes, case.quick, COMPILED_SIZES[case.model]):
            assert set(sizes) <= set(registry.sizes(case.model)), case.name
    for scale in (
        *paper_cases.SCALING,
        *paper_cases.DEPTHS,
        *paper_cases.DEVICES,
        paper_cases.FOUR_BY_FOUR,
    ):
        assert set(scale.sizes) <= set(registry.sizes("t2b"))
    assert paper_cases.SCALING[-1].mesh == "data=2,seq=32,model=2"
    assert paper_cases.SCALING[-1].sizes["sequence"] == 32768
    for scale in (*paper_cases.SCALING, *paper_cases.DEVICES):
        assert scale.x == tables.devices(scale.mesh)
    assert [s.x for s in paper_cases.SCALING] == [
        tables.devices(s.mesh) for s in paper_cases.SCALING
    ]
    assert [s.x for s in paper_cases.DEVICES] == [
        tables.devices(s.mesh) for s in paper_cases.DEVICES
    ]


def test_every_cell_is_another_task_and_the_whole_paper_is_in_it() -> None:
    cells = Choice.make().cells()
    assert len({c.task.digest for c in cells}) == len(cells)
    models = [
        (c.case, c.task.machine) for c in cells if c.part == "models" and c.task.method == "mcts"
    ]
    assert len(models) == 15
    assert {c.part for c in cells} == set(paper_cases.PARTS)
    slow = [
        c.task.seconds
        for c in cells
        if c.part == "models" and (c.task.method, c.case) == ("mcts", "GNS")
    ]
    assert set(slow) == {paper_cases.SECONDS}


def test_methods_that_are_there_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_cases, "METHODS", {"mcts": "", "alpa": "", "random": ""})
    assert Choice.make().methods == ("mcts", "alpa")
    with pytest.raises(InvalidProblem, match="automap"):
        Choice.make(methods=["automap"])


def test_the_page_says_what_the_rows_say(found: Callable[..., CaseResult], tmp_path: Path) -> None:
    text = page(content(some(found)), tmp_path, tmp_path / "evaluation.md")
    assert (
        "| UNet | a100 | **5,000.00** (1 GiB) | 5,500.00 (1 GiB) | OOM (4,500.00, 1 GiB) | "
        "crashed |"
    ) in text
    assert (
        "| UNet | a100 | 1.00 / 1.00 / 2.00 | 0.10 / – / 0.20 | 30.00 / – / 60.00 | – / – / 2.00 |"
    ) in text
    assert "some processor, 2 cores, Python 3.11, jax 0.10.2, 2026-11-20." in text
    assert "](step_times.svg)" in text
    assert "](../x/step_times.svg)" in page(
        content(some(found)), tmp_path / "x", tmp_path / "docs" / "evaluation.md"
    )


def test_verdicts_are_computed_and_not_written(
    found: Callable[..., CaseResult], tmp_path: Path
) -> None:
    """Each target's line gives the verdict that ``targets`` computes from the rows.

    Other rows give other verdicts.
    """

    def verdicts(made: list[CaseResult]) -> list[str]:
        text = page(content(made), tmp_path, tmp_path / "evaluation.md")
        table = text[text.index("| target | found |") : text.index("Our plan is at least")]
        return re.findall(r"\*\*(.+?)\*\*", table)

    rows = some(found)
    slow = [
        found("UNet", "a100", "automap", 0.45, fits=False, own=3.0) if r.method == "automap" else r
        for r in rows
    ]
    assert verdicts(rows) == [
        "not measured",
        "met",
        "met",
        "not measured",
        "not measured",
        "met",
    ]
    assert verdicts(slow)[1:3] == ["met", "missed"], "what does not fit is beaten at once"
    assert verdicts(rows) == [t.verdict for t in targets.targets(rows)]


def test_missing_rows_and_several_versions_are_said(
    found: Callable[..., CaseResult], tmp_path: Path
) -> None:
    rows = some(found)
    rows[0] = rows[0]._replace(row={**rows[0].row, "code": "0ther", "date": "2026-11-18"})
    text = page(content(rows, n_searches=len(rows) + 3), tmp_path, tmp_path / "evaluation.md")
    assert "3 of its" in text
    assert "2 versions of the code (0ther, c0de)" in text
    assert "2026-11-18 to 2026-11-20" in text
    assert "Others ran beside." not in text
    remarked = content(rows, remark="Others ran beside.")
    assert "\n\nOthers ran beside.\n\n" in page(remarked, tmp_path, tmp_path / "evaluation.md")


def test_the_page_begins_with_what_its_rows_come_to(
    found: Callable[..., CaseResult], tmp_path: Path
) -> None:
    def beginning(rows: list[CaseResult]) -> str:
        text = page(content(rows), tmp_path, tmp_path / "evaluation.md")
        return text[: text.index("## Targets")]

    rows = some(found)
    # A plan that does not fit ranks behind, whatever its score
    assert (
        "the best plan, or an equally good one, for 1 of 1 problems (a model on a machine).\n"
        in (beginning(rows))
    )
    assert "predicted to be 1.10 to 1.10 times as fast" in beginning(rows)
    assert "- 3 of 3 targets are met" in beginning(rows)
    rows.append(found("UNet", "a100", "beam", 0.4))
    assert "for 0 of 1 problems" in beginning(rows)
    assert "on the others its C(s) is up to 25.00% higher" in beginning(rows)


def test_rows_of_other_code_are_said_to_be_old(
    found: Callable[..., CaseResult], tmp_path: Path
) -> None:
    rows = [found("UNet", "a100", "mcts", 0.5)]
    assert "may have changed since" in page(content(rows), tmp_path, tmp_path / "evaluation.md")
    rows = [rows[0]._replace(row={**rows[0].row, "code": code_digest()})]
    assert "have changed since" not in page(content(rows), tmp_path, tmp_path / "evaluation.md")


def test_charts_are_deterministic_and_say_what_does_not_fit(
    found: Callable[..., CaseResult], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    charts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        files = run.draw(content(some(found)), tmp_path / name)
        assert [f.name for f in files] == [
            "step_times.svg",
            "search_times.svg",
            "anytime.svg",
            "scaling.svg",
            "growth.svg",
        ]
        charts.append([f.read_bytes() for f in files])
    assert charts[0] == charts[1]
    texts = [
        [t.text for t in ET.fromstring(data).iter("{http://www.w3.org/2000/svg}text")]
        for data in charts[0]
    ]
    assert "OOM 4,500" in texts[0]
    assert "crashed" in texts[0]
    assert {"mcts", "manual", "automap", "alpa", "best plan does not fit (OOM)"} <= set(texts[0])
    assert {"mcts", "manual"} <= set(texts[3])
    assert "square root" in texts[4]
    assert b"<dc:date>" not in charts[0][0]


def test_compiled_rows_resume_and_stand_beside_the_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses virtual CPU devices, which compile quickly; TPUs take the same code path."""
    monkeypatch.setattr(compiled_plans, "SLICES", (("cpu", "cpu:4"),))
    monkeypatch.setattr(compiled_plans, "MESH", "data=2,model=2")
    choice = Choice.make(models=["itx"], methods=["mcts"], quick=True, seconds=0.3)
    jobs, store = compiled_plans.jobs(choice, 0.3), SweepStore(tmp_path / "compiled.jsonl")
    assert [str(j) for j in jobs] == ["mcts ITX for cpu:4"]
    compiled_plans.run_jobs(jobs, store)
    (row,) = compiled_plans.table(jobs, store)
    assert row["outcome"] == "ok"
    assert row["compiled_fits"] is True
    assert row["compiled_peak_bytes"] > 0
    assert row["peak_bytes"] > 0
    monkeypatch.setattr(compiled_plans, "_row", lambda *args: pytest.fail("it was there"))
    compiled_plans.run_jobs(jobs, SweepStore(tmp_path / "compiled.jsonl"))
    text = page(
        Content(choice, "", [], 0, [], [], [row], 2, targets.targets([])),
        tmp_path,
        tmp_path / "evaluation.md",
    )
    memory = row["compiled_peak_bytes"] / row["peak_bytes"]
    assert f"| ITX | cpu:4 | 1 | 0 | {memory:.2f} to {memory:.2f} |" in text
    assert "reduced programs" in text
    assert "1 of 2 are still missing" in text


def test_compiled_plans_are_summed_up_by_program_and_slice(tmp_path: Path) -> None:
    row = {"case": "ITX", "topology": "tpu:v3:4x4", "sizes": "batch=8", "peak_bytes": 2.0}
    rows = [
        {**row, "compiled_peak_bytes": 3.0, "bytes_by_kind": '{"a": [4, 8], "b": [4, 2]}'},
        {**row, "compiled_peak_bytes": 5.0, "compute_s": 2.0, "compiled_compute_s": 1.0},
        {**row, "compiled_peak_bytes": 9.0, "compiled_fits": False},
        {**row, "topology": "tpu:v5e:4x8", "error": "it took too long"},
    ]
    page_content = Content(Choice.make(), "", [], 0, [], [], rows, 4, [])
    text = page(page_content, tmp_path, tmp_path / "evaluation.md")
    assert (
        "| ITX | tpu:v3:4x4 | 3 | 1 | 1.50 to 4.50 | 0.50 to 0.50 | 1.25 to 1.25 |\n"
        "| ITX | tpu:v5e:4x8 | 0 | 0 | – | – | – |\n"
    ) in text
    assert "still missing" not in text


def test_a_cancelled_job_leaves_no_row(tmp_path: Path) -> None:
    store = SweepStore(tmp_path / "compiled.jsonl")
    compiled_plans.run_jobs(
        compiled_plans.jobs(Choice.make(quick=True), 2.0), store, cancel=lambda: True
    )
    assert store.rows == {}
