"""A result that cannot be saved at its path is printed and saved elsewhere.

The command then fails.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import NET, QUICK, ROOT
from tests.helpers import analysed
from toast_lab.cost.problem import Problem
from toast_lab.plan_verbs import Plan
from toast_lab.runtime.compile import without_locations
from toast_lab.sharding.sharding import Sharding
from toast_lab.text import csv_text

pytestmark = pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="this system has no /dev/full"
)
LIMITED = (
    # Python would keep bytecode that the limit has cut off, and other processes would read it
    "import resource, sys; sys.dont_write_bytecode = True; "
    "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)); "
    "from toast_lab.cli import main; sys.exit(main())"
)
SEARCH = ["search", *NET, *QUICK]
LONG = ["sequence=512" if word.startswith("sequence=") else word for word in NET]  # worth sharding


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, for this test alone."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_a_plan_and_a_search_that_do_not_fit_are_kept_in_the_temporary_folder(
    toast: Any, temporary: Path
) -> None:
    status, out, err = toast(*SEARCH, "--json", "--save", "/dev/full", "--save-search", "/dev/full")
    assert status == 1
    data = json.loads(out)
    assert data["search"]["status"] == "BUDGET"
    search, plan = err.splitlines()
    message = (
        r"toast-lab: /dev/full: the {0} could not be written: No space left on device; "
        r"make room there, or give a file "
    )
    message += r"on another disk\. Kept in (\S+) instead: the {0}"
    kept = [
        re.fullmatch(message.format(kind), line)
        for kind, line in (("search", search), ("plan", plan))
    ]
    assert all(kept), err
    paths = [Path(match[1]) for match in kept if match]
    assert {path.parent for path in paths} == {temporary}
    assert json.loads(paths[1].read_text())["actions"] == data["plan"]["actions"]
    resumed, out, err = toast("search", *NET, *QUICK, "--json", "--resume", str(paths[0]))
    assert resumed == 0, err


def test_people_see_the_result_before_what_went_wrong(toast: Any, temporary: Path) -> None:
    status, out, err = toast(*SEARCH, "--save", "/dev/full")
    assert status == 1
    assert out.startswith("attn on data=2,model=2: ")
    assert "peak memory" in out
    assert err.count("toast-lab:") == 1


def test_where_no_disk_takes_it_the_actions_are_said(
    toast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    status, out, err = toast(
        *("search", *LONG, *QUICK, "--json", "--save", "/dev/full"),
        *("--option", "refine=0", "solve=no"),
    )
    assert status == 1
    actions = json.loads(out)["plan"]["actions"]
    assert actions
    assert "Nor could it be written to the temporary folder: /no/such/folder/" in err
    assert f"--actions {' '.join(json.dumps(a) for a in actions)} --save FILE" in err
    status, out, _ = toast("price", *LONG, "--actions", *actions, "--json")
    assert (status, json.loads(out)["plan"]["actions"]) == (0, actions)


def test_a_plan_that_no_actions_give_is_printed(
    toast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(
        analysed("attention", sequence=16, d_model=8, key=8, value=8), {"data": 2, "model": 2}
    )
    plan = Plan.from_actions(problem, [("S", "data", 0)])
    values = plan.value_dim.copy()
    values[0] = -1
    refined = dataclasses.replace(
        plan,
        sharding=Sharding(plan.op_factor, values),
        refinements=("refined in 1 place",),
        key=7,
    )
    refined.save(tmp_path / "refined.json")
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    status, _, err = toast(
        "price", *NET, "--plan", str(tmp_path / "refined.json"), "--save", "/dev/full"
    )
    assert status == 1
    copied = err.partition("Copy the plan from here into a file:\n")[2]
    (tmp_path / "copied.json").write_text(copied)
    reloaded = Plan.load(tmp_path / "copied.json", problem)
    assert (reloaded.value_dim == values).all()
    assert reloaded.history == refined.history == ("S@0->data", "refined in 1 place")


def test_a_table_of_curves(toast: Any, temporary: Path) -> None:
    argv = ["race", *NET, *QUICK, "--methods", "mcts", "--json", "--csv", "/dev/full"]
    status, out, err = toast(*argv)
    assert status == 1
    curves = json.loads(out)["race"]["curves"]
    (kept,) = temporary.iterdir()
    assert str(kept) in err
    assert kept.read_text() == csv_text(curves[0].keys(), curves)


def test_exports(toast: Any, tmp_path: Path, temporary: Path) -> None:
    plan = tmp_path / "plan.json"
    assert toast("search", *NET, *QUICK, "--save", str(plan))[0] == 0
    good = tmp_path / "good.mlir"
    status, out, err = toast("export", *NET, str(plan), "--stablehlo", "/dev/full", "--json")
    assert status == 1
    assert json.loads(out)["files"] == {}
    assert "the --stablehlo file could not be written: No space left" in err
    assert toast("export", *NET, str(plan), "--stablehlo", str(good))[0] == 0
    (kept,) = temporary.iterdir()
    assert without_locations(kept.read_text()) == without_locations(good.read_text())


def test_stdout_on_a_full_disk(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "toast_lab.cli", "machines", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=env,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "toast-lab: standard output: the result could not be written: No space left on device"
    )
    (kept,) = tmp_path.glob("toast-lab-*.json")
    assert str(kept) in done.stderr
    assert json.loads(kept.read_text())["machines"]
    assert len(done.stderr.splitlines()) == 1


def test_a_sweep_whose_disk_is_full_prints_its_rows_and_keeps_them_elsewhere(
    tmp_path: Path,
) -> None:
    """The files of the process are limited to 6000 bytes.

    Rows beyond that are refused as on a full disk.
    """
    folder, other = tmp_path / "sweep", tmp_path / "temporary"
    other.mkdir()
    sweep = [
        "sweep",
        "--models",
        "mlp",
        "--meshes",
        "2x2",
        "--methods",
        "random",
        "--evaluations",
        "30",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(other)}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *sweep, "--seeds", "0-40", "--out", str(folder), "--json"],
        capture_output=True,
        text=True,
        env=env,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    data = json.loads(done.stdout)
    assert 1 < data["made"] < 41
    assert data["made"] + data["missing"] == 41
    text = (folder / "rows.jsonl").read_text()
    stored = [json.loads(line) for line in text.splitlines()]
    assert text.endswith("\n"), "no half of a row"
    assert "rows.jsonl: a row could not be written: File too large" in done.stderr
    kept = [
        json.loads(line)
        for path in other.glob("*rows.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(kept) >= 1
    assert [r["seed"] for r in data["rows"]] == sorted(r["seed"] for r in [*stored, *kept])
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_disk_that_is_really_full(toast: Any, tmp_path: Path, temporary: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)],
        capture_output=True,
        check=False,
    )
    if mount.returncode:
        pytest.skip("this system does not let us mount")
    try:
        target = small / "plan.json"
        target.write_text("precious")
        (small / "rest").write_bytes(b"x" * 12288)
        status, out, err = toast(*SEARCH, "--json", "--save", str(target))
        assert status == 1
        assert json.loads(out)["plan"]
        assert f"{target}: the plan could not be written: No space left on device" in err
        assert target.read_text() == "precious"
        assert sorted(os.listdir(small)) == ["plan.json", "rest"]
        assert len(list(temporary.iterdir())) == 1
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_comparison_whose_rows_cannot_be_kept_is_printed_and_fails(
    toast: Any, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    assert toast("search", *NET, *QUICK, "--save", str(plan))[0] == 0
    argv = [
        "compare",
        NET[0],
        str(plan),
        *NET[1:-2],
        "--devices",
        "cpu:4",
        "--repeats",
        "1",
        "--no-gradients",
        "--json",
    ]
    status, out, err = toast(*argv, "--store", "/dev/full")
    assert status == 1, err
    assert [row["status"] for row in json.loads(out)["comparison"]["rows"]] == ["ok"]
    assert "not kept: cannot" in err
